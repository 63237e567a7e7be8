/* Whether a list of parameters makes sense on its own: names, memory, types, shapes. */
#ifndef LSI_PARALLEL_PARAMS_H
#define LSI_PARALLEL_PARAMS_H

#include <stdbool.h>

#include <lockstep/param.h>

#include "base/message.h"

/* Local. what: "parameter" or "buffer", for messages. LS_ERR_ARGUMENT names the first one that
 * lacks something, two with the same name, or two whose memory overlaps; LS_ERR_UNSUPPORTED a type
 * that cannot be trained (buffers may have any type). are_filled: they need no data yet. */
LS_CHECKED ls_status lsi_check_params(const char *what, const ls_param *params, int n_params,
                                      bool are_filled);

#endif
