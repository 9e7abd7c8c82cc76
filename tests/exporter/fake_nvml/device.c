/* Readings of one GPU. */

typedef struct { unsigned int version; u64 total, reserved, free, used; } memory_v2;
typedef struct { u64 total, free, used; } memory_v1;
typedef struct { unsigned int gpu, memory; } utilization;
typedef struct {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_info;
typedef union { double d; uint32_t ui; unsigned long ul; u64 ull; long long sll; int32_t si; uint16_t us; } any_value;
typedef struct {
    uint32_t field_id, scope_id;
    int64_t timestamp, latency_us;
    int32_t value_type, nvml_return;
    any_value value;
} field_value;
typedef struct { u64 timestamp_us; any_value value; } one_sample;
typedef struct {
    unsigned int processors, copy_engines, decoders, encoders, jpegs, ofas, gpu_instance_slices, compute_instance_slices;
    u64 memory_mib;
} attributes;
typedef struct { unsigned int version; int margin; } margin_v1;
typedef struct { unsigned int version, sensor; int temperature; } temperature_v1;
typedef struct { unsigned int max, high, partial, low, none; } remap_histogram;
typedef struct { unsigned int version; uint8_t cluster[16]; int status; uint32_t clique; unsigned int state; uint32_t health; } fabric_v2;
typedef struct { uint8_t cluster[16]; int status; uint32_t clique; unsigned int state; } fabric_v1;
typedef struct { uint32_t year; uint16_t month, day, hour, minute, second; uint8_t status; } expiry;
typedef struct { unsigned int code, state; char info[128], product[128]; unsigned int enabled; expiry until; } licence_feature;
typedef struct { int supported; unsigned int count; licence_feature features[3]; } licences;

TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
SMALL(nvmlDeviceGetArchitecture, "architecture")
SMALL(nvmlDeviceGetBrand, "brand")
SMALL(nvmlDeviceGetComputeMode, "compute_mode")
SMALL(nvmlDeviceGetDisplayActive, "display")
SMALL(nvmlDeviceGetDisplayMode, "display")
SMALL(nvmlDeviceGetPersistenceMode, "persistence")
PAIR(nvmlDeviceGetCudaComputeCapability, "capability_major", "capability_minor")

SMALL(nvmlDeviceGetPowerUsage, "power")
SMALL(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
SMALL(nvmlDeviceGetPowerManagementLimit, "power_limit")
SMALL(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit_default")
#ifndef WITHOUT_ENERGY
WIDE(nvmlDeviceGetTotalEnergyConsumption, "energy")
#endif
SMALL(nvmlDeviceGetPerformanceState, "performance_state")
SMALL(nvmlDeviceGetNumFans, "fans")
SMALL(nvmlDeviceGetFanSpeed, "fan.0")
SMALL(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
SMALL(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
SMALL(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
SMALL(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
SMALL(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max")
PAIR(nvmlDeviceGetEccMode, "ecc_mode", "ecc_mode")
PAIR(nvmlDeviceGetEncoderUtilization, "encoder", "encoder_period_us")
PAIR(nvmlDeviceGetDecoderUtilization, "decoder", "encoder_period_us")
WIDE(nvmlDeviceGetVirtualizationMode, "virtualization")
SMALL(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending")
WIDE(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle")
#if DRIVER >= 535
WIDE(nvmlDeviceGetCurrentClocksEventReasons, "throttle")
#endif

/* A call with a number that is part of the key. */
#define KEYED(name, format) \
    int name(void *gpu, unsigned int which, unsigned int *out) { \
        char what[64]; \
        ENTER(gpu); \
        snprintf(what, sizeof what, format, which); \
        return leave(small(gpu, what, out)); \
    }

KEYED(nvmlDeviceGetTemperatureThreshold, "threshold.%u")
KEYED(nvmlDeviceGetFanSpeed_v2, "fan.%u")
KEYED(nvmlDeviceGetPcieThroughput, "pcie_throughput.%u")

static const char *CLOCKS[] = {"clock_graphics", "clock_sm", "clock_memory", "clock_video"};
static const char *MAX_CLOCKS[] = {"max_clock_graphics", "max_clock_sm", "max_clock_memory", "max_clock_video"};

int nvmlDeviceGetClockInfo(void *gpu, unsigned int kind, unsigned int *out) {
    ENTER(gpu);
    return leave(kind > 3 ? INVALID_ARGUMENT : small(gpu, CLOCKS[kind], out));
}

int nvmlDeviceGetMaxClockInfo(void *gpu, unsigned int kind, unsigned int *out) {
    ENTER(gpu);
    return leave(kind > 3 ? INVALID_ARGUMENT : small(gpu, MAX_CLOCKS[kind], out));
}

int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned int *out) {
    ENTER(gpu);
    return leave(sensor ? INVALID_ARGUMENT : small(gpu, "temperature", out));
}

#if DRIVER >= 570
int nvmlDeviceGetTemperatureV(void *gpu, temperature_v1 *out) {
    ENTER(gpu);
    return leave(out->sensor ? INVALID_ARGUMENT : small(gpu, "temperature", (unsigned int *)&out->temperature));
}

int nvmlDeviceGetMarginTemperature(void *gpu, margin_v1 *out) {
    ENTER(gpu);
    if (out->version != 0x1000008) return leave(VERSION_MISMATCH);
    return leave(small(gpu, "margin", (unsigned int *)&out->margin));
}
#endif

static int memory_of(void *gpu, u64 *total, u64 *used, u64 *free_bytes, u64 *reserved) {
    int code = number(gpu, "memory_total", total);
    if (!code) code = number(gpu, "memory_used", used);
    if (!code) code = number(gpu, "memory_free", free_bytes);
    if (!code && number(gpu, "memory_reserved", reserved)) *reserved = 0;
    return code;
}

int nvmlDeviceGetMemoryInfo(void *gpu, memory_v1 *out) {
    u64 reserved = 0;
    int code;
    ENTER(gpu);
    code = memory_of(gpu, &out->total, &out->used, &out->free, &reserved);
    out->used += reserved;
    return leave(code);
}

#if DRIVER >= 510
int nvmlDeviceGetMemoryInfo_v2(void *gpu, memory_v2 *out) {
    ENTER(gpu);
    return leave(memory_of(gpu, &out->total, &out->used, &out->free, &out->reserved));
}
#endif

int nvmlDeviceGetBAR1MemoryInfo(void *gpu, memory_v1 *out) {
    ENTER(gpu);
    out->total = 128ull << 30, out->used = 1 << 20, out->free = out->total - out->used;
    return leave(SUCCESS);
}

int nvmlDeviceGetUtilizationRates(void *gpu, utilization *out) {
    int code;
    ENTER(gpu);
    code = small(gpu, "utilization", &out->gpu);
    return leave(code ? code : small(gpu, "memory_utilization", &out->memory));
}

/* Samples on a grid of the wall clock, those newer than the caller has; the first call, without a buffer, learns how many fit. */
int nvmlDeviceGetSamples(void *gpu, unsigned int kind, u64 since_us, int *type, unsigned int *count, one_sample *out) {
    const entry *values;
    struct timespec now;
    u64 period = 100000, shift = 0, kept = 100, pairs = 0, last, first;
    char what[32];
    ENTER(gpu);
    snprintf(what, sizeof what, "samples.%u", kind);
    values = lookup(gpu, what);
    if (!values) return leave(NOT_SUPPORTED);
    if (values->error) return leave(values->error);
    *type = 1;
    number(gpu, "samples_kept", &kept);
    if (!out) { *count = (unsigned int)kept; return leave(SUCCESS); }
    number(gpu, "samples_period_us", &period);
    clock_gettime(CLOCK_REALTIME, &now);
    number(gpu, "samples_shift_us", &shift);
    number(gpu, "samples_in_pairs", &pairs);
    last = (shift + (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000) / period;
    first = last - kept + 1 > since_us / period + 1 ? last - kept + 1 : since_us / period + 1;
    if (first > last) return leave(NOT_FOUND);
    if (*count > last - first + 1) *count = (unsigned int)(last - first + 1);
    for (unsigned int i = 0; i < *count; i++) {
        /* samples_in_pairs: two neighbours have one time stamp */
        out[i].timestamp_us = (pairs ? (first + i) / 2 * 2 : first + i) * period;
        out[i].value.ui = (uint32_t)turn(values->text, first + i);
    }
    return leave(SUCCESS);
}

/* The call itself succeeds; each value carries its own return code. */
static const char *TYPES[] = {"d", "ui", "ul", "ull", "sll", "si", "us"};

static void field(void *gpu, field_value *out) {
    char what[48];
    const entry *found = NULL;
    const char *type;
    snprintf(what, sizeof what, "field.%u@%u", out->field_id, out->scope_id);
    found = lookup(gpu, what);
    snprintf(what, sizeof what, "field.%u", out->field_id);
    if (!found) found = lookup(gpu, what);
    if (!found && out->field_id == 82) found = lookup(gpu, "memory_temperature");
    if (!found && out->field_id == 91) found = lookup(gpu, "nvlinks");
    out->nvml_return = found ? found->error : NOT_SUPPORTED;
    out->value_type = 1;
    out->value.ull = 0;
    if (out->nvml_return) return;
    type = strchr(found->text, ' ');
    for (int i = 0; type && i < 7; i++)
        if (!strcmp(type + 1, TYPES[i])) out->value_type = i;
    if (type && !strncmp(type + 1, "type:", 5)) out->value_type = atoi(type + 6);
    switch (out->value_type) {
    case 0: out->value.d = found->real; break;
    case 1: out->value.ui = (uint32_t)found->number; break;
    case 4: out->value.sll = strtoll(found->text, NULL, 10); break;
    case 5: out->value.si = atoi(found->text); break;
    case 6: out->value.us = (uint16_t)found->number; break;
    default: out->value.ull = found->number;
    }
}

int nvmlDeviceGetFieldValues(void *gpu, int count, field_value *values) {
    ENTER(gpu);
    for (int i = 0; i < count; i++) field(gpu, &values[i]);
    return leave(SUCCESS);
}

int nvmlDeviceGetNvLinkState(void *gpu, unsigned int link, unsigned int *out) {
    char what[32];
    ENTER(gpu);
    if (link >= (unsigned int)number_of(lookup(gpu, "nvlinks"))) return leave(lookup(gpu, "nvlinks") ? INVALID_ARGUMENT : NOT_SUPPORTED);
    snprintf(what, sizeof what, "nvlink.%u", link);
    if (!lookup(gpu, what)) { *out = 1; return leave(SUCCESS); }
    return leave(small(gpu, what, out));
}

#if DRIVER >= 525
int nvmlDeviceGetGpuFabricInfo(void *gpu, fabric_v1 *out) {
    ENTER(gpu);
    memset(out, 0, sizeof *out);
    small(gpu, "fabric_status", (unsigned int *)&out->status);
    return leave(small(gpu, "fabric", &out->state));
}
#endif

#if DRIVER >= 535
int nvmlDeviceGetGpuFabricInfoV(void *gpu, fabric_v2 *out) {
    ENTER(gpu);
    if (out->version != 0x02000024) return leave(VERSION_MISMATCH);
    small(gpu, "fabric_status", (unsigned int *)&out->status);
    small(gpu, "fabric_health", &out->health);
    return leave(small(gpu, "fabric", &out->state));
}
#endif

int nvmlDeviceGetMemoryErrorCounter(void *gpu, int error, int counter, int location, u64 *out) {
    char what[48];
    ENTER(gpu);
    snprintf(what, sizeof what, "ecc.%d.%d.%d", error, counter, location);
    return leave(number(gpu, what, out));
}

int nvmlDeviceGetTotalEccErrors(void *gpu, int error, int counter, u64 *out) {
    char what[48];
    u64 sram = 0;
    int code;
    ENTER(gpu);
    snprintf(what, sizeof what, "ecc.%d.%d.7", error, counter);
    number(gpu, what, &sram);
    snprintf(what, sizeof what, "ecc.%d.%d.2", error, counter);
    code = number(gpu, what, out);
    if (!code) *out += sram;
    return leave(code);
}

int nvmlDeviceGetRowRemapperHistogram(void *gpu, remap_histogram *out) {
    int code;
    ENTER(gpu);
    code = small(gpu, "remap.max", &out->max);
    if (!code) code = small(gpu, "remap.high", &out->high);
    if (!code) code = small(gpu, "remap.partial", &out->partial);
    if (!code) code = small(gpu, "remap.low", &out->low);
    return leave(code ? code : small(gpu, "remap.none", &out->none));
}

/* The pages' addresses are of no interest: the state says how many there are. */
int nvmlDeviceGetRetiredPages(void *gpu, unsigned int cause, unsigned int *count, u64 *out) {
    char what[32];
    unsigned int pages = 0;
    int code;
    ENTER(gpu);
    snprintf(what, sizeof what, "retired.%u", cause);
    code = small(gpu, what, &pages);
    if (code) return leave(code);
    if (!out || *count < pages) { *count = pages; return leave(pages ? INSUFFICIENT_SIZE : SUCCESS); }
    *count = pages;
    for (unsigned int i = 0; i < pages; i++) out[i] = 0x1000ull * (i + 1);
    return leave(SUCCESS);
}

int nvmlDeviceGetGridLicensableFeatures_v4(void *gpu, licences *out) {
    unsigned int licensed = 0;
    int code;
    ENTER(gpu);
    memset(out, 0, sizeof *out);
    code = small(gpu, "licensed", &licensed);
    if (code) return leave(code);
    out->supported = 1, out->count = 1;
    out->features[0].code = 1, out->features[0].state = licensed, out->features[0].enabled = licensed;
    return leave(SUCCESS);
}
