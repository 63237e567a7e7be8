/* Faults that take longer to try: every few allocations fail, a disk fills up, shared memory of the
 * system is tiny, a worker sleeps. */
#include <errno.h>

#include "cli/faults.h"

/* ---- memory ---- */

typedef struct sweep {
    const char *name;
    void (*add)(program_words *words, void **state);
} sweep;

static void add_training(program_words *words, void **state) {
    add_small_run(words, state);
    add_split(words, "--out %s/hungry --json %s/hungry.json --steps 2 --workers 2",
              (const char *)*state, (const char *)*state);
    add_split(words, "--val-fraction 0.1 --dropout 0.1 --trace %s/hungry.trace",
              (const char *)*state);
}

static void add_generating(program_words *words, void **state) {
    add_split(words, "generate --model %s/fed/model --tokens 3", (const char *)*state);
}

/* Exit code of a run whose n-th allocation (of every process) fails. */
static int run_with_failure(void **state, const sweep *s, int n) {
    char variable[64];
    const char *const environment[] = {variable, NULL};
    program_opts opts = {.environment = environment};
    program_words words = {.n = 0};
    program_result result;
    snprintf(variable, sizeof variable, "LOCKSTEP_FAIL_ALLOC=%d", n);
    s->add(&words, state);
    program_run(&opts, words.at, &result);
    int code = result.exit_code;
    if (code != 0 && code != 1 && code != 2)
        fail_msg("%s, allocation %d: exit code %d\n%s", s->name, n, code, result.err);
    if (code != 0) {
        if (!strstr(result.err, "failed on request") && !strstr(result.err, "memory ran out"))
            fail_msg("%s, allocation %d: not about memory:\n%s", s->name, n, result.err);
        assert_refused_with(&result, code, (const char *const[]){NULL});
    }
    assert_ended(&result, code);
    program_release(&result);
    return code;
}

/* All of the first ones, where set-up is, then ever fewer, until a run needs less than that. */
static void any_allocation_that_fails_is_answered(void **state) {
    static const sweep sweeps[] = {{"train", add_training}, {"generate", add_generating}};
    json_decref(train(state, "fed", "--steps 1"));
    for (size_t i = 0; i < sizeof sweeps / sizeof sweeps[0]; i++) {
        int n = 1, n_failed = 0;
        for (; run_with_failure(state, &sweeps[i], n) != 0; n += 1 + n / 16) n_failed++;
        assert_true(n_failed > 20);
    }
}

/* ---- disks ---- */

static void mount_disk(void **state, const char *name, const char *options) {
    if (!enter_private_mounts()) skip(); /* needs root */
    assert_true(mkdir(in_scratch(state, name), 0777) == 0 || errno == EEXIST);
    assert_int_equal(mount("tmpfs", in_scratch(state, name), "tmpfs", 0, options), 0);
}

/* Fills a disk but for some bytes. */
static void fill_disk(void **state, const char *file, size_t left_bytes) {
    static const char block[4096] = "filler";
    int fd = open(in_scratch(state, file), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_true(fd >= 0);
    off_t used = 0;
    for (ssize_t n; (n = write(fd, block, sizeof block)) > 0;) used += n;
    assert_int_equal(errno, ENOSPC);
    assert_true(used > (off_t)left_bytes);
    assert_int_equal(ftruncate(fd, used - (off_t)left_bytes), 0);
    assert_int_equal(close(fd), 0);
}

static void run_on_disk(void **state, const char *options, program_result *result) {
    program_words words = {.n = 0};
    add_small_run(&words, state);
    add_split(&words, "--out %s/disk/run --n-embd 64 %s", (const char *)*state, options);
    program_run(NULL, words.at, result);
}

static void a_full_disk_costs_the_new_model_and_not_the_old_one(void **state) {
    program_result result;
    mount_disk(state, "disk", "size=1024k");
    run_on_disk(state, "--steps 3 --workers 2", &result);
    assert_ended(&result, 0);
    program_release(&result);
    file_bytes old = bytes_of(state, "disk/run/model/model.safetensors"),
               old_config = bytes_of(state, "disk/run/model/config.json");
    fill_disk(state, "disk/filler", 64 << 10);

    run_on_disk(state, "--steps 3 --workers 2 --seed 2", &result);
    assert_refused_with(&result, 1,
                        (const char *const[]){"rank 0", "disk/run/model/model.safetensors",
                                              "missing", "free some space",
                                              "No space left on device", NULL});
    program_release(&result);
    assert_no_temporary_files(state, "disk");
    assert_int_not_equal(access(in_scratch(state, "disk/run/model/model.safetensors"), F_OK), 0);
    assert_unchanged(state, "disk/run/model.1/model.safetensors", old);
    assert_unchanged(state, "disk/run/model.1/config.json", old_config);
    assert_loads(state, "disk/run/model.1");

    /* with room again the next run saves */
    assert_int_equal(unlink(in_scratch(state, "disk/filler")), 0);
    run_on_disk(state, "--steps 3 --workers 2", &result);
    assert_ended(&result, 0);
    program_release(&result);
    assert_unchanged(state, "disk/run/model/model.safetensors", old);
    assert_loads(state, "disk/run/model");
    lsi_free(old.data);
    lsi_free(old_config.data);
    assert_int_equal(umount(in_scratch(state, "disk")), 0);
}

/* Not one page left: refused before the start. A few left: metrics or the model fail, never both
 * silently. */
static void any_amount_of_room_is_answered(void **state) {
    mount_disk(state, "disk", "size=512k");
    for (size_t left_bytes = 0; left_bytes <= (240 << 10); left_bytes += 48 << 10) {
        program_result result;
        fill_disk(state, "disk/filler", left_bytes);
        run_on_disk(state, "--steps 300 --workers 2", &result);
        if (result.exit_code != 0)
            assert_refused_with(&result, result.exit_code == 2 ? 2 : 1,
                                (const char *const[]){"disk/run", "No space left on device", NULL});
        assert_ended(&result, result.exit_code);
        assert_no_temporary_files(state, "disk");
        program_release(&result);
        assert_int_equal(unlink(in_scratch(state, "disk/filler")), 0);
        if (access(in_scratch(state, "disk/run"), F_OK) == 0) remove_in_scratch(state, "disk/run");
    }
    assert_int_equal(umount(in_scratch(state, "disk")), 0);
}

/* The timeline is larger than the disk: no half file under its name, nor under another. */
static void a_full_disk_leaves_no_half_timeline(void **state) {
    program_result result;
    program_words words = {.n = 0};
    mount_disk(state, "disk", "size=64k");
    add_small_run(&words, state);
    add_split(&words, "--out %s/apart --steps 30 --workers 2 --trace %s/disk/trace.json",
              (const char *)*state, (const char *)*state);
    program_run(NULL, words.at, &result);
    assert_refused_with(&result, 1,
                        (const char *const[]){"disk/trace.json", "No space left on device", NULL});
    program_release(&result);
    assert_int_not_equal(access(in_scratch(state, "disk/trace.json"), F_OK), 0);
    assert_int_not_equal(access(in_scratch(state, "disk/trace.json.part"), F_OK), 0);
    assert_int_equal(umount(in_scratch(state, "disk")), 0);
}

static void a_read_only_folder_is_refused(void **state) {
    program_result result;
    mount_disk(state, "disk", "size=64k");
    assert_int_equal(mount(NULL, in_scratch(state, "disk"), NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    run_on_disk(state, "--steps 1", &result);
    assert_refused_with(&result, 2, (const char *const[]){"--out", "Read-only file system", NULL});
    program_release(&result);
    assert_int_equal(umount(in_scratch(state, "disk")), 0);
}

/* ---- shared memory ---- */

/* In a container /dev/shm may be tiny; ours is nobody's name in it. */
static void shared_memory_of_the_system_is_not_needed(void **state) {
    static const struct {
        const char *options;
        unsigned long flags;
    } rows[] = {{"size=64k", 0}, {"size=4k", MS_RDONLY}};
    json_t *expected = train(state, "roomy",
                             "--steps 5 --workers 3 --batch-size 9 "
                             "--micro-batch-size 1");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!enter_private_mounts()) skip(); /* needs root */
        if (mount("tmpfs", "/dev/shm", "tmpfs", rows[i].flags, rows[i].options) != 0) skip();
        json_t *r = train(state, "narrow",
                          "--steps 5 --workers 3 --batch-size 9 "
                          "--micro-batch-size 1");
        assert_same_weights(expected, r, rows[i].options);
        json_decref(r);
        assert_int_equal(umount("/dev/shm"), 0);
    }
    json_decref(expected);
}

/* ---- a worker that sleeps ---- */

static void a_worker_that_slept_goes_on(void **state) {
    enum { SLEEP_MS = 3000 };
    static const char options[] = "--steps 3000 --workers 2 --batch-size 8 --micro-batch-size 1 "
                                  "--log-every 10";
    json_t *expected = train(state, "awake", "%s", options);
    for (int rank = 0; rank < 2; rank++) {
        pid_t pids[2];
        program_result result;
        program *p = start_training(state, NULL, "asleep", options);
        program_await_workers(p, 2, pids);
        program_await_out(p, " 1/3000 ");
        kill(pids[rank], SIGSTOP);
        lsi_sleep_ms(SLEEP_MS);
        assert_true(process_lives(program_pid(p)));
        kill(pids[rank], SIGCONT);
        program_finish(p, &result);
        assert_ended(&result, 0);
        program_release(&result);
        json_t *r = result_of(state, "asleep");
        assert_same_weights(expected, r, "slept");
        assert_int_equal(json_array_size(json_object_get(r, "loss")), 3000);
        json_decref(r);
    }
    json_decref(expected);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_allocation_that_fails_is_answered),
        cmocka_unit_test(a_full_disk_costs_the_new_model_and_not_the_old_one),
        cmocka_unit_test(any_amount_of_room_is_answered),
        cmocka_unit_test(a_full_disk_leaves_no_half_timeline),
        cmocka_unit_test(a_read_only_folder_is_refused),
        cmocka_unit_test(shared_memory_of_the_system_is_not_needed),
        cmocka_unit_test(a_worker_that_slept_goes_on),
    };
    return cmocka_run_group_tests(tests, make_text, remove_scratch);
}
