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

/* ---- the hash ---- */

/* The parameter with the smallest name above `last` (NULL: of all), -1 at the end. Selection
 * instead of sorting: no memory, so the hash cannot fail; a model has some hundred parameters. */
static int next_by_name(const lsi_model *model, const char *last) {
    int next = -1;
    for (int i = 0; i < model->n_params; i++) {
        const char *name = model->params[i].name;
        if (last && strcmp(name, last) <= 0) continue;
        if (next < 0 || strcmp(name, model->params[next].name) < 0) next = i;
    }
    return next;
}

void lsi_model_sha256(const lsi_model *model, char text[LSI_SHA256_TEXT_BYTES]) {
    lsi_sha256 hash;
    lsi_sha256_init(&hash);
    for (int i = next_by_name(model, NULL); i >= 0; i = next_by_name(model, model->params[i].name))
        lsi_sha256_update(&hash, lsi_model_values(model, i),
                          (size_t)model->params[i].count * sizeof(float));
    lsi_sha256_finish(&hash, text);
}
