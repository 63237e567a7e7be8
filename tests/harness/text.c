#include "harness/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "harness/harness.h"

/* A sentence is one word of each list. */
static const char *const openings[] = {"The", "A", "Every", "That", "One"};
static const char *const adjectives[] = {"old", "small", "green", "quiet", "clever", "tired"};
static const char *const nouns[] = {"river",   "farmer", "horse", "garden",
                                    "teacher", "window", "child", "mountain"};
static const char *const verbs[] = {"follows", "sees", "remembers", "carries", "watches", "finds"};
static const char *const objects[] = {"the road",  "the morning", "a letter",
                                      "the water", "its shadow",  "the song"};
static const char *const endings[] = {".", " again.", " at night.", " in the rain."};

#define LIST(words)                                                                                \
    { words, sizeof words / sizeof words[0] }
static const struct {
    const char *const *words;
    size_t n;
} lists[] = {LIST(openings), LIST(adjectives), LIST(nouns),
             LIST(verbs),    LIST(objects),    LIST(endings)};
enum { N_LISTS = sizeof lists / sizeof lists[0] };

static size_t add(char *text, size_t used, size_t bytes, const char *word) {
    size_t n = strlen(word);
    if (n > bytes - used) n = bytes - used;
    memcpy(text + used, word, n);
    return used + n;
}

void write_sentences(const char *path, size_t bytes, uint64_t seed) {
    char *text = malloc(bytes + 1);
    assert_non_null(text);
    lsi_rng_stream stream = lsi_rng_open(seed, LSI_RNG_TEST, 0, 0);
    size_t used = 0;
    for (uint64_t draw = 0; used < bytes; draw++) {
        size_t list = draw % N_LISTS;
        uint64_t word = lsi_rng_below(&stream, draw, lists[list].n);
        if (list > 0 && list < N_LISTS - 1) used = add(text, used, bytes, " ");
        used = add(text, used, bytes, lists[list].words[word]);
        if (list == N_LISTS - 1) used = add(text, used, bytes, draw % 30 == 29 ? "\n" : " ");
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    free(text);
}
