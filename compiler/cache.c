/* Entries are files named by their key: magic, key, payload size, hash of the payload, payload. Written by
 * temporary + rename, so readers and killed writers never leave half an entry that is believed.
 */
#include "cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CACHE_MAGIC "JLLMKC1\n"

struct entry_header {
    char magic[8];
    struct hash128 key;
    uint64_t bytes;
    struct hash128 payload_hash;
};

static const char *cache_dir(struct arena *a) {
    const char *v = getenv("JLLM_CACHE_DIR");
    if (v && *v) return v;
    if ((v = getenv("XDG_CACHE_HOME")) && *v) return arena_printf(a, "%s/jllm", v);
    if ((v = getenv("HOME")) && *v) return arena_printf(a, "%s/.cache/jllm", v);
    return NULL;
}

static const char *entry_path(struct hash128 key, struct arena *a, bool create) {
    const char *dir = cache_dir(a);
    if (!dir) return NULL;
    char hex[33];
    hash_hex(key, hex);
    if (create) {   /* parents first; what cannot be made shows when the entry is written */
        char *path = arena_printf(a, "%s/%.2s", dir, hex);
        for (char *p = path + 1; *p; p++) {
            if (*p != '/') continue;
            *p = 0;
            (void)mkdir(path, 0777);
            *p = '/';
        }
        (void)mkdir(path, 0777);
    }
    return arena_printf(a, "%s/%.2s/%s", dir, hex, hex + 2);
}

const uint8_t *cache_get(struct hash128 key, struct arena *a, size_t *bytes) {
    const char *path = entry_path(key, a, false);
    struct file_map m;
    if (!path || !file_map_open(&m, path)) return NULL;
    const uint8_t *payload = NULL;
    struct entry_header h;
    if (m.bytes >= sizeof h) {
        memcpy(&h, m.data, sizeof h);
        bool whole = !memcmp(h.magic, CACHE_MAGIC, sizeof h.magic) && !memcmp(&h.key, &key, sizeof key) &&
                     h.bytes == m.bytes - sizeof h;
        if (whole) {
            struct hash128 found = hash_bytes(m.data + sizeof h, (size_t)h.bytes);
            if (!memcmp(&found, &h.payload_hash, sizeof found)) {
                payload = (const uint8_t *)arena_copy(a, m.data + sizeof h, (size_t)h.bytes);
                *bytes = (size_t)h.bytes;
            }
        }
    }
    file_map_close(&m);
    return payload;
}

void cache_put(struct hash128 key, const void *payload, size_t bytes) {
    struct arena a = {0};
    const char *path = entry_path(key, &a, true);
    struct buffer b = {0};
    struct entry_header h = {.key = key, .bytes = bytes, .payload_hash = hash_bytes(payload, bytes)};
    memcpy(h.magic, CACHE_MAGIC, sizeof h.magic);
    buffer_append(&b, &h, sizeof h);
    buffer_append(&b, payload, bytes);
    if (path) (void)file_write(path, b.data, b.bytes);
    buffer_free(&b);
    arena_free(&a);
}
