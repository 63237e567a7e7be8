/* The worker of `lockstep bench`: one rank's buffers and the timed loop.
 *
 * Buffers: an arena for inputs and one for outputs, each cut into slots. Slots of the input arena
 * are as large as the larger of the two buffers; where the smaller one is the input (all-gather,
 * gather) it lies at this rank's part, so calls in place need nothing else.
 *
 * One iteration measures a batch out of place, a batch in place and a batch of the bound, so that a
 * noisy machine disturbs all three alike. Before a batch its input slots are rewritten, as a
 * backward pass would, and an untimed barrier lets the ranks begin together. The batch is so long
 * that two readings of the clock do not matter; as each call has a slot of its own, the rewriting
 * stays outside of what is timed. The time of a batch is that of its slowest rank.
 *
 * Cold: slots go round through an arena of several times the largest cache, and each is rewritten
 * right after its call, so that by its next turn everything since has pushed it out.
 *
 * The bound adds one private array to another, 3 S bytes read or written, at the same time on all
 * ranks; a collective that must touch B bytes per rank could take B / (3 S) of that time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "comm/group.h"

enum {
    LINE_BYTES = 64,
    PAGE_BYTES = 4096,
    HUGE_BYTES = 2 << 20,
    MAX_BATCH = 64,
    BATCH_BYTES = 128 << 10, /* of a batch, at most: more would push earlier slots out of L2 */
    MAX_CHOICES = 32,
};

typedef enum pass { OUT_OF_PLACE, IN_PLACE, BOUND, N_KINDS } pass;

typedef struct worker {
    const bench_request *request;
    lsi_region *region;
    ls_group *group;
    int rank, n_ranks;
    size_t arena_bytes;
    char *input, *output; /* arenas */
    float *sum, *addend;  /* private arrays of the bound, cut into slots like the arenas */
    int64_t *filled_as;   /* per slot: where in the tile its input began */
    int64_t n_filled;
    bench_values values;
    double *mine, *all; /* microseconds per kind and iteration, and whether to stop */
    json_t *rows;       /* rank 0 with --json */
    int64_t n_wrong;
    /* the point that is measured */
    bench_point point;
    size_t input_at, output_at; /* of the buffers in a slot, the latter in place */
    size_t stride;
    int64_t n_slots, cursor, n_input, n_floats;
    int n_batch;
    int64_t wrong_in[N_KINDS];
    const char *algorithm[N_KINDS]; /* that did the last call */
} worker;

/* ---- memory ---- */

static size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

static int batch_of(size_t stride) {
    size_t n = BATCH_BYTES / stride;
    return n < 1 ? 1 : n > MAX_BATCH ? MAX_BATCH : (int)n;
}

static size_t arena_for(const bench_request *request, int64_t bytes) {
    size_t stride = round_up((size_t)bytes, LINE_BYTES);
    size_t needed = stride * (size_t)batch_of(stride);
    size_t cold = request->has_cold ? bench_cold_bytes() : 0;
    return round_up(needed > cold ? needed : cold, PAGE_BYTES);
}

/* Roofs are for the fastest memory there is: huge pages where the system gives them on request. */
static ls_status alloc_private(size_t bytes, bool wants_huge, void *out) {
    char *memory = lsi_alloc(LSI_MEM_OTHER, bytes);
    LSI_TRY(lsi_check_alloc(memory));
    if (wants_huge && bytes >= 2 * HUGE_BYTES) {
        char *start = memory + (HUGE_BYTES - (uintptr_t)memory % HUGE_BYTES) % HUGE_BYTES;
        (void)madvise(start, (size_t)(memory + bytes - start) / HUGE_BYTES * HUGE_BYTES,
                      MADV_HUGEPAGE);
    }
    memset(memory, 0, bytes);
    memcpy(out, &memory, sizeof memory);
    return LS_OK;
}

static ls_status alloc_buffer(worker *w, char **out) {
    if (!w->request->is_shared) return alloc_private(w->arena_bytes, false, out);
    void *memory;
    LSI_TRY(ls_group_alloc_shared(w->group, w->arena_bytes, &memory));
    memset(memory, 0, w->arena_bytes); /* so that pages are there when the clock runs */
    *out = memory;
    return LS_OK;
}

static ls_status make_buffers(worker *w) {
    const bench_request *request = w->request;
    int64_t largest = 0;
    for (int d = 0; d < request->n_dtypes; d++) {
        int64_t count = bench_count_of(request, request->max_bytes, request->dtypes[d]);
        int64_t bytes = bench_bytes_of(request, count, request->dtypes[d]);
        if (bytes > largest) largest = bytes;
    }
    w->arena_bytes = arena_for(request, largest > (int64_t)BATCH_BYTES ? largest : BATCH_BYTES);
    LSI_TRY(alloc_buffer(w, &w->input));
    LSI_TRY(alloc_buffer(w, &w->output));
    LSI_TRY(alloc_private(w->arena_bytes, true, &w->sum));
    LSI_TRY(alloc_private(w->arena_bytes, true, &w->addend));
    LSI_TRY(lsi_check_alloc(w->filled_as = lsi_calloc(LSI_MEM_OTHER, w->arena_bytes / LINE_BYTES,
                                                      sizeof *w->filled_as)));
    size_t n_times = (size_t)request->n_iters * N_KINDS + 1;
    LSI_TRY(lsi_check_alloc(w->mine = lsi_calloc(LSI_MEM_OTHER, n_times, sizeof *w->mine)));
    LSI_TRY(lsi_check_alloc(
        w->all = lsi_calloc(LSI_MEM_OTHER, n_times * (size_t)w->n_ranks, sizeof *w->all)));
    return bench_values_init(&w->values, w->n_ranks);
}

static void free_worker(worker *w) {
    if (!w->request->is_shared) {
        lsi_free(w->input);
        lsi_free(w->output);
    }
    lsi_free(w->sum);
    lsi_free(w->addend);
    lsi_free(w->filled_as);
    lsi_free(w->mine);
    lsi_free(w->all);
    bench_values_fini(&w->values);
    json_decref(w->rows);
    ls_group_destroy(w->group);
}

/* ---- slots ---- */

static size_t slot_of(const worker *w, int k) {
    return (size_t)((w->cursor + k) % w->n_slots) * w->stride;
}

static void fill_input(worker *w, size_t slot) {
    int64_t at = ++w->n_filled;
    w->filled_as[slot / w->stride] = at;
    bench_fill(&w->values, w->rank, at, w->input + slot + w->input_at, w->n_input);
}

static void fill_sum(worker *w, size_t slot) {
    float *sum = w->sum + slot / sizeof *sum;
    for (int64_t i = 0; i < w->n_floats; i++) sum[i] = (float)(i % 7);
}

static void refill_batch(worker *w, pass kind) {
    for (int k = 0; k < w->n_batch; k++) {
        if (kind != BOUND || w->point.is_cold) fill_input(w, slot_of(w, k));
        if (kind == BOUND || w->point.is_cold) fill_sum(w, slot_of(w, k));
    }
}

/* ---- what is timed ---- */

static void add(float *restrict sum, const float *restrict addend, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += addend[i];
}

static ls_status run_batch(worker *w, pass kind) {
    const bench_request *request = w->request;
    bench_call call = {.group = w->group,
                       .count = w->point.count,
                       .dtype = w->point.dtype,
                       .op = w->point.op,
                       .scale = bench_scale(w->point.op, w->rank),
                       .root = request->root,
                       .rank = w->rank,
                       .n_ranks = w->n_ranks};
    for (int k = 0; k < w->n_batch; k++) {
        size_t slot = slot_of(w, k);
        if (kind == BOUND) {
            add(w->sum + slot / sizeof(float), w->addend + slot / sizeof(float), w->n_floats);
            continue;
        }
        call.input = w->input + slot + w->input_at;
        call.output = kind == IN_PLACE ? w->input + slot + w->output_at : w->output + slot;
        LSI_TRY(request->collective->call(&call));
        w->algorithm[kind] = request->collective->only_way ? request->collective->only_way
                                                           : lsi_group_last_algorithm(w->group);
    }
    return LS_OK;
}

/* Wrong elements of this rank's outputs of the batch that was just run. */
static int64_t count_wrong(const worker *w, pass kind) {
    const bench_collective *c = w->request->collective;
    int64_t count = w->point.count, n_wrong = 0;
    size_t part_bytes = (size_t)count * ls_dtype_bytes(w->point.dtype);
    if (c->source == BENCH_FROM_NOBODY) return 0;
    if (c->root_has_output && w->rank != w->request->root) return 0;
    for (int k = 0; k < w->n_batch; k++) {
        size_t slot = slot_of(w, k);
        const char *found = kind == IN_PLACE ? w->input + slot + w->output_at : w->output + slot;
        int64_t at = w->filled_as[slot / w->stride] + (c->takes_own_part ? w->rank * count : 0);
        for (int part = 0; part < (c->output_has_parts ? w->n_ranks : 1); part++) {
            const int tile_from[] = {[BENCH_FROM_COMBINED] = w->n_ranks,
                                     [BENCH_FROM_EACH] = part,
                                     [BENCH_FROM_ROOT] = w->request->root,
                                     [BENCH_FROM_PREVIOUS] =
                                         (w->rank + w->n_ranks - 1) % w->n_ranks};
            n_wrong += bench_count_wrong(&w->values, tile_from[c->source], at,
                                         found + (size_t)part * part_bytes, count);
        }
    }
    return n_wrong;
}

static bool has_kind(const worker *w, pass kind) {
    const bench_collective *c = w->request->collective;
    if (kind == IN_PLACE) return c->has_in_place;
    return kind != BOUND || c->touched(w->n_ranks, false) > 0;
}

static ls_status time_batch(worker *w, pass kind, int iteration) {
    if (!w->point.is_cold) refill_batch(w, kind);
    LSI_TRY(ls_barrier(w->group, NULL));
    int64_t begin_ns = lsi_now_ns();
    LSI_TRY(run_batch(w, kind));
    double batch_us = (double)(lsi_now_ns() - begin_ns) / 1e3;
    if (iteration >= 0) w->mine[iteration * N_KINDS + (int)kind] = batch_us / (double)w->n_batch;
    if (iteration == w->request->n_iters - 1 && w->request->check && kind != BOUND)
        w->wrong_in[kind] = count_wrong(w, kind);
    if (w->point.is_cold) {
        refill_batch(w, kind);
        w->cursor = (w->cursor + w->n_batch) % w->n_slots;
    }
    return LS_OK;
}

/* ---- one point ---- */

static void set_point(worker *w, const bench_point *point) {
    const bench_collective *c = w->request->collective;
    bool cuts = c->input_has_parts != c->output_has_parts;
    size_t own_part = (size_t)(w->rank * point->count) * ls_dtype_bytes(point->dtype);
    w->point = *point;
    w->input_at = cuts && c->output_has_parts ? own_part : 0;
    w->output_at = cuts && c->input_has_parts ? own_part : 0;
    w->n_input = point->count * (c->input_has_parts ? w->n_ranks : 1);
    w->n_floats = point->bytes / (int64_t)sizeof(float);
    if (w->n_floats == 0) w->n_floats = 1;
    w->stride = round_up(point->bytes > 0 ? (size_t)point->bytes : 1, LINE_BYTES);
    w->n_batch = batch_of(w->stride);
    w->n_slots = w->n_batch;
    w->cursor = 0;
    memset(w->wrong_in, 0, sizeof w->wrong_in);
    if (!point->is_cold) return;
    /* Small slots lie on pages of their own, or the processor fetches the next ones ahead. */
    if (w->stride < PAGE_BYTES) w->stride = PAGE_BYTES + LINE_BYTES;
    w->n_slots = (int64_t)(w->arena_bytes / w->stride);
    if (w->n_batch > w->n_slots) w->n_batch = (int)w->n_slots;
    for (int64_t i = 0; i < w->n_slots; i++) {
        fill_input(w, (size_t)i * w->stride);
        fill_sum(w, (size_t)i * w->stride);
    }
}

/* Every rank learns the times of all, and whether one of them was asked to stop. */
static ls_status share_times(worker *w) {
    int64_t n = (int64_t)w->request->n_iters * N_KINDS;
    w->mine[n] = lsi_region_stop_requested(w->region) != 0;
    LSI_TRY(ls_all_gather(w->group, w->mine, w->all, n + 1, LS_DTYPE_F64, NULL));
    for (int r = 0; r < w->n_ranks; r++)
        if (w->all[r * (n + 1) + n] != 0.0)
            return lsi_fail(LS_ERR_INTERRUPTED, "bench: stopped before all sizes were measured");
    if (!w->request->check) return LS_OK;
    int64_t wrong[N_KINDS];
    LSI_TRY(
        ls_all_reduce(w->group, w->wrong_in, wrong, N_KINDS, LS_DTYPE_I64, LS_OP_SUM, 1.0, NULL));
    for (int k = 0; k < N_KINDS; k++) {
        w->wrong_in[k] = wrong[k];
        w->n_wrong += wrong[k];
    }
    return LS_OK;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Times of the slowest rank per iteration, sorted, in place of this rank's own. */
static const double *slowest_sorted(worker *w, pass kind) {
    int n = w->request->n_iters;
    for (int i = 0; i < n; i++) {
        double slowest = 0;
        for (int r = 0; r < w->n_ranks; r++) {
            double us = w->all[r * (n * N_KINDS + 1) + i * N_KINDS + (int)kind];
            if (us > slowest) slowest = us;
        }
        w->mine[i] = slowest;
    }
    qsort(w->mine, (size_t)n, sizeof *w->mine, compare);
    return w->mine;
}

static double median_of(const double *sorted, int n) {
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static void figure(worker *w, pass kind, bench_figures *f) {
    const bench_collective *c = w->request->collective;
    int n = w->request->n_iters;
    double bytes = (double)w->point.bytes;
    const double *us = slowest_sorted(w, kind);
    f->p50_us = median_of(us, n);
    f->p99_us = us[(n * 99 + 99) / 100 - 1];
    /* bytes per microsecond / 1000 = GB/s */
    f->algbw_gb_per_s = f->p50_us > 0 ? bytes / f->p50_us / 1e3 : 0;
    f->busbw_gb_per_s = f->algbw_gb_per_s * c->bus_factor(w->n_ranks);
    f->n_wrong = w->request->check ? w->wrong_in[kind] : -1;
    f->roof_share = -1;
    if (w->n_ranks == 1 || !has_kind(w, BOUND) || f->p50_us <= 0) return;
    double add_us = median_of(slowest_sorted(w, BOUND), n);
    double added_bytes = 3.0 * (double)w->n_floats * sizeof(float);
    double touched_bytes = c->touched(w->n_ranks, kind == IN_PLACE) * bytes;
    f->roof_share = add_us * touched_bytes / added_bytes / f->p50_us;
}

static ls_status keep_row(worker *w, json_t *row) {
    if (row && json_array_append_new(w->rows, row) == 0) return LS_OK;
    return lsi_fail(LS_ERR_MEMORY, "bench: out of memory for --json");
}

static ls_status choose(const worker *w, const bench_point *point, ls_choice *choice,
                        ls_choice *all, int n_all, int *n_found) {
    const bench_collective *c = w->request->collective;
    if (!c->only_way)
        return ls_group_choose(w->group, c->name, point->count, point->dtype, choice, all, n_all,
                               n_found);
    *choice = (ls_choice){.algorithm = c->only_way};
    if (n_found) *n_found = 0;
    return LS_OK;
}

static ls_status report_point(worker *w) {
    const bench_request *request = w->request;
    bench_figures figures[N_KINDS];
    for (int k = 0; k <= IN_PLACE; k++)
        if (has_kind(w, (pass)k)) figure(w, (pass)k, &figures[k]);
    bool in_place = has_kind(w, IN_PLACE);
    bench_print_row(request, &w->point, &figures[OUT_OF_PLACE],
                    in_place ? &figures[IN_PLACE] : NULL, w->algorithm[OUT_OF_PLACE]);
    if (!w->rows) return LS_OK;
    for (int k = 0; k <= (in_place ? IN_PLACE : OUT_OF_PLACE); k++)
        LSI_TRY(keep_row(
            w, bench_row_to_json(request, &w->point, &figures[k], k == IN_PLACE, w->algorithm[k])));
    return LS_OK;
}

static ls_status measure_point(worker *w, const bench_point *point) {
    set_point(w, point);
    for (int i = -w->request->n_warmup; i < w->request->n_iters; i++)
        for (int k = 0; k < N_KINDS; k++)
            if (has_kind(w, (pass)k)) LSI_TRY(time_batch(w, (pass)k, i));
    LSI_TRY(share_times(w));
    return w->rank == 0 ? report_point(w) : LS_OK;
}

/* ---- all points ---- */

static ls_status explain_point(worker *w, const bench_point *point) {
    if (w->rank != 0) return LS_OK;
    ls_choice choice, all[MAX_CHOICES];
    int n = 0;
    LSI_TRY(choose(w, point, &choice, all, MAX_CHOICES, &n));
    if (n > MAX_CHOICES) n = MAX_CHOICES;
    bench_print_choice(w->request, point, &choice, all, n);
    return w->rows ? keep_row(w, bench_choice_to_json(w->request, point, &choice, all, n)) : LS_OK;
}

/* Sizes that come to the same count are measured once. */
static ls_status do_sizes(worker *w, ls_dtype dtype, ls_op op) {
    const bench_request *request = w->request;
    int64_t count_before = -1;
    bench_values_set(&w->values, dtype, op);
    for (int64_t s = request->min_bytes; s > 0; s = bench_next_bytes(request, s)) {
        bench_point point = {.count = bench_count_of(request, s, dtype), .dtype = dtype, .op = op};
        point.bytes = bench_bytes_of(request, point.count, dtype);
        if (point.count == count_before) continue;
        count_before = point.count;
        if (request->explains) {
            LSI_TRY(explain_point(w, &point));
            continue;
        }
        LSI_TRY(measure_point(w, &point));
        point.is_cold = true;
        if (request->has_cold) LSI_TRY(measure_point(w, &point));
    }
    return LS_OK;
}

static ls_status do_points(worker *w) {
    for (int d = 0; d < w->request->n_dtypes; d++)
        for (int o = 0; o < w->request->n_ops; o++)
            LSI_TRY(do_sizes(w, w->request->dtypes[d], w->request->ops[o]));
    return LS_OK;
}

static ls_status make_head(worker *w, bench_head *head) {
    const char *buffer = w->input;
    *head = (bench_head){.n_ranks = w->n_ranks,
                         .n_cpus = lsi_region_n_cpus(lsi_group_region(w->group))};
    head->has_thread = ls_group_has_thread(w->group, &head->thread_reason) == 1;
    if (buffer)
        head->knows_huge_pages =
            bench_huge_pages(buffer, w->arena_bytes, &head->mapped_bytes, &head->huge_bytes);
    return bench_measure_latency(w->group, w->request->board, &head->latency);
}

static ls_status write_json(worker *w, const bench_head *head, const bench_latency *last) {
    json_t *json = bench_head_to_json(w->request, head);
    if (!json || json_object_set_new(json, "latency_last_ns", json_real(last->least_ns)) != 0 ||
        json_object_set(json, "rows", w->rows) != 0) {
        json_decref(json);
        return lsi_fail(LS_ERR_MEMORY, "bench: out of memory for --json");
    }
    ls_status status = lsi_file_replace_json(w->request->json, json);
    json_decref(json);
    return lsi_context(status, "--json");
}

static ls_status measure_all(worker *w) {
    const bench_request *request = w->request;
    bench_head head;
    bench_latency last;
    LSI_TRY(make_head(w, &head));
    if (w->rank == 0) bench_print_head(request, &head);
    LSI_TRY(do_points(w));
    LSI_TRY(bench_measure_latency(w->group, request->board, &last));
    if (w->rank != 0) return LS_OK;
    if (!request->explains) bench_print_foot(&last);
    request->board->n_wrong = w->n_wrong;
    return w->rows ? write_json(w, &head, &last) : LS_OK;
}

ls_status bench_work(lsi_region *region, int rank, void *context) {
    worker w = {.request = context, .region = region, .rank = rank};
    ls_status status = lsi_group_attach(region, rank, &w.group);
    if (status != LS_OK) return status;
    w.n_ranks = ls_group_world_size(w.group);
    status = ls_barrier(w.group, NULL);
    if (status == LS_OK) status = lsi_group_calibrate(w.group);
    if (status == LS_OK && rank == 0 && w.request->json) {
        w.rows = json_array();
        if (!w.rows) status = lsi_fail(LS_ERR_MEMORY, "bench: out of memory for --json");
    }
    if (status == LS_OK && w.request->explains) {
        status = bench_values_init(&w.values, w.n_ranks);
    } else if (status == LS_OK) {
        status = make_buffers(&w);
    }
    if (status == LS_OK) status = measure_all(&w);
    /* Before the group goes, or the others would report that this rank left, and not why. */
    if (status != LS_OK) ls_group_abort(w.group, status, ls_last_message());
    free_worker(&w);
    return status;
}
