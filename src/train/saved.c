/* Opening a saved model (see saved.h). */
#include "train/saved.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "checkpoint/model_folder.h"

ls_status lsi_saved_open(const char *folder, lsi_saved_model *saved) {
    saved->folder = folder;
    return lsi_model_load(folder, &saved->model, &saved->tokenizer_name);
}

static ls_status create_tokenizer(lsi_saved_model *saved, const char *spec) {
    if (spec) return lsi_tokenizer_create(spec, &saved->tokenizer);
    if (saved->tokenizer_name && strcmp(saved->tokenizer_name, "byte") == 0)
        return lsi_tokenizer_create("byte", &saved->tokenizer);
    return lsi_context(lsi_tokenizer_create(saved->folder, &saved->tokenizer),
                       "the tokenizer of %s%s%s%s (--tokenizer names another)", saved->folder,
                       saved->tokenizer_name ? ", '" : "",
                       saved->tokenizer_name ? saved->tokenizer_name : "",
                       saved->tokenizer_name ? "'" : "");
}

ls_status lsi_saved_open_tokenizer(lsi_saved_model *saved, const char *spec) {
    LSI_TRY(create_tokenizer(saved, spec));
    int64_t found = lsi_tokenizer_vocab_size(saved->tokenizer);
    int64_t most = saved->model->config.vocab_size;
    if (found <= most) return LS_OK;
    return lsi_fail(LS_ERR_ARGUMENT,
                    "tokenizer '%s' has %" PRId64 " tokens, the model in %s only %" PRId64
                    "; --tokenizer must be the one that the model was trained with",
                    lsi_tokenizer_name(saved->tokenizer), found, saved->folder, most);
}

ls_status lsi_saved_open_tape(lsi_saved_model *saved) {
    size_t memory_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    LSI_TRY(lsi_arena_create(memory_bytes, &saved->arena));
    return lsi_tape_create(saved->arena, &saved->tape);
}

void lsi_saved_close_tape(lsi_saved_model *saved) {
    lsi_tape_destroy(saved->tape);
    lsi_arena_destroy(saved->arena);
    saved->tape = NULL;
    saved->arena = NULL;
}

void lsi_saved_close(lsi_saved_model *saved) {
    lsi_saved_close_tape(saved);
    lsi_tokenizer_destroy(saved->tokenizer);
    lsi_free(saved->tokenizer_name);
    lsi_model_destroy(saved->model);
}

ls_status lsi_saved_run(lsi_saved_model *saved, const lsi_batch *batch, lsi_tensor **logits) {
    lsi_tape_reset(saved->tape, false);
    *logits = saved->model->class->forward(saved->model, saved->tape, batch);
    return lsi_tape_status(saved->tape);
}
