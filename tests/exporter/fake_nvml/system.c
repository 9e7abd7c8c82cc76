/* The library itself, and how GPUs are found. */

const char *nvmlErrorString(int code) { (void)code; return "an error of the fake"; }

int nvmlInitWithFlags(unsigned int flags) {
    const entry *driver;
    (void)flags;
    ENTER_SYSTEM();
    if (number_of(global("gone"))) return leave(DRIVER_NOT_LOADED);
    driver = global("driver");
    snprintf(session_driver, sizeof session_driver, "%s", driver ? driver->text : "");
    sessions++;
    return leave(SUCCESS);
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    int code = enter_index("nvmlShutdown", -1, NULL);
    if (sessions) sessions--;
    return leave(code);
}

static int version(const char *what, const char *otherwise, char *out, unsigned int size) {
    const entry *found = global(what);
    snprintf(out, size, "%s", found ? found->text : otherwise);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *out, unsigned int size) { ENTER_SYSTEM(); return leave(version("driver", "580.65.06", out, size)); }
int nvmlSystemGetNVMLVersion(char *out, unsigned int size) { ENTER_SYSTEM(); return leave(version("nvml", "13.580.65.06", out, size)); }

static int cuda(int *out) {
    const entry *found = global("cuda");
    *out = found ? (int)found->number : 13000;
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion(int *out) { ENTER_SYSTEM(); return leave(cuda(out)); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER_SYSTEM(); return leave(cuda(out)); }

int nvmlSystemGetProcessName(unsigned int pid, char *out, unsigned int size) {
    ENTER_SYSTEM();
    snprintf(out, size, "/usr/bin/process-%u", pid);
    return leave(SUCCESS);
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    ENTER_SYSTEM();
    *count = (unsigned int)gpu_count();
    return leave(SUCCESS);
}

static int handle_for(int index, void **handle) {
    int slot = index >= 0 && index < gpu_count() ? slot_for(index) : -1;
    if (slot < 0) return INVALID_ARGUMENT;
    *handle = handle_of(slot, -1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) { ENTER_INDEX((int)index); return leave(handle_for((int)index, handle)); }

static int index_with(const char *what, const char *value) {
    pthread_mutex_lock(&driver_lock);
    refresh();
    for (int i = 0; i < gpu_count(); i++) {
        const entry *found = of_gpu(i, what);
        if (found && !strcasecmp(found->text, value)) return leave(i);
    }
    return leave(-1);
}

/* The domain may have four digits or eight. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
    char full[64];
    int index;
    snprintf(full, sizeof full, "%s%s", strchr(bus, ':') - bus == 4 ? "0000" : "", bus);
    index = index_with("bus", full);
    ENTER_INDEX(index);
    return leave(index < 0 ? NOT_FOUND : handle_for(index, handle));
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    int index = index_with("uuid", uuid);
    ENTER_INDEX(index);
    return leave(index < 0 ? NOT_FOUND : handle_for(index, handle));
}

int nvmlDeviceGetIndex(void *gpu, unsigned int *out) {
    ENTER(gpu);
    *out = (unsigned int)(mig_of(gpu) < 0 ? index_of(gpu) : mig_of(gpu));
    return leave(SUCCESS);
}

SMALL(nvmlDeviceGetMinorNumber, "minor")

int nvmlDeviceGetPciInfo_v3(void *gpu, pci_info *out) {
    int code;
    ENTER(gpu);
    memset(out, 0, sizeof *out);
    code = text(gpu, "bus", out->bus_id, sizeof out->bus_id);
    if (!code) {
        snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%.15s", out->bus_id + 4);
        sscanf(out->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    }
    return leave(code);
}

int nvmlDeviceGetP2PStatus(void *gpu, void *peer, unsigned int capability, unsigned int *out) {
    char what[64];
    ENTER(gpu);
    snprintf(what, sizeof what, "p2p.%d.%u", index_of(peer), capability);
    return leave(small(gpu, what, out));
}

/* MIG devices. */

PAIR(nvmlDeviceGetMigMode, "mig", "mig_pending")
SMALL(nvmlDeviceGetGpuInstanceId, "gi")
SMALL(nvmlDeviceGetComputeInstanceId, "ci")

int nvmlDeviceIsMigDeviceHandle(void *gpu, unsigned int *out) {
    ENTER(gpu);
    *out = mig_of(gpu) >= 0;
    return leave(SUCCESS);
}

int nvmlDeviceGetMaxMigDeviceCount(void *gpu, unsigned int *out) {
    ENTER(gpu);
    *out = lookup(gpu, "mig") ? 7 : 0;
    return leave(SUCCESS);
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *gpu, unsigned int index, void **handle) {
    char what[64];
    ENTER(gpu);
    snprintf(what, sizeof what, "mig.%u.uuid", index);
    if (!number_of(lookup(gpu, "mig")) || !lookup(gpu, what)) return leave(NOT_FOUND);
    *handle = handle_of(slot_of(gpu), (int)index);
    return leave(SUCCESS);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *mig, void **handle) {
    ENTER(mig);
    *handle = handle_of(slot_of(mig), -1);
    return leave(SUCCESS);
}

int nvmlDeviceGetAttributes_v2(void *gpu, attributes *out) {
    u64 size = 0;
    int code;
    ENTER(gpu);
    memset(out, 0, sizeof *out);
    small(gpu, "gpu_slices", &out->gpu_instance_slices);
    small(gpu, "compute_slices", &out->compute_instance_slices);
    code = number(gpu, "memory_total", &size);
    out->memory_mib = size >> 20;
    return leave(code);
}
