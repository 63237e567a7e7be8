/* `lockstep generate`: the same text as a model that is asked directly, options that narrow the
 * choice, prompts, the end of a text, and one real model to the byte. */
#include <fcntl.h>
#include <math.h>

#include "base/mem.h"
#include "cli/model_program.h"

/* ---- running ---- */

/* Standard input of the program: a file. */
static int read_from(void *path) {
    int fd = open(path, O_RDONLY);
    return fd >= 0 && dup2(fd, STDIN_FILENO) >= 0 ? 0 : -1;
}

static void generate_from(void **state, const char *input, const char *options,
                          program_result *result) {
    program_words words = {.n = 0};
    char path[PATH_MAX];
    add_split(&words, "generate --threads 1 --model %s/model", (const char *)*state);
    add_split(&words, "%s", options);
    if (input) snprintf(path, sizeof path, "%s/%s", (const char *)*state, input);
    const program_opts opts = {.prepare = input ? read_from : NULL, .context = path};
    program_run(&opts, words.at, result);
}

/* What a call that must succeed prints; free it. */
static char *generate(void **state, const char *options) {
    program_result result;
    generate_from(state, NULL, options, &result);
    assert_ended(&result, 0);
    assert_string_equal(result.err, "");
    char *text = strdup(result.out);
    program_release(&result);
    return text;
}

static void assert_same_text(void **state, const char *a, const char *b, bool same) {
    char *x = generate(state, a), *y = generate(state, b);
    if ((strcmp(x, y) == 0) != same)
        fail_msg("%s and %s give %s:\n%s\n%s", a, b, same ? "different texts" : "the same text", x,
                 y);
    free(x);
    free(y);
}

/* ---- greedy ---- */

/* The likeliest next byte after the last MODEL_SEQ_LEN of them. */
static int32_t next_by_hand(lsi_model *model, lsi_tape *tape, const int32_t *ids, int64_t n) {
    int64_t n_time = n < MODEL_SEQ_LEN ? n : MODEL_SEQ_LEN;
    const lsi_batch batch = {.tokens = ids + n - n_time, .n_batch = 1, .n_time = n_time};
    lsi_tape_reset(tape, false);
    const lsi_tensor *logits = model->class->forward(model, tape, &batch);
    assert_ok(lsi_tape_status(tape));
    const float *last = (const float *)logits->data + (n_time - 1) * model->config.vocab_size;
    int32_t best = 0;
    for (int32_t i = 1; i < 256; i++)
        if (last[i] > last[best]) best = i;
    return best;
}

static void greedy_text_is_the_models_own(void **state) {
    enum { N = 40 };
    int32_t ids[N + 8] = {'A', 'b', ' '};
    char expected[N + 8];
    lsi_model *model;
    lsi_arena *arena;
    lsi_tape *tape;
    char *tokenizer;
    assert_ok(lsi_model_load(in_scratch(state, "model"), &model, &tokenizer));
    assert_ok(lsi_arena_create((size_t)1 << 30, &arena));
    assert_ok(lsi_tape_create(arena, &tape));
    for (int i = 3; i < 3 + N; i++) ids[i] = next_by_hand(model, tape, ids, i);
    for (int i = 0; i < 3 + N; i++) expected[i] = (char)ids[i];
    expected[3 + N] = '\n';
    program_result result;
    program_words words = {.n = 0};
    add_split(&words, "generate --threads 1 --temperature 0 --tokens %d --model %s/model", N,
              (const char *)*state);
    add_words(&words, (const char *const[]){"--prompt", "Ab ", NULL});
    program_run(NULL, words.at, &result);
    assert_ended(&result, 0);
    /* compared up to a zero byte, which a text in memory ends with */
    assert_memory_equal(result.out, expected, strlen(result.out));
    assert_true(strlen(result.out) > 3);
    program_release(&result);
    lsi_tape_destroy(tape);
    lsi_arena_destroy(arena);
    lsi_free(tokenizer);
    lsi_model_destroy(model);
}

static void one_token_to_choose_from_is_the_likeliest(void **state) {
    static const char *const options[] = {"--top-k 1", "--top-p 1e-9", "--temperature 1e-4",
                                          "--temperature 0 --seed 7",
                                          "--temperature 0 --top-k 9 --top-p 0.5"};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        assert_same_text(state, "--temperature 0", options[i], true);
}

/* ---- draws ---- */

static void draws_follow_the_seed_and_the_options_alone(void **state) {
    assert_same_text(state, "--seed 1", "--seed 1", true);
    assert_same_text(state, "--seed 1", "--seed 1 --top-k 0 --top-p 1 --temperature 0.8", true);
    assert_same_text(state, "--seed 1", "--seed 1 --top-k 256", true);
    assert_same_text(state, "--seed 1", "--seed 2", false);
    assert_same_text(state, "--seed 1 --temperature 5", "--seed 1 --temperature 5 --top-p 0.2",
                     false);
    assert_same_text(state, "--seed 1 --temperature 5", "--seed 1 --temperature 5 --top-k 2",
                     false);
    char *longer = generate(state, "--tokens 30"), *shorter = generate(state, "--tokens 10");
    assert_memory_equal(longer, shorter, strlen(shorter) - 1);
    free(longer);
    free(shorter);
}

/* ---- prompts ---- */

static void prompts_come_from_the_command_line_or_from_standard_input(void **state) {
    static const char *const texts[] = {"Hello", "many\nlines\n",
                                        "a long one, longer than the model's window of tokens"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        program_result a, b;
        program_words words = {.n = 0};
        put_text(in_scratch(state, "prompt"), texts[i]);
        generate_from(state, "prompt", "--tokens 20 --prompt -", &a);
        assert_ended(&a, 0);
        add_split(&words, "generate --threads 1 --tokens 20 --model %s/model",
                  (const char *)*state);
        add_words(&words, (const char *const[]){"--prompt", texts[i], NULL});
        program_run(NULL, words.at, &b);
        assert_ended(&b, 0);
        assert_string_equal(a.out, b.out);
        assert_memory_equal(a.out, texts[i], strlen(texts[i]));
        program_release(&a);
        program_release(&b);
    }
}

static void a_long_prompt_is_read_to_its_end(void **state) {
    enum { N = 200001 };
    char *text = malloc(N + 1);
    assert_non_null(text);
    for (int i = 0; i < N; i++) text[i] = (char)('a' + i % 26);
    text[N] = 0;
    put_text(in_scratch(state, "prompt"), text);
    program_result result;
    generate_from(state, "prompt", "--tokens 0 --prompt -", &result);
    assert_ended(&result, 0);
    text[N] = '\n';
    assert_int_equal(strlen(result.out), N + 1);
    assert_memory_equal(result.out, text, N + 1);
    program_release(&result);
    free(text);
}

/* ---- a real model ---- */

/* Words of a run with the Llama of 260,000 parameters; false: its data is not there. */
static bool add_stories(program_words *words) {
    char model[PATH_MAX], tokenizer[PATH_MAX];
    const lsi_model_class *class;
    if (!find_data("stories260K-hf", model) || !find_data("stories260K.tok512.bin", tokenizer))
        return false;
    assert_ok(lsi_model_class_find("llama", &class));
    add_words(words, (const char *const[]){"generate", "--threads", "1", "--temperature", "0",
                                           "--model", model, "--tokenizer", tokenizer, NULL});
    return true;
}

static void stories_are_told_to_the_byte(void **state) {
    (void)state;
    char path[PATH_MAX];
    program_result result;
    program_words words = {.n = 0};
    if (!add_stories(&words) || !find_data("stories260K.greedy200.txt", path)) skip();
    add_split(&words, "--tokens 200");
    program_run(NULL, words.at, &result);
    assert_ended(&result, 0);
    assert_string_equal(result.out, text_of(path));
    program_release(&result);
}

/* The story goes on after its end only when asked. */
static void a_text_ends_where_the_model_ends_it(void **state) {
    (void)state;
    size_t bytes[2];
    for (int ignore = 0; ignore < 2; ignore++) {
        program_result result;
        program_words words = {.n = 0};
        if (!add_stories(&words)) skip();
        add_split(&words, "--tokens 400%s", ignore ? " --ignore-end" : "");
        program_run(NULL, words.at, &result);
        assert_ended(&result, 0);
        bytes[ignore] = strlen(result.out);
        program_release(&result);
    }
    assert_true(bytes[0] < bytes[1]);
}

/* ---- wrong use ---- */

static void spoil_weights(void **state) {
    lsi_model *model = make_byte_model(1);
    lsi_model_values(model, 2)[0] = NAN;
    save_byte_model(model, in_scratch(state, "damaged"));
    lsi_model_destroy(model);
}

static void wrong_requests_are_refused(void **state) {
    spoil_weights(state);
    static const struct {
        const char *options;
        int exit_code;
        const char *said;
    } rows[] = {
        {"--top-p 0", 2, "--top-p"},
        {"--top-p 1.5", 2, "--top-p"},
        {"--top-k -1", 2, "--top-k"},
        {"--temperature -1", 2, "--temperature"},
        {"--prompt=", 2, "--prompt is empty"},
        {"--prompt -", 2, "--prompt is empty"}, /* standard input is /dev/null */
        {"--tokenizer /no/such/file", 2, "/no/such/file"},
        {"--model %s/damaged", 1, "its weights are damaged"},
        {"--model %s/nothing", 2, "nothing/config.json"},
        {"word", 2, "unexpected word"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        program_result result;
        char options[PATH_MAX];
        const char *place = strstr(rows[i].options, "%s");
        if (place)
            snprintf(options, sizeof options, "%.*s%s%s", (int)(place - rows[i].options),
                     rows[i].options, (const char *)*state, place + 2);
        else
            snprintf(options, sizeof options, "%s", rows[i].options);
        generate_from(state, NULL, options, &result);
        assert_refused_with(&result, rows[i].exit_code, (const char *const[]){rows[i].said, NULL});
        program_release(&result);
    }
}

static int make_model_folder(void **state) {
    if (make_scratch(state) != 0) return -1;
    lsi_model *model = make_byte_model(1);
    save_byte_model(model, in_scratch(state, "model"));
    lsi_model_destroy(model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_text_is_the_models_own),
        cmocka_unit_test(one_token_to_choose_from_is_the_likeliest),
        cmocka_unit_test(draws_follow_the_seed_and_the_options_alone),
        cmocka_unit_test(prompts_come_from_the_command_line_or_from_standard_input),
        cmocka_unit_test(a_long_prompt_is_read_to_its_end),
        cmocka_unit_test(stories_are_told_to_the_byte),
        cmocka_unit_test(a_text_ends_where_the_model_ends_it),
        cmocka_unit_test(wrong_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, make_model_folder, remove_scratch);
}
