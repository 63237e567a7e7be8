/* `lockstep bench`: times collectives on this machine, in the manner of nccl-tests. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "launch/launch.h"

#define MEASURE "What is measured"
#define HOW "How"
#define OUTPUT "Output"

typedef struct bench_config {
    const char *min_bytes, *max_bytes, *step_bytes;
    int64_t step_factor, iters, warmup_iters, check, root, workers;
    const char *op, *dtype, *buffers, *algo, *json, *config;
    bool cold, explain, bind;
} bench_config;

#define ROW(name, letter, type, field, unit, initial, min, max, choices, group, help)              \
    {                                                                                              \
        name, letter, type, offsetof(bench_config, field), unit, initial, min, max, choices,       \
            group, help                                                                            \
    }

const lsi_opt bench_options[] = {
    ROW("min-bytes", 'b', LSI_OPT_TEXT, min_bytes, "SIZE", NULL, 0, 0, NULL, MEASURE,
        "Smallest size: bytes of the larger buffer of a rank; K, M, G count 1024s (default 8)."),
    ROW("max-bytes", 'e', LSI_OPT_TEXT, max_bytes, "SIZE", NULL, 0, 0, NULL, MEASURE,
        "Largest size (default 64M)."),
    ROW("step-factor", 'f', LSI_OPT_INT, step_factor, "times", "2", 2, 1 << 20, NULL, MEASURE,
        "Each size is the one before times this."),
    ROW("step-bytes", 'i', LSI_OPT_TEXT, step_bytes, "SIZE", NULL, 0, 0, NULL, MEASURE,
        "Each size is the one before plus this, instead of --step-factor."),
    ROW("op", 'o', LSI_OPT_CHOICE, op, NULL, "sum", 0, 0, "sum|avg|min|max|prod|premul-sum|all",
        MEASURE, "Reduction; collectives that reduce nothing take no notice."),
    ROW("dtype", 'd', LSI_OPT_CHOICE, dtype, NULL, "float32", 0, 0,
        "float32|float64|bfloat16|float16|int8|int32|int64|uint8|all", MEASURE, "Element type."),
    ROW("root", 'r', LSI_OPT_INT, root, "rank", "0", 0, LSI_MAX_RANKS - 1, NULL, MEASURE,
        "Root of broadcast, reduce, gather and scatter."),
    ROW("buffers", 0, LSI_OPT_CHOICE, buffers, NULL, "shared", 0, 0, "shared|plain", MEASURE,
        "Buffers that all ranks can reach (ls_group_alloc_shared), or a rank's own."),
    ROW("cold", 0, LSI_OPT_BOOL, cold, NULL, "false", 0, 0, NULL, MEASURE,
        "Adds rows with buffers that rotate through more memory than the caches hold."),
    ROW("workers", 0, LSI_OPT_INT, workers, "processes", "2", 1, LSI_MAX_RANKS, NULL, HOW,
        "Ranks, one process each."),
    ROW("bind", 0, LSI_OPT_BOOL, bind, NULL, "true", 0, 0, NULL, HOW,
        "Binds each rank to its share of the processors."),
    ROW("iters", 'n', LSI_OPT_INT, iters, "iterations", "20", 1, 1000000, NULL, HOW,
        "Timed iterations per size."),
    ROW("warmup-iters", 'w', LSI_OPT_INT, warmup_iters, "iterations", "5", 0, 1000000, NULL, HOW,
        "Iterations before the timed ones."),
    ROW("check", 'c', LSI_OPT_INT, check, "0 or 1", "1", 0, 1, NULL, HOW,
        "Compares every element of the last outputs of each size with what it must be."),
    ROW("algo", 0, LSI_OPT_TEXT, algo, "TEXT", NULL, 0, 0, NULL, HOW,
        "Algorithms to take, as in LOCKSTEP_ALGO: ring, allreduce=ring, allreduce:64K-1M=ring."),
    ROW("explain", 0, LSI_OPT_BOOL, explain, NULL, "false", 0, 0, NULL, OUTPUT,
        "Times nothing: says for each size which algorithm is chosen and what others would cost."),
    ROW("json", 0, LSI_OPT_TEXT, json, "FILE", NULL, 0, 0, NULL, OUTPUT,
        "Writes the result for programs."),
    ROW("config", 0, LSI_OPT_TEXT, config, "FILE", NULL, 0, 0, NULL, OUTPUT,
        "Reads options from a JSON file."),
    {0},
};

/* ---- sizes ---- */

static int64_t parts_of(const bench_request *request) {
    const bench_collective *c = request->collective;
    return c->input_has_parts || c->output_has_parts ? request->n_workers : 1;
}

int64_t bench_count_of(const bench_request *request, int64_t bytes, ls_dtype dtype) {
    if (request->collective->source == BENCH_FROM_NOBODY) return 0;
    int64_t count = bytes / ((int64_t)ls_dtype_bytes(dtype) * parts_of(request));
    return count > 0 ? count : 1;
}

int64_t bench_bytes_of(const bench_request *request, int64_t count, ls_dtype dtype) {
    return count * (int64_t)ls_dtype_bytes(dtype) * parts_of(request);
}

int64_t bench_next_bytes(const bench_request *request, int64_t bytes) {
    int64_t next =
        request->step_bytes > 0 ? bytes + request->step_bytes : bytes * request->step_factor;
    return next <= request->max_bytes ? next : 0;
}

/* "8", "1K", "256M", "1G"; up to 2^40, so that neither sums nor products of sizes overflow. */
static ls_status parse_size(const char *name, const char *text, int64_t *bytes) {
    static const char suffixes[] = "KMG";
    const int64_t most = (int64_t)1 << 40;
    char *end;
    if (!text) return LS_OK;
    unsigned long long number = text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;
    if (number > 0) {
        const char *suffix = *end ? strchr(suffixes, *end >= 'a' ? *end - 'a' + 'A' : *end) : NULL;
        int shift = suffix ? (int)(suffix - suffixes + 1) * 10 : 0;
        if (suffix) end++;
        if (*end == '\0' && number <= (unsigned long long)most >> shift) {
            *bytes = (int64_t)(number << shift);
            return LS_OK;
        }
    }
    return lsi_fail(LS_ERR_USAGE,
                    "--%s: expected a number of bytes from 1 to 1024G, with K, M or G for 1024s, "
                    "found '%s'",
                    name, text);
}

static ls_status read_sizes(const bench_config *config, const lsi_opt_set *set,
                            bench_request *request) {
    request->min_bytes = request->max_bytes = 0;
    LSI_TRY(parse_size("min-bytes", config->min_bytes, &request->min_bytes));
    LSI_TRY(parse_size("max-bytes", config->max_bytes, &request->max_bytes));
    LSI_TRY(parse_size("step-bytes", config->step_bytes, &request->step_bytes));
    request->step_factor = config->step_factor;
    /* One limit given: the other's default gives way. */
    int64_t least = 8, most = 64 << 20;
    if (!request->min_bytes)
        request->min_bytes =
            request->max_bytes && request->max_bytes < least ? request->max_bytes : least;
    if (!request->max_bytes)
        request->max_bytes = request->min_bytes > most ? request->min_bytes : most;
    if (request->min_bytes > request->max_bytes)
        return lsi_fail(LS_ERR_USAGE, "--min-bytes %s is more than --max-bytes %s",
                        config->min_bytes, config->max_bytes);
    if (config->step_bytes && lsi_opt_where(set, "step-factor") == LSI_OPT_FROM_COMMAND_LINE)
        return lsi_fail(LS_ERR_USAGE,
                        "--step-bytes %s and --step-factor %" PRId64 " say two things: give one",
                        config->step_bytes, config->step_factor);
    return LS_OK;
}

/* ---- the rest of the request ---- */

static ls_status find_collective(const char *word, bench_request *request) {
    const char *names[32];
    int n = 0;
    char list[256] = "";
    for (const bench_collective *c = bench_collectives; c->name; c++) {
        names[n++] = c->name;
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", c->name);
        if (word && strcmp(word, c->name) == 0) request->collective = c;
    }
    names[n] = NULL;
    if (request->collective) return LS_OK;
    if (!word)
        return lsi_fail(LS_ERR_USAGE, "bench: no collective given; expected one of %s", list);
    const char *near = lsi_nearest(word, names);
    if (near)
        return lsi_fail(LS_ERR_USAGE, "bench: unknown collective '%s'; did you mean %s?", word,
                        near);
    return lsi_fail(LS_ERR_USAGE, "bench: unknown collective '%s'; expected one of %s", word, list);
}

static void read_ops(const char *word, bench_request *request) {
    static const ls_op ops[] = {
#define OP(name, number, text) LS_OP_##name,
        LS_OP_TABLE(OP)
#undef OP
    };
    bool all = strcmp(word, "all") == 0;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (all || strcmp(word, ls_op_name(ops[i])) == 0) request->ops[request->n_ops++] = ops[i];
    if (!request->collective->reduces) request->n_ops = 1;
}

static void read_dtypes(const char *word, bench_request *request) {
    static const ls_dtype dtypes[] = {
#define DTYPE(name, number, bytes, text) LS_DTYPE_##name,
        LS_DTYPE_TABLE(DTYPE)
#undef DTYPE
    };
    bool all = strcmp(word, "all") == 0;
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (all || strcmp(word, bench_dtype_name(dtypes[i])) == 0)
            request->dtypes[request->n_dtypes++] = dtypes[i];
    if (request->collective->source == BENCH_FROM_NOBODY) request->n_dtypes = 1;
}

/* Input, output and the two arrays of the bound, on every rank; touched, so they must be there. */
static ls_status check_memory(const bench_request *request) {
    size_t cold = request->has_cold ? bench_cold_bytes() : 0;
    double array =
        (double)request->max_bytes > (double)cold ? (double)request->max_bytes : (double)cold;
    double needed = 4 * array * request->n_workers;
    double there = (double)bench_memory_bytes();
    if (request->collective->source == BENCH_FROM_NOBODY || request->explains || needed < there)
        return LS_OK;
    return lsi_fail(
        LS_ERR_USAGE,
        "%d ranks with 4 arrays each need %.1f GiB, this machine has %.1f: use a smaller "
        "--max-bytes",
        request->n_workers, needed / (1 << 30), there / (1 << 30));
}

/* Before anything is measured: a benchmark of minutes should not fail on its last line. */
static ls_status check_json(const char *path) {
    struct stat info;
    lsi_file_writer *writer;
    if (!path) return LS_OK;
    if (!path[0])
        return lsi_fail(LS_ERR_USAGE, "--json: expected the name of a file, found nothing");
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return lsi_fail(LS_ERR_USAGE, "--json %s: expected a file, found a folder", path);
    LSI_TRY(lsi_context(lsi_file_begin(path, &writer), "--json"));
    lsi_file_cancel(writer);
    return LS_OK;
}

static ls_status make_request(const bench_config *config, const lsi_opt_set *set, const char *word,
                              bench_request *request) {
    *request = (bench_request){.n_iters = (int)config->iters,
                               .n_warmup = (int)config->warmup_iters,
                               .root = (int)config->root,
                               .n_workers = (int)config->workers,
                               .check = config->check != 0,
                               .is_shared = strcmp(config->buffers, "shared") == 0,
                               .has_cold = config->cold,
                               .explains = config->explain,
                               .algo = config->algo,
                               .bind = config->bind,
                               .json = config->json};
    LSI_TRY(find_collective(word, request));
    LSI_TRY(read_sizes(config, set, request));
    read_ops(config->op, request);
    read_dtypes(config->dtype, request);
    if (request->root >= request->n_workers)
        return lsi_fail(LS_ERR_USAGE, "--root %d: expected one of the %d ranks, 0 to %d",
                        request->root, request->n_workers, request->n_workers - 1);
    LSI_TRY(check_memory(request));
    return check_json(request->json);
}

/* ---- the command ---- */

static exit_code bench(bench_request *request) {
    ls_status status = set_group_options(request->algo, NULL);
    if (status != LS_OK) return report_failure(status, EXIT_WRONG_USAGE);
    status = bench_board_create(&request->board);
    if (status != LS_OK) return report_failure(status, EXIT_FAILED);
    lsi_launch_opts opts = {.n_workers = request->n_workers, .bind = request->bind};
    status = lsi_launch(&opts, bench_work, request);
    if (status != LS_OK) return report_failure(status, EXIT_FAILED);
    if (request->board->n_wrong == 0) return EXIT_DONE;
    fprintf(stderr,
            "lockstep: bench: %s gave %" PRId64 " wrong elements; the rows say at which sizes\n",
            request->collective->name, request->board->n_wrong);
    return EXIT_FAILED;
}

exit_code run_bench(int argc, char **argv) {
    bench_config config;
    bench_request request;
    lsi_opt_set *set = NULL;
    const char *word;
    ls_status status = lsi_opt_parse(bench_options, argc, argv, &config, &word, 1, &set);
    if (status != LS_OK) return report_failure(status, EXIT_WRONG_USAGE);
    status = make_request(&config, set, word, &request);
    exit_code code = status == LS_OK ? bench(&request) : report_failure(status, EXIT_WRONG_USAGE);
    lsi_opt_destroy(set);
    return code;
}
