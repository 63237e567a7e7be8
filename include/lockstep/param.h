/* A parameter as strategies see it: a named flat buffer and the buffer of its gradient.
 *
 * Both our models and foreign training loops describe parameters this way. */
#ifndef LOCKSTEP_PARAM_H
#define LOCKSTEP_PARAM_H

#include <stdint.h>

#include <lockstep/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LS_MAX_DIMS = 8 };

enum {
    LS_PARAM_NO_DECAY = 1u << 0, /* weight decay leaves it alone (biases, norms) */
    LS_PARAM_FROZEN = 1u << 1,   /* no gradient, no update */
};

typedef struct ls_param {
    const char *name; /* unique in the model; borrowed, lives as long as the model */
    int64_t count;    /* elements */
    ls_dtype dtype;   /* of data: F32, BF16, F16 or F64 */
    uint32_t flags;   /* LS_PARAM_… */
    void *data;       /* count elements, owned by the model */
    void *grad;       /* count elements of ls_grad_dtype(dtype); a strategy points it into its
                         buckets. NULL: frozen, or no rank used the parameter in this step */
    /* What the elements mean, outermost dim first. Compared between ranks; hooks that compress
     * matrices need it. n_dims 0: not said. */
    int n_dims;
    int64_t shape[LS_MAX_DIMS];
} ls_param;

/* Type of the gradient of a parameter: F64 of F64, F32 of everything else, so that sums over ranks
 * and micro-batches keep what narrow types would lose. Any thread. */
static inline ls_dtype ls_grad_dtype(ls_dtype dtype) {
    return dtype == LS_DTYPE_F64 ? LS_DTYPE_F64 : LS_DTYPE_F32;
}

#ifdef __cplusplus
}
#endif
#endif
