/* GPM: a metric is said of two samples. Pairs that are not adjacent, or too close, are counted under a name of their own. */

#if DRIVER >= 520

typedef struct { int slot, instance; u64 number, taken_ns; } gpm_sample;
typedef struct {
    unsigned int id;
    int nvml_return;
    double value;
    const char *short_name, *long_name, *unit;
} gpm_metric;
typedef struct { unsigned int version, count; gpm_sample *first, *second; gpm_metric metrics[]; } gpm_metrics;
typedef struct { unsigned int version, supported; } gpm_support;

static u64 samples_taken[GPUS][16];

int nvmlGpmQueryDeviceSupport(void *gpu, gpm_support *out) {
    const entry *found;
    ENTER(gpu);
    found = lookup(gpu, "gpm");
    out->supported = found ? (unsigned int)found->number : 0;
    return leave(out->version == 1 ? (found ? found->error : SUCCESS) : VERSION_MISMATCH);
}

int nvmlGpmSampleAlloc(gpm_sample **out) {
    ENTER_SYSTEM();
    *out = calloc(1, sizeof **out);
    return leave(SUCCESS);
}

int nvmlGpmSampleFree(gpm_sample *sample) {
    ENTER_SYSTEM();
    free(sample);
    return leave(SUCCESS);
}

static int take(void *gpu, int instance, gpm_sample *out) {
    struct timespec now;
    const entry *found = lookup(gpu, "gpm");
    if (!found || !found->number) return found && found->error ? found->error : NOT_SUPPORTED;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *out = (gpm_sample){slot_of(gpu), instance, samples_taken[slot_of(gpu)][(instance + 1) & 15]++, (u64)now.tv_sec * 1000000000 + (u64)now.tv_nsec};
    return SUCCESS;
}

int nvmlGpmSampleGet(void *gpu, gpm_sample *out) { ENTER(gpu); return leave(take(gpu, -1, out)); }

int nvmlGpmMigSampleGet(void *gpu, unsigned int instance, gpm_sample *out) { ENTER(gpu); return leave(take(gpu, (int)instance, out)); }

/* The MIG device whose GPU instance this is, or -1. */
static int device_of_instance(void *gpu, int instance) {
    char what[32];
    for (int i = 0; i < 7; i++) {
        const entry *found;
        snprintf(what, sizeof what, "mig.%d.gi", i);
        found = lookup(gpu, what);
        if (found && (int)found->number == instance) return i;
    }
    return -1;
}

int nvmlGpmMetricsGet(gpm_metrics *out) {
    void *gpu;
    u64 first, second;
    ENTER_SYSTEM();
    if (out->version != 1) return leave(VERSION_MISMATCH);
    gpu = handle_of(out->first->slot, -1);
    if (out->first->instance >= 0) gpu = handle_of(out->first->slot, device_of_instance(gpu, out->first->instance));
    first = out->first->number, second = out->second->number;
    if (second != first + 1) count_call("gpm pair not adjacent");
    if (second <= first) return leave(INVALID_ARGUMENT);
    if (out->second->taken_ns - out->first->taken_ns < 100000000) count_call("gpm pair too close");
    for (unsigned int i = 0; i < out->count; i++) {
        gpm_metric *metric = &out->metrics[i];
        char what[32];
        const entry *found;
        snprintf(what, sizeof what, "gpm.%u", metric->id);
        found = lookup(gpu, what);
        metric->nvml_return = found ? found->error : NOT_SUPPORTED;
        metric->value = 0;
        if (metric->nvml_return) continue;
        for (u64 k = first; k < second; k++) metric->value += turn(found->text, k) / (double)(second - first);
    }
    return leave(SUCCESS);
}

#endif
