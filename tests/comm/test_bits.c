/* The bits of reductions of rough values. Algorithms that keep the order give those of the order's
 * tree, evaluated number by number (harness/cases.c). With every algorithm an all-reduce leaves the
 * same bits on all ranks, a call gives the same bits again, and so does another run, as processes
 * or as threads. */
#include "harness/harness.h"

#include <string.h>
#include <sys/mman.h>

#include "harness/cases.h"

enum { ARENA_BYTES = 24 << 20, MOST_HASHES = 4096 };

static const ls_dtype float_types[] = {LS_DTYPE_F32, LS_DTYPE_BF16, LS_DTYPE_F16, LS_DTYPE_F64};
static const case_op rough_ops[] = {{LS_OP_SUM, 1},       {LS_OP_SUM, 0.3}, {LS_OP_AVG, 1},
                                    {LS_OP_MIN, 1},       {LS_OP_MAX, 1},   {LS_OP_PROD, 1},
                                    {LS_OP_PREMUL_SUM, 1}};
enum { N_ROUGH_OPS = sizeof rough_ops / sizeof rough_ops[0] };

/* Hashes of results, by number of ranks: the first run writes them. */
typedef struct memory {
    bool is_first;
    int n_hashes;
    uint64_t hash[MOST_HASHES];
} memory;

static ls_status all_have(const posted_case *p, uint64_t hash) {
    uint64_t all[LSI_MAX_RANKS];
    char text[CASE_TEXT_BYTES];
    LSI_TRY(ls_all_gather(p->group, &hash, all, 1, LS_DTYPE_I64, NULL));
    for (int r = 0; r < p->group->n_ranks; r++)
        RANK_CHECK(all[r] == hash, "%s: ranks %d and %d have different bits",
                   case_print(p->group, &p->c, text), p->group->rank, r);
    return LS_OK;
}

/* Twice, and compared with the first run. */
static ls_status check_bits(case_arena *arena, const call_case *c, memory *m, int number) {
    posted_case p;
    uint64_t hash[2];
    char text[CASE_TEXT_BYTES];
    for (int i = 0; i < 2; i++) {
        case_arena_reset(arena);
        LSI_TRY(case_post(arena, c, i == 1, &p));
        if (p.work) LSI_TRY(ls_work_wait(p.work, -1));
        LSI_TRY(case_check(&p));
        hash[i] = case_hash(&p);
    }
    RANK_CHECK(hash[0] == hash[1], "%s: other bits the second time",
               case_print(arena->group, c, text));
    if (c->kind != LSI_CALL_ALL_REDUCE) return LS_OK;
    LSI_TRY(all_have(&p, hash[0]));
    RANK_CHECK(number < MOST_HASHES, "%d results", number);
    if (arena->group->rank != 0) return LS_OK;
    if (m->is_first) m->hash[number] = hash[0];
    RANK_CHECK(m->hash[number] == hash[0], "%s: other bits in another run",
               case_print(arena->group, c, text));
    return LS_OK;
}

static ls_status bits_of_kind(case_arena *arena, case_kind kind, memory *m, int *number) {
    static const int64_t counts[] = {1, 1009, 20011};
    uint32_t seed = 1;
    for (int a = 0; a <= lsi_n_algorithms(); a++)
        for (int t = 0; t < 4; t++)
            for (int o = 0; o < N_ROUGH_OPS; o++)
                for (int i = 0; i < (o == 0 && t < 2 && !SANITIZED ? 3 : 2); i++) {
                    call_case c = {.kind = kind.kind,
                                   .uneven = kind.uneven,
                                   .algorithm = a,
                                   .dtype = float_types[t],
                                   .op = rough_ops[o].op,
                                   .scale = rough_ops[o].scale,
                                   .count = counts[i],
                                   .root = (int)(seed % (uint32_t)arena->group->n_ranks),
                                   .in_place = false,
                                   .rough = true,
                                   .seed = seed++,
                                   .buffers = (case_buffers)(seed % N_CASE_BUFFERS)};
                    if (!case_possible(arena->group, &c)) c.buffers = CASE_SHARED;
                    if (!case_possible(arena->group, &c)) continue;
                    LSI_TRY(check_bits(arena, &c, m, (*number)++));
                }
    return LS_OK;
}

static ls_status all_bits(ls_group *group, void *context) {
    case_arena arena;
    int number = 0;
    LSI_TRY(case_arena_open(&arena, group, ARENA_BYTES));
    for (int k = 0; k < n_case_kinds; k++) {
        call_case kind = {.kind = case_kinds[k].kind};
        if (case_reduces(&kind)) LSI_TRY(bits_of_kind(&arena, case_kinds[k], context, &number));
    }
    case_arena_close(&arena);
    return LS_OK;
}

static void bits_depend_on_nothing_but_the_call(void **state) {
    (void)state;
    memory *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(m != MAP_FAILED);
    for (const int *n = rank_counts; *n; n++) {
        if (SANITIZED && *n != 2 && *n != 5) continue;
        m->is_first = true;
        assert_ok(run_ranks(RANKS_AS_PROCESSES, *n, all_bits, m));
        m->is_first = false;
        assert_ok(run_ranks(RANKS_AS_THREADS, *n, all_bits, m));
    }
    munmap(m, sizeof *m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_depend_on_nothing_but_the_call)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
