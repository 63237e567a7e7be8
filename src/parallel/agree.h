/* Whether all ranks built the same model and ask for the same. */
#ifndef LSI_PARALLEL_AGREE_H
#define LSI_PARALLEL_AGREE_H

#include <lockstep/group.h>
#include <lockstep/param.h>

#include "base/message.h"

/* Collective, blocks. LS_ERR_MISMATCH on every rank, with the same words, when number, names,
 * sizes, shapes, dtypes, flags or order of the parameters differ from rank 0's: names the first
 * parameter that differs as rank 0 and the other rank have it, that rank, and the number of
 * parameters of each. Costs two all-gathers of 4 bytes per parameter; the group stays usable. */
LS_CHECKED ls_status lsi_agree_params(ls_group *group, const ls_param *params, int n_params);
/* Collective, blocks. text: "name value name value …", of less than 1000 bytes, with the same names
 * on all ranks. LS_ERR_MISMATCH on every rank, with the same words, when a rank has another text
 * than rank 0: `what` and the pairs that differ. Costs an all-gather of 4 bytes. */
LS_CHECKED ls_status lsi_agree_text(ls_group *group, const char *what, const char *text);

#endif
