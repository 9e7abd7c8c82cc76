/* Who is on a GPU. */

typedef struct { unsigned int pid; u64 used; unsigned int gpu_instance, compute_instance; } process_info;
typedef struct { unsigned int pid; u64 timestamp_us; unsigned int sm, memory, encoder, decoder; } process_sample;

static u64 hidden(const char *text, u64 otherwise) { return *text == '-' ? otherwise : strtoull(text, NULL, 10); }

/* On a MIG device's handle only its own processes; on the GPU's all, as a privileged caller sees them. */
static int processes(void *gpu, const char *kind, unsigned int *count, process_info *out) {
    void *parent = handle_of(slot_of(gpu), -1);
    unsigned int found_count = 0, own = 0;
    if (lookup(parent, "process_count")) { *count = (unsigned int)number_of(lookup(parent, "process_count")); return INSUFFICIENT_SIZE; }
    if (mig_of(gpu) >= 0) small(gpu, "gi", &own);
    for (int i = 0;; i++) {
        char what[32], of_kind[16], used[32], instance[16], compute[16];
        unsigned int pid;
        process_info process;
        const entry *found;
        snprintf(what, sizeof what, "process.%d", i);
        found = lookup(parent, what);
        if (!found) break;
        if (sscanf(found->text, "%15s %u %31s %15s %15s", of_kind, &pid, used, instance, compute) != 5 || strcmp(of_kind, kind)) continue;
        process = (process_info){pid, hidden(used, ~0ull), (unsigned int)hidden(instance, ~0u), (unsigned int)hidden(compute, ~0u)};
        if (mig_of(gpu) >= 0 && process.gpu_instance != own) continue;
        if (out && found_count < *count) out[found_count] = process;
        found_count++;
    }
    if (found_count > (out ? *count : 0)) { *count = found_count; return INSUFFICIENT_SIZE; }
    *count = found_count;
    return SUCCESS;
}

#define PROCESSES(name, kind) int name(void *gpu, unsigned int *count, process_info *out) { ENTER(gpu); return leave(processes(gpu, kind, count, out)); }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "compute")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, "mps")
#if DRIVER >= 510
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")
#endif

/* With nothing to tell it succeeds without a buffer, which nvidia-ml-py raises as an error. */
int nvmlDeviceGetProcessUtilization(void *gpu, process_sample *out, unsigned int *count, u64 since_us) {
    unsigned int found_count = 0;
    ENTER(gpu);
    if (lookup(gpu, "process_util_count")) {
        *count = (unsigned int)number_of(lookup(gpu, "process_util_count"));
        return leave(INSUFFICIENT_SIZE);
    }
    for (int i = 0;; i++) {
        char what[32];
        process_sample sample = {0};
        const entry *found;
        snprintf(what, sizeof what, "process_util.%d", i);
        found = lookup(gpu, what);
        if (!found) break;
        sample.timestamp_us = since_us + 1;
        sscanf(found->text, "%u %u %u %u %u %llu", &sample.pid, &sample.sm, &sample.memory, &sample.encoder, &sample.decoder,
               &sample.timestamp_us);
        if (sample.timestamp_us <= since_us) continue;
        if (out && found_count < *count) out[found_count] = sample;
        found_count++;
    }
    if (found_count && (!out || *count < found_count)) { *count = found_count; return leave(INSUFFICIENT_SIZE); }
    *count = found_count;
    return leave(SUCCESS);
}
