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

/* One configuration for all classes; a class leaves the fields it does not use at zero. */
typedef struct lsi_model_config {
    int64_t n_layer, n_head, n_embd; /* mlp: n_embd is the width of a hidden layer */
    int64_t seq_len, vocab_size;     /* language models */
    double dropout;                  /* embedding, attention and residual alike */
    double norm_epsilon;             /* of layer norm, RMS norm, batch norm */
    /* llama */
    int64_t n_kv_head; /* heads of keys and values, divides n_head */
    int64_t n_inner;   /* width of the feed-forward layer */
    double rope_theta;
    bool untied; /* the output layer has a table of its own */
    /* images: H x W pixels of n_channels, n_classes classes */
    int64_t height, width, n_channels, n_classes;
} lsi_model_config;

/* What the training loop hands to a forward pass: sequences of tokens, or images. A target is a
 * token or a class. */
typedef struct lsi_batch {
    const int32_t *tokens;   /* (B,T); NULL for images */
    const int32_t *targets;  /* (B,T), for images (B); -1: no target; NULL: logits only */
    int64_t n_batch, n_time; /* n_time: T, for images 1 */
    const float *images;     /* (B,H,W,channels); NULL for tokens */
    float *stats; /* out, in training: model->n_stats floats, the statistics of this batch that
                     running ones are made of (batch norm); NULL for classes without any */
} lsi_batch;

/* What one unit of a forward and backward pass costs, for a batch of (n_batch, n_time): for the
 * planner, and held against measured runs by tests. */
typedef struct lsi_unit_cost {
    int first_param, n_params; /* that the unit is the first to use */
    double flops;             /* multiplications and additions, forward and backward, of products */
    int64_t activation_bytes; /* that stay from forward until the unit's backward */
} lsi_unit_cost;

/* See nn/units.h. */
typedef struct lsi_use_list lsi_use_list;

typedef struct lsi_model_class {
    const char *name; /* "gpt2" */
    const char *help;
    /* Reports every bad field at once (LS_ERR_ARGUMENT). */
    ls_status (*check)(const lsi_model_config *config);
    bool takes_images; /* else tokens */
    /* Adds the parameters (lsi_model_add_param) and buffers. */
    ls_status (*build)(lsi_model *model);
    /* Sum of losses over all targets (1), or logits (B,T,V), float32, when targets is NULL. */
    lsi_tensor *(*forward)(lsi_model *model, lsi_tape *tape, const lsi_batch *batch);
    /* Folds the statistics of one batch into the running ones (frozen parameters); NULL: none. The
     * training loop calls it for all micro-batches of a step in their global order, on every rank
     * alike, so running statistics do not depend on the number of ranks. Micro-batches that share
     * statistics over the tape's exchange count as one. */
    void (*fold_stats)(lsi_model *model, const float *stats);
    /* Units of a pass, and what each of them costs with activations of dtype. */
    int (*n_units)(const lsi_model_config *config);
    void (*describe)(const lsi_model *model, int64_t n_batch, int64_t n_time, ls_dtype dtype,
                     lsi_unit_cost *units);
    /* Lists with lsi_use, in ascending order, which parameters each unit makes leaves of. */
    void (*uses)(const lsi_model *model, lsi_use_list *list);
    /* What an option of `lockstep train` means that is left at 0; 0 here too: as train says. */
    lsi_model_config usual;
    /* config.json as Hugging Face writes it (for classes it does not know, in its manner), and
     * back. model_type is the value of that name in the file. */
    const char *model_type;
    const char *file_prefix; /* of parameter names in files: "transformer." for gpt2; "" for none */
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
    bool is_statistic; /* a running one, which the model writes itself and nobody trains */
} lsi_param_shape;

struct lsi_model {
    const lsi_model_class *class;
    lsi_model_config config;
    int n_params;
    int64_t n_stats;         /* see lsi_batch.stats; set by build() */
    ls_param *params;        /* n_params; params[i].data points into one block, or is NULL while
                                the model is hollow */
    lsi_param_shape *shapes; /* n_params */
    lsi_param_init *inits;   /* n_params */
    /* All parameters, each aligned to 64 bytes, LSI_MEM_PARAMS; NULL of a hollow model and after
     * lsi_model_release. After lsi_model_narrow: those that stay float32, NULL if none does. */
    float *data;
    uint16_t *upper, *lower; /* after lsi_model_narrow: halves of all, else NULL */
    int64_t *offsets;        /* per parameter: elements before it in upper and lower, and in data
                                until that has been narrowed */
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
/* All of a model but its values: params[i].data are NULL until lsi_model_make_whole or a strategy
 * that has memory of its own sets them. */
LS_CHECKED ls_status lsi_model_create_hollow(const lsi_model_class *class,
                                             const lsi_model_config *config, lsi_model **model);
void lsi_model_destroy(lsi_model *model);

/* Where values come from: writes elements [begin, begin + count) of parameter i, the same ones in
 * whatever pieces they are asked for. As ls_fill_fn of strategies. */
typedef ls_status (*lsi_model_fill_fn)(void *context, int i, int64_t begin, int64_t count,
                                       float *values);
/* GPT-2's standard initialisation from the seed alone: normal 0.02, residual projections
 * 0.02 / sqrt(2 n_layer), biases 0, norms 1 and 0. The same bits on every rank and machine. */
typedef struct lsi_initial_values {
    const lsi_model *model;
    uint64_t seed;
} lsi_initial_values;
/* lsi_model_fill_fn with an lsi_initial_values; never fails. */
LS_CHECKED ls_status lsi_initial_values_fill(void *initial, int i, int64_t begin, int64_t count,
                                             float *values);
/* All of them, into a model that is not hollow. */
void lsi_model_init(lsi_model *model, uint64_t seed);
/* Gives a hollow model its memory and all its values; a failure leaves it hollow. */
LS_CHECKED ls_status lsi_model_make_whole(lsi_model *model, lsi_model_fill_fn fill, void *context);
/* Whether a model can be hollow with every strategy that moves parameters: not all move frozen
 * ones, none those that the model writes itself. */
bool lsi_model_can_be_hollow(const lsi_model *model);

/* The float32 values of parameter i. NULL: they are not here (hollow, or released), or in halves.
 */
float *lsi_model_values(const lsi_model *model, int i);
/* Of a BF16 parameter: what its values lack of float32 (ls_bf16_split). NULL: it has none here. */
uint16_t *lsi_model_lower_half(const lsi_model *model, int i);
/* From float32 to bfloat16 for computing: values become halves, of which params[i].data are the
 * upper ones; the optimizer keeps both up to date (and memory accounts the lower ones as its own).
 * What the model writes itself (running statistics of norms) stays float32. Once, after values are
 * there; a failure leaves the model as it was. Of a hollow model: the types alone. */
LS_CHECKED ls_status lsi_model_narrow(lsi_model *model);
/* After a strategy has moved all parameters that are trained into memory of its own: frees what
 * they were in. Does nothing where some are frozen, since these are still there. */
void lsi_model_release(lsi_model *model);
/* Leaf of parameter i on the tape. */
lsi_tensor *lsi_model_leaf(lsi_model *model, lsi_tape *tape, int i);
/* Whether the name of parameter i begins with the first n bytes of `word`, or does in files, which
 * put "transformer." or the like in front of it. */
bool lsi_model_name_begins(const lsi_model *model, int i, const char *word, size_t n);
/* Index of a parameter by name, -1 if absent. */
int lsi_model_find(const lsi_model *model, const char *name);
/* Floating-point operations of one token's (or image's) forward and backward, from the class's
 * description: 6 for each weight of a product, and attention, 12 L C T, with the causal half that
 * need not be computed counted too, as is usual (Chowdhery et al.: "PaLM", 2022, appendix B). 0
 * when memory runs out. */
double lsi_model_flops_per_token(const lsi_model *model, int64_t n_time);

/* Called from build(), twice: the first pass counts. name is copied. flags LS_PARAM_FROZEN: it is a
 * running statistic. */
LS_CHECKED ls_status lsi_model_add_param(lsi_model *model, const char *name, int n_dims,
                                         const int64_t *dims, uint32_t flags, lsi_init_kind init,
                                         double std);

#endif
