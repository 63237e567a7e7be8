/* libFuzzer harness of the safetensors reader: any bytes are either refused or give tensors whose
 * data can be read from end to end. How to build and run it: README.md in this folder. */
#include <stdint.h>
#include <stdlib.h>

#include "base/mem.h"
#include "checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    lsi_st_file *file = NULL;
    if (lsi_st_open_memory(data, bytes, "input", &file) == LS_OK) {
        volatile unsigned char sum = 0;
        for (int i = 0; i < lsi_st_n_tensors(file); i++) {
            const lsi_st_tensor *t = lsi_st_tensor_at(file, i);
            for (size_t b = 0; b < t->bytes; b++) sum ^= ((const unsigned char *)t->data)[b];
            if (lsi_st_find(file, t->name) != t) abort();
        }
    }
    lsi_st_close(file);
    if (lsi_mem_n_blocks() != 0) abort();
    return 0;
}
