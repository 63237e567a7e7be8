/* Status codes: what every call that can fail returns.
 *
 * The table below is the only list of codes. The enum, the names, the texts, the advice and the
 * documentation are made from it. A failing call also leaves a message for the calling thread
 * (ls_last_message) that says who, what was expected, what was found and what to do. */
#ifndef LOCKSTEP_STATUS_H
#define LOCKSTEP_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#define LS_API __attribute__((visibility("default")))
#define LS_CHECKED __attribute__((warn_unused_result))

/* X(name, number, what it means, what to do) */
#define LS_STATUS_TABLE(X)                                                                         \
    X(OK, 0, "done", "nothing")                                                                    \
    X(ERR_ARGUMENT, 1, "an argument is outside its legal range", "correct the named argument")     \
    X(ERR_USAGE, 2, "the command line or configuration is wrong", "correct the named option")      \
    X(ERR_MEMORY, 3, "memory ran out", "use a smaller batch or model, or more memory")             \
    X(ERR_SYSTEM, 4, "the operating system refused a call", "see the system's own words")          \
    X(ERR_IO, 5, "a file could not be read or written", "check the path, the rights and the space")\
    X(ERR_FORMAT, 6, "a file's content is not what its format allows", "make the file again")      \
    X(ERR_NOT_FOUND, 7, "a file or name does not exist", "check the spelling")                     \
    X(ERR_MISMATCH, 8, "the ranks did not make the same call", "make all ranks call alike")        \
    X(ERR_TIMEOUT, 9, "a wait passed its deadline", "look at the rank named as missing")           \
    X(ERR_PEER, 10, "another worker died", "look at that worker's own message")                    \
    X(ERR_ABORTED, 11, "the group was aborted", "look for the first error")                        \
    X(ERR_STATE, 12, "the call does not fit the object's state", "call in the documented order")   \
    X(ERR_BUSY, 13, "the object or buffer is still in use", "wait for the earlier call")           \
    X(ERR_UNSUPPORTED, 14, "this build or machine cannot do that", "see the message for what can") \
    X(ERR_NUMERIC, 15, "a loss or gradient is not a finite number", "lower the learning rate")     \
    X(ERR_INTERRUPTED, 16, "a signal asked the run to stop", "start again when ready")

typedef enum ls_status {
#define LS_STATUS_ENUM(name, number, text, advice) LS_##name = number,
    LS_STATUS_TABLE(LS_STATUS_ENUM)
#undef LS_STATUS_ENUM
} ls_status;

/* "LS_ERR_TIMEOUT" and so on; "LS_ERR_?" for a number outside the table. Any thread. */
LS_API const char *ls_status_name(ls_status status);
/* What the status means, without a final full stop. Any thread. */
LS_API const char *ls_status_text(ls_status status);
/* What to do about it. Any thread. */
LS_API const char *ls_status_advice(ls_status status);
/* Message of the last failing call of this thread, "" if none; valid until its next failing call. */
LS_API const char *ls_last_message(void);

#ifdef __cplusplus
}
#endif
#endif
