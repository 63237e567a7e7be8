/* SHA-256 as text and XXH3 (see hash.h): libsodium and libxxhash do the work.
 *
 * libsodium's hash functions need no sodium_init (it selects nothing for them) and cannot fail on
 * a valid state. The state lives inside lsi_sha256 so that no header of ours needs sodium.h. */
#include "base/hash.h"

#include <sodium.h>
#include <xxhash.h>

_Static_assert(sizeof(crypto_hash_sha256_state) <= sizeof(((lsi_sha256 *)0)->state),
               "lsi_sha256 is too small for this libsodium");
_Static_assert(LSI_SHA256_TEXT_BYTES == 2 * crypto_hash_sha256_BYTES + 1, "text of a SHA-256");

static crypto_hash_sha256_state *state_of(lsi_sha256 *hash) {
    return (crypto_hash_sha256_state *)(void *)hash->state;
}

void lsi_sha256_init(lsi_sha256 *hash) {
    crypto_hash_sha256_init(state_of(hash));
}

void lsi_sha256_update(lsi_sha256 *hash, const void *data, size_t bytes) {
    if (bytes > 0) crypto_hash_sha256_update(state_of(hash), data, bytes);
}

void lsi_sha256_finish(lsi_sha256 *hash, char text[LSI_SHA256_TEXT_BYTES]) {
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_final(state_of(hash), digest);
    sodium_bin2hex(text, LSI_SHA256_TEXT_BYTES, digest, sizeof digest);
}

uint64_t lsi_hash64(const void *data, size_t bytes) {
    return XXH3_64bits(data, bytes);
}

lsi_hash128_value lsi_hash128(const void *data, size_t bytes) {
    XXH128_hash_t hash = XXH3_128bits(data, bytes);
    return (lsi_hash128_value){hash.high64, hash.low64};
}
