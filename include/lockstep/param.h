/* A parameter as strategies see it: a named flat buffer and the buffer of its gradient.
 *
 * Both our models and foreign training loops describe parameters this way. Shapes do not matter
 * to a strategy, so they are not here. */
#ifndef LOCKSTEP_PARAM_H
#define LOCKSTEP_PARAM_H

#include <stdint.h>

#include <lockstep/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LS_PARAM_NO_DECAY = 1u << 0, /* weight decay leaves it alone (biases, norms) */
    LS_PARAM_FROZEN = 1u << 1,   /* no gradient, no update */
};

typedef struct ls_param {
    const char *name; /* unique in the model; borrowed, lives as long as the model */
    int64_t count;    /* elements */
    ls_dtype dtype;   /* of data: LS_DTYPE_F32 or LS_DTYPE_BF16 */
    uint32_t flags;   /* LS_PARAM_… */
    void *data;       /* count elements, owned by the model */
    void *grad;       /* count float32 elements; a strategy points it into its buckets */
} ls_param;

#ifdef __cplusplus
}
#endif
#endif
