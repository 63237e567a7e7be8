/* Where memory went, for reports: the accounts of base/mem.h under their names. */
#include "observe/observe.h"

json_t *lsi_memory_to_json(const int64_t peak_bytes[LSI_MEM_N_KINDS]) {
    json_t *table = json_object();
    for (int kind = 0; kind < LSI_MEM_N_KINDS; kind++) {
        if (json_object_set_new(table, lsi_mem_kind_name(kind), json_integer(peak_bytes[kind])) ==
            0)
            continue;
        json_decref(table);
        return NULL;
    }
    return table;
}
