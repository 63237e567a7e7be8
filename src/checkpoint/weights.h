/* The safetensors files of one model as one list of tensors: a single file, or shards and the index
 * that says which tensor is in which of them. */
#ifndef LSI_CHECKPOINT_WEIGHTS_H
#define LSI_CHECKPOINT_WEIGHTS_H

#include "checkpoint/safetensors.h"

typedef struct lsi_weights lsi_weights;

/* Opens what a model folder has: LSI_WEIGHTS_FILE, or else LSI_INDEX_FILE with every shard that it
 * names. The index must be exactly right: each tensor of each shard is in it, under that shard's
 * name, and nothing else is. Shards lie in the folder itself. */
LS_CHECKED ls_status lsi_weights_open(const char *folder, lsi_weights **weights);
/* One safetensors file. */
LS_CHECKED ls_status lsi_weights_open_file(const char *path, lsi_weights **weights);
void lsi_weights_close(lsi_weights *weights); /* NULL does nothing */

/* Of the file, or of the index: what messages about all tensors name. */
const char *lsi_weights_path(const lsi_weights *weights);
int lsi_weights_n_files(const lsi_weights *weights);
int lsi_weights_n_tensors(const lsi_weights *weights);
const lsi_st_tensor *lsi_weights_at(const lsi_weights *weights, int i); /* in name order */
const lsi_st_tensor *lsi_weights_find(const lsi_weights *weights, const char *name); /* or NULL */
/* Path of the file that has tensor i, or a tensor of this list. */
const char *lsi_weights_file_at(const lsi_weights *weights, int i);
const char *lsi_weights_file_of(const lsi_weights *weights, const lsi_st_tensor *tensor);

#endif
