/* Random numbers: published vectors, independence of order and length, distribution, and bits that
 * may never change (every trained model depends on them). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "harness/harness.h"

/* philox4x32-10 in the known-answer file of Random123. */
typedef struct known_answer {
    uint32_t counter[4], key[2], word[4];
} known_answer;

static void philox_matches_published_vectors(void **state) {
    (void)state;
    static const known_answer answers[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        lsi_philox_block block = lsi_philox(answers[i].counter, answers[i].key);
        assert_memory_equal(block.word, answers[i].word, sizeof block.word);
    }
}

static void word_is_that_of_its_block(void **state) {
    (void)state;
    lsi_rng_stream stream = lsi_rng_open(7, LSI_RNG_TEST, 1, 2);
    static const uint64_t blocks[] = {0, 1, 2, 1000003, 0xFFFFFFFF, 1ull << 32, (1ull << 62) - 1};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        lsi_philox_block block = lsi_rng_block(&stream, blocks[i]);
        for (uint64_t w = 0; w < 4; w++) {
            assert_int_equal(lsi_rng_u32(&stream, 4 * blocks[i] + w), block.word[w]);
        }
    }
}

static void streams_differ_by_each_part_of_their_name(void **state) {
    (void)state;
    const lsi_rng_stream streams[] = {
        lsi_rng_open(1, LSI_RNG_TEST, 0, 0),          lsi_rng_open(2, LSI_RNG_TEST, 0, 0),
        lsi_rng_open(1ull << 32, LSI_RNG_TEST, 0, 0), lsi_rng_open(1, LSI_RNG_INIT, 0, 0),
        lsi_rng_open(1, LSI_RNG_TEST, 1, 0),          lsi_rng_open(1, LSI_RNG_TEST, 0, 1),
        lsi_rng_open(0, LSI_RNG_TEST, 0, 0),
    };
    enum { N = sizeof streams / sizeof streams[0] };
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < i; j++) {
            int n_equal = 0;
            for (uint64_t p = 0; p < 64; p++) {
                n_equal += lsi_rng_u32(&streams[i], p) == lsi_rng_u32(&streams[j], p);
            }
            assert_int_equal(n_equal, 0);
        }
    }
    lsi_rng_stream again = lsi_rng_open(1, LSI_RNG_TEST, 0, 0);
    assert_memory_equal(&again, &streams[0], sizeof again);
}

static void uniform_is_in_half_open_interval_and_even(void **state) {
    (void)state;
    enum { N = 100000, N_BINS = 16 };
    lsi_rng_stream stream = lsi_rng_open(3, LSI_RNG_TEST, 0, 0);
    int bins[N_BINS] = {0};
    for (uint64_t i = 0; i < N; i++) {
        float x = lsi_rng_uniform(&stream, i);
        assert_true(x >= 0.0f && x < 1.0f);
        assert_true(x * 0x1p24f == floorf(x * 0x1p24f));
        bins[(int)(x * N_BINS)]++;
    }
    /* 6 standard deviations of a binomial with p = 1/16: 6 * 76.5 */
    for (int b = 0; b < N_BINS; b++) assert_in_range(bins[b], N / N_BINS - 460, N / N_BINS + 460);
}

static void below_stays_below_and_is_even(void **state) {
    (void)state;
    enum { N = 60000 };
    static const uint64_t bounds[] = {1,         2, 3, 7, 1000003, 1ull << 32, (1ull << 63) + 1,
                                      UINT64_MAX};
    lsi_rng_stream stream = lsi_rng_open(5, LSI_RNG_TEST, 0, 0);
    for (size_t b = 0; b < sizeof bounds / sizeof bounds[0]; b++) {
        double sum = 0;
        for (uint64_t i = 0; i < N; i++) {
            uint64_t x = lsi_rng_below(&stream, i, bounds[b]);
            assert_true(x < bounds[b]);
            sum += (double)x;
        }
        /* mean (bound - 1) / 2, deviation at most bound / sqrt(12 N): six of them */
        double off = fabs(sum / N - ((double)bounds[b] - 1) / 2);
        assert_true(off <= 6 * (double)bounds[b] / sqrt(12.0 * N));
    }
    assert_int_equal(lsi_rng_below(&stream, 0, 0), 0);
}

static void below_three_has_equal_thirds(void **state) {
    (void)state;
    enum { N = 90000 };
    lsi_rng_stream stream = lsi_rng_open(6, LSI_RNG_TEST, 0, 0);
    int counts[3] = {0};
    for (uint64_t i = 0; i < N; i++) counts[lsi_rng_below(&stream, i, 3)]++;
    for (int i = 0; i < 3; i++) assert_in_range(counts[i], N / 3 - 850, N / 3 + 850);
}

static void normal_matches_box_muller_of_libm(void **state) {
    (void)state;
    enum { N = 40000 };
    static float found[N];
    lsi_rng_stream stream = lsi_rng_open(11, LSI_RNG_TEST, 0, 0);
    lsi_rng_normal(&stream, 1.0f, found, N);
    const double turn = 2 * acos(-1.0);
    for (uint64_t i = 0; i < N; i += 2) {
        double u = ((double)lsi_rng_u32(&stream, i) + 1) * 0x1p-32;
        double angle = turn * ((double)lsi_rng_u32(&stream, i + 1) * 0x1p-32);
        double radius = sqrt(-2 * log(u));
        /* half a unit in the last place of a float, and 1e-14 for the two doubles */
        double first = radius * cos(angle), second = radius * sin(angle);
        assert_true(fabs(found[i] - first) <= fabs(first) * 0x1.0001p-24 + 1e-14);
        assert_true(fabs(found[i + 1] - second) <= fabs(second) * 0x1.0001p-24 + 1e-14);
    }
}

static void normal_element_depends_only_on_its_place(void **state) {
    (void)state;
    enum { N = 1031 };
    static const int64_t lengths[] = {0, 1, 2, 3, 4, 5, 255, 256, 257, 511, 512, 513, 1000, N};
    float whole[N], part[N + 1];
    lsi_rng_stream stream = lsi_rng_open(12, LSI_RNG_TEST, 0, 0);
    lsi_rng_normal(&stream, 0.02f, whole, N);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        part[lengths[i]] = 42.0f;
        lsi_rng_normal(&stream, 0.02f, part, lengths[i]);
        if (lengths[i] > 0) assert_memory_equal(part, whole, (size_t)lengths[i] * sizeof *part);
        assert_true(part[lengths[i]] == 42.0f);
    }
}

static void normal_pieces_are_those_of_the_whole(void **state) {
    (void)state;
    enum { N = 1031 };
    static const int64_t lengths[] = {0, 1, 2, 3, 4, 5, 255, 256, 257, 513};
    float whole[N], part[N + 2];
    lsi_rng_stream stream = lsi_rng_open(12, LSI_RNG_TEST, 0, 0);
    lsi_rng_normal(&stream, 0.02f, whole, N);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (int64_t first = 0; first + lengths[i] <= N; first++) {
            part[0] = part[lengths[i] + 1] = 42.0f;
            lsi_rng_normal_at(&stream, 0.02f, first, part + 1, lengths[i]);
            assert_memory_equal(part + 1, whole + first, (size_t)lengths[i] * sizeof *part);
            assert_true(part[0] == 42.0f && part[lengths[i] + 1] == 42.0f);
        }
    /* far behind, where the number of the block has more than 32 bits */
    const int64_t far = ((int64_t)1 << 35) + 1;
    lsi_rng_normal_at(&stream, 0.02f, far - 1, whole, 9);
    lsi_rng_normal_at(&stream, 0.02f, far, part, 8);
    assert_memory_equal(part, whole + 1, 8 * sizeof *part);
    lsi_rng_normal(&stream, 0.02f, part, 9);
    assert_memory_not_equal(part, whole, 9 * sizeof *part);
}

static void normal_has_mean_deviation_and_tails(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    const float std = 0.5f;
    float *draws = lsi_alloc(LSI_MEM_OTHER, N * sizeof *draws);
    assert_non_null(draws);
    lsi_rng_stream stream = lsi_rng_open(13, LSI_RNG_TEST, 0, 0);
    lsi_rng_normal(&stream, std, draws, N);
    double sum = 0, squares = 0, fourths = 0;
    int n_beyond_2 = 0;
    for (int i = 0; i < N; i++) {
        double x = draws[i] / std;
        assert_true(fabs(x) <= 6.67);
        sum += x;
        squares += x * x;
        fourths += x * x * x * x;
        n_beyond_2 += fabs(x) > 2;
    }
    assert_true(fabs(sum / N) < 6.0 / 1024);                    /* deviation 1 / sqrt(N) */
    assert_true(fabs(squares / N - 1) < 6 * sqrt(2.0) / 1024);  /* sqrt(2 / N) */
    assert_true(fabs(fourths / N - 3) < 6 * sqrt(96.0) / 1024); /* sqrt(96 / N) */
    assert_true(fabs(n_beyond_2 / (double)N - 0.0455003) < 0.0013);
    lsi_free(draws);
}

static void normal_with_zero_deviation_is_zero(void **state) {
    (void)state;
    float draws[9];
    lsi_rng_stream stream = lsi_rng_open(14, LSI_RNG_TEST, 0, 0);
    lsi_rng_normal(&stream, 0.0f, draws, 9);
    for (int i = 0; i < 9; i++) assert_true(draws[i] == 0.0f);
}

/* The bits of this version, found the same with gcc and clang, with and without optimisation and
 * vector instructions. A difference means that runs are no longer reproducible between versions. */
static void bits_never_change(void **state) {
    (void)state;
    enum { N = 10000 };
    static float draws[N];
    static uint64_t below[N];
    lsi_rng_stream stream = lsi_rng_open(1337, LSI_RNG_INIT, 3, 0);
    lsi_rng_normal(&stream, 0.02f, draws, N);
    for (uint64_t i = 0; i < N; i++) below[i] = lsi_rng_below(&stream, i, 1000003 + (i << 50));
    char text[LSI_SHA256_TEXT_BYTES];
    lsi_sha256 hash;
    lsi_sha256_init(&hash);
    lsi_sha256_update(&hash, draws, sizeof draws);
    lsi_sha256_finish(&hash, text);
    assert_string_equal(text, "c418845a1c2bd3a3508c226f756abeb5ab6ead0106cfc524b26eab40cebc38c4");
    lsi_sha256_init(&hash);
    lsi_sha256_update(&hash, below, sizeof below);
    lsi_sha256_finish(&hash, text);
    assert_string_equal(text, "86ec188188a673e31198882124a96d9c2c0192c012daba1eac785a53fae01295");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_matches_published_vectors),
        cmocka_unit_test(word_is_that_of_its_block),
        cmocka_unit_test(streams_differ_by_each_part_of_their_name),
        cmocka_unit_test(uniform_is_in_half_open_interval_and_even),
        cmocka_unit_test(below_stays_below_and_is_even),
        cmocka_unit_test(below_three_has_equal_thirds),
        cmocka_unit_test(normal_matches_box_muller_of_libm),
        cmocka_unit_test(normal_element_depends_only_on_its_place),
        cmocka_unit_test(normal_pieces_are_those_of_the_whole),
        cmocka_unit_test(normal_has_mean_deviation_and_tails),
        cmocka_unit_test(normal_with_zero_deviation_is_zero),
        cmocka_unit_test(bits_never_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
