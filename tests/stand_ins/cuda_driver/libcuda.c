/* Stand-in for libcuda.so.1: a GPU whose memory is files, and the checkpoint API over real processes.
 *
 * In a GPU process every allocation is a file below $CUDA_STAND_IN_VRAM, mapped where the device pointer points. A thread
 * of the library's own, as the driver has one, moves the blocks into private memory of the process and back; their
 * files are gone meanwhile. So criu carries them, and nothing else does. While a process is not running its calls wait.
 *
 * Whoever operates on another process finds its state through /proc/PID/maps and /proc/PID/mem, so it must be root.
 * With CUDA_STAND_IN_AT_START a program that merely loads the library is a GPU process.
 * $CUDA_STAND_IN_FOLDER/control has one item a line; $CUDA_STAND_IN_FOLDER/calls gets a line an operation.
 *   set NAME VALUE                      version, devices, mig, uuid.N (number of device N), attach_ms, ms.OPERATION,
 *                                       vram_bytes (of each GPU, at a restore)
 *   fault OPERATION PID FAULT SKIP TIMES   PID 0: any; OPERATION *: any, init: cuInit
 * FAULT is an error of the driver, `hang`, `crash` (before the work), `crash_after`, `failed` (the state), or `die` (the
 * process operated on does). Compiled with -DBEFORE_570 the library lacks the checkpoint API, as those drivers do.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "stand_in.h"

#define BLOCKS 64
#define PAGE 4096UL
#define MAGIC "cuda stand-in 1"
#define PUBLIC __attribute__((visibility("default")))

struct block { uint64_t address, size, copy, tag; int device, managed; };
struct process {
    char magic[16];
    volatile int state, poisoned, restore_tid;
    volatile unsigned request, done;
    volatile int operation, result;
    volatile unsigned timeout_ms;
    int device_of[16];        /* where the process's device N is now */
    int seen_devices;         /* a map must name them all */
    struct uuid seen[16];
    struct block blocks[BLOCKS];
};

/* not in .bss: there it would have no file's name in /proc/PID/maps */
static struct process self __attribute__((aligned(64))) = {.seen_devices = -1};
static pthread_mutex_t api = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread int current = -1;

static void nap(long milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* --- the control file --- */

static int control_path(char *path, size_t size, const char *name) {
    const char *folder = getenv("CUDA_STAND_IN_FOLDER");
    if (folder) snprintf(path, size, "%s/%s", folder, name);
    return folder != NULL;
}

PUBLIC const char *cuStandInSetting(const char *name, const char *otherwise) {
    static __thread char value[128];
    char path[512], line[512], key[64], text[128];
    FILE *file = control_path(path, sizeof path, "control") ? fopen(path, "r") : NULL;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "set %63s %127s", key, text) == 2 && !strcmp(key, name)) otherwise = strcpy(value, text);
    if (file) fclose(file);
    return otherwise;
}

static long long number(const char *name, long long otherwise) {
    const char *text = cuStandInSetting(name, NULL);
    return text ? atoll(text) : otherwise;
}

static int devices(void) { return (int)number("devices", 2); }

static struct uuid uuid_of(int device) {
    char key[32], digits[16];
    struct uuid uuid = {{0}};
    snprintf(key, sizeof key, "uuid.%d", device);
    snprintf(digits, sizeof digits, "%012lld", number(key, device));
    for (int n = 0; n < 6; n++) uuid.bytes[10 + n] = (unsigned char)((digits[2 * n] - '0') * 16 + digits[2 * n + 1] - '0');
    return uuid;
}

/* The next fault meant for this call, counted down under a lock; empty without one. */
static void take_fault(const char *operation, int pid, char *fault) {
    char path[512], text[16384], out[16384], line[512], name[32], kind[32];
    int descriptor, target, skip, times, hit = 0;
    ssize_t size;
    *fault = 0;
    if (!control_path(path, sizeof path, "control") || (descriptor = open(path, O_RDWR)) < 0) return;
    flock(descriptor, LOCK_EX);
    if ((size = read(descriptor, text, sizeof text - 1)) < 0) size = 0;
    text[size] = *out = 0;
    for (char *rest = text, *end; *rest; rest = end + 1) {
        if (!(end = strchr(rest, '\n'))) break;
        snprintf(line, sizeof line, "%.*s", (int)(end - rest), rest);
        if (!hit && sscanf(line, "fault %31s %d %31s %d %d", name, &target, kind, &skip, &times) == 5
            && (!strcmp(name, operation) || (!strcmp(name, "*") && strcmp(operation, "init")))
            && (!target || target == pid) && times > 0) {
            if (skip > 0) skip--;
            else { times--; hit = 1; strcpy(fault, kind); }
            snprintf(line, sizeof line, "fault %s %d %s %d %d", name, target, kind, skip, times);
        }
        strcat(strcat(out, line), "\n");
    }
    if (lseek(descriptor, 0, SEEK_SET) || ftruncate(descriptor, 0) || write(descriptor, out, strlen(out)) < 0) abort();
    close(descriptor);
}

static void note(const char *operation, int pid) {
    char path[512];
    FILE *file = control_path(path, sizeof path, "calls") ? fopen(path, "a") : NULL;
    if (file) { fprintf(file, "%s %d\n", operation, pid); fclose(file); }
}

static void crash(void) { signal(SIGSEGV, SIG_DFL); raise(SIGSEGV); }

/* --- in the GPU process: memory, and the thread that moves it --- */

static const char *path_of(const struct block *block) {
    static __thread char path[512];
    const char *folder = getenv("CUDA_STAND_IN_VRAM");
    /* no process number: there are as many with number 1 as there are containers */
    snprintf(path, sizeof path, "%s/gpu%d-%016llx", folder ? folder : "/tmp", self.device_of[block->device], (unsigned long long)block->tag);
    return path;
}

static int map_block(struct block *block) {
    void *place = (void *)(uintptr_t)block->address;
    int descriptor;
    if (getrandom(&block->tag, sizeof block->tag, 0) < 0) return OPERATING_SYSTEM;
    if ((descriptor = open(path_of(block), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0) return OPERATING_SYSTEM;
    if (ftruncate(descriptor, (off_t)block->size)) { close(descriptor); return OUT_OF_MEMORY; }
    place = mmap(place, block->size, PROT_READ | PROT_WRITE, MAP_SHARED | (place ? MAP_FIXED : 0), descriptor, 0);
    close(descriptor);
    if (place == MAP_FAILED) return OUT_OF_MEMORY;
    block->address = (uint64_t)(uintptr_t)place;
    return SUCCESS;
}

static int move_out(void) {
    for (int n = 0; n < BLOCKS; n++) if (self.blocks[n].size && self.blocks[n].managed) return NOT_SUPPORTED;
    for (int n = 0; n < BLOCKS; n++) {
        struct block *block = &self.blocks[n];
        void *copy;
        if (!block->size) continue;
        copy = mmap(NULL, block->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (copy == MAP_FAILED) return OUT_OF_MEMORY;
        memcpy(copy, (void *)(uintptr_t)block->address, block->size);
        block->copy = (uint64_t)(uintptr_t)copy;
        /* the addresses stay taken, and the memory of the GPU is given back */
        mmap((void *)(uintptr_t)block->address, block->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        unlink(path_of(block));
    }
    return SUCCESS;
}

static int move_in(void) {
    for (int n = 0; n < BLOCKS; n++) {
        struct block *block = &self.blocks[n];
        int code;
        if (!block->size) continue;
        if ((code = map_block(block))) return code;
        memcpy((void *)(uintptr_t)block->address, (void *)(uintptr_t)block->copy, block->size);
        munmap((void *)(uintptr_t)block->copy, block->size);
        block->copy = 0;
    }
    return SUCCESS;
}

/* No call of the process is at work once we hold the mutex: that is what "waits for submitted work" comes to here. */
static int take_lock(unsigned timeout_ms) {
    for (unsigned waited = 0; pthread_mutex_trylock(&api); waited++) {
        if (timeout_ms && waited >= timeout_ms) return NOT_READY;
        nap(1);
    }
    self.state = LOCKED;
    pthread_mutex_unlock(&api);
    return SUCCESS;
}

static void *restore_thread(void *nothing) {
    (void)nothing;
    pthread_setname_np(pthread_self(), "cuda-stand-in");
    self.restore_tid = (int)syscall(SYS_gettid);
    for (;;) {
        if (self.request != self.done) {
            int code = SUCCESS;
            if (self.operation == LOCK) code = take_lock(self.timeout_ms);
            if (self.operation == CHECKPOINT && !(code = move_out())) self.state = CHECKPOINTED;
            if (self.operation == RESTORE && !(code = move_in())) self.state = LOCKED;
            if (self.operation == UNLOCK) self.state = RUNNING;
            self.result = code;
            __sync_synchronize();
            self.done = self.request;
        }
        nap(1);
    }
    return NULL;
}

/* a child of fork has the library and the memory, and none of its threads: it has no CUDA state */
static void forget(void) { memset(self.magic, 0, sizeof self.magic); }

static void begin(void) {
    pthread_t thread;
    self.seen_devices = devices() < 16 ? devices() : 16;
    for (int n = 0; n < self.seen_devices; n++) { self.device_of[n] = n; self.seen[n] = uuid_of(n); }
    pthread_create(&thread, NULL, restore_thread, NULL);
    while (!self.restore_tid) nap(1);
    pthread_atfork(NULL, NULL, forget);
    memcpy(self.magic, MAGIC, sizeof self.magic);
}

static void enter(void) {
    pthread_mutex_lock(&api);
    while (self.state != RUNNING) { pthread_mutex_unlock(&api); nap(1); pthread_mutex_lock(&api); }
}
static int leave(int code) { pthread_mutex_unlock(&api); return code; }

/* --- on another process --- */

struct remote { int memory; off_t at; struct process copy; };

/* Its state as it is now. */
static int look(struct remote *remote) {
    return pread(remote->memory, &remote->copy, sizeof remote->copy, remote->at) == sizeof remote->copy ? SUCCESS : OPERATING_SYSTEM;
}

/* NOT_INITIALIZED for a process without CUDA state, OPERATING_SYSTEM for one that we may not look into. */
static int attach(int pid, struct remote *remote) {
    char path[64], line[1024], mode[8];
    unsigned long start, end, last = 0;
    FILE *maps;
    remote->memory = -1;
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    if ((remote->memory = open(path, O_RDWR | O_CLOEXEC)) < 0) return errno == ENOENT ? INVALID_VALUE : OPERATING_SYSTEM;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    if (!(maps = fopen(path, "r"))) return OPERATING_SYSTEM;
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %7s", &start, &end, mode) != 3 || mode[1] != 'w' || !strstr(line, "libcuda.so")) continue;
        for (off_t at = (off_t)start; at + (off_t)sizeof remote->copy <= (off_t)end + (off_t)PAGE && at < (off_t)end; at += 64) {
            char magic[16];
            if (pread(remote->memory, magic, sizeof magic, at) == sizeof magic && !memcmp(magic, MAGIC, sizeof magic)) last = (unsigned long)at;
        }
    }
    fclose(maps);
    remote->at = (off_t)last;
    return last ? look(remote) : NOT_INITIALIZED;
}

static int poke(struct remote *remote, size_t offset, const void *value, size_t size) {
    return pwrite(remote->memory, value, size, remote->at + (off_t)offset) == (ssize_t)size ? SUCCESS : OPERATING_SYSTEM;
}
#define POKE(remote, field) poke((remote), offsetof(struct process, field), (const void *)&(remote)->copy.field, sizeof (remote)->copy.field)

/* Let its own thread do the work, and wait for it however long it takes: deadlines are the caller's. */
static int ask(struct remote *remote, int operation, unsigned timeout_ms) {
    unsigned wanted = remote->copy.request + 1;
    remote->copy.operation = operation;
    remote->copy.timeout_ms = timeout_ms;
    remote->copy.request = wanted;
    if (POKE(remote, operation) || POKE(remote, timeout_ms) || POKE(remote, request)) return OPERATING_SYSTEM;
    do { nap(1); if (look(remote)) return OPERATING_SYSTEM; } while (remote->copy.done != wanted);
    return remote->copy.result;
}

static int same(struct uuid one, struct uuid other) { return !memcmp(&one, &other, sizeof one); }

/* Where its devices go: by the map, which must name all of them, or to the same numbers as before. */
static int place(struct remote *remote, const struct arguments *arguments) {
    struct process *copy = &remote->copy;
    long long room = number("vram_bytes", 80LL << 30), needed[16] = {0};
    for (int n = 0; n < copy->seen_devices; n++) {
        int found = arguments->pair_count ? -1 : n;
        for (unsigned k = 0; k < arguments->pair_count; k++)
            for (int device = 0; same(arguments->pairs[k].old, copy->seen[n]) && device < devices(); device++)
                if (same(arguments->pairs[k].new, uuid_of(device))) found = device;
        if (found < 0 || found >= devices()) return INVALID_VALUE;
        copy->device_of[n] = found;
    }
    for (int n = 0; n < BLOCKS; n++) needed[copy->device_of[copy->blocks[n].device]] += (long long)copy->blocks[n].size;
    for (int n = 0; n < 16; n++) if (needed[n] > room) return OUT_OF_MEMORY;
    for (int n = 0; n < copy->seen_devices; n++) copy->seen[n] = uuid_of(copy->device_of[n]);
    return POKE(remote, device_of) || POKE(remote, seen) ? OPERATING_SYSTEM : SUCCESS;
}

static int move(enum operation operation, struct remote *remote, const struct arguments *arguments) {
    static const int before[] = {[LOCK] = RUNNING, [CHECKPOINT] = LOCKED, [RESTORE] = CHECKPOINTED, [UNLOCK] = LOCKED};
    int code;
    if (remote->copy.poisoned) return operation == RESTORE ? OPERATING_SYSTEM : ILLEGAL_STATE;
    if (remote->copy.state != before[operation]) return ILLEGAL_STATE;
    if (operation == CHECKPOINT && number("mig", 0)) return OUT_OF_MEMORY;
    if (operation == RESTORE && (code = place(remote, arguments))) return code;
    return ask(remote, operation, operation == LOCK ? arguments->timeout_ms : 0);
}

static int set_state(struct remote *remote, int state) { remote->copy.state = state; return POKE(remote, state); }
static int poison(struct remote *remote) { remote->copy.poisoned = 1; return POKE(remote, poisoned); }

static int code_of(const char *fault) {
    static const struct { const char *name; int code; } faults[] = {
        {"out_of_memory", OUT_OF_MEMORY}, {"invalid_argument", INVALID_VALUE}, {"operating_system", OPERATING_SYSTEM},
        {"illegal_state", ILLEGAL_STATE}, {"not_supported", NOT_SUPPORTED}, {"initialization", NOT_INITIALIZED},
        {"timeout", NOT_READY}, {"no_device", NO_DEVICE}};
    for (size_t n = 0; n < sizeof faults / sizeof *faults; n++) if (!strcmp(faults[n].name, fault)) return faults[n].code;
    return SUCCESS;
}

PUBLIC int cuStandInOperate(enum operation operation, int pid, struct arguments *arguments) {
    static const char *names[] = {"get-state", "get-restore-tid", "lock", "checkpoint", "restore", "unlock"};
    const char *name = names[operation];
    struct remote remote;
    char fault[32], key[64];
    int code = attach(pid, &remote);
    nap(number("attach_ms", 0));
    take_fault(name, pid, fault);
    note(name, pid);
    if (!strcmp(fault, "hang")) for (;;) pause();
    if (!strcmp(fault, "crash")) crash();
    if (!strcmp(fault, "die")) { kill(pid, SIGKILL); code = OPERATING_SYSTEM; }
    if (!code && !strcmp(fault, "timeout") && operation == LOCK) nap(arguments->timeout_ms);
    if (!code && !strcmp(fault, "failed")) { set_state(&remote, FAILED); code = OPERATING_SYSTEM; }
    if (!code) code = code_of(fault);
    if (!code) {
        snprintf(key, sizeof key, "ms.%s", name);
        nap(number(key, 0));
        if (operation == GET_STATE) arguments->value = remote.copy.state;
        else if (operation == GET_RESTORE_TID) arguments->value = remote.copy.restore_tid;
        else code = move(operation, &remote, arguments);
    }
    /* what the real driver does: a restore that failed is the last one */
    if (code && operation == RESTORE && remote.memory >= 0 && remote.copy.state == CHECKPOINTED) poison(&remote);
    if (operation == GET_RESTORE_TID && code == NOT_INITIALIZED && !*fault) code = INVALID_VALUE;
    if (remote.memory >= 0) close(remote.memory);
    if (!strcmp(fault, "crash_after")) crash();
    return code;
}

/* --- the library's functions --- */

PUBLIC int cuInit(unsigned flags) {
    char fault[32];
    (void)flags;
    take_fault("init", 0, fault);
    if (!strcmp(fault, "hang")) for (;;) pause();
    if (!strcmp(fault, "crash")) crash();
    /* an empty list hides every device, as it does from the real library */
    if (getenv("CUDA_VISIBLE_DEVICES") && !*getenv("CUDA_VISIBLE_DEVICES")) return NO_DEVICE;
    return *fault ? code_of(fault) : devices() ? SUCCESS : NO_DEVICE;
}
PUBLIC int cuDriverGetVersion(int *out) {
    int major = atoi(cuStandInSetting("version", "580.65.06"));
    *out = major >= 590 ? 13010 : major >= 580 ? 13000 : major >= 570 ? 12080 : major >= 555 ? 12050 : 12040;
    return SUCCESS;
}
PUBLIC int cuDeviceGetCount(int *out) { *out = devices(); return SUCCESS; }
PUBLIC int cuDeviceGet(int *out, int ordinal) { *out = ordinal; return ordinal >= 0 && ordinal < devices() ? SUCCESS : INVALID_DEVICE; }
PUBLIC int cuDeviceGetName(char *out, int size, int device) { (void)device; snprintf(out, (size_t)size, "NVIDIA H100 80GB HBM3"); return SUCCESS; }
PUBLIC int cuDeviceGetUuid_v2(struct uuid *out, int device) { *out = uuid_of(device); return SUCCESS; }
PUBLIC int cuDevicePrimaryCtxRetain(void **out, int device) {
    if (device < 0 || device >= devices()) return INVALID_DEVICE;
    pthread_once(&once, begin);
    *out = (void *)(intptr_t)(device + 1);
    return SUCCESS;
}
PUBLIC int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return SUCCESS; }
PUBLIC int cuCtxSetCurrent(void *context) { current = (int)(intptr_t)context - 1; return SUCCESS; }
PUBLIC int cuCtxSynchronize(void) { enter(); return leave(SUCCESS); }
static int allocate(uint64_t *out, size_t size, int managed) {
    if (current < 0) return INVALID_CONTEXT;
    enter();
    for (int n = 0; n < BLOCKS; n++) {
        struct block *block = &self.blocks[n];
        int code;
        if (block->size) continue;
        *block = (struct block){.size = (size + PAGE - 1) / PAGE * PAGE, .device = current, .managed = managed};
        if ((code = map_block(block))) block->size = 0;
        *out = block->address;
        return leave(code);
    }
    return leave(OUT_OF_MEMORY);
}
PUBLIC int cuMemAlloc_v2(uint64_t *out, size_t size) { return allocate(out, size, 0); }
PUBLIC int cuMemAllocManaged(uint64_t *out, size_t size, unsigned flags) { (void)flags; return allocate(out, size, 1); }
/* preloaded into a program that knows nothing of GPUs, it gives that one CUDA state */
__attribute__((constructor)) static void at_start(void) {
    uint64_t pointer;
    void *context;
    if (!getenv("CUDA_STAND_IN_AT_START")) return;
    if (cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || allocate(&pointer, PAGE, 0)) abort();
}

PUBLIC int cuMemFree_v2(uint64_t pointer) {
    enter();
    for (int n = 0; n < BLOCKS; n++) {
        if (!self.blocks[n].size || self.blocks[n].address != pointer) continue;
        munmap((void *)(uintptr_t)pointer, self.blocks[n].size);
        unlink(path_of(&self.blocks[n]));
        self.blocks[n] = (struct block){0};
        return leave(SUCCESS);
    }
    return leave(INVALID_VALUE);
}
PUBLIC int cuMemGetInfo_v2(size_t *free_, size_t *total) { *total = 80UL << 30; *free_ = 79UL << 30; return SUCCESS; }
PUBLIC int cuMemcpyHtoD_v2(uint64_t target, const void *source, size_t size) { enter(); memcpy((void *)(uintptr_t)target, source, size); return leave(SUCCESS); }
PUBLIC int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t size) { enter(); memcpy(target, (void *)(uintptr_t)source, size); return leave(SUCCESS); }
PUBLIC int cuMemcpyDtoD_v2(uint64_t target, uint64_t source, size_t size) { enter(); memmove((void *)(uintptr_t)target, (void *)(uintptr_t)source, size); return leave(SUCCESS); }
PUBLIC int cuMemsetD8_v2(uint64_t target, unsigned char value, size_t count) { enter(); memset((void *)(uintptr_t)target, value, count); return leave(SUCCESS); }

static const struct { int code; const char *name, *text; } errors[] = {
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}};
PUBLIC int cuGetErrorName(int code, const char **out) {
    for (size_t n = 0; n < sizeof errors / sizeof *errors; n++) if (errors[n].code == code) { *out = errors[n].name; return SUCCESS; }
    return INVALID_VALUE;
}
PUBLIC int cuGetErrorString(int code, const char **out) {
    for (size_t n = 0; n < sizeof errors / sizeof *errors; n++) if (errors[n].code == code) { *out = errors[n].text; return SUCCESS; }
    return INVALID_VALUE;
}

#ifndef BEFORE_570
struct lock_arguments { unsigned timeout_ms, reserved0; uint64_t reserved1[7]; };
struct empty_arguments { uint64_t reserved[8]; };
struct restore_arguments { struct pair *pairs; unsigned count; char reserved[44]; uint64_t reserved1; };
_Static_assert(sizeof(struct lock_arguments) == 64 && sizeof(struct restore_arguments) == 64, "as in cuda.h");

static int zero(const void *bytes, size_t size) {
    for (size_t n = 0; n < size; n++) if (((const char *)bytes)[n]) return 0;
    return 1;
}
PUBLIC int cuCheckpointProcessLock(int pid, struct lock_arguments *in) {
    struct arguments arguments = {.timeout_ms = in ? in->timeout_ms : 0};
    if (in && (in->reserved0 || !zero(in->reserved1, sizeof in->reserved1))) return INVALID_VALUE;
    return cuStandInOperate(LOCK, pid, &arguments);
}
PUBLIC int cuCheckpointProcessCheckpoint(int pid, struct empty_arguments *in) {
    struct arguments arguments = {0};
    return in && !zero(in, sizeof *in) ? INVALID_VALUE : cuStandInOperate(CHECKPOINT, pid, &arguments);
}
PUBLIC int cuCheckpointProcessRestore(int pid, struct restore_arguments *in) {
    struct arguments arguments = {.pairs = in ? in->pairs : NULL, .pair_count = in ? in->count : 0};
    if (in && (!zero(in->reserved, sizeof in->reserved) || in->reserved1)) return INVALID_VALUE;
    return cuStandInOperate(RESTORE, pid, &arguments);
}
PUBLIC int cuCheckpointProcessUnlock(int pid, struct empty_arguments *in) {
    struct arguments arguments = {0};
    return in && !zero(in, sizeof *in) ? INVALID_VALUE : cuStandInOperate(UNLOCK, pid, &arguments);
}
PUBLIC int cuCheckpointProcessGetState(int pid, int *out) {
    struct arguments arguments = {0};
    int code = cuStandInOperate(GET_STATE, pid, &arguments);
    *out = arguments.value;
    return code;
}
PUBLIC int cuCheckpointProcessGetRestoreThreadId(int pid, int *out) {
    struct arguments arguments = {0};
    int code = cuStandInOperate(GET_RESTORE_TID, pid, &arguments);
    *out = arguments.value;
    return code;
}
#endif
