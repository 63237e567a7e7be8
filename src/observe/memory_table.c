/* The table of memory:
 *
 *     memory             formula         now        peak  rank  difference
 *     params             2.0 MiB     2.0 MiB     2.0 MiB     0      +0.1 %
 *     activations                    9.5 MiB     9.5 MiB     1
 *     buckets        <= 10.0 MiB     4.0 MiB     4.0 MiB     0
 *     of peers           2.0 MiB
 *     sum                           20.5 MiB    21.0 MiB     0
 *     resident                      20.1 MiB    20.8 MiB     0      +1.0 %
 *
 * A kind's line shows the rank that has most of it, so `sum` is not what stands above it: it is one
 * rank's, the largest, with what this rank maps of its peers' memory. `difference` is by how much
 * measured bytes exceed the formula, or the sum the resident bytes (both at peak). Kinds that
 * nobody has and no formula asks for have no line. */
#include "observe/memory_table.h"

#include <inttypes.h>
#include <math.h>

#include "observe/observe.h"

/* ---- numbers ---- */

static int64_t sum_of(const int64_t kinds[LSI_MEM_N_KINDS]) {
    int64_t sum = 0;
    for (int kind = 0; kind < LSI_MEM_N_KINDS; kind++) sum += kinds[kind];
    return sum;
}

int64_t lsi_memory_peak_bytes(const lsi_memory_row *row) {
    return sum_of(row->peak_bytes);
}

int lsi_memory_largest(const lsi_memory_row *rows, int n_ranks) {
    int largest = 0;
    for (int r = 1; r < n_ranks; r++)
        if (lsi_memory_peak_bytes(&rows[r]) > lsi_memory_peak_bytes(&rows[largest])) largest = r;
    return largest;
}

static int largest_of_kind(const lsi_memory_row *rows, int n_ranks, int kind) {
    int largest = 0;
    for (int r = 1; r < n_ranks; r++)
        if (rows[r].peak_bytes[kind] > rows[largest].peak_bytes[kind]) largest = r;
    return largest;
}

/* ---- lines ---- */

typedef struct line {
    const char *name;
    lsi_mem_figure formula;
    int rank; /* whose numbers follow; NOBODY: there are none */
    int64_t now_bytes, peak_bytes;
    int64_t compared_bytes, reference_bytes; /* reference 0: no difference is shown */
} line;

enum { NOBODY = -1 };

static void print_line(FILE *out, const line *l) {
    char formula[16], text[24] = "", now[16], peak[16];
    lsi_format_bytes((double)l->formula.bytes, formula, sizeof formula);
    if (l->formula.rule != LSI_MEM_NO_RULE)
        snprintf(text, sizeof text, "%s%s", l->formula.rule == LSI_MEM_AT_MOST ? "<= " : "",
                 formula);
    fprintf(out, "%-12s %14s", l->name, text);
    if (l->rank != NOBODY)
        fprintf(out, " %11s %11s %5d", lsi_format_bytes((double)l->now_bytes, now, sizeof now),
                lsi_format_bytes((double)l->peak_bytes, peak, sizeof peak), l->rank);
    if (l->reference_bytes > 0) {
        double percent = 100 * ((double)l->compared_bytes / (double)l->reference_bytes - 1);
        fprintf(out, " %+9.1f %%", fabs(percent) < 0.05 ? 0 : percent); /* never -0.0 */
    }
    fputc('\n', out);
}

/* What is measured against a formula, unless there is neither. */
static void print_against_formula(FILE *out, line *l) {
    if (l->peak_bytes == 0 && l->formula.bytes == 0) return;
    l->compared_bytes = l->now_bytes;
    if (l->formula.rule == LSI_MEM_EQUALS) l->reference_bytes = l->formula.bytes;
    print_line(out, l);
}

static void print_kind(FILE *out, int kind, const lsi_memory_row *rows, int n_ranks,
                       lsi_mem_figure formula) {
    int rank = largest_of_kind(rows, n_ranks, kind);
    print_against_formula(out, &(line){.name = lsi_mem_kind_name((lsi_mem_kind)kind),
                                       .formula = formula,
                                       .rank = rank,
                                       .now_bytes = rows[rank].now_bytes[kind],
                                       .peak_bytes = rows[rank].peak_bytes[kind]});
}

static void print_file(FILE *out, const lsi_memory_row *rows, int n_ranks, int64_t formula_bytes) {
    int rank = 0;
    for (int r = 1; r < n_ranks; r++)
        if (rows[r].file_bytes > rows[rank].file_bytes) rank = r;
    print_against_formula(out, &(line){.name = "in a file",
                                       .formula = {LSI_MEM_EQUALS, formula_bytes},
                                       .rank = rank,
                                       .now_bytes = rows[rank].file_bytes,
                                       .peak_bytes = rows[rank].file_bytes});
}

/* One rank's kinds added up, and what the system counts of it. */
static void print_sum(FILE *out, const lsi_memory_row *row, int rank, int64_t peer_bytes) {
    int64_t peak_bytes = lsi_memory_peak_bytes(row) + peer_bytes;
    print_line(out, &(line){.name = "sum",
                            .rank = rank,
                            .now_bytes = sum_of(row->now_bytes) + peer_bytes,
                            .peak_bytes = peak_bytes});
    print_line(out, &(line){.name = "resident",
                            .rank = rank,
                            .now_bytes = row->now_rss_bytes,
                            .peak_bytes = row->peak_rss_bytes,
                            .compared_bytes = peak_bytes,
                            .reference_bytes = row->peak_rss_bytes});
}

/* ---- the table ---- */

void lsi_memory_print(const lsi_memory_row *rows, int n_ranks, const lsi_mem_estimate *expected,
                      FILE *out) {
    const int64_t peer_bytes = expected->peer_bytes;
    const int largest = lsi_memory_largest(rows, n_ranks);
    fprintf(out, "%-12s %14s %11s %11s %5s %11s\n", "memory", "formula", "now", "peak", "rank",
            "difference");
    for (int kind = 0; kind < LSI_MEM_N_KINDS; kind++)
        print_kind(out, kind, rows, n_ranks, expected->kinds[kind]);
    if (peer_bytes > 0)
        print_line(out, &(line){"of peers", {LSI_MEM_EQUALS, peer_bytes}, NOBODY, 0, 0, 0, 0});
    print_sum(out, &rows[largest], largest, peer_bytes);
    print_file(out, rows, n_ranks, expected->file_bytes);
    fprintf(out, "rank: who has most; now: after the last step; difference: now to formula, sum to "
                 "resident at peak\n");
    if (peer_bytes > 0)
        fprintf(out,
                "of peers: parameters that are mapped here and accounted for by other ranks\n");
}
