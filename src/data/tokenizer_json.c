/* A byte-level BPE from tokenizer.json, the file of Hugging Face's tokenizers.
 *
 *     {"added_tokens": [{"id": 50256, "content": "<|endoftext|>", …}],
 *      "normalizer": null,
 *      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, …},
 *      "post_processor": …, "decoder": {"type": "ByteLevel", …},
 *      "model": {"type": "BPE", "vocab": {"!": 0, …}, "merges": ["Ġ t", …] or [["Ġ", "t"], …]}}
 *
 * The format can say much that would change ids. What is not done here is refused with its place
 * and value (LS_ERR_UNSUPPORTED), never passed over: a model that reads wrong ids looks like a bad
 * model. Settings that change nothing for a byte-level BPE are not looked at. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "data/bpe.h"

/* Spellings of the one rule that words.c knows. */
static const char *const PATTERNS[] = {
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s",
};
enum { N_PATTERNS = sizeof PATTERNS / sizeof PATTERNS[0] };

static bool knows(const char *data, size_t bytes) {
    size_t at = 0;
    while (at < bytes && strchr(" \t\r\n", data[at]) && data[at]) at++;
    return at < bytes && data[at] == '{';
}

/* ---- what is not done here ---- */

static bool is_off(const json_t *value) {
    const char *text = json_string_value(value);
    return !value || json_is_null(value) || json_is_false(value) || (text && !text[0]) ||
           (json_is_number(value) && json_number_value(value) == 0.0);
}

static ls_status refuse(const char *where, const json_t *value) {
    enum { SHOWN = 92, FLAGS = JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII };
    char shown[SHOWN + sizeof "…"] = "missing";
    if (value) {
        memset(shown, 0, sizeof shown);
        if (json_dumpb(value, shown, SHOWN, FLAGS) > SHOWN)
            memcpy(shown + strlen(shown), "…", sizeof "…");
    }
    return lsi_fail(LS_ERR_UNSUPPORTED,
                    "%s is %s, which is not supported; byte-level BPE with GPT-2's rules is", where,
                    shown);
}

static ls_status check_model_settings(const json_t *model) {
    static const char *const names[] = {"dropout", "continuing_subword_prefix",
                                        "end_of_word_suffix", "byte_fallback", "ignore_merges"};
    const json_t *type = json_object_get(model, "type");
    const char *name = json_string_value(type);
    if (type && (!name || strcmp(name, "BPE") != 0)) return refuse("\"model\": \"type\"", type);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char where[64];
        const json_t *value = json_object_get(model, names[i]);
        snprintf(where, sizeof where, "\"model\": \"%s\"", names[i]);
        if (!is_off(value)) return refuse(where, value);
    }
    return LS_OK;
}

static bool has_type(const json_t *node, const char *type) {
    const char *found = json_string_value(json_object_get(node, "type"));
    return found && strcmp(found, type) == 0;
}

/* ---- pre_tokenizer ---- */

/* What the steps of the pre-tokenizer have in all: both are needed. */
typedef struct cut {
    bool has_words, has_bytes;
} cut;

static ls_status read_byte_level(const json_t *node, cut *found) {
    const json_t *prefix = json_object_get(node, "add_prefix_space");
    const json_t *words = json_object_get(node, "use_regex"); /* missing: true */
    if (!json_is_false(prefix)) return refuse("\"pre_tokenizer\": \"add_prefix_space\"", prefix);
    found->has_bytes = true;
    if (!json_is_false(words)) found->has_words = true;
    return LS_OK;
}

static ls_status read_split(const json_t *node, cut *found) {
    const json_t *pattern = json_object_get(json_object_get(node, "pattern"), "Regex");
    const json_t *behavior = json_object_get(node, "behavior");
    const char *text = json_string_value(pattern), *how = json_string_value(behavior);
    if (!how || strcmp(how, "Isolated") != 0)
        return refuse("\"pre_tokenizer\": \"behavior\"", behavior);
    if (!is_off(json_object_get(node, "invert")))
        return refuse("\"pre_tokenizer\": \"invert\"", json_object_get(node, "invert"));
    for (int i = 0; text && i < N_PATTERNS; i++)
        if (strcmp(text, PATTERNS[i]) == 0) {
            found->has_words = true;
            return LS_OK;
        }
    return refuse("\"pre_tokenizer\": \"pattern\"",
                  pattern ? pattern : json_object_get(node, "pattern"));
}

static ls_status read_step(const json_t *node, cut *found) {
    if (has_type(node, "ByteLevel")) return read_byte_level(node, found);
    if (has_type(node, "Split")) return read_split(node, found);
    return refuse("\"pre_tokenizer\": \"type\"", json_object_get(node, "type"));
}

static ls_status check_pre_tokenizer(const json_t *node) {
    cut found = {0};
    size_t i;
    json_t *step;
    if (has_type(node, "Sequence")) {
        json_array_foreach(json_object_get(node, "pretokenizers"), i, step)
            LSI_TRY(read_step(step, &found));
    } else {
        LSI_TRY(read_step(node, &found));
    }
    return found.has_words && found.has_bytes ? LS_OK : refuse("\"pre_tokenizer\"", node);
}

static ls_status check_settings(const json_t *root) {
    const json_t *normalizer = json_object_get(root, "normalizer");
    const json_t *decoder = json_object_get(root, "decoder");
    LSI_TRY(check_model_settings(json_object_get(root, "model")));
    if (!is_off(normalizer)) return refuse("\"normalizer\"", normalizer);
    if (!is_off(decoder) && !has_type(decoder, "ByteLevel")) return refuse("\"decoder\"", decoder);
    return check_pre_tokenizer(json_object_get(root, "pre_tokenizer"));
}

/* ---- tokens ---- */

static ls_status add_merge(lsi_tokenizer *t, const json_t *merge) {
    const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
    if (json_is_string(merge))
        return lsi_bpe_add_merge_line(t, json_string_value(merge), json_string_length(merge), -1);
    if (json_array_size(merge) != 2 || !json_is_string(left) || !json_is_string(right))
        return lsi_fail(LS_ERR_FORMAT, "expected \"left right\" or [\"left\", \"right\"]");
    return lsi_bpe_add_merge(t, json_string_value(left), json_string_length(left),
                             json_string_value(right), json_string_length(right), -1);
}

static ls_status add_merges(lsi_tokenizer *t, const json_t *merges) {
    size_t i;
    json_t *merge;
    if (!json_is_array(merges)) return lsi_fail(LS_ERR_FORMAT, "\"merges\" is not a list");
    if (json_array_size(merges) > LSI_VOCAB_MAX)
        return lsi_fail(LS_ERR_FORMAT, "%zu merges, expected at most %d", json_array_size(merges),
                        LSI_VOCAB_MAX);
    LSI_TRY(lsi_merges_init(&t->merges, (int64_t)json_array_size(merges)));
    json_array_foreach(merges, i, merge)
        LSI_TRY(lsi_context(add_merge(t, merge), "\"merges\"[%zu]", i));
    return LS_OK;
}

static int32_t id_of_added(const json_t *added, const char *content) {
    size_t i;
    json_t *token;
    json_array_foreach(
        added, i,
        token) if (strcmp(json_string_value(json_object_get(token, "content")), content) ==
                   0) return (int32_t)json_integer_value(json_object_get(token, "id"));
    return -1;
}

/* What a template puts before a text, if that is one of the added tokens. */
static int32_t find_begin(const json_t *root) {
    const json_t *node = json_object_get(root, "post_processor"), *step;
    const json_t *steps = json_object_get(node, "processors");
    for (size_t i = 0; i < json_array_size(steps); i++)
        if (has_type(step = json_array_get(steps, i), "TemplateProcessing")) node = step;
    const json_t *first = json_array_get(json_object_get(node, "single"), 0);
    const char *name =
        json_string_value(json_object_get(json_object_get(first, "SpecialToken"), "id"));
    return name ? id_of_added(json_object_get(root, "added_tokens"), name) : -1;
}

static int32_t find_end(const json_t *root) {
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
    int32_t id = -1;
    for (size_t i = 0; id < 0 && i < sizeof names / sizeof names[0]; i++)
        id = id_of_added(json_object_get(root, "added_tokens"), names[i]);
    return id;
}

/* ---- all ---- */

static ls_status read_root(lsi_tokenizer *t, const json_t *root, size_t bytes) {
    const json_t *model = json_object_get(root, "model");
    if (!json_is_object(model))
        return lsi_fail(LS_ERR_FORMAT,
                        "no object \"model\"; expected a tokenizer.json (a vocab.json is read "
                        "together with the merges.txt beside it: name that)");
    LSI_TRY(check_settings(root));
    LSI_TRY(lsi_bpe_load_vocab(t, json_object_get(model, "vocab"),
                               json_object_get(root, "added_tokens"), bytes));
    LSI_TRY(add_merges(t, json_object_get(model, "merges")));
    t->begin_id = find_begin(root);
    t->end_id = find_end(root);
    return lsi_bpe_finish(t);
}

static ls_status load(lsi_tokenizer *t, const char *path, const char *data, size_t bytes) {
    json_error_t error;
    json_t *root = json_loadb(data, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return lsi_fail(LS_ERR_FORMAT, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    ls_status status = lsi_context(read_root(t, root, bytes), "%s", path);
    json_decref(root);
    return status;
}

const lsi_tokenizer_class lsi_tokenizer_json = {.name = "bpe",
                                                .files = {"tokenizer.json"},
                                                .knows = knows,
                                                .load = load,
                                                .word = lsi_bpe_word,
                                                .spell = lsi_bpe_spell,
                                                .decode = lsi_bpe_decode};
