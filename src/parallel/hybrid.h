/* Shard groups, for callers inside of the library. */
#ifndef LSI_PARALLEL_HYBRID_H
#define LSI_PARALLEL_HYBRID_H

#include <lockstep/parallel.h>

#include "comm/group.h"
#include "comm/order.h"

/* The order in which sums of shard groups are added, where it is not the default tree because
 * groups have unequal numbers of micro-batches. Between steps, on all ranks alike; does nothing
 * where all ranks are one group. */
void lsi_ddp_set_group_order(ls_ddp *ddp, const lsi_order *order);
/* Of all groups that the ddp communicates in, added up. Local. */
void lsi_ddp_get_stats(const ls_ddp *ddp, lsi_group_stats *stats);

#endif
