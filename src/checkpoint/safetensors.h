/* The safetensors file format: 8 bytes of header length, a JSON header, the tensors' bytes.
 * Reading trusts nothing: lengths, offsets, overlaps, gaps, names and types are checked against
 * the file's real size before anything of that size is allocated.
 *
 * Errors of reading: LS_ERR_FORMAT for what the format forbids, LS_ERR_UNSUPPORTED for element
 * types that ls_dtype does not have and for shapes of more than LSI_ST_MAX_DIMS dims. */
#ifndef LSI_CHECKPOINT_SAFETENSORS_H
#define LSI_CHECKPOINT_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lockstep/dtype.h>

#include "base/file.h"
#include "base/message.h"

enum { LSI_ST_MAX_DIMS = 8, LSI_ST_HEADER_CAP_BYTES = 100 * 1000 * 1000 };

typedef struct lsi_st_tensor {
    const char *name;
    ls_dtype dtype;
    int n_dims;
    int64_t dims[LSI_ST_MAX_DIMS];
    const void
        *data;    /* writing: where the numbers are; reading: in the mapping, may be unaligned */
    size_t bytes; /* in the file */
    ls_dtype data_dtype; /* writing: of the numbers at data, if not dtype: F32 is rounded to BF16 on
                            the way (to nearest, ties to even), without a second copy in memory */
} lsi_st_tensor;

/* Atomic write (base/file.h). Tensors are laid out in name order (strcmp) without gaps; the first
 * byte of data is aligned to 8. metadata: pairs of name and value, NULL ends; may be NULL. */
LS_CHECKED ls_status lsi_st_write(const char *path, const lsi_st_tensor *tensors, int n_tensors,
                                  const char *const *metadata);
/* Where the numbers of one of the tensors are, of type data_dtype, or dtype if that is 0; valid
 * until the next call. */
typedef ls_status (*lsi_st_get_fn)(void *context, const lsi_st_tensor *tensor, const void **data);
/* All of it but the last step: the file gets its name with lsi_file_commit(*writer). get is called
 * once for each tensor, in name order, so that one at a time need be in memory; their `data` is not
 * looked at. A failure of get is handed through, and leaves no file. */
LS_CHECKED ls_status lsi_st_begin(const char *path, const lsi_st_tensor *tensors, int n_tensors,
                                  const char *const *metadata, lsi_st_get_fn get, void *context,
                                  lsi_file_writer **writer);

typedef struct lsi_st_file lsi_st_file;
/* Maps the file. Its tensors are valid until lsi_st_close; who shortens the file in place meanwhile
 * makes reads of the lost part fail hard (our own writer replaces files and is safe). */
LS_CHECKED ls_status lsi_st_open(const char *path, lsi_st_file **file);
/* The same over bytes that the caller keeps until lsi_st_close; label stands for the path. */
LS_CHECKED ls_status lsi_st_open_memory(const void *data, size_t bytes, const char *label,
                                        lsi_st_file **file);
void lsi_st_close(lsi_st_file *file); /* NULL does nothing */
int lsi_st_n_tensors(const lsi_st_file *file);
const lsi_st_tensor *lsi_st_tensor_at(const lsi_st_file *file, int i);       /* in name order */
const lsi_st_tensor *lsi_st_find(const lsi_st_file *file, const char *name); /* NULL: none */

/* count elements of a floating type (F32, BF16, F16, F64; source may be unaligned) as float32: the
 * narrow types exactly, F64 rounded to nearest. LS_ERR_UNSUPPORTED for other types. */
LS_CHECKED ls_status lsi_st_to_float(ls_dtype dtype, const void *source, int64_t count,
                                     float *target);

/* ---- shared by reader, writer and messages ---- */

enum { LSI_ST_SHOWN_BYTES = 120 };

/* Bytes that dtype and dims ask for; false when a dim is negative or the product overflows. Dims of
 * 0 count as 1 in the overflow check, so no product of a tensor's dims can overflow later. */
bool lsi_st_shape_bytes(const lsi_st_tensor *tensor, size_t *bytes);
/* A text from a file made fit for a message: control characters as '?', long ones cut by "…". */
const char *lsi_st_shown(const char *text, char buffer[LSI_ST_SHOWN_BYTES]);
/* "(768, 2304)", "()" for a scalar. */
const char *lsi_st_shape_text(int n_dims, const int64_t *dims, char buffer[LSI_ST_SHOWN_BYTES]);

#endif
