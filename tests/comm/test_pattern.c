/* Patterns without processes. All ranks' steps are replayed by the strictest rules of pattern.h: a
 * message goes over only when its sender and its receiver are both in the step that names the
 * other. What parts hold is symbolic: a number for each input and for each pair combined, the same
 * for the same expression, so that equal numbers mean equal bits. Three clocks run along, on which
 * only messages, only bytes or only combining take time; cost() is held against them. */
#include "harness/harness.h"

#include <stdio.h>
#include <string.h>

#include "comm/order.h"
#include "comm/pattern/pattern.h"

enum { MAX_N = 64, MAX_PARTS = 1024, UNDEFINED = -1, N_CLOCKS = 3 };

/* ---- symbolic values: 0 … MAX_N^2 - 1 are inputs, the rest pairs ---- */

enum { N_LEAVES = MAX_N * MAX_N, MAX_PAIRS = 1 << 13, N_BUCKETS = 1 << 14 };

typedef struct pair {
    int left, right;
    uint64_t ranks;
    bool is_in_order; /* all ranks on the left are below all on the right, here and below */
} pair;

static pair pairs[MAX_PAIRS];
static int bucket[N_BUCKETS], n_pairs;

static void forget_values(void) {
    n_pairs = 0;
    memset(bucket, 0, sizeof bucket);
}

static uint64_t ranks_in(int value) {
    return value < N_LEAVES ? UINT64_C(1) << value : pairs[value - N_LEAVES].ranks;
}

static bool is_in_order(int value) {
    return value < N_LEAVES || pairs[value - N_LEAVES].is_in_order;
}

static pair pair_of(int left, int right) {
    uint64_t l = ranks_in(left), r = ranks_in(right);
    bool below = l && r && 63 - __builtin_clzll(l) < __builtin_ctzll(r);
    return (pair){left, right, l | r, below && is_in_order(left) && is_in_order(right)};
}

/* op(left, right); the same number for the same pair. UNDEFINED if they share a rank. */
static int combined(int left, int right) {
    if (left < 0 || right < 0 || (ranks_in(left) & ranks_in(right))) return UNDEFINED;
    uint64_t hash = ((uint64_t)left << 32 | (unsigned)right) * UINT64_C(0x9E3779B97F4A7C15);
    for (uint64_t i = hash >> 50;; i = (i + 1) % N_BUCKETS) {
        if (bucket[i] == 0) {
            assert_true(n_pairs < MAX_PAIRS);
            pairs[n_pairs] = pair_of(left, right);
            bucket[i] = ++n_pairs;
            return N_LEAVES + n_pairs - 1;
        }
        const pair *known = &pairs[bucket[i] - 1];
        if (known->left == left && known->right == right) return N_LEAVES + bucket[i] - 1;
    }
}

static int default_tree(int first, int n) {
    if (n == 1) return first;
    int split = (int)lsi_order_split(n);
    return combined(default_tree(first, split), default_tree(first + split, n - split));
}

/* ---- replay ---- */

typedef struct runner {
    int input[MAX_PARTS], output[MAX_PARTS]; /* the working buffer, twice for all-to-all only */
    int outbox[MAX_PARTS], inbox[MAX_PARTS]; /* of the current step */
    int step, n_steps;
    lsi_step now;
    bool has_sent, has_received;
    double began[N_CLOCKS], ended[N_CLOCKS]; /* the current step; its end so far */
    int n_sent, n_received;                  /* parts, in all */
    int scratch;                             /* parts of the largest message combined */
} runner;

typedef struct replay {
    const lsi_pattern *pattern;
    lsi_pattern_case c;
    int n_parts;
    runner rank[MAX_N];
    double time[N_CLOCKS];
} replay;

static replay the_replay;

static const char *name_of(const replay *r) {
    static char text[160];
    snprintf(text, sizeof text, "%s, %s, n %d, root %d, local %d", r->pattern->name,
             lsi_call_kind_name(r->c.kind), r->c.n, r->c.root, r->c.local);
    return text;
}

#define expect(r, condition, ...)                                                                  \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            print_error("%s: %s: ", name_of(r), #condition);                                       \
            print_error(__VA_ARGS__);                                                              \
            fail();                                                                                \
        }                                                                                          \
    } while (0)

static bool is_all_to_all(const replay *r) {
    return r->c.kind == LSI_CALL_ALL_TO_ALL;
}

static int *received_into(replay *r, int rank) {
    return is_all_to_all(r) ? r->rank[rank].output : r->rank[rank].input;
}

static int value_before(const lsi_pattern_case *c, int rank, int part) {
    switch (c->kind) {
    case LSI_CALL_ALL_REDUCE:
    case LSI_CALL_REDUCE:
    case LSI_CALL_REDUCE_SCATTER: return rank;
    case LSI_CALL_BROADCAST:
    case LSI_CALL_SCATTER: return rank == c->root ? part : UNDEFINED;
    case LSI_CALL_ALL_TO_ALL: return rank * MAX_N + part;
    default: return part == rank ? part : UNDEFINED;
    }
}

/* Checks one step against the rules of pattern.h and fills the outbox. */
static void enter_step(replay *r, int rank) {
    runner *self = &r->rank[rank];
    if (self->step == self->n_steps) return;
    self->now = r->pattern->step(&r->c, rank, self->step);
    self->has_sent = self->has_received = false;
    memcpy(self->began, self->ended, sizeof self->began);
    lsi_step s = self->now;
    expect(r, s.to >= -1 && s.to < r->c.n && s.to != rank, "rank %d step %d\n", rank, self->step);
    expect(r, s.from >= -1 && s.from < r->c.n && s.from != rank, "rank %d\n", rank);
    expect(r, (s.to >= 0) == (s.sent.n > 0) && (s.from >= 0) == (s.received.n > 0),
           "rank %d step %d: message without parts or parts without\n", rank, self->step);
    expect(r, s.sent.n <= 0 || (s.sent.begin >= 0 && s.sent.begin + s.sent.n <= r->n_parts),
           "rank %d step %d\n", rank, self->step);
    expect(r,
           s.received.n <= 0 ||
               (s.received.begin >= 0 && s.received.begin + s.received.n <= r->n_parts),
           "rank %d step %d\n", rank, self->step);
    bool overlap = s.to >= 0 && s.from >= 0 && s.sent.begin < s.received.begin + s.received.n &&
                   s.received.begin < s.sent.begin + s.sent.n;
    expect(r, !overlap || s.use != LSI_REPLACE || is_all_to_all(r), "rank %d step %d\n", rank,
           self->step);
    for (int i = 0; s.to >= 0 && i < s.sent.n; i++) {
        self->outbox[i] = self->input[s.sent.begin + i];
        expect(r, self->outbox[i] != UNDEFINED, "rank %d step %d sends part %d\n", rank, self->step,
               s.sent.begin + i);
    }
}

static double latest(double a, double b) {
    return a > b ? a : b;
}

static void transfer(replay *r, int from, int to) {
    runner *a = &r->rank[from], *b = &r->rank[to];
    int n = a->now.sent.n;
    expect(r, n == b->now.received.n, "rank %d step %d to rank %d step %d\n", from, a->step, to,
           b->step);
    if (is_all_to_all(r))
        expect(r, a->now.sent.begin == to && b->now.received.begin == from, "part\n");
    else
        expect(r, a->now.sent.begin == b->now.received.begin, "rank %d step %d to %d\n", from,
               a->step, to);
    memcpy(b->inbox, a->outbox, (size_t)n * sizeof(int));
    a->has_sent = b->has_received = true;
    a->n_sent += n;
    b->n_received += n;
    int combining = b->now.use == LSI_REPLACE ? 0 : n;
    if (combining > b->scratch) b->scratch = combining;
    const double sending[N_CLOCKS] = {1, n, 0}, arriving[N_CLOCKS] = {1, n, combining};
    for (int k = 0; k < N_CLOCKS; k++) {
        double start = latest(a->began[k], b->began[k]);
        a->ended[k] = latest(a->ended[k], start + sending[k]);
        b->ended[k] = latest(b->ended[k], start + arriving[k]);
    }
}

static void leave_step(replay *r, int rank) {
    runner *self = &r->rank[rank];
    lsi_parts received = self->now.received;
    int *buffer = received_into(r, rank);
    for (int i = 0; self->now.from >= 0 && i < received.n; i++) {
        int *part = &buffer[received.begin + i], arrived = self->inbox[i];
        switch (self->now.use) {
        case LSI_REPLACE: *part = arrived; break;
        case LSI_COMBINE_RIGHT: *part = combined(*part, arrived); break;
        case LSI_COMBINE_LEFT: *part = combined(arrived, *part); break;
        }
        expect(r, *part != UNDEFINED, "rank %d step %d part %d: undefined or twice the same rank\n",
               rank, self->step, received.begin + i);
    }
    self->step++;
    enter_step(r, rank);
}

/* Everything rank can do now. */
static bool advance(replay *r, int rank) {
    runner *self = &r->rank[rank];
    bool moved = false;
    while (self->step < self->n_steps) {
        int to = self->now.to;
        if (to >= 0 && !self->has_sent) {
            runner *peer = &r->rank[to];
            if (peer->step == peer->n_steps || peer->now.from != rank || peer->has_received)
                return moved;
            transfer(r, rank, to);
            moved = true;
        }
        if (self->now.from >= 0 && !self->has_received) return moved;
        leave_step(r, rank);
        moved = true;
    }
    return moved;
}

static replay *replay_case(const lsi_pattern *pattern, lsi_pattern_case c) {
    replay *r = &the_replay;
    r->pattern = pattern;
    r->c = c;
    r->n_parts = pattern->n_parts(&c);
    expect(r, r->n_parts >= 1 && r->n_parts <= MAX_PARTS, "%d parts\n", r->n_parts);
    for (int rank = 0; rank < c.n; rank++) {
        runner *self = &r->rank[rank];
        self->step = self->n_sent = self->n_received = 0;
        self->n_steps = pattern->n_steps(&c, rank);
        self->scratch = 0;
        memset(self->ended, 0, sizeof self->ended);
        for (int p = 0; p < r->n_parts; p++) {
            self->input[p] = value_before(&c, rank, p);
            self->output[p] = UNDEFINED;
        }
        expect(r, self->n_steps >= 0, "rank %d\n", rank);
        enter_step(r, rank);
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int rank = 0; rank < c.n; rank++) moved |= advance(r, rank);
    }
    for (int k = 0; k < N_CLOCKS; k++) r->time[k] = 0;
    for (int rank = 0; rank < c.n; rank++) {
        const runner *self = &r->rank[rank];
        expect(r, self->step == self->n_steps, "deadlock: rank %d in step %d of %d\n", rank,
               self->step, self->n_steps);
        for (int k = 0; k < N_CLOCKS; k++) r->time[k] = latest(r->time[k], self->ended[k]);
    }
    return r;
}

/* ---- all cases ---- */

static bool combines(int kind) {
    return kind == LSI_CALL_ALL_REDUCE || kind == LSI_CALL_REDUCE ||
           kind == LSI_CALL_REDUCE_SCATTER;
}

static bool has_root(int kind) {
    return kind == LSI_CALL_REDUCE || kind == LSI_CALL_BROADCAST || kind == LSI_CALL_GATHER ||
           kind == LSI_CALL_SCATTER;
}

static bool has_part_per_rank(int kind) {
    return kind == LSI_CALL_REDUCE_SCATTER || kind == LSI_CALL_ALL_GATHER ||
           kind == LSI_CALL_GATHER || kind == LSI_CALL_SCATTER || kind == LSI_CALL_ALL_TO_ALL;
}

/* Sizes of groups for which every root and every number of ranks per node is tried. */
static bool is_tried_fully(int n) {
    return n <= 17 || n == 32 || n == 64;
}

static bool is_tried(const lsi_pattern_case *c) {
    if (is_tried_fully(c->n)) return true;
    return (c->root == 0 || c->root == c->n / 2 || c->root == c->n - 1) &&
           (c->local == 1 || c->local == 4 || c->local == 7 || c->local == c->n);
}

static void for_all_cases(void (*body)(const lsi_pattern *pattern, const lsi_pattern_case *c)) {
    for (int i = 0; lsi_patterns[i]; i++)
        for (int kind = 0; kind < LSI_CALL_N_KINDS; kind++)
            for (int n = 1; n <= MAX_N; n++) {
                lsi_pattern_case c = {.kind = kind, .n = n};
                bool two_level = lsi_patterns[i] == &lsi_pattern_two_level;
                int n_locals = two_level ? n + 1 : 1, n_roots = has_root(kind) ? n : 1;
                for (c.local = 1; c.local <= n_locals; c.local++)
                    for (c.root = 0; c.root < n_roots; c.root++)
                        if (is_tried(&c) && lsi_patterns[i]->supports(&c))
                            body(lsi_patterns[i], &c);
            }
}

static bool part_is_wanted(const lsi_pattern_case *c, int rank, int part) {
    switch (c->kind) {
    case LSI_CALL_REDUCE:
    case LSI_CALL_GATHER: return rank == c->root;
    case LSI_CALL_REDUCE_SCATTER:
    case LSI_CALL_SCATTER: return part == rank;
    case LSI_CALL_ALL_TO_ALL: return part != rank;
    default: return true;
    }
}

static void check_result(const lsi_pattern *pattern, const lsi_pattern_case *c) {
    forget_values();
    replay *r = replay_case(pattern, *c);
    uint64_t everyone = c->n == 64 ? UINT64_MAX : (UINT64_C(1) << c->n) - 1;
    int tree = default_tree(0, c->n);
    bool is_default = true;
    if (has_part_per_rank(c->kind)) expect(r, r->n_parts == c->n, "%d parts\n", r->n_parts);
    for (int part = 0; part < r->n_parts; part++) {
        int first = UNDEFINED;
        for (int rank = 0; rank < c->n; rank++) {
            if (!part_is_wanted(c, rank, part)) continue;
            int value = received_into(r, rank)[part];
            if (!combines(c->kind)) {
                int moved = is_all_to_all(r) ? part * MAX_N + rank : part;
                expect(r, value == moved, "rank %d part %d\n", rank, part);
                continue;
            }
            expect(r, ranks_in(value) == everyone, "rank %d part %d\n", rank, part);
            if (first == UNDEFINED) first = value;
            expect(r, value == first, "rank %d part %d: other bits\n", rank, part);
            is_default &= value == tree;
            if (pattern->keeps_order(c)) expect(r, is_in_order(value), "rank %d\n", rank);
        }
    }
    expect(r, pattern->keeps_order(c) == is_default, "default tree: %d\n", is_default);
}

static void every_case_ends_with_right_result_in_order_it_promises(void **state) {
    (void)state;
    for_all_cases(check_result);
}

/* ---- cost ---- */

/* How far cost() may be above the replayed times. It is exact but for these rows, which are for
 * powers of two (two-level: of nodes and of ranks per node) and for other numbers. */
static const struct {
    const lsi_pattern *pattern;
    int kind;
    double factor_power, factor_other;
} looseness[] = {
    {&lsi_pattern_halving, LSI_CALL_ALL_REDUCE, 1, 1.3},
    {&lsi_pattern_halving, LSI_CALL_REDUCE_SCATTER, 1, 1.6},
    {&lsi_pattern_doubling, LSI_CALL_ALL_GATHER, 1, 1.8},
    {&lsi_pattern_double_tree, LSI_CALL_ALL_REDUCE, 1, 1.06},
    {&lsi_pattern_double_tree, LSI_CALL_REDUCE, 1, 1.06},
    {&lsi_pattern_double_tree, LSI_CALL_BROADCAST, 1, 1.06},
    {&lsi_pattern_two_level, LSI_CALL_ALL_REDUCE, 1, 1.5},
    {&lsi_pattern_two_level, LSI_CALL_ALL_GATHER, 1, 1.8},
};

static bool is_regular(const lsi_pattern *pattern, const lsi_pattern_case *c) {
    if (!lsi_is_power_of_two(c->n)) return false;
    return pattern != &lsi_pattern_two_level || lsi_is_power_of_two(c->local) || c->local > c->n;
}

static double factor_of(const lsi_pattern *pattern, const lsi_pattern_case *c) {
    for (size_t i = 0; i < sizeof looseness / sizeof looseness[0]; i++)
        if (looseness[i].pattern == pattern && looseness[i].kind == c->kind)
            return is_regular(pattern, c) ? looseness[i].factor_power : looseness[i].factor_other;
    return 1;
}

static void check_cost(const lsi_pattern *pattern, const lsi_pattern_case *c) {
    static const char *const clock[N_CLOCKS] = {"messages", "bytes", "combined bytes"};
    const double tiny = 1e-9;
    forget_values();
    replay *r = replay_case(pattern, *c);
    lsi_pattern_cost cost = pattern->cost(c);
    double parts = r->n_parts;
    const double stated[N_CLOCKS] = {cost.messages, cost.bytes * parts,
                                     cost.combined_bytes * parts};
    double factor = factor_of(pattern, c);
    for (int k = 0; k < N_CLOCKS; k++) {
        double found = r->time[k];
        expect(r, stated[k] >= found - tiny, "%s: %g stated, %g found\n", clock[k], stated[k],
               found);
        expect(r, stated[k] <= factor * found + tiny, "%s: %g stated, %g found\n", clock[k],
               stated[k], found);
    }
    for (int rank = 0; rank < c->n; rank++) {
        expect(r, r->rank[rank].n_sent <= stated[1] + tiny, "rank %d\n", rank);
        expect(r, r->rank[rank].n_received <= stated[1] + tiny, "rank %d\n", rank);
    }
}

static void cost_is_longest_path_of_replay(void **state) {
    (void)state;
    for_all_cases(check_cost);
}

/* ---- what the heads of the files say ---- */

/* Shares of S, at most: sent by any rank, and the largest message that is combined. */
static const struct {
    const lsi_pattern *pattern;
    int kind;
    double sent, scratch;
} loads[] = {
    {&lsi_pattern_ring, LSI_CALL_ALL_REDUCE, 2, 0},
    {&lsi_pattern_ring, LSI_CALL_REDUCE_SCATTER, 1, 0},
    {&lsi_pattern_ring, LSI_CALL_ALL_GATHER, 1, 0},
    {&lsi_pattern_ring, LSI_CALL_BROADCAST, 1, 0},
    {&lsi_pattern_halving, LSI_CALL_ALL_REDUCE, 2, 0.5},
    {&lsi_pattern_halving, LSI_CALL_REDUCE_SCATTER, 1, 0.5},
    {&lsi_pattern_doubling, LSI_CALL_ALL_GATHER, 1, 0},
    {&lsi_pattern_binomial, LSI_CALL_REDUCE, 1, 1},
    {&lsi_pattern_double_tree, LSI_CALL_ALL_REDUCE, 2, 0},
    {&lsi_pattern_double_tree, LSI_CALL_REDUCE, 1, 0},
    {&lsi_pattern_double_tree, LSI_CALL_BROADCAST, 1, 0},
    {&lsi_pattern_pairwise, LSI_CALL_ALL_TO_ALL, 1, 0},
    {&lsi_pattern_pairwise, LSI_CALL_REDUCE_SCATTER, 1, 0},
    {&lsi_pattern_pairwise, LSI_CALL_ALL_GATHER, 1, 0},
};

static void check_loads(const lsi_pattern *pattern, const lsi_pattern_case *c) {
    for (size_t i = 0; i < sizeof loads / sizeof loads[0]; i++) {
        if (loads[i].pattern != pattern || loads[i].kind != c->kind) continue;
        forget_values();
        replay *r = replay_case(pattern, *c);
        for (int rank = 0; rank < c->n; rank++) {
            const runner *self = &r->rank[rank];
            expect(r, self->n_sent <= loads[i].sent * r->n_parts, "rank %d: %d of %d\n", rank,
                   self->n_sent, r->n_parts);
            /* One part, or the share rounded up to whole parts. */
            expect(r, self->scratch < loads[i].scratch * r->n_parts + 1 || self->scratch == 1,
                   "rank %d: %d of %d\n", rank, self->scratch, r->n_parts);
        }
    }
}

static void ranks_send_and_keep_no_more_than_heads_say(void **state) {
    (void)state;
    for_all_cases(check_loads);
}

/* "0>1:3" is: rank 0 sends part 3 to rank 1; "0>1:2-3": parts 2 and 3. */
static void print_step(const lsi_pattern *pattern, const lsi_pattern_case *c, int step, char *text,
                       size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (int rank = 0; rank < c->n; rank++) {
        if (step >= pattern->n_steps(c, rank)) continue;
        lsi_step s = pattern->step(c, rank, step);
        if (s.to < 0) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%d>%d:%d", used ? " " : "", rank,
                                 s.to, s.sent.begin);
        if (s.sent.n > 1)
            used += (size_t)snprintf(text + used, size - used, "-%d", s.sent.begin + s.sent.n - 1);
    }
}

static void pictures_show_what_steps_do(void **state) {
    (void)state;
    const struct {
        const lsi_pattern *pattern;
        lsi_pattern_case c;
        int step;
        const char *sent;
    } rows[] = {
        {&lsi_pattern_ring, {LSI_CALL_REDUCE_SCATTER, 4, 0, 0}, 0, "0>1:3 1>2:0 2>3:1 3>0:2"},
        {&lsi_pattern_ring, {LSI_CALL_REDUCE_SCATTER, 4, 0, 0}, 2, "0>1:1 1>2:2 2>3:3 3>0:0"},
        {&lsi_pattern_ring, {LSI_CALL_ALL_REDUCE, 4, 0, 0}, 3, "0>1:0 1>2:1 2>3:2 3>0:3"},
        {&lsi_pattern_halving,
         {LSI_CALL_ALL_REDUCE, 4, 0, 0},
         0,
         "0>1:2-3 1>0:0-1 2>3:2-3 3>2:0-1"},
        {&lsi_pattern_halving, {LSI_CALL_ALL_REDUCE, 4, 0, 0}, 1, "0>2:1 1>3:3 2>0:0 3>1:2"},
        {&lsi_pattern_halving, {LSI_CALL_ALL_REDUCE, 4, 0, 0}, 2, "0>2:0 1>3:2 2>0:1 3>1:3"},
        {&lsi_pattern_halving,
         {LSI_CALL_ALL_REDUCE, 4, 0, 0},
         3,
         "0>1:0-1 1>0:2-3 2>3:0-1 3>2:2-3"},
        {&lsi_pattern_halving, {LSI_CALL_REDUCE_SCATTER, 4, 0, 0}, 2, "1>2:2 2>1:1"},
        {&lsi_pattern_doubling, {LSI_CALL_ALL_REDUCE, 4, 0, 0}, 1, "0>2:0 1>3:0 2>0:0 3>1:0"},
        {&lsi_pattern_doubling,
         {LSI_CALL_ALL_GATHER, 4, 0, 0},
         1,
         "0>2:0-1 1>3:0-1 2>0:2-3 3>1:2-3"},
        {&lsi_pattern_doubling, {LSI_CALL_ALL_REDUCE, 6, 0, 0}, 3, "0>2:0 1>3:0"},
        {&lsi_pattern_binomial, {LSI_CALL_REDUCE, 4, 0, 0}, 0, "1>0:0 3>2:0"},
        {&lsi_pattern_binomial, {LSI_CALL_REDUCE, 4, 0, 0}, 1, "2>0:0"},
        {&lsi_pattern_binomial, {LSI_CALL_REDUCE, 4, 2, 0}, 1, "0>2:0"},
        {&lsi_pattern_binomial, {LSI_CALL_GATHER, 4, 0, 0}, 1, "2>0:2-3"},
        {&lsi_pattern_double_tree, {LSI_CALL_BROADCAST, 4, 0, 0}, 0, "0>2:0"},
        {&lsi_pattern_two_level,
         {LSI_CALL_ALL_REDUCE, 4, 0, 2},
         0,
         "0>1:2-3 1>0:0-1 2>3:2-3 3>2:0-1"},
        {&lsi_pattern_two_level, {LSI_CALL_ALL_REDUCE, 4, 0, 2}, 1, "0>2:1 1>3:3 2>0:0 3>1:2"},
        {&lsi_pattern_pairwise, {LSI_CALL_ALL_TO_ALL, 4, 0, 0}, 0, "0>1:1 1>2:2 2>3:3 3>0:0"},
        {&lsi_pattern_pairwise, {LSI_CALL_ALL_TO_ALL, 4, 0, 0}, 1, "0>2:2 1>3:3 2>0:0 3>1:1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[200];
        print_step(rows[i].pattern, &rows[i].c, rows[i].step, text, sizeof text);
        assert_string_equal(text, rows[i].sent);
    }
}

/* Who sends to whom in each of the two trees, whatever the step. */
static void double_tree_of_four_is_that_of_picture(void **state) {
    (void)state;
    const lsi_pattern *pattern = &lsi_pattern_double_tree;
    lsi_pattern_case c = {.kind = LSI_CALL_BROADCAST, .n = 4};
    const int parent[2][4] = {{-1, 2, 0, 2}, {-1, 0, 1, 1}};
    for (int rank = 0; rank < 4; rank++)
        for (int step = 0; step < pattern->n_steps(&c, rank); step++) {
            lsi_step s = pattern->step(&c, rank, step);
            if (s.from >= 0) assert_int_equal(s.from, parent[s.received.begin % 2][rank]);
        }
}

static void costs_are_those_of_formulas(void **state) {
    (void)state;
    const struct {
        const lsi_pattern *pattern;
        lsi_pattern_case c;
        lsi_pattern_cost cost;
    } rows[] = {
        {&lsi_pattern_ring, {LSI_CALL_ALL_REDUCE, 4, 0, 0}, {6, 1.5, 0.75}},
        {&lsi_pattern_ring, {LSI_CALL_ALL_GATHER, 5, 0, 0}, {4, 0.8, 0}},
        {&lsi_pattern_ring, {LSI_CALL_BROADCAST, 4, 1, 0}, {18, 1.125, 0}},
        {&lsi_pattern_halving, {LSI_CALL_ALL_REDUCE, 8, 0, 0}, {6, 1.75, 0.875}},
        {&lsi_pattern_halving, {LSI_CALL_ALL_REDUCE, 3, 0, 0}, {4, 2, 1.5}},
        {&lsi_pattern_halving, {LSI_CALL_ALL_REDUCE, 5, 0, 0}, {8, 2.5, 1.75}},
        {&lsi_pattern_halving, {LSI_CALL_ALL_REDUCE, 6, 0, 0}, {6, 2, 1.25}},
        {&lsi_pattern_halving, {LSI_CALL_ALL_REDUCE, 7, 0, 0}, {8, 3.5, 1.5}},
        {&lsi_pattern_halving, {LSI_CALL_REDUCE_SCATTER, 2, 0, 0}, {1, 0.5, 0.5}},
        {&lsi_pattern_halving, {LSI_CALL_REDUCE_SCATTER, 8, 0, 0}, {4, 1, 0.875}},
        {&lsi_pattern_doubling, {LSI_CALL_ALL_REDUCE, 8, 0, 0}, {3, 3, 3}},
        {&lsi_pattern_doubling, {LSI_CALL_ALL_REDUCE, 6, 0, 0}, {4, 4, 3}},
        {&lsi_pattern_doubling, {LSI_CALL_ALL_REDUCE, 7, 0, 0}, {5, 5, 3}},
        {&lsi_pattern_doubling, {LSI_CALL_ALL_GATHER, 8, 0, 0}, {3, 0.875, 0}},
        {&lsi_pattern_binomial, {LSI_CALL_ALL_REDUCE, 5, 0, 0}, {6, 6, 3}},
        {&lsi_pattern_binomial, {LSI_CALL_GATHER, 8, 5, 0}, {3, 0.875, 0}},
        {&lsi_pattern_binomial, {LSI_CALL_SCATTER, 5, 4, 0}, {3, 1.4, 0}},
        {&lsi_pattern_double_tree, {LSI_CALL_BROADCAST, 2, 0, 0}, {2, 1, 0}},
        {&lsi_pattern_two_level, {LSI_CALL_ALL_REDUCE, 8, 0, 4}, {6, 1.75, 0.875}},
        {&lsi_pattern_two_level, {LSI_CALL_BROADCAST, 8, 3, 4}, {3, 3, 0}},
        {&lsi_pattern_two_level, {LSI_CALL_ALL_GATHER, 8, 0, 4}, {5, 2.875, 0}},
        {&lsi_pattern_pairwise, {LSI_CALL_ALL_TO_ALL, 4, 0, 0}, {3, 0.75, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lsi_pattern_cost cost = rows[i].pattern->cost(&rows[i].c);
        const double found[] = {cost.messages, cost.bytes, cost.combined_bytes};
        const double expected[] = {rows[i].cost.messages, rows[i].cost.bytes,
                                   rows[i].cost.combined_bytes};
        for (int k = 0; k < N_CLOCKS; k++)
            if (found[k] < expected[k] - 1e-9 || found[k] > expected[k] + 1e-9)
                fail_msg("row %zu, %s: %g, expected %g", i, rows[i].pattern->name, found[k],
                         expected[k]);
    }
}

/* ---- table ---- */

static const struct {
    const char *name;
    unsigned kinds; /* a bit each */
} supported[] = {
#define KIND(name) (1u << LSI_CALL_##name)
    {"ring", KIND(ALL_REDUCE) | KIND(REDUCE_SCATTER) | KIND(ALL_GATHER) | KIND(BROADCAST)},
    {"halving", KIND(ALL_REDUCE) | KIND(REDUCE_SCATTER)},
    {"doubling", KIND(ALL_REDUCE) | KIND(ALL_GATHER)},
    {"binomial", KIND(ALL_REDUCE) | KIND(REDUCE) | KIND(BROADCAST) | KIND(GATHER) | KIND(SCATTER)},
    {"double-tree", KIND(ALL_REDUCE) | KIND(REDUCE) | KIND(BROADCAST)},
    {"two-level", KIND(ALL_REDUCE) | KIND(BROADCAST) | KIND(ALL_GATHER)},
    {"pairwise", KIND(ALL_TO_ALL) | KIND(REDUCE_SCATTER) | KIND(ALL_GATHER)},
#undef KIND
};

static void each_pattern_supports_its_collectives_for_any_n(void **state) {
    (void)state;
    int n_rows = (int)(sizeof supported / sizeof supported[0]), n_patterns = 0;
    while (lsi_patterns[n_patterns]) n_patterns++;
    assert_int_equal(n_patterns, n_rows);
    for (int i = 0; i < n_rows; i++) {
        const lsi_pattern *pattern = lsi_pattern_find(supported[i].name);
        assert_non_null(pattern);
        for (int kind = 0; kind < LSI_CALL_N_KINDS; kind++) {
            bool expected = supported[i].kinds >> kind & 1;
            for (int n = 1; n <= MAX_N; n++)
                assert_int_equal(pattern->supports(&(lsi_pattern_case){kind, n, 0, 1}), expected);
            assert_false(pattern->supports(&(lsi_pattern_case){kind, 0, 0, 1}));
            assert_false(pattern->supports(&(lsi_pattern_case){kind, -1, 0, 1}));
        }
    }
    for (int local = -1; local <= 0; local++)
        assert_false(
            lsi_pattern_two_level.supports(&(lsi_pattern_case){LSI_CALL_ALL_REDUCE, 4, 0, local}));
}

static void only_names_of_table_are_found(void **state) {
    (void)state;
    for (int i = 0; lsi_patterns[i]; i++)
        assert_ptr_equal(lsi_pattern_find(lsi_patterns[i]->name), lsi_patterns[i]);
    assert_null(lsi_pattern_find("torus"));
    assert_null(lsi_pattern_find("rin"));
    assert_null(lsi_pattern_find(""));
    assert_null(lsi_pattern_find(NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_ends_with_right_result_in_order_it_promises),
        cmocka_unit_test(cost_is_longest_path_of_replay),
        cmocka_unit_test(ranks_send_and_keep_no_more_than_heads_say),
        cmocka_unit_test(pictures_show_what_steps_do),
        cmocka_unit_test(double_tree_of_four_is_that_of_picture),
        cmocka_unit_test(costs_are_those_of_formulas),
        cmocka_unit_test(each_pattern_supports_its_collectives_for_any_n),
        cmocka_unit_test(only_names_of_table_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
