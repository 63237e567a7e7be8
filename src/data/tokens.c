/* Token ids in as few bytes as the vocabulary allows.
 *
 * A corpus is the largest thing a worker keeps besides the model, and ids of a byte vocabulary fit
 * one byte. Widths are rows of a table with a function each way, so the choice is made once per
 * sequence and the loops stay plain. */
#include "data/tokens.h"

#include "base/file.h"
#include "base/mem.h"

typedef struct token_width {
    int bytes;
    int64_t max_vocab_size;
    void (*store)(void *data, int64_t at, const int32_t *ids, int64_t n);
    void (*load)(const void *data, int64_t at, int32_t *ids, int64_t n);
} token_width;

#define TOKEN_WIDTH_FUNCTIONS(type)                                                                \
    static void store_##type(void *data, int64_t at, const int32_t *ids, int64_t n) {              \
        type *out = (type *)data + at;                                                             \
        for (int64_t i = 0; i < n; i++) out[i] = (type)ids[i];                                     \
    }                                                                                              \
    static void load_##type(const void *data, int64_t at, int32_t *ids, int64_t n) {               \
        const type *in = (const type *)data + at;                                                  \
        for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)in[i];                                   \
    }

TOKEN_WIDTH_FUNCTIONS(uint8_t)
TOKEN_WIDTH_FUNCTIONS(uint16_t)
TOKEN_WIDTH_FUNCTIONS(int32_t)

static const token_width widths[] = {
    {1, 1 << 8, store_uint8_t, load_uint8_t},
    {2, 1 << 16, store_uint16_t, load_uint16_t},
    {4, (int64_t)1 << 31, store_int32_t, load_int32_t},
};
enum { N_WIDTHS = sizeof widths / sizeof widths[0] };

static const token_width *width_of(const lsi_tokens *tokens) {
    for (int i = 0; i < N_WIDTHS - 1; i++)
        if (widths[i].bytes == tokens->width) return &widths[i];
    return &widths[N_WIDTHS - 1];
}

static ls_status reserve(lsi_tokens *tokens, int64_t capacity) {
    int64_t bytes;
    if (capacity < 0 || __builtin_mul_overflow(capacity, (int64_t)tokens->width, &bytes))
        return lsi_fail(LS_ERR_MEMORY, "%lld tokens of %d bytes do not fit into memory",
                        (long long)capacity, tokens->width);
    void *data = lsi_realloc(LSI_MEM_OTHER, tokens->data, (size_t)bytes);
    LSI_TRY(lsi_check_alloc(data));
    tokens->data = data;
    tokens->capacity = capacity;
    return LS_OK;
}

ls_status lsi_tokens_init(lsi_tokens *tokens, int64_t vocab_size, int64_t capacity) {
    *tokens = (lsi_tokens){0};
    for (int i = 0; i < N_WIDTHS && !tokens->width; i++)
        if (vocab_size >= 1 && vocab_size <= widths[i].max_vocab_size)
            tokens->width = widths[i].bytes;
    if (!tokens->width)
        return lsi_fail(LS_ERR_ARGUMENT, "vocabulary of %lld tokens, expected 1 to 2^31",
                        (long long)vocab_size);
    return reserve(tokens, capacity);
}

void lsi_tokens_fini(lsi_tokens *tokens) {
    if (!tokens->mapping) lsi_free(tokens->data);
    lsi_file_unmap(tokens->mapping, tokens->mapped_bytes);
    *tokens = (lsi_tokens){0};
}

ls_status lsi_tokens_append(lsi_tokens *tokens, const int32_t *ids, int64_t n_ids) {
    if (n_ids > tokens->capacity - tokens->n) {
        int64_t wanted = tokens->n + n_ids;
        int64_t grown = tokens->capacity + tokens->capacity / 2;
        LSI_TRY(reserve(tokens, wanted > grown ? wanted : grown));
    }
    width_of(tokens)->store(tokens->data, tokens->n, ids, n_ids);
    tokens->n += n_ids;
    return LS_OK;
}

void lsi_tokens_shrink(lsi_tokens *tokens) {
    if (tokens->n == tokens->capacity) return;
    void *data = lsi_realloc(LSI_MEM_OTHER, tokens->data, (size_t)(tokens->n * tokens->width));
    if (!data) return; /* the larger block is still good */
    tokens->data = data;
    tokens->capacity = tokens->n;
}

void lsi_tokens_read(const lsi_tokens *tokens, int64_t start, int64_t n, int32_t *ids) {
    width_of(tokens)->load(tokens->data, start, ids, n);
}
