/* Numbers for people: bytes and durations in the unit that leaves one to four digits, and the
 * median, which is what reports quote because one slow step must not move it.
 *
 * Units are chosen after rounding: 59.97 s is "1m 00s", never "60.0 s". */
#include "observe/observe.h"

#include <math.h>
#include <stdlib.h>

static int compare_doubles(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    if (isnan(a) || isnan(b)) return isnan(a) - isnan(b);
    return (a > b) - (a < b);
}

double lsi_median(double *values, int64_t n) {
    if (n <= 0) return 0;
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    double upper = values[n / 2];
    return n % 2 ? upper : values[n / 2 - 1] / 2 + upper / 2;
}

const char *lsi_format_bytes(double bytes, char *buffer, size_t buffer_bytes) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    enum { N_UNITS = sizeof units / sizeof *units };
    double value = bytes;
    int unit = -1;
    while (unit + 1 < N_UNITS && fabs(value) >= (unit < 0 ? 1023.5 : 1023.95)) {
        value /= 1024;
        unit++;
    }
    if (!isfinite(bytes))
        snprintf(buffer, buffer_bytes, "?");
    else if (unit < 0)
        snprintf(buffer, buffer_bytes, "%.0f B", value);
    else
        snprintf(buffer, buffer_bytes, fabs(value) < 1023.95 ? "%.1f %s" : "%.3g %s", value,
                 units[unit]);
    return buffer;
}

const char *lsi_format_seconds(double seconds, char *buffer, size_t buffer_bytes) {
    /* Above: the largest value, so far, that the row is for; then two parts of whole small units.
     */
    static const struct {
        double below_s, small_s, per_large;
        const char *format;
    } table[] = {
        {3599.5, 1, 60, "%.0fm %02.0fs"},
        {24 * 3600 - 30, 60, 60, "%.0fh %02.0fm"},
        {INFINITY, 3600, 24, "%.0fd %02.0fh"},
    };
    if (!(seconds >= 0) || !isfinite(seconds)) {
        snprintf(buffer, buffer_bytes, "?");
    } else if (seconds < 59.95) {
        snprintf(buffer, buffer_bytes, "%.1f s", seconds);
    } else {
        int row = 0;
        while (seconds >= table[row].below_s) row++;
        double small = round(seconds / table[row].small_s);
        double large = floor(small / table[row].per_large);
        snprintf(buffer, buffer_bytes, table[row].format, large,
                 small - large * table[row].per_large);
    }
    return buffer;
}
