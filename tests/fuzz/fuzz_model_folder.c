/* libFuzzer harness of model folders: config.json, index and shards of any content are either
 * refused or give a model, and nothing leaks. How to build and run it: README.md in this folder.
 *
 * An input is up to four files with "\n====\n" between them: config.json, the index, then the files
 * a.safetensors and b.safetensors; with an empty index the third is model.safetensors. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { N_PARTS = 4 };

static char folder[64];

static void make_folder(void) {
    if (folder[0]) return;
    snprintf(folder, sizeof folder, "%s/fuzz-model-folder-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder)) abort();
}

static const char *path_of(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_part(const char *name, const uint8_t *data, size_t bytes) {
    FILE *file = fopen(path_of(name), "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) abort();
}

static void write_files(const uint8_t *data, size_t bytes) {
    static const char border[] = "\n====\n";
    static const char *const names[N_PARTS] = {LSI_CONFIG_FILE, LSI_INDEX_FILE, "a.safetensors",
                                               "b.safetensors"};
    int is_whole = 0;
    for (int i = 0; i < N_PARTS; i++) {
        const uint8_t *end = i < N_PARTS - 1 ? memmem(data, bytes, border, strlen(border)) : NULL;
        size_t n = end ? (size_t)(end - data) : bytes;
        if (i == 1) is_whole = n == 0;
        if (i != 1 || n > 0) write_part(i == 2 && is_whole ? LSI_WEIGHTS_FILE : names[i], data, n);
        if (!end) break;
        data = end + strlen(border);
        bytes -= n + strlen(border);
    }
}

/* Every weight is read, as a sanitizer would have it. */
static void use(const lsi_model *model) {
    char text[LSI_SHA256_TEXT_BYTES];
    lsi_model_sha256(model, text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const all[] = {LSI_CONFIG_FILE, LSI_INDEX_FILE, LSI_WEIGHTS_FILE,
                                      "a.safetensors", "b.safetensors"};
    lsi_model *model = NULL;
    lsi_weights *weights = NULL;
    char *tokenizer = NULL;
    make_folder();
    write_files(data, bytes);
    if (lsi_model_load(folder, &model, &tokenizer) == LS_OK) use(model);
    lsi_free(tokenizer);
    lsi_model_destroy(model);
    if (lsi_weights_open(folder, &weights) == LS_OK)
        for (int i = 0; i < lsi_weights_n_tensors(weights); i++)
            if (lsi_weights_find(weights, lsi_weights_at(weights, i)->name) !=
                lsi_weights_at(weights, i))
                abort();
    lsi_weights_close(weights);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) unlink(path_of(all[i]));
    if (lsi_mem_n_blocks() != 0) abort();
    return 0;
}
