/* The description of one collective call: what is published to the peers, compared by them and
 * printed in messages. Two calls match when everything but the buffers is equal. */
#ifndef LSI_COMM_CALL_H
#define LSI_COMM_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lockstep/group.h>

/* X(name, text) */
#define LSI_CALL_TABLE(X)                                                                          \
    X(NONE, "no call")                                                                             \
    X(BARRIER, "barrier")                                                                          \
    X(BROADCAST, "broadcast")                                                                      \
    X(ALL_REDUCE, "all-reduce")                                                                    \
    X(REDUCE_SCATTER, "reduce-scatter")                                                            \
    X(ALL_GATHER, "all-gather")

typedef enum lsi_call_kind {
#define LSI_CALL_ENUM(name, text) LSI_CALL_##name,
    LSI_CALL_TABLE(LSI_CALL_ENUM)
#undef LSI_CALL_ENUM
        LSI_CALL_N_KINDS
} lsi_call_kind;

#define LSI_NOT_SHARED UINT64_MAX

typedef struct lsi_call {
    _Alignas(64) uint32_t order_hash; /* of the summation order, 0 if the call does not sum */
    uint16_t kind;
    uint16_t dtype;
    int32_t op;
    int32_t root; /* -1 if the call has none */
    int64_t count;
    double scale;
    uint64_t input, output; /* offsets in the region or LSI_NOT_SHARED; not compared */
} lsi_call;

enum { LSI_CALL_TEXT_BYTES = 160 };

const char *lsi_call_kind_name(int kind);
bool lsi_call_matches(const lsi_call *a, const lsi_call *b);
/* "all-reduce (sum, F32, count 100, scale 0.5)". Returns text. */
const char *lsi_call_print(const lsi_call *call, char text[LSI_CALL_TEXT_BYTES]);

#endif
