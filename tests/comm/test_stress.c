/* Much at once: a thousand works of all kinds in flight, waited for in random order, and random
 * programs of calls, messages, batches, splits, sleeps and yields.
 *
 * A program is drawn from a seed that all ranks know, so calls match; what a rank does in between
 * (sleeps, tests, the order of waits) is drawn from the seed and its rank. A failure prints the
 * seed; LOCKSTEP_TEST_SEED=N runs that program alone, LOCKSTEP_TEST_PROGRAMS=N so many. */
#include "harness/harness.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "harness/cases.h"

enum { ARENA_BYTES = 64 << 20 };

/* ---- random numbers ---- */

typedef struct dice {
    lsi_rng_stream stream;
    uint64_t n_thrown;
} dice;

static dice dice_of(uint64_t seed, int who) {
    return (dice){.stream = lsi_rng_open(seed, LSI_RNG_TEST, (uint32_t)who, 0)};
}

static int throw(dice * d, int bound) {
    return (int)lsi_rng_below(&d->stream, d->n_thrown++, (uint64_t)bound);
}

/* Mostly small, now and then some pieces or many portions of a channel. */
static int64_t throw_count(dice *d, int64_t most) {
    static const int limits[] = {3, 20, 200, 3000, 70000};
    int64_t limit = limits[throw(d, 8) == 0 ? 4 : throw(d, 4)];
    return throw(d, (int)(limit < most ? limit : most) + 1);
}

static call_case throw_case(dice *d, const ls_group *group, int64_t most) {
    const case_kind *kind = &case_kinds[throw(d, n_case_kinds)];
    const case_op *op = &case_ops[throw(d, n_case_ops)];
    call_case c = {.kind = kind->kind,
                   .uneven = kind->uneven,
                   .op = op->op,
                   .scale = op->scale,
                   .dtype = case_dtypes[throw(d, n_case_dtypes)],
                   .count = throw_count(d, most),
                   .root = throw(d, group->n_ranks),
                   .in_place = throw(d, 2),
                   .buffers = (case_buffers) throw(d, N_CASE_BUFFERS),
                   .seed = (uint32_t) throw(d, 1 << 20)};
    if (!case_reduces(&c)) c.op = LS_OP_SUM, c.scale = 1;
    c.algorithm = throw(d, lsi_n_algorithms() + 1);
    if (!case_possible(group, &c)) c.algorithm = 0;
    if (!case_possible(group, &c)) c.in_place = false;
    return c;
}

/* ---- a thousand at once ---- */

enum { N_AT_ONCE = 1000, N_MESSAGES = 300 };

typedef struct flight {
    posted_case cases[N_AT_ONCE];
    ls_work *messages[2 * N_MESSAGES];
    int64_t sent[N_MESSAGES], received[N_MESSAGES];
} flight;

static ls_status post_all(case_arena *arena, dice *d, flight *f, int *n_messages) {
    ls_group *group = arena->group;
    int n = group->n_ranks, me = group->rank, m = 0;
    *n_messages = 0;
    for (int i = 0; i < N_AT_ONCE; i++) {
        call_case c = throw_case(d, group, SANITIZED ? 300 : 3000);
        LSI_TRY(case_post(arena, &c, true, &f->cases[i]));
        int from = throw(d, n), to = throw(d, n);
        if (i % 4 || m == N_MESSAGES) continue;
        f->sent[m] = from * 1000 + m;
        if (from == me)
            LSI_TRY(
                ls_send(group, &f->sent[m], 1, LS_DTYPE_I64, to, &f->messages[(*n_messages)++]));
        f->received[m] = to == me ? -1 : from * 1000 + m;
        if (to == me)
            LSI_TRY(ls_recv(group, &f->received[m], 1, LS_DTYPE_I64, from,
                            &f->messages[(*n_messages)++]));
        m++;
    }
    return LS_OK;
}

static ls_status wait_in_any_order(ls_work **works, int n, dice *mine) {
    for (int i = n - 1; i > 0; i--) {
        int k = throw(mine, i + 1);
        ls_work *other = works[i];
        works[i] = works[k];
        works[k] = other;
    }
    for (int i = 0; i < n; i++) LSI_TRY(ls_work_wait(works[i], -1));
    return LS_OK;
}

static ls_status thousand_works(ls_group *group, void *context) {
    (void)context;
    case_arena arena;
    flight *f = calloc(1, sizeof *f);
    ls_work *works[N_AT_ONCE + 2 * N_MESSAGES];
    LSI_TRY(case_arena_open(&arena, group, (size_t)ARENA_BYTES * 3)); /* most of it untouched */
    for (int round = 0; round < 2; round++) {
        dice d = dice_of((uint64_t)round + 5, 0), mine = dice_of((uint64_t)round, group->rank + 1);
        int n_messages = 0;
        case_arena_reset(&arena);
        LSI_TRY(post_all(&arena, &d, f, &n_messages));
        for (int i = 0; i < N_AT_ONCE; i++) works[i] = f->cases[i].work;
        memcpy(works + N_AT_ONCE, f->messages, (size_t)n_messages * sizeof works[0]);
        LSI_TRY(wait_in_any_order(works, N_AT_ONCE + n_messages, &mine));
        for (int i = 0; i < N_AT_ONCE; i++) LSI_TRY(case_check(&f->cases[i]));
        for (int m = 0; m < N_AT_ONCE / 4; m++)
            RANK_CHECK(f->received[m] % 1000 == m, "message %d: %lld", m,
                       (long long)f->received[m]);
    }
    free(f);
    case_arena_close(&arena);
    return LS_OK;
}

static void a_thousand_works_complete_in_any_order(void **state) {
    (void)state;
    rank_heap_bytes = 4 * RANK_HEAP_BYTES;
    for (const int *n = rank_counts; *n; n++) {
        if (SANITIZED && *n > 3) continue;
        if (*n <= 5) assert_ok(run_ranks(RANKS_AS_THREADS, *n, thousand_works, NULL));
        assert_ok(run_ranks(RANKS_AS_PROCESSES, *n, thousand_works, NULL));
    }
    rank_heap_bytes = RANK_HEAP_BYTES;
}

/* ---- random programs ---- */

enum { N_STEPS = SANITIZED ? 120 : 400, MOST_IN_FLIGHT = 24, MESSAGE_ELEMS = 20000 };

typedef struct player {
    case_arena arena;
    dice all, mine;
    posted_case open[MOST_IN_FLIGHT];
    int n_open;
} player;

/* What a rank does between its calls. */
static ls_status dawdle(player *p) {
    int done = 0;
    struct timespec nap = {.tv_nsec = throw(&p->mine, 300000)};
    switch (throw(&p->mine, 12)) {
    case 0: nanosleep(&nap, NULL); return LS_OK;
    case 1:
    case 2: sched_yield(); return LS_OK;
    case 3: return ls_group_progress(p->arena.group);
    case 4:
        return p->n_open ? ls_work_test(p->open[throw(&p->mine, p->n_open)].work, &done) : LS_OK;
    default: return LS_OK;
    }
}

static ls_status wait_for_all(player *p) {
    ls_work *works[MOST_IN_FLIGHT];
    for (int i = 0; i < p->n_open; i++) works[i] = p->open[i].work;
    LSI_TRY(wait_in_any_order(works, p->n_open, &p->mine));
    for (int i = 0; i < p->n_open; i++) LSI_TRY(case_check(&p->open[i]));
    p->n_open = 0;
    case_arena_reset(&p->arena);
    return LS_OK;
}

/* A collective, waited for at once or later. */
static ls_status play_call(player *p, bool async) {
    call_case c = throw_case(&p->all, p->arena.group, SANITIZED ? 3000 : 70000);
    posted_case now;
    if (async) {
        LSI_TRY(case_post(&p->arena, &c, true, &p->open[p->n_open]));
        p->n_open++;
        return LS_OK;
    }
    LSI_TRY(case_post(&p->arena, &c, false, &now));
    return case_check(&now);
}

/* A message between two ranks, or a batch in which everybody sends to some. */
static ls_status play_messages(player *p, bool batch) {
    static _Thread_local int out[MESSAGE_ELEMS], in[2][MESSAGE_ELEMS];
    ls_group *group = p->arena.group;
    int n = group->n_ranks, me = group->rank;
    int count = throw(&p->all, MESSAGE_ELEMS), shift = throw(&p->all, n), to = throw(&p->all, n);
    for (int i = 0; i < count; i++) out[i] = me * 65536 + i;
    memset(in, 0, sizeof in);
    if (batch) {
        LSI_TRY(ls_batch_begin(group));
        LSI_TRY(ls_send(group, out, count, LS_DTYPE_I32, (me + shift) % n, NULL));
        LSI_TRY(ls_send(group, out, count, LS_DTYPE_I32, (me + 1) % n, NULL));
        LSI_TRY(ls_recv(group, in[0], count, LS_DTYPE_I32, (me + n - shift) % n, NULL));
        LSI_TRY(ls_recv(group, in[1], count, LS_DTYPE_I32, (me + n - 1) % n, NULL));
        LSI_TRY(dawdle(p));
        LSI_TRY(ls_batch_end(group, NULL));
    } else {
        int from = (to + 1) % n;
        ls_work *work = NULL;
        if (me == from && n > 1) LSI_TRY(ls_send(group, out, count, LS_DTYPE_I32, to, NULL));
        if (me != to || n == 1) return LS_OK;
        LSI_TRY(ls_recv(group, in[0], count, LS_DTYPE_I32, from, &work));
        LSI_TRY(dawdle(p));
        LSI_TRY(ls_work_wait(work, -1));
        for (int i = 0; i < count; i++)
            RANK_CHECK(in[0][i] == from * 65536 + i, "message: element %d is %d", i, in[0][i]);
        return LS_OK;
    }
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < count; i++) {
            int from = (me + n - (k ? 1 : shift)) % n;
            RANK_CHECK(in[k][i] == from * 65536 + i, "batch: element %d from rank %d is %d", i,
                       from, in[k][i]);
        }
    return LS_OK;
}

static ls_status play_split(player *p) {
    ls_group *group = p->arena.group, *part = NULL;
    case_arena arena;
    int modulus = throw(&p->all, 3) + 1, sign = throw(&p->all, 2) ? 1 : -1;
    uint64_t seed = (uint64_t) throw(&p->all, 1 << 30);
    LSI_TRY(ls_group_split(group, group->rank % modulus, sign * group->rank, &part));
    LSI_TRY(case_arena_open(&arena, part, 4 << 20));
    dice d = dice_of(seed, group->rank % modulus);
    for (int i = 0; i < 5; i++) {
        call_case c = throw_case(&d, part, 3000);
        LSI_TRY(case_run(&arena, &c));
    }
    case_arena_close(&arena);
    ls_group_destroy(part);
    return LS_OK;
}

static ls_status play_step(player *p) {
    int what = throw(&p->all, 20);
    LSI_TRY(dawdle(p));
    if (p->n_open == MOST_IN_FLIGHT || what == 0) LSI_TRY(wait_for_all(p));
    if (what < 9) return play_call(p, true);
    /* What is waited for at once takes room in the arena until all is waited for. */
    if (p->arena.used[0] > ARENA_BYTES / 2) LSI_TRY(wait_for_all(p));
    if (what < 16) return play_call(p, false);
    if (what < 17) return ls_barrier(p->arena.group, NULL);
    if (what < 19) return play_messages(p, what == 17);
    return play_split(p);
}

static ls_status program(ls_group *group, void *context) {
    uint64_t seed = *(const uint64_t *)context;
    player *p = calloc(1, sizeof *p);
    p->all = dice_of(seed, 0);
    p->mine = dice_of(seed, group->rank + 1);
    ls_status status = case_arena_open(&p->arena, group, (size_t)ARENA_BYTES);
    for (int i = 0; i < N_STEPS && status == LS_OK; i++) {
        status = play_step(p);
        if (status != LS_OK)
            status = lsi_context(status, "LOCKSTEP_TEST_SEED=%llu, step %d",
                                 (unsigned long long)seed, i);
    }
    if (status == LS_OK) status = wait_for_all(p);
    if (status == LS_OK) case_arena_close(&p->arena);
    if (status == LS_OK) free(p);
    return status;
}

static void run_program(uint64_t seed) {
    static const int ranks[] = {2, 3, 4, 5, 6, 7, 8};
    int n = ranks[seed % (SANITIZED ? 3 : 7)];
    bool thread = seed / 7 % 3 == 2;
    if (thread) setenv("LOCKSTEP_PROGRESS", "thread", 1);
    ls_status status = run_ranks((rank_mode)(seed % 2), n, program, &seed);
    if (thread) unsetenv("LOCKSTEP_PROGRESS");
    if (status != LS_OK)
        fail_msg("program %llu (run it alone: LOCKSTEP_TEST_SEED=%llu): %s",
                 (unsigned long long)seed, (unsigned long long)seed, ls_last_message());
}

static void random_programs_are_right(void **state) {
    (void)state;
    const char *seed = getenv("LOCKSTEP_TEST_SEED"), *many = getenv("LOCKSTEP_TEST_PROGRAMS");
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 1;
    uint64_t n = many ? strtoull(many, NULL, 10) : seed ? 1 : SANITIZED ? 21 : 42;
    for (uint64_t i = 0; i < n; i++) run_program(first + i);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_works_complete_in_any_order),
        cmocka_unit_test(random_programs_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
