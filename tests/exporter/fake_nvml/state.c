/* The state file as a hash table, and what happens on the way into every call. */

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25
};

typedef unsigned long long u64;

/* One line of the state file. */
typedef struct {
    const char *key, *text;
    u64 number;
    double real;
    int error, next;
} entry;

enum { BUCKETS = 4096, GPUS = 64, COUNTERS = 256 };

static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static char *table_text;
static entry *entries;
static int entry_count, buckets[BUCKETS], calls_planted, generation;
static struct stat table_stat;

static int sessions;
static char session_driver[80];

/* Handles are slots: a GPU keeps its handle when the indexes shift. */
static struct { char bus[32]; int index, generation; } slots[GPUS];
static int slot_count;

static struct counter { u64 count; uint32_t ready; char name[52]; } *counters;

static unsigned hash(const char *text) {
    unsigned value = 2166136261u;
    while (*text) value = (value ^ (unsigned char)*text++) * 16777619u;
    return value % BUCKETS;
}

static const entry *find(const char *key) {
    for (int i = buckets[hash(key)]; i; i = entries[i].next)
        if (!strcmp(entries[i].key, key)) return &entries[i];
    return NULL;
}

static void read_table(const char *path) {
    FILE *file = fopen(path, "r");
    size_t size = 0, room;
    int lines = 1;
    if (!file || fstat(fileno(file), &table_stat)) { if (file) fclose(file); return; }
    room = (size_t)table_stat.st_size;
    free(table_text);
    free(entries);
    table_text = malloc(room + 1);
    size = fread(table_text, 1, room, file);
    fclose(file);
    table_text[size] = 0;
    for (char *at = table_text; *at; at++) lines += *at == '\n';
    entries = calloc((size_t)lines + 1, sizeof *entries);
    memset(buckets, 0, sizeof buckets);
    entry_count = calls_planted = 0;
    generation++;
    for (char *line = strtok(table_text, "\n"); line; line = strtok(NULL, "\n")) {
        char *space = strchr(line, ' ');
        entry *new = &entries[++entry_count];
        unsigned bucket;
        if (!space) { entry_count--; continue; }
        *space = 0;
        new->key = line;
        new->text = space + 1;
        new->error = !strncmp(new->text, "err:", 4) ? atoi(new->text + 4) : 0;
        new->number = strtoull(new->text, NULL, 10);
        new->real = strtod(new->text, NULL);
        bucket = hash(line);
        new->next = buckets[bucket];
        buckets[bucket] = entry_count;
        calls_planted += !strncmp(line, "call.", 5);
    }
}

/* A number beside the state file that grows with every change of it; NULL where there is none. */
static const volatile uint32_t *map_version(const char *path) {
    char name[512];
    int file;
    void *map;
    snprintf(name, sizeof name, "%s.version", path);
    file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0) return NULL;
    map = mmap(NULL, sizeof(uint32_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    return map == MAP_FAILED ? NULL : map;
}

static void refresh(void) {
    static const char *path;
    static const volatile uint32_t *version;
    static uint32_t seen;
    struct stat now;
    if (!path) {
        if (!(path = getenv("FAKE_NVML_STATE"))) path = "/nonexistent";
        version = map_version(path);
    }
    if (version && table_text && *version == seen) return;
    if (version) seen = *version;
    if (stat(path, &now)) return;
    if (now.st_ino == table_stat.st_ino && now.st_size == table_stat.st_size && now.st_mtim.tv_sec == table_stat.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == table_stat.st_mtim.tv_nsec) return;
    read_table(path);
}

static void count_call(const char *name) {
    static int tried;
    if (!tried) {
        const char *path = getenv("FAKE_NVML_COUNTS");
        int file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
        tried = 1;
        if (file >= 0) {
            void *map;
            if (ftruncate(file, COUNTERS * sizeof *counters)) abort();
            map = mmap(NULL, COUNTERS * sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (map != MAP_FAILED) counters = map;
            close(file);
        }
    }
    if (!counters) return;
    for (unsigned i = hash(name) % COUNTERS;; i = (i + 1) % COUNTERS) {
        uint32_t none = 0;
        if (__atomic_compare_exchange_n(&counters[i].ready, &none, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            snprintf(counters[i].name, sizeof counters[i].name, "%s", name);
            __atomic_store_n(&counters[i].ready, 2, __ATOMIC_RELEASE);
        }
        while (__atomic_load_n(&counters[i].ready, __ATOMIC_ACQUIRE) != 2) continue;
        if (strncmp(counters[i].name, name, sizeof counters[i].name - 1)) continue;
        __atomic_add_fetch(&counters[i].count, 1, __ATOMIC_RELAXED);
        return;
    }
}

static const entry *global(const char *what) { return find(what); }

static int number_of(const entry *found) { return found ? (int)found->number : 0; }

static void pause_ms(int ms) {
    struct timespec time = {ms / 1000, (ms % 1000) * 1000000L};
    nanosleep(&time, NULL);
}

/* A handle: the slot of the GPU, and in the upper half the number of its MIG device, both from 1. */
static int slot_of(void *handle) { return (int)((uintptr_t)handle & 0xffff) - 1; }
static int mig_of(void *handle) { return (int)((uintptr_t)handle >> 16) - 1; }
static void *handle_of(int slot, int mig) { return (void *)((uintptr_t)(slot + 1) | (uintptr_t)(mig + 1) << 16); }

static const entry *of_gpu(int gpu, const char *what) {
    char key[192];
    snprintf(key, sizeof key, "gpu%d.%s", gpu, what);
    return find(key);
}

static int gpu_count(void) { return number_of(global("count")); }

/* The index that a slot's GPU has now, or -1. */
static int index_of_slot(int slot) {
    if (slot < 0 || slot >= slot_count) return -1;
    if (slots[slot].generation != generation) {
        slots[slot].generation = generation;
        slots[slot].index = -1;
        for (int i = 0; i < gpu_count(); i++) {
            const entry *bus = of_gpu(i, "bus");
            if (bus && !strcasecmp(bus->text, slots[slot].bus)) slots[slot].index = i;
        }
    }
    return slots[slot].index;
}

static int slot_for(int index) {
    const entry *bus = of_gpu(index, "bus");
    for (int i = 0; i < slot_count; i++)
        if (bus && !strcasecmp(slots[i].bus, bus->text)) return i;
    if (!bus || slot_count == GPUS) return -1;
    snprintf(slots[slot_count].bus, sizeof slots[0].bus, "%s", bus->text);
    return slot_count++;
}

static int index_of(void *handle) { return index_of_slot(slot_of(handle)); }

/* What the state says about this handle's GPU or MIG device. */
static const entry *lookup(void *handle, const char *what) {
    char key[128];
    if (mig_of(handle) < 0) return of_gpu(index_of(handle), what);
    snprintf(key, sizeof key, "mig.%d.%s", mig_of(handle), what);
    return of_gpu(index_of(handle), key);
}

static const entry *planted(const char *call, int gpu) {
    char key[192];
    const entry *found = NULL;
    snprintf(key, sizeof key, "call.%s@%d", call, gpu);
    if (gpu >= 0) found = find(key);
    if (found) return found;
    snprintf(key, sizeof key, "call.%s", call);
    return find(key);
}

static int session_is_dead(void) {
    const entry *driver = global("driver");
    return !sessions || number_of(global("gone")) || (driver && strcmp(driver->text, session_driver));
}

/* The way into a call, for the GPU of this index or -1: takes the driver's lock, which leave() gives back. */
static int enter_index(const char *call, int gpu, void *handle) {
    const entry *what;
    pthread_mutex_lock(&driver_lock);
    refresh();
    count_call(call);
    if (handle) gpu = index_of(handle);
    while (calls_planted && (what = planted(call, gpu))) {
        int slow = !strncmp(what->text, "slow:", 5) ? atoi(what->text + 5) : 0, holds = !strcmp(what->text, "lock");
        if (what->error) return what->error;
        if (!slow && !holds && strcmp(what->text, "hang")) break;
        if (!holds) pthread_mutex_unlock(&driver_lock);
        pause_ms(slow ? slow : 20);
        if (!holds) pthread_mutex_lock(&driver_lock);
        refresh();
        if (handle) gpu = index_of(handle);
        if (slow) break;
    }
    if (strcmp(call, "nvmlInitWithFlags") && session_is_dead()) return UNINITIALIZED;
    if (handle && gpu < 0) return GPU_IS_LOST;
    if (gpu >= 0 && number_of(of_gpu(gpu, "lost"))) return GPU_IS_LOST;
    return SUCCESS;
}

static int leave(int code) {
    pthread_mutex_unlock(&driver_lock);
    return code;
}

#define ENTER(handle) do { int code_ = enter_index(__func__, -1, handle); if (code_) return leave(code_); } while (0)
#define ENTER_INDEX(index) do { int code_ = enter_index(__func__, index, NULL); if (code_) return leave(code_); } while (0)
#define ENTER_SYSTEM() ENTER_INDEX(-1)

static int number(void *handle, const char *what, u64 *out) {
    const entry *found = lookup(handle, what);
    if (!found) return NOT_SUPPORTED;
    *out = found->number;
    return found->error;
}

static int small(void *handle, const char *what, unsigned int *out) {
    u64 wide = 0;
    int code = number(handle, what, &wide);
    if (!code) *out = (unsigned int)wide;
    return code;
}

static int text(void *handle, const char *what, char *out, unsigned int size) {
    const entry *found = lookup(handle, what);
    if (!found) return NOT_SUPPORTED;
    if (!found->error) snprintf(out, size, "%s", found->text);
    return found->error;
}

/* A call that gives one small number under one key. */
#define SMALL(name, what) int name(void *gpu, unsigned int *out) { ENTER(gpu); return leave(small(gpu, what, out)); }
#define WIDE(name, what) int name(void *gpu, u64 *out) { ENTER(gpu); return leave(number(gpu, what, out)); }
#define TEXT(name, what) int name(void *gpu, char *out, unsigned int size) { ENTER(gpu); return leave(text(gpu, what, out, size)); }
#define PAIR(name, first, second) \
    int name(void *gpu, unsigned int *one, unsigned int *two) { \
        int code; \
        ENTER(gpu); \
        code = small(gpu, first, one); \
        return leave(code ? code : small(gpu, second, two)); \
    }

/* The k-th of comma separated numbers, in turns. */
static double turn(const char *list, u64 k) {
    u64 count = 1;
    const char *at = list;
    for (const char *c = list; *c; c++) count += *c == ',';
    for (k %= count; k; k--) at = strchr(at, ',') + 1;
    return strtod(at, NULL);
}
