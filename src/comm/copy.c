/* Copies go a line at a time; the compiler makes one or two vector moves of each, and short
 * remainders are left to memcpy.
 *
 * Copies that are large against the caches store past them (non-temporal), which saves fetching
 * what is overwritten, and ask for the source some lines ahead, and for one line of a page ahead so
 * that its address is translated in time. All-gather between two cores, time with such stores
 * against plain ones, by the size of a part:
 *
 *     MiB                  1     2     4     8    16    32
 *     Zen 4             1, 2.3       0.75        0.65
 *     Zen 5                          1.9   0.96  0.81  0.89
 *     Zen 5, in place     2.1   2.7  2.5   1.3   0.87  0.86
 *
 * (the two figures: where the third-level cache holds all, 2.3). How much of that cache is ours a
 * virtual machine does not say. memcpy takes 1.0 to 2.4 times as long as plain stores from 8 KiB
 * on. */
#include "comm/copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

typedef struct line {
    uint64_t word[8];
} line;

enum { PAST_CACHES_BYTES = (8 << 20) + 1, AHEAD_BYTES = 8 * sizeof(line), PAGE_BYTES = 4096 };

static void copy_lines(unsigned char *out, const unsigned char *in, size_t bytes) {
    size_t done = bytes / sizeof(line) * sizeof(line);
    for (size_t i = 0; i < done; i += sizeof(line)) {
        line l;
        memcpy(&l, in + i, sizeof l);
        memcpy(out + i, &l, sizeof l);
    }
    if (bytes > done) memcpy(out + done, in + done, bytes - done);
}

#if defined(__SSE2__)
/* One line past the caches; `to` is aligned to it. */
static inline void stream_line(unsigned char *to, const unsigned char *from) {
#if defined(__AVX512F__)
    _mm512_stream_si512((__m512i *)(void *)to, _mm512_loadu_si512(from));
#else
    for (size_t i = 0; i < sizeof(line); i += sizeof(__m128i))
        _mm_stream_si128((__m128i *)(void *)(to + i),
                         _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
#endif
}

static void copy_past_caches(unsigned char *out, const unsigned char *in, size_t bytes) {
    size_t head = (size_t)(-(uintptr_t)out % sizeof(line));
    memcpy(out, in, head);
    out += head, in += head, bytes -= head;
    size_t done = bytes / sizeof(line) * sizeof(line);
    for (size_t i = 0; i < done; i += sizeof(line)) {
        /* Prefetches never fault, also beyond the end. */
        if (i % PAGE_BYTES == 0) __builtin_prefetch(in + i + PAGE_BYTES + PAGE_BYTES / 2);
        __builtin_prefetch(in + i + AHEAD_BYTES);
        stream_line(out + i, in + i);
    }
    _mm_sfence(); /* or a flag written later may be seen before the data */
    memcpy(out + done, in + done, bytes - done);
}
#else
static void copy_past_caches(unsigned char *out, const unsigned char *in, size_t bytes) {
    copy_lines(out, in, bytes);
}
#endif

void lsi_copy(void *to, const void *from, size_t bytes) {
    if (to == from || bytes == 0) return;
    (bytes < PAST_CACHES_BYTES ? copy_lines : copy_past_caches)(to, from, bytes);
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
