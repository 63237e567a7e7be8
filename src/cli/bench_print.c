/* What `lockstep bench` says: a head that tells under which conditions the figures were taken, one
 * row per point in the columns of nccl-tests, and the same as JSON. */
#include <inttypes.h>
#include <stdio.h>

#include <lockstep/version.h>

#include "base/cpu.h"
#include "cli/bench.h"

static const char *const dtype_names[] = {
    [LS_DTYPE_F32] = "float32", [LS_DTYPE_F64] = "float64", [LS_DTYPE_BF16] = "bfloat16",
    [LS_DTYPE_F16] = "float16", [LS_DTYPE_I8] = "int8",     [LS_DTYPE_I32] = "int32",
    [LS_DTYPE_I64] = "int64",   [LS_DTYPE_U8] = "uint8",
};

const char *bench_dtype_name(ls_dtype dtype) {
    return dtype_names[dtype];
}

static const char *op_name(const bench_request *request, ls_op op) {
    return request->collective->reduces ? ls_op_name(op) : "none";
}

static const char *dtype_name(const bench_request *request, ls_dtype dtype) {
    return request->collective->source == BENCH_FROM_NOBODY ? "none" : bench_dtype_name(dtype);
}

static int root_of(const bench_request *request) {
    return request->collective->has_root ? request->root : -1;
}

/* ---- head ---- */

static void print_latency(const char *when, const bench_latency *latency) {
    if (latency->most_ns <= 0) return;
    printf("# one-way latency between ranks%s: %.0f ns", when, latency->least_ns);
    if (latency->most_ns > latency->least_ns)
        printf(" from rank 0 to the nearest, %.0f ns to the farthest", latency->most_ns);
    printf("\n");
}

static void print_pages(const bench_request *request, const bench_head *head) {
    char setting[64];
    const char *file = request->is_shared ? "shmem_enabled" : "enabled";
    printf("# buffers: %s; ", request->is_shared ? "shared" : "plain");
    if (head->knows_huge_pages)
        printf("huge pages back %" PRId64 " of %" PRId64 " MiB mapped", head->huge_bytes >> 20,
               head->mapped_bytes >> 20);
    else
        printf("the system does not say whether huge pages back them");
    printf(" (transparent_hugepage/%s: %s)\n", file,
           bench_huge_page_setting(file, setting, sizeof setting));
}

static void print_method(const bench_request *request) {
    printf(
        "# %d iterations after %d of warm-up. Each rank rewrites its buffers before each call "
        "and an untimed barrier follows.\n"
        "# Small calls are timed in batches, each call on a buffer of its own that was rewritten "
        "before the clock started.\n"
        "# Times are those of the slowest rank per iteration; p50 is their median. algbw and "
        "busbw as in nccl-tests.\n"
        "# roof: share of the speed at which ranks can touch the bytes they must, by adding "
        "private arrays in the same run.\n",
        request->n_iters, request->n_warmup);
    if (request->has_cold)
        printf("# warm: the same buffers again and again; cold: buffers that rotate through %zu "
               "MiB per rank or more.\n",
               bench_cold_bytes() >> 20);
}

static void print_columns(void) {
    static const char *const figures[2] = {
        "|       p50       p99   algbw   busbw  roof  wrong ",
        "|      (us)      (us)  (GB/s)  (GB/s)   (%)        ",
    };
    printf("#%53s| %-48s | %-48s |\n", "", "out of place", "in place");
    printf("#%11s %11s %8s %10s %4s %4s %s%s| algorithm\n", "size", "count", "type", "redop",
           "root", "mem", figures[0], figures[0]);
    printf("#%11s %11s %8s %10s %4s %4s %s%s|\n", "(bytes)", "(elements)", "", "", "", "",
           figures[1], figures[1]);
}

void bench_print_head(const bench_request *request, const bench_head *head) {
    printf("# lockstep %s bench %s: %d ranks, %d processors usable (%s)\n", ls_version(),
           request->collective->name, head->n_ranks, head->n_cpus, lsi_cpu_name());
    printf("# progress: %s: %s\n", head->has_thread ? "a thread of the group" : "callers (inline)",
           head->thread_reason ? head->thread_reason : "");
    if (request->algo) printf("# LOCKSTEP_ALGO: %s\n", request->algo);
    print_latency("", &head->latency);
    if (request->explains) {
        printf("# Expected times by the costs measured when the group was made; the cheapest is "
               "chosen unless one is forced.\n#%11s %11s %8s  choice\n",
               "size", "count", "type");
    } else {
        print_pages(request, head);
        print_method(request);
        print_columns();
    }
    fflush(stdout);
}

void bench_print_foot(const bench_latency *latency) {
    print_latency(" at the end", latency);
    fflush(stdout);
}

/* ---- rows ---- */

static void print_figures(const bench_figures *f) {
    if (!f) {
        printf("| %9s %9s %7s %7s %5s %6s ", "-", "-", "-", "-", "-", "-");
        return;
    }
    char roof[16] = "-", wrong[24] = "n/a";
    if (f->roof_share >= 0) snprintf(roof, sizeof roof, "%.0f", 100 * f->roof_share);
    if (f->n_wrong >= 0) snprintf(wrong, sizeof wrong, "%" PRId64, f->n_wrong);
    printf("| %9.2f %9.2f %7.2f %7.2f %5s %6s ", f->p50_us, f->p99_us, f->algbw_gb_per_s,
           f->busbw_gb_per_s, roof, wrong);
}

void bench_print_row(const bench_request *request, const bench_point *point,
                     const bench_figures *out_of_place, const bench_figures *in_place,
                     const char *algorithm) {
    printf("%12" PRId64 " %11" PRId64 " %8s %10s %4d %4s ", point->bytes, point->count,
           dtype_name(request, point->dtype), op_name(request, point->op), root_of(request),
           point->is_cold ? "cold" : "warm");
    print_figures(out_of_place);
    print_figures(in_place);
    printf("| %s\n", algorithm);
    fflush(stdout);
}

void bench_print_choice(const bench_request *request, const bench_point *point,
                        const ls_choice *choice, const ls_choice *all, int n_all) {
    printf("%12" PRId64 " %11" PRId64 " %8s  %s", point->bytes, point->count,
           dtype_name(request, point->dtype), choice->algorithm);
    if (n_all == 0)
        printf(", the only way");
    else
        printf(": %.2f us%s", choice->time_us, choice->forced ? " (forced by LOCKSTEP_ALGO)" : "");
    const char *before = "; then ";
    for (int i = 0; i < n_all; i++) {
        if (all[i].algorithm == choice->algorithm) continue;
        printf("%s%s %.2f", before, all[i].algorithm, all[i].time_us);
        before = ", ";
    }
    printf("\n");
    fflush(stdout);
}

/* ---- JSON ---- */

json_t *bench_head_to_json(const bench_request *request, const bench_head *head) {
    char setting[64];
    return json_pack("{s:s, s:i, s:s, s:s, s:i, s:s, s:s, s:f, s:f, s:I, s:I, s:s}", "collective",
                     request->collective->name, "world_size", head->n_ranks, "version",
                     ls_version(), "processor", lsi_cpu_name(), "processors", head->n_cpus,
                     "progress", head->has_thread ? "thread" : "inline", "progress_reason",
                     head->thread_reason ? head->thread_reason : "", "latency_ns",
                     head->latency.least_ns, "latency_farthest_ns", head->latency.most_ns,
                     "mapped_bytes", (json_int_t)head->mapped_bytes, "huge_page_bytes",
                     (json_int_t)head->huge_bytes, "huge_pages",
                     bench_huge_page_setting(request->is_shared ? "shmem_enabled" : "enabled",
                                             setting, sizeof setting));
}

static json_t *point_to_json(const bench_request *request, const bench_point *point,
                             const char *algorithm) {
    return json_pack("{s:I, s:I, s:s, s:s, s:s}", "bytes", (json_int_t)point->bytes, "count",
                     (json_int_t)point->count, "dtype", dtype_name(request, point->dtype), "op",
                     op_name(request, point->op), "algorithm", algorithm);
}

/* Joins two new references; NULL when memory ran out, now or before. */
static json_t *merged(json_t *row, json_t *more) {
    if (row && more && json_object_update(row, more) != 0) {
        json_decref(row);
        row = NULL;
    }
    if (!more) {
        json_decref(row);
        row = NULL;
    }
    json_decref(more);
    return row;
}

json_t *bench_row_to_json(const bench_request *request, const bench_point *point,
                          const bench_figures *f, bool is_in_place, const char *algorithm) {
    json_t *roof = f->roof_share < 0 ? json_null() : json_real(f->roof_share);
    json_t *wrong = f->n_wrong < 0 ? json_null() : json_integer(f->n_wrong);
    json_t *figures = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:b, s:s, s:b, s:i}", "time_us", f->p50_us, "p50_us",
        f->p50_us, "p99_us", f->p99_us, "algbw_gb_per_s", f->algbw_gb_per_s, "busbw_gb_per_s",
        f->busbw_gb_per_s, "roof_share", roof, "wrong", wrong, "in_place", is_in_place, "buffers",
        request->is_shared ? "shared" : "plain", "cold", point->is_cold, "root", root_of(request));
    return merged(point_to_json(request, point, algorithm), figures);
}

json_t *bench_choice_to_json(const bench_request *request, const bench_point *point,
                             const ls_choice *choice, const ls_choice *all, int n_all) {
    json_t *list = json_array();
    for (int i = 0; list && i < n_all; i++) {
        json_t *one =
            json_pack("{s:s, s:f}", "algorithm", all[i].algorithm, "expected_us", all[i].time_us);
        if (json_array_append_new(list, one) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    json_t *expected_us = n_all == 0 ? json_null() : json_real(choice->time_us);
    json_t *choices = json_pack("{s:o, s:b, s:o}", "expected_us", expected_us, "forced",
                                choice->forced, "candidates", list);
    return merged(point_to_json(request, point, choice->algorithm), choices);
}
