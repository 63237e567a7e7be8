/* Text for tests that train: the same sentences for the same seed, English enough that letters
 * follow from the letters before them, so a model that sees context beats one that does not. */
#ifndef TESTS_HARNESS_TEXT_H
#define TESTS_HARNESS_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* Writes exactly `bytes` bytes of sentences to a new file. */
void write_sentences(const char *path, size_t bytes, uint64_t seed);

#endif
