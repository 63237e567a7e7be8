/* A vocabulary's tokens in one pool of bytes, found by id through places and by bytes through a
 * table with linear probing.
 *
 * Whoever fills it knows from the size of the file how many bytes there can be, so the pool never
 * grows and adding cannot fail. The table is at most half full. */
#include "data/vocab.h"

#include <string.h>

#include "base/mem.h"

/* ---- hash ---- */

static uint64_t mix(uint64_t h) {
    h *= 0x9E3779B97F4A7C15u; /* 2^64 / golden ratio, odd: every input bit reaches the top */
    return h ^ h >> 32;
}

uint64_t lsi_hash_bytes(const char *bytes, size_t n_bytes) {
    uint64_t h = mix(n_bytes + 1), word;
    for (; n_bytes >= sizeof word; bytes += sizeof word, n_bytes -= sizeof word) {
        memcpy(&word, bytes, sizeof word);
        h = mix(h ^ word);
    }
    word = 0;
    if (n_bytes > 0) memcpy(&word, bytes, n_bytes);
    return mix(mix(h ^ word));
}

uint64_t lsi_power_of_two(uint64_t n) {
    uint64_t power = 1;
    while (power < n) power *= 2;
    return power;
}

/* ---- vocabulary ---- */

ls_status lsi_vocab_init(lsi_vocab *vocab, int64_t n, size_t pool_room) {
    uint64_t n_slots = lsi_power_of_two(2 * (uint64_t)n + 1);
    *vocab = (lsi_vocab){.n = n, .pool_room = pool_room, .mask = n_slots - 1};
    vocab->pool = lsi_alloc(LSI_MEM_OTHER, pool_room);
    LSI_TRY(lsi_check_alloc(vocab->pool));
    vocab->places = lsi_calloc(LSI_MEM_OTHER, (size_t)n, sizeof *vocab->places);
    LSI_TRY(lsi_check_alloc(vocab->places));
    vocab->table = lsi_alloc(LSI_MEM_OTHER, n_slots * sizeof *vocab->table);
    LSI_TRY(lsi_check_alloc(vocab->table));
    memset(vocab->table, -1, n_slots * sizeof *vocab->table);
    return LS_OK;
}

void lsi_vocab_fini(lsi_vocab *vocab) {
    lsi_free(vocab->table);
    lsi_free(vocab->places);
    lsi_free(vocab->pool);
    *vocab = (lsi_vocab){0};
}

bool lsi_vocab_has(const lsi_vocab *vocab, int64_t id) {
    return id >= 0 && id < vocab->n && vocab->places[id].is_there;
}

const char *lsi_vocab_text(const lsi_vocab *vocab, int64_t id, size_t *n_bytes) {
    *n_bytes = 0;
    if (!lsi_vocab_has(vocab, id)) return "";
    *n_bytes = vocab->places[id].bytes;
    return vocab->pool + vocab->places[id].start;
}

/* Where an id with these bytes stands in the table, or the empty slot where it would. */
static uint64_t slot_of(const lsi_vocab *vocab, const char *bytes, size_t n_bytes) {
    uint64_t slot = lsi_hash_bytes(bytes, n_bytes) & vocab->mask;
    for (; vocab->table[slot] >= 0; slot = (slot + 1) & vocab->mask) {
        const struct lsi_vocab_place *place = &vocab->places[vocab->table[slot]];
        if (place->bytes == n_bytes && memcmp(vocab->pool + place->start, bytes, n_bytes) == 0)
            break;
    }
    return slot;
}

int32_t lsi_vocab_find(const lsi_vocab *vocab, const char *bytes, size_t n_bytes) {
    return n_bytes > 0 ? vocab->table[slot_of(vocab, bytes, n_bytes)] : -1;
}

void lsi_vocab_add(lsi_vocab *vocab, int64_t id, const char *bytes, size_t n_bytes, bool is_text) {
    if (n_bytes > vocab->pool_room - vocab->pool_bytes) return; /* kept from being by callers */
    if (is_text && n_bytes > 0) {
        int32_t *slot = &vocab->table[slot_of(vocab, bytes, n_bytes)];
        if (*slot < 0) *slot = (int32_t)id;
    }
    char *start = vocab->pool + vocab->pool_bytes;
    if (n_bytes > 0) memcpy(start, bytes, n_bytes);
    vocab->places[id] =
        (struct lsi_vocab_place){vocab->pool_bytes, (uint32_t)n_bytes, .is_there = true};
    vocab->pool_bytes += n_bytes;
}
