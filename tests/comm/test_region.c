/* The shared region by itself: making and opening it, who may attach, the first error, the heap.
 * What is done to it here by hand is what a killed rank, another build or a full table would do. */
#include "harness/harness.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "harness/ranks.h"

static const size_t HEAP_BYTES = (size_t)64 << 20;

static lsi_region *make_region(int n_ranks) {
    lsi_region *region = NULL;
    assert_ok(lsi_region_create(n_ranks, HEAP_BYTES, &region));
    return region;
}

/* Runs body(context) in a child without its standard error and without cmocka's own handler, which
 * would go on with the next test; returns what waitpid says. */
static int in_child(void (*body)(void *context), void *context) {
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int nowhere = open("/dev/null", O_WRONLY);
        dup2(nowhere, STDERR_FILENO);
        signal(SIGSEGV, SIG_DFL);
        body(context);
        _exit(0);
    }
    int how = 0;
    waitpid(pid, &how, 0);
    return how;
}

/* ---- making and opening ---- */

static void impossible_sizes_are_refused(void **state) {
    (void)state;
    lsi_region *region = NULL;
    assert_fails(lsi_region_create(0, HEAP_BYTES, &region), LS_ERR_ARGUMENT, "0 ranks");
    assert_fails(lsi_region_create(LSI_MAX_RANKS + 1, HEAP_BYTES, &region), LS_ERR_ARGUMENT,
                 "65 ranks");
    assert_fails(lsi_region_create(1, SIZE_MAX, &region), LS_ERR_ARGUMENT, "heap");
    assert_fails(lsi_region_create(1, SIZE_MAX - 4096, &region), LS_ERR_ARGUMENT, "heap");
    assert_null(region);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* A file above the limit is answered by the system with a signal whose default is death. */
static void create_under_a_file_limit(void *context) {
    (void)context;
    const struct rlimit limit = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, SIG_DFL);
    lsi_region *region = NULL;
    _exit((int)lsi_region_create(2, HEAP_BYTES, &region));
}

static void a_limit_on_files_is_an_error_and_no_signal(void **state) {
    (void)state;
    int how = in_child(create_under_a_file_limit, NULL);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), LS_ERR_SYSTEM);
}

static void a_region_of_another_build_is_refused(void **state) {
    (void)state;
    lsi_region *region = make_region(2), *other = NULL;
    uint64_t heap_offset = region->control->heap_offset;
    region->control->heap_offset += 4096;
    assert_fails(lsi_region_open(lsi_region_fd(region), &other), LS_ERR_FORMAT,
                 "no region of this version");
    region->control->heap_offset = heap_offset;
    assert_ok(lsi_region_open(lsi_region_fd(region), &other));
    lsi_region_close(other);
    /* The opener's descriptor was its own. */
    assert_true(fcntl(lsi_region_fd(region), F_GETFD) >= 0);
    lsi_region_close(region);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

/* ---- attaching ---- */

static void a_rank_attaches_once(void **state) {
    (void)state;
    lsi_region *region = make_region(2);
    ls_group *group = NULL, *again = NULL;
    assert_fails(lsi_group_attach(region, 2, &group), LS_ERR_ARGUMENT, "rank 2");
    assert_ok(lsi_group_attach(region, 1, &group));
    assert_fails(lsi_group_attach(region, 1, &again), LS_ERR_STATE, "rank 1");
    ls_group_destroy(group);
    assert_fails(lsi_group_attach(region, 1, &again), LS_ERR_STATE, "rank 1");
    assert_null(again);
    lsi_region_close(region);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void an_attach_without_memory_can_be_repeated(void **state) {
    (void)state;
    lsi_region *region = make_region(1);
    ls_group *group = NULL;
    lsi_mem_fail_at(1);
    assert_fails(lsi_group_attach(region, 0, &group), LS_ERR_MEMORY, "");
    lsi_mem_fail_at(0);
    assert_ok(lsi_group_attach(region, 0, &group));
    assert_ok(ls_barrier(group, NULL));
    ls_group_destroy(group);
    lsi_region_close(region);
}

static void a_second_group_of_the_environment_leaves_the_first_alone(void **state) {
    (void)state;
    lsi_region *region = make_region(1);
    char text[16];
    snprintf(text, sizeof text, "%d", lsi_region_fd(region));
    setenv("LOCKSTEP_FD", text, 1);
    setenv("LOCKSTEP_RANK", "0", 1);
    ls_group *group = NULL, *second = NULL;
    assert_ok(ls_group_create(1000, &group));
    assert_fails(ls_group_create(1000, &second), LS_ERR_STATE, "rank 0");
    void *ptr = NULL;
    for (int i = 0; i < 2; i++) {
        assert_ok(ls_group_alloc_shared(group, 5000, &ptr));
        assert_int_equal(*(char *)ptr, 0);
        memset(ptr, 1, 5000);
        ls_group_free_shared(group, ptr);
    }
    assert_ok(ls_barrier(group, NULL));
    ls_group_destroy(group);
    unsetenv("LOCKSTEP_FD");
    unsetenv("LOCKSTEP_RANK");
    lsi_region_close(region);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void destroy_group(void *group) {
    ls_group_destroy(group);
}

static void a_fork_that_cleans_up_does_not_leave_for_its_parent(void **state) {
    (void)state;
    lsi_region *region = make_region(1);
    ls_group *group = NULL;
    assert_ok(lsi_group_attach(region, 0, &group));
    in_child(destroy_group, group);
    assert_int_equal(region->world->ranks[0].left, 0);
    ls_group_destroy(group);
    assert_int_equal(region->world->ranks[0].left, 1);
    lsi_region_close(region);
}

/* ---- the first error ---- */

typedef struct cut_report {
    lsi_region *region;
    const char *message; /* runs into a page that cannot be read */
} cut_report;

static void die_in_a_report(void *context) {
    const cut_report *cut = context;
    lsi_region_abort(cut->region, LS_ERR_NUMERIC, 1, cut->message);
}

static void a_rank_killed_while_it_reports_does_not_silence_the_others(void **state) {
    (void)state;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    memset(pages, 'x', page);
    assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
    lsi_region *region = make_region(2);
    cut_report cut = {region, pages + page - 100};

    int how = in_child(die_in_a_report, &cut);
    assert_false(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    assert_ok(lsi_region_error(region, NULL));
    int rank = -2;
    lsi_region_abort(region, LS_ERR_PEER, 1, "rank 1 was killed");
    assert_fails(lsi_region_error(region, &rank), LS_ERR_PEER, "rank 1 was killed");
    assert_int_equal(rank, 1);
    lsi_region_abort(region, LS_ERR_TIMEOUT, 0, "rank 0 waited");
    assert_fails(lsi_region_error(region, NULL), LS_ERR_PEER, "rank 1 was killed");
    lsi_region_close(region);
    munmap(pages, 2 * page);
}

static void long_messages_are_cut(void **state) {
    (void)state;
    char message[2 * LSI_MESSAGE_BYTES];
    memset(message, 'm', sizeof message);
    message[sizeof message - 1] = 0;
    lsi_region *region = make_region(1);
    lsi_region_abort(region, LS_ERR_NUMERIC, -1, message);
    assert_fails(lsi_region_error(region, NULL), LS_ERR_NUMERIC, "mmm");
    assert_int_equal(strlen(ls_last_message()), LSI_MESSAGE_BYTES - 1);
    lsi_region_close(region);
}

/* ---- the heap ---- */

static void blocks_are_first_fit_and_merge(void **state) {
    (void)state;
    lsi_region *region = make_region(1);
    void *ptr[4], *again = NULL;
    for (int i = 0; i < 4; i++) assert_ok(lsi_heap_alloc(region, HEAP_BYTES / 4, &ptr[i]));
    assert_fails(lsi_heap_alloc(region, 1, &again), LS_ERR_MEMORY, "0 of");
    lsi_heap_free(region, ptr[1]);
    lsi_heap_free(region, ptr[3]);
    assert_fails(lsi_heap_alloc(region, HEAP_BYTES / 2, &again), LS_ERR_MEMORY, "in one piece");
    lsi_heap_free(region, ptr[2]);
    lsi_heap_free(region, ptr[2]); /* not a block any more: ignored */
    lsi_heap_free(region, (char *)ptr[0] + 4096);
    assert_ok(lsi_heap_alloc(region, HEAP_BYTES / 4 * 3, &again));
    assert_ptr_equal(again, ptr[1]);
    lsi_region_close(region);
}

static void a_full_table_is_out_of_memory(void **state) {
    (void)state;
    lsi_region *region = NULL;
    assert_ok(lsi_region_create(1, (size_t)1 << 30, &region));
    void *ptr = NULL;
    for (int i = 0; i < LSI_HEAP_BLOCKS; i++) assert_ok(lsi_heap_alloc(region, 0, &ptr));
    void *last = ptr, *more = NULL;
    assert_fails(lsi_heap_alloc(region, 0, &more), LS_ERR_MEMORY, "4096 blocks");
    lsi_heap_free(region, last);
    assert_ok(lsi_heap_alloc(region, 0, &ptr));
    assert_ptr_equal(ptr, last);
    lsi_region_close(region);
}

/* Some sandboxes know no holes. */
static void freed_memory_is_zeroed_without_holes_too(void **state) {
    (void)state;
    lsi_region *region = make_region(1);
    close(region->fd);
    region->fd = -1;
    void *ptr = NULL, *again = NULL;
    assert_ok(lsi_heap_alloc(region, 5000, &ptr));
    memset(ptr, 1, 5000);
    lsi_heap_free(region, ptr);
    assert_ok(lsi_heap_alloc(region, 5000, &again));
    assert_ptr_equal(again, ptr);
    for (int i = 0; i < 5000; i++) assert_int_equal(((char *)again)[i], 0);
    lsi_region_close(region);
}

static void the_first_error_ends_the_wait_for_the_heap(void **state) {
    (void)state;
    lsi_region *region = make_region(2);
    void *ptr = NULL;
    atomic_store(&region->control->heap_lock, 1); /* of a rank that was killed inside */
    lsi_region_abort(region, LS_ERR_PEER, 1, "rank 1 was killed");
    assert_fails(lsi_heap_alloc(region, 100, &ptr), LS_ERR_PEER, "rank 1 was killed");
    assert_null(ptr);
    lsi_region_close(region);
}

/* A work that is still in flight keeps its blocks: peers may not have read them yet. */
static ls_status free_in_flight(ls_group *group, void *context) {
    _Atomic int *go = context;
    enum { COUNT = 30000 }; /* too many for slots */
    void *memory = NULL, *other = NULL;
    ls_work *work = NULL;
    LSI_TRY(ls_group_alloc_shared(group, COUNT * sizeof(float), &memory));
    float *value = memory;
    for (int i = 0; i < COUNT; i++) value[i] = 1;
    if (ls_group_rank(group) == 1)
        while (!*go) lsi_sleep_ms(1);
    LSI_TRY(ls_all_reduce(group, value, value, COUNT, LS_DTYPE_F32, LS_OP_SUM, 1, &work));
    if (ls_group_rank(group) == 0) {
        ls_group_free_shared(group, memory);
        LSI_TRY(ls_group_alloc_shared(group, COUNT * sizeof(float), &other));
        *go = 1;
        RANK_CHECK(other != memory, "a block in flight was given out again");
    }
    LSI_TRY(ls_work_wait(work, -1));
    for (int i = 0; i < COUNT; i++)
        RANK_CHECK(value[i] == 2, "element %d: expected 2, found %g", i, (double)value[i]);
    return LS_OK;
}

static void blocks_in_flight_are_kept(void **state) {
    (void)state;
    _Atomic int go = 0;
    assert_ok(run_ranks(RANKS_AS_THREADS, 2, free_in_flight, &go));
}

/* After an error nobody knows which peers are still inside the call. */
static void blocks_of_a_call_that_failed_are_kept(void **state) {
    (void)state;
    lsi_region *region = make_region(2);
    ls_group *group = NULL;
    void *kept = NULL, *freed = NULL, *other = NULL;
    assert_ok(lsi_group_attach(region, 0, &group));
    assert_ok(ls_group_alloc_shared(group, 100, &kept));
    assert_ok(ls_group_alloc_shared(group, 100, &freed));
    ls_group_set_timeout(group, 1);
    assert_fails(ls_broadcast(group, kept, kept, 1, LS_DTYPE_F32, 1, NULL), LS_ERR_TIMEOUT,
                 "rank 1 did not join (no call yet)");
    ls_group_free_shared(group, kept);
    ls_group_free_shared(group, freed);
    assert_ok(ls_group_alloc_shared(group, 100, &other));
    assert_ptr_equal(other, freed);
    ls_group_destroy(group);
    lsi_region_close(region);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(a_limit_on_files_is_an_error_and_no_signal),
        cmocka_unit_test(a_region_of_another_build_is_refused),
        cmocka_unit_test(a_rank_attaches_once),
        cmocka_unit_test(an_attach_without_memory_can_be_repeated),
        cmocka_unit_test(a_second_group_of_the_environment_leaves_the_first_alone),
        cmocka_unit_test(a_fork_that_cleans_up_does_not_leave_for_its_parent),
        cmocka_unit_test(a_rank_killed_while_it_reports_does_not_silence_the_others),
        cmocka_unit_test(long_messages_are_cut),
        cmocka_unit_test(blocks_are_first_fit_and_merge),
        cmocka_unit_test(a_full_table_is_out_of_memory),
        cmocka_unit_test(freed_memory_is_zeroed_without_holes_too),
        cmocka_unit_test(the_first_error_ends_the_wait_for_the_heap),
        cmocka_unit_test(blocks_in_flight_are_kept),
        cmocka_unit_test(blocks_of_a_call_that_failed_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
