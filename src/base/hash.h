/* SHA-256 as hexadecimal text (libsodium). */
#ifndef LSI_BASE_HASH_H
#define LSI_BASE_HASH_H

#include <stddef.h>

enum { LSI_SHA256_TEXT_BYTES = 65 };

typedef struct lsi_sha256 {
    _Alignas(64) unsigned char state[128]; /* crypto_hash_sha256_state; size checked in hash.c */
} lsi_sha256;

void lsi_sha256_init(lsi_sha256 *hash);
void lsi_sha256_update(lsi_sha256 *hash, const void *data, size_t bytes);
void lsi_sha256_finish(lsi_sha256 *hash, char text[LSI_SHA256_TEXT_BYTES]);

#endif
