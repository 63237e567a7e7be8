/* Safetensors files that lie: each is refused with the right status and a message that names what
 * is wrong; no bytes whatever make the reader crash. Files are handed over in blocks of exactly
 * their size, so that the address sanitizer sees any read past the end. */
#include "checkpoint/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "harness/harness.h"

/* Opens a copy of the bytes; must succeed or leave *file alone. */
static ls_status open_bytes(const void *bytes, size_t n_bytes) {
    void *copy = malloc(n_bytes);
    assert_true(copy || n_bytes == 0);
    if (n_bytes > 0) memcpy(copy, bytes, n_bytes);
    lsi_st_file *file = NULL;
    ls_status status = lsi_st_open_memory(copy, n_bytes, "FILE", &file);
    assert_int_equal(status == LS_OK, file != NULL);
    if (file) {
        /* Whatever was accepted can be read from end to end. */
        volatile unsigned char sum = 0;
        for (int i = 0; i < lsi_st_n_tensors(file); i++) {
            const lsi_st_tensor *t = lsi_st_tensor_at(file, i);
            for (size_t b = 0; b < t->bytes; b++) sum ^= ((const unsigned char *)t->data)[b];
        }
        (void)sum;
    }
    lsi_st_close(file);
    free(copy);
    assert_int_equal(lsi_mem_n_blocks(), 0);
    return status;
}

/* ---- the frame ---- */

static void put_length(unsigned char *bytes, uint64_t length) {
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(length >> (8 * i));
}

static void bad_frames_are_refused(void **state) {
    (void)state;
    static const struct {
        uint64_t length;
        const char *after; /* what follows the eight bytes of length */
        const char *message;
    } rows[] = {
        {2, "", "promises a header of 2 bytes, but only 0 follow"},
        {3, "{}", "promises a header of 3 bytes, but only 2 follow"},
        {UINT64_MAX, "{}", "promises a header of 18446744073709551615 bytes"},
        {UINT64_MAX - 7, "{}", "promises a header of 18446744073709551608 bytes"},
        {UINT64_MAX - 8, "{}", "promises a header of"},
        {(uint64_t)1 << 63, "{}", "promises a header of 9223372036854775808 bytes"},
        {((uint64_t)1 << 32) + 2, "{}", "promises a header of 4294967298 bytes"},
        {0, "{}", "does not start with '{' at offset 8"},
        {0, "", "does not start with '{'"},
        {3, " {}", "does not start with '{'"},
        {2, "[]", "does not start with '{'"},
        {1, "{", "not valid JSON at offset"},
        {7, "{} {}  ", "not valid JSON at offset"},
        {4, "{}\n}", "not valid JSON at offset"},
        {11, "{\"a\":nope }", "not valid JSON at offset"},
        {9, "{\"\xff\": 1} ", "not valid JSON at offset"},
        {10, "{\"\xc3(\": 1} ", "not valid JSON at offset"},
        {13, "{\"\\u0000\":1 }", "not valid JSON at offset"},
        {2, "{}x", "1 bytes follow the last tensor at data offset 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unsigned char bytes[64];
        size_t n_after = strlen(rows[i].after);
        put_length(bytes, rows[i].length);
        memcpy(bytes + 8, rows[i].after, n_after);
        assert_fails(open_bytes(bytes, 8 + n_after), LS_ERR_FORMAT, rows[i].message);
    }
}

static void files_shorter_than_a_length_are_refused(void **state) {
    (void)state;
    for (size_t n = 0; n < 8; n++) {
        char message[64];
        snprintf(message, sizeof message, "FILE: not a safetensors file: %zu bytes", n);
        assert_fails(open_bytes("\2\0\0\0\0\0\0\0", n), LS_ERR_FORMAT, message);
    }
}

static void header_above_the_cap_is_refused_before_it_is_parsed(void **state) {
    (void)state;
    size_t n_bytes = 8 + (size_t)LSI_ST_HEADER_CAP_BYTES + 1;
    unsigned char *bytes = calloc(n_bytes, 1);
    assert_non_null(bytes);
    put_length(bytes, n_bytes - 8);
    bytes[8] = '{';
    lsi_st_file *file = NULL;
    assert_fails(lsi_st_open_memory(bytes, n_bytes, "FILE", &file), LS_ERR_FORMAT,
                 "at most 100000000 allowed");
    assert_null(file);
    free(bytes);
}

/* ---- the header ---- */

/* A file of this header and so many bytes of data. */
static ls_status open_header(const char *header, size_t data_bytes) {
    size_t header_bytes = strlen(header);
    unsigned char *bytes = calloc(8 + header_bytes + data_bytes, 1);
    assert_non_null(bytes);
    put_length(bytes, header_bytes);
    memcpy(bytes + 8, header, header_bytes);
    ls_status status = open_bytes(bytes, 8 + header_bytes + data_bytes);
    free(bytes);
    return status;
}

/* An entry of the header, with ' for ". */
#define ENTRY(name, dtype, shape, offsets)                                                         \
    "'" name "':{'dtype':'" dtype "','shape':" shape ",'data_offsets':" offsets "}"

typedef struct header_row {
    const char *header; /* with ' for " */
    size_t data_bytes;
    ls_status status;
    const char *message;
} header_row;

static void check_rows(const header_row *rows, size_t n_rows) {
    for (size_t i = 0; i < n_rows; i++) {
        char header[1024];
        assert_true(strlen(rows[i].header) < sizeof header);
        strcpy(header, rows[i].header);
        for (char *c = header; *c; c++)
            if (*c == '\'') *c = '"';
        ls_status status = open_header(header, rows[i].data_bytes);
        if (rows[i].status == LS_OK && status != LS_OK)
            fail_msg("%s: %s", header, ls_last_message());
        if (rows[i].status == LS_OK) continue;
        if (status == LS_OK) fail_msg("%s: accepted", header);
        assert_fails(status, rows[i].status, rows[i].message);
    }
}
#define CHECK_ROWS(rows) check_rows(rows, sizeof(rows) / sizeof *(rows))

static void honest_headers_are_accepted(void **state) {
    (void)state;
    static const header_row rows[] = {
        {"{}", 0, LS_OK, ""},
        {"{}      ", 0, LS_OK, ""},
        {"{'__metadata__':{}}", 0, LS_OK, ""},
        {"{'__metadata__':{'a':'b'}," ENTRY("t", "U8", "[]", "[0,1]") "}", 1, LS_OK, ""},
        {"{" ENTRY("t", "BOOL", "[3]", "[0,3]") "}", 3, LS_OK, ""},
        {"{" ENTRY("t", "F32", "[1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, LS_OK, ""},
        /* empty tensors anywhere, also several at one place */
        {"{" ENTRY("e", "F32", "[0]", "[4,4]") "," ENTRY("t", "F32", "[1]", "[0,4]") "," ENTRY(
             "f", "F64", "[5,0]", "[0,0]") "," ENTRY("g", "I8", "[0]", "[0,0]") "}",
         4, LS_OK, ""},
        /* order of the header against order of the data */
        {"{" ENTRY("a", "U8", "[2]", "[1,3]") "," ENTRY("b", "U8", "[1]", "[0,1]") "}", 3, LS_OK,
         ""},
    };
    CHECK_ROWS(rows);
}

static void duplicate_names_are_refused(void **state) {
    (void)state;
    static const header_row rows[] = {
        {"{" ENTRY("t", "U8", "[1]", "[0,1]") "," ENTRY("t", "U8", "[1]", "[1,2]") "}", 2,
         LS_ERR_FORMAT, "duplicate object key"},
        {"{" ENTRY("t", "U8", "[1]", "[0,1]") "," ENTRY("\\u0074", "U8", "[1]", "[1,2]") "}", 2,
         LS_ERR_FORMAT, "duplicate object key"},
        {"{'__metadata__':{},'__metadata__':{}}", 0, LS_ERR_FORMAT, "duplicate object key"},
        {"{'__metadata__':{'a':'1','a':'2'}}", 0, LS_ERR_FORMAT, "duplicate object key"},
        {"{'t':{'dtype':'U8','dtype':'U8','shape':[1],'data_offsets':[0,1]}}", 1, LS_ERR_FORMAT,
         "duplicate object key"},
    };
    CHECK_ROWS(rows);
}

static void wrong_offsets_are_refused(void **state) {
    (void)state;
    static const header_row rows[] = {
        {"{" ENTRY("t", "U8", "[2]", "[0,2]") "}", 1, LS_ERR_FORMAT,
         "tensor 't': data_offsets [0, 2] are not inside the 1 bytes"},
        {"{" ENTRY("t", "U8", "[2]", "[2,0]") "}", 2, LS_ERR_FORMAT, "[2, 0] are not inside"},
        {"{" ENTRY("t", "U8", "[2]", "[-2,0]") "}", 2, LS_ERR_FORMAT, "[-2, 0] are not inside"},
        {"{" ENTRY("t", "U8", "[0]", "[9223372036854775807,9223372036854775807]") "}", 2,
         LS_ERR_FORMAT, "are not inside"},
        {"{" ENTRY("t", "U8", "[0]", "[3,3]") "}", 2, LS_ERR_FORMAT, "are not inside"},
        {"{" ENTRY("t", "U8", "[0]", "[0,9223372036854775808]") "}", 2, LS_ERR_FORMAT,
         "not valid JSON"},
        {"{" ENTRY("t", "U8", "[2]", "[0,18446744073709551618]") "}", 2, LS_ERR_FORMAT,
         "not valid JSON"},
        {"{" ENTRY("a", "U8", "[2]", "[0,2]") "," ENTRY("b", "U8", "[2]", "[1,3]") "}", 3,
         LS_ERR_FORMAT, "tensor 'b' starts at data offset 1, inside another one that ends at 2"},
        {"{" ENTRY("a", "U8", "[3]", "[0,3]") "," ENTRY("b", "U8", "[1]", "[1,2]") "}", 3,
         LS_ERR_FORMAT, "tensor 'b' starts at data offset 1, inside"},
        {"{" ENTRY("a", "U8", "[2]", "[0,2]") "," ENTRY("b", "U8", "[2]", "[0,2]") "}", 2,
         LS_ERR_FORMAT, "tensor 'b' starts at data offset 0, inside"},
        {"{" ENTRY("a", "U8", "[2]", "[0,2]") "," ENTRY("b", "U8", "[0]", "[1,1]") "}", 2,
         LS_ERR_FORMAT, "tensor 'b' starts at data offset 1, inside"},
        {"{" ENTRY("a", "U8", "[1]", "[0,1]") "," ENTRY("b", "U8", "[1]", "[2,3]") "}", 3,
         LS_ERR_FORMAT, "tensor 'b' starts at data offset 2, after a gap that starts at 1"},
        {"{" ENTRY("a", "U8", "[1]", "[1,2]") "}", 2, LS_ERR_FORMAT,
         "tensor 'a' starts at data offset 1, after a gap that starts at 0"},
        {"{" ENTRY("a", "U8", "[1]", "[0,1]") "}", 3, LS_ERR_FORMAT,
         "2 bytes follow the last tensor at data offset 1"},
        {"{" ENTRY("a", "U8", "[1]", "[0]") "}", 1, LS_ERR_FORMAT, "not two integers"},
        {"{" ENTRY("a", "U8", "[1]", "[0,1,1]") "}", 1, LS_ERR_FORMAT, "not two integers"},
        {"{" ENTRY("a", "U8", "[1]", "[0.0,1]") "}", 1, LS_ERR_FORMAT, "not two integers"},
        {"{" ENTRY("a", "U8", "[1]", "[0,'1']") "}", 1, LS_ERR_FORMAT, "not two integers"},
        {"{" ENTRY("a", "U8", "[1]", "{}") "}", 1, LS_ERR_FORMAT, "not two integers"},
        {"{" ENTRY("a", "U8", "[1]", "null") "}", 1, LS_ERR_FORMAT, "not two integers"},
    };
    CHECK_ROWS(rows);
}

static void wrong_shapes_are_refused(void **state) {
    (void)state;
    static const header_row rows[] = {
        {"{" ENTRY("t", "F32", "[2]", "[0,4]") "}", 4, LS_ERR_FORMAT,
         "tensor 't': shape (2) of F32 needs 8 bytes, its data_offsets hold 4"},
        {"{" ENTRY("t", "F32", "[]", "[0,0]") "}", 0, LS_ERR_FORMAT, "shape () of F32 needs 4"},
        {"{" ENTRY("t", "F32", "[0]", "[0,4]") "}", 4, LS_ERR_FORMAT, "needs 0 bytes"},
        {"{" ENTRY("t", "U8", "[-1]", "[0,0]") "}", 0, LS_ERR_FORMAT, "not a non-negative"},
        {"{" ENTRY("t", "U8", "[-1,-1]", "[0,1]") "}", 1, LS_ERR_FORMAT, "not a non-negative"},
        {"{" ENTRY("t", "U8", "[1.0]", "[0,1]") "}", 1, LS_ERR_FORMAT, "not a non-negative"},
        {"{" ENTRY("t", "U8", "['1']", "[0,1]") "}", 1, LS_ERR_FORMAT, "not a non-negative"},
        {"{" ENTRY("t", "U8", "[[1]]", "[0,1]") "}", 1, LS_ERR_FORMAT, "not a non-negative"},
        {"{" ENTRY("t", "U8", "[true]", "[0,1]") "}", 1, LS_ERR_FORMAT, "not a non-negative"},
        {"{" ENTRY("t", "U8", "1", "[0,1]") "}", 1, LS_ERR_FORMAT, "shape is not a list"},
        {"{" ENTRY("t", "U8", "null", "[0,1]") "}", 1, LS_ERR_FORMAT, "shape is not a list"},
        /* products that wrap to the right number of bytes */
        {"{" ENTRY("t", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0, LS_ERR_FORMAT,
         "shape (4294967296, 4294967296) is too large"},
        {"{" ENTRY("t", "F32", "[4611686018427387905]", "[0,4]") "}", 4, LS_ERR_FORMAT,
         "too large"},
        {"{" ENTRY("t", "U8", "[9223372036854775807,2]", "[0,1]") "}", 1, LS_ERR_FORMAT,
         "too large"},
        {"{" ENTRY("t", "U8", "[0,9223372036854775807,4]", "[0,0]") "}", 0, LS_ERR_FORMAT,
         "too large"},
        {"{" ENTRY("t", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, LS_ERR_UNSUPPORTED,
         "9 dims, at most 8"},
    };
    CHECK_ROWS(rows);
}

static void wrong_kinds_of_values_are_refused(void **state) {
    (void)state;
    static const header_row rows[] = {
        {"{'t':1}", 0, LS_ERR_FORMAT, "tensor 't': not an object"},
        {"{'t':[]}", 0, LS_ERR_FORMAT, "not an object"},
        {"{'t':null}", 0, LS_ERR_FORMAT, "not an object"},
        {"{'t':{}}", 0, LS_ERR_FORMAT, "no dtype"},
        {"{'t':{'dtype':'U8'}}", 0, LS_ERR_FORMAT, "no shape"},
        {"{'t':{'dtype':'U8','shape':[]}}", 0, LS_ERR_FORMAT, "no data_offsets"},
        {"{'t':{'dtype':'U8','shape':[],'data_offsets':[0,1],'x':0}}", 1, LS_ERR_FORMAT,
         "has keys other than"},
        {"{'t':{'dtype':8,'shape':[],'data_offsets':[0,1]}}", 1, LS_ERR_FORMAT,
         "dtype is not a text"},
        {"{" ENTRY("t", "F8", "[]", "[0,1]") "}", 1, LS_ERR_UNSUPPORTED,
         "dtype 'F8', expected F32"},
        {"{" ENTRY("t", "f32", "[]", "[0,4]") "}", 4, LS_ERR_UNSUPPORTED, "dtype 'f32'"},
        {"{" ENTRY("t", "", "[]", "[0,4]") "}", 4, LS_ERR_UNSUPPORTED, "dtype ''"},
        {"{'__metadata__':[]}", 0, LS_ERR_FORMAT, "__metadata__ is not an object"},
        {"{'__metadata__':'pt'}", 0, LS_ERR_FORMAT, "__metadata__ is not an object"},
        {"{'__metadata__':{'format':1}}", 0, LS_ERR_FORMAT, "value of 'format' is not a text"},
        {"{'__metadata__':{'format':null}}", 0, LS_ERR_FORMAT, "value of 'format' is not a text"},
        {"{'__metadata__':{'a':'b','format':{}}}", 0, LS_ERR_FORMAT, "value of 'format'"},
        /* names in messages are harmless */
        {"{'\\u001b[2J\\nroot':1}", 0, LS_ERR_FORMAT, "tensor '?[2J?root': not an object"},
    };
    CHECK_ROWS(rows);
}

static void long_names_are_cut_in_messages(void **state) {
    (void)state;
    char header[512] = "{\"";
    for (int i = 0; i < 100; i++) strcat(header, "ä");
    strcat(header, "\":1}");
    assert_fails(open_header(header, 0), LS_ERR_FORMAT, "ä…': not an object");
}

static void deep_nesting_is_refused(void **state) {
    (void)state;
    enum { DEPTH = 1000000 };
    char *header = malloc(DEPTH + 16);
    assert_non_null(header);
    strcpy(header, "{\"t\":");
    memset(header + 5, '[', DEPTH);
    header[5 + DEPTH] = 0;
    assert_fails(open_header(header, 0), LS_ERR_FORMAT, "not valid JSON");
    free(header);
}

/* ---- mutations ---- */

static const char SEED_HEADER[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
    "\"b\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]},"
    "\"c\":{\"dtype\":\"I64\",\"shape\":[0,9],\"data_offsets\":[26,26]},"
    "\"d\":{\"dtype\":\"U8\",\"shape\":[6],\"data_offsets\":[26,32]}} ";

enum { MAX_BYTES = 1024 };

/* One change of the file, chosen by draw: overwrite, flip a bit, cut, insert or repeat. */
static size_t mutate(unsigned char *bytes, size_t n_bytes, const lsi_rng_stream *stream,
                     uint64_t draw) {
    static const char tokens[] = "{}[]\":,0129-eE.\\ \xff\x80tfn\x7f";
    lsi_philox_block r = lsi_rng_block(stream, draw);
    if (n_bytes == 0) return 0;
    size_t at = r.word[1] % n_bytes;
    /* The first bytes are few but decide everything: half of the changes go there. */
    if (r.word[2] % 4 == 0) at %= n_bytes < 10 ? n_bytes : 10;
    size_t rest = n_bytes - at;
    switch (r.word[0] % 5) {
    case 0: bytes[at] = (unsigned char)r.word[3]; return n_bytes;
    case 1: bytes[at] ^= (unsigned char)(1u << r.word[3] % 8); return n_bytes;
    case 2: return at;
    case 3: bytes[at] = (unsigned char)tokens[r.word[3] % (sizeof tokens - 1)]; return n_bytes;
    default: {
        size_t length = r.word[3] % 40 + 1;
        if (length > rest) length = rest;
        if (n_bytes + length > MAX_BYTES) return n_bytes;
        memmove(bytes + at + length, bytes + at, rest);
        return n_bytes + length;
    }
    }
}

static void mutated_files_never_crash(void **state) {
    (void)state;
    enum { N_FILES = 20000, MAX_CHANGES = 4 };
    unsigned char seed[MAX_BYTES], bytes[MAX_BYTES];
    size_t header_bytes = sizeof SEED_HEADER - 1, seed_bytes = 8 + header_bytes + 32;
    put_length(seed, header_bytes);
    memcpy(seed + 8, SEED_HEADER, header_bytes);
    for (int i = 0; i < 32; i++) seed[8 + header_bytes + i] = (unsigned char)i;
    assert_ok(open_bytes(seed, seed_bytes));
    int n_accepted = 0;
    for (uint32_t i = 0; i < N_FILES; i++) {
        lsi_rng_stream stream = lsi_rng_open(20110711, LSI_RNG_TEST, i, 0);
        memcpy(bytes, seed, seed_bytes);
        size_t n_bytes = seed_bytes;
        uint32_t n_changes = i % MAX_CHANGES + 1;
        for (uint32_t c = 0; c < n_changes; c++) n_bytes = mutate(bytes, n_bytes, &stream, c);
        ls_status status = open_bytes(bytes, n_bytes);
        if (status == LS_OK)
            n_accepted++;
        else if (status != LS_ERR_FORMAT && status != LS_ERR_UNSUPPORTED)
            fail_msg("mutation %u: %s: %s", i, ls_status_name(status), ls_last_message());
    }
    /* Some changes only touch data or names; most must be noticed. */
    assert_in_range(n_accepted, N_FILES / 100, N_FILES / 2);
}

static void every_cut_is_refused(void **state) {
    (void)state;
    unsigned char bytes[MAX_BYTES] = {0};
    size_t header_bytes = sizeof SEED_HEADER - 1, n_bytes = 8 + header_bytes + 32;
    put_length(bytes, header_bytes);
    memcpy(bytes + 8, SEED_HEADER, header_bytes);
    for (size_t n = 0; n < n_bytes; n++) assert_fails(open_bytes(bytes, n), LS_ERR_FORMAT, "FILE");
    assert_ok(open_bytes(bytes, n_bytes));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_frames_are_refused),
        cmocka_unit_test(files_shorter_than_a_length_are_refused),
        cmocka_unit_test(header_above_the_cap_is_refused_before_it_is_parsed),
        cmocka_unit_test(honest_headers_are_accepted),
        cmocka_unit_test(duplicate_names_are_refused),
        cmocka_unit_test(wrong_offsets_are_refused),
        cmocka_unit_test(wrong_shapes_are_refused),
        cmocka_unit_test(wrong_kinds_of_values_are_refused),
        cmocka_unit_test(long_names_are_cut_in_messages),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(mutated_files_never_crash),
        cmocka_unit_test(every_cut_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
