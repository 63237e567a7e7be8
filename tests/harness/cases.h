/* One collective call of any kind as a value, with the right answer.
 *
 * case_post fills the buffers and makes the call, case_check compares everything around and inside
 * of them, byte by byte, with what must be there: the result, inputs that nobody may change, bytes
 * before and behind the buffers. Buffers come from an arena, so thousands of cases cost no
 * allocation; they begin at odd places, as far as their elements allow.
 *
 * Values. Plain cases hold small integers, drawn by rank and element so that a part in the wrong
 * place is seen, and so small that no sum, product or average overflows or rounds in any type
 * with up to 8 ranks: the answer is exact, whatever the order. Rough cases hold fractions; their
 * answer is the order's tree, evaluated number by number and rounded once. */
#ifndef TESTS_HARNESS_CASES_H
#define TESTS_HARNESS_CASES_H

#include "harness/ranks.h"

/* Sanitizers look at every access several times: tests go through fewer cases then. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

typedef enum case_buffers { CASE_SHARED, CASE_PRIVATE, CASE_MIXED, N_CASE_BUFFERS } case_buffers;

typedef struct call_case {
    lsi_call_kind kind;
    bool uneven;   /* the _v call; counts from `count`, some of them zero */
    int algorithm; /* 0: what the group chooses */
    ls_dtype dtype;
    ls_op op;
    double scale; /* of SUM; PREMUL_SUM has factors of its own */
    int64_t count;
    int root;
    bool in_place, rough;
    case_buffers buffers;
    uint32_t seed; /* other values, other beginnings of buffers */
} call_case;

/* Every operation and scale that the matrix goes through. */
typedef struct case_op {
    ls_op op;
    double scale;
} case_op;
extern const case_op case_ops[];
extern const int n_case_ops;
extern const ls_dtype case_dtypes[];
extern const int n_case_dtypes;
/* Every call but the barrier, the _v forms apart. */
typedef struct case_kind {
    lsi_call_kind kind;
    bool uneven;
} case_kind;
extern const case_kind case_kinds[];
extern const int n_case_kinds;

bool case_reduces(const call_case *c);
bool case_has_root(const call_case *c);
/* Whether the group can do it by c->algorithm, with these buffers and places. */
bool case_possible(const ls_group *group, const call_case *c);
/* Whether the answer of a rough case is known; else only that all ranks have the same. */
bool case_keeps_order(const ls_group *group, const call_case *c);

typedef struct case_arena {
    ls_group *group;
    unsigned char *memory[2]; /* private, shared */
    size_t bytes, used[2];
} case_arena;
LS_CHECKED ls_status case_arena_open(case_arena *arena, ls_group *group, size_t bytes);
void case_arena_reset(case_arena *arena); /* no buffer of it is in use any more */
void case_arena_close(case_arena *arena);

typedef struct posted_case {
    call_case c;
    ls_group *group;
    unsigned char *area[2], *expected[2]; /* of input and output; in place: the first only */
    size_t bytes[2];
    void *input, *output;
    ls_work *work; /* NULL: it was waited for */
} posted_case;

/* async: leaves a work to be waited for in p->work. */
LS_CHECKED ls_status case_post(case_arena *arena, const call_case *c, bool async, posted_case *p);
LS_CHECKED ls_status case_check(const posted_case *p);
/* Both, blocking, in an empty arena. */
LS_CHECKED ls_status case_run(case_arena *arena, const call_case *c);
/* A hash of this rank's result. */
uint64_t case_hash(const posted_case *p);
/* Lets the group use this algorithm where it can; 0: its own choice. */
void case_force(ls_group *group, int algorithm);

enum { CASE_TEXT_BYTES = 256 };
const char *case_print(const ls_group *group, const call_case *c, char text[CASE_TEXT_BYTES]);

#endif
