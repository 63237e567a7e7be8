/* An artificial link: works are over no earlier than a wire of a given latency and bandwidth would
 * let them be, so that what overlap is worth can be tested and taught on one machine.
 *
 * A work takes the link when all ranks have published it on this rank (a message: when this rank
 * has handed over or got all of it), but not before the work that has it is over, and is over
 *
 *     latency + bytes / bandwidth
 *
 * later; bytes are those that an algorithm of least bandwidth sends per rank. Only the end is held
 * back: data moves at once, peers see this rank's part when it is made, errors come when they
 * come, and the processor is free meanwhile. Sends and receives do not wait for each other, as on
 * a wire for each direction; a collective takes both. Each group has a link of its own. */
#ifndef LSI_COMM_LINK_H
#define LSI_COMM_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include <lockstep/group.h>

typedef struct lsi_link {
    double latency_ns, ns_per_byte;
    int64_t sends_until_ns, receives_until_ns; /* when the last work in that direction is over */
} lsi_link;

/* text: LOCKSTEP_LINK, "latency_us=X,gb_per_s=X"; what is not said costs nothing. *is_set: whether
 * there is a link; not for NULL and "". LS_ERR_USAGE names the part that is wrong. */
LS_CHECKED ls_status lsi_link_parse(const char *text, lsi_link *link, bool *is_set);
/* Nanoseconds that a call of this kind takes whose larger buffer has so many bytes. */
int64_t lsi_link_cost_ns(const lsi_link *link, int kind, int n_ranks, int64_t bytes);

/* ---- in a group that has a link; under its lock ---- */

/* From now on the work is on its way. */
void lsi_link_take(ls_work *work);
/* Whether it is on its way still. */
bool lsi_link_holds(const ls_work *work);
/* most_ns, or the time from now to the first end of a work after since_ns if that is shorter: for
 * how long a rank may sleep that has looked at all works after since_ns. */
int64_t lsi_link_sleep_ns(const ls_group *group, int64_t since_ns, int64_t most_ns);

#endif
