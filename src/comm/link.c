/* The artificial link: LOCKSTEP_LINK, what a call costs on it, and who has it. */
#include "comm/link.h"

#include <string.h>

#include "base/clock.h"
#include "comm/collective/collective.h"

/* ---- LOCKSTEP_LINK ---- */

/* Within these limits no time overflows. */
typedef struct setting {
    const char *name;
    double least, most;
} setting;

enum { LATENCY_US, GB_PER_S, N_SETTINGS };
static const setting settings[N_SETTINGS] = {
    [LATENCY_US] = {"latency_us", 0, 1e7},
    [GB_PER_S] = {"gb_per_s", 1e-6, 1e6},
};

/* Digits, with a point between or behind them: the same in every locale. */
static bool read_number(const char *text, size_t length, double *number) {
    double value = 0, place = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '.' && place == 0 && i > 0) {
            place = 1;
            continue;
        }
        if (text[i] < '0' || text[i] > '9') return false;
        value = value * 10 + (text[i] - '0');
        place *= 10;
    }
    *number = place > 1 ? value / place : value;
    return length > 0;
}

static int find_setting(const char *text, size_t length) {
    for (int i = 0; i < N_SETTINGS; i++)
        if (strlen(settings[i].name) == length && memcmp(settings[i].name, text, length) == 0)
            return i;
    return -1;
}

/* One NAME=X. value[i] < 0: not said yet. */
static ls_status read_entry(const char *text, size_t length, double value[N_SETTINGS]) {
    const char *equals = memchr(text, '=', length);
    size_t name_length = equals ? (size_t)(equals - text) : length;
    int i = find_setting(text, name_length);
    if (!equals || i < 0)
        return lsi_fail(LS_ERR_USAGE,
                        "LOCKSTEP_LINK: '%.*s': expected latency_us=X or gb_per_s=X, with a comma "
                        "between the two",
                        (int)length, text);
    if (value[i] >= 0)
        return lsi_fail(LS_ERR_USAGE, "LOCKSTEP_LINK: '%.*s': %s is there twice", (int)length, text,
                        settings[i].name);
    const setting *s = &settings[i];
    if (!read_number(equals + 1, length - name_length - 1, &value[i]) || value[i] < s->least ||
        value[i] > s->most)
        return lsi_fail(LS_ERR_USAGE, "LOCKSTEP_LINK: '%.*s': expected a number from %g to %.0f",
                        (int)length, text, s->least, s->most);
    return LS_OK;
}

ls_status lsi_link_parse(const char *text, lsi_link *link, bool *is_set) {
    double value[N_SETTINGS] = {-1, -1};
    bool found = text && *text, more = found;
    while (more) {
        size_t length = strcspn(text, ",");
        LSI_TRY(read_entry(text, length, value));
        more = text[length] == ',';
        text += length + 1;
    }
    *link = (lsi_link){.latency_ns = value[LATENCY_US] > 0 ? value[LATENCY_US] * 1e3 : 0,
                       .ns_per_byte = value[GB_PER_S] > 0 ? 1 / value[GB_PER_S] : 0};
    *is_set = found;
    return LS_OK;
}

/* ---- costs ---- */

/* Bytes that the busiest rank sends or gets, in those of the larger buffer: so many times, and so
 * many times (n - 1) / n. */
static const struct {
    int whole, shares;
} traffic[LSI_CALL_N_KINDS] = {
    [LSI_CALL_BROADCAST] = {1, 0},      [LSI_CALL_ALL_REDUCE] = {0, 2}, [LSI_CALL_REDUCE] = {1, 0},
    [LSI_CALL_REDUCE_SCATTER] = {0, 1}, [LSI_CALL_ALL_GATHER] = {0, 1}, [LSI_CALL_GATHER] = {0, 1},
    [LSI_CALL_SCATTER] = {0, 1},        [LSI_CALL_ALL_TO_ALL] = {0, 1}, [LSI_CALL_SEND] = {1, 0},
    [LSI_CALL_RECV] = {1, 0},
};

int64_t lsi_link_cost_ns(const lsi_link *link, int kind, int n_ranks, int64_t bytes) {
    double others = (double)(n_ranks - 1) / n_ranks;
    double sent = (double)bytes * (traffic[kind].whole + traffic[kind].shares * others);
    return (int64_t)(link->latency_ns + sent * link->ns_per_byte);
}

static int64_t bytes_of(const ls_work *work) {
    if (work->what == LSI_WORK_MESSAGE)
        return work->call->count * (int64_t)ls_dtype_bytes((ls_dtype)work->call->dtype);
    lsi_choice_case c;
    lsi_work_choice_case(work, work->call, &c);
    return c.bytes;
}

/* ---- who has it ---- */

void lsi_link_take(ls_work *work) {
    lsi_link *link = &work->group->link;
    int kind = work->call->kind;
    bool sends = kind != LSI_CALL_RECV, receives = kind != LSI_CALL_SEND;
    int64_t begin_ns = lsi_now_ns();
    if (sends && begin_ns < link->sends_until_ns) begin_ns = link->sends_until_ns;
    if (receives && begin_ns < link->receives_until_ns) begin_ns = link->receives_until_ns;
    work->over_ns = begin_ns + lsi_link_cost_ns(link, kind, work->group->n_ranks, bytes_of(work));
    if (sends) link->sends_until_ns = work->over_ns;
    if (receives) link->receives_until_ns = work->over_ns;
}

bool lsi_link_holds(const ls_work *work) {
    return work->over_ns > lsi_now_ns();
}

/* The first end after since_ns. Of calls in a row the first is over first, and so is the first
 * message of a queue. */
static int64_t first_end_ns(const ls_group *group, int64_t since_ns) {
    int64_t first = INT64_MAX;
    for (uint64_t i = group->n_completed; i < group->n_started && first == INT64_MAX; i++) {
        const ls_work *work = lsi_work_at((ls_group *)group, i);
        if (work->over_ns > since_ns) first = work->over_ns;
    }
    for (int direction = 0; direction < LSI_N_DIRECTIONS && group->n_messages_left; direction++)
        for (int peer = 0; peer < group->n_ranks; peer++) {
            const ls_work *work = group->queue[direction][peer];
            if (work && work->over_ns > since_ns && work->over_ns < first) first = work->over_ns;
        }
    return first;
}

int64_t lsi_link_sleep_ns(const ls_group *group, int64_t since_ns, int64_t most_ns) {
    int64_t first = first_end_ns(group, since_ns);
    if (first == INT64_MAX) return most_ns;
    int64_t left_ns = first - lsi_now_ns();
    return left_ns < most_ns ? left_ns : most_ns;
}
