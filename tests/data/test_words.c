/* GPT-2's words: where a text is cut. */
#include "data/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/harness.h"

/* "a|b|c" */
static const char *cut(const char *text, size_t bytes, char shown[512]) {
    size_t used = 0;
    for (size_t at = 0; at < bytes;) {
        size_t n = lsi_word_gpt2(text + at, bytes - at);
        assert_in_range(n, 1, bytes - at);
        if (at > 0) shown[used++] = '|';
        memcpy(shown + used, text + at, n);
        used += n;
        at += n;
    }
    shown[used] = '\0';
    return shown;
}

static void texts_are_cut_by_the_rules(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"Hello, world!", "Hello|,| world|!"},
        {"a1b2 c3", "a|1|b|2| c|3"},
        {"don't I'll we've he'd I'm you're it's",
         "don|'t| I|'ll| we|'ve| he|'d| I|'m| you|'re| it|'s"},
        {"DON'T 'tis 'x", "DON|'|T| '|tis| '|x"},
        {"'s't'r'", "'s|'t|'|r|'"},
        {"'", "'"},
        {"'re", "'re"},
        {"'l", "'|l"},
        {" ", " "},
        {"  ", "  "},
        {" a", " a"},
        {"  a", " | a"},
        {"   a   ", "  | a|   "},
        {"a \n b", "a| \n| b"},
        {"a\nb", "a|\n|b"},
        {"\n\na", "\n|\n|a"},
        {"\t\ta", "\t|\t|a"},
        {"a\r\nb", "a|\r|\n|b"},
        {" !?  !?", " !?| | !?"},
        {"\xC3\xA9t\xC3\xA9 \xC3\xA9", "\xC3\xA9t\xC3\xA9| \xC3\xA9"},
        {"e\xCC\x81", "e|\xCC\x81"},                        /* a combining accent is no letter */
        {"1\xC2\xBD\xE2\x85\xA7", "1\xC2\xBD\xE2\x85\xA7"}, /* half, Roman eight: numbers */
        {"a\xC2\xA0"
         "b",
         "a|\xC2\xA0|b"}, /* no-break space */
        {"a\xC2\x85"
         "b",
         "a|\xC2\x85|b"}, /* next line */
        {"a\xE3\x80\x80\xE3\x80\x80"
         "b",
         "a|\xE3\x80\x80|\xE3\x80\x80|b"},
        {"a\xE2\x80\x8B"
         "b",
         "a|\xE2\x80\x8B|b"}, /* zero width space is none */
        {"a\x1c"
         "b",
         "a|\x1c|b"}, /* nor is a file separator */
        {"\xE6\x97\xA5\xE6\x9C\xAC", "\xE6\x97\xA5\xE6\x9C\xAC"},
        {"a\xFF\xFE"
         "b",
         "a|\xFF\xFE|b"},            /* no UTF-8: like punctuation */
        {"a\xE6\x97", "a|\xE6\x97"}, /* cut off */
        {"\xC3", "\xC3"},
        {" \xC3", " \xC3"},
        {"\xED\xA0\x80"
         "a",
         "\xED\xA0\x80|a"}, /* half of a surrogate pair */
        {"\xC0\xA0"
         "a",
         "\xC0\xA0|a"}, /* a space, one byte too long */
    };
    char shown[512];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_string_equal(cut(rows[i].text, strlen(rows[i].text), shown), rows[i].words);
}

static void zero_bytes_are_characters(void **state) {
    (void)state;
    assert_int_equal(lsi_word_gpt2("a\0b", 3), 1);
    assert_int_equal(lsi_word_gpt2("\0\0b", 3), 2);
    assert_int_equal(lsi_word_gpt2(" \0b", 3), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_cut_by_the_rules),
        cmocka_unit_test(zero_bytes_are_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
