/* More than 2^31 elements: a number of elements that no int holds, over the border of every place
 * where one could be. Needs 8 GiB; skipped where there is too little memory. */
#include "harness/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/ranks.h"

static const int64_t COUNT = (INT64_C(1) << 31) + 5;
static const int64_t NEEDED_BYTES = INT64_C(12) << 30;

static int64_t available_bytes(void) {
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    long long kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lld", &kib) == 1) break;
    if (file) fclose(file);
    return kib * 1024;
}

static unsigned char value_at(int rank, int64_t i) {
    return (unsigned char)((i ^ i >> 13 ^ i >> 29) * (rank + 1) & 0x3F);
}

static ls_status sum_of_many(ls_group *group, void *context) {
    const bool *is_shared = context;
    void *memory = NULL;
    if (*is_shared)
        LSI_TRY(ls_group_alloc_shared(group, (size_t)COUNT + 64, &memory));
    else
        memory = malloc((size_t)COUNT + 64);
    RANK_CHECK(memory, "no memory");
    unsigned char *values = memory;
    for (int64_t i = 0; i < COUNT; i++) values[i] = value_at(group->rank, i);
    memset(values + COUNT, 0xA5, 64);
    LSI_TRY(ls_all_reduce(group, values, values, COUNT, LS_DTYPE_U8, LS_OP_SUM, 1, NULL));
    for (int64_t i = 0; i < COUNT; i++) {
        unsigned char expected = (unsigned char)(value_at(0, i) + value_at(1, i));
        RANK_CHECK(values[i] == expected, "%s buffers, element %lld: found %d, expected %d",
                   *is_shared ? "shared" : "private", (long long)i, values[i], expected);
    }
    for (int i = 0; i < 64; i++) RANK_CHECK(values[COUNT + i] == 0xA5, "written behind the end");
    if (*is_shared)
        ls_group_free_shared(group, memory);
    else
        free(memory);
    return LS_OK;
}

/* One message of more than 2^31 elements, and a wait for it. */
static ls_status message_of_many(ls_group *group, void *context) {
    (void)context;
    unsigned char *values = malloc((size_t)COUNT);
    RANK_CHECK(values, "no memory");
    for (int64_t i = 0; i < COUNT; i++) values[i] = group->rank == 0 ? value_at(2, i) : 0;
    if (group->rank == 0)
        LSI_TRY(ls_send(group, values, COUNT, LS_DTYPE_I8, 1, NULL));
    else
        LSI_TRY(ls_recv(group, values, COUNT, LS_DTYPE_I8, 0, NULL));
    for (int64_t i = 0; i < COUNT; i++)
        RANK_CHECK(values[i] == value_at(2, i), "element %lld: found %d, expected %d", (long long)i,
                   values[i], value_at(2, i));
    free(values);
    return LS_OK;
}

static void run_huge(rank_body body, void *context) {
    if (available_bytes() < NEEDED_BYTES) {
        print_message("skipped: %.1f GiB of memory are available, %.0f are needed\n",
                      (double)available_bytes() / (1 << 30), (double)NEEDED_BYTES / (1 << 30));
        skip();
    }
    rank_heap_bytes = (size_t)16 << 30; /* addresses */
    ls_status status = run_ranks(RANKS_AS_PROCESSES, 2, body, context);
    rank_heap_bytes = RANK_HEAP_BYTES;
    assert_ok(status);
}

static void shared_sums_have_64_bit_counts(void **state) {
    (void)state;
    bool is_shared = true;
    run_huge(sum_of_many, &is_shared);
}

static void private_sums_have_64_bit_counts(void **state) {
    (void)state;
    bool is_shared = false;
    run_huge(sum_of_many, &is_shared);
}

static void messages_have_64_bit_counts(void **state) {
    (void)state;
    run_huge(message_of_many, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_sums_have_64_bit_counts),
        cmocka_unit_test(private_sums_have_64_bit_counts),
        cmocka_unit_test(messages_have_64_bit_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
