/* The memory table of a run: kinds add up to what the system measured at peak, within 5 %, for
 * models small and larger, by workers and threads, with and without the copies that
 * --reproducible keeps. Under sanitizers the system counts their shadow memory too, so there is
 * nothing to compare. */
#include "harness/harness.h"

#include <math.h>

#include <jansson.h>

#include "harness/program.h"
#include "harness/scratch.h"
#include "harness/text.h"

static const char *const configurations[] = {
    "--workers 1 --threads 1",
    "--workers 1 --threads 2",
    "--workers 2 --n-embd 256 --n-head 8 --seq-len 256",
    "--workers 4 --micro-batch-size 2 --reproducible",
    "--workers 2 --n-layer 6 --n-embd 256 --vocab-size 5000 --batch-size 4",
};

static void check_rank(const char *configuration, const json_t *row) {
    double sum = 0;
    const char *kind;
    json_t *bytes;
    json_object_foreach(json_object_get(row, "peak_bytes"), kind, bytes) {
        assert_true(json_integer_value(bytes) >= 0);
        sum += (double)json_integer_value(bytes);
    }
    double measured = (double)json_integer_value(json_object_get(row, "peak_rss_bytes"));
    assert_true(measured > 0);
    if (fabs(sum / measured - 1) > 0.05)
        fail_msg("%s: rank %lld: kinds add up to %.0f bytes, the system measured %.0f (%.1f %%)",
                 configuration, (long long)json_integer_value(json_object_get(row, "rank")), sum,
                 measured, 100 * sum / measured);
}

static void kinds_add_up_to_the_measured_peak(void **state) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    const char *folder = *state, *text = in_scratch(state, "text");
    const char *json = in_scratch(state, "json");
    write_sentences(text, 200000, 1);
    for (size_t c = 0; c < sizeof configurations / sizeof configurations[0]; c++) {
        program_words words = {0};
        add_split(&words, "train --data %s --out %s/run --json %s --steps 2 --eval-samples 1 %s",
                  text, folder, json, configurations[c]);
        program_result result;
        program_run(NULL, words.at, &result);
        assert_ended(&result, 0);
        program_release(&result);
        json_t *all = json_load_file(json, 0, NULL), *row;
        assert_non_null(all);
        size_t r;
        json_array_foreach(json_object_get(all, "ranks"), r, row)
            check_rank(configurations[c], row);
        json_decref(all);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(kinds_add_up_to_the_measured_peak, make_scratch,
                                        remove_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
