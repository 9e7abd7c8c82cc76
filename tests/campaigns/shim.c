/* Preloaded library for a wrong wall clock (CLOCK_STEP: file with the offset in seconds, as 64 bits) and for writes of 5 s to the
   files below a folder (SLOW_FOLDER). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *step;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("CLOCK_STEP");
    int fd = path ? open(path, O_RDONLY) : -1;
    if (fd < 0) return;
    void *map = mmap(NULL, 8, PROT_READ, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) step = map;
    close(fd);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int code = (int)syscall(SYS_clock_gettime, id, at);
    if (!code && id == CLOCK_REALTIME && step) at->tv_sec += *step;
    return code;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    at->tv_sec = precise.tv_sec;
    at->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (out) *out = precise.tv_sec;
    return precise.tv_sec;
}

static void crawl(int fd) {
    const char *slow = getenv("SLOW_FOLDER");
    char link[64], path[4096];
    if (!slow) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return;
    path[length] = 0;
    if (!strncmp(path, slow, strlen(slow))) sleep(5);
}

ssize_t write(int fd, const void *data, size_t size) {
    crawl(fd);
    return syscall(SYS_write, fd, data, size);
}
