/* An MPI as engine: the same source for Open MPI and MPICH. Buffers come from malloc, as users'
 * buffers do. */
#include <mpi.h>
#include <stdlib.h>

#include "core.h"

static void *alloc(size_t bytes) {
    return malloc(bytes);
}
static void barrier(void) {
    MPI_Barrier(MPI_COMM_WORLD);
}
static void gather(double mine, double *all) {
    MPI_Allgather(&mine, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, MPI_COMM_WORLD);
}

static int as_int(int64_t count) {
    if (count > INT32_MAX) peer_fail("mpi: counts above 2^31 - 1 are not measured");
    return (int)count;
}

static void all_reduce(float *large, float *small, int64_t count) {
    (void)small;
    MPI_Allreduce(MPI_IN_PLACE, large, as_int(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void reduce_scatter(float *large, float *small, int64_t count) {
    MPI_Reduce_scatter_block(large, small, as_int(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void all_gather(float *large, float *small, int64_t count) {
    MPI_Allgather(small, as_int(count), MPI_FLOAT, large, as_int(count), MPI_FLOAT, MPI_COMM_WORLD);
}
static void all_gather_in_place(float *large, float *small, int64_t count) {
    (void)small;
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, large, as_int(count), MPI_FLOAT, MPI_COMM_WORLD);
}
static void broadcast(float *large, float *small, int64_t count) {
    (void)small;
    MPI_Bcast(large, as_int(count), MPI_FLOAT, 0, MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    peer_engine engine = {
        .name = "mpi",
        .alloc = alloc,
        .barrier = barrier,
        .gather = gather,
        .call = {all_reduce, reduce_scatter, all_gather, all_gather_in_place, broadcast}};
    MPI_Comm_rank(MPI_COMM_WORLD, &engine.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &engine.n_ranks);
    int code = peer_measure(&engine, argc, argv);
    MPI_Finalize();
    return code;
}
