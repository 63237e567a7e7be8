/* Comparing and printing calls. The fields that must agree are listed once, in lsi_call_matches;
 * the printed form shows exactly these, so that two calls that differ also read differently. */
#include "comm/call.h"

#include <stdio.h>
#include <string.h>

const char *lsi_call_kind_name(int kind) {
    static const char *const names[] = {
#define LSI_CALL_TEXT(name, text) text,
        LSI_CALL_TABLE(LSI_CALL_TEXT)
#undef LSI_CALL_TEXT
    };
    return kind >= 0 && kind < LSI_CALL_N_KINDS ? names[kind] : "unknown call";
}

bool lsi_call_matches(const lsi_call *a, const lsi_call *b) {
    /* scale is compared by its bits: a NaN must match itself. */
    return a->kind == b->kind && a->dtype == b->dtype && a->op == b->op && a->root == b->root &&
           a->count == b->count && a->order_hash == b->order_hash &&
           memcmp(&a->scale, &b->scale, sizeof a->scale) == 0;
}

const char *lsi_call_print(const lsi_call *call, char text[LSI_CALL_TEXT_BYTES]) {
    const char *name = lsi_call_kind_name(call->kind);
    const char *dtype = ls_dtype_name((ls_dtype)call->dtype);
    long long count = (long long)call->count;
    switch (call->kind) {
    case LSI_CALL_ALL_REDUCE:
    case LSI_CALL_REDUCE_SCATTER:
        snprintf(text, LSI_CALL_TEXT_BYTES, "%s (sum, %s, count %lld, scale %g, order %08x)", name,
                 dtype, count, call->scale, call->order_hash);
        break;
    case LSI_CALL_ALL_GATHER:
        snprintf(text, LSI_CALL_TEXT_BYTES, "%s (%s, count %lld)", name, dtype, count);
        break;
    case LSI_CALL_BROADCAST:
        snprintf(text, LSI_CALL_TEXT_BYTES, "%s (%s, count %lld, root %d)", name, dtype, count,
                 call->root);
        break;
    default: snprintf(text, LSI_CALL_TEXT_BYTES, "%s", name);
    }
    return text;
}
