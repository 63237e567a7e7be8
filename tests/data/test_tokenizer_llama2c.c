/* llama2.c's tokenizer: the real one of 512 tokens, one made for the test against llama2.c's own
 * way of encoding (all pairs again after each merge), and files that lie. */
#include "data/token_tests.h"

#include <math.h>

#include "base/rng.h"

/* ---- writing such files ---- */

typedef struct llama_file {
    char *data;
    size_t bytes;
    int n;
    struct {
        char text[32];
        float score;
    } tokens[1024];
} llama_file;

static void add_token(llama_file *f, const char *text, float score) {
    snprintf(f->tokens[f->n].text, sizeof f->tokens[0].text, "%s", text);
    f->tokens[f->n++].score = score;
}

/* <unk>, the two that begin and end, and the bytes. */
static void add_fixed(llama_file *f) {
    static const char *const special[] = {"<unk>", "\n<s>\n", "\n</s>\n"};
    char name[8];
    for (int i = 0; i < 3; i++) add_token(f, special[i], 0);
    for (int i = 0; i < 256; i++) {
        snprintf(name, sizeof name, "<0x%02X>", i);
        add_token(f, name, 0);
    }
}

static void put(llama_file *f, const void *data, size_t bytes) {
    f->data = realloc(f->data, f->bytes + bytes + 1);
    memcpy(f->data + f->bytes, data, bytes);
    f->bytes += bytes;
}

static void write_file(llama_file *f) {
    int32_t longest = 31;
    f->bytes = 0;
    put(f, &longest, sizeof longest);
    for (int i = 0; i < f->n; i++) {
        int32_t length = (int32_t)strlen(f->tokens[i].text);
        put(f, &f->tokens[i].score, sizeof f->tokens[i].score);
        put(f, &length, sizeof length);
        put(f, f->tokens[i].text, (size_t)length);
    }
}

static ls_status create_llama(const llama_file *f, lsi_tokenizer **tokenizer) {
    return create_from("tokenizer.bin", f->data, f->bytes, tokenizer);
}

static lsi_tokenizer *make_llama(llama_file *f) {
    lsi_tokenizer *tokenizer;
    write_file(f);
    assert_ok(create_llama(f, &tokenizer));
    return tokenizer;
}

/* ---- the real one ---- */

static void real_tokenizer_encodes_and_decodes(void **state) {
    (void)state;
    char path[PATH_MAX];
    if (!find_data("stories260K.tok512.bin", path)) skip();
    lsi_tokenizer *tokenizer = tokenizer_of(path);
    assert_string_equal(lsi_tokenizer_name(tokenizer), "llama2c");
    assert_int_equal(lsi_tokenizer_vocab_size(tokenizer), 512);
    assert_int_equal(lsi_tokenizer_begin_id(tokenizer), 1);
    assert_int_equal(lsi_tokenizer_end_id(tokenizer), 2);
    assert_encodes_text(tokenizer, "Once upon a time, there was a little girl",
                        IDS(403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421));
    lsi_tokenizer_destroy(tokenizer);
}

/* ---- a small one ---- */

static void add_small(llama_file *f) {
    add_fixed(f);                 /* 0 … 258 */
    add_token(f, " ", -1e9f);     /* 259 */
    add_token(f, "a", -1);        /* 260 */
    add_token(f, "b", -1);        /* 261 */
    add_token(f, "\xC3\xA9", -1); /* 262: e with acute accent */
    add_token(f, " a", -2);       /* 263 */
    add_token(f, "ab", 3);        /* 264 */
    add_token(f, "aba", 1);       /* 265 */
    add_token(f, "bb", 3);        /* 266 */
    add_token(f, "  ", -5);       /* 267 */
    add_token(f, "aab", -2e10f);  /* 268: too bad a score to be made */
}

static void best_scores_are_merged_first(void **state) {
    (void)state;
    llama_file f = {0};
    add_small(&f);
    lsi_tokenizer *t = make_llama(&f);
    assert_encodes_text(t, "", IDS(-1));
    assert_encodes_text(t, "a", IDS(263));
    assert_encodes_text(t, "b", IDS(259, 261));
    assert_encodes_text(t, "ab", IDS(259, 264));
    assert_encodes_text(t, "abb", IDS(259, 264, 261)); /* ab and bb are as good: the left one */
    assert_encodes_text(t, "bbb", IDS(259, 266, 261));
    assert_encodes_text(t, "aba", IDS(259, 265));
    assert_encodes_text(t, "aab", IDS(263, 264));
    assert_encodes_text(t, " a", IDS(259, 263)); /* " a" scores better than two spaces */
    assert_encodes_text(t, "  b", IDS(267, 259, 261));
    assert_encodes_text(t, "b ab", IDS(259, 261, 259, 264));
    /* bytes where there is no token: a line break, another letter, no UTF-8, cut off UTF-8, zero */
    assert_encodes_text(t, "a\nc", IDS(263, 3 + '\n', 3 + 'c'));
    assert_encodes_text(t, "\xC3\xA9\xC3", IDS(259, 262, 3 + 0xC3));
    assert_encodes_text(t,
                        "\xC3"
                        "a",
                        IDS(259, 3 + 0xC3, 260));
    assert_encodes(t, "\0", 1, IDS(259, 3));
    assert_encodes_text(t, "\x80\x80\x80\x80\x80", IDS(259, 131, 131, 131, 131, 131));
    lsi_tokenizer_destroy(t);
    free(f.data);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void space_before_a_text_is_dropped_again(void **state) {
    (void)state;
    llama_file f = {0};
    size_t bytes;
    add_small(&f);
    lsi_tokenizer *t = make_llama(&f);
    static const struct {
        int32_t previous, id;
        const char *text;
    } rows[] = {
        {-1, 263, "a"},    {1, 263, "a"},  {2, 263, " a"},     {263, 263, " a"},
        {1, 259, ""},      {1, 267, " "},  {260, 259, " "},    {-1, 3 + '\n', "\n"},
        {1, 3 + ' ', " "}, {-1, 260, "a"}, {-1, 1, "\n<s>\n"}, {-1, 0, "<unk>"},
        {-1, 269, ""},     {-1, -1, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *text = lsi_tokenizer_decode(t, rows[i].previous, rows[i].id, &bytes);
        assert_int_equal(bytes, strlen(rows[i].text));
        assert_memory_equal(text, rows[i].text, bytes);
    }
    assert_ok(lsi_tokenizer_save(t, scratch));
    lsi_tokenizer_destroy(t);
    t = tokenizer_of(scratch);
    assert_encodes_text(t, "aba", IDS(259, 265));
    lsi_tokenizer_destroy(t);
    free(f.data);
}

/* ---- llama2.c's own way ---- */

static int32_t find_slowly(const llama_file *f, const char *text) {
    for (int32_t i = 0; i < f->n; i++)
        if (strcmp(f->tokens[i].text, text) == 0) return i;
    return -1;
}

static bool is_continuation(char c) {
    return ((unsigned char)c & 0xC0) == 0x80;
}

static int64_t spell_slowly(const llama_file *f, const char *text, int32_t *ids) {
    int64_t n = 0;
    if (text[0]) ids[n++] = find_slowly(f, " ");
    while (*text) {
        char one[8] = {0};
        int length = 1;
        while (length < 4 && is_continuation(text[length])) length++;
        memcpy(one, text, (size_t)length);
        int32_t id = find_slowly(f, one);
        if (id >= 0) ids[n++] = id;
        for (int i = 0; id < 0 && i < length; i++) ids[n++] = 3 + (unsigned char)text[i];
        text += length;
    }
    return n;
}

static int64_t encode_slowly(const llama_file *f, const char *text, int32_t *ids) {
    int64_t n = spell_slowly(f, text, ids);
    for (;;) {
        float best_score = -1e10f;
        int32_t best = -1;
        int64_t at = 0;
        for (int64_t i = 0; i + 1 < n; i++) {
            char both[64];
            snprintf(both, sizeof both, "%s%s", f->tokens[ids[i]].text, f->tokens[ids[i + 1]].text);
            int32_t id = find_slowly(f, both);
            if (id < 0 || !(f->tokens[id].score > best_score)) continue;
            best_score = f->tokens[id].score;
            best = id;
            at = i;
        }
        if (best < 0) return n;
        ids[at] = best;
        memmove(&ids[at + 1], &ids[at + 2], (size_t)(n - at - 2) * sizeof *ids);
        n--;
    }
}

/* Tokens with spaces inside, with equal scores, and joined from the names of bytes. */
static void add_random(llama_file *f, uint32_t round) {
    lsi_rng_stream stream = lsi_rng_open(13, LSI_RNG_TEST, round, 0);
    add_fixed(f);
    static const char *const letters[] = {" ", "a", "b", "\xC3\xA9", "<"};
    for (int i = 0; i < 5; i++) add_token(f, letters[i], 0);
    for (uint64_t draw = 0; f->n < 330; draw += 3) {
        char both[64];
        int n = f->n - 259;
        snprintf(both, sizeof both, "%s%s",
                 f->tokens[259 + lsi_rng_below(&stream, draw, (uint64_t)n)].text,
                 f->tokens[259 + lsi_rng_below(&stream, draw + 1, (uint64_t)n)].text);
        if (strlen(both) < 12 && find_slowly(f, both) < 0)
            add_token(f, both, (float)lsi_rng_below(&stream, draw + 2, 8) - 4);
    }
    add_token(f, "<0x80>a", 9);
    add_token(f, "b<0x0A>", 9);
    add_token(f, "<0x0A><0x0A>", 9);
}

static void compare_with_llama2c(const llama_file *f, const lsi_tokenizer *t, uint32_t round) {
    enum { LONGEST = 60 };
    static const char *const parts[] = {" ",  "a",    "b", "\xC3\xA9", "<",
                                        "\n", "\x80", "z", "<0x0A>"};
    lsi_rng_stream stream = lsi_rng_open(17, LSI_RNG_TEST, round, 0);
    char text[8 * LONGEST] = "";
    int32_t expected[8 * LONGEST], *ids;
    int64_t n_ids;
    for (uint64_t i = 0; i < LONGEST; i++) {
        uint64_t part = lsi_rng_below(&stream, i, 2 * sizeof parts / sizeof parts[0]);
        strcat(text, parts[part < 9 ? part : part % 5]);
    }
    int64_t n = encode_slowly(f, text, expected);
    assert_ok(lsi_tokenizer_encode(t, text, strlen(text), &ids, &n_ids));
    assert_int_equal(n_ids, n);
    assert_memory_equal(ids, expected, (size_t)n * sizeof *ids);
    lsi_free(ids);
}

static void ids_are_those_of_llama2c(void **state) {
    (void)state;
    for (uint32_t round = 0; round < 8; round++) {
        llama_file f = {0};
        add_random(&f, round);
        lsi_tokenizer *t = make_llama(&f);
        for (uint32_t i = 0; i < 10; i++) compare_with_llama2c(&f, t, 100 * round + i);
        lsi_tokenizer_destroy(t);
        free(f.data);
    }
}

/* ---- files that lie ---- */

static void wrong_tokens_are_refused(void **state) {
    (void)state;
    const struct {
        int id; /* -1: none */
        const char *text;
        float score;
        const char *message;
    } rows[] = {
        {3, "<0x01>", 0, "token 3 is not <0x00>, the token of a single byte"},
        {258, "<0xFFF>", 0, "token 258 is not <0xFF>"},
        {259, "_", 0, "no token is a single space"},
        {260, "a", NAN, "its score is not a number"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        llama_file f = {0};
        lsi_tokenizer *t;
        add_small(&f);
        snprintf(f.tokens[rows[i].id].text, sizeof f.tokens[0].text, "%s", rows[i].text);
        f.tokens[rows[i].id].score = rows[i].score;
        write_file(&f);
        assert_fails(create_llama(&f, &t), LS_ERR_FORMAT, rows[i].message);
        assert_int_equal(lsi_mem_n_blocks(), 0);
        free(f.data);
    }
}

static void wrong_lengths_are_refused(void **state) {
    (void)state;
    static const struct {
        size_t at; /* of four bytes to change */
        int32_t value;
        const char *message;
    } rows[] = {
        {0, 0, "longest token of 0 bytes, expected 1 to 4096"},
        {0, 5, "token 2 at byte 30: length 6, expected 0 to 5"},
        {0, 4097, "longest token of 4097 bytes"},
        {8, -1, "token 0 at byte 4: length -1, expected 0 to 31"},
        {8, 32, "token 0 at byte 4: length 32, expected 0 to 31"},
        {8, INT32_MAX, "length 2147483647"},
    };
    llama_file f = {0};
    add_small(&f);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_tokenizer *t;
        write_file(&f);
        memcpy(f.data + rows[i].at, &rows[i].value, sizeof rows[i].value);
        assert_fails(create_llama(&f, &t), LS_ERR_FORMAT, rows[i].message);
        assert_null(t);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
    free(f.data);
}

/* Cut off anywhere, the file is refused or lacks whole tokens at its end. */
static void short_files_are_refused(void **state) {
    (void)state;
    llama_file f = {0};
    add_small(&f);
    write_file(&f);
    for (size_t bytes = 4; bytes < f.bytes; bytes += bytes < f.bytes - 160 ? 37 : 1) {
        char *part = malloc(bytes);
        memcpy(part, f.data, bytes);
        lsi_tokenizer *t;
        ls_status status = create_from("tokenizer.bin", part, bytes, &t);
        if (status != LS_OK) assert_int_equal(status, LS_ERR_FORMAT);
        if (status == LS_OK) assert_in_range(lsi_tokenizer_vocab_size(t), 260, 268);
        lsi_tokenizer_destroy(t);
        free(part);
        assert_int_equal(lsi_mem_n_blocks(), 0);
    }
    free(f.data);
}

static void failed_allocations_leak_nothing(void **state) {
    (void)state;
    llama_file f = {0};
    add_small(&f);
    lsi_tokenizer_destroy(make_llama(&f));
    for (int64_t n = 1;; n++) {
        lsi_tokenizer *t = NULL;
        int32_t *ids = NULL;
        int64_t n_ids;
        lsi_mem_fail_at(n);
        ls_status status = lsi_tokenizer_create(path_of("tokenizer.bin"), &t);
        if (status == LS_OK) status = lsi_tokenizer_encode(t, "abba", 4, &ids, &n_ids);
        int failed = lsi_mem_has_failed();
        lsi_mem_fail_at(0);
        assert_int_equal(status, failed ? LS_ERR_MEMORY : LS_OK);
        lsi_free(ids);
        lsi_tokenizer_destroy(t);
        assert_int_equal(lsi_mem_n_blocks(), 0);
        if (!failed) break;
        assert_true(n < 100);
    }
    free(f.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(real_tokenizer_encodes_and_decodes),
        IN_SCRATCH(best_scores_are_merged_first),
        IN_SCRATCH(space_before_a_text_is_dropped_again),
        IN_SCRATCH(ids_are_those_of_llama2c),
        IN_SCRATCH(wrong_tokens_are_refused),
        IN_SCRATCH(wrong_lengths_are_refused),
        IN_SCRATCH(short_files_are_refused),
        IN_SCRATCH(failed_allocations_leak_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
