/* Models behind one table. A model is its parameters plus a function that builds the forward pass
 * on a tape; it knows nothing of ranks, optimizers or files.
 *
 * Parameters are stored in the layout of Hugging Face's files (GPT-2: linear weights are (in,out)),
 * so saving and loading never transposes. Order of params: order of use in the forward pass, so
 * gradients become ready roughly in reverse order. */
#ifndef LSI_NN_MODEL_H
#define LSI_NN_MODEL_H

#include <jansson.h>

#include "tensor/tensor.h"

typedef struct lsi_model lsi_model;

typedef struct lsi_model_config {
    int64_t n_layer, n_head, n_embd, seq_len, vocab_size;
    double dropout;            /* embedding, attention and residual alike */
    double layer_norm_epsilon; /* 1e-5 */
} lsi_model_config;

/* What the training loop hands to a forward pass. */
typedef struct lsi_batch {
    const int32_t *inputs;  /* (B,T) */
    const int32_t *targets; /* (B,T); -1: no target; NULL: logits only */
    int64_t n_batch, n_time;
} lsi_batch;

typedef struct lsi_model_class {
    const char *name; /* "gpt2" */
    const char *help;
    /* Reports every bad field at once (LS_ERR_ARGUMENT). */
    ls_status (*check)(const lsi_model_config *config);
    /* Adds the parameters (lsi_model_add_param). */
    ls_status (*build)(lsi_model *model);
    /* Sum of losses over all targets (1), or logits (B,T,V) when targets is NULL. */
    lsi_tensor *(*forward)(lsi_model *model, lsi_tape *tape, const lsi_batch *batch);
    /* config.json as Hugging Face writes it, and back. */
    json_t *(*config_to_json)(const lsi_model_config *config);
    ls_status (*config_from_json)(const json_t *json, lsi_model_config *config);
} lsi_model_class;

/* For model files: how a parameter starts. */
typedef enum lsi_init_kind { LSI_INIT_ZERO, LSI_INIT_ONE, LSI_INIT_NORMAL } lsi_init_kind;

typedef struct lsi_param_init {
    lsi_init_kind kind;
    double std; /* LSI_INIT_NORMAL only */
} lsi_param_init;

typedef struct lsi_param_shape {
    int n_dims;
    int64_t dims[LSI_MAX_DIMS];
} lsi_param_shape;

struct lsi_model {
    const lsi_model_class *class;
    lsi_model_config config;
    int n_params;
    ls_param *params;        /* n_params; params[i].data points into one block */
    lsi_param_shape *shapes; /* n_params */
    lsi_param_init *inits;   /* n_params */
    float *data;             /* all parameters, each aligned to 64 bytes, LSI_MEM_PARAMS */
    int64_t n_elems;         /* parameters without padding, tied ones once */

    /* used while build() runs */
    char *names;          /* all names, one after the other, each ended by a zero byte */
    size_t n_name_bytes;  /* counted (first pass), then placed (second pass) */
    int64_t n_data_elems; /* the same, parameters with padding */
};

/* NULL when there is none; the error for users is made by lsi_model_class_find. */
extern const lsi_model_class *const lsi_model_classes[]; /* NULL ends */
LS_CHECKED ls_status lsi_model_class_find(const char *name, const lsi_model_class **class);

/* Parameters allocated, not initialised; grad pointers NULL. */
LS_CHECKED ls_status lsi_model_create(const lsi_model_class *class, const lsi_model_config *config,
                                      lsi_model **model);
void lsi_model_destroy(lsi_model *model);
/* GPT-2's standard initialisation from the seed alone: normal 0.02, residual projections
 * 0.02 / sqrt(2 n_layer), biases 0, norms 1 and 0. The same bits on every rank and machine. */
void lsi_model_init(lsi_model *model, uint64_t seed);
/* Leaf of parameter i on the tape. */
lsi_tensor *lsi_model_leaf(lsi_model *model, lsi_tape *tape, int i);
/* Index of a parameter by name, -1 if absent. */
int lsi_model_find(const lsi_model *model, const char *name);
/* Floating-point operations of one token's forward and backward: 6 N + attention, 12 L C T, with
 * the causal half that need not be computed counted too, as is usual (Chowdhery et al.: "PaLM",
 * 2022, appendix B). */
double lsi_model_flops_per_token(const lsi_model *model, int64_t n_time);

/* Called from build(), twice: the first pass counts. name is copied. */
LS_CHECKED ls_status lsi_model_add_param(lsi_model *model, const char *name, int n_dims,
                                         const int64_t *dims, uint32_t flags, lsi_init_kind init,
                                         double std);

#endif
