/* The tokenizer.bin of llama2.c: a SentencePiece vocabulary with scores.
 *
 *     int32    max_token_length
 *     float32  score of token 0          one after the other until the file ends;
 *     int32    its length in bytes       how many there are is not said
 *     bytes    its text
 *     …
 *
 * Token 0 is <unk>, 1 begins a text, 2 ends it, 3 … 258 are the single bytes, written "<0x00>" and
 * so on. Encoding as llama2.c does it: a space is put before the text; each character becomes its
 * token, or its bytes' tokens where it has none; then, again and again, the two neighbours whose
 * joined text is the token of the highest score become that token, of equal ones the leftmost.
 *
 * Two things make that fast without changing a result. Which pairs of tokens join to a third is
 * worked out once, by splitting every token at every place. And a text falls apart wherever no such
 * pair has one byte at its end and the next at its start (before the space of " word", mostly), for
 * no merge ever reaches across: these parts are the words that are encoded on their own. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/tokenizer.h"

enum { BEGIN_ID = 1, END_ID = 2, FIRST_BYTE_ID = 3, N_FIXED = FIRST_BYTE_ID + 256 };
enum { MAX_TOKEN_BYTES = 4096 };
static const float WORST_SCORE = -1e10f; /* llama2.c merges only what scores better */

/* Text files have no zero bytes, and a length of a token below 2^24 has one. */
static bool knows(const char *data, size_t bytes) {
    return bytes >= 4 && data[3] == '\0';
}

/* ---- reading ---- */

typedef struct entry {
    float score;
    int32_t bytes;
    const char *text;
} entry;

typedef struct reader {
    const char *path, *data;
    size_t bytes, at;
    int32_t longest;
} reader;

static ls_status read_head(reader *r) {
    if (r->bytes < sizeof r->longest)
        return lsi_fail(LS_ERR_FORMAT, "%s: %zu bytes are too few for a tokenizer", r->path,
                        r->bytes);
    memcpy(&r->longest, r->data, sizeof r->longest);
    r->at = sizeof r->longest;
    if (r->longest >= 1 && r->longest <= MAX_TOKEN_BYTES) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT, "%s: longest token of %d bytes, expected 1 to %d", r->path,
                    r->longest, MAX_TOKEN_BYTES);
}

static ls_status read_entry(reader *r, int64_t id, entry *e) {
    size_t left = r->bytes - r->at, head = sizeof e->score + sizeof e->bytes;
    if (left < head)
        return lsi_fail(LS_ERR_FORMAT, "%s: token %lld: %zu bytes are left, expected %zu", r->path,
                        (long long)id, left, head);
    memcpy(&e->score, r->data + r->at, sizeof e->score);
    memcpy(&e->bytes, r->data + r->at + sizeof e->score, sizeof e->bytes);
    e->text = r->data + r->at + head;
    if (e->bytes < 0 || e->bytes > r->longest || (size_t)e->bytes > left - head)
        return lsi_fail(LS_ERR_FORMAT, "%s: token %lld at byte %zu: length %d, expected 0 to %zu",
                        r->path, (long long)id, r->at, e->bytes,
                        left - head < (size_t)r->longest ? left - head : (size_t)r->longest);
    if (isnan(e->score))
        return lsi_fail(LS_ERR_FORMAT, "%s: token %lld at byte %zu: its score is not a number",
                        r->path, (long long)id, r->at);
    r->at += head + (size_t)e->bytes;
    return LS_OK;
}

static ls_status count_tokens(reader r, int64_t *n) {
    entry e;
    for (*n = 0; r.at < r.bytes; ++*n) LSI_TRY(read_entry(&r, *n, &e));
    if (*n < N_FIXED || *n > LSI_VOCAB_MAX)
        return lsi_fail(LS_ERR_FORMAT, "%s: %lld tokens, expected %d to %d", r.path, (long long)*n,
                        N_FIXED, LSI_VOCAB_MAX);
    return LS_OK;
}

/* Encoding counts on these. */
static ls_status check_fixed(const reader *r, int64_t id, const entry *e) {
    char name[8];
    if (id < FIRST_BYTE_ID || id >= N_FIXED) return LS_OK;
    int n = snprintf(name, sizeof name, "<0x%02X>", (unsigned)(id - FIRST_BYTE_ID) & 0xFF);
    if (e->bytes == n && memcmp(e->text, name, (size_t)n) == 0) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT, "%s: token %lld is not %s, the token of a single byte", r->path,
                    (long long)id, name);
}

static ls_status read_tokens(lsi_tokenizer *t, reader r, entry *entries) {
    for (int64_t id = 0; id < t->vocab_size; id++) {
        entry *e = &entries[id];
        LSI_TRY(read_entry(&r, id, e));
        LSI_TRY(check_fixed(&r, id, e));
        lsi_vocab_add(&t->vocab, id, e->text, (size_t)e->bytes, true);
    }
    if (lsi_vocab_find(&t->vocab, " ", 1) >= 0) return LS_OK;
    return lsi_fail(LS_ERR_FORMAT, "%s: no token is a single space, which begins every text",
                    r.path);
}

/* ---- merges ---- */

static int compare_scores(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

/* Ranks of tokens: the highest score has 0, equal ones share. */
static uint32_t rank_of(const float *scores, int64_t n, float score) {
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (scores[middle] > score)
            low = middle + 1;
        else
            high = middle;
    }
    return (uint32_t)low;
}

/* Calls for every pair of tokens that join to a token that may be made; stops at false. */
static void add_splits(lsi_tokenizer *t, const entry *e, int32_t id, uint32_t rank,
                       int64_t *n_pairs) {
    if (lsi_vocab_find(&t->vocab, e->text, (size_t)e->bytes) != id)
        return; /* has an earlier twin */
    for (int32_t cut = 1; cut < e->bytes; cut++) {
        int32_t left = lsi_vocab_find(&t->vocab, e->text, (size_t)cut);
        int32_t right = lsi_vocab_find(&t->vocab, e->text + cut, (size_t)(e->bytes - cut));
        if (left < 0 || right < 0) continue;
        ++*n_pairs;
        lsi_merge row = {left, right, id, rank};
        if (t->merges.room > 0) (void)lsi_merges_add(&t->merges, &row); /* a pair has one result */
    }
}

/* Counts pairs while the table has no room, adds them when it has. */
static int64_t add_merges(lsi_tokenizer *t, const entry *entries, const float *scores) {
    int64_t n_pairs = 0;
    for (int64_t id = 0; id < t->vocab_size; id++)
        if (entries[id].score > WORST_SCORE)
            add_splits(t, &entries[id], (int32_t)id,
                       rank_of(scores, t->vocab_size, entries[id].score), &n_pairs);
    return n_pairs;
}

static ls_status make_merges(lsi_tokenizer *t, const entry *entries) {
    size_t n = (size_t)t->vocab_size;
    float *scores = lsi_calloc(LSI_MEM_OTHER, n, sizeof *scores);
    LSI_TRY(lsi_check_alloc(scores));
    for (size_t i = 0; i < n; i++) scores[i] = entries[i].score;
    qsort(scores, n, sizeof *scores, compare_scores);
    int64_t n_pairs = add_merges(t, entries, scores);
    ls_status status = lsi_merges_init(&t->merges, n_pairs);
    if (status == LS_OK) (void)add_merges(t, entries, scores);
    lsi_free(scores);
    return status;
}

/* ---- where merges reach across ---- */

/* The text of a token is its own, and for the tokens of bytes their byte too. */
static int texts_of(const lsi_tokenizer *t, int32_t id, const char *texts[2], size_t sizes[2]) {
    int n = 0;
    texts[n] = lsi_vocab_text(&t->vocab, id, &sizes[n]);
    n++;
    if (id >= FIRST_BYTE_ID && id < N_FIXED) {
        texts[n] = &t->byte_of_value[id - FIRST_BYTE_ID];
        sizes[n++] = 1;
    }
    return n;
}

static void mark_crossings(lsi_tokenizer *t) {
    for (int64_t i = 0; i < t->merges.n; i++) {
        const char *left[2], *right[2];
        size_t n_left[2], n_right[2];
        int n = texts_of(t, t->merges.rows[i].left, left, n_left);
        int m = texts_of(t, t->merges.rows[i].right, right, n_right);
        for (int l = 0; l < n; l++)
            for (int r = 0; r < m; r++) {
                unsigned char before = (unsigned char)left[l][n_left[l] - 1];
                unsigned char after = (unsigned char)right[r][0];
                t->crosses[before][after / 64] |= (uint64_t)1 << after % 64;
            }
    }
}

static ls_status fill(lsi_tokenizer *t, const reader *r, entry *entries) {
    LSI_TRY(read_tokens(t, *r, entries));
    LSI_TRY(make_merges(t, entries));
    mark_crossings(t);
    return LS_OK;
}

static ls_status load(lsi_tokenizer *t, const char *path, const char *data, size_t bytes) {
    reader r = {.path = path, .data = data, .bytes = bytes};
    LSI_TRY(read_head(&r));
    LSI_TRY(count_tokens(r, &t->vocab_size));
    LSI_TRY(lsi_vocab_init(&t->vocab, t->vocab_size, bytes));
    t->begin_id = BEGIN_ID;
    t->end_id = END_ID;
    entry *entries = lsi_calloc(LSI_MEM_OTHER, (size_t)t->vocab_size, sizeof *entries);
    LSI_TRY(lsi_check_alloc(entries));
    ls_status status = fill(t, &r, entries);
    lsi_free(entries);
    return status;
}

/* ---- texts ---- */

static bool is_continuation(char c) {
    return ((unsigned char)c & 0xC0) == 0x80;
}

static size_t word(const lsi_tokenizer *t, const char *text, size_t bytes) {
    for (size_t at = 1; at < bytes; at++) {
        unsigned char before = (unsigned char)text[at - 1], after = (unsigned char)text[at];
        bool crosses = t->crosses[before][after / 64] >> after % 64 & 1;
        if (!crosses && !is_continuation(text[at])) return at;
    }
    return bytes;
}

/* A character is a byte and up to three continuation bytes behind it, whatever the first is. */
static int64_t spell(const lsi_tokenizer *t, const char *text, size_t bytes, bool is_first_word,
                     int32_t *ids) {
    enum { LONGEST = 4 };
    int64_t n = 0;
    if (is_first_word) ids[n++] = lsi_vocab_find(&t->vocab, " ", 1);
    for (size_t at = 0, length; at < bytes; at += length) {
        length = 1;
        while (length < LONGEST && at + length < bytes && is_continuation(text[at + length]))
            length++;
        int32_t id = lsi_vocab_find(&t->vocab, text + at, length);
        if (id >= 0) ids[n++] = id;
        for (size_t i = 0; id < 0 && i < length; i++)
            ids[n++] = FIRST_BYTE_ID + (unsigned char)text[at + i];
    }
    return n;
}

static const char *decode(const lsi_tokenizer *t, int32_t previous, int32_t id, size_t *bytes) {
    if (id >= FIRST_BYTE_ID && id < N_FIXED) {
        *bytes = 1;
        return &t->byte_of_value[id - FIRST_BYTE_ID];
    }
    const char *text = lsi_vocab_text(&t->vocab, id, bytes);
    bool begins = previous < 0 || previous == BEGIN_ID;
    if (!begins || *bytes == 0 || text[0] != ' ') return text;
    --*bytes;
    return text + 1;
}

const lsi_tokenizer_class lsi_tokenizer_llama2c = {.name = "llama2c",
                                                   .files = {"tokenizer.bin"},
                                                   .knows = knows,
                                                   .load = load,
                                                   .word = word,
                                                   .spell = spell,
                                                   .decode = decode};
