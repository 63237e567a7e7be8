/* A ring of spans (see trace.h).
 *
 * Invariant: span number n, counted from the start of tracing, lives in slot n modulo the size of
 * the ring, so the ring always holds the last LSI_TRACE_SPANS. A recording thread takes its number
 * with one atomic addition and then owns that slot; two threads meet in a slot only if a whole
 * ring of spans ended while one of them wrote 40 bytes. The flag `is_on` is published with release
 * order after the ring exists, so a thread that sees it sees the ring. */
#include "base/trace.h"

#include <inttypes.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/mem.h"

typedef struct span {
    int64_t begin_ns;
    int64_t end_ns;
    const char *name;
    int64_t index;
    lsi_trace_lane lane;
} span;

static span *ring;
static _Atomic uint64_t n_spans;
static _Atomic bool is_on;

static const char *const lane_names[] = {
    [LSI_TRACE_COMPUTE] = "compute",
    [LSI_TRACE_COMM] = "communication",
    [LSI_TRACE_IO] = "input and output",
};

enum { N_LANES = sizeof lane_names / sizeof lane_names[0] };

bool lsi_trace_is_on(void) {
    return atomic_load_explicit(&is_on, memory_order_acquire);
}

ls_status lsi_trace_start(void) {
    if (lsi_trace_is_on()) return lsi_fail(LS_ERR_STATE, "tracing is on already");
    span *spans = lsi_calloc(LSI_MEM_OTHER, LSI_TRACE_SPANS, sizeof *spans);
    LSI_TRY(lsi_context(lsi_check_alloc(spans), "starting the trace"));
    ring = spans;
    atomic_store_explicit(&n_spans, 0, memory_order_relaxed);
    atomic_store_explicit(&is_on, true, memory_order_release);
    return LS_OK;
}

void lsi_trace_stop(void) {
    atomic_store_explicit(&is_on, false, memory_order_release);
    lsi_free(ring);
    ring = NULL;
}

int64_t lsi_trace_begin(void) {
    return lsi_trace_is_on() ? lsi_now_ns() : 0;
}

void lsi_trace_end(int64_t begin_ns, lsi_trace_lane lane, const char *name, int64_t index) {
    if (begin_ns == 0 || !lsi_trace_is_on()) return; /* switched on or off in between: no span */
    uint64_t number = atomic_fetch_add_explicit(&n_spans, 1, memory_order_relaxed);
    ring[number % LSI_TRACE_SPANS] = (span){
        .begin_ns = begin_ns,
        .end_ns = lsi_now_ns(),
        .name = name,
        .index = index,
        .lane = lane,
    };
}

/* ---- printing: the Trace Event Format that chrome://tracing and Perfetto read ---- */

static void print_text(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20) {
            fprintf(out, "\\u%04x", c);
            continue;
        }
        if (c == '"' || c == '\\') fputc('\\', out);
        fputc(c, out);
    }
    fputc('"', out);
}

/* The viewer's unit is the microsecond; integers keep a locale's decimal comma out. */
static void print_us(FILE *out, int64_t ns) {
    fprintf(out, "%" PRId64 ".%03d", ns / 1000, (int)(ns % 1000));
}

static void print_names(FILE *out, int rank) {
    fprintf(
        out,
        "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}},\n"
        "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"args\":{\"sort_index\":%d}}",
        rank, rank, rank, rank);
    for (int lane = 0; lane < N_LANES; lane++) {
        fprintf(out,
                ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,"
                "\"args\":{\"name\":\"%s\"}}",
                rank, lane, lane_names[lane]);
    }
}

static void print_span(FILE *out, int rank, const span *at) {
    fprintf(out, ",\n{\"ph\":\"X\",\"name\":");
    print_text(out, at->name);
    fprintf(out, ",\"pid\":%d,\"tid\":%d,\"ts\":", rank, (int)at->lane);
    print_us(out, at->begin_ns);
    fprintf(out, ",\"dur\":");
    print_us(out, at->end_ns - at->begin_ns);
    if (at->index >= 0) fprintf(out, ",\"args\":{\"index\":%" PRId64 "}", at->index);
    fputc('}', out);
}

void lsi_trace_print(FILE *out, int rank) {
    print_names(out, rank);
    if (!lsi_trace_is_on()) return;
    uint64_t end = atomic_load_explicit(&n_spans, memory_order_relaxed);
    uint64_t begin = end > LSI_TRACE_SPANS ? end - LSI_TRACE_SPANS : 0;
    for (uint64_t n = begin; n < end; n++) print_span(out, rank, &ring[n % LSI_TRACE_SPANS]);
}
