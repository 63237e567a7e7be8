/* Words: the pieces of a text that no token of a byte-level BPE reaches across. */
#ifndef LSI_DATA_WORDS_H
#define LSI_DATA_WORDS_H

#include <stddef.h>

/* Bytes of the first word of a text (bytes >= 1) as GPT-2 cuts it. A word depends on nothing before
 * it, but may on what follows it: the text should go on to its real end. */
size_t lsi_word_gpt2(const char *text, size_t bytes);

#endif
