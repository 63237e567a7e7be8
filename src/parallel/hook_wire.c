/* Buffers of hooks in memory that all ranks of the machine share, so that collectives on them copy
 * nothing. */
#include <string.h>

#include "base/mem.h"
#include "parallel/hook_impl.h"

enum { LINE_BYTES = 64 };

void lsi_hook_wires_free(lsi_hook_wires *wires) {
    if (wires->block) ls_group_free_shared(wires->group, wires->block);
    lsi_mem_note(LSI_MEM_BUCKETS, -wires->noted_bytes);
    lsi_free(wires->offset_bytes);
    *wires = (lsi_hook_wires){0};
}

/* A rank touches its own wires and, in each kind of collective that hooks post, one n-th of every
 * peer's. */
static void note_memory(lsi_hook_wires *wires, int64_t bytes) {
    int n = ls_group_world_size(wires->group);
    wires->noted_bytes = bytes + bytes / n * (n - 1);
    lsi_mem_note(LSI_MEM_BUCKETS, wires->noted_bytes);
}

ls_status lsi_hook_wires_make(lsi_hook_wires *wires, ls_group *group, const ls_bucket *buckets,
                              int n_buckets, lsi_hook_bytes_fn *bytes_of, const void *state) {
    int64_t bytes = 0;
    lsi_hook_wires_free(wires);
    int64_t *offsets = lsi_calloc(LSI_MEM_OTHER, (size_t)n_buckets, sizeof *offsets);
    LSI_TRY(lsi_check_alloc(offsets));
    wires->group = group;
    wires->offset_bytes = offsets;
    for (int b = 0; b < n_buckets; b++) {
        offsets[buckets[b].index] = bytes;
        bytes += (bytes_of(state, group, &buckets[b]) + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    }
    if (bytes == 0) return LS_OK;
    void *block = NULL;
    LSI_TRY(lsi_context(ls_group_alloc_shared(group, (size_t)bytes, &block),
                        "hook: %lld bytes on the wire for %d buckets", (long long)bytes,
                        n_buckets));
    wires->block = block;
    note_memory(wires, bytes);
    return LS_OK;
}
