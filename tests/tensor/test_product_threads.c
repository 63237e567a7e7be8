/* The bits of products, for the number of threads and what ran before.
 *
 * Inside a range of a loop a product has the bits of one thread, whether the loop is shared out or
 * too short for it, and outside it has the bits of the number set; neither teams made before, nor
 * products prepared before with another number, nor the place in memory change them. A case goes
 * through all `situations` in order, with the same caches, because it is the order that matters. */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "harness/harness.h"
#include "tensor/gemm.h"
#include "tensor/product.h"
#include "tensor/rows.h"
#include "tensor/threads.h"

enum { MAX_THREADS = 2, ALIGNMENT = 64 };

typedef struct size {
    int64_t m, n, k;
} size;

/* Sums so long, or matrices so narrow, that libraries divide them otherwise for two threads. */
static const size sizes[] = {
    {1, 1, 1},      {1, 300, 70},  {300, 1, 70},    {3, 5, 2},       {7, 64, 900},   {19, 24, 1164},
    {24, 19, 1164}, {36, 700, 36}, {700, 36, 36},   {14, 74, 186},   {75, 19, 1231}, {49, 16, 288},
    {33, 17, 820},  {64, 64, 64},  {128, 129, 130}, {200, 210, 400}, {64, 700, 27},
};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

typedef struct type {
    ls_dtype dtype;
    bool widens; /* the way of processors without instructions for bfloat16 */
} type;

static const type types[] = {{LS_DTYPE_F32, false}, {LS_DTYPE_BF16, false}, {LS_DTYPE_BF16, true}};
enum { N_TYPES = sizeof types / sizeof types[0] };

/* Where a product is made. n_items: of the loop whose ranges make it, one each; 0: outside. */
typedef struct situation {
    const char *name;
    int n_threads, n_items;
    size_t shift; /* elements behind an aligned address */
} situation;

static const situation situations[] = {
    {"outside, two threads", 2, 0, 0},
    {"in a team", 2, 2, 0},
    {"in a team after a team", 2, 2, 0},
    {"in a loop too short for a team", 2, 1, 0},
    {"outside, two threads, after teams", 2, 0, 0},
    {"in a team, elsewhere in memory", 2, 2, 1},
    {"in a short loop after a team, elsewhere in memory", 2, 1, 5},
    {"outside, two threads, elsewhere in memory", 2, 0, 3},
    {"in a team, before one thread", 2, 2, 0},
    {"outside, one thread, after teams", 1, 0, 0},
    {"in a loop, one thread", 1, 2, 0},
    {"outside, one thread, elsewhere in memory", 1, 0, 7},
};
enum { N_SITUATIONS = sizeof situations / sizeof situations[0] };

/* ---- memory ---- */

static void *grab(size_t bytes) {
    void *memory = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (!memory) abort(); /* also called by threads that cannot fail a test */
    return memory;
}

static void *take(void *owner, size_t bytes) {
    (void)owner;
    return grab(bytes);
}

static void give(void *owner, void *memory) {
    (void)owner;
    free(memory);
}

/* What all cases multiply, drawn once. */
enum { MOST_ELEMS = 1 << 17 };
static float drawn[MOST_ELEMS];

static void draw(void) {
    lsi_rng_stream stream = lsi_rng_open(3, LSI_RNG_TEST, 0, 0);
    for (int64_t i = 0; i < MOST_ELEMS; i++)
        drawn[i] = lsi_rng_uniform(&stream, (uint64_t)i) - 0.5f;
}

typedef struct matrix {
    char *memory;
    void *data;
    size_t bytes;
} matrix;

/* The n numbers drawn from `first` on, `shift` elements behind an aligned address. */
static matrix place(int64_t first, ls_dtype dtype, int64_t n, size_t shift) {
    assert_true(first + n <= MOST_ELEMS);
    size_t element = (size_t)lsi_dtype_size(dtype);
    matrix made = {.memory = grab(((size_t)n + shift) * element), .bytes = (size_t)n * element};
    made.data = made.memory + shift * element;
    lsi_store_floats(made.data, dtype, n, drawn + first);
    return made;
}

/* ---- a product ---- */

typedef struct one_case {
    size size;
    type type;
    bool a_transposed, b_transposed, add; /* adding to C, or with a bias */
    lsi_product_cache *caches[MAX_THREADS];
} one_case;

/* A case in one situation: item i leaves its result in results[i]. */
typedef struct run {
    one_case *c;
    matrix a, b, bias, results[MAX_THREADS];
    ls_status status[MAX_THREADS];
} run;

static void multiply_items(void *context, int64_t begin, int64_t end, int worker) {
    run *r = context;
    const one_case *c = r->c;
    const size *s = &c->size;
    ls_dtype dtype = c->type.dtype;
    lsi_scratch scratch = {take, give, NULL};
    for (int64_t i = begin; i < end; i++) {
        lsi_product p = {.m = s->m,
                         .n = s->n,
                         .k = s->k,
                         .a = {r->a.data, dtype, c->a_transposed ? s->m : s->k, c->a_transposed},
                         .b = {r->b.data, dtype, c->b_transposed ? s->k : s->n, c->b_transposed},
                         .c = r->results[i].data,
                         .c_dtype = dtype,
                         .c_stride = s->n,
                         .bias = c->add ? NULL : r->bias.data,
                         .add = c->add};
        r->status[i] = lsi_multiply(&r->c->caches[worker], &scratch, &p);
    }
}

static run open_run(one_case *c, size_t shift) {
    const size *s = &c->size;
    ls_dtype dtype = c->type.dtype;
    run r = {.c = c,
             .a = place(0, dtype, s->m * s->k, shift),
             .b = place(1000, dtype, s->k * s->n, 2 * shift),
             .bias = place(2000, LS_DTYPE_F32, s->n, shift)};
    for (int i = 0; i < MAX_THREADS; i++) r.results[i] = place(3000, dtype, s->m * s->n, 3 * shift);
    return r;
}

static void close_run(run *r) {
    free(r->a.memory), free(r->b.memory), free(r->bias.memory);
    for (int i = 0; i < MAX_THREADS; i++) free(r->results[i].memory);
}

static run run_in(one_case *c, const situation *where) {
    run r = open_run(c, where->shift);
    lsi_compute_set_threads(where->n_threads);
    if (where->n_items == 0)
        multiply_items(&r, 0, 1, 0);
    else
        lsi_for_ranges(where->n_items, 1, multiply_items, &r);
    lsi_compute_set_threads(1);
    for (int i = 0; i < MAX_THREADS; i++) assert_ok(r.status[i]);
    return r;
}

/* ---- cases ---- */

static void assert_bits(const run *expected, const run *found, int item, const situation *where) {
    const one_case *c = found->c;
    size_t bytes = expected->results[0].bytes;
    if (memcmp(expected->results[0].data, found->results[item].data, bytes) == 0) return;
    fail_msg("%dx%dx%d %s%s ta=%d tb=%d add=%d, %s: not the bits of %d thread(s)", (int)c->size.m,
             (int)c->size.n, (int)c->size.k, ls_dtype_name(c->type.dtype),
             c->type.widens ? " widened" : "", c->a_transposed, c->b_transposed, c->add,
             where->name, where->n_items > 0 ? 1 : where->n_threads);
}

static void check(one_case *c) {
    static const situation fresh_one = {"outside, one thread, nothing prepared", 1, 0, 0};
    run expected[] = {run_in(c, &fresh_one), {0}};
    lsi_product_cache_destroy(c->caches[0]);
    c->caches[0] = NULL;
    for (int at = 0; at < N_SITUATIONS; at++) {
        const situation *where = &situations[at];
        run found = run_in(c, where);
        bool is_two = where->n_items == 0 && where->n_threads == 2;
        for (int i = 0; at > 0 && (i == 0 || i < where->n_items); i++)
            assert_bits(&expected[is_two], &found, i, where);
        if (at == 0)
            expected[1] = found; /* what two threads give is the library's business */
        else
            close_run(&found);
    }
    for (int i = 0; i < MAX_THREADS; i++) lsi_product_cache_destroy(c->caches[i]);
    close_run(&expected[0]), close_run(&expected[1]);
}

static void bits_follow_from_the_call_and_its_number_of_threads(void **state) {
    (void)state;
#if defined(__SANITIZE_THREAD__)
    print_message("skipped: the library's threads cannot be followed by the thread sanitizer\n");
    skip();
#endif
    for (int t = 0; t < N_TYPES; t++) {
        lsi_product_widens(types[t].widens);
        for (int i = 0; i < N_SIZES; i++) {
            for (int how = 0; how < 8; how++) {
                one_case c = {sizes[i], types[t], how & 1, how & 2, how & 4, {NULL}};
                check(&c);
            }
        }
    }
    lsi_product_widens(false);
}

/* ---- the number itself ---- */

typedef struct numbers {
    int in_range[MAX_THREADS];
} numbers;

static void note_number(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    for (int64_t i = begin; i < end; i++) ((numbers *)context)->in_range[i] = lsi_product_threads();
}

static void products_in_ranges_have_one_thread(void **state) {
    (void)state;
    lsi_compute_set_threads(2);
    assert_int_equal(lsi_product_threads(), 2);
    for (int n_items = 1; n_items <= MAX_THREADS; n_items++) {
        numbers found = {{0}};
        lsi_for_ranges(n_items, 1, note_number, &found);
        for (int i = 0; i < n_items; i++) assert_int_equal(found.in_range[i], 1);
        assert_int_equal(lsi_product_threads(), 2);
    }
    lsi_compute_set_threads(1);
    assert_int_equal(lsi_product_threads(), 1);
}

int main(void) {
    draw();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_follow_from_the_call_and_its_number_of_threads),
        cmocka_unit_test(products_in_ranges_have_one_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
