/* `lockstep eval`: the numbers are those of the model asked sequence by sequence, each sequence
 * counts once whatever the number of workers and the size of batches, and one real model. */
#include <math.h>

#include "cli/model_program.h"
#include "cli/train_program.h"

/* 41 sequences of 12 and a rest: batches of 8, 4 and 3 leave a smaller one at the end. */
enum { N_BYTES = 500, N_SAMPLES = (N_BYTES - 1) / MODEL_SEQ_LEN };

/* ---- running ---- */

/* Result of a call that must succeed; release it with json_decref. */
__attribute__((format(printf, 2, 3))) static json_t *eval(void **state, const char *format, ...) {
    program_words words = {.n = 0};
    program_result result;
    char options[1024];
    va_list values;
    va_start(values, format);
    vsnprintf(options, sizeof options, format, values);
    va_end(values);
    add_split(&words, "eval --model %s/model --data %s/text", (const char *)*state,
              (const char *)*state);
    add_split(&words, "--json %s/eval.json %s", (const char *)*state, options);
    program_run(NULL, words.at, &result);
    if (result.exit_code != 0) print_error("options: %s\n", options);
    assert_ended(&result, 0);
    assert_string_equal(result.err, "");
    assert_non_null(strstr(result.out, "perplexity"));
    program_release(&result);
    return read_json(state, "eval.json");
}

/* ---- by hand ---- */

typedef struct by_hand {
    lsi_model *model;
    lsi_arena *arena;
    lsi_tape *tape;
    int32_t ids[N_BYTES];
    long double loss;
    int n_right, n_targets;
} by_hand;

static void open_by_hand(void **state, by_hand *h) {
    char *text, *tokenizer;
    size_t bytes;
    assert_ok(lsi_model_load(in_scratch(state, "model"), &h->model, &tokenizer));
    lsi_free(tokenizer);
    assert_ok(lsi_arena_create((size_t)1 << 30, &h->arena));
    assert_ok(lsi_tape_create(h->arena, &h->tape));
    assert_ok(lsi_file_read(in_scratch(state, "text"), 1 << 20, &text, &bytes));
    assert_int_equal(bytes, N_BYTES);
    for (int i = 0; i < N_BYTES; i++) h->ids[i] = (unsigned char)text[i];
    lsi_free(text);
}

static void close_by_hand(by_hand *h) {
    lsi_tape_destroy(h->tape);
    lsi_arena_destroy(h->arena);
    lsi_model_destroy(h->model);
}

static void add_row(by_hand *h, const float *logits, int32_t target, int32_t n) {
    long double sum = 0;
    int32_t best = 0;
    for (int32_t i = 0; i < n; i++) {
        if (logits[i] > logits[best]) best = i;
        sum += expl((long double)logits[i] - (long double)logits[target]);
    }
    h->loss += logl(sum);
    h->n_right += best == target;
    h->n_targets++;
}

/* One sequence at a time, as --batch-size 1 does. */
static void measure_by_hand(by_hand *h, int64_t n_time) {
    for (int64_t at = 0; at + n_time < N_BYTES; at += n_time) {
        const lsi_batch batch = {.tokens = h->ids + at, .n_batch = 1, .n_time = n_time};
        lsi_tape_reset(h->tape, false);
        const lsi_tensor *logits = h->model->class->forward(h->model, h->tape, &batch);
        assert_ok(lsi_tape_status(h->tape));
        for (int64_t t = 0; t < n_time; t++)
            add_row(h, (const float *)logits->data + t * 256, h->ids[at + t + 1], 256);
    }
}

static void numbers_are_those_of_the_model(void **state) {
    static const int lengths[] = {MODEL_SEQ_LEN, 1, 5, 11};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        by_hand h = {0};
        open_by_hand(state, &h);
        measure_by_hand(&h, lengths[i]);
        json_t *result = eval(state, "--batch-size 1 --seq-len %d", lengths[i]);
        double loss = (double)(h.loss / h.n_targets), found = number_of(result, "loss");
        /* sums of 500 terms in double */
        assert_true(fabs(found - loss) <= 500 * 2.3e-16 * loss);
        assert_true(number_of(result, "perplexity") == exp(found));
        assert_true(number_of(result, "accuracy") == (double)h.n_right / h.n_targets);
        assert_int_equal(number_of(result, "n_right"), h.n_right);
        assert_int_equal(number_of(result, "n_targets"), h.n_targets);
        assert_int_equal(number_of(result, "n_samples"), h.n_targets / lengths[i]);
        assert_string_equal(text_in(result, "tokenizer"), "byte");
        assert_string_equal(text_in(result, "class"), "gpt2");
        json_decref(result);
        close_by_hand(&h);
    }
}

/* ---- workers and batches ---- */

static void the_number_of_workers_changes_nothing(void **state) {
    static const int workers[] = {1, 2, 3, 5, 8}, sizes[] = {0, 3, 4, 40, 41, 50};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        double loss = 0, n_right = 0;
        for (size_t w = 0; w < sizeof workers / sizeof workers[0]; w++) {
            json_t *result = eval(state, "--workers %d --batch-size %d", workers[w], sizes[s]);
            assert_int_equal(number_of(result, "world_size"), workers[w]);
            assert_int_equal(number_of(result, "n_samples"), N_SAMPLES);
            assert_int_equal(number_of(result, "n_targets"), N_SAMPLES * MODEL_SEQ_LEN);
            if (w == 0) {
                loss = number_of(result, "loss");
                n_right = number_of(result, "n_right");
            }
            assert_true(number_of(result, "loss") == loss);
            assert_true(number_of(result, "n_right") == n_right);
            json_decref(result);
        }
    }
}

/* ---- images ---- */

enum { SIDE = 8, N_IMAGES = 21, N_CLASSES = 3 };

static void put_number(FILE *file, uint32_t number) {
    for (int shift = 24; shift >= 0; shift -= 8) fputc((int)(number >> shift & 255), file);
}

static int pixel_of(int image, int i) {
    return (image * 31 + i * i * 7) % 256;
}

static int class_of(int image) {
    return image % N_CLASSES;
}

/* Training images are there, and others. */
static void put_images(void **state, const char *start, int n, int shift) {
    char name[64];
    snprintf(name, sizeof name, "images/%s-images-idx3-ubyte", start);
    FILE *images = fopen(in_scratch(state, name), "wb");
    snprintf(name, sizeof name, "images/%s-labels-idx1-ubyte", start);
    FILE *labels = fopen(in_scratch(state, name), "wb");
    assert_non_null(images);
    assert_non_null(labels);
    const uint32_t heads[] = {0x803, (uint32_t)n, SIDE, SIDE};
    for (int i = 0; i < 4; i++) put_number(images, heads[i]);
    put_number(labels, 0x801);
    put_number(labels, (uint32_t)n);
    for (int image = 0; image < n; image++) {
        for (int i = 0; i < SIDE * SIDE; i++) fputc(pixel_of(image + shift, i), images);
        fputc(class_of(image + shift), labels);
    }
    assert_int_equal(fclose(images), 0);
    assert_int_equal(fclose(labels), 0);
}

static lsi_model *make_image_model(const char *class_name) {
    const lsi_model_config config = {.n_layer = 1,
                                     .n_embd = 8,
                                     .height = SIDE,
                                     .width = SIDE,
                                     .n_channels = 1,
                                     .n_classes = N_CLASSES,
                                     .norm_epsilon = 1e-5};
    const lsi_model_class *class;
    lsi_model *model;
    assert_ok(lsi_model_class_find(class_name, &class));
    assert_ok(lsi_model_create(class, &config, &model));
    lsi_model_init(model, 3);
    return model;
}

static void measure_images(by_hand *h) {
    assert_ok(lsi_arena_create((size_t)1 << 30, &h->arena));
    assert_ok(lsi_tape_create(h->arena, &h->tape));
    for (int image = 0; image < N_IMAGES; image++) {
        float pixels[SIDE * SIDE];
        for (int i = 0; i < SIDE * SIDE; i++) pixels[i] = (float)pixel_of(image, i) / 255.0f;
        const lsi_batch batch = {.images = pixels, .n_batch = 1, .n_time = 1};
        lsi_tape_reset(h->tape, false);
        const lsi_tensor *logits = h->model->class->forward(h->model, h->tape, &batch);
        assert_ok(lsi_tape_status(h->tape));
        add_row(h, logits->data, class_of(image), N_CLASSES);
    }
}

static void test_images_are_measured_once_each(void **state) {
    static const char *const classes[] = {"mlp", "convnet"};
    assert_int_equal(mkdir(in_scratch(state, "images"), 0777), 0);
    put_images(state, "train", 5, 100);
    put_images(state, "t10k", N_IMAGES, 0);
    for (int i = 0; i < 2; i++) {
        by_hand h = {.model = make_image_model(classes[i])};
        assert_ok(lsi_model_save(h.model, NULL, in_scratch(state, "image-model")));
        measure_images(&h);
        double loss = (double)(h.loss / h.n_targets);
        for (int workers = 1; workers <= 4; workers += 3) {
            json_t *result =
                eval(state, "--batch-size 1 --workers %d --model %s/image-model --data %s/images",
                     workers, (const char *)*state, (const char *)*state);
            assert_true(fabs(number_of(result, "loss") - loss) <= N_IMAGES * 2.3e-16 * loss);
            assert_int_equal(number_of(result, "n_right"), h.n_right);
            assert_int_equal(number_of(result, "n_targets"), N_IMAGES);
            assert_string_equal(text_in(result, "class"), classes[i]);
            json_decref(result);
        }
        close_by_hand(&h);
    }
}

/* ---- a real model ---- */

/* golden.json's tokens as a file of 16-bit ids; the loss it gives is of float64 arithmetic. */
static void a_real_model_has_its_known_loss(void **state) {
    char model[PATH_MAX], golden_path[PATH_MAX];
    const lsi_model_class *class;
    if (!find_data("stories260K-hf", model) ||
        !find_data("stories260K-hf/golden.json", golden_path))
        skip();
    assert_ok(lsi_model_class_find("llama", &class));
    json_t *golden;
    assert_ok(lsi_file_read_json(golden_path, 1 << 20, &golden));
    const json_t *tokens = json_object_get(golden, "tokens");
    FILE *file = fopen(in_scratch(state, "story.bin"), "wb");
    assert_non_null(file);
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        uint16_t id = (uint16_t)json_integer_value(json_array_get(tokens, i));
        assert_int_equal(fwrite(&id, sizeof id, 1, file), 1);
    }
    assert_int_equal(fclose(file), 0);
    json_t *result = eval(state, "--model %s --data %s/story.bin --seq-len %d", model,
                          (const char *)*state, (int)json_array_size(tokens) - 1);
    assert_true(fabs(number_of(result, "loss") - number_of(golden, "mean_next_token_loss")) < 1e-5);
    assert_true(json_is_null(json_object_get(result, "tokenizer")));
    json_decref(result);
    json_decref(golden);
}

/* ---- wrong use ---- */

static void put_other_model(void **state) {
    lsi_model *model = make_image_model("mlp"), *other;
    lsi_model_config config = model->config;
    config.width++;
    assert_ok(lsi_model_create(model->class, &config, &other));
    assert_ok(lsi_model_save(other, NULL, in_scratch(state, "other-model")));
    lsi_model_destroy(other);
    lsi_model_destroy(model);
}

static void wrong_requests_are_refused(void **state) {
    const char *folder = *state;
    lsi_model *damaged = make_byte_model(1);
    lsi_model_values(damaged, 2)[0] = NAN;
    save_byte_model(damaged, in_scratch(state, "damaged"));
    lsi_model_destroy(damaged);
    put_text(in_scratch(state, "short"), "short");
    put_other_model(state);
    static const struct {
        const char *options; /* each % is the test's folder */
        int exit_code;
        const char *said;
    } rows[] = {
        {"", 2, "--model FOLDER"},
        {"--model %/model", 2, "--data FILE"},
        {"--model %/none --data %/text", 2, "/none/config.json"},
        {"--model %/model --data %/none", 2, "/none"},
        {"--model %/model --data %/text --seq-len 13", 2, "takes at most 12 tokens"},
        {"--model %/model --data %/text --workers 0", 2, "--workers"},
        {"--model %/model --data %/text --batch-size -1", 2, "--batch-size"},
        {"--model %/model --data %/text --tokenizer /no/such", 2, "/no/such"},
        {"--model %/model --data %/text --json /no/such/file", 1, "/no/such/file"},
        {"--model %/model --data %/text word", 2, "unexpected word"},
        {"--model %/model --data %/images", 2, "/images has images, the gpt2 model"},
        {"--model %/image-model --data %/text", 2, "/text has no images, the convnet model"},
        {"--model %/other-model --data %/images", 2, "images of 8 x 8 x 1 in 3 classes"},
        {"--model %/model --data %/short", 1, "/short"},
        {"--model %/damaged --data %/text", 1, "the loss of sample 0 is"},
        {"--model %/damaged --data %/text --workers 3", 1, "the weights are damaged"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char options[4096];
        size_t used = 0;
        for (const char *c = rows[i].options; *c; c++)
            used += (size_t)snprintf(options + used, sizeof options - used, "%.*s",
                                     *c == '%' ? 1000 : 1, *c == '%' ? folder : c);
        options[used] = 0;
        program_words words = {.n = 0};
        program_result result;
        add_split(&words, "eval %s", options);
        program_run(NULL, words.at, &result);
        if (result.exit_code != rows[i].exit_code)
            print_error("options: %s\n%s", options, result.err);
        assert_refused_with(&result, rows[i].exit_code, (const char *const[]){rows[i].said, NULL});
        program_release(&result);
    }
}

static int make_files(void **state) {
    if (make_scratch(state) != 0) return -1;
    lsi_model *model = make_byte_model(1);
    save_byte_model(model, in_scratch(state, "model"));
    lsi_model_destroy(model);
    write_sentences(in_scratch(state, "text"), N_BYTES, 1);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_the_model),
        cmocka_unit_test(the_number_of_workers_changes_nothing),
        cmocka_unit_test(test_images_are_measured_once_each),
        cmocka_unit_test(a_real_model_has_its_known_loss),
        cmocka_unit_test(wrong_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, make_files, remove_scratch);
}
