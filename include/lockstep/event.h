/* Events between a training loop and a strategy: the whole contract.
 *
 * Our tape raises them for our models; a foreign loop raises them itself. The handler belongs to
 * the strategy (DDP, ZeRO, …), which may communicate inside it. */
#ifndef LOCKSTEP_EVENT_H
#define LOCKSTEP_EVENT_H

#include <lockstep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ls_event {
    LS_EVENT_BEFORE_FORWARD,  /* index: unit */
    LS_EVENT_AFTER_FORWARD,   /* index: unit */
    LS_EVENT_BEFORE_BACKWARD, /* index: unit */
    LS_EVENT_GRAD_NEEDED,     /* index: parameter; its gradient is about to be written */
    LS_EVENT_GRAD_READY,      /* index: parameter; its gradient is complete for this micro-batch */
    LS_EVENT_AFTER_BACKWARD,  /* index: unit */
    LS_EVENT_END_OF_BACKWARD, /* index: 0 */
    LS_EVENT_PROGRESS,        /* index: 0; an op is done: a good moment to move messages on */
} ls_event;

/* Handler: a status other than LS_OK ends the pass that raised the event. */
typedef struct ls_event_sink {
    ls_status (*on_event)(void *context, ls_event event, int index); /* NULL: nobody listens */
    void *context;
} ls_event_sink;

#ifdef __cplusplus
}
#endif
#endif
