/* SHA-256: the examples of FIPS 180-4, and independence of how the data is cut. XXH3: what other
 * implementations give, so that values may be compared between machines. */
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

/* ---- XXH3 ---- */

/* By python-xxhash 4.1.0, which brings a libxxhash of its own (0.8.4), of bytes (37 i) mod 256. The
 * sizes lie on both sides of each of the algorithm's borders: 0, 3, 8, 16, 128, 240. That of no
 * bytes is in xxHash's specification as well. */
static const struct {
    size_t bytes;
    uint64_t hash64, high, low;
} hashes[] = {
    {0, 0x2d06800538d394c2, 0x99aa06d3014798d8, 0x6001c324468d497f},
    {1, 0xc44bdff4074eecdb, 0xa6cd5e9392000f6a, 0xc44bdff4074eecdb},
    {3, 0x2b15aa0b3d075427, 0x9853135c5862576e, 0x2b15aa0b3d075427},
    {8, 0x44db4d702e7af307, 0xfb45186b670a4b18, 0x95fdbe3342dcacd9},
    {16, 0x79e8aab409bf708c, 0x7b7d80840675fe9d, 0xa60ec7f92a1e499c},
    {17, 0xeab8a05663e5e451, 0x5df8d3eeee946b25, 0xaed6840551d2a0ef},
    {128, 0xd0c5f5cbbce75e08, 0x9543a21554489cc5, 0x1d4c257e10008525},
    {129, 0xb983f428e1f4b8cd, 0xe136373cf1658c64, 0x62deb697300bb645},
    {240, 0x97ca2e159ebf5174, 0x7d91a794bb5664f2, 0x111edb7cf807acdc},
    {241, 0x8a70955e58ec2034, 0x6a863f0fe3684fc6, 0x8a70955e58ec2034},
    {1031, 0x4149f7b8f87fb572, 0xff5d29b0c98a4fa1, 0x4149f7b8f87fb572},
    {100000, 0xba99d388c25955dd, 0xaa35c5e450562cbb, 0xba99d388c25955dd},
};

static void xxh3_is_that_of_other_implementations(void **state) {
    (void)state;
    static unsigned char data[100001];
    for (size_t i = 0; i < sizeof hashes / sizeof hashes[0]; i++) {
        for (size_t off = 0; off < 2; off++) { /* aligned and not */
            for (size_t b = 0; b < hashes[i].bytes; b++) data[off + b] = (unsigned char)(b * 37);
            lsi_hash128_value wide = lsi_hash128(data + off, hashes[i].bytes);
            assert_int_equal(lsi_hash64(data + off, hashes[i].bytes), hashes[i].hash64);
            assert_int_equal(wide.high, hashes[i].high);
            assert_int_equal(wide.low, hashes[i].low);
        }
    }
    assert_int_equal(lsi_hash64(NULL, 0), hashes[0].hash64);
}

static void each_bit_changes_xxh3(void **state) {
    (void)state;
    unsigned char data[64] = {0};
    uint64_t clean = lsi_hash64(data, sizeof data);
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] = (unsigned char)(1u << bit % 8);
        assert_true(lsi_hash64(data, sizeof data) != clean);
        data[bit / 8] = 0;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_examples_match),
        cmocka_unit_test(cuts_do_not_matter),
        cmocka_unit_test(update_of_nothing_changes_nothing),
        cmocka_unit_test(xxh3_is_that_of_other_implementations),
        cmocka_unit_test(each_bit_changes_xxh3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
