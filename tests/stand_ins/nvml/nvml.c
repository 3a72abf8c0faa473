/* Stand-in for libnvidia-ml.so.1: eight healthy H100s, and the faults that a control file asks for.
 *
 * $NVML_STAND_IN_CONTROL names a file of lines `SCOPE KEY VALUE`, read at every call. SCOPE is a GPU index or `*`.
 *   * count N                  GPUs that NVML counts (8)
 *   N error FUNCTION CODE      FUNCTION (without the nvml prefix) returns CODE for that GPU; `*` for library functions too
 *   N hang FUNCTION            FUNCTION never returns
 *   N crash FUNCTION           FUNCTION aborts its process
 *   N vanish FUNCTION          from FUNCTION on, everything asked of that GPU answers that it is lost
 *   N freeze FUNCTION FOLDER   FUNCTION puts its process into the cgroup v1 freezer FOLDER: KILL cannot end it
 *   N process PID MIB [mps]    a process of the GPU, beside those that `processes` counts; `mps`: a client of MPS
 *   N VALUE NUMBER             any of the names given to value() below; those of a link end with its number: replay_3
 * Compiled with -DOLD_DRIVER it lacks the functions that came with later drivers.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define GPU_IS_LOST 15
#define ARGUMENT_VERSION_MISMATCH 25
#define LIBRARY -1

typedef struct { int index; } device;
static device devices[64];
static int vanished[64];

static FILE *control(void) {
    const char *path = getenv("NVML_STAND_IN_CONTROL");
    return path ? fopen(path, "r") : NULL;
}

static int applies(const char *scope, int gpu) {
    return strcmp(scope, "*") == 0 || (gpu != LIBRARY && atoi(scope) == gpu);
}

/* The last line that gives KEY for this GPU wins. */
static long long value(int gpu, const char *key, long long otherwise) {
    FILE *file = control();
    char line[512], scope[16], name[64];
    long long number;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%15s %63s %lld", scope, name, &number) == 3 && applies(scope, gpu) && !strcmp(name, key))
            otherwise = number;
    if (file) fclose(file);
    return otherwise;
}

static void freeze(const char *folder) {
    char path[600];
    FILE *file;
    snprintf(path, sizeof path, "%s/cgroup.procs", folder);
    if ((file = fopen(path, "w"))) { fprintf(file, "%d\n", getpid()); fclose(file); }
    snprintf(path, sizeof path, "%s/freezer.state", folder);
    if ((file = fopen(path, "w"))) { fputs("FROZEN\n", file); fclose(file); }
}

static int fault(int gpu, const char *function) {
    FILE *file = control();
    char line[512], scope[16], kind[16], name[64], argument[400];
    int code = SUCCESS;
    while (file && fgets(line, sizeof line, file)) {
        argument[0] = 0;
        if (sscanf(line, "%15s %15s %63s %399s", scope, kind, name, argument) < 3) continue;
        if (!applies(scope, gpu) || strcmp(name, function)) continue;
        if (!strcmp(kind, "error")) code = atoi(argument);
        if (!strcmp(kind, "freeze")) freeze(argument);
        if (!strcmp(kind, "crash")) abort();
        if (!strcmp(kind, "vanish") && gpu != LIBRARY) vanished[gpu] = 1;
        if (!strcmp(kind, "hang")) for (;;) pause();
    }
    if (file) fclose(file);
    return gpu != LIBRARY && vanished[gpu] ? GPU_IS_LOST : code;
}

#define ENTER(gpu, function) do { int code_ = fault((gpu), (function)); if (code_) return code_; } while (0)
#define NUMBER(nvml, function, key, otherwise) \
    int nvml(device *d, unsigned *out) { ENTER(d->index, function); *out = value(d->index, key, otherwise); return SUCCESS; }

int nvmlInit_v2(void) { ENTER(LIBRARY, "Init"); puts("a line of the driver's own"); return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { ENTER(LIBRARY, "Shutdown"); return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "stand-in error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    snprintf(out, size, "%lld.86.15", value(LIBRARY, "driver", 570));
    return SUCCESS;
}
int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 12080; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *out) {
    ENTER(LIBRARY, "DeviceGetCount");
    *out = value(LIBRARY, "count", 8);
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **out) {
    ENTER(index, "DeviceGetHandleByIndex");
    devices[index].index = index;
    *out = &devices[index];
    return SUCCESS;
}
int nvmlDeviceGetName(device *d, char *out, unsigned size) {
    ENTER(d->index, "DeviceGetName");
    if (value(d->index, "foreign_name", 0)) { snprintf(out, size, "NVIDIA H\xff" "00"); return SUCCESS; }
    snprintf(out, size, value(d->index, "model", 0) ? "NVIDIA A100-SXM4-80GB" : "NVIDIA H100 80GB HBM3");
    return SUCCESS;
}
int nvmlDeviceGetUUID(device *d, char *out, unsigned size) {
    ENTER(d->index, "DeviceGetUUID");
    snprintf(out, size, "GPU-00000000-0000-0000-0000-%012lld", value(d->index, "uuid", d->index));
    return SUCCESS;
}
int nvmlDeviceGetSerial(device *d, char *out, unsigned size) {
    ENTER(d->index, "DeviceGetSerial");
    snprintf(out, size, "165000000000%d", d->index + 1);
    return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(device *d, void *out) {
    struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci = {0};
    ENTER(d->index, "DeviceGetPciInfo");
    snprintf(pci.bus_id, sizeof pci.bus_id, "00000000:%02X:00.0", (unsigned)value(d->index, "bus", 0x1a + d->index));
    memcpy(out, &pci, sizeof pci);
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(device *d, uint64_t *out) {
    ENTER(d->index, "DeviceGetMemoryInfo");
    out[0] = value(d->index, "memory_gib", 80) << 30; out[2] = (uint64_t)value(d->index, "used_mib", 1024) << 20; out[1] = out[0] - out[2]; /* total, free, used */
    return SUCCESS;
}
int nvmlDeviceGetEccMode(device *d, unsigned *current, unsigned *pending) {
    ENTER(d->index, "DeviceGetEccMode");
    *current = value(d->index, "ecc", 1);
    *pending = value(d->index, "ecc_pending", 1);
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(device *d, int type, int counter, uint64_t *out) {
    static const char *keys[2][2] = {{"corrected", "corrected_aggregate"}, {"uncorrected", "uncorrected_aggregate"}};
    ENTER(d->index, "DeviceGetTotalEccErrors");
    if (!value(d->index, "ecc", 1)) return NOT_SUPPORTED;
    *out = value(d->index, keys[type & 1][counter & 1], 0);
    return SUCCESS;
}
/* before Ampere (`volta 1`) pages are retired; Ampere and later remap rows instead */
int nvmlDeviceGetRetiredPagesPendingStatus(device *d, unsigned *out) {
    ENTER(d->index, "DeviceGetRetiredPagesPendingStatus");
    if (!value(d->index, "volta", 0)) return NOT_SUPPORTED;
    *out = value(d->index, "retired_pending", 0);
    return SUCCESS;
}
int nvmlDeviceGetRetiredPages(device *d, unsigned cause, unsigned *count, uint64_t *out) {
    unsigned wanted = value(d->index, cause ? "retired_double" : "retired_single", 0), room = *count;
    ENTER(d->index, "DeviceGetRetiredPages");
    if (!value(d->index, "volta", 0)) return NOT_SUPPORTED;
    *count = wanted;
    if (wanted > room) return INSUFFICIENT_SIZE;
    for (unsigned n = 0; out && n < wanted; n++) out[n] = n << 16;
    return SUCCESS;
}
int nvmlDeviceGetTemperature(device *d, int sensor, unsigned *out) {
    (void)sensor;
    ENTER(d->index, "DeviceGetTemperature");
    *out = value(d->index, "temperature", 34);
    return SUCCESS;
}
int nvmlDeviceGetTemperatureThreshold(device *d, int which, unsigned *out) {
    ENTER(d->index, "DeviceGetTemperatureThreshold");
    *out = which == 0 ? value(d->index, "shutdown", 92) : which == 1 ? value(d->index, "slowdown", 89) : value(d->index, "memory_limit", 95);
    return SUCCESS;
}
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "DeviceGetCurrPcieLinkGeneration", "pcie_generation", 1)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "DeviceGetMaxPcieLinkGeneration", "pcie_generation_max", 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "DeviceGetCurrPcieLinkWidth", "pcie_width", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "DeviceGetMaxPcieLinkWidth", "pcie_width_max", 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, "DeviceGetPcieReplayCounter", "pcie_replays", 0)
NUMBER(nvmlDeviceGetPowerUsage, "DeviceGetPowerUsage", "power", 70000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "DeviceGetEnforcedPowerLimit", "power_limit", 700000)
int nvmlDeviceGetClockInfo(device *d, int which, unsigned *out) {
    (void)which;
    ENTER(d->index, "DeviceGetClockInfo");
    *out = value(d->index, "sm_clock", 1980);
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(device *d, unsigned *out) {
    ENTER(d->index, "DeviceGetUtilizationRates");
    out[0] = value(d->index, "utilisation", 0); /* of the GPU, then of its memory */
    out[1] = 0;
    return SUCCESS;
}
NUMBER(nvmlDeviceGetPerformanceState, "DeviceGetPerformanceState", "performance_state", 0)
NUMBER(nvmlDeviceGetInforomConfigurationChecksum, "DeviceGetInforomConfigurationChecksum", "inforom_checksum", 4711)
int nvmlDeviceValidateInforom(device *d) { ENTER(d->index, "DeviceValidateInforom"); return SUCCESS; }
NUMBER(nvmlDeviceGetPersistenceMode, "DeviceGetPersistenceMode", "persistence", 1)
NUMBER(nvmlDeviceGetMinorNumber, "DeviceGetMinorNumber", "minor", d->index)
NUMBER(nvmlDeviceGetComputeMode, "DeviceGetComputeMode", "compute_mode", 0)
int nvmlDeviceGetMigMode(device *d, unsigned *current, unsigned *pending) {
    ENTER(d->index, "DeviceGetMigMode");
    *current = value(d->index, "mig", 0);
    *pending = value(d->index, "mig_pending", *current);
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device *d, uint64_t *out) {
    ENTER(d->index, "DeviceGetCurrentClocksEventReasons");
    *out = value(d->index, "clocks", 1);
    return SUCCESS;
}

typedef struct { unsigned pid; uint64_t memory; unsigned instance, compute; } process;
/* The numbered ones that KEY counts, and those of `process` lines whose last word is KIND. */
static int processes(device *d, const char *function, const char *key, unsigned first, const char *kind, unsigned *count, process *out) {
    unsigned wanted = value(d->index, key, 0), room = *count, known = 0, pid, mib;
    FILE *file;
    char line[512], scope[16], word[16];
    process found[64];
    ENTER(d->index, function);
    for (unsigned n = 0; n < wanted && known < 64; n++) found[known++] = (process){first + n, 1 << 20, ~0u, ~0u};
    file = control();
    while (file && fgets(line, sizeof line, file)) {
        strcpy(word, "compute");
        if (sscanf(line, "%15s process %u %u %15s", scope, &pid, &mib, word) < 3 || !applies(scope, d->index)) continue;
        if (!strcmp(word, kind) && known < 64) found[known++] = (process){pid, (uint64_t)mib << 20, ~0u, ~0u};
    }
    if (file) fclose(file);
    *count = known;
    if (known > room) return INSUFFICIENT_SIZE;
    memcpy(out, found, known * sizeof *found);
    return SUCCESS;
}
#define PROCESSES(nvml, function, key, first, kind) \
    int nvml(device *d, unsigned *count, process *out) { return processes(d, function, key, first, kind, count, out); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "DeviceGetComputeRunningProcesses", "processes", 4000, "compute")

#ifndef OLD_DRIVER
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "DeviceGetComputeRunningProcesses", "processes", 4000, "compute")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "DeviceGetGraphicsRunningProcesses", "graphics_processes", 5000, "graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "DeviceGetMPSComputeRunningProcesses", "mps_processes", 6000, "mps")
int nvmlDeviceGetMarginTemperature(device *d, void *out) {
    struct { unsigned version; int margin; } *answer = out;
    ENTER(d->index, "DeviceGetMarginTemperature");
    if (answer->version != 0x1000008) return ARGUMENT_VERSION_MISMATCH;
    answer->margin = value(d->index, "margin", 55);
    return SUCCESS;
}
int nvmlDeviceGetRowRemapperHistogram(device *d, void *out) {
    unsigned *banks = out; /* full, high, partial, low, none */
    ENTER(d->index, "DeviceGetRowRemapperHistogram");
    memset(banks, 0, 5 * sizeof *banks);
    banks[4] = value(d->index, "banks_exhausted", 0);
    banks[0] = 640 - banks[4];
    return SUCCESS;
}
int nvmlDeviceGetRepairStatus(device *d, void *out) {
    struct { unsigned version, channel, tpc; } *answer = out;
    ENTER(d->index, "DeviceGetRepairStatus");
    answer->channel = value(d->index, "repair_channel", 0);
    answer->tpc = value(d->index, "repair_tpc", 0);
    return SUCCESS;
}
int nvmlDeviceGetUnrepairableMemoryFlag_v1(device *d, void *out) {
    struct { unsigned version, flag; } *answer = out;
    ENTER(d->index, "DeviceGetUnrepairableMemoryFlag");
    answer->flag = value(d->index, "unrepairable", 0);
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(device *d, void *out) {
    struct { unsigned version; uint64_t total, reserved, free, used; } *memory = out;
    ENTER(d->index, "DeviceGetMemoryInfo");
    if (memory->version != 0x02000028) return ARGUMENT_VERSION_MISMATCH;
    memory->total = value(d->index, "memory_gib", 80) << 30; memory->reserved = 1ULL << 29; memory->used = (uint64_t)value(d->index, "used_mib", 1024) << 20;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(device *d, uint64_t *out) { return nvmlDeviceGetCurrentClocksThrottleReasons(d, out); }
int nvmlDeviceGetRemappedRows(device *d, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failure) {
    ENTER(d->index, "DeviceGetRemappedRows");
    if (value(d->index, "volta", 0)) return NOT_SUPPORTED;
    *correctable = value(d->index, "remap_correctable", 0);
    *uncorrectable = value(d->index, "remap_uncorrectable", 0);
    *pending = value(d->index, "remap_pending", 0);
    *failure = value(d->index, "remap_failure", 0);
    return SUCCESS;
}
int nvmlDeviceGetSramEccErrorStatus(device *d, void *out) {
    struct { unsigned version; uint64_t counts[11]; unsigned exceeded; } *sram = out;
    ENTER(d->index, "DeviceGetSramEccErrorStatus");
    memset(sram->counts, 0, sizeof sram->counts);
    sram->counts[0] = value(d->index, "sram_uncorrected_aggregate", 0);
    sram->exceeded = value(d->index, "sram_exceeded", 0);
    return SUCCESS;
}
int nvmlDeviceGetNvLinkState(device *d, unsigned link, unsigned *active) {
    ENTER(d->index, "DeviceGetNvLinkState");
    if (link >= 18) return INVALID_ARGUMENT;
    *active = link < value(d->index, "nvlinks_active", 18);
    return SUCCESS;
}
static long long of_link(int gpu, const char *counter, unsigned link) {
    char key[64];
    snprintf(key, sizeof key, "%s_%u", counter, link);
    return value(gpu, key, 0);
}
int nvmlDeviceGetNvLinkErrorCounter(device *d, unsigned link, int counter, uint64_t *out) {
    static const char *names[] = {"replay", "recovery", "crc_flit", "crc_data", "ecc_data"};
    ENTER(d->index, "DeviceGetNvLinkErrorCounter");
    if (value(d->index, "nvlink5", 0)) return NOT_SUPPORTED; /* its links have fields instead */
    *out = of_link(d->index, names[counter % 5], link);
    return SUCCESS;
}
int nvmlDeviceGetGpuFabricInfoV(device *d, void *out) {
    struct { unsigned version; uint8_t cluster[16]; int status; unsigned clique; uint8_t state; unsigned mask; uint8_t summary; } *fabric = out;
    unsigned version = *(unsigned *)out;
    ENTER(d->index, "DeviceGetGpuFabricInfo");
    if (version != 0x3000028 && version != 0x2000024) return ARGUMENT_VERSION_MISMATCH;
    if (version == 0x3000028 && value(d->index, "fabric_v2_only", 0)) return ARGUMENT_VERSION_MISMATCH;
    memset(fabric->cluster, value(d->index, "cluster", 0), sizeof fabric->cluster);
    fabric->status = value(d->index, "fabric_status", 0);
    fabric->state = value(d->index, "fabric_state", 3);
    fabric->clique = value(d->index, "clique", 0);
    fabric->mask = value(d->index, "fabric_mask", 0);
    if (version == 0x3000028) fabric->summary = value(d->index, "fabric_summary", 1);
    return SUCCESS;
}
int nvmlDeviceGetFieldValues(device *d, int count, void *out) {
    struct { unsigned field, scope; int64_t timestamp, latency; int type, code; union { uint64_t number; } value; } *fields = out;
    ENTER(d->index, "DeviceGetFieldValues");
    for (int n = 0; n < count; n++) {
        unsigned link = fields[n].scope;
        int five = value(d->index, "nvlink5", 0);
        fields[n].type = 1;
        fields[n].code = SUCCESS;
        switch (fields[n].field) {
        case 82: fields[n].value.number = value(d->index, "memory_temperature", 40); break;
        case 214: fields[n].code = five ? SUCCESS : NOT_SUPPORTED; fields[n].value.number = of_link(d->index, "recovery_failed", link); break;
        case 215: fields[n].code = five ? SUCCESS : NOT_SUPPORTED; fields[n].value.number = of_link(d->index, "recovery", link); break;
        case 219: fields[n].code = five ? SUCCESS : NOT_SUPPORTED; fields[n].value.number = of_link(d->index, "effective", link); break;
        case 226: fields[n].code = value(d->index, "reset_code", NOT_SUPPORTED); fields[n].value.number = value(d->index, "reset", 0); break;
        case 227: fields[n].code = value(d->index, "reset_code", NOT_SUPPORTED); fields[n].value.number = value(d->index, "drain_and_reset", 0); break;
        case 230: fields[n].code = value(d->index, "recovery_code", 0); fields[n].value.number = value(d->index, "recovery", 0); break;
        default: fields[n].code = NOT_SUPPORTED;
        }
    }
    return SUCCESS;
}
#endif
