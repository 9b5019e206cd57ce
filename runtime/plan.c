/* Opens a plan and checks all of it once, so that everything after may trust it.
 *
 * Guarantees: when plan_check succeeds, every offset, index, count and string of the view is in
 * range, and hashes of header, slot and tail match. Comparisons are written as subtraction from
 * what is known to be left, so none can overflow. It never reads outside the bytes it was given.
 * It does not hash weights (plan_verify_weights does) and does not know what kernels compute: a
 * plan is trusted like a program.
 */
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "plans are used in place and little-endian"
#endif

#define CHECK(ok, ...) \
    do { if (!(ok)) return error_set(e, JLLM_BAD_PLAN, __VA_ARGS__); } while (0)
/* For what only a wrong compiler or a forger can write, hashes being right: the condition itself
 * says most to whoever has to find out. */
#define WANT(what, index, ok)                                                                   \
    CHECK(ok, "the plan contradicts itself (%s %u: not %s): compile it again", what,            \
          (unsigned)(index), #ok)

typedef unsigned long long ull;

bool error_set(struct jllm_error *e, enum jllm_code code, const char *format, ...) {
    if (!e) return false;
    va_list ap;
    va_start(ap, format);
    e->code = code;
    vsnprintf(e->text, sizeof e->text, format, ap);
    va_end(ap);
    for (char *c = e->text; *c; c++)   /* names from a file must not forge a second line */
        if ((unsigned char)*c < ' ') *c = '?';
    return false;
}

static struct plan_hash hash_bytes(const void *data, uint64_t bytes) {
    struct plan_hash h;
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, (size_t)bytes));
    memcpy(h.bytes, canonical.digest, sizeof h.bytes);
    return h;
}

static bool hash_matches(const struct plan_hash *want, const void *data, uint64_t bytes) {
    struct plan_hash h = hash_bytes(data, bytes);
    return !memcmp(h.bytes, want->bytes, sizeof h.bytes);
}

/* [offset, offset + bytes) lies within [0, room). */
static bool fits(uint64_t offset, uint64_t bytes, uint64_t room) {
    return offset <= room && bytes <= room - offset;
}

static uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

/* Of a CPU's cache (plan.h at PLAN_I16). */
static uint64_t cache_bytes(uint32_t dtype, uint32_t head_dim, uint64_t rows, uint64_t cols) {
    if (dtype != PLAN_F32 && dtype != PLAN_F16 && dtype != PLAN_I16) return UINT64_MAX;
    if (!head_dim || cols % head_dim || rows > PLAN_BYTES_MAX / PLAN_CACHE_POSITIONS / 8 / cols) return UINT64_MAX;
    return round_up(rows, PLAN_CACHE_POSITIONS) / PLAN_CACHE_POSITIONS * (cols / head_dim) * plan_cache_unit_bytes(dtype, head_dim);
}

uint64_t plan_dtype_bytes(uint32_t dtype, uint32_t cache, uint64_t rows, uint64_t cols) {
    if (rows > UINT32_MAX || cols > UINT32_MAX || rows * cols > PLAN_BYTES_MAX) return UINT64_MAX;
    if (cache) return cols ? cache_bytes(dtype, cache & ~PLAN_CACHE_KEYS, rows, cols) : 0;
    switch (dtype) {
    case PLAN_F32: case PLAN_I32: return rows * cols * 4;
    case PLAN_F16: return rows * cols * 2;
    case PLAN_A16:
        if (cols % 32) return UINT64_MAX;
        return round_up(rows * cols * 2, 64) + 2 * round_up(rows * (cols / 32) * 4, 64);
    case PLAN_A8: return cols % 32 ? UINT64_MAX : rows * cols * 2;
    case PLAN_X16:
        if (cols % 32 || (rows != 1 && rows % 8)) return UINT64_MAX;
        return round_up(rows * (rows == 1 ? round_up(cols, 256) : cols) * 2, 64) +
               round_up(rows * (cols / 32) * 4, 64);
    default: return UINT64_MAX;
    }
}

bool plan_space_fits(const struct plan_view *v, uint32_t space, uint64_t offset, uint64_t bytes,
                     struct jllm_error *e) {
    uint64_t room = space == PLAN_SPACE_ARENA ? v->info->arena_bytes
                    : space == PLAN_SPACE_CACHE ? v->info->cache_bytes : 0;
    return fits(offset, bytes, room) ||
           error_set(e, JLLM_BAD_USE, "%llu bytes at %llu are outside space %u", (ull)bytes,
                     (ull)offset, space);
}

bool plan_session_fits(const struct plan_view *v, uint64_t available, struct jllm_error *e) {
    uint64_t arena = v->info->arena_bytes, cache = v->info->cache_bytes;
    return arena + cache <= available ||
           error_set(e, JLLM_ENVIRONMENT, "a session needs %llu MiB (cache %llu, activations %llu)"
                     ", %llu MiB are available: free some or compile the plan for a shorter "
                     "context", (ull)(arena + cache) >> 20, (ull)cache >> 20, (ull)arena >> 20,
                     (ull)available >> 20);
}

/* What the file is, before any of it is believed. */
static bool check_magic(const uint8_t *data, uint64_t bytes, struct jllm_error *e) {
    size_t n = bytes < 8 ? (size_t)bytes : 8;
    if (memcmp(data, PLAN_MAGIC, n)) {
        CHECK(n < 4 || memcmp(data, "GGUF", 4),
              "this is a GGUF model and not a plan: compile it with jllmc first");
        CHECK(!memmem(data, n, "JLM", 3), "the plan was damaged by a copy in text mode (line ends "
              "or high bits were changed): copy it again in binary mode");
        CHECK(false, "not a plan: the file does not begin with a plan's magic number");
    }
    CHECK(bytes >= PLAN_HEADER_BYTES, "the plan is truncated: the file has %llu bytes, its header "
          "alone needs %d: copy or compile it again", (ull)bytes, PLAN_HEADER_BYTES);
    return true;
}

static bool check_header(const struct plan_view *v, struct jllm_error *e) {
    const struct plan_header *h = v->header;
    CHECK(__builtin_bswap32(h->version) != PLAN_VERSION ||
          __builtin_bswap32(h->header_bytes) != PLAN_HEADER_BYTES,
          "the plan was written in the other byte order (big-endian): compile it again");
    CHECK(h->version == PLAN_VERSION, "the plan has format version %u, this program reads version "
          "%d: compile it with the jllmc of this release", h->version, PLAN_VERSION);
    CHECK(hash_matches(&h->header_hash, h, offsetof(struct plan_header, header_hash)),
          "the plan's header is damaged (its hash differs): copy or compile it again");
    for (const uint8_t *p = v->map + sizeof *h; p < v->map + PLAN_HEADER_BYTES; p++)
        CHECK(!*p, "the plan's header is damaged (byte %d is not zero): copy or compile it again",
              (int)(p - v->map));
    WANT("header", 0, h->header_bytes == PLAN_HEADER_BYTES);
    WANT("header", 0, h->weights_offset == PLAN_HEADER_BYTES);
    WANT("header", 0, h->weights_bytes <= PLAN_BYTES_MAX);
    WANT("header", 0, h->weights_bytes % PLAN_WEIGHT_ALIGN == 0);
    return true;
}

/* A slot is whole, or never written, or damaged; or the file ends before *need_bytes. */
static bool slot_is_whole(const struct plan_view *v, const struct plan_slot *s,
                          uint64_t *need_bytes) {
    uint64_t weights_end = v->header->weights_offset + v->header->weights_bytes;
    if (!s->generation || !hash_matches(&s->slot_hash, s, offsetof(struct plan_slot, slot_hash)))
        return false;
    if (s->tail_offset > PLAN_BYTES_MAX || s->tail_bytes > PLAN_BYTES_MAX ||
        s->tail_offset < weights_end || s->tail_offset % 4096 ||
        s->tail_bytes < sizeof(struct plan_tail))
        return false;
    if (!fits(s->tail_offset, s->tail_bytes, v->map_bytes)) {
        if (*need_bytes < s->tail_offset + s->tail_bytes)
            *need_bytes = s->tail_offset + s->tail_bytes;
        return false;
    }
    return hash_matches(&s->tail_hash, v->map + s->tail_offset, s->tail_bytes);
}

static bool choose_slot(struct plan_view *v, struct jllm_error *e) {
    uint64_t need_bytes = 0;
    for (int i = 0; i < 2; i++) {
        const struct plan_slot *s = &v->header->slot[i];
        if (slot_is_whole(v, s, &need_bytes) && (!v->slot || s->generation > v->slot->generation))
            v->slot = s;
    }
    CHECK(v->slot || !need_bytes, "the plan is truncated: the file has %llu bytes, the plan needs "
          "%llu: copy or compile it again", (ull)v->map_bytes, (ull)need_bytes);
    CHECK(v->slot, "the plan is damaged: neither slot leads to a tail whose hash matches: copy or "
          "compile it again");
    v->tail = v->map + v->slot->tail_offset;
    v->weights = v->map + v->header->weights_offset;
    return true;
}

/* Stride 0: the core does not read it, so it may be absent and of any stride. */
static const uint32_t section_strides[PLAN_SECTION_KINDS] = {
#define X(kind, type, ...) [PLAN_##kind] = sizeof(type),
    PLAN_SECTIONS(X)
#undef X
};

static bool check_directory(const struct plan_view *v, const struct plan_section **found,
                            struct jllm_error *e) {
    const struct plan_tail *tail = (const void *)v->tail;
    const struct plan_section *s = (const void *)(v->tail + sizeof *tail);
    uint64_t room = v->slot->tail_bytes;
    WANT("tail", 0, tail->n_sections <= (room - sizeof *tail) / sizeof *s);
    uint64_t end = sizeof *tail + tail->n_sections * sizeof *s;
    for (uint32_t i = 0; i < tail->n_sections; i++, s++) {
        WANT("section", i, s->offset % PLAN_SECTION_ALIGN == 0 && s->offset >= end);
        WANT("section", i, fits(s->offset, s->bytes, room));
        WANT("section", i, s->stride && s->bytes == (uint64_t)s->stride * s->count);
        end = s->offset + s->bytes;
        if (s->kind == 0 || s->kind >= PLAN_SECTION_KINDS) {
            CHECK(s->flags & PLAN_SECTION_OPTIONAL, "the plan has a section of kind %u, which this "
                  "version does not know: use the release that compiled it", s->kind);
            continue;
        }
        WANT("section", i, !found[s->kind]);
        WANT("section", i, !section_strides[s->kind] || s->stride == section_strides[s->kind]);
        found[s->kind] = s;
    }
    for (uint32_t kind = 1; kind < PLAN_SECTION_KINDS; kind++)
        WANT("kind", kind, found[kind] || !section_strides[kind]);
    return true;
}

static bool bind_sections(struct plan_view *v, struct jllm_error *e) {
    const struct plan_section *found[PLAN_SECTION_KINDS] = {0};
    if (!check_directory(v, found, e)) return false;
#define X(kind, type, name, least, most)                            \
    v->name = (const void *)(v->tail + found[PLAN_##kind]->offset); \
    v->n_##name = found[PLAN_##kind]->count;                        \
    WANT(#name, v->n_##name, v->n_##name - (least) <= (uint32_t)(most) - (least));
    PLAN_SECTIONS(X)
#undef X
    v->test_model = (const void *)v->model;
    WANT("strings", 0, !v->strings[0] && !v->strings[v->n_strings - 1]);
    WANT("cover", 0, v->n_cover == v->info->ctx_max + 1ull);
    return true;
}

static bool is_string(const struct plan_view *v, uint32_t offset) {
    return offset < v->n_strings;
}

static bool check_info(const struct plan_view *v, struct jllm_error *e) {
    const struct plan_info *n = v->info;
    const uint32_t names[] = {n->model_name, n->arch_name, n->file_name, n->spec_name,
                              n->spec_hash, n->target_name, n->compiler_name, n->quant_name};
    for (uint32_t i = 0; i < sizeof names / sizeof *names; i++)
        WANT("info name", i, is_string(v, names[i]));
    for (uint32_t i = 0; i < v->n_memory; i++)
        WANT("memory row", i, is_string(v, v->memory[i].name));
    WANT("info", 0, n->device == PLAN_DEVICE_CPU || n->device == PLAN_DEVICE_CUDA);
    if (n->device == PLAN_DEVICE_CUDA)
        WANT("info", 0, n->isa == PLAN_ISA_SM && n->sm_arch >= 80 && n->sm_arch < 1000 &&
                        n->driver_min <= INT32_MAX && n->features <= PLAN_CUDA_LAUNCHES);
    WANT("info", 0, n->n_vocab && n->n_vocab <= PLAN_VOCAB_MAX && n->n_embd);
    WANT("info", 0, n->n_layer <= v->n_pieces);
    WANT("info", 0, n->ctx_max && n->ctx_max <= PLAN_CTX_MAX);
    WANT("info", 0, n->n_tokens_max && n->n_tokens_max <= PLAN_TOKENS_MAX);
    WANT("info", 0, n->arena_bytes <= PLAN_BYTES_MAX && n->cache_bytes <= PLAN_BYTES_MAX);
    WANT("info", 0, n->hidden_offset % PLAN_ARENA_ALIGN == 0);
    WANT("info", 0, n->logits_offset % PLAN_ARENA_ALIGN == 0 && n->candidates_offset % PLAN_ARENA_ALIGN == 0);
    WANT("info", 0, fits(n->hidden_offset, 4ull * n->n_tokens_max * n->n_embd, n->arena_bytes));
    WANT("info", 0, fits(n->logits_offset, 4ull * n->n_vocab, n->arena_bytes));
    return true;
}

/* Pieces leave no gap, so that every byte of the weights has a hash. */
static bool check_pieces(const struct plan_view *v, struct jllm_error *e) {
    uint64_t end = 0, room = v->header->weights_bytes;
    for (uint32_t i = 0; i < v->n_pieces; i++) {
        const struct plan_piece *p = &v->pieces[i];
        WANT("piece", i, is_string(v, p->name) && is_string(v, p->quant));
        WANT("piece", i, is_string(v, p->layout));
        WANT("piece", i, p->offset == end && p->bytes && fits(end, p->bytes, room));
        end = round_up(end + p->bytes, PLAN_WEIGHT_ALIGN);
    }
    WANT("pieces", v->n_pieces, end == room);
    return true;
}

static bool check_kernels(const struct plan_view *v, struct jllm_error *e) {
    uint64_t align = v->info->device == PLAN_DEVICE_CPU ? PLAN_CODE_ALIGN : PLAN_SECTION_ALIGN;
    for (uint32_t i = 0; i < v->n_kernels; i++) {
        const struct plan_kernel *k = &v->kernels[i];
        WANT("kernel", i, is_string(v, k->name) && is_string(v, k->detail));
        WANT("kernel", i, is_string(v, k->template_name) && is_string(v, k->quant));
        WANT("kernel", i, fits(k->code_offset, k->code_bytes, v->n_code));
        WANT("kernel", i, k->entry < k->code_bytes && k->code_offset % align == 0);
    }
    return true;
}

static bool check_args(const struct plan_view *v, struct jllm_error *e) {
    const uint64_t room[PLAN_SPACE_END] = {
        [PLAN_SPACE_ARENA] = v->info->arena_bytes, [PLAN_SPACE_CACHE] = v->info->cache_bytes,
        [PLAN_SPACE_STEP] = sizeof(struct plan_step)};
    for (uint32_t i = 0; i < v->n_args; i++) {
        const struct plan_arg *a = &v->args[i];
        WANT("argument", i, a->space >= PLAN_SPACE_ARENA && a->space < PLAN_SPACE_END);
        if (a->space == PLAN_SPACE_WEIGHTS) {
            WANT("argument", i, a->piece < v->n_pieces);
            WANT("argument", i, fits(a->offset, a->bytes, v->pieces[a->piece].bytes));
        } else {
            WANT("argument", i, a->piece == 0 && fits(a->offset, a->bytes, room[a->space]));
            WANT("argument", i, a->space == PLAN_SPACE_STEP || a->offset % PLAN_ARENA_ALIGN == 0);
        }
    }
    return true;
}

static bool check_launches(const struct plan_view *v, struct jllm_error *e) {
    uint64_t chunks = 0;   /* since the last barrier */
    for (uint32_t i = 0; i < v->n_launches; i++) {
        const struct plan_launch *l = &v->launches[i];
        WANT("launch", i, l->kernel < v->n_kernels && is_string(v, l->op));
        WANT("launch", i, l->n_args <= PLAN_ARGS_MAX && fits(l->first_arg, l->n_args, v->n_args));
        WANT("launch", i, l->items && l->chunk && l->flags <= PLAN_LAUNCH_BARRIER);
        WANT("launch", i, l->layer == UINT32_MAX || l->layer < v->info->n_layer);
        if (l->flags & PLAN_LAUNCH_BARRIER) chunks = 0;
        chunks += ((uint64_t)l->items + l->chunk - 1) / l->chunk;
        if (v->info->device == PLAN_DEVICE_CPU) WANT("launch", i, chunks <= PLAN_CHUNKS_MAX);
        else WANT("launch", i, l->items <= INT32_MAX && l->chunk <= 1024 && l->grid_y &&
                               l->grid_y < 65536 && l->grid_z && l->grid_z < 65536 &&
                               l->shared_bytes < 1 << 20);
    }
    return true;
}

/* Prefill phases ascend from one token to n_tokens_max; head and decode stand once and take one, and so does candidates
 * where there is one. */
static bool check_phases(struct plan_view *v, struct jllm_error *e) {
    uint32_t n_of_kind[PLAN_PHASE_CANDIDATES + 1] = {0}, bucket = 0;
    v->candidates_phase = UINT32_MAX;
    for (uint32_t i = 0; i < v->n_phases; i++) {
        const struct plan_phase *p = &v->phases[i];
        WANT("phase", i, p->kind >= PLAN_PHASE_PREFILL && p->kind <= PLAN_PHASE_CANDIDATES);
        WANT("phase", i, p->n_launches && fits(p->first_launch, p->n_launches, v->n_launches));
        WANT("phase", i, v->launches[p->first_launch].flags & PLAN_LAUNCH_BARRIER);
        n_of_kind[p->kind]++;
        if (p->kind == PLAN_PHASE_HEAD) v->head_phase = i;
        if (p->kind == PLAN_PHASE_DECODE) v->decode_phase = i;
        if (p->kind == PLAN_PHASE_CANDIDATES) v->candidates_phase = i;
        if (p->kind != PLAN_PHASE_PREFILL || !bucket) WANT("phase", i, p->n_tokens == 1);
        else WANT("phase", i, p->n_tokens > bucket && p->n_tokens <= v->info->n_tokens_max);
        if (p->kind == PLAN_PHASE_PREFILL) bucket = p->n_tokens;
    }
    WANT("phases", v->n_phases, n_of_kind[PLAN_PHASE_HEAD] == 1);
    WANT("phases", v->n_phases, n_of_kind[PLAN_PHASE_DECODE] == 1);
    WANT("phases", v->n_phases, n_of_kind[PLAN_PHASE_CANDIDATES] <= 1);
    if (n_of_kind[PLAN_PHASE_CANDIDATES])
        WANT("info", 0, fits(v->info->candidates_offset, 8 * PLAN_CANDIDATES_MAX, v->info->arena_bytes));
    WANT("phases", v->n_phases, bucket == v->info->n_tokens_max);
    for (uint32_t i = 1; i <= v->info->ctx_max; i++) {
        WANT("cover", i, v->cover[i] < v->n_phases);
        WANT("cover", i, v->phases[v->cover[i]].kind == PLAN_PHASE_PREFILL);
    }
    return true;
}

/* Seen as rows x cols of dtype, argument `arg` of a launch is memory that a test may write. */
static bool is_test_buffer(const struct plan_view *v, const struct plan_launch *l, uint32_t arg,
                           uint32_t dtype, uint32_t cache, uint32_t rows, uint32_t cols) {
    if (arg >= l->n_args || !rows || !cols) return false;
    const struct plan_arg *a = &v->args[l->first_arg + arg];
    return (a->space == PLAN_SPACE_ARENA || a->space == PLAN_SPACE_CACHE) &&
           (!cache || (a->space == PLAN_SPACE_CACHE && v->info->device == PLAN_DEVICE_CPU)) &&
           plan_dtype_bytes(dtype, cache, rows, cols) <= a->bytes;
}

/* Tokens of the phase that a launch belongs to; 0 when it is in none. */
static uint32_t launch_tokens(const struct plan_view *v, uint32_t launch) {
    for (uint32_t i = 0; i < v->n_phases; i++)
        if (launch - v->phases[i].first_launch < v->phases[i].n_launches)
            return v->phases[i].n_tokens;
    return 0;
}

static bool check_tests(const struct plan_view *v, struct jllm_error *e) {
    for (uint32_t i = 0; i < v->n_tests; i++) {
        const struct plan_test *t = &v->tests[i];
        WANT("test", i, t->launch < v->n_launches);
        const struct plan_launch *l = &v->launches[t->launch];
        WANT("test", i, t->kernel == l->kernel);
        WANT("test", i, t->n_tokens && t->n_tokens <= launch_tokens(v, t->launch));
        WANT("test", i, fits(t->pos, t->n_tokens, v->info->ctx_max));
        WANT("test", i, t->row < v->info->n_tokens_max && t->id < v->info->n_vocab);
        WANT("test", i, fits(t->first_input, t->n_inputs, v->n_test_inputs));
        WANT("test", i, t->n_values && fits(t->first_value, t->n_values, v->n_test_values));
        WANT("test", i, t->bound > 0 && t->bound < 1);
        WANT("test", i, is_test_buffer(v, l, t->out_arg, t->out_dtype, t->out_cache, t->out_rows, t->out_cols));
        for (uint32_t j = t->first_input; j < t->first_input + t->n_inputs; j++) {
            const struct plan_test_input *in = &v->test_inputs[j];
            WANT("test input", j, is_test_buffer(v, l, in->arg, in->dtype, in->cache, in->rows, in->cols));
            WANT("test input", j, isfinite(in->amplitude));
        }
        for (uint32_t j = t->first_value; j < t->first_value + t->n_values; j++)
            WANT("test value", j, v->test_values[j].row < t->out_rows &&
                                  v->test_values[j].col < t->out_cols);
    }
    return true;
}

static bool check_test_model(const struct plan_view *v, struct jllm_error *e) {
    const struct plan_test_model *t = v->test_model;
    uint32_t n_vocab = v->info->n_vocab;
    WANT("model test", 0, v->n_model >= sizeof *t && t->bound > 0 && t->bound < 1);
    WANT("model test", 0, v->n_model - sizeof *t == 4ull * t->n_tokens + 8ull * t->n_values);
    WANT("model test", 0, t->n_tokens && t->n_tokens <= v->info->ctx_max);
    WANT("model test", 0, t->n_values && t->top1 < n_vocab);
    const uint32_t *ids = (const uint32_t *)(t + 1), *values = ids + t->n_tokens;
    for (uint32_t i = 0; i < t->n_tokens; i++) WANT("model test", i, ids[i] < n_vocab);
    for (uint32_t i = 0; i < t->n_values; i++) WANT("model test", i, values[2 * i] < n_vocab);
    return true;
}

bool plan_check(struct plan_view *v, const uint8_t *data, uint64_t bytes, struct jllm_error *e) {
    *v = (struct plan_view){.map = data, .map_bytes = bytes, .fd = -1,
                            .header = (const void *)data};
    return check_magic(data, bytes, e) && check_header(v, e) && choose_slot(v, e) &&
           bind_sections(v, e) && check_info(v, e) && check_pieces(v, e) && check_kernels(v, e) &&
           check_args(v, e) && check_launches(v, e) && check_phases(v, e) && check_tests(v, e) &&
           check_test_model(v, e);
}

static bool open_fail(const char *path, const char *what, int fd, struct jllm_error *e) {
    error_set(e, JLLM_ENVIRONMENT, "%s: cannot %s the plan: %s", path, what, strerror(errno));
    if (fd >= 0) close(fd);
    return false;
}

bool plan_open(struct plan_view *v, const char *path, struct jllm_error *e) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st)) return open_fail(path, "open", fd, e);
    if (!S_ISREG(st.st_mode) || st.st_size == 0) {
        close(fd);
        return error_set(e, JLLM_BAD_PLAN, "%s: not a plan: %s", path,
                         S_ISREG(st.st_mode) ? "the file is empty" : "it is not a regular file");
    }
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) return open_fail(path, "map", fd, e);
    struct jllm_error inner = {0};
    if (!plan_check(v, map, (uint64_t)st.st_size, &inner)) {
        munmap(map, (size_t)st.st_size);
        close(fd);
        return error_set(e, inner.code, "%s: %s", path, inner.text);
    }
    v->fd = fd;
    return true;
}

enum { LARGE_PAGE = 2 << 20 };

/* Weights, and room to begin at a large page. */
static size_t own_bytes(const struct plan_view *v) { return (size_t)v->header->weights_bytes + LARGE_PAGE; }

bool plan_own_weights(struct plan_view *v, struct jllm_error *e) {
    uint64_t bytes = v->header->weights_bytes, room = own_bytes(v), spare = machine_memory_available();
    void *own = room > spare ? MAP_FAILED : mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED)
        return error_set(e, JLLM_ENVIRONMENT, "no memory for the weights (%llu MiB): let them be mapped", (unsigned long long)room >> 20);
    v->own = own;
    uint8_t *to = (uint8_t *)(((uintptr_t)own + LARGE_PAGE - 1) & ~(uintptr_t)(LARGE_PAGE - 1));
    madvise(to, bytes, MADV_HUGEPAGE);      /* may fail: the same weights in small pages */
    for (uint64_t at = 0; at < bytes;) {
        size_t part = bytes - at < 1 << 28 ? (size_t)(bytes - at) : 1 << 28;
        ssize_t got = pread(v->fd, to + at, part, (off_t)(v->header->weights_offset + at));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return error_set(e, got ? JLLM_ENVIRONMENT : JLLM_BAD_PLAN, "cannot read the plan's weights: %s",
                             got ? strerror(errno) : "the file became shorter");
        at += (uint64_t)got;
    }
    v->weights = to;
    return true;
}

void plan_close(struct plan_view *v) {
    if (v->own) munmap(v->own, own_bytes(v));
    munmap((void *)(uintptr_t)v->map, (size_t)v->map_bytes);
    close(v->fd);
}

bool plan_verify_weights(const struct plan_view *v, struct jllm_error *e) {
    for (uint32_t i = 0; i < v->n_pieces; i++) {
        const struct plan_piece *p = &v->pieces[i];
        CHECK(hash_matches(&p->hash, v->weights + p->offset, round_up(p->bytes, PLAN_WEIGHT_ALIGN)),
              "weight %s (piece %u) is damaged: its hash differs: copy or compile the plan again",
              v->strings + p->name, i);
    }
    return true;
}
