/* Writing files in the IDX format of MNIST, for tests. */
#ifndef TESTS_DATA_IDX_FILES_H
#define TESTS_DATA_IDX_FILES_H

#include <stddef.h>
#include <stdint.h>

typedef struct idx_file {
    unsigned char bytes[1 << 16];
    size_t n;
} idx_file;

/* A big-endian number at the end. */
static inline void idx_put(idx_file *file, uint32_t number) {
    for (int shift = 24; shift >= 0; shift -= 8)
        file->bytes[file->n++] = (unsigned char)(number >> shift);
}

static inline idx_file idx_images_header(uint32_t n, uint32_t height, uint32_t width) {
    idx_file file = {.n = 0};
    idx_put(&file, 0x803);
    idx_put(&file, n);
    idx_put(&file, height);
    idx_put(&file, width);
    return file;
}

static inline idx_file idx_labels_header(uint32_t n) {
    idx_file file = {.n = 0};
    idx_put(&file, 0x801);
    idx_put(&file, n);
    return file;
}

#endif
