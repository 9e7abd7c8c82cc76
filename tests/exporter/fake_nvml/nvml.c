/* A libnvidia-ml.so.1 for tests: the C ABI that nvidia-ml-py calls, over invented GPUs.

   The file named by FAKE_NVML_STATE is read at every call, so a test rewrites it to change what the driver says:

     count 2                         GPUs
     gpu0.power 250000               a value, in NVML's unit; or "err:3" to fail with that return code
     gpu1.lost 1                     every call for that GPU says GPU_IS_LOST
     call.nvmlDeviceGetPowerUsage    "hang" (for as long as it says so), "slow:250" (milliseconds), "err:999"; for all GPUs
     call.nvmlDeviceGetPowerUsage@1  the same for one GPU

   Built with -DWITHOUT_ENERGY it lacks a symbol, as an old driver does. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, GPU_IS_LOST = 15, DRIVER_NOT_LOADED = 9 };

typedef struct { unsigned long long version_and_padding, total, reserved, free, used; } memory_v2;
typedef struct { unsigned int gpu, memory; } utilization;
typedef struct {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_info;
typedef struct {
    uint32_t field_id, scope_id;
    int64_t timestamp, latency_us;
    int32_t value_type, nvml_return;
    union { double d; uint32_t ui; unsigned long ul; unsigned long long ull; } value;
} field_value;

static int started;

/* The state's value for a key, or 0. */
static int state(const char *key, char *value, size_t size) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    size_t length = strlen(key);
    int found = 0;
    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) || line[length] != ' ') continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(value, size, "%s", line + length + 1);
        found = 1;
    }
    fclose(file);
    return found;
}

static int gpu_state(int gpu, const char *what, char *value, size_t size) {
    char key[128];
    snprintf(key, sizeof key, "gpu%d.%s", gpu, what);
    return state(key, value, size);
}

static int planted(const char *call, int gpu, char *value, size_t size) {
    char key[160];
    snprintf(key, sizeof key, "call.%s@%d", call, gpu);
    if (gpu >= 0 && state(key, value, size)) return 1;
    snprintf(key, sizeof key, "call.%s", call);
    return state(key, value, size);
}

/* What is planted for this call: waits, and the return code. */
static int enter(const char *call, int gpu) {
    char value[64];
    if (!started && strcmp(call, "nvmlInitWithFlags")) return UNINITIALIZED;
    while (planted(call, gpu, value, sizeof value)) {
        if (!strcmp(value, "hang")) { usleep(20000); continue; }
        if (!strncmp(value, "slow:", 5)) usleep(1000 * atoi(value + 5));
        if (!strncmp(value, "err:", 4)) return atoi(value + 4);
        break;
    }
    if (gpu >= 0 && gpu_state(gpu, "lost", value, sizeof value) && atoi(value)) return GPU_IS_LOST;
    return SUCCESS;
}

static int index_of(void *handle) { return (int)(intptr_t)handle - 1; }

static int number(const char *call, void *handle, const char *what, unsigned long long *out) {
    char value[64];
    int code = enter(call, index_of(handle));
    if (code) return code;
    if (!gpu_state(index_of(handle), what, value, sizeof value)) return NOT_SUPPORTED;
    if (!strncmp(value, "err:", 4)) return atoi(value + 4);
    *out = strtoull(value, NULL, 10);
    return SUCCESS;
}

static int small(const char *call, void *handle, const char *what, unsigned int *out) {
    unsigned long long wide = 0;
    int code = number(call, handle, what, &wide);
    *out = (unsigned int)wide;
    return code;
}

static int text(const char *call, void *handle, const char *what, char *out, unsigned int size) {
    char value[256];
    int code = enter(call, index_of(handle));
    if (code) return code;
    if (!gpu_state(index_of(handle), what, value, sizeof value)) return NOT_SUPPORTED;
    snprintf(out, size, "%s", value);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned int flags) {
    int code = enter("nvmlInitWithFlags", -1);
    (void)flags;
    if (!code) started = 1;
    return code;
}

int nvmlShutdown(void) { started = 0; return SUCCESS; }

const char *nvmlErrorString(int code) { (void)code; return "an error of the fake"; }

int nvmlSystemGetDriverVersion(char *out, unsigned int size) {
    char value[80];
    int code = enter("nvmlSystemGetDriverVersion", -1);
    if (code) return code;
    snprintf(out, size, "%s", state("driver", value, sizeof value) ? value : "580.65.06");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    char value[16];
    int code = enter("nvmlDeviceGetCount_v2", -1);
    if (code) return code;
    *count = state("count", value, sizeof value) ? (unsigned int)atoi(value) : 0;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    int code = enter("nvmlDeviceGetHandleByIndex_v2", (int)index);
    if (!code) *handle = (void *)(intptr_t)(index + 1);
    return code;
}

int nvmlDeviceGetUUID(void *gpu, char *out, unsigned int size) { return text("nvmlDeviceGetUUID", gpu, "uuid", out, size); }
int nvmlDeviceGetName(void *gpu, char *out, unsigned int size) { return text("nvmlDeviceGetName", gpu, "name", out, size); }
int nvmlDeviceGetSerial(void *gpu, char *out, unsigned int size) { return text("nvmlDeviceGetSerial", gpu, "serial", out, size); }

int nvmlDeviceGetPciInfo_v3(void *gpu, pci_info *out) {
    memset(out, 0, sizeof *out);
    return text("nvmlDeviceGetPciInfo_v3", gpu, "bus", out->bus_id, sizeof out->bus_id);
}

int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned int *out) {
    return sensor ? INVALID_ARGUMENT : small("nvmlDeviceGetTemperature", gpu, "temperature", out);
}

int nvmlDeviceGetMemoryInfo_v2(void *gpu, memory_v2 *out) {
    int code = number("nvmlDeviceGetMemoryInfo_v2", gpu, "memory_total", &out->total);
    if (!code) code = number("nvmlDeviceGetMemoryInfo_v2", gpu, "memory_used", &out->used);
    if (!code) code = number("nvmlDeviceGetMemoryInfo_v2", gpu, "memory_free", &out->free);
    if (!code) code = number("nvmlDeviceGetMemoryInfo_v2", gpu, "memory_reserved", &out->reserved);
    return code;
}

int nvmlDeviceGetUtilizationRates(void *gpu, utilization *out) {
    int code = small("nvmlDeviceGetUtilizationRates", gpu, "utilization", &out->gpu);
    return code ? code : small("nvmlDeviceGetUtilizationRates", gpu, "memory_utilization", &out->memory);
}

int nvmlDeviceGetPowerUsage(void *gpu, unsigned int *out) { return small("nvmlDeviceGetPowerUsage", gpu, "power", out); }

int nvmlDeviceGetEnforcedPowerLimit(void *gpu, unsigned int *out) {
    return small("nvmlDeviceGetEnforcedPowerLimit", gpu, "power_limit", out);
}

#ifndef WITHOUT_ENERGY
int nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *out) {
    return number("nvmlDeviceGetTotalEnergyConsumption", gpu, "energy", out);
}
#endif

static const char *CLOCKS[] = {"clock_graphics", "clock_sm", "clock_memory"};

int nvmlDeviceGetClockInfo(void *gpu, unsigned int kind, unsigned int *out) {
    return kind > 2 ? INVALID_ARGUMENT : small("nvmlDeviceGetClockInfo", gpu, CLOCKS[kind], out);
}

int nvmlDeviceGetMaxClockInfo(void *gpu, unsigned int kind, unsigned int *out) {
    char what[64];
    if (kind > 2) return INVALID_ARGUMENT;
    snprintf(what, sizeof what, "max_%s", CLOCKS[kind]);
    return small("nvmlDeviceGetMaxClockInfo", gpu, what, out);
}

/* The call itself succeeds; each value carries its own return code. */
int nvmlDeviceGetFieldValues(void *gpu, int count, field_value *values) {
    int code = enter("nvmlDeviceGetFieldValues", index_of(gpu));
    if (code) return code;
    for (int i = 0; i < count; i++) {
        unsigned long long wide = 0;
        values[i].nvml_return =
            values[i].field_id == 82 ? number("nvmlDeviceGetFieldValues", gpu, "memory_temperature", &wide) : NOT_SUPPORTED;
        values[i].value_type = 1;
        values[i].value.ui = (uint32_t)wide;
    }
    return SUCCESS;
}
