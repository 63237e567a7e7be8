/* What `lockstep version` and the head of a run in bfloat16 say about products: they must name the
 * way that products really take, because it decides how fast the run is. */
#include "cli/bf16_products.h"
#include "cli/train_program.h"
#include "tensor/gemm.h"

/* oneDNN as on a processor of 2013; the name of the variable differs between its versions. CBLAS
 * has no products of bfloat16 on any. */
static const char *const old_processor[] = {"ONEDNN_MAX_CPU_ISA=AVX2", "DNNL_MAX_CPU_ISA=AVX2",
                                            NULL};
static const char widened[] = "in float32 after widening: this processor has no bfloat16 "
                              "instructions, or the library does not know them";

typedef struct row {
    const char *name;
    const char *const *environment;
    const char *way; /* NULL: as in this process */
} row;

static const row rows[] = {{"this processor", NULL, NULL}, {"old", old_processor, widened}};

static const char *way_of(const row *r) {
    return r->way ? r->way : bf16_products_in_words();
}

static void assert_has_line(const char *out, const char *name, const char *head, const char *rest) {
    char line[256];
    snprintf(line, sizeof line, "\n%s%s\n", head, rest);
    if (!strstr(out, line))
        fail_msg("%s: expected the line \"%s%s\" in\n%s", name, head, rest, out);
}

static void version_says_how_products_run(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *const words[] = {"version", NULL};
        const program_opts opts = {.environment = rows[i].environment};
        program_result result;
        program_run(&opts, words, &result);
        assert_ended(&result, 0);
        assert_has_line(result.out, rows[i].name, "matrix products  ", lsi_gemm_library());
        assert_has_line(result.out, rows[i].name, "bf16 products    ", way_of(&rows[i]));
        program_release(&result);
    }
}

static void training_in_bf16_says_how_products_run(void **state) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const program_opts opts = {.environment = rows[i].environment};
        program_result result;
        program_finish(start_training(state, &opts, "bf16", "--dtype bf16 --steps 3"), &result);
        assert_ended(&result, 0);
        assert_has_line(result.out, rows[i].name, "bf16: products ", way_of(&rows[i]));
        program_release(&result);
    }
}

static void training_in_f32_does_not_speak_of_bf16(void **state) {
    program_result result;
    program_finish(start_training(state, NULL, "f32", "--steps 3"), &result);
    assert_ended(&result, 0);
    assert_null(strstr(result.out, "bf16"));
    program_release(&result);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_says_how_products_run),
        cmocka_unit_test(training_in_bf16_says_how_products_run),
        cmocka_unit_test(training_in_f32_does_not_speak_of_bf16),
    };
    return cmocka_run_group_tests_name("cli.version", tests, make_text, remove_scratch);
}
