/* SHA-256: the examples of FIPS 180-4, and independence of how the data is cut. */
#include <string.h>

#include "base/hash.h"
#include "harness/harness.h"

static const char *hash_of(const void *data, size_t bytes, size_t piece) {
    static char text[LSI_SHA256_TEXT_BYTES];
    lsi_sha256 hash;
    lsi_sha256_init(&hash);
    for (size_t at = 0; at < bytes; at += piece) {
        lsi_sha256_update(&hash, (const char *)data + at, bytes - at < piece ? bytes - at : piece);
    }
    lsi_sha256_finish(&hash, text);
    return text;
}

static void published_examples_match(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_string_equal(hash_of(rows[i][0], strlen(rows[i][0]), 1000), rows[i][1]);
    }
    static char letters[1000000];
    memset(letters, 'a', sizeof letters);
    assert_string_equal(hash_of(letters, sizeof letters, sizeof letters),
                        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void cuts_do_not_matter(void **state) {
    (void)state;
    unsigned char data[1031];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 37);
    char whole[LSI_SHA256_TEXT_BYTES];
    strcpy(whole, hash_of(data, sizeof data, sizeof data));
    static const size_t pieces[] = {1, 2, 63, 64, 65, 1030};
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        assert_string_equal(hash_of(data, sizeof data, pieces[i]), whole);
    }
}

static void update_of_nothing_changes_nothing(void **state) {
    (void)state;
    char text[LSI_SHA256_TEXT_BYTES];
    lsi_sha256 hash;
    lsi_sha256_init(&hash);
    lsi_sha256_update(&hash, NULL, 0);
    lsi_sha256_update(&hash, "abc", 3);
    lsi_sha256_update(&hash, NULL, 0);
    lsi_sha256_finish(&hash, text);
    assert_string_equal(text, hash_of("abc", 3, 3));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_examples_match),
        cmocka_unit_test(cuts_do_not_matter),
        cmocka_unit_test(update_of_nothing_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
