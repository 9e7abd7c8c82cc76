/* Event sets: Xid errors that are appended to the state after a GPU was registered. */

enum { SETS = 32, REGISTERED = 16 };
typedef struct { void *gpu; u64 type, data; unsigned int gpu_instance, compute_instance; } event;
static struct event_set { int used, gpus; struct { void *gpu; int next; } registered[REGISTERED]; } event_sets[SETS];

enum { XID = 8 };

static const entry *xid(void *gpu, int number_of_error) {
    char what[32];
    snprintf(what, sizeof what, "xid.%d", number_of_error);
    return lookup(gpu, what);
}

int nvmlEventSetCreate(struct event_set **out) {
    ENTER_SYSTEM();
    for (int i = 0; i < SETS; i++) {
        if (event_sets[i].used) continue;
        event_sets[i] = (struct event_set){.used = 1};
        *out = &event_sets[i];
        return leave(SUCCESS);
    }
    return leave(20);
}

int nvmlEventSetFree(struct event_set *set) {
    ENTER_SYSTEM();
    set->used = 0;
    return leave(SUCCESS);
}

int nvmlDeviceGetSupportedEventTypes(void *gpu, u64 *out) {
    ENTER(gpu);
    *out = 0x1f;
    return leave(SUCCESS);
}

int nvmlDeviceRegisterEvents(void *gpu, u64 types, struct event_set *set) {
    int next = 0;
    ENTER(gpu);
    if (number_of(lookup(gpu, "no_events"))) return leave(NOT_SUPPORTED);
    if (!(types & XID) || set->gpus == REGISTERED) return leave(INVALID_ARGUMENT);
    while (xid(gpu, next)) next++;
    set->registered[set->gpus].gpu = gpu;
    set->registered[set->gpus++].next = next;
    return leave(SUCCESS);
}

int nvmlEventSetWait_v2(struct event_set *set, event *out, unsigned int timeout_ms) {
    for (unsigned int waited = 0;; waited += 5) {
        ENTER_SYSTEM();
        for (int i = 0; i < set->gpus; i++) {
            const entry *found = xid(set->registered[i].gpu, set->registered[i].next);
            if (!found && number_of(lookup(set->registered[i].gpu, "lost"))) return leave(GPU_IS_LOST);
            if (!found) continue;
            set->registered[i].next++;
            *out = (event){set->registered[i].gpu, XID, found->number, 0xffffffff, 0xffffffff};
            return leave(SUCCESS);
        }
        if (waited >= timeout_ms) return leave(TIMEOUT);
        leave(SUCCESS);
        pause_ms(5);
    }
}
