/* The table of communication hooks, and the checks of their options.
 *
 * A hook that we make is an ls_comm_hook like anybody's: its context is the method's state, in one
 * block behind the hook. */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "parallel/hook_impl.h"

enum { LIST_BYTES = 512 };

static const lsi_hook_method *const methods[] = {
    [LS_HOOK_ALL_REDUCE] = &lsi_hook_all_reduce,
    [LS_HOOK_NOOP] = &lsi_hook_noop,
    [LS_HOOK_BF16] = &lsi_hook_bf16,
    [LS_HOOK_FP16] = &lsi_hook_fp16,
    [LS_HOOK_INT8] = &lsi_hook_int8,
    [LS_HOOK_TOPK] = &lsi_hook_topk,
    [LS_HOOK_POWERSGD] = &lsi_hook_powersgd,
};

static const lsi_hook_method *method_of(ls_hook_kind kind) {
    size_t number = (size_t)kind;
    return number < sizeof methods / sizeof methods[0] ? methods[number] : NULL;
}

static ls_status refuse_kind(ls_hook_kind kind) {
    char list[LIST_BYTES] = "";
    size_t used = 0;
#define NAME(name, number, text, help)                                                             \
    used += (size_t)snprintf(list + used, sizeof list - used, " %d (%s)", number, text);
    LS_HOOK_TABLE(NAME)
#undef NAME
    return lsi_fail(LS_ERR_ARGUMENT, "ls_hook_create: kind %d, expected one of%s", (int)kind, list);
}

/* A field in the list of bad ones. */
static void add_bad(char list[LIST_BYTES], size_t *used, bool is_good, const char *name,
                    double value, const char *range) {
    if (is_good || *used >= LIST_BYTES) return;
    *used += (size_t)snprintf(list + *used, LIST_BYTES - *used, "%s%s is %g, expected %s",
                              *used ? "; " : "", name, value, range);
}

static ls_status check_opts(const ls_hook_opts *opts) {
    char list[LIST_BYTES] = "";
    size_t used = 0;
    if (opts->struct_size != sizeof *opts)
        return lsi_fail(LS_ERR_ARGUMENT,
                        "hook options: struct_size is %u, this library expects %zu; begin with "
                        "LS_HOOK_OPTS_INIT",
                        opts->struct_size, sizeof *opts);
    add_bad(list, &used, opts->topk_share >= 0 && opts->topk_share <= 1, "topk_share",
            opts->topk_share, "(0, 1] or 0 for 0.01");
    add_bad(list, &used, opts->powersgd_rank >= 0 && opts->powersgd_rank <= LSI_HOOK_MOST_RANK,
            "powersgd_rank", opts->powersgd_rank, "1 to 64 or 0 for 4");
    add_bad(list, &used, opts->min_rate >= 0 && isfinite(opts->min_rate), "min_rate",
            opts->min_rate, "a finite number above 0 or 0 for 2");
    return used ? lsi_fail(LS_ERR_ARGUMENT, "hook options: %s", list) : LS_OK;
}

static ls_hook_opts with_defaults(const ls_hook_opts *given) {
    ls_hook_opts opts = *given;
    if (opts.topk_share == 0) opts.topk_share = 0.01;
    if (opts.powersgd_rank == 0) opts.powersgd_rank = 4;
    if (opts.min_rate == 0) opts.min_rate = 2;
    opts.start_step = opts.start_step < 0 ? 0 : opts.start_step == 0 ? 10 : opts.start_step;
    return opts;
}

ls_status ls_hook_create(ls_hook_kind kind, const ls_hook_opts *opts, ls_comm_hook **hook) {
    const ls_hook_opts defaults = LS_HOOK_OPTS_INIT;
    const lsi_hook_method *method = method_of(kind);
    if (!method) return refuse_kind(kind);
    if (!opts) opts = &defaults;
    LSI_TRY(check_opts(opts));
    ls_comm_hook *made = lsi_calloc(LSI_MEM_OTHER, 1, sizeof *made + method->state_bytes);
    LSI_TRY(lsi_check_alloc(made));
    *made = (ls_comm_hook){.name = method->name,
                           .context = made + 1,
                           .prepare = method->prepare,
                           .run = method->run,
                           .release = method->release};
    *(ls_hook_opts *)made->context = with_defaults(opts);
    *hook = made;
    return LS_OK;
}

void ls_hook_destroy(ls_comm_hook *hook) {
    if (!hook) return;
    if (hook->release) hook->release(hook->context);
    lsi_free(hook);
}
