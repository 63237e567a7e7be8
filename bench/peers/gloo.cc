// Gloo as engine: its TCP transport on the loopback, ranks that meet through files. Buffers come
// from malloc.
//
// Two programs' worth in one: PEER_GLOO=ring is gloo::allreduce, what PyTorch calls;
// PEER_GLOO=halving-doubling is the class AllreduceHalvingDoubling, which is set up for one buffer
// and then run again and again, as its interface wants.
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "core.h"

namespace {

using HalvingDoubling = gloo::AllreduceHalvingDoubling<float>;

std::shared_ptr<gloo::rendezvous::Context> context;
std::map<std::pair<float *, int64_t>, std::unique_ptr<HalvingDoubling>> prepared;

void *Alloc(size_t bytes) {
    return malloc(bytes);
}

void Barrier() {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
}

void Gather(double mine, double *all) {
    gloo::AllgatherOptions options(context);
    options.setInput(&mine, 1);
    options.setOutput(all, static_cast<size_t>(context->size));
    gloo::allgather(options);
}

void AllReduceRing(float *large, float *, int64_t count) {
    gloo::AllreduceOptions options(context);
    options.setOutput(large, static_cast<size_t>(count));
    options.setReduceFunction(
        static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
}

void AllReduceHalvingDoubling(float *large, float *, int64_t count) {
    auto &algorithm = prepared[{large, count}];
    if (!algorithm)
        algorithm = std::make_unique<HalvingDoubling>(context, std::vector<float *>{large},
                                                      static_cast<int>(count));
    algorithm->run();
}

void AllGather(float *large, float *small, int64_t count) {
    gloo::AllgatherOptions options(context);
    options.setInput(small, static_cast<size_t>(count));
    options.setOutput(large, static_cast<size_t>(count * context->size));
    gloo::allgather(options);
}

} // namespace

int main(int argc, char **argv) {
    const char *ranks = getenv("PEER_RANKS"), *way = getenv("PEER_GLOO");
    bool doubles = way && strcmp(way, "halving-doubling") == 0;
    char folder[] = "/tmp/lockstep-gloo-XXXXXX";
    peer_engine engine = {};
    engine.name = "gloo";
    engine.n_ranks = ranks ? atoi(ranks) : 2;
    if (!mkdtemp(folder)) peer_fail("gloo: no folder to meet in");
    engine.rank = peer_fork(engine.n_ranks);
    engine.alloc = Alloc;
    engine.barrier = Barrier;
    engine.gather = Gather;
    engine.call[PEER_ALL_REDUCE] = doubles ? AllReduceHalvingDoubling : AllReduceRing;
    engine.call[PEER_ALL_GATHER] = doubles ? nullptr : AllGather;

    struct gloo::transport::tcp::attr attr;
    attr.iface = "lo";
    auto device = gloo::transport::tcp::CreateDevice(attr);
    gloo::rendezvous::FileStore store(folder);
    context = std::make_shared<gloo::rendezvous::Context>(engine.rank, engine.n_ranks);
    context->connectFullMesh(store, device);

    int code = peer_measure(&engine, argc, argv);
    Barrier();
    if (engine.rank == 0) {
        std::string clean = std::string("rm -rf ") + folder;
        if (system(clean.c_str()) != 0) code = 1;
    }
    prepared.clear();
    return code;
}
