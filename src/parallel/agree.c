/* Each parameter is reduced to 32 bits; the ranks' lists of these are gathered and compared by
 * every rank alike, so all come to the same verdict. All-gather moves bits, so hashes travel as
 * if they were floats. */
#include "parallel/agree.h"

#include <string.h>

#include "base/mem.h"
#include "comm/region.h"

static uint32_t hash_bytes(uint32_t hash, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 16777619u;
    return hash;
}

static uint32_t hash_param(const ls_param *param) {
    uint32_t facts[2] = {(uint32_t)param->dtype, param->flags};
    uint32_t hash = hash_bytes(2166136261u, param->name, strlen(param->name));
    hash = hash_bytes(hash, &param->count, sizeof param->count);
    return hash_bytes(hash, facts, sizeof facts);
}

static ls_status agree_number(ls_group *group, int n_params) {
    uint32_t all[LSI_MAX_RANKS], mine = (uint32_t)n_params;
    LSI_TRY(ls_all_gather(group, &mine, all, 1, LS_DTYPE_F32, NULL));
    for (int r = 1; r < ls_group_world_size(group); r++)
        if (all[r] != all[0])
            return lsi_fail(LS_ERR_MISMATCH, "the ranks built different models: rank 0 has %u "
                            "parameters, rank %d has %u", all[0], r, all[r]);
    return LS_OK;
}

static ls_status compare(const uint32_t *all, int n_ranks, int n_params, const ls_param *params) {
    for (int i = 0; i < n_params; i++)
        for (int r = 1; r < n_ranks; r++)
            if (all[(int64_t)r * n_params + i] != all[i])
                return lsi_fail(LS_ERR_MISMATCH, "the ranks built different models: parameter %d "
                                "(here %s, %lld elements, %s) of rank %d differs from rank 0's in "
                                "name, size, dtype or flags", i, params[i].name,
                                (long long)params[i].count, ls_dtype_name(params[i].dtype), r);
    return LS_OK;
}

ls_status lsi_agree_params(ls_group *group, const ls_param *params, int n_params) {
    LSI_TRY(agree_number(group, n_params));
    size_t n = (size_t)n_params, n_ranks = (size_t)ls_group_world_size(group);
    uint32_t *mine = lsi_alloc(LSI_MEM_OTHER, n * sizeof *mine);
    uint32_t *all = lsi_alloc(LSI_MEM_OTHER, n * n_ranks * sizeof *all);
    ls_status status = mine && all ? LS_OK : LS_ERR_MEMORY;
    for (int i = 0; i < n_params && status == LS_OK; i++) mine[i] = hash_param(&params[i]);
    if (status == LS_OK) status = ls_all_gather(group, mine, all, n_params, LS_DTYPE_F32, NULL);
    if (status == LS_OK) status = compare(all, (int)n_ranks, n_params, params);
    lsi_free(mine);
    lsi_free(all);
    return status;
}
