/* Stand-in for libcuda.so.1, beside the NVML one and with its control file: memory of the host plays that of the GPU.
 *   * cuda_devices N           devices that CUDA knows (as many as NVML)
 *   N error FUNCTION CODE      FUNCTION (as cuMemAlloc_v2) returns CODE for that GPU; `*` for cuInit too
 *   N hang FUNCTION, N crash FUNCTION
 *   N cuda_wrong_bytes N       so many bytes of each copy to the host are wrong
 *   N cuda_slow MILLISECONDS   what each copy costs more
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LIBRARY -1
#define OUT_OF_MEMORY 2
#define NO_DEVICE 100
#define INVALID_DEVICE 101

static __thread int current = LIBRARY;

static int applies(const char *scope, int gpu) { return !strcmp(scope, "*") || (gpu != LIBRARY && atoi(scope) == gpu); }

static long long value(int gpu, const char *key, long long otherwise) {
    const char *path = getenv("NVML_STAND_IN_CONTROL");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512], scope[16], name[64];
    long long number;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%15s %63s %lld", scope, name, &number) == 3 && applies(scope, gpu) && !strcmp(name, key))
            otherwise = number;
    if (file) fclose(file);
    return otherwise;
}

static int fault(int gpu, const char *function) {
    const char *path = getenv("NVML_STAND_IN_CONTROL");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512], scope[16], kind[16], name[64];
    int code = 0, number;
    while (file && fgets(line, sizeof line, file)) {
        number = 0;
        if (sscanf(line, "%15s %15s %63s %d", scope, kind, name, &number) < 3) continue;
        if (!applies(scope, gpu) || strcmp(name, function)) continue;
        if (!strcmp(kind, "error")) code = number;
        if (!strcmp(kind, "crash")) abort();
        if (!strcmp(kind, "hang")) for (;;) pause();
    }
    if (file) fclose(file);
    return code;
}

#define ENTER(gpu, function) do { int code_ = fault((gpu), (function)); if (code_) return code_; } while (0)

static long long devices(void) { return value(LIBRARY, "cuda_devices", value(LIBRARY, "count", 8)); }

int cuInit(unsigned flags) {
    (void)flags;
    ENTER(LIBRARY, "cuInit");
    return devices() ? 0 : NO_DEVICE;
}
int cuGetErrorName(int code, const char **out) {
    switch (code) {
    case OUT_OF_MEMORY: *out = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
    case NO_DEVICE: *out = "CUDA_ERROR_NO_DEVICE"; return 0;
    case INVALID_DEVICE: *out = "CUDA_ERROR_INVALID_DEVICE"; return 0;
    default: return 1;
    }
}
int cuDeviceGetByPCIBusId(int *out, const char *bus_id) {
    unsigned domain, bus, device;
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &device) != 3) return 1;
    *out = (int)bus - 0x1a;
    if (*out < 0 || *out >= devices()) return INVALID_DEVICE;
    ENTER(*out, "cuDeviceGetByPCIBusId");
    return 0;
}
int cuDevicePrimaryCtxRetain(void **out, int device) {
    ENTER(device, "cuDevicePrimaryCtxRetain");
    *out = (void *)(intptr_t)(device + 1);
    return 0;
}
int cuCtxSetCurrent(void *context) {
    current = (int)(intptr_t)context - 1;
    ENTER(current, "cuCtxSetCurrent");
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) { ENTER(device, "cuDevicePrimaryCtxRelease_v2"); return 0; }
int cuCtxSynchronize(void) { ENTER(current, "cuCtxSynchronize"); return 0; }
int cuMemAlloc_v2(uint64_t *out, size_t size) {
    ENTER(current, "cuMemAlloc_v2");
    *out = (uint64_t)(uintptr_t)malloc(size);
    return *out ? 0 : OUT_OF_MEMORY;
}
int cuMemFree_v2(uint64_t pointer) { ENTER(current, "cuMemFree_v2"); free((void *)(uintptr_t)pointer); return 0; }
int cuMemHostAlloc(void **out, size_t size, unsigned flags) {
    (void)flags;
    ENTER(current, "cuMemHostAlloc");
    *out = malloc(size);
    return *out ? 0 : OUT_OF_MEMORY;
}
int cuMemFreeHost(void *pointer) { ENTER(current, "cuMemFreeHost"); free(pointer); return 0; }

static void take_time(void) {
    long long milliseconds = value(current, "cuda_slow", 0);
    struct timespec pause_ = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&pause_, NULL);
}
int cuMemcpyHtoD_v2(uint64_t target, const void *source, size_t size) {
    ENTER(current, "cuMemcpyHtoD_v2");
    take_time();
    memcpy((void *)(uintptr_t)target, source, size);
    return 0;
}
int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t size) {
    long long wrong = value(current, "cuda_wrong_bytes", 0);
    ENTER(current, "cuMemcpyDtoH_v2");
    take_time();
    memcpy(target, (void *)(uintptr_t)source, size);
    for (long long n = 0; n < wrong; n++) ((unsigned char *)target)[n * 4096 % size] ^= 1;
    return 0;
}
