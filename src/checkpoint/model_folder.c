/* What saving (model_save.c) and loading (model_load.c) of model folders share: paths, and the hash
 * that tells whether two models are the same.
 *
 * A folder is config.json and the weights: model.safetensors, or shards of any name together with
 * model.safetensors.index.json (weights.c). Where both are there, the one file counts, as it does
 * for transformers. A tensor is called by the class's file_prefix and the parameter's name:
 *
 *     gpt2    "transformer." + "h.0.ln_1.weight"
 *     llama   "" + "model.layers.0.input_layernorm.weight" */
#include "checkpoint/model_folder.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

ls_status lsi_path_join(const char *folder, const char *name, char **path) {
    size_t bytes = strlen(folder) + strlen(name) + 2;
    *path = lsi_alloc(LSI_MEM_OTHER, bytes);
    LSI_TRY(lsi_check_alloc(*path));
    snprintf(*path, bytes, "%s/%s", folder, name);
    return LS_OK;
}

/* ---- values ---- */

ls_status lsi_model_get_own(void *model, int i, const float **values) {
    *values = lsi_model_values(model, i);
    if (*values) return LS_OK;
    return lsi_fail(LS_ERR_STATE,
                    "parameter %s has no float32 values here (the model is hollow, or computes in "
                    "bfloat16)",
                    ((const lsi_model *)model)->params[i].name);
}

int lsi_model_next_by_name(const lsi_model *model, int first, int end, const char *last) {
    int next = -1;
    for (int i = first; i < end; i++) {
        const char *name = model->params[i].name;
        if (last && strcmp(name, last) <= 0) continue;
        if (next < 0 || strcmp(name, model->params[next].name) < 0) next = i;
    }
    return next;
}

/* ---- the hash ---- */

ls_status lsi_model_sha256_from(const lsi_model *model, lsi_model_get_fn get, void *context,
                                char text[LSI_SHA256_TEXT_BYTES]) {
    lsi_sha256 hash;
    const char *last = NULL;
    lsi_sha256_init(&hash);
    for (int i; (i = lsi_model_next_by_name(model, 0, model->n_params, last)) >= 0;) {
        const float *values;
        LSI_TRY(get(context, i, &values));
        lsi_sha256_update(&hash, values, (size_t)model->params[i].count * sizeof *values);
        last = model->params[i].name;
    }
    lsi_sha256_finish(&hash, text);
    return LS_OK;
}

void lsi_model_sha256(const lsi_model *model, char text[LSI_SHA256_TEXT_BYTES]) {
    (void)!lsi_model_sha256_from(model, lsi_model_get_own, (void *)model, text); /* all are here */
}
