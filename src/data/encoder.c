/* From text to ids: words, a cache of words, spelling and merging.
 *
 * Few words make up most of a text, so ids of short words are kept in a table that one hash leads
 * into; a word that finds another one in its slot takes the slot. The cache belongs to the encoder,
 * not to the tokenizer: a tokenizer is never written after it was made. */
#include <string.h>

#include "base/mem.h"
#include "data/tokenizer.h"

enum { MAX_CACHED_IDS = 8, MAX_CACHED_BYTES = 64, MIN_SLOTS = 64, MAX_SLOTS = 1 << 15 };

typedef struct lsi_encoder_word {
    const char *text; /* NULL: empty */
    uint32_t bytes, n_ids;
    int32_t ids[MAX_CACHED_IDS];
} cached_word;

static ls_status make_cache(lsi_encoder *e) {
    if (e->tokenizer->merges.n == 0) return LS_OK; /* spelling alone is as fast */
    uint64_t n_slots = lsi_power_of_two(e->bytes / 16);
    if (n_slots < MIN_SLOTS) n_slots = MIN_SLOTS;
    if (n_slots > MAX_SLOTS) n_slots = MAX_SLOTS;
    e->cache_mask = n_slots - 1;
    e->cache = lsi_calloc(LSI_MEM_OTHER, n_slots, sizeof *e->cache);
    return lsi_check_alloc(e->cache);
}

ls_status lsi_encoder_init(lsi_encoder *e, const lsi_tokenizer *tokenizer, const char *text,
                           size_t bytes) {
    *e = (lsi_encoder){.tokenizer = tokenizer, .text = text, .bytes = bytes};
    if (bytes > PTRDIFF_MAX / sizeof *e->ids - 1)
        return lsi_fail(LS_ERR_MEMORY, "a text of %zu bytes is too long to encode", bytes);
    return make_cache(e);
}

void lsi_encoder_fini(lsi_encoder *e) {
    lsi_merger_fini(&e->merger);
    lsi_free(e->cache);
    lsi_free(e->ids);
    *e = (lsi_encoder){0};
}

static ls_status reserve(lsi_encoder *e, size_t more) {
    size_t wanted = (size_t)e->n_ids + more;
    if (wanted <= e->room) return LS_OK;
    size_t room = wanted > e->room + e->room / 2 ? wanted : e->room + e->room / 2;
    int32_t *ids = lsi_realloc(LSI_MEM_OTHER, e->ids, room * sizeof *ids);
    LSI_TRY(lsi_check_alloc(ids));
    e->ids = ids;
    e->room = room;
    return LS_OK;
}

static ls_status spell_and_merge(lsi_encoder *e, const char *word, size_t bytes) {
    int32_t *ids = e->ids + e->n_ids;
    int64_t n = e->tokenizer->class->spell(e->tokenizer, word, bytes, word == e->text, ids);
    LSI_TRY(lsi_merger_run(&e->merger, &e->tokenizer->merges, ids, &n));
    e->n_ids += n;
    return LS_OK;
}

static ls_status encode_word(lsi_encoder *e, const char *word, size_t bytes) {
    /* The first word may be spelled in another way. */
    if (!e->cache || bytes > MAX_CACHED_BYTES || word == e->text)
        return spell_and_merge(e, word, bytes);
    cached_word *slot = &e->cache[lsi_hash_bytes(word, bytes) & e->cache_mask];
    if (slot->text && slot->bytes == bytes && memcmp(slot->text, word, bytes) == 0) {
        memcpy(e->ids + e->n_ids, slot->ids, slot->n_ids * sizeof *slot->ids);
        e->n_ids += slot->n_ids;
        return LS_OK;
    }
    int64_t first = e->n_ids;
    LSI_TRY(spell_and_merge(e, word, bytes));
    int64_t n = e->n_ids - first;
    if (n > MAX_CACHED_IDS) return LS_OK;
    *slot = (cached_word){.text = word, .bytes = (uint32_t)bytes, .n_ids = (uint32_t)n};
    memcpy(slot->ids, e->ids + first, (size_t)n * sizeof *slot->ids);
    return LS_OK;
}

ls_status lsi_encoder_next(lsi_encoder *e, size_t piece) {
    size_t left = e->bytes - e->at, wanted = piece < left ? piece : left;
    size_t end = e->at + wanted;
    e->n_ids = 0;
    LSI_TRY(reserve(e, wanted + 2)); /* the first word may have one token more than bytes */
    while (e->at < end) {
        const char *word = e->text + e->at;
        size_t bytes = e->tokenizer->class->word(e->tokenizer, word, e->bytes - e->at);
        LSI_TRY(reserve(e, bytes + 1));
        LSI_TRY(encode_word(e, word, bytes));
        e->at += bytes;
    }
    return LS_OK;
}
