/* The table of buckets:
 *
 *     bucket       size  type  params   ready  posted    done  flight  hidden  first parameter
 *          0    1.0 MiB  f32        3     2.0     2.0     5.0     3.0     3.0  head.weight
 *          1   24.7 MiB  f32       41     8.0     8.0    13.0     5.0     2.0  h.3.mlp.weight
 *      total   25.7 MiB           44                             8.0     5.0  62.5 % hidden
 *
 * Where parameters are gathered, a column says how often in the last step.
 *
 * Flight is from posted to done and hidden is what of it lies before the end of the backward pass.
 * Buckets overlap, so the total counts time in which at least one is in flight, once: the sum of
 * the rows would hide more than there is to hide. */
#include "observe/bucket_table.h"

#include <stdbool.h>

#include "observe/observe.h"

static double length(double begin, double end) {
    return end > begin ? end - begin : 0;
}

static double smaller(double a, double b) {
    return a < b ? a : b;
}

lsi_bucket_flight lsi_bucket_sum_flight(const lsi_bucket_row *rows, int n_rows,
                                        double backward_end_ms) {
    lsi_bucket_flight sum = {0};
    double counted_until_ms = 0;
    for (int i = 0; i < n_rows; i++) {
        double begin = rows[i].posted_ms, end = rows[i].done_ms;
        if (begin < counted_until_ms) begin = counted_until_ms;
        sum.flight_ms += length(begin, end);
        sum.hidden_ms += length(begin, smaller(end, backward_end_ms));
        if (end > counted_until_ms) counted_until_ms = end;
    }
    return sum;
}

static void print_size(FILE *out, int64_t bytes) {
    char size[16];
    fprintf(out, "  %10s", lsi_format_bytes((double)bytes, size, sizeof size));
}

static bool has_gathers(const lsi_bucket_row *rows, int n_rows) {
    for (int i = 0; i < n_rows; i++)
        if (rows[i].n_gathers > 0) return true;
    return false;
}

static void print_row(FILE *out, const lsi_bucket_row *row, double backward_end_ms,
                      bool with_gathers) {
    fprintf(out, "%6d", row->index);
    print_size(out, row->bytes);
    fprintf(out, "  %-4s  %6d", row->dtype, row->n_params);
    if (backward_end_ms > 0)
        fprintf(out, "  %7.1f %7.1f %7.1f %7.1f %7.1f", row->ready_ms, row->posted_ms, row->done_ms,
                length(row->posted_ms, row->done_ms),
                length(row->posted_ms, smaller(row->done_ms, backward_end_ms)));
    if (with_gathers) fprintf(out, "  %7d", row->n_gathers);
    fprintf(out, "  %s\n", row->first_param);
}

static void print_total(FILE *out, const lsi_bucket_row *rows, int n_rows, double backward_end_ms) {
    lsi_bucket_flight sum = lsi_bucket_sum_flight(rows, n_rows, backward_end_ms);
    int64_t bytes = 0;
    int n_params = 0;
    for (int i = 0; i < n_rows; i++) {
        bytes += rows[i].bytes;
        n_params += rows[i].n_params;
    }
    fprintf(out, "%6s", "total");
    print_size(out, bytes);
    fprintf(out, "  %-4s  %6d", "", n_params);
    if (backward_end_ms > 0)
        fprintf(out, "  %7s %7s %7s %7.1f %7.1f  %.1f %% hidden", "", "", "", sum.flight_ms,
                sum.hidden_ms, sum.flight_ms > 0 ? 100 * sum.hidden_ms / sum.flight_ms : 0);
    fputc('\n', out);
}

void lsi_bucket_print(const lsi_bucket_row *rows, int n_rows, double backward_end_ms, FILE *out) {
    fprintf(out, "%6s  %10s  %-4s  %6s", "bucket", "size", "type", "params");
    if (backward_end_ms > 0)
        fprintf(out, "  %7s %7s %7s %7s %7s", "ready", "posted", "done", "flight", "hidden");
    bool with_gathers = has_gathers(rows, n_rows);
    if (with_gathers) fprintf(out, "  %7s", "gathers");
    fprintf(out, "  first parameter\n");
    for (int i = 0; i < n_rows; i++) print_row(out, &rows[i], backward_end_ms, with_gathers);
    print_total(out, rows, n_rows, backward_end_ms);
    if (backward_end_ms > 0)
        fprintf(out, "times in ms since the backward pass began, which took %.1f\n",
                backward_end_ms);
}
