/* The state of one "GPU process", kept in its own memory so that criu carries it, and what may be asked of it. */
#ifndef STAND_IN_H
#define STAND_IN_H
#include <stdint.h>

enum { RUNNING, LOCKED, CHECKPOINTED, FAILED };
enum operation { GET_STATE, GET_RESTORE_TID, LOCK, CHECKPOINT, RESTORE, UNLOCK };
enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201, OPERATING_SYSTEM = 304, ILLEGAL_STATE = 401, NOT_READY = 600, NOT_SUPPORTED = 801
};

struct uuid { unsigned char bytes[16]; };
struct pair { struct uuid old, new; };

struct arguments {
    unsigned timeout_ms;
    const struct pair *pairs;
    unsigned pair_count;
    int value; /* the answer of GET_STATE and GET_RESTORE_TID */
};

/* One operation of the driver on another process, with its faults; a CUDA error code. */
int cuStandInOperate(enum operation operation, int pid, struct arguments *arguments);
/* A setting of the control file, such as `version`; `otherwise` where there is none. */
const char *cuStandInSetting(const char *name, const char *otherwise);
#endif
