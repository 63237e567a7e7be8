/* Comparing and printing calls. The fields that must agree are listed once, in lsi_call_words; the
 * printed form shows exactly these, so that two calls that differ also read differently. */
#include "comm/call.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/message.h"
#include "comm/choose.h"

const char *lsi_call_kind_name(int kind) {
    static const char *const names[] = {
#define LSI_CALL_TEXT(name, text, short_name) text,
        LSI_CALL_TABLE(LSI_CALL_TEXT)
#undef LSI_CALL_TEXT
    };
    return kind >= 0 && kind < LSI_CALL_N_KINDS ? names[kind] : "unknown call";
}

const char *lsi_call_short_name(int kind) {
    static const char *const names[] = {
#define LSI_CALL_SHORT(name, text, short_name) short_name,
        LSI_CALL_TABLE(LSI_CALL_SHORT)
#undef LSI_CALL_SHORT
    };
    return kind >= 0 && kind < LSI_CALL_N_KINDS ? names[kind] : "?";
}

int lsi_call_kind_from(const char *short_name) {
    for (int kind = 1; kind < LSI_CALL_N_KINDS; kind++)
        if (strcmp(short_name, lsi_call_short_name(kind)) == 0) return kind;
    return -1;
}

const char *ls_op_name(ls_op op) {
    switch (op) {
#define OP_NAME(name, number, text)                                                                \
    case LS_OP_##name: return text;
        LS_OP_TABLE(OP_NAME)
#undef OP_NAME
    }
    return "?";
}

bool lsi_call_matches(const lsi_call *a, const lsi_call *b) {
    uint64_t x[LSI_CALL_WORDS], y[LSI_CALL_WORDS];
    lsi_call_words(a, x);
    lsi_call_words(b, y);
    return memcmp(x, y, sizeof x) == 0;
}

LSI_PRINTF(2, 3) static void put(char text[LSI_CALL_TEXT_BYTES], const char *format, ...) {
    size_t used = strlen(text);
    va_list values;
    va_start(values, format);
    vsnprintf(text + used, LSI_CALL_TEXT_BYTES - used, format, values);
    va_end(values);
}

/* Its bytes may be of a damaged record. */
static int root_in_world(const lsi_call *call, const int *member, int n_members) {
    return call->root >= 0 && call->root < n_members ? member[call->root] : call->root;
}

const char *lsi_call_print_in_world(const lsi_call *call, const int *member, int n_members,
                                    char text[LSI_CALL_TEXT_BYTES]) {
    int root = root_in_world(call, member, n_members);
    snprintf(text, LSI_CALL_TEXT_BYTES, "%s", lsi_call_kind_name(call->kind));
    if (call->kind == LSI_CALL_BARRIER || call->kind == LSI_CALL_NONE) return text;
    put(text, " (");
    bool reduces = call->kind == LSI_CALL_ALL_REDUCE || call->kind == LSI_CALL_REDUCE ||
                   call->kind == LSI_CALL_REDUCE_SCATTER;
    if (reduces) put(text, "%s, ", ls_op_name((ls_op)call->op));
    put(text, "%s, count %lld", ls_dtype_name((ls_dtype)call->dtype), (long long)call->count);
    if (call->kind == LSI_CALL_SEND) put(text, ", to rank %d", root);
    if (call->kind == LSI_CALL_RECV) put(text, ", from rank %d", root);
    if (root >= 0 && call->kind != LSI_CALL_SEND && call->kind != LSI_CALL_RECV)
        put(text, ", root %d", root);
    if (call->counts_hash)
        put(text, " in uneven counts %08x",
            (unsigned)(call->counts_hash ^ call->counts_hash >> 32));
    if (call->op == LS_OP_SUM || call->op == LS_OP_PREMUL_SUM) put(text, ", scale %g", call->scale);
    if (call->order_hash) put(text, reduces ? ", order %08x" : ", tag %u", call->order_hash);
    if (call->algorithm) put(text, ", %s", lsi_algorithm_name(call->algorithm));
    put(text, ")");
    return text;
}

const char *lsi_call_print(const lsi_call *call, char text[LSI_CALL_TEXT_BYTES]) {
    return lsi_call_print_in_world(call, NULL, 0, text);
}
