/* A process with CUDA state: `gpu_process BYTES DEVICE [managed] [fork] [nccl]` fills its memory and stays. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **out, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(uint64_t *out, size_t size);
int cuMemAllocManaged(uint64_t *out, size_t size, unsigned flags);
int cuMemsetD8_v2(uint64_t target, unsigned char value, size_t count);

int main(int count, char **arguments) {
    size_t size = count > 1 ? strtoull(arguments[1], NULL, 10) : 4096;
    int managed = 0, forking = 0;
    uint64_t memory;
    void *context;
    for (int n = 3; n < count; n++) {
        managed |= !strcmp(arguments[n], "managed");
        forking |= !strcmp(arguments[n], "fork");
        if (!strcmp(arguments[n], "nccl")) prctl(PR_SET_NAME, "NCCL Service 0"); /* as that library names its thread */
    }
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, count > 2 ? atoi(arguments[2]) : 0) || cuCtxSetCurrent(context)) return 1;
    if (managed ? cuMemAllocManaged(&memory, size, 1) : cuMemAlloc_v2(&memory, size)) return 1;
    if (cuMemsetD8_v2(memory, 0x5a, size)) return 1;
    if (forking) fork();
    for (;;) pause();
}
