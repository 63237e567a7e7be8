/* Merging by a heap of chances.
 *
 * Tokens stand in a doubly linked list over the places of the input. A chance is a pair of
 * neighbours that a row of the table covers; the heap has the best of them on top:
 *
 *     h e l l o      chances: (h e) rank 2, (l l) rank 9
 *     he . l l o     (h e) taken: its left place holds the result, its right place is gone, and
 *                    the two pairs around the result are looked up
 *
 * A chance is not taken out when a neighbour changes; when it comes up it is compared with what
 * stands at its place by then, and dropped if that is another pair. Each merge adds two chances at
 * most, so 3 n places of the heap suffice. */
#include "data/merges.h"

#include <string.h>

#include "base/mem.h"
#include "data/vocab.h"

/* ---- the table ---- */

ls_status lsi_merges_init(lsi_merges *merges, int64_t room) {
    uint64_t n_slots = lsi_power_of_two(2 * (uint64_t)room + 1);
    *merges = (lsi_merges){.room = room, .mask = n_slots - 1};
    merges->rows = lsi_alloc(LSI_MEM_OTHER, (size_t)room * sizeof *merges->rows);
    LSI_TRY(lsi_check_alloc(merges->rows));
    merges->table = lsi_alloc(LSI_MEM_OTHER, n_slots * sizeof *merges->table);
    LSI_TRY(lsi_check_alloc(merges->table));
    memset(merges->table, -1, n_slots * sizeof *merges->table);
    return LS_OK;
}

void lsi_merges_fini(lsi_merges *merges) {
    lsi_free(merges->table);
    lsi_free(merges->rows);
    *merges = (lsi_merges){0};
}

/* Where the pair's row stands in the table, or the empty slot where it would. */
static uint64_t slot_of(const lsi_merges *merges, int32_t left, int32_t right) {
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    uint64_t slot = (h ^ h >> 32) & merges->mask;
    for (; merges->table[slot] >= 0; slot = (slot + 1) & merges->mask) {
        const lsi_merge *row = &merges->rows[merges->table[slot]];
        if (row->left == left && row->right == right) break;
    }
    return slot;
}

int32_t lsi_merges_find(const lsi_merges *merges, int32_t left, int32_t right) {
    return merges->table[slot_of(merges, left, right)];
}

bool lsi_merges_add(lsi_merges *merges, const lsi_merge *row) {
    int32_t *slot = &merges->table[slot_of(merges, row->left, row->right)];
    if (*slot >= 0 || merges->n == merges->room) return false;
    *slot = (int32_t)merges->n;
    merges->rows[merges->n++] = *row;
    return true;
}

/* ---- the heap ---- */

typedef struct lsi_merge_chance chance;

static bool goes_first(const chance *a, const chance *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(lsi_merger *m, chance c) {
    int64_t at = m->n_heap++;
    while (at > 0 && goes_first(&c, &m->heap[(at - 1) / 2])) {
        m->heap[at] = m->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    m->heap[at] = c;
}

static chance pop(lsi_merger *m) {
    chance top = m->heap[0], last = m->heap[--m->n_heap];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= m->n_heap) break;
        if (child + 1 < m->n_heap && goes_first(&m->heap[child + 1], &m->heap[child])) child++;
        if (!goes_first(&m->heap[child], &last)) break;
        m->heap[at] = m->heap[child];
        at = child;
    }
    m->heap[at] = last;
    return top;
}

/* ---- merging ---- */

void lsi_merger_fini(lsi_merger *merger) {
    lsi_free(merger->next);
    lsi_free(merger->before);
    lsi_free(merger->heap);
    *merger = (lsi_merger){0};
}

static ls_status grow_one(void **block, int64_t room, size_t bytes) {
    void *larger = lsi_realloc(LSI_MEM_OTHER, *block, (size_t)room * bytes);
    LSI_TRY(lsi_check_alloc(larger));
    *block = larger;
    return LS_OK;
}

static ls_status reserve(lsi_merger *m, int64_t n) {
    if (n <= m->room) return LS_OK;
    if (n > INT32_MAX / 4)
        return lsi_fail(LS_ERR_UNSUPPORTED,
                        "a word of %lld bytes is too long to be cut into tokens; the text has no "
                        "place before it where it may be cut",
                        (long long)n);
    int64_t room = n < 256 ? 256 : n + n / 2;
    LSI_TRY(grow_one((void **)&m->next, room, sizeof *m->next));
    LSI_TRY(grow_one((void **)&m->before, room, sizeof *m->before));
    LSI_TRY(grow_one((void **)&m->heap, 3 * room, sizeof *m->heap));
    m->room = room;
    return LS_OK;
}

/* The pair that begins at a place, if a row covers it. */
static void offer(lsi_merger *m, const lsi_merges *merges, const int32_t *ids, int32_t at) {
    if (at < 0 || m->next[at] < 0) return;
    int32_t row = lsi_merges_find(merges, ids[at], ids[m->next[at]]);
    if (row >= 0) push(m, (chance){merges->rows[row].rank, at, row});
}

static void take(lsi_merger *m, const lsi_merges *merges, int32_t *ids, const chance *c) {
    const lsi_merge *row = &merges->rows[c->row];
    int32_t right = m->next[c->at];
    if (ids[c->at] != row->left || right < 0 || ids[right] != row->right) return; /* gone */
    ids[c->at] = row->result;
    ids[right] = -1;
    m->next[c->at] = m->next[right];
    if (m->next[right] >= 0) m->before[m->next[right]] = c->at;
    offer(m, merges, ids, m->before[c->at]);
    offer(m, merges, ids, c->at);
}

ls_status lsi_merger_run(lsi_merger *m, const lsi_merges *merges, int32_t *ids, int64_t *n) {
    if (*n < 2 || merges->n == 0) return LS_OK;
    LSI_TRY(reserve(m, *n));
    int32_t last = (int32_t)(*n - 1);
    m->n_heap = 0;
    for (int32_t i = 0; i <= last; i++) {
        m->next[i] = i < last ? i + 1 : -1;
        m->before[i] = i - 1;
    }
    for (int32_t i = 0; i < last; i++) offer(m, merges, ids, i);
    while (m->n_heap > 0) {
        chance c = pop(m);
        take(m, merges, ids, &c);
    }
    int64_t kept = 0;
    for (int32_t i = 0; i >= 0; i = m->next[i]) ids[kept++] = ids[i];
    *n = kept;
    return LS_OK;
}
