/* Stand-in for NVIDIA's cuda-checkpoint: like that one a thin shell over libcuda.so.1, with its command line, texts and
 * exit codes as of the driver version that the library's control file sets (580.65.06 without one).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stand_in.h"

int cuInit(unsigned flags);
int cuGetErrorString(int code, const char **out);

static const char *const NAMES[] = {"get-state", "get-restore-tid", "lock", "checkpoint", "restore", "unlock"};
static const char *const STATES[] = {"running", "locked", "checkpointed", "failed"};

static int major(void) { return atoi(cuStandInSetting("version", "580.65.06")); }

static const char *text(int code) {
    const char *out = "unknown error";
    cuGetErrorString(code, &out);
    return out;
}

static void usage(void) {
    const char *map = major() >= 580 ? " [--device-map <uuids>]" : "";
    printf("CUDA checkpoint and restore utility.\nVersion %s. Copyright (C) 2025 NVIDIA Corporation. All rights reserved.\n\nOperations:\n",
           cuStandInSetting("version", "580.65.06"));
    if (major() >= 555) {
        printf("--get-state --pid <pid>\n\tPrints the current checkpoint state of the process specified by <pid>\n\n");
        printf("--action lock | checkpoint | restore | unlock --pid <pid> [--timeout <ms>]%s\n\tPerforms the specified action on <pid>.\n\n", map);
    }
    printf("--toggle --pid <pid>\n\tToggles the CUDA state in the specified process between the running and checkpointed states\n\n");
    if (major() >= 555)
        printf("--get-restore-tid --pid <pid>\n\tRetrieves the CUDA restore thread ID of the process specified by <pid>\n\n");
    if (major() >= 590) printf("--launch-job|-j <program> [args]\n\tLaunches a program as a CUDA checkpoint job\n\n");
    printf("Options:\n--pid|-p <pid>\n\tThe pid upon which to perform the operation\n\n");
    if (major() >= 555) printf("--timeout|-t <timeout>\n\tOptional timeout that can be specified for the lock action in milliseconds\n\n");
    if (*map) printf("--device-map|-d <deviceUuids>\n\tOptional device map used during the restore action. Must contain all checkpointed devices if specified.\n\n");
    printf("--help|-h\n\tPrint this help message\n");
}

static int wrong(const char *message) {
    fprintf(stderr, "%s\n", message);
    usage();
    return 1;
}

static int refuse(enum operation operation, int pid, int code) {
    if (operation == GET_STATE) fprintf(stderr, "Error getting process state for process ID %d: \"%s\"\n", pid, text(code));
    else if (operation == GET_RESTORE_TID) fprintf(stderr, "Could not find restore thread for process ID %d\n", pid);
    else fprintf(stderr, "Could not %s on process ID %d: \"%s\"\n", NAMES[operation], pid, text(code));
    return 1;
}

static int byte(const char *at) {
    char hex[3] = {at[0], at[1], 0};
    return (int)strtol(hex, NULL, 16);
}

static int uuid(const char *from, struct uuid *out) {
    int count = 0;
    if (strncmp(from, "GPU-", 4)) return 0;
    for (from += 4; count < 16 && from[0] && from[1]; from += 2) {
        if (*from == '-') from++;
        out->bytes[count++] = (unsigned char)byte(from);
    }
    return count == 16;
}

static unsigned pairs(char *list, struct pair *out) {
    unsigned count = 0;
    for (char *part = strtok(list, ","); part && count < 16; part = strtok(NULL, ","), count++) {
        char *equals = strchr(part, '=');
        if (!equals || !uuid(part, &out[count].old) || !uuid(equals + 1, &out[count].new)) return 0;
    }
    return count;
}

static int is(const char *argument, const char *name, const char *brief) { return !strcmp(argument, name) || !strcmp(argument, brief); }

static int toggle(int pid) {
    struct arguments arguments = {0};
    int back = !cuStandInOperate(GET_STATE, pid, &arguments) && arguments.value == CHECKPOINTED;
    for (int step = 0, code; step < 2; step++) {
        if (!(code = cuStandInOperate(back ? (step ? UNLOCK : RESTORE) : (step ? CHECKPOINT : LOCK), pid, &arguments))) continue;
        fprintf(stderr, "Error toggling CUDA in process ID %d: \"%s\"\n", pid, text(code));
        return 1;
    }
    return 0;
}

int main(int count, char **arguments) {
    struct arguments given = {0};
    struct pair map[16];
    int operation = -1, pid = 0, timeout = 0, toggling = 0, mapped = 0, code;
    for (int at = 1; at < count; at++) {
        const char *next = at + 1 < count ? arguments[at + 1] : NULL;
        int modern = major() >= 555;
        if (is(arguments[at], "--help", "-h")) { usage(); return 0; }
        if (major() >= 590 && is(arguments[at], "--launch-job", "-j") && next) {
            execvp(next, arguments + at + 1);
            return 1;
        }
        if (!strcmp(arguments[at], "--toggle")) { toggling = 1; continue; }
        if (modern && !strcmp(arguments[at], "--get-state")) { operation = GET_STATE; continue; }
        if (modern && !strcmp(arguments[at], "--get-restore-tid")) { operation = GET_RESTORE_TID; continue; }
        if (!next) return wrong("Invalid argument");
        if (is(arguments[at], "--pid", "-p")) pid = atoi(next);
        else if (modern && !strcmp(arguments[at], "--action")) {
            for (int n = LOCK; n <= UNLOCK; n++) if (!strcmp(next, NAMES[n])) operation = n;
        } else if (modern && is(arguments[at], "--timeout", "-t")) { given.timeout_ms = (unsigned)atoi(next); timeout = 1; }
        else if (major() >= 580 && is(arguments[at], "--device-map", "-d")) {
            given.pairs = map;
            mapped = 1;
            if (!(given.pair_count = pairs(arguments[at + 1], map))) return refuse(RESTORE, pid, INVALID_VALUE);
        } else return wrong("Invalid argument");
        at++;
    }
    if ((operation < 0 && !toggling) || pid <= 0) return wrong("Invalid operation");
    if (timeout && operation != LOCK) return wrong("--timeout is only allowed for lock action");
    if (mapped && operation != RESTORE) return wrong("--device-map is only allowed for restore action");
    if (atoi(cuStandInSetting("insufficient", "0"))) { fprintf(stderr, "Insufficient driver\n"); return 1; }
    if ((code = cuInit(0))) { fprintf(stderr, "Error initializing CUDA: \"%s\"\n", text(code)); return 1; }
    if (toggling) return toggle(pid);
    if ((code = cuStandInOperate((enum operation)operation, pid, &given))) return refuse((enum operation)operation, pid, code);
    if (operation == GET_STATE) printf("%s\n", STATES[given.value & 3]);
    if (operation == GET_RESTORE_TID) printf("%d\n", given.value);
    return 0;
}
