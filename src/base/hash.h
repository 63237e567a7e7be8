/* Hashes: SHA-256 as hexadecimal text (libsodium), for what must be told apart from anything that
 * somebody could make up; and XXH3 (libxxhash), for what is only compared with copies of itself, at
 * the speed of memory.
 *
 * XXH3's values are those of its published specification, without a seed: the same on every
 * machine and in every version of the library, so they may be sent and stored. They are of bytes;
 * the numbers in a buffer have other bytes, so another hash, where the byte order is another. */
#ifndef LSI_BASE_HASH_H
#define LSI_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

enum { LSI_SHA256_TEXT_BYTES = 65 };

typedef struct lsi_sha256 {
    _Alignas(64) unsigned char state[128]; /* crypto_hash_sha256_state; size checked in hash.c */
} lsi_sha256;

void lsi_sha256_init(lsi_sha256 *hash);
void lsi_sha256_update(lsi_sha256 *hash, const void *data, size_t bytes);
void lsi_sha256_finish(lsi_sha256 *hash, char text[LSI_SHA256_TEXT_BYTES]);

/* XXH3 of 64 bits. Two different buffers have the same one once in 2^64. data may be NULL where
 * bytes is 0. Any thread. */
uint64_t lsi_hash64(const void *data, size_t bytes);

typedef struct lsi_hash128_value {
    uint64_t high, low;
} lsi_hash128_value;

/* XXH3 of 128 bits: for many buffers of which no two may collide. */
lsi_hash128_value lsi_hash128(const void *data, size_t bytes);

#endif
