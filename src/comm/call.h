/* The description of one collective call: what is compared between ranks, printed in messages and
 * kept by the recorder. Two calls match when everything but the time is equal; their fingerprints
 * are what peers compare on every call, the descriptions themselves only to explain a difference.
 */
#ifndef LSI_COMM_CALL_H
#define LSI_COMM_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <lockstep/group.h>

/* X(name, text, name in `lockstep bench` and LOCKSTEP_ALGO) */
#define LSI_CALL_TABLE(X)                                                                          \
    X(NONE, "no call", "-")                                                                        \
    X(BARRIER, "barrier", "barrier")                                                               \
    X(BROADCAST, "broadcast", "broadcast")                                                         \
    X(ALL_REDUCE, "all-reduce", "allreduce")                                                       \
    X(REDUCE, "reduce", "reduce")                                                                  \
    X(REDUCE_SCATTER, "reduce-scatter", "reducescatter")                                           \
    X(ALL_GATHER, "all-gather", "allgather")                                                       \
    X(GATHER, "gather", "gather")                                                                  \
    X(SCATTER, "scatter", "scatter")                                                               \
    X(ALL_TO_ALL, "all-to-all", "alltoall")                                                        \
    X(SEND, "send", "send")                                                                        \
    X(RECV, "receive", "recv")

typedef enum lsi_call_kind {
#define LSI_CALL_ENUM(name, text, short_name) LSI_CALL_##name,
    LSI_CALL_TABLE(LSI_CALL_ENUM)
#undef LSI_CALL_ENUM
        LSI_CALL_N_KINDS
} lsi_call_kind;

#define LSI_NOT_SHARED UINT64_MAX

typedef struct lsi_call {
    _Alignas(64) uint64_t number; /* from 1; 0: this record was never written */
    union {                       /* lowest bits first, as on all machines we know */
        struct {
            uint16_t kind, dtype, op, algorithm;
        };
        uint64_t what;
    };
    union {
        struct {
            int32_t root;        /* -1 if the call has none; the peer of a send or receive */
            uint32_t order_hash; /* of the order of reduction; of other calls the tag, 0: none */
        };
        uint64_t how;
    };
    int64_t count;        /* of the _v calls: of all ranks together */
    double scale;         /* 1 where the call has none */
    uint64_t counts_hash; /* of the _v calls' counts, else 0 */
    int64_t posted_ms;    /* coarse monotonic time; 0: it was over before that mattered */
} lsi_call;

enum { LSI_CALL_TEXT_BYTES = 192 };

const char *lsi_call_kind_name(int kind);
const char *lsi_call_short_name(int kind);
/* The kind of this short name, -1 if there is none. */
int lsi_call_kind_from(const char *short_name);
/* What must agree, as words. */
enum { LSI_CALL_WORDS = 5 };
static inline void lsi_call_words(const lsi_call *call, uint64_t word[LSI_CALL_WORDS]) {
    word[0] = call->what;
    word[1] = call->how;
    word[2] = (uint64_t)call->count;
    /* Scales are compared by their bits: a NaN must match itself. Each rank has its own factor
     * where it goes before the sum. */
    memcpy(&word[3], &call->scale, sizeof call->scale);
    if (call->op == LS_OP_PREMUL_SUM) word[3] = 0;
    word[4] = call->counts_hash;
}
/* Equal where the words are; else different but for one in 2^64 pairs of calls. A sum of products
 * with odd factors: calls that differ in one word always differ, and the products do not wait for
 * each other. */
static inline uint64_t lsi_words_fingerprint(const uint64_t w[LSI_CALL_WORDS]) {
    uint64_t sum = w[0] * 0x9E3779B97F4A7C15u + w[1] * 0xC2B2AE3D27D4EB4Fu +
                   w[2] * 0x165667B19E3779F9u + w[3] * 0xD6E8FEB86659FD93u +
                   w[4] * 0xA0761D6478BD642Fu;
    return sum ^ sum >> 29;
}
bool lsi_call_matches(const lsi_call *a, const lsi_call *b);
/* "all-reduce (sum, F32, count 100, scale 0.5)". Returns text. */
const char *lsi_call_print(const lsi_call *call, char text[LSI_CALL_TEXT_BYTES]);
/* The same with the root or peer as a rank of the world, member[] being those of the call's group.
 */
const char *lsi_call_print_in_world(const lsi_call *call, const int *member, int n_members,
                                    char text[LSI_CALL_TEXT_BYTES]);

#endif
