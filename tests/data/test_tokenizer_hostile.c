/* Tokenizer files that were damaged: whatever bytes, they are refused with a message that names the
 * file, or make a tokenizer that gives ids of its vocabulary. Content is handed over in blocks of
 * exactly its size, so that the address sanitizer sees any read past the end. */
#include "data/token_tests.h"

#include "base/rng.h"
#include "data/tokenizer.h"

enum { N_MUTATIONS = 4000, MAX_CHANGES = 4, MAX_BYTES = 1 << 13 };

/* ---- what is damaged ---- */

static size_t put_merges(char *data) {
    return (size_t)sprintf(data, "#version: 0.2\nh e\nl l\nhe ll\nhell o\n\xC4\xA0 w\n");
}

static size_t put_json(char *data) {
    size_t used = (size_t)sprintf(
        data,
        "{\"added_tokens\":[{\"id\":258,\"content\":\"<s>\"}],\"normalizer\":null,"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
        "{\"id\":\"<s>\"}}]},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
        "\"merges\":[\"h e\",[\"l\",\"l\"]],\"vocab\":{\"he\":256,\"ll\":257");
    lsi_tokenizer *bytes = NULL;
    char *none = lsi_alloc(LSI_MEM_OTHER, 1);
    none[0] = '\n';
    assert_ok(lsi_tokenizer_create_from("none", none, 1, &bytes));
    for (int i = 0; i < 256; i++) {
        size_t n;
        const char *byte = lsi_tokenizer_decode(bytes, -1, i, &n);
        unsigned c = (unsigned char)*byte;
        unsigned hidden = c <= ' ' ? c : c < 0xA1 ? c - 0x7F + 33 : 67;
        bool is_visible = (c > ' ' && c < 0x7F) || (c > 0xA0 && c != 0xAD);
        used += (size_t)sprintf(data + used, ",\"\\u%04x\":%d", is_visible ? c : 256 + hidden, i);
    }
    lsi_tokenizer_destroy(bytes);
    return used + (size_t)sprintf(data + used, "}}}");
}

static size_t put_llama_token(char *data, const char *text, float score) {
    int32_t length = (int32_t)strlen(text);
    memcpy(data, &score, sizeof score);
    memcpy(data + 4, &length, sizeof length);
    memcpy(data + 8, text, (size_t)length);
    return 8 + (size_t)length;
}

static size_t put_llama(char *data) {
    static const char *const first[] = {"<unk>", "<s>", "</s>"};
    static const char *const last[] = {" ", "a", "b", "ab", " a", "aba"};
    const int32_t longest = 9;
    size_t used = sizeof longest;
    memcpy(data, &longest, sizeof longest);
    for (int i = 0; i < 3; i++) used += put_llama_token(data + used, first[i], 0);
    for (int i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", i);
        used += put_llama_token(data + used, name, 0);
    }
    for (int i = 0; i < 6; i++) used += put_llama_token(data + used, last[i], (float)i);
    return used;
}

/* ---- damage ---- */

/* One change at a place: a byte, an extreme number, or a part left out or doubled. */
static size_t mutate(char *data, size_t bytes, const lsi_rng_stream *stream, uint64_t draw) {
    static const int32_t extremes[] = {-1, 0, 1, 255, 1 << 20, INT32_MAX, INT32_MIN};
    if (bytes < 8) return bytes;
    size_t at = (size_t)lsi_rng_below(stream, draw, bytes - 4);
    size_t length = (size_t)lsi_rng_below(stream, draw + 1, 16);
    if (length > bytes - at) length = bytes - at;
    switch (lsi_rng_below(stream, draw + 2, 5)) {
    case 0: data[at] = (char)lsi_rng_below(stream, draw + 3, 256); return bytes;
    case 1: data[at] = (char)(data[at] ^ 1 << lsi_rng_below(stream, draw + 3, 8)); return bytes;
    case 2:
        memcpy(data + at, &extremes[lsi_rng_below(stream, draw + 3, 7)], sizeof extremes[0]);
        return bytes;
    case 3: memmove(data + at, data + at + length, bytes - at - length); return bytes - length;
    default:
        if (bytes + length > MAX_BYTES) return bytes;
        memmove(data + at + length, data + at, bytes - at);
        return bytes + length;
    }
}

static void use(const lsi_tokenizer *tokenizer) {
    static const char text[] = "hello  abba \xC3\xA9\n\x80\xFF he'll";
    int32_t *ids;
    int64_t n_ids;
    assert_ok(lsi_tokenizer_encode(tokenizer, text, sizeof text, &ids, &n_ids));
    for (int64_t i = 0; i < n_ids; i++)
        assert_in_range(ids[i], 0, lsi_tokenizer_vocab_size(tokenizer) - 1);
    lsi_free(ids);
}

static void try_content(const char *data, size_t bytes) {
    lsi_tokenizer *tokenizer = NULL;
    char *copy = lsi_alloc(LSI_MEM_OTHER, bytes);
    if (bytes > 0) memcpy(copy, data, bytes);
    ls_status status = lsi_tokenizer_create_from("FILE", copy, bytes, &tokenizer);
    if (status == LS_OK)
        use(tokenizer);
    else if ((status != LS_ERR_FORMAT && status != LS_ERR_UNSUPPORTED) ||
             !strstr(ls_last_message(), "FILE"))
        fail_msg("%s: %s", ls_status_name(status), ls_last_message());
    lsi_tokenizer_destroy(tokenizer);
    assert_int_equal(lsi_mem_n_blocks(), 0);
}

static void damaged_files_never_crash(void **state) {
    (void)state;
    static size_t (*const puts_it[])(char *) = {put_merges, put_json, put_llama};
    for (uint32_t kind = 0; kind < 3; kind++) {
        char whole[MAX_BYTES], data[MAX_BYTES];
        size_t n_whole = puts_it[kind](whole);
        assert_in_range(n_whole, 40, MAX_BYTES);
        lsi_tokenizer *tokenizer = NULL;
        char *copy = lsi_alloc(LSI_MEM_OTHER, n_whole);
        memcpy(copy, whole, n_whole);
        assert_ok(lsi_tokenizer_create_from("FILE", copy, n_whole, &tokenizer));
        use(tokenizer);
        lsi_tokenizer_destroy(tokenizer);
        for (uint32_t i = 0; i < N_MUTATIONS; i++) {
            lsi_rng_stream stream = lsi_rng_open(19, LSI_RNG_TEST, kind, i);
            size_t bytes = n_whole;
            memcpy(data, whole, n_whole);
            for (uint64_t c = 0; c <= i % MAX_CHANGES; c++)
                bytes = mutate(data, bytes, &stream, 4 * c);
            try_content(data, bytes);
        }
    }
}

static void files_cut_off_anywhere_never_crash(void **state) {
    (void)state;
    static size_t (*const puts_it[])(char *) = {put_merges, put_json, put_llama};
    for (int kind = 0; kind < 3; kind++) {
        char data[MAX_BYTES];
        size_t bytes = puts_it[kind](data);
        for (size_t n = 0; n <= bytes; n++) try_content(data, n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_files_never_crash),
        cmocka_unit_test(files_cut_off_anywhere_never_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
