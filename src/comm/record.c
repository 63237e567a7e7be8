/* What the recorder's bytes mean: which calls ranks have made, and where they first differ.
 *
 * [Note: whole records] A rank writes its records without locks while we copy them. The record of
 * call k is written again by call k + LSI_RECORDS, and a rank posts at most LSI_CALLS calls beyond
 * those it has announced. So with P calls announced after the copy was made, the records of calls
 * from P + LSI_CALLS - LSI_RECORDS + 1 on were whole in it. Records of calls that are not announced
 * yet count when two looks find the same.
 *
 * A snapshot is not of one moment: ranks are copied one after the other, so in a run that goes on a
 * later rank may seem a few calls ahead. */
#include <stdarg.h>
#include <string.h>

#include "base/mem.h"
#include "comm/record_look.h"

/* Counters beyond this come from no run: 10,000 calls a second for a hundred thousand years. */
static const uint64_t MAX_CALLS = UINT64_C(1) << 55;

/* ---- taking a group ---- */

static ls_status bad_group(const lsi_record_source *source, int row, const char *what) {
    return lsi_fail(LS_ERR_FORMAT,
                    "%s: group in row %d of the table: %s is impossible; it is being made or "
                    "removed, or the record is damaged",
                    source->name, row, what);
}

static ls_status check_members(const lsi_record_source *source, int row, int n_world,
                               const lsi_group_control *control, int n) {
    bool seen[LSI_MAX_RANKS] = {false};
    if (control->number < 0) return bad_group(source, row, "its number");
    for (int r = 0; r < n; r++) {
        int member = control->member[r];
        if (member < 0 || member >= n_world || seen[member])
            return bad_group(source, row, "its list of members");
        seen[member] = true;
    }
    return LS_OK;
}

/* Copies the control data of n ranks; slots and blocks behind them are of no interest. */
static ls_status copy_group(const lsi_record_source *source, uint64_t offset, int n,
                            lsi_group_control **copy) {
    size_t bytes = sizeof(lsi_group_control) + (size_t)n * sizeof(lsi_rank_control);
    lsi_group_control *control = lsi_alloc(LSI_MEM_OTHER, bytes);
    LSI_TRY(lsi_check_alloc(control));
    ls_status status = lsi_record_read(source, offset, control, bytes);
    if (status != LS_OK) {
        lsi_free(control);
        return status;
    }
    control->n_ranks = n; /* as it was checked; it may have changed since */
    *copy = control;
    return LS_OK;
}

static const lsi_call *record_of(const lsi_record_group *group, int rank, uint64_t number) {
    return &group->control->ranks[rank].records[(number - 1) % LSI_RECORDS];
}

/* Calls that the rank has posted but not announced, as far as two looks agree. */
static ls_status count_posted(const lsi_record_source *source, uint64_t ranks_at,
                              lsi_record_group *group, int rank) {
    group->posted[rank] = group->published[rank];
    for (int i = 0; i < LSI_CALLS; i++) {
        uint64_t next = group->posted[rank] + 1;
        const lsi_call *record = record_of(group, rank, next);
        lsi_call again;
        if (record->number != next) return LS_OK;
        uint64_t at = ranks_at + (uint64_t)rank * sizeof(lsi_rank_control) +
                      offsetof(lsi_rank_control, records) +
                      (next - 1) % LSI_RECORDS * sizeof(lsi_call);
        LSI_TRY(lsi_record_read(source, at, &again, sizeof again));
        if (memcmp(record, &again, sizeof again) != 0) return LS_OK;
        group->posted[rank] = next;
    }
    return LS_OK;
}

static ls_status read_counters(const lsi_record_source *source, int row, uint64_t ranks_at,
                               lsi_record_group *group) {
    for (int r = 0; r < group->n_ranks; r++) {
        const lsi_rank_control *control = &group->control->ranks[r];
        uint64_t published = control->published, done = control->done, after = 0;
        uint64_t at = ranks_at + (uint64_t)r * sizeof *control;
        LSI_TRY(lsi_record_read(source, at + offsetof(lsi_rank_control, published), &after,
                                sizeof after));
        if (published > MAX_CALLS || after > MAX_CALLS)
            return bad_group(source, row, "a number of calls");
        if (after < published) after = published; /* the group was removed meanwhile */
        group->published[r] = published;
        group->done[r] = done < published ? done : published;
        group->oldest[r] =
            after + LSI_CALLS > LSI_RECORDS ? after + LSI_CALLS - LSI_RECORDS + 1 : 1;
        LSI_TRY(count_posted(source, ranks_at, group, r));
        if (group->posted[r] > group->newest) group->newest = group->posted[r];
    }
    return LS_OK;
}

static void take_ranks(const lsi_record_group *world, lsi_record_group *group) {
    for (int r = 0; r < group->n_ranks; r++) {
        const lsi_rank_control *own = &group->control->ranks[r];
        int member = group->control->member[r];
        group->member[r] = member;
        if (world) group->rank[r] = world->rank[member];
        lsi_record_rank *rank = &group->rank[r];
        rank->attached = own->attached != 0;
        if (!world) rank->ended = own->ended != 0;
        rank->left = own->left != 0 || rank->ended;
        if (world) continue;
        rank->pid = own->pid;
        rank->step = own->step;
    }
}

static void find_difference(lsi_record_group *group);

static ls_status check_group(const lsi_record_source *source, int row, uint64_t offset,
                             const lsi_record_group *world, lsi_record_group *group) {
    LSI_TRY(check_members(source, row, source->control->n_ranks, group->control, group->n_ranks));
    group->number = group->control->number;
    group->time_ms = lsi_record_time_ms(source);
    take_ranks(world, group);
    LSI_TRY(read_counters(source, row, offset + sizeof(lsi_group_control), group));
    find_difference(group);
    return LS_OK;
}

ls_status lsi_record_take(const lsi_record_source *source, int row, const lsi_record_group *world,
                          lsi_record_group *group, bool *found) {
    lsi_group_row now;
    int32_t n = 0;
    *found = false;
    *group = (lsi_record_group){.number = -1};
    LSI_TRY(lsi_record_read(source, offsetof(lsi_control, groups) + (size_t)row * sizeof now, &now,
                            sizeof now));
    uint64_t offset = now.offset;
    if (!now.used || offset == 0) return LS_OK;
    if (offset < sizeof(lsi_control) || offset % LSI_LINE_BYTES != 0 ||
        offset > source->region_bytes)
        return bad_group(source, row, "its place");
    LSI_TRY(lsi_record_read(source, offset + offsetof(lsi_group_control, n_ranks), &n, sizeof n));
    if (n == 0) return LS_OK; /* being made */
    if (n < 1 || n > LSI_MAX_RANKS) return bad_group(source, row, "its number of ranks");
    if (row == 0 && n != source->control->n_ranks)
        return bad_group(source, row, "the number of ranks of the world");
    if (lsi_group_control_bytes(n) > source->region_bytes - offset)
        return bad_group(source, row, "its place");
    LSI_TRY(copy_group(source, offset, n, &group->control));
    group->n_ranks = n;
    ls_status status = check_group(source, row, offset, world, group);
    if (status != LS_OK)
        lsi_record_drop(group);
    else
        *found = true;
    return status;
}

void lsi_record_drop(lsi_record_group *group) {
    lsi_free(group->control);
    group->control = NULL;
}

/* ---- calls ---- */

static bool has_record(const lsi_record_group *group, int rank, uint64_t number) {
    return number >= group->oldest[rank] && number <= group->posted[rank] &&
           record_of(group, rank, number)->number == number;
}

const lsi_call *lsi_record_call(const lsi_record_group *group, int rank, uint64_t number) {
    return has_record(group, rank, number) ? record_of(group, rank, number) : NULL;
}

lsi_record_state lsi_record_state_of(const lsi_record_group *group, int rank, uint64_t number) {
    if (number > group->posted[rank]) return LSI_RECORD_ABSENT;
    if (!has_record(group, rank, number)) return LSI_RECORD_UNKNOWN;
    if (number > group->published[rank]) return LSI_RECORD_POSTED;
    return number > group->done[rank] ? LSI_RECORD_JOINED : LSI_RECORD_FINISHED;
}

int lsi_record_classes(const lsi_record_group *group, uint64_t number,
                       int class_of[LSI_MAX_RANKS]) {
    const lsi_call *example[LSI_MAX_RANKS];
    int n = 0;
    for (int r = 0; r < group->n_ranks; r++) {
        const lsi_call *call = lsi_record_call(group, r, number);
        class_of[r] = -1;
        if (!call) continue;
        int c = 0;
        while (c < n && !lsi_call_matches(example[c], call)) c++;
        if (c == n) example[n++] = call;
        class_of[r] = c;
    }
    return n;
}

const lsi_call *lsi_record_message(const lsi_record_group *group, int rank, int k) {
    const lsi_rank_control *control = &group->control->ranks[rank];
    uint32_t n = control->n_messages;
    /* The one that is being written replaces the oldest. */
    if (k < 0 || k >= LSI_MESSAGE_RECORDS - 1 || (uint32_t)k >= n) return NULL;
    uint32_t index = n - 1 - (uint32_t)k;
    const lsi_call *record = &control->messages[index % LSI_MESSAGE_RECORDS];
    return record->number == (uint64_t)index + 1 ? record : NULL;
}

double lsi_record_age_s(const lsi_record_group *group, const lsi_call *call) {
    if (call->posted_ms == 0) return -1;
    double age_s = ((double)group->time_ms - (double)call->posted_ms) / 1000;
    return age_s > 0 ? age_s : 0; /* posted after the look at the clock */
}

double lsi_record_oldest_s(const lsi_record_group *group, uint64_t number) {
    double oldest_s = -1;
    for (int r = 0; r < group->n_ranks; r++) {
        const lsi_call *call = lsi_record_call(group, r, number);
        double age_s = call ? lsi_record_age_s(group, call) : -1;
        if (age_s > oldest_s) oldest_s = age_s;
    }
    return oldest_s;
}

/* ---- the first difference ---- */

static uint64_t least(const uint64_t *numbers, int n) {
    uint64_t result = numbers[0];
    for (int r = 1; r < n; r++)
        if (numbers[r] < result) result = numbers[r];
    return result;
}

static uint64_t most(const uint64_t *numbers, int n) {
    uint64_t result = numbers[0];
    for (int r = 1; r < n; r++)
        if (numbers[r] > result) result = numbers[r];
    return result;
}

/* The first call that was not the same everywhere, among those that can be compared; 0: none. */
static uint64_t first_mismatch(const lsi_record_group *group) {
    int class_of[LSI_MAX_RANKS];
    uint64_t from = least(group->oldest, group->n_ranks), to = most(group->posted, group->n_ranks);
    /* Ranks may be far apart in damaged records only; who is behind is told as missing. */
    if (to > from + LSI_RECORDS) from = to - LSI_RECORDS;
    for (uint64_t number = from; number <= to; number++)
        if (lsi_record_classes(group, number, class_of) > 1) return number;
    return 0;
}

static void find_difference(lsi_record_group *group) {
    int n = group->n_ranks;
    uint64_t mismatch = first_mismatch(group), joined = least(group->published, n);
    group->verdict = LSI_RECORD_ALIKE;
    group->difference = 0;
    if (joined < group->newest) {
        group->verdict = LSI_RECORD_NOT_JOINED;
        group->difference = joined + 1;
    } else if (least(group->done, n) < group->newest) {
        group->verdict = LSI_RECORD_NOT_FINISHED;
        group->difference = least(group->done, n) + 1;
    }
    /* Before it ranks cannot have differed; behind it they may, and the earliest tells most. */
    if (mismatch && (group->difference == 0 || mismatch <= group->difference ||
                     group->verdict == LSI_RECORD_NOT_FINISHED)) {
        group->verdict = LSI_RECORD_CALLS_DIFFER;
        group->difference = mismatch;
    }
}

void lsi_record_window(const lsi_record_group *group, int last, uint64_t *from, uint64_t *to) {
    const uint64_t before = 3; /* rows of agreement to show before the difference */
    uint64_t n = (uint64_t)last, newest = group->newest;
    *from = newest >= n ? newest - n + 1 : 1;
    if (group->difference && group->difference < *from) {
        uint64_t lead = before < n ? before : n - 1;
        *from = group->difference > lead ? group->difference - lead : 1;
    }
    *to = newest < *from + n - 1 ? newest : *from + n - 1;
}

/* ---- the sentence ---- */

typedef struct sentence {
    char *at;
    size_t used;
} sentence;

LSI_PRINTF(2, 3) static void put(sentence *t, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int n = vsnprintf(t->at + t->used, LSI_MESSAGE_BYTES - t->used, format, values);
    va_end(values);
    if (n > 0) t->used += (size_t)n;
    if (t->used >= LSI_MESSAGE_BYTES) t->used = LSI_MESSAGE_BYTES - 1;
}

const char *lsi_record_call_print(const lsi_record_group *group, const lsi_call *call,
                                  char text[LSI_CALL_TEXT_BYTES]) {
    return lsi_call_print_in_world(call, group->member, group->n_ranks, text);
}

/* "rank 2", "ranks 0, 1 and 3"; of those that `in` says. */
static void put_ranks(const lsi_record_group *group, const bool *in, sentence *t) {
    int n_in = 0, n_put = 0;
    for (int r = 0; r < group->n_ranks; r++) n_in += in[r];
    put(t, n_in == 1 ? "rank" : "ranks");
    for (int r = 0; r < group->n_ranks; r++) {
        if (!in[r]) continue;
        put(t, "%s %d", n_put == 0 ? "" : n_put == n_in - 1 ? " and" : ",", group->member[r]);
        n_put++;
    }
}

static void put_age(sentence *t, double age_s) {
    if (age_s >= 0) put(t, ", posted %.1f s ago", age_s);
}

static void put_calls(const lsi_record_group *group, uint64_t number, sentence *t) {
    int class_of[LSI_MAX_RANKS], n = lsi_record_classes(group, number, class_of);
    for (int c = 0; c < n; c++) {
        bool in[LSI_MAX_RANKS];
        char call[LSI_CALL_TEXT_BYTES];
        int example = 0;
        for (int r = group->n_ranks - 1; r >= 0; r--)
            if ((in[r] = class_of[r] == c)) example = r;
        put(t, c == 0 ? "" : "; ");
        put_ranks(group, in, t);
        put(t, " called %s",
            lsi_record_call_print(group, lsi_record_call(group, example, number), call));
    }
}

/* "its last call is #182, barrier, posted 12.3 s ago, finished; it has left the group". */
static void put_whereabouts(const lsi_record_group *group, int rank, sentence *t) {
    char words[LSI_CALL_TEXT_BYTES];
    uint64_t last = group->posted[rank];
    const lsi_call *call = lsi_record_call(group, rank, last);
    const char *state = !call                           ? "unknown"
                        : last > group->published[rank] ? "not announced"
                        : last > group->done[rank]      ? "unfinished"
                                                        : "finished";
    if (last == 0)
        put(t, group->rank[rank].attached ? "it has made no call" : "it has not come to the group");
    else if (!call)
        put(t, "its last call is #%llu", (unsigned long long)last);
    else {
        put(t, "its last call is #%llu, %s", (unsigned long long)last,
            lsi_record_call_print(group, call, words));
        put_age(t, lsi_record_age_s(group, call));
        put(t, ", %s", state);
    }
    if (group->rank[rank].left) put(t, "; it has left the group");
}

/* Ranks whose counter has not come to the call, the first few with what they did last. */
static void put_behind(const lsi_record_group *group, const uint64_t *counter, const char *what,
                       sentence *t) {
    enum { MAX_TOLD = 3 };
    bool in[LSI_MAX_RANKS];
    int n_told = 0;
    for (int r = 0; r < group->n_ranks; r++) in[r] = counter[r] < group->difference;
    put_ranks(group, in, t);
    int n_in = 0;
    for (int r = 0; r < group->n_ranks; r++) n_in += in[r];
    put(t, " %s not %s", n_in == 1 ? "has" : "have", what);
    for (int r = 0; r < group->n_ranks && n_told < MAX_TOLD; r++) {
        if (!in[r]) continue;
        put(t, "; ");
        if (n_in > 1) put(t, "of rank %d: ", group->member[r]);
        put_whereabouts(group, r, t);
        n_told++;
    }
}

/* What those who came called, for a difference of who came. */
static void put_call_of_others(const lsi_record_group *group, sentence *t) {
    char call[LSI_CALL_TEXT_BYTES];
    for (int r = 0; r < group->n_ranks; r++) {
        const lsi_call *record = lsi_record_call(group, r, group->difference);
        if (!record) continue;
        put(t, ", %s", lsi_record_call_print(group, record, call));
        put_age(t, lsi_record_oldest_s(group, group->difference));
        return;
    }
}

const char *lsi_record_sentence(const lsi_record_group *group, char at[LSI_MESSAGE_BYTES]) {
    sentence t = {at, 0};
    at[0] = '\0';
    if (group->newest == 0) {
        put(&t, "no calls yet");
        return at;
    }
    if (group->difference == 0) {
        put(&t, "no difference: all ranks have finished call #%llu and those before it",
            (unsigned long long)group->newest);
        return at;
    }
    put(&t, "call #%llu", (unsigned long long)group->difference);
    if (group->verdict != LSI_RECORD_CALLS_DIFFER) put_call_of_others(group, &t);
    put(&t, ": ");
    switch (group->verdict) {
    case LSI_RECORD_CALLS_DIFFER: put_calls(group, group->difference, &t); break;
    case LSI_RECORD_NOT_JOINED: put_behind(group, group->published, "joined", &t); break;
    case LSI_RECORD_NOT_FINISHED: put_behind(group, group->done, "finished its part", &t); break;
    case LSI_RECORD_ALIKE: break;
    }
    return at;
}

/* ---- the first error ---- */

ls_status lsi_record_error(const lsi_reports *reports, int *rank, char text[LSI_MESSAGE_BYTES]) {
    uint32_t first = reports->first;
    if (first == 0) return LS_OK;
    if (first > LSI_REPORTS) first = LSI_REPORTS;
    const lsi_report *report = &reports->report[first - 1];
    *rank = report->rank;
    memcpy(text, report->message, LSI_MESSAGE_BYTES);
    text[LSI_MESSAGE_BYTES - 1] = '\0';
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
    return report->status ? (ls_status)report->status : LS_ERR_FORMAT;
}
