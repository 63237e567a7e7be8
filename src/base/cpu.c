/* How many processors this process may use (see cpu.h).
 *
 * Two limits apply on Linux: the affinity mask (taskset, a batch system's cpuset) and the time
 * quota of the control group (containers). A quota of a control group binds everything below it,
 * so the path from ours up to the root is walked and the smallest wins. Two layouts exist:
 *
 *     version 2   line "0::/path"            FOLDER/path/cpu.max            "quota period" or "max
 * …" version 1   line "4:cpu,cpuacct:/path" FOLDER/cpu/path/cpu.cfs_quota_us, cpu.cfs_period_us
 *
 * Inside a container the path may be the host's, of which only the root is visible: files that do
 * not exist limit nothing. */
#include "base/cpu.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_CPUS = 1 << 20 };

/* ---- affinity ---- */

typedef struct mask {
    cpu_set_t *set; /* NULL: unknown */
    size_t bytes;
    int n_cpus; /* that the mask has room for */
} mask;

/* The kernel refuses (EINVAL) a mask smaller than its own, so the mask grows until it fits. */
static mask get_affinity(void) {
    for (int n_cpus = 1024; n_cpus <= MAX_CPUS; n_cpus *= 2) {
        mask m = {CPU_ALLOC((size_t)n_cpus), CPU_ALLOC_SIZE((size_t)n_cpus), n_cpus};
        if (!m.set) break;
        if (sched_getaffinity(0, m.bytes, m.set) == 0) return m;
        int reason = errno;
        CPU_FREE(m.set);
        if (reason != EINVAL) break;
    }
    return (mask){NULL, 0, 0};
}

static int affinity_count(void) {
    mask m = get_affinity();
    if (m.set) {
        int count = CPU_COUNT_S(m.bytes, m.set);
        CPU_FREE(m.set);
        return count;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online < INT_MAX ? (int)online : 1;
}

int lsi_cpu_bind(int part, int n_parts) {
    mask m = get_affinity();
    if (!m.set) return 0;
    int count = CPU_COUNT_S(m.bytes, m.set);
    int first = (int)((int64_t)count * part / n_parts);
    int end = (int)((int64_t)count * (part + 1) / n_parts);
    if (end <= first) end = first + 1;
    for (int cpu = 0, seen = 0; cpu < m.n_cpus; cpu++) {
        if (!CPU_ISSET_S((size_t)cpu, m.bytes, m.set)) continue;
        if (seen < first || seen >= end) CPU_CLR_S((size_t)cpu, m.bytes, m.set);
        seen++;
    }
    int bound = sched_setaffinity(0, m.bytes, m.set) == 0;
    CPU_FREE(m.set);
    return bound;
}

/* ---- control groups ---- */

/* The start of a file as text; 0 where there is no such file. */
static int read_start(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, size - 1);
    close(fd);
    if (n <= 0) return 0;
    text[n] = '\0';
    return 1;
}

/* Whole processors that a quota pays for, rounded up; INT_MAX if there is no quota. */
static int cpus_of_quota(long long quota, long long period) {
    if (quota <= 0 || period <= 0) return INT_MAX;
    long long cpus = quota / period + (quota % period != 0);
    return cpus < INT_MAX ? (int)cpus : INT_MAX;
}

static int quota_v2(const char *folder) {
    char path[PATH_MAX + 64], text[128];
    long long quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (!read_start(path, text, sizeof text)) return INT_MAX;
    if (sscanf(text, "%lld %lld", &quota, &period) != 2) return INT_MAX; /* "max 100000" */
    return cpus_of_quota(quota, period);
}

static int quota_v1(const char *folder) {
    char path[PATH_MAX + 64], text[128];
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (!read_start(path, text, sizeof text)) return INT_MAX;
    long long quota = strtoll(text, NULL, 10); /* -1: none */
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (!read_start(path, text, sizeof text)) return INT_MAX;
    return cpus_of_quota(quota, strtoll(text, NULL, 10));
}

/* Smallest quota from ROOT/path up to ROOT. */
static int smallest_quota(const char *root, const char *group, int (*quota_at)(const char *)) {
    char folder[PATH_MAX];
    int length = snprintf(folder, sizeof folder, "%s%s", root, group);
    if (length < 0 || (size_t)length >= sizeof folder) return quota_at(root);
    int smallest = INT_MAX;
    size_t root_length = strlen(root);
    for (;;) {
        int quota = quota_at(folder);
        if (quota < smallest) smallest = quota;
        char *slash = strrchr(folder + root_length, '/');
        if (!slash) return smallest;
        *slash = '\0';
    }
}

/* Whether a comma-separated list of controllers has "cpu". */
static int has_cpu(const char *controllers, size_t length) {
    static const char cpu[] = "cpu";
    for (const char *end = controllers + length; controllers < end;) {
        size_t n = strcspn(controllers, ",:");
        if (n == sizeof cpu - 1 && memcmp(controllers, cpu, n) == 0) return 1;
        controllers += n + 1;
    }
    return 0;
}

/* Quota named by one line "number:controllers:/path" of /proc/self/cgroup. */
static int quota_of_line(char *line, const char *cgroup_root) {
    char *controllers = strchr(line, ':');
    char *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path) return INT_MAX;
    controllers++;
    size_t length = (size_t)(path - controllers);
    path++;
    path[strcspn(path, "\n")] = '\0';
    if (length == 0) return smallest_quota(cgroup_root, path, quota_v2);
    if (!has_cpu(controllers, length)) return INT_MAX;
    char root[PATH_MAX];
    int n = snprintf(root, sizeof root, "%s/cpu", cgroup_root);
    if (n < 0 || (size_t)n >= sizeof root) return INT_MAX;
    return smallest_quota(root, path, quota_v1);
}

int lsi_cpu_quota(const char *cgroup_list, const char *cgroup_root) {
    FILE *file = fopen(cgroup_list, "re");
    if (!file) return INT_MAX;
    char *line = NULL;
    size_t size = 0;
    int smallest = INT_MAX;
    while (getline(&line, &size, file) > 0) {
        int quota = quota_of_line(line, cgroup_root);
        if (quota < smallest) smallest = quota;
    }
    free(line);
    fclose(file);
    return smallest;
}

int lsi_cpu_count(void) {
    int count = affinity_count();
    int quota = lsi_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    if (quota < count) count = quota;
    return count > 1 ? count : 1;
}

/* ---- name ---- */

static char cpu_name[128] = "unknown";

static void find_cpu_name(void) {
    static const char field[] = "model name";
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file) return;
    char line[512];
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, field, sizeof field - 1) != 0) continue;
        const char *name = line + strcspn(line, ":");
        name += strspn(name, ": \t");
        int length = (int)strcspn(name, "\n");
        if (length > 0) snprintf(cpu_name, sizeof cpu_name, "%.*s", length, name);
        break;
    }
    fclose(file);
}

const char *lsi_cpu_name(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT; /* any thread may ask first */
    pthread_once(&once, find_cpu_name);
    return cpu_name;
}
