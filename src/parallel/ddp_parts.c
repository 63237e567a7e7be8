/* Private ZeRO-3 with opts.reshard_after_forward = k: what is left of a unit between forward and
 * backward is a part with each rank, 1/k of every bucket, and backward gathers it from k
 * consecutive ranks. Parts of all buckets lie in one block, at the same place on each of the k
 * ranks. What backward does not read has no parts. */
#include <string.h>

#include "base/mem.h"
#include "comm/transport/control.h"
#include "parallel/ddp_impl.h"

enum { LINE_ELEMS = 32 };

/* Elements of the first ranks' parts, whole cache lines; the last ones have what is left. There are
 * none of what backward does not read. */
static int64_t part_elems(const ls_ddp *ddp, int bucket) {
    int k = ddp->opts.reshard_after_forward;
    if (!lsi_unit_plan_reads_again(&ddp->units.plan, bucket)) return 0;
    int64_t equal = (ddp->plan.buckets[bucket].count + k - 1) / k;
    return (equal + LINE_ELEMS - 1) / LINE_ELEMS * LINE_ELEMS;
}

static void count_parts(const ls_ddp *ddp, int bucket, int64_t counts[LSI_MAX_RANKS]) {
    int64_t left = ddp->plan.buckets[bucket].count, most = part_elems(ddp, bucket);
    for (int r = 0; r < ddp->opts.reshard_after_forward; r++) {
        counts[r] = left < most ? left : most;
        left -= counts[r];
    }
}

/* Bytes before a bucket's part in the block; of n_held: all. */
static int64_t part_offset(const ls_ddp *ddp, int bucket) {
    int64_t bytes = 0;
    for (int b = 0; b < bucket; b++) bytes += part_elems(ddp, b) * lsi_ddp_value_size(ddp, b);
    return bytes;
}

void lsi_ddp_keep_part(ls_ddp *ddp, int index) {
    lsi_unit_parts *parts = &ddp->units.parts;
    int64_t counts[LSI_MAX_RANKS], size = lsi_ddp_value_size(ddp, index);
    int rank = ls_group_rank(parts->group);
    count_parts(ddp, index, counts);
    memcpy(parts->at[rank] + part_offset(ddp, index),
           ddp->units.gathered[index].buffer->at + rank * part_elems(ddp, index) * size,
           (size_t)(counts[rank] * size));
    parts->is_kept[index] = true;
}

ls_status lsi_ddp_gather_parts(ls_ddp *ddp, int index) {
    lsi_unit_parts *parts = &ddp->units.parts;
    lsi_gathered *g = &ddp->units.gathered[index];
    int64_t counts[LSI_MAX_RANKS];
    count_parts(ddp, index, counts);
    return ls_all_gather_v(parts->group,
                           parts->at[ls_group_rank(parts->group)] + part_offset(ddp, index),
                           g->buffer->at, counts, ddp->plan.buckets[index].value_dtype, &g->work);
}

/* As [Note: peers' pages] in ddp_units.c says. */
void lsi_ddp_drop_part(ls_ddp *ddp, int index) {
    lsi_unit_parts *parts = &ddp->units.parts;
    size_t bytes = (size_t)(part_elems(ddp, index) * lsi_ddp_value_size(ddp, index));
    for (int r = 0; r < ls_group_world_size(parts->group); r++)
        if (r != ls_group_rank(parts->group))
            lsi_forget_pages(parts->at[r] + part_offset(ddp, index), bytes);
    parts->is_kept[index] = false;
}

/* ---- life ---- */

static ls_status split(ls_ddp *ddp) {
    int k = ddp->opts.reshard_after_forward, n_ranks = ls_group_world_size(ddp->shard_group);
    ls_group *others = NULL;
    if (n_ranks % k != 0)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "ddp options: reshard_after_forward %d does not divide the %d ranks of a "
                        "shard group",
                        k, n_ranks);
    LSI_TRY(lsi_context(ls_group_mesh(ddp->shard_group, k, &others, &ddp->units.parts.group),
                        "ddp: groups of %d ranks", k));
    ls_group_destroy(others);
    return LS_OK;
}

static ls_status take_block(ls_ddp *ddp, void **block) {
    lsi_unit_parts *parts = &ddp->units.parts;
    size_t k = (size_t)ddp->opts.reshard_after_forward, n = (size_t)ddp->plan.n_held;
    parts->at = lsi_calloc(LSI_MEM_OTHER, k, sizeof *parts->at);
    parts->is_kept = lsi_calloc(LSI_MEM_OTHER, n, sizeof *parts->is_kept);
    if (!parts->at || !parts->is_kept) return LS_ERR_MEMORY;
    int64_t bytes = part_offset(ddp, ddp->plan.n_held);
    LSI_TRY(ls_group_alloc_shared(ddp->group, (size_t)bytes, block));
    parts->at[ls_group_rank(parts->group)] = *block;
    parts->bytes = bytes;
    lsi_mem_note(LSI_MEM_GATHERED, bytes);
    return LS_OK;
}

ls_status lsi_ddp_make_parts(ls_ddp *ddp) {
    int k = ddp->opts.reshard_after_forward;
    uint64_t mine, all[LSI_MAX_RANKS];
    lsi_region *region = lsi_group_region(ddp->group);
    void *block = NULL;
    if (k <= 1 || k == ls_group_world_size(ddp->shard_group)) return LS_OK;
    LSI_TRY(split(ddp));
    LSI_TRY(take_block(ddp, &block));
    mine = lsi_region_offset(region, block, (size_t)ddp->units.parts.bytes);
    LSI_TRY(ls_all_gather(ddp->units.parts.group, &mine, all, 1, LS_DTYPE_I64, NULL));
    for (int r = 0; r < k; r++) ddp->units.parts.at[r] = region->base + all[r];
    return LS_OK;
}

void lsi_ddp_free_parts(ls_ddp *ddp) {
    lsi_unit_parts *parts = &ddp->units.parts;
    void *block = parts->at ? parts->at[ls_group_rank(parts->group)] : NULL;
    if (block) lsi_ddp_free_shared(ddp, block);
    lsi_mem_note(LSI_MEM_GATHERED, -parts->bytes);
    ls_group_destroy(parts->group);
    lsi_free(parts->at);
    lsi_free(parts->is_kept);
    *parts = (lsi_unit_parts){.bytes = 0};
}
