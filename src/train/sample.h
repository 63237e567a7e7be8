/* Choosing the next token from logits: greedy, or a draw from what temperature, top-k and top-p
 * leave. */
#ifndef LSI_TRAIN_SAMPLE_H
#define LSI_TRAIN_SAMPLE_H

#include <stdint.h>

typedef struct lsi_sample_opts {
    double temperature; /* 0: the likeliest token, of equal ones the lowest id */
    int64_t top_k;      /* 0: all tokens */
    double top_p;       /* (0, 1]; 1: all */
} lsi_sample_opts;

/* A token with its logit, later its share. */
typedef struct lsi_candidate {
    double value;
    int32_t id;
} lsi_candidate;

/* n logits, all finite, n >= 1. uniform: [0, 1). scratch: n candidates. */
int32_t lsi_sample_token(const lsi_sample_opts *opts, const float *logits, int64_t n,
                         double uniform, lsi_candidate *scratch);

#endif
