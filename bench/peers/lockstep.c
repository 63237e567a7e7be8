/* Lockstep as engine, through its public interface; started by `lockstep run`. PEER_BUFFERS=plain
 * takes buffers from malloc instead of shared ones. */
#include <lockstep/lockstep.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

static ls_group *group;

static void check(ls_status status) {
    if (status != LS_OK) peer_fail("lockstep: %s", ls_last_message());
}

static void *alloc_shared(size_t bytes) {
    void *memory = NULL;
    check(ls_group_alloc_shared(group, bytes, &memory));
    return memory;
}
static void *alloc_plain(size_t bytes) {
    return malloc(bytes);
}
static void barrier(void) {
    check(ls_barrier(group, NULL));
}
static void gather(double mine, double *all) {
    check(ls_all_gather(group, &mine, all, 1, LS_DTYPE_F64, NULL));
}

static void all_reduce(float *large, float *small, int64_t count) {
    (void)small;
    check(ls_all_reduce(group, large, large, count, LS_DTYPE_F32, LS_OP_SUM, 1.0, NULL));
}
static void reduce_scatter(float *large, float *small, int64_t count) {
    check(ls_reduce_scatter(group, large, small, count, LS_DTYPE_F32, LS_OP_SUM, 1.0, NULL));
}
static void all_gather(float *large, float *small, int64_t count) {
    check(ls_all_gather(group, small, large, count, LS_DTYPE_F32, NULL));
}
static void all_gather_in_place(float *large, float *small, int64_t count) {
    (void)small;
    const float *own = large + ls_group_rank(group) * count;
    check(ls_all_gather(group, own, large, count, LS_DTYPE_F32, NULL));
}
static void broadcast(float *large, float *small, int64_t count) {
    (void)small;
    check(ls_broadcast(group, large, large, count, LS_DTYPE_F32, 0, NULL));
}

int main(int argc, char **argv) {
    const char *buffers = getenv("PEER_BUFFERS");
    int is_plain = buffers && strcmp(buffers, "plain") == 0;
    check(ls_group_create(60000, &group));
    peer_engine engine = {
        .name = "lockstep",
        .rank = ls_group_rank(group),
        .n_ranks = ls_group_world_size(group),
        .alloc = is_plain ? alloc_plain : alloc_shared,
        .barrier = barrier,
        .gather = gather,
        .call = {all_reduce, reduce_scatter, all_gather, all_gather_in_place, broadcast}};
    int code = peer_measure(&engine, argc, argv);
    ls_group_destroy(group);
    return code;
}
