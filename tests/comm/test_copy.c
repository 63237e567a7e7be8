/* Copies between ranks: every way a copy can take gives the same bytes, whatever the size and
 * wherever the buffers begin, and touches nothing beside them. */
#include "comm/copy.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "harness/harness.h"

enum { GUARD = 64, MOST_SHIFT = 64, BEYOND_CACHES = 8 << 20 };

static const size_t sizes[] = {0,
                               1,
                               7,
                               63,
                               64,
                               65,
                               4096 + 3,
                               BEYOND_CACHES - 1,
                               BEYOND_CACHES,
                               BEYOND_CACHES + 1,
                               BEYOND_CACHES + 4096 + 77};
static const size_t shifts[] = {0, 1, 4, 63};
enum { N_SIZES = sizeof sizes / sizeof sizes[0], N_SHIFTS = sizeof shifts / sizeof shifts[0] };

typedef struct pair {
    unsigned char *from, *to; /* with room for a shift and guards on both sides */
    size_t room_bytes;
} pair;

static void make_pair(pair *p) {
    p->room_bytes = sizes[N_SIZES - 1] + MOST_SHIFT + 2 * GUARD;
    p->room_bytes = (p->room_bytes + 63) / 64 * 64;
    p->from = aligned_alloc(64, p->room_bytes);
    p->to = aligned_alloc(64, p->room_bytes);
    assert_true(p->from && p->to);
    for (size_t i = 0; i < p->room_bytes; i++) p->from[i] = (unsigned char)(i * 31 + i / 4096);
}

static void check_copy(const pair *p, size_t bytes, size_t from_shift, size_t to_shift,
                       bool taking) {
    unsigned char *from = p->from + GUARD + from_shift, *to = p->to + GUARD + to_shift;
    memset(p->to, 0xA5, GUARD + to_shift + bytes + GUARD);
    if (taking)
        lsi_copy_taking(to, from, bytes);
    else
        lsi_copy(to, from, bytes);
    if (memcmp(to, from, bytes) != 0)
        fail_msg("%zu bytes from %zu to %zu differ", bytes, from_shift, to_shift);
    for (size_t i = 1; i <= GUARD; i++)
        if (to[-(ptrdiff_t)i] != 0xA5 || to[bytes + i - 1] != 0xA5)
            fail_msg("%zu bytes from %zu to %zu: something beside was written", bytes, from_shift,
                     to_shift);
}

static void copies_are_exact(void **state) {
    (void)state;
    pair p;
    make_pair(&p);
    unsigned char *before = malloc(p.room_bytes);
    assert_non_null(before);
    memcpy(before, p.from, p.room_bytes);
    for (int s = 0; s < N_SIZES; s++)
        for (int f = 0; f < N_SHIFTS; f++)
            for (int t = 0; t < N_SHIFTS; t++) {
                check_copy(&p, sizes[s], shifts[f], shifts[t], false);
                check_copy(&p, sizes[s], shifts[f], shifts[t], true);
            }
    assert_memory_equal(before, p.from, p.room_bytes);
    free(before);
    free(p.from);
    free(p.to);
}

static void nothing_to_copy(void **state) {
    (void)state;
    unsigned char word[8] = "seven..";
    lsi_copy(NULL, NULL, 0);
    lsi_copy(word, word, sizeof word);
    assert_string_equal((char *)word, "seven..");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_are_exact),
        cmocka_unit_test(nothing_to_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
