/* The kernel cache: results kept by the hash of everything they depend on, in
 * $JLLM_CACHE_DIR | $XDG_CACHE_HOME/jllm | ~/.cache/jllm. A damaged or foreign entry is a miss; a cache
 * that cannot be written is no error, only slower.
 */
#ifndef CACHE_H
#define CACHE_H

#include "base.h"

/* Payload kept under key, copied into the arena; NULL on a miss. */
const uint8_t *cache_get(struct hash128 key, struct arena *a, size_t *bytes);
void cache_put(struct hash128 key, const void *payload, size_t bytes);

#endif
