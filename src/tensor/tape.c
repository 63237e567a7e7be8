/* The tape in forward: tensors, nodes, errors, units (see tensor.h).
 *
 * State: recording (ops add nodes) -> backward ran (nodes are used up) -> reset. Not recording is
 * a state of its own for inference. An error is kept until reset, and everything that happens
 * after it does nothing.
 *
 * Invariant: whatever the tape took from the arena is reachable from its tensors (data, grad) or
 * its nodes (saved), so reset can give all of it back, whenever and wherever a pass ended. Scratch
 * memory that an op has not put into a node is the op's to release. */
#include "tensor/tape_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/trace.h"

ls_status lsi_tape_create(lsi_arena *arena, lsi_tape **tape) {
    lsi_tape *made = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *made);
    LSI_TRY(lsi_check_alloc(made));
    made->arena = arena;
    made->record = true;
    made->dtype = made->output_dtype = LS_DTYPE_F32;
    lsi_tape_seed(made, 0, 0, 0);
    *tape = made;
    return LS_OK;
}

void lsi_tape_destroy(lsi_tape *tape) {
    if (!tape) return;
    lsi_tape_reset(tape, false);
    for (int64_t i = 0; i < tape->n_chunks; i++) lsi_free(tape->chunks[i]);
    for (int i = 0; i < tape->n_products; i++) lsi_product_cache_destroy(tape->products[i]);
    lsi_free(tape->products);
    lsi_free(tape->chunks);
    lsi_free(tape->nodes);
    lsi_free(tape->leaves);
    lsi_free(tape);
}

static lsi_tensor *tensor_at(const lsi_tape *tape, int64_t i) {
    return &tape->chunks[i / LSI_TENSORS_PER_CHUNK][i % LSI_TENSORS_PER_CHUNK];
}

static void release_saved(lsi_tape *tape, const lsi_node *node) {
    for (int i = 0; i < LSI_NODE_SAVED; i++) lsi_arena_release(tape->arena, node->saved[i]);
}

void lsi_tape_reset(lsi_tape *tape, bool record) {
    for (int64_t i = 0; i < tape->n_nodes; i++) release_saved(tape, &tape->nodes[i]);
    for (int64_t i = 0; i < tape->n_tensors; i++) {
        lsi_tape_free_data(tape, tensor_at(tape, i));
        lsi_tape_free_grad(tape, tensor_at(tape, i));
    }
    if (tape->leaves) memset(tape->leaves, 0, (size_t)tape->leaf_capacity * sizeof *tape->leaves);
    tape->n_nodes = 0;
    tape->n_tensors = 0;
    tape->n_streams = 0;
    tape->unit = 0;
    tape->forgets = false;
    tape->record = record;
    tape->is_backward_run = false;
    tape->status = LS_OK;
    tape->message[0] = '\0';
}

void lsi_tape_set_dtype(lsi_tape *tape, ls_dtype dtype) {
    tape->dtype = dtype;
}

void lsi_tape_set_output_dtype(lsi_tape *tape, ls_dtype dtype) {
    tape->output_dtype = dtype;
}

void lsi_tape_checkpoint(lsi_tape *tape, int64_t n_units) {
    tape->n_checkpointed = n_units;
}

void lsi_tape_set_exchange(lsi_tape *tape, lsi_exchange exchange) {
    tape->exchange = exchange;
}

const lsi_exchange *lsi_tape_get_exchange(const lsi_tape *tape) {
    return tape->exchange.gather ? &tape->exchange : NULL;
}

void lsi_tape_profile(lsi_tape *tape, lsi_profile *profile) {
    tape->profile = profile;
}

void lsi_tape_begin_span(lsi_tape *tape) {
    tape->op_begin_ns = tape->profile ? lsi_now_ns() : lsi_trace_begin();
    tape->away_ns = 0;
    if (tape->profile) atomic_store_explicit(&tape->flops, 0, memory_order_relaxed);
}

int64_t lsi_tape_step_out(const lsi_tape *tape) {
    return tape->profile ? lsi_now_ns() : 0;
}

void lsi_tape_step_in(lsi_tape *tape, int64_t out_ns) {
    if (out_ns != 0) tape->away_ns += lsi_now_ns() - out_ns;
}

void lsi_tape_end_span(lsi_tape *tape, const char *name, lsi_phase phase) {
    lsi_trace_end(tape->op_begin_ns, LSI_TRACE_COMPUTE, name, -1);
    if (!tape->profile || tape->op_begin_ns == 0) return;
    int64_t flops = atomic_load_explicit(&tape->flops, memory_order_relaxed);
    int64_t own_ns = lsi_now_ns() - tape->op_begin_ns - tape->away_ns;
    lsi_profile_add(tape->profile, name, phase, own_ns, (double)flops);
}

static void count_flops(lsi_tape *tape, const lsi_product *p) {
    if (!tape->profile) return;
    atomic_fetch_add_explicit(&tape->flops, lsi_product_flops(p), memory_order_relaxed);
}

bool lsi_tape_is_recording(const lsi_tape *tape) {
    return tape->record;
}

ls_dtype lsi_tape_output_dtype(const lsi_tape *tape) {
    return tape->output_dtype;
}

/* ---- errors ---- */

ls_status lsi_tape_stick(lsi_tape *tape, ls_status status) {
    if (status == LS_OK || tape->status != LS_OK) return status;
    tape->status = status;
    snprintf(tape->message, sizeof tape->message, "%s", ls_last_message());
    return status;
}

ls_status lsi_tape_status(lsi_tape *tape) {
    if (tape->status != LS_OK) lsi_message_set(tape->message);
    return tape->status;
}

lsi_tensor *lsi_tape_fail(lsi_tape *tape, ls_status status, const char *format, ...) {
    char text[LSI_MESSAGE_BYTES];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    return lsi_tape_fail_with(tape, lsi_fail(status, "%s", text));
}

lsi_tensor *lsi_tape_fail_with(lsi_tape *tape, ls_status status) {
    (void)lsi_tape_stick(tape, status);
    return NULL;
}

/* ---- tensors ---- */

int64_t lsi_tensor_count(const lsi_tensor *t) {
    return lsi_tensor_rows(t) * lsi_tensor_columns(t);
}

int64_t lsi_tensor_rows(const lsi_tensor *t) {
    int64_t rows = 1;
    for (int i = 0; i + 1 < t->n_dims; i++) rows *= t->dims[i];
    return rows;
}

int64_t lsi_tensor_columns(const lsi_tensor *t) {
    return t->dims[t->n_dims - 1];
}

size_t lsi_tensor_bytes(const lsi_tensor *t) {
    return (size_t)lsi_tensor_count(t) * ls_dtype_bytes(t->dtype);
}

/* Every dim at least 1, and the bytes of all elements countable. */
static ls_status check_dims(int n_dims, const int64_t *dims) {
    if (n_dims < 1 || n_dims > LSI_MAX_DIMS)
        return lsi_fail(LS_ERR_ARGUMENT, "tensor: expected 1 to %d dims, found %d", LSI_MAX_DIMS,
                        n_dims);
    int64_t count = 1;
    for (int i = 0; i < n_dims; i++) {
        if (dims[i] < 1)
            return lsi_fail(LS_ERR_ARGUMENT, "tensor: expected dim %d to be at least 1, found %lld",
                            i, (long long)dims[i]);
        if (dims[i] > INT64_MAX / (int64_t)sizeof(float) / count)
            return lsi_fail(LS_ERR_ARGUMENT, "tensor: dim %d of %lld makes it too large to address",
                            i, (long long)dims[i]);
        count *= dims[i];
    }
    return LS_OK;
}

static ls_status add_chunk(lsi_tape *tape) {
    if (tape->n_chunks == tape->chunk_capacity) {
        int64_t capacity = tape->chunk_capacity == 0 ? 8 : tape->chunk_capacity * 2;
        lsi_tensor **grown =
            lsi_realloc(LSI_MEM_OTHER, tape->chunks, (size_t)capacity * sizeof(lsi_tensor *));
        LSI_TRY(lsi_check_alloc(grown));
        tape->chunks = grown;
        tape->chunk_capacity = capacity;
    }
    lsi_tensor *chunk = lsi_calloc(LSI_MEM_OTHER, LSI_TENSORS_PER_CHUNK, sizeof(lsi_tensor));
    LSI_TRY(lsi_check_alloc(chunk));
    tape->chunks[tape->n_chunks++] = chunk;
    return LS_OK;
}

lsi_tensor *lsi_tape_new_tensor(lsi_tape *tape, int n_dims, const int64_t *dims) {
    ls_status status = check_dims(n_dims, dims);
    if (status == LS_OK && tape->n_tensors == tape->n_chunks * LSI_TENSORS_PER_CHUNK)
        status = add_chunk(tape);
    if (status != LS_OK) return lsi_tape_fail_with(tape, status);
    lsi_tensor *t = tensor_at(tape, tape->n_tensors++);
    *t = (lsi_tensor){
        .n_dims = n_dims, .param_index = -1, .dtype = LS_DTYPE_F32, .unit = tape->unit};
    memcpy(t->dims, dims, (size_t)n_dims * sizeof *dims);
    return t;
}

static lsi_tensor *new_activation(lsi_tape *tape, ls_dtype dtype, int n_dims, const int64_t *dims) {
    if (tape->status != LS_OK) return NULL;
    lsi_tensor *t = lsi_tape_new_tensor(tape, n_dims, dims);
    if (!t) return NULL;
    t->dtype = dtype;
    t->data = lsi_tape_scratch(tape, lsi_tensor_bytes(t));
    return t->data ? t : NULL;
}

lsi_tensor *lsi_tape_activation(lsi_tape *tape, int n_dims, const int64_t *dims) {
    return new_activation(tape, tape->dtype, n_dims, dims);
}

lsi_tensor *lsi_tape_activation_f32(lsi_tape *tape, int n_dims, const int64_t *dims) {
    return new_activation(tape, LS_DTYPE_F32, n_dims, dims);
}

void *lsi_tape_scratch(lsi_tape *tape, size_t bytes) {
    void *ptr = lsi_arena_alloc(tape->arena, bytes);
    if (!ptr) (void)lsi_tape_stick(tape, LS_ERR_MEMORY);
    return ptr;
}

void lsi_tape_release(lsi_tape *tape, void *ptr) {
    lsi_arena_release(tape->arena, ptr);
}

static void *take_scratch(void *tape, size_t bytes) {
    return lsi_tape_scratch(tape, bytes);
}

static void give_scratch(void *tape, void *memory) {
    lsi_tape_release(tape, memory);
}

ls_status lsi_tape_multiply(lsi_tape *tape, const lsi_product *product) {
    LSI_TRY(lsi_tape_stick(tape, lsi_tape_reserve_workers(tape, 1)));
    lsi_scratch scratch = {take_scratch, give_scratch, tape};
    count_flops(tape, product);
    return lsi_tape_stick(tape, lsi_multiply(&tape->products[0], &scratch, product));
}

/* The arena belongs to the tape's thread. */
static void *take_heap(void *owner, size_t bytes) {
    (void)owner;
    return lsi_alloc(LSI_MEM_OTHER, bytes);
}

static void give_heap(void *owner, void *memory) {
    (void)owner;
    lsi_free(memory);
}

ls_status lsi_tape_multiply_by(lsi_tape *tape, int worker, const lsi_product *product) {
    lsi_scratch scratch = {take_heap, give_heap, NULL};
    count_flops(tape, product);
    return lsi_multiply(&tape->products[worker], &scratch, product);
}

ls_status lsi_tape_reserve_workers(lsi_tape *tape, int n_workers) {
    if (n_workers <= tape->n_products) return LS_OK;
    lsi_product_cache **grown =
        lsi_realloc(LSI_MEM_OTHER, tape->products, (size_t)n_workers * sizeof(lsi_product_cache *));
    LSI_TRY(lsi_check_alloc(grown));
    for (int i = tape->n_products; i < n_workers; i++) grown[i] = NULL;
    tape->products = grown;
    tape->n_products = n_workers;
    return LS_OK;
}

void lsi_tape_free_data(lsi_tape *tape, lsi_tensor *t) {
    if (t->param) return;
    lsi_arena_release(tape->arena, t->data);
    t->data = NULL;
}

void lsi_tape_free_grad(lsi_tape *tape, lsi_tensor *t) {
    if (t->param) return;
    lsi_arena_release(tape->arena, t->grad);
    t->grad = NULL;
}

/* All that the output of a node is made from is there, or can be made again itself, in the same
 * unit: in backward a strategy may have taken away the parameters of others. */
static bool can_remake(const lsi_tape *tape, const lsi_tensor *t) {
    if (t->producer == 0 || t->unit != tape->unit) return false;
    const lsi_node *node = &tape->nodes[t->producer - 1];
    if (!node->again) return false;
    for (int i = 0; i < LSI_NODE_INPUTS; i++) {
        const lsi_tensor *u = node->input[i];
        if (u && !u->param && !u->data && !can_remake(tape, u)) return false;
    }
    return true;
}

/* What leaves a unit is dropped in the next one, so it is kept. */
static bool may_forget(const lsi_tape *tape, const lsi_tensor *t) {
    if (t->producer == 0 || tape->is_backward_run) return false;
    bool is_cheap = tape->nodes[t->producer - 1].is_cheap;
    return (is_cheap || (tape->forgets && t->unit == tape->unit)) && can_remake(tape, t);
}

/* Holds what t is made from. Data that was freed because nobody reads it is forgotten as well. */
static void forget(lsi_tape *tape, lsi_tensor *t) {
    const lsi_node *node = &tape->nodes[t->producer - 1];
    lsi_tape_free_data(tape, t);
    t->is_forgotten = true;
    for (int i = 0; i < LSI_NODE_INPUTS; i++) {
        lsi_tensor *u = node->input[i];
        if (!u || u->param) continue;
        u->n_holds++;
        if (!u->data && !u->is_forgotten) forget(tape, u);
    }
}

void lsi_tape_drop(lsi_tape *tape, lsi_tensor *t) {
    if (!t || t->param || !t->data) return;
    if (t->n_readers == 0 && t->n_holds == 0)
        lsi_tape_free_data(tape, t);
    else if (may_forget(tape, t))
        forget(tape, t);
}

/* ---- nodes ---- */

ls_status lsi_tape_push(lsi_tape *tape, const lsi_node *node) {
    if (tape->n_nodes == tape->node_capacity) {
        int64_t capacity = tape->node_capacity == 0 ? 64 : tape->node_capacity * 2;
        lsi_node *grown =
            lsi_realloc(LSI_MEM_OTHER, tape->nodes, (size_t)capacity * sizeof *tape->nodes);
        LSI_TRY(lsi_check_alloc(grown));
        tape->nodes = grown;
        tape->node_capacity = capacity;
    }
    tape->nodes[tape->n_nodes++] = *node;
    return LS_OK;
}

static bool any_input_needs_grad(const lsi_node *node) {
    for (int i = 0; i < LSI_NODE_INPUTS; i++) {
        if (node->input[i] && node->input[i]->needs_grad) return true;
    }
    return false;
}

static void count_uses(const lsi_node *node) {
    for (int i = 0; i < LSI_NODE_INPUTS; i++) {
        if (!node->input[i]) continue;
        node->input[i]->n_uses++;
        if (node->reads & LSI_READS_INPUT(i)) node->input[i]->n_readers++;
    }
    if (node->reads & LSI_READS_OUTPUT) node->output->n_readers++;
}

void lsi_tape_record(lsi_tape *tape, const lsi_node *node) {
    lsi_tape_end_span(tape, node->name, LSI_PHASE_FORWARD);
    if (tape->status == LS_OK) (void)lsi_tape_raise(tape, LS_EVENT_PROGRESS, 0); /* it sticks */
    if (tape->status != LS_OK || !tape->record || !any_input_needs_grad(node) ||
        lsi_tape_stick(tape, lsi_tape_push(tape, node)) != LS_OK) {
        release_saved(tape, node);
        return;
    }
    count_uses(node);
    node->output->needs_grad = true;
    node->output->producer = tape->n_nodes;
}

/* ---- events and units ---- */

void lsi_tape_listen(lsi_tape *tape, ls_event_sink sink) {
    tape->sink = sink;
}

ls_status lsi_tape_raise(lsi_tape *tape, ls_event event, int index) {
    if (!tape->sink.on_event) return LS_OK;
    int64_t out_ns = lsi_tape_step_out(tape);
    ls_status status = tape->sink.on_event(tape->sink.context, event, index);
    lsi_tape_step_in(tape, out_ns);
    return lsi_tape_stick(tape, status);
}

static ls_status backward_enters_unit(lsi_tape *tape, lsi_node *node) {
    return lsi_tape_raise(tape, LS_EVENT_BEFORE_BACKWARD, (int)node->number[0]);
}

static ls_status backward_leaves_unit(lsi_tape *tape, lsi_node *node) {
    return lsi_tape_raise(tape, LS_EVENT_AFTER_BACKWARD, (int)node->number[0]);
}

/* A node without an output: backward always visits it. */
static void mark_unit(lsi_tape *tape, ls_event event, int unit, lsi_backward_fn backward) {
    if (tape->status != LS_OK || lsi_tape_raise(tape, event, unit) != LS_OK || !tape->record)
        return;
    lsi_node node = {.backward = backward, .name = "unit", .number = {unit}};
    (void)lsi_tape_stick(tape, lsi_tape_push(tape, &node));
}

void lsi_tape_unit_begin(lsi_tape *tape, int unit) {
    tape->unit++;
    tape->forgets = unit >= 1 && unit <= tape->n_checkpointed;
    mark_unit(tape, LS_EVENT_BEFORE_FORWARD, unit, backward_leaves_unit);
}

void lsi_tape_unit_end(lsi_tape *tape, int unit) {
    tape->unit++;
    tape->forgets = false;
    mark_unit(tape, LS_EVENT_AFTER_FORWARD, unit, backward_enters_unit);
}

/* ---- random numbers ---- */

void lsi_tape_seed(lsi_tape *tape, uint64_t seed, uint32_t step, uint32_t micro_batch) {
    tape->pass = lsi_rng_open(seed, LSI_RNG_DROPOUT, step, micro_batch);
    tape->n_streams = 0;
}

/* A stream has room for two labels, and these are step and micro-batch; so a layer gets a key of
 * its own, drawn from the stream of the pass at the layer's number. */
lsi_rng_stream lsi_tape_next_stream(lsi_tape *tape) {
    lsi_philox_block key = lsi_rng_block(&tape->pass, tape->n_streams++);
    lsi_rng_stream stream = tape->pass;
    stream.key[0] = key.word[0];
    stream.key[1] = key.word[1];
    return stream;
}
