/* Inside of the tape, shared by tape.c (recording), leaf.c (parameters and inputs) and backward.c.
 *
 * Tensors live in chunks so that pointers to them stay valid while the tape grows. Chunks, the
 * array of nodes and the table of leaves keep their size over a reset: a second step like the first
 * allocates nothing. */
#ifndef LSI_TENSOR_TAPE_IMPL_H
#define LSI_TENSOR_TAPE_IMPL_H

#include <stdatomic.h>

#include "tensor/product.h"
#include "tensor/tensor.h"

enum { LSI_TENSORS_PER_CHUNK = 128 };

struct lsi_tape {
    lsi_arena *arena;
    lsi_product_cache **products; /* prepared matrix products of each worker, over resets */
    int n_products;
    ls_dtype dtype;         /* of activations made from now on */
    ls_dtype output_dtype;  /* whose numbers logits are */
    int64_t n_checkpointed; /* units 1 to this one forget */
    int64_t unit;           /* parts of this pass begun so far */
    bool forgets;           /* the part at hand is a checkpointed unit */
    ls_event_sink sink;
    lsi_exchange exchange; /* gather NULL: none */
    bool record;
    bool accumulate;      /* leaves made from now on add to their gradient */
    bool is_backward_run; /* since reset */

    ls_status status; /* first error since reset, and its message */
    char message[LSI_MESSAGE_BYTES];

    lsi_tensor **chunks;
    int64_t n_chunks, chunk_capacity;
    int64_t n_tensors;

    lsi_node *nodes; /* in the order of forward; backward takes them off the end */
    int64_t n_nodes, node_capacity;

    lsi_tensor **leaves; /* by parameter index; NULL where there is none */
    int64_t leaf_capacity;

    lsi_rng_stream pass; /* of this seed, step and micro-batch */
    uint32_t n_streams;  /* dropout calls since reset */
    int64_t op_begin_ns; /* for trace and profile; 0: neither is on */
    int64_t away_ns;     /* of it, where there is a profile: not the op's own */
    lsi_profile *profile;
    _Atomic int64_t flops; /* of products since op_begin_ns */
};

/* A zeroed tensor that needs no memory of the arena yet; NULL with the sticky error set. */
lsi_tensor *lsi_tape_new_tensor(lsi_tape *tape, int n_dims, const int64_t *dims);
/* Adds a node at the end; does not count uses. */
ls_status lsi_tape_push(lsi_tape *tape, const lsi_node *node);
/* Makes status the sticky error unless there is one; returns it. The thread's message counts. */
ls_status lsi_tape_stick(lsi_tape *tape, ls_status status);
ls_status lsi_tape_raise(lsi_tape *tape, ls_event event, int index);
/* lsi_tape_multiply for worker number `worker` of a loop over ranges, which prepares its products
 * itself; reserve_workers comes before the loop, with
 * scratch memory from the heap. */
ls_status lsi_tape_multiply_by(lsi_tape *tape, int worker, const lsi_product *product);
ls_status lsi_tape_reserve_workers(lsi_tape *tape, int n_workers);
/* The data of an activation, computed again if it was forgotten. */
ls_status lsi_tape_remake(lsi_tape *tape, lsi_tensor *t);
/* Leaves among the node's inputs get the buffers that their parameters have now. */
void lsi_node_refresh_leaves(const lsi_node *node);
/* The span of an op or of its backward, for trace and profile. */
void lsi_tape_begin_span(lsi_tape *tape);
void lsi_tape_end_span(lsi_tape *tape, const char *name, lsi_phase phase);
/* Around what may wait for other ranks: profiles have a row of its own for that. */
int64_t lsi_tape_step_out(const lsi_tape *tape);
void lsi_tape_step_in(lsi_tape *tape, int64_t out_ns);
/* Gives an activation's data or gradient back to the arena; leaves are left alone. */
void lsi_tape_free_data(lsi_tape *tape, lsi_tensor *t);
void lsi_tape_free_grad(lsi_tape *tape, lsi_tensor *t);

#endif
