/* libFuzzer harness of the tokenizer files: any bytes are either refused or give a tokenizer that
 * encodes those same bytes to ids of its vocabulary; byte-level BPE gives them back. How to build
 * and run it: README.md in this folder. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void use(const lsi_tokenizer *tokenizer, const char *text, size_t bytes) {
    int32_t *ids;
    int64_t n_ids;
    size_t at = 0, n;
    if (lsi_tokenizer_encode(tokenizer, text, bytes, &ids, &n_ids) != LS_OK) abort();
    for (int64_t i = 0; i < n_ids; i++) {
        if (ids[i] < 0 || ids[i] >= lsi_tokenizer_vocab_size(tokenizer)) abort();
        const char *token = lsi_tokenizer_decode(tokenizer, i ? ids[i - 1] : -1, ids[i], &n);
        if (tokenizer->class == &lsi_tokenizer_llama2c) continue; /* may lack what it would need */
        if (at + n > bytes || memcmp(token, text + at, n) != 0) abort();
        at += n;
    }
    if (tokenizer->class != &lsi_tokenizer_llama2c && at != bytes) abort();
    lsi_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    lsi_tokenizer *tokenizer = NULL;
    char *copy = lsi_alloc(LSI_MEM_OTHER, bytes);
    if (bytes > 0) memcpy(copy, data, bytes);
    if (lsi_tokenizer_create_from("input", copy, bytes, &tokenizer) == LS_OK)
        use(tokenizer, (const char *)data, bytes);
    lsi_tokenizer_destroy(tokenizer);
    if (lsi_mem_n_blocks() != 0) abort();
    return 0;
}
