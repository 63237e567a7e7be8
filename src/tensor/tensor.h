/* Tensors, the tape that records what was computed, and the arena that holds activations.
 *
 * Reading order: tensor.h (this file), tape.c, then any file of op/.
 *
 * A tensor is a contiguous row-major block of float32 or bfloat16 with up to four dims. Two kinds
 * exist:
 *   - leaf: wraps an ls_param; data and grad are owned by the model and the strategy;
 *   - activation: made by an op, data and grad live in the tape's arena. Its gradient has the type
 *     of its data; a parameter's gradient is always float32.
 *
 * [Note: types] A tape has a type for activations (lsi_tape_set_dtype). Kernels compute in float32
 * whatever the type: they read rows through rows.h, which widens, and store with one rounding to
 * nearest even. Products of bfloat16 matrices accumulate in float32. Logits, losses, statistics of
 * norms and gradients of parameters are float32; logits can be rounded before the loss sees them
 * (lsi_tape_set_output_dtype).
 *
 * An op computes at once and, if the tape records, leaves a node with what its backward needs.
 * lsi_tape_backward visits the nodes in reverse. When a node is done, the memory of its outputs
 * and of what it saved goes back to the arena; when the last use of a parameter is done, the tape
 * raises LS_EVENT_GRAD_READY for it.
 *
 * [Note: who keeps data] A node copies no activation: it says in `reads` which tensors its backward
 * will read, and a tensor counts those nodes (n_readers). During forward everything stays, because
 * the model may use a tensor again; lsi_tape_drop is the model's word that it will not. From the
 * start of backward on, data without readers goes at once, the rest with its last reader. Nodes run
 * in reverse, so when a tensor's producer is done all its consumers are, and data and gradient are
 * gone at the latest then. The loss keeps its data and inputs their gradient until reset.
 *
 * [Note: forgotten data] Data that backward reads can also be computed again: lsi_tape_drop frees
 * it at once if its producer can run again (`again` of a node) and either is cheap (a norm, an
 * activation function) or belongs to a unit that is checkpointed (lsi_tape_checkpoint). Before the
 * backward of a node runs, the tape makes what it reads again, going back along producers as far as
 * needed; the random numbers of dropout are those of the node, so the bits are the same. A
 * forgotten tensor holds the inputs of its producer (n_holds) until that has had its backward: they
 * stay, or are forgotten in their turn.
 *
 * [Note: gradients overwrite first] A gradient buffer is never cleared. Its first contribution in
 * a backward pass overwrites (GEMM with beta = 0), later ones add (beta = 1);
 * lsi_grad says which (`first`) and flips the mark. Parameters can be told to add from the start
 * (lsi_tape_accumulate), which is how micro-batches are summed.
 *
 * [Note: exchange] This layer knows no other ranks. An op that needs sums over the rows of all of
 * them (batch_norm) asks the tape's exchange, if it has one (lsi_tape_set_exchange): once in
 * forward, and once in backward if its input needs a gradient. All ranks run the same ops on the
 * same shapes but for the number of rows, so they make the same calls in the same order. Computing
 * forgotten data again asks nobody: it uses what the node saved.
 *
 * [Note: sticky errors] Ops return NULL when something is wrong (shapes, memory) and leave the
 * reason in the tape; an op that is handed NULL returns NULL. So model code reads as mathematics
 * and checks once: lsi_tape_status. */
#ifndef LSI_TENSOR_TENSOR_H
#define LSI_TENSOR_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#include <lockstep/event.h>
#include <lockstep/param.h>

#include "base/message.h"
#include "base/rng.h"
#include "tensor/product.h"
#include "tensor/profile.h"

enum { LSI_MAX_DIMS = 4 };

typedef struct lsi_tensor {
    void *data;     /* elements of dtype */
    void *grad;     /* activations: NULL until backward needs it; leaves: param->grad */
    ls_dtype dtype; /* LS_DTYPE_F32 or LS_DTYPE_BF16 */
    int64_t dims[LSI_MAX_DIMS];
    int n_dims;
    int param_index; /* leaf: index for LS_EVENT_GRAD_READY; activation: -1 */
    ls_param *param; /* leaf: what it wraps; activation: NULL */
    bool needs_grad;
    bool grad_written; /* the next contribution adds instead of overwriting */
    int n_uses;        /* recorded uses whose backward has not run */
    int n_readers;     /* those of them (and its producer) whose backward reads data */
    int n_holds;       /* forgotten tensors that are made from it */
    bool is_forgotten;
    int64_t producer; /* number of the node whose output it is, from 1; 0: none recorded */
    int64_t unit;     /* in which part of the pass it was made, see lsi_tape_unit_begin */
} lsi_tensor;

int64_t lsi_tensor_count(const lsi_tensor *t);   /* elements */
int64_t lsi_tensor_rows(const lsi_tensor *t);    /* product of all dims but the last */
int64_t lsi_tensor_columns(const lsi_tensor *t); /* the last dim */
size_t lsi_tensor_bytes(const lsi_tensor *t);    /* of data */

/* ---- arena: one reserved range of addresses, first fit, neighbours merge on release ---- */

typedef struct lsi_arena lsi_arena;

/* Reserves reserve_bytes of addresses (not memory). What was ever touched is accounted as
 * LSI_MEM_ACTIVATIONS (the high-water mark of addresses in use, lsi_arena_peak_bytes). */
LS_CHECKED ls_status lsi_arena_create(size_t reserve_bytes, lsi_arena **arena);
void lsi_arena_destroy(lsi_arena *arena);
/* 64-byte aligned, not zeroed; NULL with a message when the reservation is used up. Deterministic:
 * the same sequence of calls gives the same addresses. */
void *lsi_arena_alloc(lsi_arena *arena, size_t bytes);
void lsi_arena_release(lsi_arena *arena, void *ptr); /* NULL or not in use: does nothing */
void lsi_arena_reset(lsi_arena *arena);              /* releases everything */
size_t lsi_arena_used_bytes(const lsi_arena *arena);
size_t lsi_arena_peak_bytes(const lsi_arena *arena);

/* ---- tape ---- */

typedef struct lsi_tape lsi_tape;

/* The arena is borrowed; several tapes may share it. Starts recording, with seed 0. */
LS_CHECKED ls_status lsi_tape_create(lsi_arena *arena, lsi_tape **tape);
void lsi_tape_destroy(lsi_tape *tape);
/* Forgets all nodes, activations and errors; leaves keep data and grad. record = false: inference,
 * ops leave no nodes. */
void lsi_tape_reset(lsi_tape *tape, bool record);
/* Type of activations made from now on: LS_DTYPE_F32 (at first) or LS_DTYPE_BF16. */
void lsi_tape_set_dtype(lsi_tape *tape, ls_dtype dtype);
/* Type of what a model hands to its loss: LS_DTYPE_F32 (at first) or LS_DTYPE_BF16. Logits are made
 * in float32 whatever the type of activations, and rounded to this one, as is their gradient: the
 * two ways of a cast. */
void lsi_tape_set_output_dtype(lsi_tape *tape, ls_dtype dtype);
/* Units with numbers 1 to n_units keep nothing between forward and backward but what enters and
 * leaves them; backward runs them again. 0: none (at first). */
void lsi_tape_checkpoint(lsi_tape *tape, int64_t n_units);
/* Adds time and operations of every op to profile (borrowed) from now on; NULL: no more. */
void lsi_tape_profile(lsi_tape *tape, lsi_profile *profile);
/* Who hears of gradients. Borrowed context. */
void lsi_tape_listen(lsi_tape *tape, ls_event_sink sink);
/* How ops reach the other ranks, see [Note: exchange]. */
typedef struct lsi_exchange {
    /* all[k * count …] becomes what rank k gives, on every rank; blocks. Called by all ranks with
     * the same count. */
    ls_status (*gather)(void *context, const double *mine, int64_t count, double *all);
    void *context; /* borrowed */
    int n_ranks;   /* of which this is one */
} lsi_exchange;

/* From now on, over resets; not between forward and its backward. {0}: no other ranks (at first).
 * With one rank results have the bits of a tape without. */
void lsi_tape_set_exchange(lsi_tape *tape, lsi_exchange exchange);
/* Random numbers of dropout: (seed, step, global index of the micro-batch). Each dropout call of a
 * forward pass takes the next layer number by itself. */
void lsi_tape_seed(lsi_tape *tape, uint64_t seed, uint32_t step, uint32_t micro_batch);
/* First error since reset, with its message restored for this thread. */
LS_CHECKED ls_status lsi_tape_status(lsi_tape *tape);

/* A leaf for a parameter (lives until lsi_tape_reset). index goes into LS_EVENT_GRAD_READY. Call
 * it again for the same parameter and index to get the same leaf (tied weights). */
lsi_tensor *lsi_tape_param(lsi_tape *tape, ls_param *param, int index, int n_dims,
                           const int64_t *dims);
/* A constant input: n floats are copied into the arena as the tape's type; needs no gradient unless
 * asked. */
lsi_tensor *lsi_tape_input(lsi_tape *tape, const float *values, int n_dims, const int64_t *dims,
                           bool needs_grad);
/* The model will not use this activation again: its data goes back to the arena now unless a
 * recorded node still reads it and it cannot be made again ([Note: forgotten data]). Optional. A
 * leaf, NULL or a tensor already dropped: does nothing. Drop after the last use (dropout with p = 0
 * returns its input itself). */
void lsi_tape_drop(lsi_tape *tape, lsi_tensor *t);
/* Whether parameter gradients add to what is in param->grad (true: later micro-batches) or
 * overwrite it (false: the first). Takes effect for leaves made afterwards. */
void lsi_tape_accumulate(lsi_tape *tape, bool add);
/* Marks the border of a unit (transformer block …): raises BEFORE_/AFTER_FORWARD now and
 * AFTER_/BEFORE_BACKWARD when backward passes the same place. */
void lsi_tape_unit_begin(lsi_tape *tape, int unit);
void lsi_tape_unit_end(lsi_tape *tape, int unit);
/* Back-propagates from `loss` (any shape; its gradient is set to ones), raising events, ending
 * with LS_EVENT_END_OF_BACKWARD. Once per recording. A parameter whose uses do not lead to the loss
 * gets a gradient of zeros and its event like any other. Afterwards of all activations only the
 * loss and gradients of inputs are there. */
LS_CHECKED ls_status lsi_tape_backward(lsi_tape *tape, lsi_tensor *loss);

/* ---- for op files ---- */

typedef struct lsi_node lsi_node;
typedef ls_status (*lsi_backward_fn)(lsi_tape *tape, lsi_node *node);
/* Computes node->output->data (memory is there) from the data of the inputs and what the node
 * saved, with the bits of the first time. */
typedef ls_status (*lsi_again_fn)(lsi_tape *tape, lsi_node *node);

enum { LSI_NODE_INPUTS = 4, LSI_NODE_SAVED = 4 };

/* Bits of lsi_node.reads. */
#define LSI_READS_INPUT(i) (1u << (i))
#define LSI_READS_OUTPUT (1u << LSI_NODE_INPUTS)

struct lsi_node {
    lsi_backward_fn backward;
    lsi_again_fn again; /* NULL: the output is never forgotten */
    bool is_cheap;      /* again costs so little that the output is always forgotten when dropped */
    const char *name;   /* op name for traces and errors; a string literal */
    lsi_tensor *input[LSI_NODE_INPUTS]; /* unused: NULL */
    lsi_tensor *output;
    uint32_t reads;              /* whose data backward reads: LSI_READS_… */
    void *saved[LSI_NODE_SAVED]; /* arena memory, released after backward */
    int64_t number[4];           /* small facts: n_heads, label … */
    float scalar;
    lsi_rng_stream stream; /* dropout */
};

/* A new activation of the tape's type with arena memory for data; NULL on failure. */
lsi_tensor *lsi_tape_activation(lsi_tape *tape, int n_dims, const int64_t *dims);
/* The same, always float32: losses. */
lsi_tensor *lsi_tape_activation_f32(lsi_tape *tape, int n_dims, const int64_t *dims);
/* A product with scratch memory of the arena. The sticky error on failure. */
ls_status lsi_tape_multiply(lsi_tape *tape, const lsi_product *product);
/* Scratch from the arena; the op releases it (lsi_tape_release) or saves it in a node. */
void *lsi_tape_scratch(lsi_tape *tape, size_t bytes);
void lsi_tape_release(lsi_tape *tape, void *ptr);
bool lsi_tape_is_recording(const lsi_tape *tape);
ls_dtype lsi_tape_output_dtype(const lsi_tape *tape);
/* NULL: there are no other ranks. */
const lsi_exchange *lsi_tape_get_exchange(const lsi_tape *tape);
/* Next dropout stream of this forward pass. */
lsi_rng_stream lsi_tape_next_stream(lsi_tape *tape);
/* Records a copy of *node (inputs counted as used, output->needs_grad set if any input needs it).
 * When the tape does not record or no input needs a gradient, releases node->saved instead. */
void lsi_tape_record(lsi_tape *tape, const lsi_node *node);
/* Sets the sticky error; returns NULL so that ops can `return lsi_tape_fail(…)`. */
lsi_tensor *lsi_tape_fail(lsi_tape *tape, ls_status status, const char *format, ...)
    LSI_PRINTF(3, 4);
/* The same for a failure that has left its message already. LS_OK: only returns NULL. */
lsi_tensor *lsi_tape_fail_with(lsi_tape *tape, ls_status status);
/* The gradient buffer of an input, allocated at its first contribution; NULL if it needs none.
 * *first says whether to overwrite. Memory trouble: NULL and the sticky error. */
void *lsi_grad(lsi_tape *tape, lsi_tensor *t, bool *first);
/* Its type: float32 for parameters, else that of the data. */
ls_dtype lsi_grad_dtype(const lsi_tensor *t);
/* The same for an op whose input gradient can be computed in place of its output's: at the first
 * contribution an activation takes over the buffer of node->output (the two pointers are then
 * equal and output->grad is NULL), so no memory is needed. Call it as the last use of the output's
 * gradient. The shapes must have the same number of elements, and a parameter, whose gradient may
 * have another type, never inherits. */
void *lsi_grad_inherit(lsi_tape *tape, lsi_node *node, lsi_tensor *t, bool *first);

#endif
