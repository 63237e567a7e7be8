/* What a kind of tokenizer is made of, and what datasets need beyond data.h.
 *
 * Every kind encodes alike: a text is cut into words, a word is spelled in the smallest tokens, and
 * neighbours are merged by a table (merges.h). A kind says how to cut and how to spell. */
#ifndef LSI_DATA_TOKENIZER_H
#define LSI_DATA_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>

#include "data/data.h"
#include "data/merges.h"
#include "data/vocab.h"

typedef struct lsi_tokenizer_class {
    const char *name;
    /* Names of its file in a folder, the usual one first; NULL ends; none: needs no file. */
    const char *files[4];
    /* Whether content may be such a file; the first row that says so gets it. */
    bool (*knows)(const char *data, size_t bytes);
    /* Fills the zeroed rest of *tokenizer. Content is borrowed; path is for messages. */
    ls_status (*load)(lsi_tokenizer *tokenizer, const char *path, const char *data, size_t bytes);
    /* Bytes of the first word of a text (bytes >= 1), 1 … bytes. No token reaches over its end. */
    size_t (*word)(const lsi_tokenizer *tokenizer, const char *text, size_t bytes);
    /* Writes the tokens that the merges of a word start from, at most bytes + 1. */
    int64_t (*spell)(const lsi_tokenizer *tokenizer, const char *word, size_t bytes,
                     bool is_first_word, int32_t *ids);
    const char *(*decode)(const lsi_tokenizer *tokenizer, int32_t previous, int32_t id,
                          size_t *bytes);
    /* Writes what other programs want beside the files it came from; NULL: nothing. */
    ls_status (*save_more)(const lsi_tokenizer *tokenizer, const char *folder);
} lsi_tokenizer_class;

/* A file that the tokenizer came from, as it was. */
typedef struct lsi_tokenizer_file {
    const char *name; /* to save it under */
    char *data;
    size_t bytes;
} lsi_tokenizer_file;

struct lsi_tokenizer {
    const lsi_tokenizer_class *class;
    int64_t vocab_size;
    int32_t begin_id, end_id; /* -1: none */
    lsi_vocab vocab;
    lsi_merges merges;
    int32_t id_of_byte[256];
    char byte_of_value[256]; /* decode lends one byte each */
    /* llama2c: bit b2 of crosses[b1] is set where a token may have b1 and then b2 inside */
    uint64_t crosses[256][4];
    lsi_tokenizer_file files[2]; /* data NULL: none */
};

extern const lsi_tokenizer_class lsi_tokenizer_byte, lsi_tokenizer_json, lsi_tokenizer_gpt2,
    lsi_tokenizer_llama2c;

/* Largest tokenizer file that is read. */
enum { LSI_TOKENIZER_CAP_BYTES = 1 << 28 };

/* From the content of a file, which is taken over (lsi_alloc), also on failure. */
LS_CHECKED ls_status lsi_tokenizer_create_from(const char *path, char *data, size_t bytes,
                                               lsi_tokenizer **tokenizer);

/* ---- encoding ---- */

/* Encodes a text piece by piece, so that a file much larger than memory for int32 ids can be. */
typedef struct lsi_encoder {
    const lsi_tokenizer *tokenizer;
    const char *text; /* must stay while the encoder lives */
    size_t bytes, at;
    int32_t *ids; /* of the last piece */
    int64_t n_ids;
    size_t room;
    lsi_merger merger;
    struct lsi_encoder_word *cache; /* words met before; NULL: none */
    uint64_t cache_mask;
} lsi_encoder;

/* fini frees, also after a failed init. */
LS_CHECKED ls_status lsi_encoder_init(lsi_encoder *encoder, const lsi_tokenizer *tokenizer,
                                      const char *text, size_t bytes);
void lsi_encoder_fini(lsi_encoder *encoder);
/* Encodes words until `piece` bytes are passed or the text ends: at == bytes. */
LS_CHECKED ls_status lsi_encoder_next(lsi_encoder *encoder, size_t piece);

#endif
