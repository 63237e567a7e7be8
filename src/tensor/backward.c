/* The tape in backward: nodes in reverse, gradients, events (see tensor.h).
 *
 * What happens at one node, in this order:
 *   1. its backward function turns the gradient of its output into contributions to those of its
 *      inputs; a node whose output got no gradient does not lead to the loss and is skipped;
 *   2. memory goes back: what the node saved, data that nobody reads any more, its output;
 *   3. parameters whose last use this was: LS_EVENT_GRAD_READY. Inputs are taken last to first,
 *      bias before weight, so that parameters become ready in exactly the reverse order of use;
 *   4. LS_EVENT_PROGRESS if no event was raised.
 * A failure at any point stops the pass; reset cleans up. */
#include "tensor/tape_impl.h"

#include <string.h>

#include "base/trace.h"
#include "tensor/rows.h"

/* ---- gradient buffers ---- */

/* The buffer of a parameter's gradient, or NULL with the sticky error. Who has no buffer for it yet
 * may make one when asked. */
static void *param_grad(lsi_tape *tape, lsi_tensor *leaf) {
    if (!leaf->grad) {
        if (lsi_tape_raise(tape, LS_EVENT_GRAD_NEEDED, leaf->param_index) != LS_OK) return NULL;
        leaf->grad = leaf->param->grad;
    }
    if (!leaf->grad)
        (void)lsi_tape_fail(tape, LS_ERR_STATE, "parameter %s: it has no gradient buffer",
                            leaf->param->name);
    return leaf->grad;
}

ls_dtype lsi_grad_dtype(const lsi_tensor *t) {
    return t->param ? LS_DTYPE_F32 : t->dtype;
}

void *lsi_grad(lsi_tape *tape, lsi_tensor *t, bool *first) {
    if (!t || !t->needs_grad) return NULL;
    if (t->param) {
        if (!param_grad(tape, t)) return NULL;
    } else if (!t->grad) {
        t->grad = lsi_tape_scratch(tape, lsi_tensor_bytes(t));
        if (!t->grad) return NULL;
    }
    *first = !t->grad_written;
    t->grad_written = true;
    return t->grad;
}

void *lsi_grad_inherit(lsi_tape *tape, lsi_node *node, lsi_tensor *t, bool *first) {
    bool is_heir = t && t->needs_grad && !t->param && !t->grad && t->dtype == node->output->dtype;
    if (!is_heir) return lsi_grad(tape, t, first);
    t->grad = node->output->grad;
    node->output->grad = NULL;
    t->grad_written = true;
    *first = true;
    return t->grad;
}

/* ---- forgotten data ---- */

void lsi_node_refresh_leaves(const lsi_node *node) {
    for (int i = 0; i < LSI_NODE_INPUTS; i++) {
        lsi_tensor *t = node->input[i];
        if (!t || !t->param) continue;
        t->data = t->param->data;
        t->grad = t->param->grad;
    }
}

/* What was made only to make something else from it. */
static void free_steps(lsi_tape *tape, const lsi_node *node) {
    for (int i = 0; i < LSI_NODE_INPUTS; i++) {
        lsi_tensor *t = node->input[i];
        if (t && t->is_forgotten && t->n_readers == 0) lsi_tape_free_data(tape, t);
    }
}

/* The output of the node will not be made again. */
static void release_holds(lsi_tape *tape, const lsi_node *node, const lsi_tensor *loss) {
    if (!node->output->is_forgotten) return;
    for (int i = 0; i < LSI_NODE_INPUTS; i++) {
        lsi_tensor *t = node->input[i];
        if (!t || t->param || --t->n_holds > 0 || t->n_readers > 0 || t == loss) continue;
        lsi_tape_free_data(tape, t);
    }
}

static ls_status make_again(lsi_tape *tape, lsi_node *node) {
    for (int i = 0; i < LSI_NODE_INPUTS; i++)
        if (node->input[i] && !node->input[i]->param)
            LSI_TRY(lsi_tape_remake(tape, node->input[i]));
    lsi_tensor *t = node->output;
    t->data = lsi_tape_scratch(tape, lsi_tensor_bytes(t));
    if (!t->data) return lsi_tape_status(tape);
    lsi_node_refresh_leaves(node);
    lsi_tape_begin_span(tape);
    LSI_TRY(lsi_context(node->again(tape, node), "recomputing %s", node->name));
    lsi_tape_end_span(tape, node->name, LSI_PHASE_AGAIN);
    free_steps(tape, node);
    return LS_OK;
}

ls_status lsi_tape_remake(lsi_tape *tape, lsi_tensor *t) {
    if (t->data) return LS_OK;
    lsi_node *node = t->producer ? &tape->nodes[t->producer - 1] : NULL;
    if (node && node->again) return make_again(tape, node);
    return lsi_fail(LS_ERR_STATE, "backward: the data of %s is gone and cannot be made again",
                    node ? node->name : "an input");
}

/* All that the backward of a node reads is there. */
static ls_status remake_reads(lsi_tape *tape, const lsi_node *node) {
    for (int i = 0; i < LSI_NODE_INPUTS; i++)
        if (node->reads & LSI_READS_INPUT(i) && !node->input[i]->param)
            LSI_TRY(lsi_tape_remake(tape, node->input[i]));
    if (node->reads & LSI_READS_OUTPUT) LSI_TRY(lsi_tape_remake(tape, node->output));
    return LS_OK;
}

/* ---- one node ---- */

static ls_status run(lsi_tape *tape, lsi_node *node) {
    LSI_TRY(remake_reads(tape, node));
    lsi_node_refresh_leaves(node);
    lsi_tape_begin_span(tape);
    ls_status status = node->backward(tape, node);
    lsi_tape_end_span(tape, node->name, LSI_PHASE_BACKWARD);
    if (status == LS_OK) status = lsi_tape_status(tape);
    return lsi_context(status, "backward of %s", node->name);
}

static void drop_reader(lsi_tape *tape, lsi_tensor *t, const lsi_tensor *loss) {
    if (--t->n_readers == 0 && t->n_holds == 0 && t != loss) lsi_tape_free_data(tape, t);
}

/* Step 2. A second look at the same memory finds NULL. */
static void give_back(lsi_tape *tape, lsi_node *node, const lsi_tensor *loss) {
    for (int i = 0; i < LSI_NODE_SAVED; i++) {
        lsi_tape_release(tape, node->saved[i]);
        node->saved[i] = NULL;
    }
    for (int i = 0; i < LSI_NODE_INPUTS; i++) {
        if (node->reads & LSI_READS_INPUT(i)) drop_reader(tape, node->input[i], loss);
    }
    if (node->reads & LSI_READS_OUTPUT) drop_reader(tape, node->output, loss);
    lsi_tape_free_grad(tape, node->output);
    if (node->output != loss) lsi_tape_free_data(tape, node->output);
    release_holds(tape, node, loss);
}

/* The parameter has had its last use. Without any contribution its gradient is zero. */
static ls_status finish_param(lsi_tape *tape, lsi_tensor *leaf) {
    if (!leaf->grad_written) {
        if (!param_grad(tape, leaf)) return lsi_tape_status(tape);
        memset(leaf->grad, 0, (size_t)leaf->param->count * sizeof(float));
        leaf->grad_written = true;
    }
    return lsi_tape_raise(tape, LS_EVENT_GRAD_READY, leaf->param_index);
}

/* Step 3. */
static ls_status count_down_uses(lsi_tape *tape, const lsi_node *node, int *n_raised) {
    for (int i = LSI_NODE_INPUTS - 1; i >= 0; i--) {
        lsi_tensor *t = node->input[i];
        if (!t || --t->n_uses > 0 || !t->param || !t->needs_grad) continue;
        LSI_TRY(finish_param(tape, t));
        (*n_raised)++;
    }
    return LS_OK;
}

static ls_status visit(lsi_tape *tape, lsi_node *node, const lsi_tensor *loss) {
    if (!node->output) return node->backward(tape, node); /* the border of a unit */
    bool leads_to_loss = node->output->grad != NULL;
    int n_raised = 0;
    if (leads_to_loss) LSI_TRY(run(tape, node));
    give_back(tape, node, loss);
    LSI_TRY(count_down_uses(tape, node, &n_raised));
    return leads_to_loss && n_raised == 0 ? lsi_tape_raise(tape, LS_EVENT_PROGRESS, 0) : LS_OK;
}

/* ---- the pass ---- */

static ls_status begin(lsi_tape *tape, lsi_tensor *loss) {
    LSI_TRY(lsi_tape_status(tape));
    if (!loss) return lsi_fail(LS_ERR_ARGUMENT, "backward: expected a loss, found NULL");
    if (!tape->record)
        return lsi_fail(LS_ERR_STATE,
                        "backward: the tape did not record (reset it with record on)");
    if (tape->is_backward_run)
        return lsi_fail(LS_ERR_STATE, "backward: it ran already; reset the tape and go forward");
    if (loss->param || !loss->needs_grad)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "backward: the loss depends on nothing that needs a gradient");
    return LS_OK;
}

static ls_status set_loss_grad(lsi_tape *tape, lsi_tensor *loss) {
    bool first;
    void *grad = lsi_grad(tape, loss, &first);
    if (!grad) return lsi_tape_status(tape);
    lsi_fill(grad, loss->dtype, lsi_tensor_count(loss), 1.0f);
    return LS_OK;
}

/* From here on the model uses nothing any more: data that no backward reads goes. */
static void free_unread_data(lsi_tape *tape, const lsi_tensor *loss) {
    for (int64_t i = 0; i < tape->n_tensors; i++) {
        lsi_tensor *t = &tape->chunks[i / LSI_TENSORS_PER_CHUNK][i % LSI_TENSORS_PER_CHUNK];
        if (t != loss && t->n_readers == 0 && t->n_holds == 0) lsi_tape_free_data(tape, t);
    }
}

static ls_status pass(lsi_tape *tape, lsi_tensor *loss) {
    LSI_TRY(begin(tape, loss));
    tape->is_backward_run = true;
    free_unread_data(tape, loss);
    LSI_TRY(set_loss_grad(tape, loss));
    for (; tape->n_nodes > 0; tape->n_nodes--)
        LSI_TRY(visit(tape, &tape->nodes[tape->n_nodes - 1], loss));
    return lsi_tape_raise(tape, LS_EVENT_END_OF_BACKWARD, 0);
}

ls_status lsi_tape_backward(lsi_tape *tape, lsi_tensor *loss) {
    return lsi_tape_stick(tape, pass(tape, loss));
}
