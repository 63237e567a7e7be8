/* Inside of `lockstep bench`: what is asked for, how one collective is described, what is found.
 *
 *     cmd_bench.c         options, checks, start of the workers
 *     bench_collective.c  the table of collectives: call, expected output, bus and roof factors
 *     bench_values.c      what buffers hold, and how many elements of an output are wrong
 *     bench_machine.c     latency between ranks, huge pages, caches
 *     bench_measure.c     the worker: buffers, the timed loop, the figures of a row
 *     bench_print.c       head, rows and JSON
 *
 * Words: a *point* is one line of the table (size, dtype, op, warm or cold); a *slot* is the piece
 * of the buffers that one call works on; a *batch* is the calls between two readings of the clock,
 * each on a slot of its own. S is the size of the point: bytes of the larger of a rank's two
 * buffers. */
#ifndef LSI_CLI_BENCH_H
#define LSI_CLI_BENCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>
#include <lockstep/group.h>

#include "base/message.h"
#include "comm/region.h"

/* ---- collectives (bench_collective.c) ---- */

typedef struct bench_call {
    ls_group *group;
    const void *input;
    void *output;
    int64_t count;
    ls_dtype dtype;
    ls_op op;
    double scale;
    int root, rank, n_ranks;
} bench_call;

/* Whose input an output holds. */
typedef enum bench_source {
    BENCH_FROM_NOBODY,   /* no data */
    BENCH_FROM_COMBINED, /* all ranks' inputs, reduced */
    BENCH_FROM_EACH,     /* part p: rank p's */
    BENCH_FROM_ROOT,
    BENCH_FROM_PREVIOUS, /* the rank below, round the corner */
} bench_source;

typedef struct bench_collective {
    const char *name;
    bench_source source;
    bool reduces, has_root;
    bool input_has_parts, output_has_parts; /* n * count elements instead of count */
    bool root_has_output;                   /* nobody else has */
    bool has_in_place;
    bool takes_own_part;  /* the output is part `rank` of what the source has */
    const char *only_way; /* NULL: there are algorithms to choose from */
    double (*bus_factor)(int n_ranks);
    double (*touched)(int n_ranks, bool in_place); /* bytes per rank at least, as a multiple of S */
    ls_status (*call)(const bench_call *call);
} bench_collective;

extern const bench_collective bench_collectives[]; /* name = NULL ends */
/* The scale that this rank gives with `op`. */
double bench_scale(ls_op op, int rank);

/* ---- values (bench_values.c) ---- */

typedef struct bench_values {
    ls_dtype dtype;
    ls_op op;
    int n_ranks;
    unsigned char *tiles;
} bench_values;

/* Allocates for all dtypes; set before use. */
LS_CHECKED ls_status bench_values_init(bench_values *values, int n_ranks);
void bench_values_fini(bench_values *values);
void bench_values_set(bench_values *values, ls_dtype dtype, ls_op op);
/* Tiles 0 … n_ranks - 1 are the ranks' inputs, tile n_ranks their reduction. Element i of what is
 * written or expected is element `at + i` of the tile, which repeats for ever. */
void bench_fill(const bench_values *values, int tile, int64_t at, void *to, int64_t count);
int64_t bench_count_wrong(const bench_values *values, int tile, int64_t at, const void *found,
                          int64_t count);

/* ---- the request (cmd_bench.c) ---- */

typedef struct bench_board bench_board;

typedef struct bench_request {
    const bench_collective *collective;
    int64_t min_bytes, max_bytes, step_bytes, step_factor; /* step_bytes 0: by the factor */
    int n_iters, n_warmup, root, n_workers;
    bool bind;
    ls_op ops[8];
    ls_dtype dtypes[8];
    int n_ops, n_dtypes;
    bool check, is_shared, has_cold, explains;
    const char *algo, *json; /* NULL: none */
    bench_board *board;
} bench_request;

/* The count that the call gets for a size asked for, and the size that this really is. */
int64_t bench_count_of(const bench_request *request, int64_t bytes, ls_dtype dtype);
int64_t bench_bytes_of(const bench_request *request, int64_t count, ls_dtype dtype);
/* The size behind `bytes`; 0 at the end. */
int64_t bench_next_bytes(const bench_request *request, int64_t bytes);

/* ---- the machine (bench_machine.c) ---- */

/* Memory that the launcher and all workers share, apart from the engine's: ranks measure their
 * distance in it, and the launcher learns what rank 0 found. */
struct bench_board {
    struct {
        _Alignas(64) atomic_uint_fast64_t ping;
        _Alignas(64) atomic_uint_fast64_t pong;
    } pair[LSI_MAX_RANKS];
    int64_t n_wrong;
};

LS_CHECKED ls_status bench_board_create(bench_board **board);

typedef struct bench_latency {
    double least_ns, most_ns; /* from rank 0 to the nearest and the farthest rank; 0: one rank */
} bench_latency;

/* Collective. Time one way of a cache line that goes to and fro. */
LS_CHECKED ls_status bench_measure_latency(ls_group *group, bench_board *board,
                                           bench_latency *latency);

/* Bytes of [start, start + bytes) that this process has mapped, and how many of them by huge pages;
 * false where the system does not say. */
bool bench_huge_pages(const void *start, size_t bytes, int64_t *mapped_bytes, int64_t *huge_bytes);
/* "advise" of "always within_size [advise] never": the setting in a file of
 * /sys/kernel/mm/transparent_hugepage; "unknown" where there is none. */
const char *bench_huge_page_setting(const char *file, char *text, size_t text_bytes);
/* Bytes of memory that rotating buffers must go through to be cold when their turn comes again:
 * twice the largest cache. */
size_t bench_cold_bytes(void);
int64_t bench_memory_bytes(void);

/* ---- what is found (bench_print.c) ---- */

typedef struct bench_head {
    int n_ranks;
    int n_cpus; /* of all ranks together */
    bench_latency latency;
    bool has_thread;
    const char *thread_reason;
    bool knows_huge_pages;
    int64_t mapped_bytes, huge_bytes; /* of the buffers */
} bench_head;

typedef struct bench_figures {
    double p50_us, p99_us, algbw_gb_per_s, busbw_gb_per_s;
    double roof_share; /* < 0: there is no bound */
    int64_t n_wrong;   /* < 0: not checked */
} bench_figures;

typedef struct bench_point {
    int64_t bytes, count;
    ls_dtype dtype;
    ls_op op;
    bool is_cold;
} bench_point;

void bench_print_head(const bench_request *request, const bench_head *head);
/* in_place is NULL where the collective has no such form. */
void bench_print_row(const bench_request *request, const bench_point *point,
                     const bench_figures *out_of_place, const bench_figures *in_place,
                     const char *algorithm);
void bench_print_foot(const bench_latency *latency);
/* One choice of ls_group_choose with those it was chosen from, n_all of them; 0: there is only one
 * way, and no expectation. */
void bench_print_choice(const bench_request *request, const bench_point *point,
                        const ls_choice *choice, const ls_choice *all, int n_all);

/* New references; NULL when memory ran out. */
json_t *bench_head_to_json(const bench_request *request, const bench_head *head);
json_t *bench_row_to_json(const bench_request *request, const bench_point *point,
                          const bench_figures *figures, bool is_in_place, const char *algorithm);
json_t *bench_choice_to_json(const bench_request *request, const bench_point *point,
                             const ls_choice *choice, const ls_choice *all, int n_all);
/* "float32" and so on, as on the command line. */
const char *bench_dtype_name(ls_dtype dtype);

/* ---- the worker (bench_measure.c) ---- */

/* Body of a worker: measures, prints and writes --json (rank 0). context: the request. */
ls_status bench_work(lsi_region *region, int rank, void *context);

#endif
