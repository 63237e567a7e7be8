/* What the classes that look at images share: their configuration and their input.
 *
 * Both have the same sizes: n_layer and n_embd of the network, height, width and n_channels of an
 * image, n_classes. transformers knows neither class, so config.json is ours, in its manner. */
#ifndef LSI_NN_MODELS_IMAGES_H
#define LSI_NN_MODELS_IMAGES_H

#include "nn/model.h"

extern const lsi_model_class lsi_model_mlp, lsi_model_convnet;

/* Most layers of an mlp, blocks of a stage of a convnet. */
enum { LSI_IMAGE_MAX_LAYERS = 100000 };

/* Reports every bad field at once; name is that of the class. */
LS_CHECKED ls_status lsi_image_check(const char *name, const lsi_model_config *config);
/* NULL when memory runs out. */
json_t *lsi_image_config_to_json(const lsi_model_class *class, const char *architecture,
                                 const lsi_model_config *config);
LS_CHECKED ls_status lsi_image_config_from_json(const lsi_model_class *class, const json_t *json,
                                                lsi_model_config *config);
/* The batch's images as a tensor of these dims, of which the first is B; NULL and the tape's error
 * for a batch that is none. */
lsi_tensor *lsi_image_input(lsi_tape *tape, const lsi_model *model, const lsi_batch *batch,
                            int n_dims, const int64_t *dims);
/* Logits (B,classes), or their loss where the batch has targets. */
lsi_tensor *lsi_image_loss(lsi_tape *tape, lsi_tensor *logits, const lsi_batch *batch);
/* A weight that is He-normal for `fan_in` inputs and a relu behind it (gain 2), or with gain 1 for
 * an output layer: He, Zhang, Ren, Sun, "Delving deep into rectifiers", ICCV 2015. */
LS_CHECKED ls_status lsi_image_add_weight(lsi_model *model, const char *name, int n_dims,
                                          const int64_t *dims, double gain);
/* One value a channel, which decays to nothing. */
LS_CHECKED ls_status lsi_image_add_vector(lsi_model *model, const char *name, int64_t n,
                                          lsi_init_kind init, uint32_t flags);

#endif
