/* Values of a worker's parameters: where they come from at the start, where they are at the end.
 *
 * With a sharded strategy no worker ever holds the values of all parameters. Its model is hollow,
 * the ddp asks w->fill for the ranges that are the worker's, and at the end each parameter is put
 * together on all ranks, one after the other, for the hash and then for the files.
 *
 * Strategies move the parameters that are trained, and where units are gathered also those of units
 * that are not (--freeze). A model with others (running statistics, or --freeze elsewhere) is whole
 * until that is done. */
#include "base/mem.h"
#include "parallel/memory.h"
#include "parallel/units.h"
#include "train/worker.h"

/* ---- the start ---- */

static ls_status open_folder(lsi_worker *w) {
    char *tokenizer;
    LSI_TRY(lsi_model_open(w->config->init, &w->model, &w->source, &tokenizer));
    lsi_free(tokenizer);
    w->model->config.dropout = w->plan->model.dropout;
    w->fill = lsi_model_source_fill;
    w->fill_context = w->source;
    return LS_OK;
}

static ls_status make_hollow(lsi_worker *w) {
    if (w->config->init) return open_folder(w);
    LSI_TRY(lsi_model_create_hollow(w->plan->model_class, &w->plan->model, &w->model));
    w->initial = (lsi_initial_values){w->model, (uint64_t)w->config->seed};
    w->fill = lsi_initial_values_fill;
    w->fill_context = &w->initial;
    return LS_OK;
}

/* Nothing is frozen yet but running statistics. */
static bool stays_hollow(const lsi_worker *w) {
    return w->plan->strategy != LS_STRATEGY_DDP &&
           (!w->config->freeze || lsi_gathers_units(w->plan->strategy, w->plan->replicas)) &&
           lsi_model_can_be_hollow(w->model);
}

static ls_status make_whole(lsi_worker *w) {
    LSI_TRY(lsi_model_make_whole(w->model, w->fill, w->fill_context));
    lsi_worker_close_source(w);
    return LS_OK;
}

static ls_status list_lower_halves(lsi_worker *w) {
    size_t n = (size_t)w->model->n_params;
    w->lower_halves = lsi_calloc(LSI_MEM_OTHER, n, sizeof *w->lower_halves);
    LSI_TRY(lsi_check_alloc(w->lower_halves));
    for (size_t i = 0; i < n; i++) w->lower_halves[i] = lsi_model_lower_half(w->model, (int)i);
    return LS_OK;
}

ls_status lsi_worker_make_model(lsi_worker *w) {
    LSI_TRY(make_hollow(w));
    bool is_hollow = stays_hollow(w);
    if (!is_hollow) LSI_TRY(make_whole(w));
    if (w->plan->dtype == LS_DTYPE_BF16) {
        LSI_TRY(lsi_model_narrow(w->model));
        lsi_mem_reset_peaks(); /* until here values were there in float32 besides */
    }
    return is_hollow ? LS_OK : list_lower_halves(w);
}

void lsi_worker_close_source(lsi_worker *w) {
    lsi_model_source_close(w->source);
    w->source = NULL;
    w->fill = NULL;
}

/* ---- the end ---- */

static ls_status make_room(lsi_worker *w) {
    int64_t most = 0;
    for (int i = 0; i < w->model->n_params; i++)
        if (w->model->params[i].count > most) most = w->model->params[i].count;
    w->gathered = lsi_alloc(LSI_MEM_OTHER, (size_t)most * sizeof *w->gathered);
    return lsi_check_alloc(w->gathered);
}

static bool is_moved(const lsi_worker *w, int i) {
    return w->plan->strategy != LS_STRATEGY_DDP && lsi_ddp_has_values(w->ddp, i);
}

/* Halves are joined where the gradient is that nobody needs any more, if there is room. */
static ls_status get_own(lsi_worker *w, int i, const float **values) {
    const ls_param *param = &w->model->params[i];
    const uint16_t *lower = lsi_model_lower_half(w->model, i);
    if (!lower) return lsi_model_get_own(w->model, i, values);
    float *room = param->grad;
    if (!room) {
        if (!w->gathered) LSI_TRY(make_room(w));
        room = w->gathered;
    }
    ls_bf16_join(param->data, lower, param->count, room);
    *values = room;
    return LS_OK;
}

ls_status lsi_worker_get_values(void *worker, int i, const float **values) {
    lsi_worker *w = worker;
    if (!is_moved(w, i)) return get_own(w, i, values);
    if (!w->gathered) LSI_TRY(make_room(w));
    /* Whoever is late, because of its disk, is waited for here: the ddp has groups of its own,
     * which do not know that there is more time now. */
    LSI_TRY(ls_barrier(w->group, NULL));
    LSI_TRY(ls_ddp_get_values(w->ddp, i, w->gathered));
    *values = w->gathered;
    return LS_OK;
}
