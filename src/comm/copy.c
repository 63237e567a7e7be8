/* Both copies go a line at a time; the compiler makes one or two vector moves of each. Short
 * remainders are left to memcpy, as are copies far larger than the caches: it knows how to write
 * past them. */
#include "comm/copy.h"

#include <stdint.h>
#include <string.h>

typedef struct line {
    uint64_t word[8];
} line;

enum { PAST_CACHES_BYTES = 8 << 20 };

void lsi_copy(void *to, const void *from, size_t bytes) {
    if (to == from || bytes == 0) return;
    if (bytes > PAST_CACHES_BYTES) {
        memcpy(to, from, bytes);
        return;
    }
    unsigned char *out = to;
    const unsigned char *in = from;
    size_t done = bytes / sizeof(line) * sizeof(line);
    for (size_t i = 0; i < done; i += sizeof(line)) {
        line l;
        memcpy(&l, in + i, sizeof l);
        memcpy(out + i, &l, sizeof l);
    }
    if (bytes > done) memcpy(out + done, in + done, bytes - done);
}

void lsi_copy_taking(void *to, void *from, size_t bytes) {
    unsigned char *out = to, *in = from;
    size_t done = bytes / sizeof(line) * sizeof(line);
    for (size_t i = 0; i < done; i += sizeof(line)) {
        line l;
        memcpy(&l, in + i, sizeof l);
        memcpy(out + i, &l, sizeof l);
        /* One byte is enough for the line to change hands; volatile, or it would be left out. */
        unsigned char first;
        memcpy(&first, &l, 1);
        *(volatile unsigned char *)(in + i) = first;
    }
    if (bytes > done) memcpy(out + done, in + done, bytes - done);
}
