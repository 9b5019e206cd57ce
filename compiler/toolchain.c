/* The batch around a compiler: look up, compile what is missing on all cores, keep, report. Knows nothing of any
 * compiler; the cache holds only images that an implementation accepted.
 */
#include "toolchain.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache.h"
#include "progress.h"
#include "workers.h"

void toolchain_hash_part(struct buffer *b, const char *part) {
    buffer_printf(b, "%zu:%s", strlen(part), part);
}

/* A temporary folder of this process ($TMPDIR or /tmp); NULL with a diagnostic. */
static char *scratch_dir(struct arena *a, struct diag *d) {
    const char *tmp = getenv("TMPDIR");
    char *dir = mkdtemp(arena_printf(a, "%s/jllmc-XXXXXX", tmp && *tmp ? tmp : "/tmp"));
    if (!dir) diag_error(d, "cc-tmp", NULL, "cannot make a temporary folder (TMPDIR or /tmp): %s", strerror(errno));
    return dir;
}

struct batch {
    const struct toolchain *t;
    struct program *p;
    struct arena *a;
    struct diag *d;
    const char *dir;
    uint32_t *todo, n_todo;
    pthread_mutex_t lock;     /* over arena, diag and progress */
    struct progress progress;
    const char **failures;    /* [n_kernels]: a kernel that fails is no error; NULL: it is */
    bool failed;
};

static void report_failure(struct batch *b, const struct kernel *k, const struct image_failure *f) {
    pthread_mutex_lock(&b->lock);
    const char *why = f->why ? f->why : "the compiler says:";
    if (b->failures) b->failures[k - b->p->kernels] = arena_printf(b->a, "%s%s%.2000s", why, f->log ? "\n" : "", f->log ? f->log : "");
    else if (!b->failed) {   /* one kernel's errors say it; the others of the template repeat it */
        diag_error(b->d, "kernel", k->template->source, "kernel %s does not compile with %s: %s", k->name, b->t->program, why);
        for (const char *line = f->log; line && *line;) {      /* a note cannot have several */
            size_t n = strcspn(line, "\n");
            if (n) diag_note(b->d, "%.*s", (int)n, line);
            line += n + (line[n] == '\n');
        }
    }
    b->failed |= !b->failures;
    pthread_mutex_unlock(&b->lock);
}

static void keep(struct batch *b, struct kernel *k, const uint8_t *image, size_t bytes, const uint64_t *facts, bool cached) {
    pthread_mutex_lock(&b->lock);
    k->image = (const uint8_t *)arena_copy(b->a, image, bytes);
    k->image_bytes = bytes;
    k->entry = facts[IMAGE_ENTRY];
    k->registers = (uint32_t)facts[IMAGE_REGISTERS];
    k->spill_bytes = (uint32_t)facts[IMAGE_SPILL_BYTES];
    k->shared_bytes = (uint32_t)facts[IMAGE_SHARED_BYTES];
    k->cached = cached;
    progress_step(&b->progress, "%s%s", k->name, cached ? " (cached)" : "");
    pthread_mutex_unlock(&b->lock);
}

/* Cached payload: the facts, then the image. */
static void put_cached(const struct toolchain *t, struct hash128 key, const struct image *image) {
    struct buffer payload = {0};
    buffer_append(&payload, image->facts, t->n_facts * sizeof *image->facts);
    buffer_append(&payload, image->data, image->bytes);
    cache_put(key, payload.data, payload.bytes);
    buffer_free(&payload);
}

static void compile_one(void *user, size_t index) {
    struct batch *b = user;
    struct kernel *k = &b->p->kernels[b->todo[index]];
    if (b->failed || base_interrupted) return;
    struct arena a = {0};
    struct image image = {0};
    struct image_failure f = {0};
    if (b->t->compile(b->t, k, b->dir, index, &image, &f, &a)) {
        put_cached(b->t, k->source_hash, &image);
        keep(b, k, image.data, image.bytes, image.facts, false);
    } else report_failure(b, k, &f);
    free(image.data);
    free(f.log);
    arena_free(&a);
}

/* What a process says of a kernel: this, then the image; or the reason, the log and their ends. */
struct outcome { uint64_t ok, facts[IMAGE_FACTS]; };

static void process_compile(void *user, size_t index, struct buffer *result) {
    struct batch *b = user;
    struct kernel *k = &b->p->kernels[b->todo[index]];
    struct arena a = {0};
    struct image image = {0};
    struct image_failure f = {0};
    struct outcome o = {.ok = b->t->compile(b->t, k, b->dir, index, &image, &f, &a)};
    if (o.ok) {
        put_cached(b->t, k->source_hash, &image);
        memcpy(o.facts, image.facts, sizeof o.facts);
    }
    buffer_append(result, &o, sizeof o);
    if (o.ok) buffer_append(result, image.data, image.bytes);
    else buffer_printf(result, "%s%c%s%c", f.why ? f.why : "", 0, f.log ? f.log : "", 0);
    free(image.data);
    free(f.log);
    arena_free(&a);
}

static void process_take(void *user, size_t index, const uint8_t *result, size_t bytes) {
    struct batch *b = user;
    struct kernel *k = &b->p->kernels[b->todo[index]];
    struct outcome o;
    memcpy(&o, result, sizeof o);
    const char *why = (const char *)result + sizeof o;
    if (o.ok) keep(b, k, result + sizeof o, bytes - sizeof o, o.facts, false);
    else report_failure(b, k, &(struct image_failure){*why ? why : NULL, (char *)(uintptr_t)why + strlen(why) + 1});
}

static void process_lost(void *user, size_t index, const char *how) {
    struct batch *b = user;
    struct arena a = {0};
    report_failure(b, &b->p->kernels[b->todo[index]], &(struct image_failure){arena_printf(&a, "the process that compiled it has died (%s)", how), NULL});
    arena_free(&a);
}

static bool compile_todo(struct batch *b) {
    const struct workers w = {process_compile, process_take, process_lost, b, &b->failed};
    if (b->t->one_at_a_time) return workers_run(&w, b->n_todo, b->d);
    base_parallel(b->n_todo, compile_one, b);
    return true;
}

static void take_cached(struct batch *b) {
    size_t head = b->t->n_facts * sizeof(uint64_t);
    for (uint32_t i = 0; i < b->p->n_kernels; i++) {
        struct kernel *k = &b->p->kernels[i];
        size_t bytes;
        uint64_t facts[IMAGE_FACTS] = {0};
        if (k->image) continue;
        k->source_hash = b->t->hash(b->t, k->source);
        const uint8_t *payload = cache_get(k->source_hash, b->a, &bytes);
        if (payload && bytes > head) {
            memcpy(facts, payload, head);
            keep(b, k, payload + head, bytes - head, facts, true);
        } else b->todo[b->n_todo++] = i;
    }
}

bool toolchain_try(const struct toolchain *t, struct program *p, const char **failures, struct arena *a, struct diag *d) {
    assert(t->n_facts >= 1 && t->n_facts <= IMAGE_FACTS);
    struct batch b = {.t = t, .p = p, .a = a, .d = d, .lock = PTHREAD_MUTEX_INITIALIZER, .failures = failures};
    b.todo = arena_array(a, p->n_kernels + 1u, sizeof *b.todo);
    progress_begin(&b.progress, p->n_kernels);
    take_cached(&b);
    if (b.n_todo) {
        if (t->scratch && !(b.dir = scratch_dir(a, d))) return false;
        bool ran = compile_todo(&b);
        if (b.dir) rmdir(b.dir);
        if (!ran) return false;
        if (base_interrupted) {
            diag_error(d, "interrupted", NULL, "interrupted");
            return false;
        }
    }
    progress_end(&b.progress);
    return !b.failed;
}

bool toolchain_compile(const struct toolchain *t, struct program *p, struct arena *a, struct diag *d) {
    return toolchain_try(t, p, NULL, a, d);
}
