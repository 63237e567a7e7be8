/* Each parameter is reduced to 32 bits; the ranks' lists of these, filled up to the longest, are
 * gathered and compared by every rank alike, so all come to the same verdict. Only when it is bad
 * do two ranks say what they have at the first place that differs. Hashes and texts travel as if
 * they were floats: all-gather and broadcast move bits. */
#include "parallel/agree.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "comm/group.h"
#include "comm/region.h"

enum { ABSENT = 0, TEXT_BYTES = 1024 };

/* The first place where some rank has another parameter than rank 0; rank 0: there is none. */
typedef struct difference {
    int rank, index;
} difference;

static uint32_t hash_bytes(uint32_t hash, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 16777619u;
    return hash;
}

static uint32_t hash_param(const ls_param *param) {
    uint32_t facts[3] = {(uint32_t)param->dtype, param->flags, (uint32_t)param->n_dims};
    uint32_t hash = hash_bytes(2166136261u, param->name, strlen(param->name));
    hash = hash_bytes(hash, &param->count, sizeof param->count);
    hash = hash_bytes(hash, facts, sizeof facts);
    hash = hash_bytes(hash, param->shape, (size_t)param->n_dims * sizeof *param->shape);
    return hash == ABSENT ? ~hash : hash;
}

static difference find_difference(const uint32_t *hashes, int n_ranks, int n_longest) {
    for (int i = 0; i < n_longest; i++)
        for (int r = 1; r < n_ranks; r++)
            if (hashes[(int64_t)r * n_longest + i] != hashes[i]) return (difference){r, i};
    return (difference){0, 0};
}

static ls_status compare_hashes(ls_group *group, const ls_param *params, int n_params,
                                int n_longest, difference *found) {
    size_t n = (size_t)n_longest, n_ranks = (size_t)ls_group_world_size(group);
    uint32_t *mine = lsi_calloc(LSI_MEM_OTHER, n, sizeof *mine);
    uint32_t *all = lsi_calloc(LSI_MEM_OTHER, n * n_ranks, sizeof *all);
    ls_status status = mine && all ? LS_OK : LS_ERR_MEMORY;
    for (int i = 0; i < n_params && status == LS_OK; i++) mine[i] = hash_param(&params[i]);
    if (status == LS_OK) status = ls_all_gather(group, mine, all, n_longest, LS_DTYPE_I32, NULL);
    if (status == LS_OK) *found = find_difference(all, (int)n_ranks, n_longest);
    lsi_free(mine);
    lsi_free(all);
    return status;
}

/* What `rank` has to say, told by itself to all. */
static ls_status hear(ls_group *group, int rank, const char *mine, char text[TEXT_BYTES]) {
    memset(text, 0, TEXT_BYTES);
    if (ls_group_rank(group) == rank) snprintf(text, TEXT_BYTES, "%s", mine);
    return ls_broadcast(group, text, text, TEXT_BYTES, LS_DTYPE_U8, rank, NULL);
}

/* " 4x2" */
static const char *print_shape(const ls_param *param, char text[TEXT_BYTES]) {
    size_t used = 0;
    text[0] = 0;
    for (int d = 0; d < param->n_dims; d++)
        used += (size_t)snprintf(text + used, TEXT_BYTES - used, "%s%lld", d ? "x" : ", shape ",
                                 (long long)param->shape[d]);
    return text;
}

/* What `rank` has at this place. */
static ls_status ask(ls_group *group, int rank, const ls_param *params, int n_params, int index,
                     char text[TEXT_BYTES]) {
    char mine[TEXT_BYTES] = "missing", shape[TEXT_BYTES];
    if (index < n_params)
        snprintf(mine, sizeof mine, "'%.100s' (%lld elements%.80s, %s%s%s)", params[index].name,
                 (long long)params[index].count, print_shape(&params[index], shape),
                 ls_dtype_name(params[index].dtype),
                 params[index].flags & LS_PARAM_FROZEN ? ", frozen" : "",
                 params[index].flags & LS_PARAM_NO_DECAY ? ", no decay" : "");
    return hear(group, rank, mine, text);
}

static ls_status report(ls_group *group, const ls_param *params, int n_params,
                        const uint32_t *numbers, difference found) {
    _Alignas(float) char here[TEXT_BYTES], there[TEXT_BYTES];
    char list[LSI_MAX_RANKS * 12] = "";
    size_t used = 0;
    LSI_TRY(ask(group, 0, params, n_params, found.index, here));
    LSI_TRY(ask(group, found.rank, params, n_params, found.index, there));
    for (int r = 0; r < ls_group_world_size(group); r++)
        used += (size_t)snprintf(list + used, sizeof list - used, " %u", numbers[r]);
    return lsi_fail(LS_ERR_MISMATCH,
                    "the ranks built different models: parameter %d is %s on rank "
                    "%d and %s on rank %d; number of parameters by rank:%s",
                    found.index, here, lsi_world_rank(group, 0), there,
                    lsi_world_rank(group, found.rank), list);
}

ls_status lsi_agree_params(ls_group *group, const ls_param *params, int n_params) {
    uint32_t numbers[LSI_MAX_RANKS], mine = (uint32_t)n_params, longest = 0;
    difference found = {0, 0};
    LSI_TRY(ls_all_gather(group, &mine, numbers, 1, LS_DTYPE_I32, NULL));
    for (int r = 0; r < ls_group_world_size(group); r++)
        if (numbers[r] > longest) longest = numbers[r];
    LSI_TRY(compare_hashes(group, params, n_params, (int)longest, &found));
    return found.rank == 0 ? LS_OK : report(group, params, n_params, numbers, found);
}

/* The next two words, "name value"; returns their length, 0 at the end. */
static size_t pair_length(const char *at) {
    size_t name = strcspn(at, " ");
    return at[name] ? name + 1 + strcspn(at + name + 1, " ") : name;
}

static void append(char *list, const char *pair, size_t length) {
    size_t used = strlen(list);
    snprintf(list + used, TEXT_BYTES - used, "%s%.*s", used ? " " : "", (int)length, pair);
}

/* Of both texts, which have the same names in the same order, the pairs that differ. */
static void find_pairs(const char *here, const char *there, char *of_here, char *of_there) {
    *of_here = *of_there = 0;
    while (*here && *there) {
        size_t n = pair_length(here), m = pair_length(there);
        if (n != m || memcmp(here, there, n) != 0) {
            append(of_here, here, n);
            append(of_there, there, m);
        }
        here += n + (here[n] == ' ');
        there += m + (there[m] == ' ');
    }
}

ls_status lsi_agree_text(ls_group *group, const char *what, const char *text) {
    uint32_t hashes[LSI_MAX_RANKS], mine = hash_bytes(2166136261u, text, strlen(text));
    char here[TEXT_BYTES], there[TEXT_BYTES], of_here[TEXT_BYTES], of_there[TEXT_BYTES];
    LSI_TRY(ls_all_gather(group, &mine, hashes, 1, LS_DTYPE_I32, NULL));
    difference found = find_difference(hashes, ls_group_world_size(group), 1);
    if (found.rank == 0) return LS_OK;
    LSI_TRY(hear(group, 0, text, here));
    LSI_TRY(hear(group, found.rank, text, there));
    find_pairs(here, there, of_here, of_there);
    return lsi_fail(LS_ERR_MISMATCH, "the ranks have different %s: rank %d %s, rank %d %s", what,
                    lsi_world_rank(group, 0), of_here, lsi_world_rank(group, found.rank), of_there);
}
