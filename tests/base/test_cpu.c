/* Processors: affinity as the system sets it, and control groups as made-up folder trees. */
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cpu.h"
#include "base/file.h"
#include "harness/scratch.h"

static void count_is_at_least_one(void **state) {
    (void)state;
    assert_true(lsi_cpu_count() >= 1);
    assert_true(lsi_cpu_name()[0] != '\0');
    assert_string_equal(lsi_cpu_name(), lsi_cpu_name());
}

static int count_on_one_cpu(void *context) {
    (void)context;
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0) return 99;
    int first = 0;
    while (!CPU_ISSET(first, &all)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) return 98;
    return lsi_cpu_count();
}

static void affinity_to_one_processor_gives_one(void **state) {
    (void)state;
    assert_int_equal(run_in_child(count_on_one_cpu, NULL), 1);
}

/* ---- binding ---- */

typedef struct binding {
    int part, n_parts;
    cpu_set_t before, *after; /* the latter in shared memory */
} binding;

static int bind_here(void *context) {
    binding *b = context;
    if (!lsi_cpu_bind(b->part, b->n_parts)) return 99;
    return sched_getaffinity(0, sizeof *b->after, b->after) == 0 ? 0 : 98;
}

/* Parts are disjoint and together the whole mask where there are enough processors; else each has
 * one, and all are used. */
static void parts_share_the_mask(void **state) {
    (void)state;
    binding b;
    assert_int_equal(sched_getaffinity(0, sizeof b.before, &b.before), 0);
    b.after =
        mmap(NULL, sizeof *b.after, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(b.after, MAP_FAILED);
    int n_cpus = CPU_COUNT(&b.before);
    for (b.n_parts = 1; b.n_parts <= 2 * n_cpus + 1; b.n_parts++) {
        cpu_set_t seen;
        int n_seen = 0;
        CPU_ZERO(&seen);
        for (b.part = 0; b.part < b.n_parts; b.part++) {
            assert_int_equal(run_in_child(bind_here, &b), 0);
            if (b.n_parts > n_cpus) assert_int_equal(CPU_COUNT(b.after), 1);
            n_seen += CPU_COUNT(b.after);
            CPU_OR(&seen, &seen, b.after);
        }
        assert_true(CPU_EQUAL(&seen, &b.before));
        if (b.n_parts <= n_cpus) assert_int_equal(n_seen, n_cpus);
    }
    munmap(b.after, sizeof *b.after);
}

/* A file of a made-up tree: folder below the root, name, content. */
typedef struct tree_file {
    const char *folder, *name, *text;
} tree_file;

typedef struct quota_case {
    const char *list; /* content of /proc/self/cgroup */
    tree_file files[5];
    int expected;
} quota_case;

static const quota_case cases[] = {
    /* version 2 */
    {"0::/\n", {{"", "cpu.max", "max 100000\n"}}, INT_MAX},
    {"0::/\n", {{"", "cpu.max", "200000 100000\n"}}, 2},
    {"0::/\n", {{"", "cpu.max", "150000 100000\n"}}, 2},
    {"0::/\n", {{"", "cpu.max", "1000 100000\n"}}, 1},
    {"0::/a/b\n", {{"a/b", "cpu.max", "max 100000\n"}, {"a", "cpu.max", "300000 100000\n"}}, 3},
    {"0::/a/b\n",
     {{"a/b", "cpu.max", "400000 100000\n"},
      {"a", "cpu.max", "300000 100000\n"},
      {"", "cpu.max", "500000 100000\n"}},
     3},
    /* the path is the host's, only its root is visible */
    {"0::/docker/1234\n", {{"", "cpu.max", "700000 100000\n"}}, 7},
    {"0::/\n", {{"", "cpu.max", ""}}, INT_MAX},
    {"0::/\n", {{"", "cpu.max", "nonsense"}}, INT_MAX},
    {"0::/\n", {{"", "cpu.max", "100000 0\n"}}, INT_MAX},
    {"0::/\n", {{NULL, NULL, NULL}}, INT_MAX},
    /* version 1 */
    {"4:cpu,cpuacct:/x\n0::/\n",
     {{"cpu/x", "cpu.cfs_quota_us", "250000\n"}, {"cpu/x", "cpu.cfs_period_us", "100000\n"}},
     3},
    {"4:cpuacct,cpu:/x\n",
     {{"cpu/x", "cpu.cfs_quota_us", "-1\n"}, {"cpu/x", "cpu.cfs_period_us", "100000\n"}},
     INT_MAX},
    {"4:cpu:/x/y\n",
     {{"cpu", "cpu.cfs_quota_us", "50000\n"}, {"cpu", "cpu.cfs_period_us", "100000\n"}},
     1},
    {"4:cpuset:/x\n3:cpuacct:/x\n",
     {{"cpu/x", "cpu.cfs_quota_us", "50000\n"}, {"cpu/x", "cpu.cfs_period_us", "100000\n"}},
     INT_MAX},
    {"4:cpu:/x\n", {{"cpu/x", "cpu.cfs_quota_us", "50000\n"}}, INT_MAX},
    /* lines that are none */
    {"", {{NULL, NULL, NULL}}, INT_MAX},
    {"\n:\n::\nabc", {{NULL, NULL, NULL}}, INT_MAX},
};

static void smallest_quota_on_path_counts(void **state) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char root[PATH_MAX / 2], path[PATH_MAX];
        snprintf(root, sizeof root, "%s/%zu", (const char *)*state, i);
        assert_ok(lsi_folder_make(root));
        for (const tree_file *file = cases[i].files; file->name; file++) {
            snprintf(path, sizeof path, "%s/%s", root, file->folder);
            assert_ok(lsi_folder_make(path));
            snprintf(path, sizeof path, "%s/%s/%s", root, file->folder, file->name);
            put_text(path, file->text);
        }
        snprintf(path, sizeof path, "%s/list", root);
        put_text(path, cases[i].list);
        int found = lsi_cpu_quota(path, root);
        if (found != cases[i].expected) print_error("case %zu: %s", i, cases[i].list);
        assert_int_equal(found, cases[i].expected);
    }
}

static void missing_list_limits_nothing(void **state) {
    assert_int_equal(lsi_cpu_quota(in_scratch(state, "none"), *state), INT_MAX);
}

static void very_long_path_is_answered(void **state) {
    static char list[3 * PATH_MAX];
    memset(list, 'a', sizeof list - 1);
    memcpy(list, "0::/", 4);
    put_text(in_scratch(state, "list"), list);
    put_text(in_scratch(state, "cpu.max"), "900000 100000\n");
    assert_int_equal(lsi_cpu_quota(in_scratch(state, "list"), *state), 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(count_is_at_least_one),
        cmocka_unit_test(affinity_to_one_processor_gives_one),
        cmocka_unit_test(parts_share_the_mask),
        cmocka_unit_test(smallest_quota_on_path_counts),
        cmocka_unit_test(missing_list_limits_nothing),
        cmocka_unit_test(very_long_path_is_answered),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
