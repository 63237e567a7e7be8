/* Whether all ranks built the same model. */
#ifndef LSI_PARALLEL_AGREE_H
#define LSI_PARALLEL_AGREE_H

#include <lockstep/group.h>
#include <lockstep/param.h>

#include "base/message.h"

/* Collective, blocks. LS_ERR_MISMATCH on every rank, with the same words, when number, names,
 * sizes, dtypes, flags or order of the parameters differ from rank 0's: names the first parameter
 * that differs as rank 0 and the other rank have it, that rank, and the number of parameters of
 * each. Costs two all-gathers of 4 bytes per parameter; the group stays usable. */
LS_CHECKED ls_status lsi_agree_params(ls_group *group, const ls_param *params, int n_params);

#endif
