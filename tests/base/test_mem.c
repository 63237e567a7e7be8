/* Memory: alignment, accounts, failure on request, and what the system measures. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "harness/scratch.h"

/* Hooks of the sanitizers: a size that cannot be had gives NULL, as without them. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
    return "allocator_may_return_null=1";
}

static int nothing_leaked(void **state) {
    (void)state;
    lsi_mem_fail_at(0);
    return lsi_mem_n_blocks() == 0 ? 0 : -1;
}

static const size_t sizes[] = {0, 1, 7, 63, 64, 65, 127, 4096, 100003, 5u << 20};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

static void blocks_are_aligned_and_counted(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SIZES; i++) {
        unsigned char *ptr = lsi_alloc(LSI_MEM_GRADS, sizes[i]);
        assert_non_null(ptr);
        assert_int_equal((uintptr_t)ptr % 64, 0);
        assert_int_equal(lsi_mem_now(LSI_MEM_GRADS), sizes[i]);
        assert_int_equal(lsi_mem_n_blocks(), 1);
        memset(ptr, 0xA5, sizes[i]);
        lsi_free(ptr);
        assert_int_equal(lsi_mem_now(LSI_MEM_GRADS), 0);
    }
}

static void calloc_gives_zeros(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SIZES; i++) {
        unsigned char *used = lsi_alloc(LSI_MEM_OTHER, sizes[i]); /* makes the heap dirty */
        memset(used, 0xFF, sizes[i]);
        lsi_free(used);
        unsigned char *ptr = lsi_calloc(LSI_MEM_OTHER, sizes[i], 1);
        assert_non_null(ptr);
        unsigned int any = 0;
        for (size_t j = 0; j < sizes[i]; j++) any |= ptr[j];
        assert_int_equal(any, 0);
        lsi_free(ptr);
    }
}

static void realloc_keeps_content_and_alignment(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SIZES; i++) {
        for (size_t j = 0; j < N_SIZES; j++) {
            unsigned char *ptr = lsi_alloc(LSI_MEM_PARAMS, sizes[i]);
            for (size_t k = 0; k < sizes[i]; k++) ptr[k] = (unsigned char)(k * 7 % 251);
            unsigned char *next = lsi_realloc(LSI_MEM_OPTIMIZER, ptr, sizes[j]);
            assert_non_null(next);
            assert_int_equal((uintptr_t)next % 64, 0);
            size_t common = sizes[i] < sizes[j] ? sizes[i] : sizes[j];
            size_t n_wrong = 0;
            for (size_t k = 0; k < common; k++) n_wrong += next[k] != (unsigned char)(k * 7 % 251);
            assert_int_equal(n_wrong, 0);
            assert_int_equal(lsi_mem_now(LSI_MEM_PARAMS), 0);
            assert_int_equal(lsi_mem_now(LSI_MEM_OPTIMIZER), sizes[j]);
            lsi_free(next);
        }
    }
    char *fresh = lsi_realloc(LSI_MEM_OTHER, NULL, 5);
    assert_non_null(fresh);
    lsi_free(fresh);
}

static void failed_realloc_keeps_block(void **state) {
    (void)state;
    char *text = lsi_strdup("kept");
    assert_null(lsi_realloc(LSI_MEM_OTHER, text, SIZE_MAX - 3));
    lsi_mem_fail_at(1);
    assert_null(lsi_realloc(LSI_MEM_OTHER, text, 100));
    assert_string_equal(text, "kept");
    assert_int_equal(lsi_mem_now(LSI_MEM_OTHER), 5);
    lsi_free(text);
}

static void impossible_sizes_fail_with_message(void **state) {
    (void)state;
    static const size_t huge[] = {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX - 64, (size_t)PTRDIFF_MAX,
                                  (size_t)PTRDIFF_MAX - 64};
    for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
        lsi_message_set("");
        assert_fails(lsi_check_alloc(lsi_alloc(LSI_MEM_PARAMS, huge[i])), LS_ERR_MEMORY, "params");
        assert_null(lsi_calloc(LSI_MEM_PARAMS, huge[i], 1));
        assert_null(lsi_calloc(LSI_MEM_PARAMS, huge[i], 2));
    }
    assert_fails(lsi_check_alloc(lsi_calloc(LSI_MEM_PARAMS, SIZE_MAX / 2 + 1, 2)), LS_ERR_MEMORY,
                 "more than can be addressed");
    assert_int_equal(lsi_mem_now(LSI_MEM_PARAMS), 0);
}

static void check_alloc_without_message_says_memory(void **state) {
    (void)state;
    lsi_message_set("");
    assert_fails(lsi_check_alloc(NULL), LS_ERR_MEMORY, "memory");
    int something;
    assert_ok(lsi_check_alloc(&something));
}

static void freeing_null_does_nothing(void **state) {
    (void)state;
    lsi_free(NULL);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void peak_is_highest_since_reset(void **state) {
    (void)state;
    lsi_mem_reset_peaks();
    void *a = lsi_alloc(LSI_MEM_ACTIVATIONS, 1000);
    void *b = lsi_alloc(LSI_MEM_ACTIVATIONS, 500);
    lsi_free(a);
    assert_int_equal(lsi_mem_now(LSI_MEM_ACTIVATIONS), 500);
    assert_int_equal(lsi_mem_peak(LSI_MEM_ACTIVATIONS), 1500);
    lsi_mem_reset_peaks();
    assert_int_equal(lsi_mem_peak(LSI_MEM_ACTIVATIONS), 500);
    lsi_free(b);
    lsi_mem_note(LSI_MEM_BUCKETS, 4096);
    lsi_mem_note(LSI_MEM_BUCKETS, -4096);
    assert_int_equal(lsi_mem_now(LSI_MEM_BUCKETS), 0);
    assert_int_equal(lsi_mem_peak(LSI_MEM_BUCKETS), 4096);
}

static void kinds_have_names(void **state) {
    (void)state;
#define CHECK(name, text) assert_string_equal(lsi_mem_kind_name(LSI_MEM_##name), text);
    LSI_MEM_KIND_TABLE(CHECK)
#undef CHECK
    assert_string_equal(lsi_mem_kind_name((lsi_mem_kind)99), "other");
}

static void nth_allocation_fails_once(void **state) {
    (void)state;
    for (int64_t n = 1; n <= 5; n++) {
        void *blocks[8];
        lsi_mem_fail_at(n);
        for (int i = 0; i < 8; i++) {
            assert_int_equal(lsi_mem_has_failed(), i >= n);
            blocks[i] = lsi_alloc(LSI_MEM_OTHER, 10);
            if (i == n - 1) {
                assert_null(blocks[i]);
                assert_non_null(strstr(ls_last_message(), "10 bytes for other failed on request"));
            } else {
                assert_non_null(blocks[i]);
            }
        }
        for (int i = 0; i < 8; i++) lsi_free(blocks[i]);
    }
    lsi_mem_fail_at(3);
    lsi_mem_fail_at(0);
    assert_int_equal(lsi_mem_has_failed(), 0);
}

/* The environment is asked once, at the first allocation, so each case needs a fresh process; the
 * body itself has not allocated before. */
typedef struct environment_case {
    const char *text;
    int failing; /* number of the allocation that has to fail, 0: none */
} environment_case;

static int find_failing(void *context) {
    const environment_case *row = context;
    setenv("LOCKSTEP_FAIL_ALLOC", row->text, 1);
    if (!freopen("/dev/null", "w", stderr)) return 99;
    int failing = 0;
    for (int i = 1; i <= 5; i++) {
        void *ptr = lsi_alloc(LSI_MEM_OTHER, 1);
        if (!ptr) failing = failing == 0 ? i : 98;
        lsi_free(ptr);
    }
    return failing;
}

static void environment_arms_failure(void **state) {
    (void)state;
    static const environment_case cases[] = {
        {"1", 1},  {"3", 3},   {"0", 0},
        {"", 0},   {"x", 0},   {"2x", 0},
        {"-1", 0}, {"100", 0}, {"99999999999999999999", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(run_in_child(find_failing, (void *)(uintptr_t)&cases[i]),
                         cases[i].failing);
    }
}

enum { N_THREADS = 4, N_ROUNDS = 20000 };

static void *allocate_and_free(void *context) {
    (void)context;
    for (int i = 0; i < N_ROUNDS; i++) {
        void *a = lsi_alloc(LSI_MEM_PARAMS, (size_t)(i % 97));
        void *b = lsi_alloc(LSI_MEM_GRADS, 3);
        lsi_free(a);
        lsi_free(b);
    }
    return NULL;
}

static void threads_keep_accounts_exact(void **state) {
    (void)state;
    pthread_t threads[N_THREADS];
    lsi_mem_reset_peaks();
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, allocate_and_free, NULL), 0);
    }
    for (int i = 0; i < N_THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(lsi_mem_now(LSI_MEM_PARAMS), 0);
    assert_int_equal(lsi_mem_now(LSI_MEM_GRADS), 0);
    assert_in_range(lsi_mem_peak(LSI_MEM_PARAMS), 96, 96 * N_THREADS);
}

static void one_of_many_threads_fails(void **state) {
    (void)state;
    pthread_t threads[N_THREADS];
    lsi_mem_fail_at(N_ROUNDS);
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, allocate_and_free, NULL), 0);
    }
    for (int i = 0; i < N_THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(lsi_mem_has_failed(), 1);
}

static void resident_bytes_grow_with_use(void **state) {
    (void)state;
    enum { BYTES = 32 << 20 };
    int64_t before = lsi_mem_rss_bytes();
    assert_true(before > 0);
    char *ptr = lsi_calloc(LSI_MEM_OTHER, BYTES, 1);
    memset(ptr, 1, BYTES);
    assert_true(lsi_mem_rss_bytes() >= before + BYTES / 2);
    assert_true(lsi_mem_peak_rss_bytes() >= before + BYTES / 2);
    lsi_free(ptr);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(environment_arms_failure), /* first: children must not have allocated */
        cmocka_unit_test_teardown(blocks_are_aligned_and_counted, nothing_leaked),
        cmocka_unit_test_teardown(calloc_gives_zeros, nothing_leaked),
        cmocka_unit_test_teardown(realloc_keeps_content_and_alignment, nothing_leaked),
        cmocka_unit_test_teardown(failed_realloc_keeps_block, nothing_leaked),
        cmocka_unit_test_teardown(impossible_sizes_fail_with_message, nothing_leaked),
        cmocka_unit_test_teardown(check_alloc_without_message_says_memory, nothing_leaked),
        cmocka_unit_test_teardown(freeing_null_does_nothing, nothing_leaked),
        cmocka_unit_test_teardown(peak_is_highest_since_reset, nothing_leaked),
        cmocka_unit_test(kinds_have_names),
        cmocka_unit_test_teardown(nth_allocation_fails_once, nothing_leaked),
        cmocka_unit_test_teardown(threads_keep_accounts_exact, nothing_leaked),
        cmocka_unit_test_teardown(one_of_many_threads_fails, nothing_leaked),
        cmocka_unit_test_teardown(resident_bytes_grow_with_use, nothing_leaked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
