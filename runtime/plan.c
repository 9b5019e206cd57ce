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
#include <stdlib.h>
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

uint64_t plan_dtype_bytes(uint32_t dtype, uint64_t rows, uint64_t cols) {
    if (rows > UINT32_MAX || cols > UINT32_MAX || rows * cols > PLAN_BYTES_MAX) return UINT64_MAX;
    switch (dtype) {
    case PLAN_F32: case PLAN_I32: return rows * cols * 4;
    case PLAN_F16: return rows * cols * 2;
    case PLAN_A16:
        if (cols % 32) return UINT64_MAX;
        return round_up(rows * cols * 2, 64) + 2 * round_up(rows * (cols / 32) * 4, 64);
    default: return UINT64_MAX;
    }
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
    CHECK(h->header_bytes == PLAN_HEADER_BYTES && h->weights_offset == PLAN_HEADER_BYTES,
          "the plan's header gives %u bytes and weights at %llu, both must be %d", h->header_bytes,
          (ull)h->weights_offset, PLAN_HEADER_BYTES);
    CHECK(h->weights_bytes <= PLAN_BYTES_MAX && h->weights_bytes % PLAN_WEIGHT_ALIGN == 0,
          "the plan's header gives %llu weight bytes, not a multiple of %d within limits",
          (ull)h->weights_bytes, PLAN_WEIGHT_ALIGN);
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
static const struct { const char *name; uint32_t stride; } section_rules[PLAN_SECTION_KINDS] = {
    [PLAN_INFO] = {"info", sizeof(struct plan_info)},
    [PLAN_STRINGS] = {"strings", 1},
    [PLAN_CODE] = {"code", 1},
    [PLAN_KERNELS] = {"kernels", sizeof(struct plan_kernel)},
    [PLAN_ARGS] = {"args", sizeof(struct plan_arg)},
    [PLAN_LAUNCHES] = {"launches", sizeof(struct plan_launch)},
    [PLAN_PHASES] = {"phases", sizeof(struct plan_phase)},
    [PLAN_COVER] = {"cover", sizeof(uint16_t)},
    [PLAN_WEIGHTS] = {"weights", sizeof(struct plan_piece)},
    [PLAN_MEMORY] = {"memory", sizeof(struct plan_memory)},
    [PLAN_TOKENIZER] = {"tokenizer", 0},
    [PLAN_CHAT] = {"chat", 0},
    [PLAN_TESTS] = {"tests", sizeof(struct plan_test)},
    [PLAN_TEST_INPUTS] = {"test inputs", sizeof(struct plan_test_input)},
    [PLAN_TEST_VALUES] = {"test values", sizeof(struct plan_test_value)},
    [PLAN_TEST_MODEL] = {"test model", 1},
};

static bool check_directory(const struct plan_view *v, const struct plan_section **found,
                            struct jllm_error *e) {
    const struct plan_tail *tail = (const void *)v->tail;
    const struct plan_section *s = (const void *)(v->tail + sizeof *tail);
    uint64_t room = v->slot->tail_bytes;
    CHECK(tail->n_sections <= (room - sizeof *tail) / sizeof *s,
          "the plan's directory has %u sections, more than its tail can hold", tail->n_sections);
    uint64_t end = sizeof *tail + tail->n_sections * sizeof *s;
    for (uint32_t i = 0; i < tail->n_sections; i++, s++) {
        CHECK(s->offset % PLAN_SECTION_ALIGN == 0 && s->offset >= end &&
              fits(s->offset, s->bytes, room), "the plan's section %u (kind %u) lies outside the "
              "tail, overlaps another or is not aligned", i, s->kind);
        end = s->offset + s->bytes;
        CHECK(s->stride && s->bytes / s->stride == s->count && s->bytes % s->stride == 0,
              "the plan's section %u (kind %u) has %llu bytes for %u entries of %u", i, s->kind,
              (ull)s->bytes, s->count, s->stride);
        if (s->kind == 0 || s->kind >= PLAN_SECTION_KINDS) {
            CHECK(s->flags & PLAN_SECTION_OPTIONAL, "the plan has a section of kind %u, which this "
                  "version does not know: use the release that compiled it", s->kind);
            continue;
        }
        CHECK(!found[s->kind], "the plan has its %s section twice", section_rules[s->kind].name);
        CHECK(!section_rules[s->kind].stride || s->stride == section_rules[s->kind].stride,
              "the plan's %s section has entries of %u bytes, this version's have %u",
              section_rules[s->kind].name, s->stride, section_rules[s->kind].stride);
        found[s->kind] = s;
    }
    for (uint32_t kind = 1; kind < PLAN_SECTION_KINDS; kind++)
        CHECK(found[kind] || !section_rules[kind].stride, "the plan has no %s section",
              section_rules[kind].name);
    return true;
}

static bool bind_sections(struct plan_view *v, struct jllm_error *e) {
    const struct plan_section *found[PLAN_SECTION_KINDS] = {0};
    if (!check_directory(v, found, e)) return false;
#define AT(kind) ((const void *)(v->tail + found[kind]->offset))
#define TABLE(kind, field, least, most) \
    v->field = AT(kind), v->n_##field = found[kind]->count; \
    CHECK(v->n_##field >= (least) && v->n_##field <= (most), \
          "the plan has %u " #field ", allowed are %d to %d", v->n_##field, (least), (most))
    CHECK(found[PLAN_INFO]->count == 1, "the plan's info section has %u entries instead of 1",
          found[PLAN_INFO]->count);
    v->info = AT(PLAN_INFO);
    v->strings = AT(PLAN_STRINGS), v->strings_bytes = found[PLAN_STRINGS]->bytes;
    v->code = AT(PLAN_CODE), v->code_bytes = found[PLAN_CODE]->bytes;
    v->test_model = AT(PLAN_TEST_MODEL), v->test_model_bytes = found[PLAN_TEST_MODEL]->bytes;
    v->cover = AT(PLAN_COVER);
    TABLE(PLAN_KERNELS, kernels, 1, PLAN_KERNELS_MAX);
    TABLE(PLAN_ARGS, args, 0, PLAN_LAUNCHES_MAX * PLAN_ARGS_MAX);
    TABLE(PLAN_LAUNCHES, launches, 1, PLAN_LAUNCHES_MAX);
    TABLE(PLAN_PHASES, phases, 3, PLAN_BUCKETS_MAX + 3);
    TABLE(PLAN_WEIGHTS, pieces, 0, PLAN_PIECES_MAX);
    TABLE(PLAN_MEMORY, memory, 0, PLAN_PIECES_MAX);
    TABLE(PLAN_TESTS, tests, 0, PLAN_KERNELS_MAX);
    TABLE(PLAN_TEST_INPUTS, test_inputs, 0, PLAN_LAUNCHES_MAX);
    TABLE(PLAN_TEST_VALUES, test_values, 0, PLAN_LAUNCHES_MAX * PLAN_ARGS_MAX);
    CHECK(v->strings_bytes && !v->strings[0] && !v->strings[v->strings_bytes - 1],
          "the plan's strings section does not begin and end with a NUL");
    CHECK(found[PLAN_COVER]->count == (uint64_t)v->info->ctx_max + 1,
          "the plan's cover has %u entries for a context of %u", found[PLAN_COVER]->count,
          v->info->ctx_max);
    return true;
}

static bool is_string(const struct plan_view *v, uint32_t offset) {
    return offset < v->strings_bytes;
}

static bool check_info(const struct plan_view *v, struct jllm_error *e) {
    const struct plan_info *n = v->info;
    const uint32_t names[] = {n->model_name, n->arch_name, n->file_name, n->spec_name,
                              n->spec_hash, n->target_name, n->compiler_name, n->quant_name};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        CHECK(is_string(v, names[i]), "the plan's info names a string outside its strings section");
    CHECK(n->device == PLAN_DEVICE_CPU || n->device == PLAN_DEVICE_CUDA,
          "the plan is for device %u, which this version does not know", n->device);
    CHECK(n->n_vocab >= 1 && n->n_vocab <= PLAN_VOCAB_MAX, "the plan's n_vocab is %u, allowed are "
          "1 to %d", n->n_vocab, PLAN_VOCAB_MAX);
    CHECK(n->ctx_max >= 1 && n->ctx_max <= PLAN_CTX_MAX, "the plan's ctx_max is %u, allowed are "
          "1 to %d", n->ctx_max, PLAN_CTX_MAX);
    CHECK(n->n_tokens_max >= 1 && n->n_tokens_max <= PLAN_TOKENS_MAX, "the plan's n_tokens_max is "
          "%u, allowed are 1 to %d", n->n_tokens_max, PLAN_TOKENS_MAX);
    CHECK(n->arena_bytes <= PLAN_BYTES_MAX && n->cache_bytes <= PLAN_BYTES_MAX,
          "the plan's arena or cache is larger than any memory");
    CHECK(n->n_embd >= 1 && n->hidden_offset % PLAN_ARENA_ALIGN == 0 &&
          fits(n->hidden_offset, (uint64_t)n->n_tokens_max * n->n_embd * 4, n->arena_bytes),
          "the plan's residual stream lies outside its arena or is not aligned");
    CHECK(n->logits_offset % PLAN_ARENA_ALIGN == 0 &&
          fits(n->logits_offset, (uint64_t)n->n_vocab * 4, n->arena_bytes),
          "the plan's logits lie outside its arena or are not aligned");
    for (uint32_t i = 0; i < v->n_memory; i++)
        CHECK(is_string(v, v->memory[i].name), "the plan's memory row %u has no name", i);
    return true;
}

static bool check_pieces(const struct plan_view *v, struct jllm_error *e) {
    uint64_t end = 0, room = v->header->weights_bytes;
    for (uint32_t i = 0; i < v->n_pieces; i++) {
        const struct plan_piece *p = &v->pieces[i];
        CHECK(is_string(v, p->name) && is_string(v, p->quant) && is_string(v, p->layout),
              "the plan's weight piece %u names a string outside its strings section", i);
        CHECK(p->offset == end && p->bytes && fits(end, p->bytes, room), "the plan's weight piece "
              "%u (%s) does not follow the one before or ends outside the weights", i,
              v->strings + p->name);
        end = round_up(end + p->bytes, PLAN_WEIGHT_ALIGN);
    }
    CHECK(end == room, "the plan's weight pieces end at %llu of %llu weight bytes", (ull)end,
          (ull)room);
    return true;
}

static bool check_kernels(const struct plan_view *v, struct jllm_error *e) {
    for (uint32_t i = 0; i < v->n_kernels; i++) {
        const struct plan_kernel *k = &v->kernels[i];
        CHECK(is_string(v, k->name) && is_string(v, k->detail),
              "the plan's kernel %u names a string outside its strings section", i);
        CHECK(fits(k->code_offset, k->code_bytes, v->code_bytes) && k->entry < k->code_bytes,
              "the code of the plan's kernel %u (%s) lies outside the code section", i,
              v->strings + k->name);
        CHECK(v->info->device != PLAN_DEVICE_CPU || k->code_offset % PLAN_CODE_ALIGN == 0,
              "the code of the plan's kernel %u (%s) is not aligned", i, v->strings + k->name);
    }
    return true;
}

static bool check_args(const struct plan_view *v, struct jllm_error *e) {
    uint64_t room[PLAN_SPACE_END] = {0, v->info->arena_bytes, v->info->cache_bytes, 0,
                                     sizeof(struct plan_step)};
    for (uint32_t i = 0; i < v->n_args; i++) {
        const struct plan_arg *a = &v->args[i];
        CHECK(a->space >= PLAN_SPACE_ARENA && a->space < PLAN_SPACE_END,
              "the plan's argument %u is in unknown space %u", i, a->space);
        bool weights = a->space == PLAN_SPACE_WEIGHTS;
        CHECK(weights ? a->piece < v->n_pieces : a->piece == 0,
              "the plan's argument %u names weight piece %u", i, a->piece);
        CHECK(fits(a->offset, a->bytes, weights ? v->pieces[a->piece].bytes : room[a->space]),
              "the plan's argument %u lies outside its arena, cache, step or weight piece", i);
        CHECK((a->space != PLAN_SPACE_ARENA && a->space != PLAN_SPACE_CACHE) ||
              a->offset % PLAN_ARENA_ALIGN == 0, "the plan's argument %u is not aligned", i);
    }
    return true;
}

static bool check_launches(const struct plan_view *v, struct jllm_error *e) {
    for (uint32_t i = 0; i < v->n_launches; i++) {
        const struct plan_launch *l = &v->launches[i];
        CHECK(l->kernel < v->n_kernels && is_string(v, l->op),
              "the plan's launch %u names kernel %u of %u, or no op", i, l->kernel, v->n_kernels);
        CHECK(l->n_args <= PLAN_ARGS_MAX && fits(l->first_arg, l->n_args, v->n_args),
              "the plan's launch %u has %u arguments from %u, of %u", i, l->n_args, l->first_arg,
              v->n_args);
        CHECK(l->items && l->chunk && !(l->flags & ~(uint32_t)PLAN_LAUNCH_BARRIER),
              "the plan's launch %u has no items, no chunk, or unknown flags", i);
        CHECK(l->layer == UINT32_MAX || l->layer < v->info->n_layer,
              "the plan's launch %u is in layer %u of %u", i, l->layer, v->info->n_layer);
    }
    return true;
}

static bool check_phases(struct plan_view *v, struct jllm_error *e) {
    uint32_t n_of_kind[PLAN_PHASE_DECODE + 1] = {0}, bucket = 0;
    for (uint32_t i = 0; i < v->n_phases; i++) {
        const struct plan_phase *p = &v->phases[i];
        CHECK(p->kind >= PLAN_PHASE_PREFILL && p->kind <= PLAN_PHASE_DECODE,
              "the plan's phase %u is of unknown kind %u", i, p->kind);
        CHECK(p->n_launches && fits(p->first_launch, p->n_launches, v->n_launches),
              "the plan's phase %u has %u launches from %u, of %u", i, p->n_launches,
              p->first_launch, v->n_launches);
        CHECK(v->launches[p->first_launch].flags & PLAN_LAUNCH_BARRIER,
              "the plan's phase %u does not begin with a barrier", i);
        CHECK(p->kind == PLAN_PHASE_PREFILL && bucket ?
              p->n_tokens > bucket && p->n_tokens <= v->info->n_tokens_max : p->n_tokens == 1,
              "the plan's phase %u takes %u tokens: prefill phases must ascend from 1, head and "
              "decode take 1", i, p->n_tokens);
        n_of_kind[p->kind]++;
        if (p->kind == PLAN_PHASE_PREFILL) bucket = p->n_tokens;
        if (p->kind == PLAN_PHASE_HEAD) v->head_phase = i;
        if (p->kind == PLAN_PHASE_DECODE) v->decode_phase = i;
    }
    CHECK(n_of_kind[PLAN_PHASE_HEAD] == 1 && n_of_kind[PLAN_PHASE_DECODE] == 1,
          "the plan has %u head and %u decode phases instead of one each",
          n_of_kind[PLAN_PHASE_HEAD], n_of_kind[PLAN_PHASE_DECODE]);
    CHECK(bucket == v->info->n_tokens_max, "the plan's largest prefill phase takes %u tokens, its "
          "info says %u", bucket, v->info->n_tokens_max);
    for (uint32_t i = 1; i <= v->info->ctx_max; i++)
        CHECK(v->cover[i] < v->n_phases && v->phases[v->cover[i]].kind == PLAN_PHASE_PREFILL,
              "the plan's cover of %u tokens begins with phase %u, not a prefill phase", i,
              v->cover[i]);
    return true;
}

/* Seen as rows x cols of dtype, argument `arg` of a launch is memory that a test may write. */
static bool is_test_buffer(const struct plan_view *v, const struct plan_launch *l, uint32_t arg,
                           uint32_t dtype, uint32_t rows, uint32_t cols) {
    if (arg >= l->n_args || !rows || !cols) return false;
    const struct plan_arg *a = &v->args[l->first_arg + arg];
    return (a->space == PLAN_SPACE_ARENA || a->space == PLAN_SPACE_CACHE) &&
           plan_dtype_bytes(dtype, rows, cols) <= a->bytes;
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
        CHECK(t->kernel < v->n_kernels && t->launch < v->n_launches &&
              v->launches[t->launch].kernel == t->kernel,
              "the plan's test %u names kernel %u and launch %u, which do not belong together", i,
              t->kernel, t->launch);
        const struct plan_launch *l = &v->launches[t->launch];
        CHECK(t->n_tokens && t->n_tokens <= launch_tokens(v, t->launch) &&
              fits(t->pos, t->n_tokens, v->info->ctx_max) && t->row < v->info->n_tokens_max &&
              t->id < v->info->n_vocab, "the plan's test %u has a step out of range", i);
        CHECK(fits(t->first_input, t->n_inputs, v->n_test_inputs) && t->n_values &&
              fits(t->first_value, t->n_values, v->n_test_values) && t->bound > 0 && t->bound < 1,
              "the plan's test %u has inputs, values or a bound out of range", i);
        CHECK(is_test_buffer(v, l, t->out_arg, t->out_dtype, t->out_rows, t->out_cols),
              "the plan's test %u reads an output outside its argument", i);
        for (uint32_t j = t->first_input; j < t->first_input + t->n_inputs; j++) {
            const struct plan_test_input *in = &v->test_inputs[j];
            CHECK(is_test_buffer(v, l, in->arg, in->dtype, in->rows, in->cols) &&
                  isfinite(in->amplitude), "the plan's test input %u is outside its argument", j);
        }
        for (uint32_t j = t->first_value; j < t->first_value + t->n_values; j++)
            CHECK(v->test_values[j].row < t->out_rows && v->test_values[j].col < t->out_cols,
                  "the plan's test value %u is outside its output", j);
    }
    return true;
}

static bool check_test_model(const struct plan_view *v, struct jllm_error *e) {
    const struct plan_test_model *t = v->test_model;
    CHECK(v->test_model_bytes >= sizeof *t && t->n_tokens && t->n_tokens <= v->info->ctx_max &&
          t->n_values && t->n_values <= v->info->n_vocab && t->top1 < v->info->n_vocab &&
          t->bound > 0 && t->bound < 1 &&
          v->test_model_bytes == sizeof *t + t->n_tokens * 4ull + t->n_values * 8ull,
          "the plan's model test has counts, sizes or a bound out of range");
    const uint32_t *ids = (const uint32_t *)(t + 1), *values = ids + t->n_tokens;
    for (uint32_t i = 0; i < t->n_tokens; i++)
        CHECK(ids[i] < v->info->n_vocab, "the plan's model test has token id %u of %u", ids[i],
              v->info->n_vocab);
    for (uint32_t i = 0; i < t->n_values; i++)
        CHECK(values[2 * i] < v->info->n_vocab, "the plan's model test has logit %u of %u",
              values[2 * i], v->info->n_vocab);
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

void plan_close(struct plan_view *v) {
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

#ifdef JLLM_FUZZ
/* Fuzzers: hashes are made good again, so that mutations reach what lies behind them. Code of such
 * a plan is never run. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct plan_view v;
    struct jllm_error e;
    uint8_t *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, data, bytes);
    if (bytes >= PLAN_HEADER_BYTES) {
        struct plan_header *h = (void *)copy;
        h->header_hash = hash_bytes(h, offsetof(struct plan_header, header_hash));
        for (struct plan_slot *s = h->slot; s < h->slot + 2; s++) {
            if (fits(s->tail_offset, s->tail_bytes, bytes))
                s->tail_hash = hash_bytes(copy + s->tail_offset, s->tail_bytes);
            s->slot_hash = hash_bytes(s, offsetof(struct plan_slot, slot_hash));
        }
    }
    if (plan_check(&v, copy, bytes, &e)) plan_verify_weights(&v, &e);
    free(copy);
    return 0;
}
#endif
