/* A saved model ready for forward passes: what generating and evaluating begin with. */
#ifndef LSI_TRAIN_SAVED_H
#define LSI_TRAIN_SAVED_H

#include "data/data.h"
#include "nn/model.h"
#include "tensor/tensor.h"

typedef struct lsi_saved_model {
    const char *folder; /* borrowed */
    lsi_model *model;
    char *tokenizer_name;     /* as config.json says; NULL: it does not */
    lsi_tokenizer *tokenizer; /* NULL until lsi_saved_open_tokenizer */
    lsi_arena *arena;         /* NULL until lsi_saved_open_tape */
    lsi_tape *tape;
} lsi_saved_model;

/* *saved zeroed before; lsi_saved_close undoes whatever was opened, also after a failure. */
LS_CHECKED ls_status lsi_saved_open(const char *folder, lsi_saved_model *saved);
/* spec: --tokenizer; NULL: "byte" if config.json says so, else the tokenizer files of the folder.
 * A tokenizer with more tokens than the model is refused. */
LS_CHECKED ls_status lsi_saved_open_tokenizer(lsi_saved_model *saved, const char *spec);
/* In the process that computes. */
LS_CHECKED ls_status lsi_saved_open_tape(lsi_saved_model *saved);
void lsi_saved_close_tape(lsi_saved_model *saved);
void lsi_saved_close(lsi_saved_model *saved);
/* Logits (B,T,V), for images (B,V), valid until the next pass. */
LS_CHECKED ls_status lsi_saved_run(lsi_saved_model *saved, const lsi_batch *batch,
                                   lsi_tensor **logits);

#endif
