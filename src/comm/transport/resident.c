/* Pages of the region's control data that this process has in its page tables, for the account of
 * memory: lines, records, slots, blocks and channels exist once touched, by whoever needs them.
 * /proc/self/pagemap has a word for each page, whose highest bit says "present". */
#include <fcntl.h>
#include <unistd.h>

#include "comm/transport/control.h"

int64_t lsi_region_control_bytes(const lsi_region *region) {
    enum { N_WORDS = 512 };
    const long page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t word[N_WORDS];
    uint64_t page = (uint64_t)(uintptr_t)region->base / (uint64_t)page_bytes;
    uint64_t end = page + region->control->heap_offset / (uint64_t)page_bytes;
    int64_t n_present = 0;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    while (page < end) {
        size_t n = end - page < N_WORDS ? (size_t)(end - page) : N_WORDS;
        if (pread(fd, word, n * sizeof word[0], (off_t)(page * sizeof word[0])) !=
            (ssize_t)(n * sizeof word[0]))
            break;
        for (size_t i = 0; i < n; i++) n_present += (int64_t)(word[i] >> 63);
        page += n;
    }
    close(fd);
    return n_present * page_bytes;
}
