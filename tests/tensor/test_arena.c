/* The arena: placement, merging, accounts, exhaustion, and a long random run against a plain model
 * of which bytes are taken. */
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "harness/harness.h"
#include "tensor/tensor.h"

static lsi_arena *open_arena(size_t bytes) {
    lsi_arena *arena;
    assert_ok(lsi_arena_create(bytes, &arena));
    return arena;
}

static void blocks_are_aligned_and_apart(void **state) {
    (void)state;
    lsi_arena *arena = open_arena(1 << 20);
    static const size_t sizes[] = {0, 1, 63, 64, 65, 1000, 4096, 100003};
    char *end = NULL;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *ptr = lsi_arena_alloc(arena, sizes[i]);
        assert_non_null(ptr);
        assert_int_equal((uintptr_t)ptr % 64, 0);
        assert_true(ptr >= end);
        memset(ptr, (int)i, sizes[i]);
        end = ptr + (sizes[i] ? sizes[i] : 1);
    }
    lsi_arena_destroy(arena);
}

static void first_gap_that_fits_is_taken(void **state) {
    (void)state;
    lsi_arena *arena = open_arena(1 << 20);
    void *block[6];
    for (int i = 0; i < 6; i++) block[i] = lsi_arena_alloc(arena, 1024);
    lsi_arena_release(arena, block[1]);
    lsi_arena_release(arena, block[3]);
    assert_ptr_equal(lsi_arena_alloc(arena, 512), block[1]);
    assert_ptr_equal(lsi_arena_alloc(arena, 1024), block[3]);
    assert_ptr_equal(lsi_arena_alloc(arena, 512), (char *)block[1] + 512);
    lsi_arena_destroy(arena);
}

/* Whatever the order of release, three neighbours become one gap. */
static void neighbours_merge(void **state) {
    (void)state;
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                    {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t o = 0; o < 6; o++) {
        lsi_arena *arena = open_arena(1 << 20);
        void *block[4];
        for (int i = 0; i < 4; i++) block[i] = lsi_arena_alloc(arena, 1024);
        for (int i = 0; i < 3; i++) lsi_arena_release(arena, block[orders[o][i]]);
        assert_ptr_equal(lsi_arena_alloc(arena, 3072), block[0]);
        assert_int_equal(lsi_arena_used_bytes(arena), 4096);
        lsi_arena_destroy(arena);
    }
}

/* Addresses, not memory: the thread sanitizer refuses 2^40 of them. */
#if defined(__SANITIZE_THREAD__)
enum { HUGE_BITS = 38 };
#else
enum { HUGE_BITS = 40 };
#endif

static void accounts_follow_the_high_water_mark(void **state) {
    (void)state;
    int64_t now = lsi_mem_now(LSI_MEM_ACTIVATIONS);
    lsi_arena *arena = open_arena((size_t)1 << HUGE_BITS);
    void *a = lsi_arena_alloc(arena, 1000), *b = lsi_arena_alloc(arena, 5000);
    assert_int_equal(lsi_arena_used_bytes(arena), 1024 + 5056);
    assert_int_equal(lsi_arena_peak_bytes(arena), 1024 + 5056);
    assert_int_equal(lsi_mem_now(LSI_MEM_ACTIVATIONS) - now, 1024 + 5056);
    lsi_arena_release(arena, a);
    lsi_arena_release(arena, b);
    assert_int_equal(lsi_arena_used_bytes(arena), 0);
    assert_int_equal(lsi_mem_now(LSI_MEM_ACTIVATIONS) - now, 1024 + 5056);
    lsi_arena_destroy(arena);
    assert_int_equal(lsi_mem_now(LSI_MEM_ACTIVATIONS), now);
}

static void full_arena_says_what_is_left(void **state) {
    (void)state;
    lsi_arena *arena = open_arena(1);
    size_t reserved = 4 << 20; /* the reservation is rounded up */
    void *all = lsi_arena_alloc(arena, reserved);
    assert_non_null(all);
    assert_null(lsi_arena_alloc(arena, 1));
    assert_non_null(strstr(ls_last_message(), "1 bytes asked for, 4194304 of 4194304 in use"));
    assert_null(lsi_arena_alloc(arena, SIZE_MAX));
    lsi_arena_release(arena, all);
    assert_null(lsi_arena_alloc(arena, reserved + 1));
    assert_non_null(strstr(ls_last_message(), "largest gap 4194304"));
    assert_ptr_equal(lsi_arena_alloc(arena, reserved), all);
    lsi_arena_destroy(arena);
}

static void bad_calls_are_answered(void **state) {
    (void)state;
    lsi_arena *arena;
    assert_fails(lsi_arena_create(0, &arena), LS_ERR_ARGUMENT, "arena");
    assert_fails(lsi_arena_create(SIZE_MAX, &arena), LS_ERR_ARGUMENT, "arena");
    assert_fails(lsi_arena_create((size_t)1 << 60, &arena), LS_ERR_MEMORY, "reserving");
    lsi_arena_destroy(NULL);
    arena = open_arena(1 << 20);
    char *ptr = lsi_arena_alloc(arena, 128);
    int elsewhere;
    lsi_arena_release(arena, NULL);
    lsi_arena_release(arena, &elsewhere);
    lsi_arena_release(arena, ptr + 64);
    assert_int_equal(lsi_arena_used_bytes(arena), 128);
    lsi_arena_release(arena, ptr);
    lsi_arena_release(arena, ptr); /* twice */
    assert_int_equal(lsi_arena_used_bytes(arena), 0);
    lsi_arena_destroy(arena);
}

enum { N_SLOTS = 200, N_CALLS = 20000 };

/* Random calls; each block is filled with its slot's number and checked when it is released. Gives
 * a sum over all addresses, so that two runs can be compared. */
static uint64_t random_run(lsi_arena *arena) {
    static unsigned char *slot[N_SLOTS];
    static size_t bytes[N_SLOTS];
    lsi_rng_stream stream = lsi_rng_open(3, LSI_RNG_TEST, 0, 0);
    unsigned char *base = lsi_arena_alloc(arena, 1);
    uint64_t sum = 0;
    for (uint64_t call = 0; call < N_CALLS; call++) {
        uint32_t word = lsi_rng_u32(&stream, call);
        int i = (int)(word % N_SLOTS);
        if (slot[i]) {
            for (size_t k = 0; k < bytes[i]; k++) assert_int_equal(slot[i][k], i);
            lsi_arena_release(arena, slot[i]);
            slot[i] = NULL;
            continue;
        }
        bytes[i] = (word >> 10) % 5000;
        slot[i] = lsi_arena_alloc(arena, bytes[i]);
        assert_non_null(slot[i]);
        memset(slot[i], i, bytes[i]);
        sum = sum * 31 + (uint64_t)(slot[i] - base);
    }
    for (int i = 0; i < N_SLOTS; i++) lsi_arena_release(arena, slot[i]), slot[i] = NULL;
    lsi_arena_release(arena, base);
    assert_int_equal(lsi_arena_used_bytes(arena), 0);
    return sum;
}

static void long_run_keeps_blocks_apart_and_repeats(void **state) {
    (void)state;
    lsi_arena *arena = open_arena(1 << 24), *other = open_arena(1 << 24);
    uint64_t first = random_run(arena);
    assert_true(first == random_run(arena));
    assert_true(first == random_run(other));
    void *whole = lsi_arena_alloc(arena, 1 << 24); /* all of it is one gap again */
    assert_non_null(whole);
    lsi_arena_reset(arena);
    assert_int_equal(lsi_arena_used_bytes(arena), 0);
    assert_ptr_equal(lsi_arena_alloc(arena, 1), whole);
    lsi_arena_destroy(arena);
    lsi_arena_destroy(other);
}

/* The list of blocks grows; each of its allocations fails once. */
static void failed_allocations_leave_nothing(void **state) {
    (void)state;
    int64_t n_blocks = lsi_mem_n_blocks();
    for (int64_t n = 1;; n++) {
        lsi_mem_fail_at(n);
        lsi_arena *arena;
        ls_status status = lsi_arena_create(1 << 20, &arena);
        bool is_clean = status == LS_OK;
        if (status == LS_OK) {
            for (int i = 0; i < 1000; i++) is_clean &= lsi_arena_alloc(arena, 1) != NULL;
            lsi_arena_destroy(arena);
        } else {
            assert_int_equal(status, LS_ERR_MEMORY);
        }
        assert_int_equal(lsi_mem_n_blocks(), n_blocks);
        assert_int_equal(is_clean, !lsi_mem_has_failed());
        if (is_clean) break;
        assert_in_range(n, 1, 50);
    }
    lsi_mem_fail_at(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_aligned_and_apart),
        cmocka_unit_test(first_gap_that_fits_is_taken),
        cmocka_unit_test(neighbours_merge),
        cmocka_unit_test(accounts_follow_the_high_water_mark),
        cmocka_unit_test(full_arena_says_what_is_left),
        cmocka_unit_test(bad_calls_are_answered),
        cmocka_unit_test(long_run_keeps_blocks_apart_and_repeats),
        cmocka_unit_test(failed_allocations_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
