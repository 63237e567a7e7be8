/* "Did you mean …?": the nearest word of a list.
 *
 * Distance: Damerau-Levenshtein in its restricted form (optimal string alignment): one for each
 * letter put in, left out, replaced, or swapped with its neighbour. Case does not count, and `_` is
 * `-`, so names in the spelling of other programs are found too. A word that begins a candidate
 * ("micro" for "micro-batch-size") is as near as one slip. Near means at most a third of the
 * longer word, at least one letter. Words beyond MAX_LETTERS have no neighbours. */
#include <ctype.h>
#include <string.h>

#include "base/opt.h"

enum { MAX_LETTERS = 64, PREFIX_LETTERS = 3 };

static char letter_of(const char *word, size_t at) {
    char c = (char)tolower((unsigned char)word[at]);
    return c == '_' ? '-' : c;
}

static int min(int a, int b) {
    return a < b ? a : b;
}

static int is_prefix(const char *word, size_t n, const char *candidate, size_t m) {
    if (n < PREFIX_LETTERS || n >= m) return 0;
    for (size_t i = 0; i < n; i++) {
        if (letter_of(word, i) != letter_of(candidate, i)) return 0;
    }
    return 1;
}

/* Three rows of the table of distances between the beginnings of a and b are enough: the one being
 * made, the one before it, and the one before that for swaps. */
static int distance(const char *a, size_t n, const char *b, size_t m) {
    int rows[3][MAX_LETTERS + 1];
    int *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= m; j++) last[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            char x = letter_of(a, i - 1), y = letter_of(b, j - 1);
            int best = min(last[j - 1] + (x != y), min(last[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && x == letter_of(b, j - 2) && y == letter_of(a, i - 2)) {
                best = min(best, before[j - 2] + 1);
            }
            row[j] = best;
        }
        int *free_row = before;
        before = last;
        last = row;
        row = free_row;
    }
    return last[m];
}

const char *lsi_nearest(const char *word, const char *const *list) {
    const char *nearest = NULL;
    int nearest_distance = 0;
    size_t n = strlen(word);
    if (n == 0 || n > MAX_LETTERS) return NULL;
    for (; *list; list++) {
        size_t m = strlen(*list);
        if (m > MAX_LETTERS) continue;
        int found = distance(word, n, *list, m);
        if (found > 1 && is_prefix(word, n, *list, m)) found = 1;
        int limit = (int)(n > m ? n : m) / 3;
        if (found > (limit > 1 ? limit : 1)) continue;
        if (!nearest || found < nearest_distance) {
            nearest = *list;
            nearest_distance = found;
        }
    }
    return nearest;
}
