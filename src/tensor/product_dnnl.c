/* Products by oneDNN's matmul primitive, in both major versions of its C interface.
 *
 * A primitive is made once per kind of product and kept with its memory objects, whose addresses
 * are set anew at each run. Kinds are few (three products per linear layer and shape), so they lie
 * in one list that is searched from the place of the last find: a step runs through the same
 * sequence again and again, and the next kind is nearly always the next in the list.
 *
 * The differences between the versions are in the section of that name and nowhere else. Without
 * oneDNN (LSI_GEMM_CBLAS) the functions say that there are no primitives. */
#include "tensor/product_impl.h"

#if defined(LSI_GEMM_DNNL)

#include <oneapi/dnnl/dnnl.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/threads.h"

static bool has_isa(dnnl_cpu_isa_t isa) {
    return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)isa) == (unsigned)isa;
}

/* ---- the two versions ---- */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t desc;
typedef const_dnnl_memory_desc_t desc_view;

static dnnl_status_t make_desc(desc *d, dnnl_dim_t *dims, dnnl_data_type_t type,
                               dnnl_dim_t *strides, int n_dims) {
    return strides ? dnnl_memory_desc_create_with_strides(d, n_dims, dims, type, strides)
                   : dnnl_memory_desc_create_with_tag(d, n_dims, dims, type, dnnl_format_tag_any);
}
static void free_desc(desc *d) {
    if (*d) dnnl_memory_desc_destroy(*d);
    *d = NULL;
}
static desc_view view(const desc *d) {
    return *d;
}
static dnnl_status_t make_matmul(dnnl_primitive_desc_t *made, dnnl_engine_t engine, const desc *a,
                                 const desc *b, const desc *bias, const desc *c,
                                 const_dnnl_primitive_attr_t attr) {
    return dnnl_matmul_primitive_desc_create(made, engine, *a, *b, bias ? *bias : NULL, *c, attr);
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}
#else
typedef dnnl_memory_desc_t desc;
typedef const dnnl_memory_desc_t *desc_view;

static dnnl_status_t make_desc(desc *d, dnnl_dim_t *dims, dnnl_data_type_t type,
                               dnnl_dim_t *strides, int n_dims) {
    return strides ? dnnl_memory_desc_init_by_strides(d, n_dims, dims, type, strides)
                   : dnnl_memory_desc_init_by_tag(d, n_dims, dims, type, dnnl_format_tag_any);
}
static void free_desc(desc *d) {
    (void)d;
}
static desc_view view(const desc *d) {
    return d;
}
static dnnl_status_t make_matmul(dnnl_primitive_desc_t *made, dnnl_engine_t engine, const desc *a,
                                 const desc *b, const desc *bias, const desc *c,
                                 const_dnnl_primitive_attr_t attr) {
    dnnl_matmul_desc_t operation;
    dnnl_status_t status = dnnl_matmul_desc_init(&operation, a, b, bias, c);
    if (status != dnnl_success) return status;
    return dnnl_primitive_desc_create(made, &operation, attr, engine, NULL);
}
static dnnl_status_t append_sum(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1.0f);
}
#endif

/* ---- kinds of products ---- */

/* What a primitive depends on; compared as bytes, so zeroed before it is filled. How it divides its
 * work, and with it the order of its additions, is settled for a number of threads when it is made,
 * not when it runs. */
typedef struct kind {
    int64_t m, n, k, a_stride, b_stride, c_stride;
    int dtype, c_dtype, n_threads;
    bool a_transposed, b_transposed, has_bias, add, packs;
} kind;

typedef struct prepared {
    kind kind;
    dnnl_primitive_t multiply, pack; /* pack: NULL where B is taken as it lies */
    dnnl_memory_t a, b, packed, bias, c;
    size_t packed_bytes;
    uint64_t used; /* when, for making room */
} prepared;

/* Attention over long sequences has seven kinds for every block of queries. */
enum { FIRST_KINDS = 64, MAX_KINDS = 8192 };

struct lsi_product_cache {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int n, capacity, at; /* at: where the last one was found */
    uint64_t clock;
    prepared *kinds;
};

static ls_status fail_dnnl(dnnl_status_t status, const char *what, const kind *k) {
    return lsi_fail(status == dnnl_out_of_memory ? LS_ERR_MEMORY : LS_ERR_UNSUPPORTED,
                    "oneDNN: %s a product of (%lld x %lld) and (%lld x %lld) of %s: status %d",
                    what, (long long)k->m, (long long)k->k, (long long)k->k, (long long)k->n,
                    ls_dtype_name((ls_dtype)k->dtype), (int)status);
}

/* ---- making ---- */

static dnnl_data_type_t type_of(int dtype) {
    return dtype == LS_DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
}

static dnnl_status_t desc_of(desc *d, int64_t rows, int64_t columns, int dtype, int64_t stride,
                             bool transposed) {
    dnnl_dims_t dims = {rows, columns};
    dnnl_dims_t strides = {transposed ? 1 : stride, transposed ? stride : 1};
    return make_desc(d, dims, type_of(dtype), strides, 2);
}

/* The five matrices of a product while its primitive is made; `any` is B as the library likes. */
typedef struct descs {
    desc a, b, any, bias, c;
} descs;

static dnnl_status_t make_descs(const kind *k, descs *d) {
    dnnl_dims_t b_dims = {k->k, k->n}, bias_dims = {1, k->n}, bias_strides = {k->n, 1};
    dnnl_status_t status = desc_of(&d->a, k->m, k->k, k->dtype, k->a_stride, k->a_transposed);
    if (!status) status = desc_of(&d->b, k->k, k->n, k->dtype, k->b_stride, k->b_transposed);
    if (!status) status = desc_of(&d->c, k->m, k->n, k->c_dtype, k->c_stride, false);
    if (!status) status = make_desc(&d->any, b_dims, type_of(k->dtype), NULL, 2);
    if (!status) status = make_desc(&d->bias, bias_dims, dnnl_f32, bias_strides, 2);
    return status;
}

static void free_descs(descs *d) {
    free_desc(&d->a);
    free_desc(&d->b);
    free_desc(&d->any);
    free_desc(&d->bias);
    free_desc(&d->c);
}

static dnnl_status_t make_attr(const kind *k, dnnl_primitive_attr_t *attr) {
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (status || !k->add) return status;
    status = dnnl_post_ops_create(&ops);
    if (!status) status = append_sum(ops);
    if (!status) status = dnnl_primitive_attr_set_post_ops(*attr, ops);
    if (ops) dnnl_post_ops_destroy(ops);
    return status;
}

static dnnl_status_t make_memory(dnnl_memory_t *memory, desc_view d, dnnl_engine_t engine) {
    return dnnl_memory_create(memory, d, engine, DNNL_MEMORY_NONE);
}

/* B's copy in the library's layout, when that is another one. */
static dnnl_status_t make_packing(prepared *p, const descs *d, const_dnnl_primitive_desc_t multiply,
                                  dnnl_engine_t engine) {
    desc_view wanted = dnnl_primitive_desc_query_md(multiply, dnnl_query_weights_md, 0);
    if (!wanted || dnnl_memory_desc_equal(wanted, view(&d->b))) return dnnl_success;
    dnnl_primitive_desc_t copy = NULL;
    dnnl_status_t status =
        dnnl_reorder_primitive_desc_create(&copy, view(&d->b), engine, wanted, engine, NULL);
    if (!status) status = dnnl_primitive_create(&p->pack, copy);
    if (!status) status = make_memory(&p->packed, wanted, engine);
    if (copy) dnnl_primitive_desc_destroy(copy);
    p->packed_bytes = dnnl_memory_desc_get_size(wanted);
    return status;
}

static dnnl_status_t make_primitive(prepared *p, descs *d, dnnl_engine_t engine) {
    const kind *k = &p->kind;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t multiply = NULL;
    dnnl_status_t status = make_attr(k, &attr);
    if (!status)
        status = make_matmul(&multiply, engine, &d->a, k->packs ? &d->any : &d->b,
                             k->has_bias ? &d->bias : NULL, &d->c, attr);
    if (!status) status = dnnl_primitive_create(&p->multiply, multiply);
    if (!status) status = make_packing(p, d, multiply, engine);
    if (!status) status = make_memory(&p->a, view(&d->a), engine);
    if (!status) status = make_memory(&p->b, view(&d->b), engine);
    if (!status) status = make_memory(&p->c, view(&d->c), engine);
    if (!status && k->has_bias) status = make_memory(&p->bias, view(&d->bias), engine);
    if (multiply) dnnl_primitive_desc_destroy(multiply);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return status;
}

static void unmake(prepared *p) {
    dnnl_memory_t memories[] = {p->a, p->b, p->packed, p->bias, p->c};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        if (memories[i]) dnnl_memory_destroy(memories[i]);
    if (p->multiply) dnnl_primitive_destroy(p->multiply);
    if (p->pack) dnnl_primitive_destroy(p->pack);
    *p = (prepared){0};
}

static ls_status make(prepared *p, const kind *k, dnnl_engine_t engine) {
    descs d = {0};
    *p = (prepared){.kind = *k};
    dnnl_status_t status = make_descs(k, &d);
    if (!status) status = make_primitive(p, &d, engine);
    free_descs(&d);
    if (!status) return LS_OK;
    unmake(p);
    return fail_dnnl(status, "preparing", k);
}

/* ---- the cache ---- */

static ls_status create_cache(lsi_product_cache **cache) {
    lsi_product_cache *made = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *made);
    LSI_TRY(lsi_check_alloc(made));
    dnnl_status_t status = dnnl_engine_create(&made->engine, dnnl_cpu, 0);
    if (!status) status = dnnl_stream_create(&made->stream, made->engine, 0);
    if (!status) {
        *cache = made;
        return LS_OK;
    }
    lsi_product_cache_destroy(made);
    return lsi_fail(LS_ERR_SYSTEM, "oneDNN: no engine for this processor: status %d", (int)status);
}

void lsi_product_cache_destroy(lsi_product_cache *cache) {
    if (!cache) return;
    for (int i = 0; i < cache->n; i++) unmake(&cache->kinds[i]);
    lsi_free(cache->kinds);
    if (cache->stream) dnnl_stream_destroy(cache->stream);
    if (cache->engine) dnnl_engine_destroy(cache->engine);
    lsi_free(cache);
}

static ls_status grow(lsi_product_cache *cache) {
    if (cache->n < cache->capacity || cache->capacity == MAX_KINDS) return LS_OK;
    int capacity = cache->capacity ? 2 * cache->capacity : FIRST_KINDS;
    prepared *longer = lsi_realloc(LSI_MEM_OTHER, cache->kinds, (size_t)capacity * sizeof *longer);
    LSI_TRY(lsi_check_alloc(longer));
    cache->kinds = longer;
    cache->capacity = capacity;
    return LS_OK;
}

/* Where a new kind goes: the end, or when all is full, the place unused for longest. */
static int place_for_new(lsi_product_cache *cache) {
    if (cache->n < cache->capacity) return cache->n++;
    int oldest = 0;
    for (int i = 1; i < cache->n; i++)
        if (cache->kinds[i].used < cache->kinds[oldest].used) oldest = i;
    unmake(&cache->kinds[oldest]);
    return oldest;
}

static ls_status find(lsi_product_cache *cache, const kind *k, prepared **found) {
    for (int i = 0; i < cache->n; i++) {
        int at = (cache->at + i) % cache->n;
        if (memcmp(&cache->kinds[at].kind, k, sizeof *k) != 0) continue;
        cache->at = at;
        *found = &cache->kinds[at];
        return LS_OK;
    }
    prepared made;
    LSI_TRY(grow(cache));
    LSI_TRY(make(&made, k, cache->engine));
    cache->at = place_for_new(cache);
    cache->kinds[cache->at] = made;
    *found = &cache->kinds[cache->at];
    return LS_OK;
}

/* ---- running ---- */

/* The interface takes memory as not constant, also what it only reads. */
static void *writable(const void *data) {
    void *same;
    memcpy(&same, &data, sizeof same);
    return same;
}

static dnnl_status_t set(dnnl_memory_t memory, const void *data) {
    return memory ? dnnl_memory_set_data_handle(memory, writable(data)) : dnnl_success;
}

static dnnl_status_t execute(const prepared *p, const lsi_product *product, void *packed,
                             dnnl_stream_t stream) {
    dnnl_exec_arg_t copy[] = {{DNNL_ARG_FROM, p->b}, {DNNL_ARG_TO, p->packed}};
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, p->a},
                              {DNNL_ARG_WEIGHTS, p->pack ? p->packed : p->b},
                              {DNNL_ARG_DST, p->c},
                              {DNNL_ARG_BIAS, p->bias}};
    dnnl_status_t status = set(p->a, product->a.data);
    if (!status) status = set(p->b, product->b.data);
    if (!status) status = set(p->c, product->c);
    if (!status) status = set(p->bias, product->bias);
    if (!status) status = set(p->packed, packed);
    if (!status && p->pack) status = dnnl_primitive_execute(p->pack, stream, 2, copy);
    if (!status) status = dnnl_primitive_execute(p->multiply, stream, p->bias ? 4 : 3, args);
    if (!status) status = dnnl_stream_wait(stream);
    return status;
}

/* [Note: packing] pays once a weight is used by enough rows (docs/performance.md). */
static bool wants_packing(const lsi_product *p) {
    enum { LEAST_ROWS = 2048 };
    if (p->packing != LSI_PACK_IF_MANY_ROWS) return p->packing == LSI_PACK_ALWAYS;
    return p->m >= LEAST_ROWS && p->n <= p->m;
}

static kind kind_of(const lsi_product *p) {
    kind k;
    memset(&k, 0, sizeof k);
    k.m = p->m, k.n = p->n, k.k = p->k;
    k.a_stride = p->a.stride, k.b_stride = p->b.stride, k.c_stride = p->c_stride;
    k.dtype = (int)p->a.dtype, k.c_dtype = (int)p->c_dtype, k.n_threads = lsi_product_threads();
    k.a_transposed = p->a.transposed, k.b_transposed = p->b.transposed;
    k.has_bias = p->bias != NULL, k.add = p->add, k.packs = wants_packing(p);
    return k;
}

ls_status lsi_product_run(lsi_product_cache **cache, const lsi_scratch *scratch,
                          const lsi_product *product) {
    if (!*cache) LSI_TRY(create_cache(cache));
    kind k = kind_of(product);
    prepared *p;
    LSI_TRY(find(*cache, &k, &p));
    p->used = ++(*cache)->clock;
    void *packed = NULL;
    if (p->pack) {
        packed = scratch->take(scratch->owner, p->packed_bytes);
        if (!packed) return LS_ERR_MEMORY;
    }
    dnnl_status_t status = execute(p, product, packed, (*cache)->stream);
    if (packed) scratch->give(scratch->owner, packed);
    return status ? fail_dnnl(status, "running", &k) : LS_OK;
}

/* ---- what there is ---- */

lsi_bf16_unit lsi_product_unit(void) {
    return has_isa(dnnl_cpu_isa_avx512_core_amx)    ? LSI_BF16_TILES
           : has_isa(dnnl_cpu_isa_avx512_core_bf16) ? LSI_BF16_PAIRS
                                                    : LSI_BF16_NONE;
}

#else

lsi_bf16_unit lsi_product_unit(void) {
    return LSI_BF16_NONE;
}

ls_status lsi_product_run(lsi_product_cache **cache, const lsi_scratch *scratch,
                          const lsi_product *product) {
    (void)cache, (void)scratch, (void)product;
    return lsi_fail(LS_ERR_UNSUPPORTED, "products: this build has no library with primitives");
}

void lsi_product_cache_destroy(lsi_product_cache *cache) {
    (void)cache;
}

#endif
