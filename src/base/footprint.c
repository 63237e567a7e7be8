/* What a process holds besides what it asked for (lsi_mem_library_bytes).
 *
 * Two sources, both the system's own figures:
 *   - /proc/self/smaps: resident bytes of mappings that are files (program, libraries) or that hold
 *     code without a file (kernels that a matrix library generates), and of the stack. Memory files
 *     (shared buffers) are accounted by who makes them.
 *   - the C library's allocator: bytes it holds, less those in our own blocks and less pages of
 *     its heap without memory; what is left are blocks of libraries and gaps between blocks. */
#include "base/mem.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

/* "7f01-7f02 r-xp 00000000 fe:00 12 /usr/lib/x.so": whether its pages are counted here. */
static bool is_counted(const char *line) {
    char rights[8] = "", path[64] = "";
    uint64_t inode = 0;
    if (sscanf(line, "%*s %7s %*s %*s %" SCNu64 " %63s", rights, &inode, path) < 2) return false;
    bool is_memory_file = strncmp(path, "/memfd:", 7) == 0 || strncmp(path, "/dev/", 5) == 0;
    bool is_file = inode != 0 && !is_memory_file;
    return is_file || strchr(rights, 'x') || strcmp(path, "[stack]") == 0;
}

static bool is_mapping_head(const char *line, int64_t *bytes) {
    uint64_t begin, end;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &begin, &end) != 2) return false;
    *bytes = (int64_t)(end - begin);
    return true;
}

static int64_t mapped_bytes(void) {
    FILE *file = fopen("/proc/self/smaps", "re");
    if (!file) return 0;
    char line[512];
    int64_t sum = 0, bytes = 0, kib = 0;
    bool counts = false, is_heap = false;
    while (fgets(line, sizeof line, file)) {
        if (is_mapping_head(line, &bytes)) {
            counts = is_counted(line);
            is_heap = strstr(line, "[heap]") != NULL;
        } else if (sscanf(line, "Rss: %" SCNd64 " kB", &kib) == 1) {
            if (counts) sum += kib * 1024;
            if (is_heap) sum -= bytes - kib * 1024; /* the allocator counts all of it */
        }
    }
    fclose(file);
    return sum;
}

static int64_t foreign_heap_bytes(void) {
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
    struct mallinfo2 heap = mallinfo2();
    int64_t bytes = (int64_t)heap.arena + (int64_t)heap.hblkhd - lsi_mem_heap_bytes();
    return bytes > 0 ? bytes : 0;
#else
    return 0;
#endif
}

int64_t lsi_mem_library_bytes(void) {
    return mapped_bytes() + foreign_heap_bytes();
}

void lsi_forget_pages(void *at, size_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)at + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)at + bytes) / page * page;
    if (end > first) (void)madvise((void *)first, end - first, MADV_DONTNEED); /* only a hint */
}
