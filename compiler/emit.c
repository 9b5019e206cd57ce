/* Lowers a program into the sections of plan.h and writes the file.
 *
 * Same program, same bytes: nothing here depends on time, threads, addresses or paths. Weights are packed in
 * chunks of a few MiB, so that memory does not grow with the model.
 */
#include "emit.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "layout.h"
#include "progress.h"

/* --- the output file ------------------------------------------------------------------------------- */

static const char *directory_of(const char *path, struct arena *a) {
    const char *slash = strrchr(path, '/');
    return slash ? arena_printf(a, "%.*s", (int)(slash - path + 1), path) : ".";
}

static bool output_failed(struct diag *d, const char *path, const char *what) {
    diag_error(d, "output", path, "cannot %s this file: %s", what, strerror(errno));
    return false;
}

/* Where a link points is what is written; a device, pipe or folder must not be replaced by a file of its name. */
bool output_open(struct output *o, const char *path, struct arena *a, struct diag *d) {
    struct stat st;
    *o = (struct output){.fd = -1, .path = path};
    if (!lstat(path, &st)) {
        char *target = realpath(path, NULL);
        if (!target || stat(target, &st) || !S_ISREG(st.st_mode)) {
            diag_error(d, "output", path, "this is not a regular file, and a plan does not replace what is there");
            free(target);
            return false;
        }
        o->path = path = arena_copy(a, target, strlen(target));
        free(target);
    }
    /* Without a name a killed compile leaves nothing; where the file system has no such files, a temporary name. */
    o->fd = open(directory_of(path, a), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (o->fd < 0) {
        o->temporary = arena_printf(a, "%s.%ld.partial", path, (long)getpid());
        o->fd = open(o->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (o->fd < 0) o->temporary = NULL;
    }
    return o->fd >= 0 || output_failed(d, path, "write");
}

void output_abandon(struct output *o) {
    if (o->temporary) unlink(o->temporary);
    if (o->fd >= 0) close(o->fd);
    o->fd = -1;
    o->temporary = NULL;
}

bool output_publish(struct output *o, struct arena *a, struct diag *d) {
    if (fsync(o->fd)) return output_failed(d, o->path, "write");
    if (!o->temporary) {   /* linkat does not replace, rename does */
        char *name = arena_printf(a, "%s.%ld.partial", o->path, (long)getpid());
        const char *self = arena_printf(a, "/proc/self/fd/%d", o->fd);
        unlink(name);
        if (linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW)) return output_failed(d, o->path, "name");
        o->temporary = name;
    }
    if (rename(o->temporary, o->path)) return output_failed(d, o->path, "name");
    o->temporary = NULL;
    int dir = open(directory_of(o->path, a), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir >= 0) {   /* the name itself */
        (void)fsync(dir);
        close(dir);
    }
    return true;
}

bool output_write(struct output *o, const void *p, size_t bytes, uint64_t offset, struct diag *d) {
    for (const char *from = p; bytes;) {
        ssize_t n = pwrite(o->fd, from, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return output_failed(d, o->path, "write");
        from += n, bytes -= (size_t)n, offset += (uint64_t)n;
    }
    return true;
}

/* --- weights --------------------------------------------------------------------------------------- */

enum { CHUNK_BYTES = 4 << 20, CHUNKS_MAX = 16 };

struct pack_batch {
    const struct piece *piece;
    uint64_t rows_per_chunk, first_row, n;
    uint8_t *out[CHUNKS_MAX];
    uint64_t bytes[CHUNKS_MAX];
};

static uint64_t rows_bytes(const struct piece *p, uint64_t rows) {
    uint64_t bytes = 0;
    bool ok = layout_bytes(p->layout, p->quant, rows, p->cols, &bytes);
    assert(ok);
    (void)ok;
    return bytes;
}

static void pack_one(void *user, size_t i) {
    struct pack_batch *b = user;
    const struct piece *p = b->piece;
    uint64_t first = b->first_row + i * b->rows_per_chunk, last = first + b->rows_per_chunk;
    if (last > p->rows) last = p->rows;
    b->bytes[i] = rows_bytes(p, last - first);
    if (p->tensor) layout_pack(p->layout, p->quant, p->tensor->data, p->rows, p->cols, first, last, b->out[i]);
    else memcpy(b->out[i], p->constant + first * p->cols, b->bytes[i]);
}

/* Rows of a chunk: whole tiles of about CHUNK_BYTES. */
static uint64_t chunk_rows(const struct piece *p) {
    uint64_t tile = p->tensor ? layout_tile_rows(p->layout) : 1, bytes = rows_bytes(p, tile);
    uint64_t tiles = bytes < CHUNK_BYTES ? CHUNK_BYTES / bytes : 1;
    return tile * tiles;
}

struct weights_writer {
    struct output *o;
    struct diag *d;
    uint8_t *buffers[CHUNKS_MAX];
    uint64_t room[CHUNKS_MAX];
    uint64_t written, total, next_report;
    struct progress progress;
};

static void reserve(struct weights_writer *w, unsigned i, uint64_t bytes) {
    if (w->room[i] >= bytes) return;
    free(w->buffers[i]);
    w->buffers[i] = malloc((size_t)bytes);
    if (!w->buffers[i]) base_fail("out of memory");
    w->room[i] = bytes;
}

static void report_progress(struct weights_writer *w) {
    const uint64_t step = (uint64_t)1 << 30;
    while (w->written >= w->next_report) {
        progress_step(&w->progress, "GiB of weights packed");
        w->next_report += step;
    }
}

static bool write_piece(struct weights_writer *w, const struct piece *p, struct plan_hash *hash) {
    static const uint8_t zeros[PLAN_WEIGHT_ALIGN];
    struct pack_batch b = {.piece = p, .rows_per_chunk = chunk_rows(p)};
    uint64_t offset = PLAN_HEADER_BYTES + p->offset, n_chunks = (p->rows + b.rows_per_chunk - 1) / b.rows_per_chunk;
    uint64_t at_once = (uint64_t)base_cores();
    if (at_once > CHUNKS_MAX) at_once = CHUNKS_MAX;
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    for (uint64_t done = 0; done < n_chunks; done += b.n) {
        b.n = n_chunks - done < at_once ? n_chunks - done : at_once;
        b.first_row = done * b.rows_per_chunk;
        for (unsigned i = 0; i < b.n; i++) {
            reserve(w, i, rows_bytes(p, b.rows_per_chunk));
            b.out[i] = w->buffers[i];
        }
        base_parallel((size_t)b.n, pack_one, &b);
        if (base_interrupted) return diag_error(w->d, "interrupted", NULL, "interrupted; nothing was written"), false;
        for (unsigned i = 0; i < b.n; i++) {
            XXH3_128bits_update(&state, b.out[i], (size_t)b.bytes[i]);
            if (!output_write(w->o, b.out[i], (size_t)b.bytes[i], offset, w->d)) return false;
            offset += b.bytes[i];
            w->written += b.bytes[i];
            report_progress(w);
        }
    }
    uint64_t padding = u64_round_up(p->bytes, PLAN_WEIGHT_ALIGN) - p->bytes;
    XXH3_128bits_update(&state, zeros, (size_t)padding);
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
    memcpy(hash->bytes, canonical.digest, sizeof hash->bytes);
    return output_write(w->o, zeros, (size_t)padding, offset, w->d);
}

static uint64_t weights_bytes(const struct program *p) {
    const struct piece *last = &p->pieces[p->n_pieces - 1];
    return last->offset + u64_round_up(last->bytes, PLAN_WEIGHT_ALIGN);
}

static bool write_weights(struct output *o, const struct program *p, struct plan_hash *hashes, struct diag *d) {
    struct weights_writer w = {.o = o, .d = d, .total = weights_bytes(p), .next_report = (uint64_t)1 << 30};
    bool ok = true;
    progress_begin(&w.progress, (size_t)(w.total >> 30));
    for (unsigned i = 0; ok && i < p->n_pieces; i++) ok = write_piece(&w, &p->pieces[i], &hashes[i]);
    progress_end(&w.progress);
    for (unsigned i = 0; i < CHUNKS_MAX; i++) free(w.buffers[i]);
    return ok;
}

/* --- sections -------------------------------------------------------------------------------------- */

struct tail { struct buffer section[PLAN_SECTION_KINDS]; uint32_t stride[PLAN_SECTION_KINDS]; };

static uint32_t string_add(struct tail *t, const char *s) {
    struct buffer *b = &t->section[PLAN_STRINGS];
    if (!b->bytes) buffer_append(b, "", 1);
    if (!s || !*s) return 0;
    size_t n = strlen(s) + 1;
    uint32_t at = (uint32_t)b->bytes;
    buffer_append(b, s, n);
    return at;
}

static void *item_add(struct tail *t, enum plan_section_kind kind, const void *item, size_t bytes) {
    t->stride[kind] = (uint32_t)bytes;
    return buffer_append(&t->section[kind], item, bytes);
}
#define ADD(t, kind, item) item_add(t, kind, &(item), sizeof(item))

static const char *quant_summary(const struct program *p, struct arena *a) {
    uint64_t bytes[QUANT_COUNT] = {0};
    for (unsigned i = 0; i < p->n_pieces; i++) bytes[p->pieces[i].quant - quant_formats] += p->pieces[i].gguf_bytes;
    const char *text = "";
    for (;;) {
        unsigned best = 0;
        for (unsigned q = 1; q < QUANT_COUNT; q++)
            if (bytes[q] > bytes[best]) best = q;
        if (!bytes[best]) return text;
        text = arena_printf(a, "%s%s%s", text, *text ? " " : "", quant_formats[best].name);
        bytes[best] = 0;
    }
}

static const struct program_phase *find_phase(const struct program *p, enum plan_phase_kind kind) {
    unsigned i = 0;
    while (i < p->n_phases && p->phases[i].kind != kind) i++;
    assert(i < p->n_phases);
    return &p->phases[i];
}

static uint64_t phase_sum(const struct program *p, const struct program_phase *ph, bool flops) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < ph->n_launches; i++)
        sum += flops ? p->launches[ph->first_launch + i].flops : p->launches[ph->first_launch + i].bytes;
    return sum;
}

static void add_info(struct tail *t, const struct emit_input *in, struct arena *a) {
    const struct program *p = in->program;
    const struct model *m = p->model;
    const struct toolchain *tc = in->toolchain;
    char hex[33];
    hash_hex(p->spec->hash, hex);
    const char *spec_hash = in->spec_hash ? in->spec_hash : hex;
    const char *slash = strrchr(m->gguf->path, '/');
    struct plan_info info = {
        .device = tc->device, .isa = tc->isa, .features = tc->features, .sm_arch = tc->sm_arch, .driver_min = tc->driver_min,
        .n_vocab = m->n_vocab, .n_layer = m->n_layer, .n_embd = m->n_embd, .ctx_max = p->ctx_max,
        .ctx_train = m->ctx_train, .arena_bytes = p->arena_bytes, .cache_bytes = p->cache_bytes,
        .logits_offset = p->logits_offset, .hidden_offset = p->hidden_offset, .candidates_offset = p->candidates_offset,
        .decode_bytes = phase_sum(p, find_phase(p, PLAN_PHASE_DECODE), false),
        .macs_per_token = phase_sum(p, find_phase(p, PLAN_PHASE_PREFILL), true) / 2,
        .model_name = string_add(t, m->name), .arch_name = string_add(t, m->arch->name),
        .file_name = string_add(t, slash ? slash + 1 : m->gguf->path), .spec_name = string_add(t, in->spec_name),
        .spec_hash = string_add(t, spec_hash), .target_name = string_add(t, tc->target),
        .compiler_name = string_add(t, tc->version), .quant_name = string_add(t, quant_summary(p, a)),
    };
    for (unsigned i = 0; i < p->n_phases; i++)
        if (p->phases[i].n_tokens > info.n_tokens_max) info.n_tokens_max = p->phases[i].n_tokens;
    ADD(t, PLAN_INFO, info);
}

static const char *kernel_quant(const struct kernel *k) {
    const struct key_field *quant = kernel_key(k, "quant");
    return quant && quant->type == KEY_STRING ? quant->string : "";
}

static uint32_t kernel_size(const struct kernel *k, const char *name) { return (uint32_t)kernel_key_integer(k, name, 0); }

static void add_kernels(struct tail *t, const struct emit_input *in, struct arena *a) {
    const struct program *p = in->program;
    struct buffer *code = &t->section[PLAN_CODE];
    t->stride[PLAN_CODE] = 1;
    for (unsigned i = 0; i < p->n_kernels; i++) {
        const struct kernel *k = &p->kernels[i];
        const char *detail = in->details && in->details[i] ? in->details[i] : kernel_reasons(k, a);
        buffer_align(code, in->toolchain->code_align);
        struct plan_kernel out = {.name = string_add(t, k->name), .detail = string_add(t, detail),
                                  .code_offset = code->bytes, .code_bytes = k->image_bytes, .entry = k->entry,
                                  .registers = k->registers, .spill_bytes = k->spill_bytes, .shared_bytes = k->shared_bytes,
                                  .template_name = string_add(t, k->template->name), .quant = string_add(t, kernel_quant(k)),
                                  .m = kernel_size(k, "m"), .k = kernel_size(k, "k"), .n = kernel_size(k, "n")};
        memcpy(out.source_hash.bytes, k->source_hash.bytes, sizeof out.source_hash.bytes);
        buffer_append(code, k->image, k->image_bytes);
        ADD(t, PLAN_KERNELS, out);
    }
}

static struct plan_arg lower_arg(const struct program *p, const struct launch_arg *arg) {
    struct plan_arg out = {.space = arg->space, .offset = arg->offset, .bytes = arg->bytes};
    if (arg->space == PLAN_SPACE_ARENA) out.offset += p->values[arg->index].offset;
    if (arg->space == PLAN_SPACE_WEIGHTS) out.piece = arg->index;
    return out;
}

static void add_launches(struct tail *t, const struct program *p) {
    uint32_t op_string[OP_COUNT], n_args = 0;
    for (unsigned i = 0; i < OP_COUNT; i++) op_string[i] = string_add(t, graph_op_names[i]);
    for (unsigned i = 0; i < p->n_launches; i++) {
        const struct launch *l = &p->launches[i];
        struct plan_launch out = {.kernel = l->kernel, .first_arg = n_args, .n_args = l->n_args,
                                  .flags = l->barrier ? PLAN_LAUNCH_BARRIER : 0, .items = l->items, .chunk = l->chunk,
                                  .grid_y = l->grid_y, .grid_z = l->grid_z, .shared_bytes = l->shared_bytes,
                                  .op = op_string[l->op->kind], .layer = l->op->layer, .bytes = l->bytes, .flops = l->flops};
        ADD(t, PLAN_LAUNCHES, out);
        n_args += l->n_args;
        for (unsigned j = 0; j < l->n_args; j++) {
            struct plan_arg arg = lower_arg(p, &l->args[j]);
            ADD(t, PLAN_ARGS, arg);
        }
    }
}

static void add_phases(struct tail *t, const struct emit_input *in) {
    const struct program *p = in->program;
    for (unsigned i = 0; i < p->n_phases; i++) {
        const struct program_phase *ph = &p->phases[i];
        struct plan_phase out = {ph->kind, ph->n_tokens, ph->first_launch, ph->n_launches, ph->cost_ns};
        ADD(t, PLAN_PHASES, out);
    }
    t->stride[PLAN_COVER] = sizeof *in->cover;
    buffer_append(&t->section[PLAN_COVER], in->cover, ((size_t)p->ctx_max + 1) * sizeof *in->cover);
}

static void add_pieces(struct tail *t, const struct program *p, const struct plan_hash *hashes) {
    for (unsigned i = 0; i < p->n_pieces; i++) {
        const struct piece *from = &p->pieces[i];
        struct plan_piece out = {.name = string_add(t, from->name), .quant = string_add(t, from->quant->name),
                                 .layout = string_add(t, from->layout), .offset = from->offset, .bytes = from->bytes,
                                 .gguf_bytes = from->gguf_bytes, .rows = from->rows, .cols = from->cols, .hash = hashes[i]};
        ADD(t, PLAN_WEIGHTS, out);
    }
}

unsigned emit_memory(const struct program *p, struct memory_row rows[MEMORY_ROWS]) {
    uint64_t code = 0;
    for (unsigned i = 0; i < p->n_kernels; i++) code += u64_round_up(p->kernels[i].image_bytes, PLAN_CODE_ALIGN);
    rows[0] = (struct memory_row){"weights", weights_bytes(p)};
    rows[1] = (struct memory_row){"cache", p->cache_bytes};
    rows[2] = (struct memory_row){"activations", p->arena_bytes};
    rows[3] = (struct memory_row){"code", code};
    if (strcmp(spec_get(p->spec, "target.device")->string, "cuda")) return 4;   /* a CPU's reserve is the system's to keep */
    rows[4] = (struct memory_row){"reserve", (uint64_t)spec_get(p->spec, "memory.reserve_mib")->integer << 20};
    return 5;
}

static void add_memory(struct tail *t, const struct program *p) {
    struct memory_row rows[MEMORY_ROWS];
    for (unsigned i = 0, n = emit_memory(p, rows); i < n; i++) {
        struct plan_memory out = {.name = string_add(t, rows[i].name), .bytes = rows[i].bytes};
        ADD(t, PLAN_MEMORY, out);
    }
}

/* Sections that every plan has, also one without tests. */
static void add_tests(struct tail *t, const struct selftest *s) {
    t->stride[PLAN_TESTS] = sizeof *s->tests, t->stride[PLAN_TEST_INPUTS] = sizeof *s->inputs, t->stride[PLAN_TEST_VALUES] = sizeof *s->values;
    for (unsigned i = 0; i < s->n_tests; i++) ADD(t, PLAN_TESTS, s->tests[i]);
    for (unsigned i = 0; i < s->n_inputs; i++) ADD(t, PLAN_TEST_INPUTS, s->inputs[i]);
    for (unsigned i = 0; i < s->n_values; i++) ADD(t, PLAN_TEST_VALUES, s->values[i]);
    struct buffer *b = &t->section[PLAN_TEST_MODEL];
    t->stride[PLAN_TEST_MODEL] = 1;
    buffer_append(b, &s->model, sizeof s->model);
    buffer_append(b, s->ids, s->model.n_tokens * sizeof *s->ids);
    buffer_append(b, s->logits, s->model.n_values * sizeof *s->logits);
}

static void add_blob(struct tail *t, enum plan_section_kind kind, const struct buffer *from) {
    if (!from || !from->bytes) return;
    t->stride[kind] = 1;
    buffer_append(&t->section[kind], from->data, from->bytes);
}

/* Directory, then sections, into one buffer. */
static void tail_assemble(struct tail *t, struct buffer *out) {
    struct plan_tail head = {0};
    for (unsigned kind = 1; kind < PLAN_SECTION_KINDS; kind++) head.n_sections += t->section[kind].bytes > 0 || t->stride[kind];
    buffer_append(out, &head, sizeof head);
    size_t directory = out->bytes;
    buffer_append(out, NULL, head.n_sections * sizeof(struct plan_section));
    for (unsigned kind = 1; kind < PLAN_SECTION_KINDS; kind++) {
        const struct buffer *b = &t->section[kind];
        if (!b->bytes && !t->stride[kind]) continue;
        buffer_align(out, PLAN_SECTION_ALIGN);
        struct plan_section s = {.kind = kind, .offset = out->bytes, .bytes = b->bytes, .stride = t->stride[kind]};
        s.flags = kind == PLAN_CHAT || kind >= PLAN_FORECAST ? PLAN_SECTION_OPTIONAL : 0;
        if (!s.stride) s.stride = 1;
        s.count = (uint32_t)(b->bytes / s.stride);
        buffer_append(out, b->data, b->bytes);
        memcpy(out->data + directory, &s, sizeof s);
        directory += sizeof s;
    }
}

struct plan_hash emit_hash(const void *p, size_t bytes) {
    struct hash128 h = hash_bytes(p, bytes);
    struct plan_hash out;
    memcpy(out.bytes, h.bytes, sizeof out.bytes);
    return out;
}

void emit_header(struct plan_header *h, struct hash128 gguf_hash, uint64_t weights) {
    *h = (struct plan_header){.version = PLAN_VERSION, .header_bytes = PLAN_HEADER_BYTES,
                              .weights_offset = PLAN_HEADER_BYTES, .weights_bytes = weights};
    memcpy(h->magic, PLAN_MAGIC, sizeof h->magic);
    memcpy(h->gguf_hash.bytes, gguf_hash.bytes, sizeof h->gguf_hash.bytes);
    h->header_hash = emit_hash(h, offsetof(struct plan_header, header_hash));
}

void emit_slot(struct plan_slot *s, uint64_t generation, uint64_t offset, const struct buffer *tail) {
    *s = (struct plan_slot){.generation = generation, .tail_offset = offset, .tail_bytes = tail->bytes,
                            .tail_hash = emit_hash(tail->data, tail->bytes)};
    s->slot_hash = emit_hash(s, offsetof(struct plan_slot, slot_hash));
}

static bool write_header(struct output *o, const struct emit_input *in, uint64_t weights, const struct buffer *tail, struct diag *d) {
    struct plan_header h;
    emit_header(&h, in->gguf_hash, weights);
    emit_slot(&h.slot[0], 1, h.weights_offset + weights, tail);
    uint8_t page[PLAN_HEADER_BYTES] = {0};
    memcpy(page, &h, sizeof h);
    return output_write(o, page, sizeof page, 0, d);
}

void emit_tail(const struct emit_input *in, const struct plan_hash *hashes, struct buffer *tail, struct arena *a) {
    const struct program *p = in->program;
    struct tail t = {0};
    add_info(&t, in, a);
    add_kernels(&t, in, a);
    add_launches(&t, p);
    add_phases(&t, in);
    add_pieces(&t, p, hashes);
    add_memory(&t, p);
    add_tests(&t, in->selftest);
    add_blob(&t, PLAN_TOKENIZER, in->tokenizer);
    add_blob(&t, PLAN_CHAT, in->chat);
    if (in->forecast) ADD(&t, PLAN_FORECAST, *in->forecast);
    add_blob(&t, PLAN_ORIGIN, in->origin);
    const char *target = spec_get(p->spec, "target.name")->string;
    buffer_append(&t.section[PLAN_TARGET], target, strlen(target) + 1);
    tail_assemble(&t, tail);
    for (unsigned i = 0; i < PLAN_SECTION_KINDS; i++) buffer_free(&t.section[i]);
}

bool emit_plan(struct output *o, const struct emit_input *in, struct emit_result *r, struct arena *a, struct diag *d) {
    const struct program *p = in->program;
    struct plan_hash *hashes = arena_array(a, p->n_pieces + 1u, sizeof *hashes);
    struct buffer tail = {0};
    if (!write_weights(o, p, hashes, d)) return false;
    emit_tail(in, hashes, &tail, a);
    r->weights_bytes = weights_bytes(p);
    r->tail_bytes = tail.bytes;
    r->plan_bytes = PLAN_HEADER_BYTES + r->weights_bytes + tail.bytes;
    bool ok = output_write(o, tail.data, tail.bytes, PLAN_HEADER_BYTES + r->weights_bytes, d) &&
              write_header(o, in, r->weights_bytes, &tail, d);
    if (ok && !file_map_unchanged(&p->model->gguf->map, p->model->gguf->path)) {
        diag_error(d, "model-changed", p->model->gguf->path, "the file changed while it was compiled; compile it again");
        ok = false;
    }
    ok = ok && output_publish(o, a, d);
    buffer_free(&tail);
    return ok;
}

/* --- as text --------------------------------------------------------------------------------------- */

static void print_launch(const struct program *p, const struct launch *l, unsigned index, FILE *out) {
    static const char *const spaces[] = {"", "arena", "cache", "weights", "step"};
    const struct kernel *k = &p->kernels[l->kernel];
    fprintf(out, "  %5u %c %s items=%u chunk=%u", index, l->barrier ? '|' : ' ', k->name, l->items, l->chunk);
    if (l->grid_y != 1 || l->grid_z != 1) fprintf(out, " grid_y=%u grid_z=%u", l->grid_y, l->grid_z);
    if (l->shared_bytes) fprintf(out, " shared=%u", l->shared_bytes);
    fprintf(out, " bytes=%" PRIu64, l->bytes);
    for (unsigned j = 0; j < l->n_args; j++) {
        struct plan_arg arg = lower_arg(p, &l->args[j]);
        fprintf(out, " %s=", k->template->args[j]);
        if (arg.space == PLAN_SPACE_WEIGHTS) fprintf(out, "%s", p->pieces[arg.piece].name);
        else fprintf(out, "%s+0x%" PRIx64, spaces[arg.space], arg.offset);
    }
    fputc('\n', out);
}

void emit_print(const struct emit_input *in, FILE *out) {
    static const char *const kinds[] = {"", "prefill", "head", "decode", "candidates"};
    const struct program *p = in->program;
    fprintf(out, "plan %s: %u layers, context %u, target %s\n", p->model->name, p->model->n_layer, p->ctx_max, in->toolchain->target);
    fprintf(out, "arena %" PRIu64 ", cache %" PRIu64 ", logits at 0x%" PRIx64 ", hidden at 0x%" PRIx64 "\n", p->arena_bytes,
            p->cache_bytes, p->logits_offset, p->hidden_offset);
    for (unsigned i = 0; i < p->n_kernels; i++)
        fprintf(out, "kernel %u %s %zu bytes\n", i, p->kernels[i].name, p->kernels[i].image_bytes);
    for (unsigned i = 0; i < p->n_pieces; i++)
        fprintf(out, "weight %u %s %s %s %" PRIu64 "x%" PRIu64 " at 0x%" PRIx64 " %" PRIu64 " bytes\n", i, p->pieces[i].name,
                p->pieces[i].quant->name, p->pieces[i].layout, p->pieces[i].rows, p->pieces[i].cols, p->pieces[i].offset,
                p->pieces[i].bytes);
    for (unsigned i = 0; i < p->n_phases; i++) {
        const struct program_phase *ph = &p->phases[i];
        fprintf(out, "phase %u %s n=%u cost=%" PRIu64 "ns\n", i, kinds[ph->kind], ph->n_tokens, ph->cost_ns);
        for (uint32_t j = 0; j < ph->n_launches; j++)
            print_launch(p, &p->launches[ph->first_launch + j], ph->first_launch + j, out);
    }
}
