/* A ring of spans (see trace.h), printed as a Chrome trace.
 *
 * Invariant: span number n, counted from the start of tracing, lives in slot n modulo the size of
 * the ring, so the ring always holds the last LSI_TRACE_SPANS. A recording thread takes its number
 * with one atomic addition and then owns that slot; two threads meet in a slot only if a whole
 * ring of spans ended while one of them wrote 56 bytes. The flag `is_on` is published with release
 * order after the ring exists, so a thread that sees it sees the ring.
 *
 * [Note: rows of buckets] Buckets in flight overlap without nesting. Complete events ("X") of one
 * thread must nest: Perfetto drops or cuts those that do not. The
 * format's asynchronous events ("b" and "e") may overlap, but viewers gather them in a group of
 * their own, away from the row of the backward pass they are to be compared with. So a bucket is a
 * complete event on the first of several rows (threads) that is free when it begins, and the rows
 * are sorted in right below computation: the same picture in both viewers. */
#include "base/trace.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

typedef struct span {
    int64_t begin_ns;
    int64_t end_ns;
    const char *name;
    int64_t index;
    int64_t bytes;
    lsi_trace_lane lane;
    int row; /* of its lane, 0 = the first; known when printing */
} span;

static span *ring;
static uint32_t
    *order; /* slots in the order of printing; made with the ring, as print cannot fail */
static _Atomic uint64_t n_spans;
static _Atomic bool is_on;

enum {
    MAX_ROWS = 1024, /* more than the 512 buckets that can be in flight; further ones overlap */
    SORT_BELOW_BUCKETS = MAX_ROWS + 1,
};

static const struct {
    const char *name;
    int sort_index; /* of the first row, from the top */
} lanes[] = {
    [LSI_TRACE_COMPUTE] = {"compute", 0},
    [LSI_TRACE_COMM] = {"communication", SORT_BELOW_BUCKETS},
    [LSI_TRACE_IO] = {"input and output", SORT_BELOW_BUCKETS + 1},
    [LSI_TRACE_BUCKET] = {"buckets in flight", 1},
};

enum { N_LANES = sizeof lanes / sizeof lanes[0] };

bool lsi_trace_is_on(void) {
    return atomic_load_explicit(&is_on, memory_order_acquire);
}

ls_status lsi_trace_start(void) {
    if (lsi_trace_is_on()) return lsi_fail(LS_ERR_STATE, "tracing is on already");
    ring = lsi_calloc(LSI_MEM_OTHER, LSI_TRACE_SPANS, sizeof *ring);
    order = lsi_calloc(LSI_MEM_OTHER, LSI_TRACE_SPANS, sizeof *order);
    if (!ring || !order) {
        lsi_trace_stop();
        return lsi_context(lsi_check_alloc(NULL), "starting the trace");
    }
    atomic_store_explicit(&n_spans, 0, memory_order_relaxed);
    atomic_store_explicit(&is_on, true, memory_order_release);
    return LS_OK;
}

void lsi_trace_stop(void) {
    atomic_store_explicit(&is_on, false, memory_order_release);
    lsi_free(ring);
    lsi_free(order);
    ring = NULL;
    order = NULL;
}

int64_t lsi_trace_begin(void) {
    return lsi_trace_is_on() ? lsi_now_ns() : 0;
}

void lsi_trace_span_bytes(int64_t begin_ns, int64_t end_ns, lsi_trace_lane lane, const char *name,
                          int64_t index, int64_t bytes) {
    if (begin_ns == 0 || !lsi_trace_is_on()) return; /* switched on or off in between: no span */
    uint64_t number = atomic_fetch_add_explicit(&n_spans, 1, memory_order_relaxed);
    ring[number % LSI_TRACE_SPANS] = (span){
        .begin_ns = begin_ns,
        .end_ns = end_ns > begin_ns ? end_ns : begin_ns,
        .name = name,
        .index = index,
        .bytes = bytes,
        .lane = lane,
    };
}

void lsi_trace_span(int64_t begin_ns, int64_t end_ns, lsi_trace_lane lane, const char *name,
                    int64_t index) {
    lsi_trace_span_bytes(begin_ns, end_ns, lane, name, index, -1);
}

void lsi_trace_end(int64_t begin_ns, lsi_trace_lane lane, const char *name, int64_t index) {
    if (begin_ns == 0 || !lsi_trace_is_on()) return; /* spares reading the clock */
    lsi_trace_span(begin_ns, lsi_now_ns(), lane, name, index);
}

/* ---- rows and order ---- */

/* What encloses comes before what it encloses, and equals stay apart by slot. */
static int compare_spans(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    const span *x = &ring[a], *y = &ring[b];
    if (x->begin_ns != y->begin_ns) return x->begin_ns < y->begin_ns ? -1 : 1;
    if (x->end_ns != y->end_ns) return x->end_ns > y->end_ns ? -1 : 1;
    return (a > b) - (a < b);
}

/* Number of spans, now in `order`. */
static uint32_t sort_spans(void) {
    uint64_t end = atomic_load_explicit(&n_spans, memory_order_relaxed);
    uint32_t n = end > LSI_TRACE_SPANS ? LSI_TRACE_SPANS : (uint32_t)end;
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    qsort(order, n, sizeof *order, compare_spans);
    return n;
}

/* First row that is free when each bucket begins; the number of rows used. */
static int place_buckets(uint32_t n) {
    int64_t busy_until_ns[MAX_ROWS];
    int n_rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        span *at = &ring[order[i]];
        int row = 0;
        if (at->lane != LSI_TRACE_BUCKET) continue;
        while (row < n_rows && busy_until_ns[row] > at->begin_ns) row++;
        if (row == MAX_ROWS) row--;
        if (row == n_rows) n_rows++;
        busy_until_ns[row] = at->end_ns;
        at->row = row;
    }
    return n_rows;
}

/* ---- printing: the Trace Event Format that chrome://tracing and Perfetto read ---- */

/* Inside quotes. */
static void print_text(FILE *out, const char *text) {
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20) {
            fprintf(out, "\\u%04x", c);
            continue;
        }
        if (c == '"' || c == '\\') fputc('\\', out);
        fputc(c, out);
    }
}

/* Buckets show their number, as one wants to tell them apart without clicking. */
static void print_name(FILE *out, const span *at) {
    fputc('"', out);
    print_text(out, at->name);
    if (at->lane == LSI_TRACE_BUCKET && at->index >= 0) fprintf(out, " %" PRId64, at->index);
    fputc('"', out);
}

/* The viewer's unit is the microsecond; integers keep a locale's decimal comma out. */
static void print_us(FILE *out, int64_t ns) {
    fprintf(out, "%" PRId64 ".%03d", ns / 1000, (int)(ns % 1000));
}

static void print_row_name(FILE *out, int rank, lsi_trace_lane lane, int row) {
    int tid = (int)lane + row, sort_index = lanes[lane].sort_index + row;
    fprintf(out,
            ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%"
            "s\"}}"
            ",\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%d,"
            "\"args\":{\"sort_index\":%d}}",
            rank, tid, lanes[lane].name, rank, tid, sort_index);
}

static void print_names(FILE *out, int rank, int n_bucket_rows) {
    fprintf(
        out,
        "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}},\n"
        "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":%d}}",
        rank, rank, rank, rank);
    for (int lane = 0; lane < N_LANES; lane++) {
        int n_rows = lane == LSI_TRACE_BUCKET ? n_bucket_rows : 1;
        for (int row = 0; row < n_rows; row++) print_row_name(out, rank, (lsi_trace_lane)lane, row);
    }
}

static void print_arguments(FILE *out, const span *at) {
    const char *separator = ",\"args\":{";
    if (at->index >= 0) {
        fprintf(out, "%s\"index\":%" PRId64, separator, at->index);
        separator = ",";
    }
    if (at->bytes >= 0) fprintf(out, "%s\"bytes\":%" PRId64, separator, at->bytes);
    if (at->index >= 0 || at->bytes >= 0) fputc('}', out);
}

static void print_span(FILE *out, int rank, const span *at) {
    fprintf(out, ",\n{\"ph\":\"X\",\"name\":");
    print_name(out, at);
    fprintf(out, ",\"pid\":%d,\"tid\":%d,\"ts\":", rank, (int)at->lane + at->row);
    print_us(out, at->begin_ns);
    fprintf(out, ",\"dur\":");
    print_us(out, at->end_ns - at->begin_ns);
    print_arguments(out, at);
    fputc('}', out);
}

void lsi_trace_print(FILE *out, int rank) {
    uint32_t n = lsi_trace_is_on() ? sort_spans() : 0;
    print_names(out, rank, place_buckets(n));
    for (uint32_t i = 0; i < n; i++) print_span(out, rank, &ring[order[i]]);
}
