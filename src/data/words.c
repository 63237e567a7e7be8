/* GPT-2's cut of a text into words, as code:
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019),
 * section 2.2, and the pattern of the program published with it. Read as rules, first that fits
 * wins:
 *
 *     1. an English ending behind an apostrophe
 *     2. an optional space, then a run of letters, or of numbers, or of anything else that is no
 *        white space
 *     3. a run of white space; but what follows it keeps the last character (which rule 2 then
 *        takes if it is a space), unless that is all there is or the text ends
 *
 * Letters and numbers are Unicode's categories L and N, white space its property White_Space, which
 * is category Z and seven control characters. A byte that is no part of valid UTF-8 is a character
 * of its own, neither letter nor number nor space. */
#include "data/words.h"

#include <stdbool.h>
#include <string.h>

#include <utf8proc.h>

typedef enum char_kind { OTHER, LETTER, NUMBER, SPACE } char_kind;

/* ---- characters ---- */

static char_kind kind_of_ascii(unsigned char c) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return LETTER;
    if (c >= '0' && c <= '9') return NUMBER;
    return c == ' ' || (c >= '\t' && c <= '\r') ? SPACE : OTHER;
}

static char_kind kind_of_category(utf8proc_category_t category) {
    switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return NUMBER;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return SPACE;
    default: return OTHER;
    }
}

/* Kind and length of the character at the start of a text of at least one byte. */
static char_kind look(const char *text, size_t bytes, size_t *length) {
    enum { NEXT_LINE = 0x85, LONGEST = 4 };
    unsigned char first = (unsigned char)text[0];
    *length = 1;
    if (first < 0x80) return kind_of_ascii(first);
    utf8proc_int32_t character;
    utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)text,
                         (utf8proc_ssize_t)(bytes < LONGEST ? bytes : LONGEST), &character);
    if (n <= 0) return OTHER;
    *length = (size_t)n;
    return character == NEXT_LINE ? SPACE : kind_of_category(utf8proc_category(character));
}

/* Bytes of the run of one kind that begins at `from`. */
static size_t end_of_run(const char *text, size_t bytes, size_t from, char_kind kind) {
    size_t length;
    while (from < bytes && look(text + from, bytes - from, &length) == kind) from += length;
    return from;
}

/* ---- rules ---- */

/* Rule 1; 0: does not fit. */
static size_t ending(const char *text, size_t bytes) {
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    if (text[0] != '\'') return 0;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        size_t length = strlen(endings[i]);
        if (length <= bytes && memcmp(text, endings[i], length) == 0) return length;
    }
    return 0;
}

/* Rule 3, for a text that begins with white space. */
static size_t white_space(const char *text, size_t bytes) {
    size_t at = 0, last = 0, length;
    while (at < bytes && look(text + at, bytes - at, &length) == SPACE) {
        last = at;
        at += length;
    }
    return at == bytes || last == 0 ? at : last;
}

size_t lsi_word_gpt2(const char *text, size_t bytes) {
    size_t length, start = ending(text, bytes);
    if (start > 0) return start;
    if (text[0] == ' ' && bytes > 1) start = 1;
    char_kind kind = look(text + start, bytes - start, &length);
    if (kind != SPACE) return end_of_run(text, bytes, start + length, kind);
    return white_space(text, bytes);
}
