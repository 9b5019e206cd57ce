/* Whole passes with what was found and without; see tune_passes.h.
 *
 * The plans that are compared are tails of one file in memory. Its weights are seeded; layers share those of as many layers as are
 * twice the last cache, so that no pass finds its own there.
 */
#include "tune_passes.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emit.h"
#include "memory.h"
#include "pack.h"
#include "passes.h"
#include "seeded.h"
#include "tune_internal.h"

enum { COMPARISONS_MAX = 24, COMPARISON_SECONDS = 20 };
#define CLOCK 0.005       /* of a pass: so much the clock alone may do */

/* What stands or falls together: a unit, or all of a group whose order of sums is another. */
struct change { uint32_t *units; unsigned n_units; bool kept; };

struct compared {
    struct tuner *t;
    struct tune_verdict *v;
    const struct program *program;     /* as the spec has it: its phases and launches are those of every plan */
    uint32_t *unit_of;                 /* [n_kernels] of the program; UINT32_MAX: none */
    int64_t **before, **found;         /* [n_units]: values by the rows that passes have confirmed, and by all rows */
    uint32_t *change_of;               /* [n_units]; UINT32_MAX: none */
    struct change *changes; unsigned n_changes;
    double *before_us, *us;            /* [n_phases]: with no change, and with those that are kept */
    bool *stale;                       /* [n_phases]: not with those that are kept now */
    bool *accepted;                    /* [n_phases]: no faster, but what makes it so is worth it elsewhere */
    double until;
    unsigned n_comparisons;
    /* the plan in memory */
    int fd;
    struct piece *pieces; unsigned n_pieces;
    uint32_t *piece_of;                /* [n_pieces] of the program: which of those is read in its place */
    struct plan_hash *hashes;
    uint64_t weights_bytes;
    struct passes old;
};

/* --- what has changed ------------------------------------------------------------------------------- */

/* The last choice for a unit that a spec would take from the file today; `confirmed`: of those that passes have confirmed. */
static const struct tuned_row *holding(const struct tuner *t, const struct tune_unit *u, bool shape, bool confirmed) {
    struct tuned_row like = tune_row(t, u, u->now, shape ? TUNE_SHAPE : TUNE_KERNEL);
    for (unsigned i = t->n_choices; i-- > 0;) {
        const struct tuned_row *r = &t->choices[i];
        if (r->shape == shape && tune_same_launches(r, &like) && !strcmp(r->hash, like.hash) && !strcmp(r->target, like.target) &&
            (!confirmed || (r->status && !strcmp(r->status, TUNED_PASSES)))) return r;
    }
    return NULL;
}

static bool is_none(struct hash128 identity) {
    const struct hash128 none = {{0}};
    return !memcmp(&identity, &none, sizeof none);
}

/* Choices of another spec may be none that this one allows. */
static int64_t *values_of(struct tuner *t, uint32_t unit, bool confirmed) {
    const struct tune_unit *u = &t->all.units[unit];
    int64_t *out = arena_array(t->a, u->template->n_params, sizeof *out);
    memcpy(out, u->now, u->template->n_params * sizeof *out);
    for (unsigned shape = 0; shape < 2; shape++) {
        const struct tuned_row *r = tune_has_params(u->template, shape) ? holding(t, u, shape, confirmed) : NULL;
        if (r) tune_take_row(r, u->template, out);
    }
    return is_none(tune_identity(t, u, out)) ? u->now : out;
}

static bool same_values(const struct tune_unit *u, const int64_t *x, const int64_t *y, bool shape_alone) {
    for (unsigned i = 0; i < u->template->n_params; i++)
        if (x[i] != y[i] && (!shape_alone || u->template->params[i].shape)) return false;
    return true;
}

static bool differs(struct compared *c, uint32_t unit) {
    const struct tune_unit *u = &c->t->all.units[unit];
    struct hash128 x = tune_identity(c->t, u, c->before[unit]), y = tune_identity(c->t, u, c->found[unit]);
    return memcmp(&x, &y, sizeof x) != 0;
}

static struct change *add_change(struct compared *c) {
    struct change *x = &c->changes[c->n_changes++];
    *x = (struct change){.units = arena_array(c->t->a, c->t->all.n_units, sizeof *x->units), .kept = true};
    return x;
}

static void add_unit(struct compared *c, struct change *x, uint32_t unit) {
    c->change_of[unit] = (uint32_t)(x - c->changes);
    x->units[x->n_units++] = unit;
}

static void find_changes_of(struct compared *c, unsigned group) {
    const struct tune_unit *units = c->t->all.units;
    unsigned n = c->t->all.n_units;
    bool whole = false;
    for (uint32_t i = 0; i < n; i++)
        if (units[i].group == group && differs(c, i)) whole |= !same_values(&units[i], c->before[i], c->found[i], true);
    struct change *all = whole ? add_change(c) : NULL;
    for (uint32_t i = 0; i < n; i++)
        if (units[i].group == group && (whole ? !same_values(&units[i], c->before[i], c->found[i], false) : differs(c, i)))
            add_unit(c, all ? all : add_change(c), i);
}

static void find_changes(struct compared *c) {
    struct tuner *t = c->t;
    unsigned n = t->all.n_units;
    c->unit_of = arena_array(t->a, c->program->n_kernels + 1u, sizeof *c->unit_of);
    c->before = arena_array(t->a, n, sizeof *c->before), c->found = arena_array(t->a, n, sizeof *c->found);
    c->change_of = arena_array(t->a, n, sizeof *c->change_of);
    c->changes = arena_array(t->a, n, sizeof *c->changes);
    memset(c->unit_of, 0xff, (c->program->n_kernels + 1u) * sizeof *c->unit_of);
    memset(c->change_of, 0xff, n * sizeof *c->change_of);
    for (uint32_t i = 0; i < n; i++) {
        c->unit_of[t->all.units[i].kernel] = i;
        c->before[i] = values_of(t, i, true), c->found[i] = values_of(t, i, false);
    }
    for (unsigned g = 0; g < t->all.n_groups; g++) find_changes_of(c, g);
}

/* The change that a launch has part in; NULL: none that is kept. */
static struct change *change_at(const struct compared *c, uint32_t phase, uint32_t launch) {
    uint32_t unit = c->unit_of[c->program->launches[c->program->phases[phase].first_launch + launch].kernel];
    uint32_t i = unit == UINT32_MAX ? UINT32_MAX : c->change_of[unit];
    return i == UINT32_MAX || !c->changes[i].kept ? NULL : &c->changes[i];
}

static bool is_touched(const struct compared *c, uint32_t phase) {
    const struct program_phase *p = &c->program->phases[phase];
    for (uint32_t j = 0; j < p->n_launches && p->n_tokens <= c->program->ctx_max; j++)
        if (change_at(c, phase, j)) return true;
    return false;
}

/* Values of a unit in the plan at hand. */
static int64_t *values_now(const struct compared *c, uint32_t unit) {
    uint32_t i = c->change_of[unit];
    return i != UINT32_MAX && c->changes[i].kept ? c->found[unit] : c->before[unit];
}

/* --- plans in memory -------------------------------------------------------------------------------- */

static bool failed(struct compared *c, const char *why) {
    if (!c->v->why_not && !base_interrupted) c->v->why_not = arena_printf(c->t->a, "%s", why);
    return false;
}

/* "attn_q.weight" of "blk.12.attn_q.weight", and 12; of what belongs to no layer, the name and UINT32_MAX. */
static const char *name_in_layer(const char *name, uint32_t *layer) {
    char *end;
    *layer = UINT32_MAX;
    if (strncmp(name, "blk.", 4)) return name;
    unsigned long n = strtoul(name + 4, &end, 10);
    if (end == name + 4 || *end != '.') return name;
    *layer = (uint32_t)n;
    return end + 1;
}

static bool same_form(const struct piece *x, const struct piece *y) {
    return !strcmp(x->layout, y->layout) && x->quant == y->quant && x->rows == y->rows && x->cols == y->cols && !x->tensor == !y->tensor;
}

/* Layers with weights of their own: twice the last cache, and one more for the one that is just being read. */
static uint32_t own_layers(const struct compared *c) {
    uint64_t bytes = 0;
    uint32_t layer, n = c->program->model->n_layer;
    for (uint32_t i = 0; i < c->program->n_pieces; i++)
        if (*name_in_layer(c->program->pieces[i].name, &layer) && layer != UINT32_MAX) bytes += c->program->pieces[i].bytes;
    return bytes ? (uint32_t)(c->t->bench.rotate_bytes / (bytes / n + 1)) + 2 : n;
}

/* The piece of a layer below n that is as good as piece i of a later one; UINT32_MAX: none. Later layers take turns. */
static uint32_t find_twin(const struct program *p, uint32_t i, uint32_t n, const uint32_t *piece_of) {
    uint32_t layer, other, found = UINT32_MAX;
    const char *name = name_in_layer(p->pieces[i].name, &layer);
    if (layer == UINT32_MAX || layer < n) return UINT32_MAX;
    for (uint32_t j = 0; j < i; j++) {
        bool same = !strcmp(name_in_layer(p->pieces[j].name, &other), name) && other < n && same_form(&p->pieces[i], &p->pieces[j]);
        if (same && (found == UINT32_MAX || other <= layer % n)) found = j;
    }
    return found == UINT32_MAX ? found : piece_of[found];
}

static void choose_pieces(struct compared *c) {
    const struct program *p = c->program;
    uint32_t n = own_layers(c);
    c->pieces = arena_array(c->t->a, p->n_pieces, sizeof *c->pieces);
    c->piece_of = arena_array(c->t->a, p->n_pieces, sizeof *c->piece_of);
    c->hashes = arena_array(c->t->a, p->n_pieces, sizeof *c->hashes);
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        c->piece_of[i] = find_twin(p, i, n, c->piece_of);
        if (c->piece_of[i] != UINT32_MAX) continue;
        c->piece_of[i] = c->n_pieces;
        c->pieces[c->n_pieces] = p->pieces[i];
        c->pieces[c->n_pieces++].offset = c->weights_bytes;
        c->weights_bytes += u64_round_up(p->pieces[i].bytes, PLAN_WEIGHT_ALIGN);
    }
}

/* A constant (a table of cosines and sines) is any numbers from -1 to 1. */
static void fill_piece(const struct piece *like, unsigned seed, uint8_t *out) {
    struct arena a = {0};
    struct piece p = *like;
    if (p.tensor) {
        seeded_give(&p, seed, &a);
        seeded_pack(&p, out);
    } else for (uint64_t i = 0; i < p.bytes / 4; i++) {
        float x = plan_seeded(seed, i);
        memcpy(out + 4 * i, &x, sizeof x);
    }
    arena_free(&a);
}

/* Pieces of one form have the same bytes: each is made once. */
static bool write_weights(struct compared *c) {
    bool *done = arena_array(c->t->a, c->n_pieces + 1u, sizeof *done), ok = c->fd >= 0;
    for (uint32_t i = 0; i < c->n_pieces && ok && !base_interrupted; i++) {
        uint64_t room = u64_round_up(c->pieces[i].bytes, PLAN_WEIGHT_ALIGN);
        if (done[i]) continue;
        uint8_t *data = calloc(1, (size_t)room);
        if (!data) base_fail("out of memory");
        fill_piece(&c->pieces[i], i, data);
        struct plan_hash hash = emit_hash(data, (size_t)room);
        for (uint32_t j = i; j < c->n_pieces && ok; j++) {
            if (done[j] || !same_form(&c->pieces[i], &c->pieces[j])) continue;
            c->hashes[j] = hash, done[j] = true;
            ok = file_put_at(c->fd, data, (size_t)room, PLAN_HEADER_BYTES + c->pieces[j].offset);
        }
        free(data);
    }
    if (!ok) return failed(c, arena_printf(c->t->a, "no memory for the weights of a plan: %s", strerror(errno)));
    return !base_interrupted;
}

/* The model's program with the values at hand, compiled; p's weights are those in memory. */
static bool make_program(struct compared *c, struct program *p, struct arena *a) {
    struct tuner *t = c->t;
    int64_t **values = arena_array(a, t->all.n_units, sizeof *values);
    struct spec *s = arena_alloc(a, sizeof *s);
    struct graph *g = arena_alloc(a, sizeof *g);
    bool quiet = progress_quiet;
    for (uint32_t i = 0; i < t->all.n_units; i++) values[i] = values_now(c, i);
    tuner_spec(t, values, "tune", s);
    graph_build(g, t->all.model, s->buckets, s->n_buckets, a);
    if (!contract_lower(p, t->all.model, s, g, a, t->d)) return false;
    memory_plan(p);
    progress_quiet = true;
    bool ok = toolchain_compile(&t->toolchain, p, a, t->d);
    progress_quiet = quiet;
    assert(p->n_pieces == c->program->n_pieces && p->n_phases == c->program->n_phases);
    for (uint32_t i = 0; i < p->n_launches; i++)
        for (unsigned j = 0; j < p->launches[i].n_args; j++)
            if (p->launches[i].args[j].space == PLAN_SPACE_WEIGHTS) p->launches[i].args[j].index = c->piece_of[p->launches[i].args[j].index];
    p->pieces = c->pieces, p->n_pieces = c->n_pieces;
    return ok;
}

static bool make_tail(struct compared *c, struct buffer *tail) {
    struct arena a = {0};
    struct program p;
    struct selftest *tests = arena_alloc(&a, sizeof *tests);
    bool ok = make_program(c, &p, &a);
    if (ok) {
        struct model m = *p.model;
        if (m.n_layer > p.n_pieces) m.n_layer = p.n_pieces;    /* a plan with fewer pieces than layers is refused */
        p.model = &m;
        selftest_begin(tests, p.n_kernels, &a);
        tests->model = (struct plan_test_model){.n_tokens = 1, .n_values = 1, .bound = 0.5f};   /* there is no model to test */
        struct emit_input in = {.program = &p, .toolchain = &c->t->toolchain, .selftest = tests, .spec_name = "tune",
                                .cover = arena_array(&a, p.ctx_max + 1u, sizeof *in.cover)};
        emit_tail(&in, c->hashes, tail, &a);
    }
    arena_free(&a);
    return ok;
}

/* The plan as it was before, first in the file. */
static bool open_old(struct compared *c) {
    union { struct plan_header h; uint8_t page[PLAN_HEADER_BYTES]; } head = {.page = {0}};
    struct buffer tail = {0};
    struct jllm_error e = {0};
    choose_pieces(c);
    c->fd = memfd_create("jllmc-passes", MFD_CLOEXEC);
    for (unsigned i = 0; i < c->n_changes; i++) c->changes[i].kept = false;
    bool ok = write_weights(c) && make_tail(c, &tail);
    for (unsigned i = 0; i < c->n_changes; i++) c->changes[i].kept = true;
    if (ok) {
        emit_header(&head.h, (struct hash128){0}, c->weights_bytes);
        emit_slot(&head.h.slot[0], 1, PLAN_HEADER_BYTES + c->weights_bytes, &tail);
        ok = (file_put_at(c->fd, tail.data, tail.bytes, PLAN_HEADER_BYTES + c->weights_bytes) &&
              file_put_at(c->fd, head.page, sizeof head.page, 0)) ||
             failed(c, arena_printf(c->t->a, "no memory for a plan: %s", strerror(errno)));
    }
    buffer_free(&tail);
    return ok && (passes_open(&c->old, arena_printf(c->t->a, "/proc/self/fd/%d", c->fd), c->before_us, &e) || failed(c, e.text));
}

/* --- comparisons ------------------------------------------------------------------------------------ */

/* A launch by a file of recorded times; what a unit takes as it was by those of any of its candidates. Below 0: there is none. */
static double replayed_us(struct tuner *t, uint32_t unit, int64_t *values) {
    const struct tune_unit *u = &t->all.units[unit];
    struct tuned_row like = tune_row(t, u, u->now, TUNE_ALL);
    struct hash128 wanted = tune_identity(t, u, values), now = tune_identity(t, u, u->now);
    bool is_now = !memcmp(&wanted, &now, sizeof now);
    for (unsigned i = t->n_replay; i-- > 0;) {
        const struct tuned_row *r = &t->replay[i];
        if (r->choice || strcmp(r->status, "ok") || !tune_same_launches(r, &like)) continue;
        if (is_now) return r->base_us;
        int64_t *own = arena_array(t->a, u->template->n_params, sizeof *own);
        memcpy(own, u->now, u->template->n_params * sizeof *own);
        tune_take_row(r, u->template, own);
        struct hash128 identity = tune_identity(t, u, own);
        if (!memcmp(&identity, &wanted, sizeof wanted)) return r->pass_us > 0 ? r->pass_us : r->us;
    }
    return -1;
}

/* Of launches that something was found for; all others are the same in both. */
static bool replay_phase(struct compared *c, uint32_t phase) {
    struct tuner *t = c->t;
    const struct program_phase *p = &c->program->phases[phase];
    c->before_us[phase] = c->us[phase] = 0;
    for (uint32_t j = 0; j < p->n_launches; j++) {
        uint32_t unit = c->unit_of[c->program->launches[p->first_launch + j].kernel];
        if (unit == UINT32_MAX || c->change_of[unit] == UINT32_MAX) continue;
        double before = replayed_us(t, unit, c->before[unit]), us = replayed_us(t, unit, values_now(c, unit));
        if (before < 0 || us < 0) return failed(c, arena_printf(t->a, "there is no recorded time of %s", tune_unit_name(&t->all.units[unit], t->a)));
        c->before_us[phase] += before, c->us[phase] += us;
    }
    return true;
}

/* Phases `only`, with the changes that are kept and with none. */
static bool compare(struct compared *c, const bool *only, const char *what) {
    struct tuner *t = c->t;
    bool ok = true;
    c->n_comparisons++;
    if (t->progress.total <= t->progress.done) t->progress.total = t->progress.done + 1;
    progress_step(&t->progress, "whole passes, before and after in turn: %s", what);
    for (uint32_t i = 0; t->replays && i < c->program->n_phases && ok; i++)
        if (only[i]) ok = replay_phase(c, i);
    if (t->replays) return ok && !base_interrupted;
    struct passes new = {0}, *const both[] = {&c->old, &new};
    struct buffer tail = {0};
    struct jllm_error e = {0};
    double until = base_seconds() + COMPARISON_SECONDS;
    if (c->until > 0 && c->until < until) until = c->until;
    ok = make_tail(c, &tail) && (pack_append(c->fd, &c->old.plan->view, &tail) ||
                                 failed(c, arena_printf(t->a, "no memory for a plan: %s", strerror(errno))));
    buffer_free(&tail);
    ok = ok && ((passes_open(&new, arena_printf(t->a, "/proc/self/fd/%d", c->fd), c->us, &e) &&
                 passes_time(both, 2, only, PASSES_ROUNDS, until, &e)) || failed(c, e.text));
    passes_close(&new);
    return ok && !base_interrupted;
}

static double weight_of(const struct compared *c, uint32_t phase) {
    return c->program->phases[phase].kind == PLAN_PHASE_DECODE ? TUNE_ANSWER_TOKENS : 1;
}

/* In a use of the model; base[n_phases]: what a pass takes as it was. */
static double loss_of(const struct compared *c, uint32_t phase, const double *base) {
    return (c->us[phase] / c->before_us[phase] - 1) * base[phase] * weight_of(c, phase);
}

static double loss_sum(const struct compared *c, const bool *phases, const double *base) {
    double sum = 0;
    for (uint32_t i = 0; i < c->program->n_phases; i++)
        if (phases[i]) sum += loss_of(c, i, base);
    return sum;
}

static bool is_slow(const struct compared *c, uint32_t phase) {
    return !(c->us[phase] < c->before_us[phase]);
}

/* The phase that loses most of those that are no faster; UINT32_MAX: all are, or shall be so. */
static uint32_t find_slow(const struct compared *c) {
    uint32_t worst = UINT32_MAX;
    for (uint32_t i = 0; i < c->program->n_phases; i++)
        if (is_touched(c, i) && !c->accepted[i] && is_slow(c, i) &&
            (worst == UINT32_MAX || loss_of(c, i, c->before_us) > loss_of(c, worst, c->before_us))) worst = i;
    return worst;
}

/* Phases that a kept change has part in, into out[n_phases]; how many. */
static unsigned phases_of(const struct compared *c, const struct change *x, bool *out) {
    unsigned n = 0;
    for (uint32_t i = 0; i < c->program->n_phases; i++) {
        out[i] = false;
        for (uint32_t j = 0; j < c->program->phases[i].n_launches && c->program->phases[i].n_tokens <= c->program->ctx_max && !out[i]; j++)
            out[i] = change_at(c, i, j) == x;
        n += out[i];
    }
    return n;
}

/* What the search says that a change gains in a pass. */
static double predicted_us(const struct compared *c, const struct change *x, uint32_t phase) {
    double us = 0;
    for (uint32_t j = 0; j < c->program->phases[phase].n_launches; j++) {
        if (change_at(c, phase, j) != x) continue;
        const struct tune_unit *u = &c->t->all.units[c->unit_of[c->program->launches[c->program->phases[phase].first_launch + j].kernel]];
        const struct tuned_row *r = holding(c->t, u, false, false);
        if (r) us += r->base_us - r->us;
    }
    return us;
}

/* The kept changes of a phase, those first that promise least. */
static unsigned list_changes(const struct compared *c, uint32_t phase, struct change **out) {
    double *gain = arena_array(c->t->a, c->n_changes + 1u, sizeof *gain);
    unsigned n = 0;
    for (unsigned i = 0; i < c->n_changes; i++) {
        struct change *x = &c->changes[i];
        bool here = false;
        for (uint32_t j = 0; j < c->program->phases[phase].n_launches && !here; j++) here = change_at(c, phase, j) == x;
        if (!here) continue;
        double us = predicted_us(c, x, phase);
        unsigned at = n++;
        for (; at && gain[at - 1] > us; at--) gain[at] = gain[at - 1], out[at] = out[at - 1];
        gain[at] = us, out[at] = x;
    }
    return n;
}

static const char *phase_name(const struct tune_pass *p, struct arena *a) {
    if (p->kind == PLAN_PHASE_PREFILL) return arena_printf(a, "prefill of %u", p->n_tokens);
    return p->kind == PLAN_PHASE_HEAD ? "head" : p->kind == PLAN_PHASE_DECODE ? "decode" : "candidates";
}

/* What a use of the model gains without a change: in all the phases that it has part in. With `drop` it goes if that is more than
 * the clock's doing. */
static bool try_without(struct compared *c, struct change *x, uint32_t phase, bool drop, double *gain) {
    struct arena a = {0};
    unsigned n = c->program->n_phases;
    bool *only = arena_array(&a, n, sizeof *only);
    double *times[] = {c->before_us, c->us}, *with[2];
    for (unsigned i = 0; i < 2; i++) with[i] = arena_array(&a, n, sizeof **with), memcpy(with[i], times[i], n * sizeof **with);
    phases_of(c, x, only);
    *gain = loss_sum(c, only, with[0]);
    x->kept = false;
    const char *name = tune_unit_name(&c->t->all.units[x->units[0]], &a);
    bool ok = compare(c, only, arena_printf(&a, "%s without %s", phase_name(&c->v->passes[phase], &a), name));
    *gain -= loss_sum(c, only, with[0]);
    x->kept = !ok || !drop || !(*gain > CLOCK * with[1][phase] * weight_of(c, phase));
    for (unsigned i = 0; i < 2 && x->kept; i++) memcpy(times[i], with[i], n * sizeof **with);
    arena_free(&a);
    return ok;
}

/* What is left of the changes of a phase that is still no faster: those of it alone, and those that lose in all of their phases
 * together. */
static void drop_rest(struct compared *c, struct change **list, unsigned n) {
    bool *own = arena_array(c->t->a, c->program->n_phases, sizeof *own);
    for (unsigned i = 0; i < n; i++) {
        if (!list[i]->kept || (phases_of(c, list[i], own) > 1 && loss_sum(c, own, c->before_us) < 0)) continue;
        list[i]->kept = false;
        for (uint32_t j = 0; j < c->program->n_phases; j++) c->stale[j] |= own[j];
    }
}

static bool is_short(const struct compared *c) {
    return c->n_comparisons >= COMPARISONS_MAX || (c->until > 0 && base_seconds() > c->until);
}

/* Changes by what a pass gains without each; those that it gains most without go until the phase is faster. */
static bool drop_culprits(struct compared *c, struct change **list, unsigned n, uint32_t phase) {
    double *gain = arena_array(c->t->a, n, sizeof *gain), again;
    unsigned n_tried = 0;
    for (; n_tried < n && !is_short(c); n_tried++) {
        struct change *x = list[n_tried];
        double mine;
        unsigned at = n_tried;
        if (!try_without(c, x, phase, false, &mine)) return false;
        for (; at && gain[at - 1] < mine; at--) gain[at] = gain[at - 1], list[at] = list[at - 1];
        gain[at] = mine, list[at] = x;
    }
    for (unsigned i = 0; i < n_tried && i + 1 < n && gain[i] > 0 && is_slow(c, phase) && !is_short(c); i++)
        if (!try_without(c, list[i], phase, true, &again)) return false;
    return true;
}

/* If a phase is no faster a second time either: put changes back until it is, and all that may go if that takes too long or does
 * not help. */
static bool settle(struct compared *c, uint32_t phase) {
    struct tuner *t = c->t;
    struct change **list = arena_array(t->a, c->n_changes + 1u, sizeof *list);
    unsigned n = list_changes(c, phase, list);
    bool *only = arena_array(t->a, c->program->n_phases, sizeof *only);
    only[phase] = true;
    t->progress.total = t->progress.done + n + 2;
    if (!is_short(c) && !compare(c, only, arena_printf(t->a, "%s again", phase_name(&c->v->passes[phase], t->a)))) return false;
    if (is_slow(c, phase) && n > 1 && !drop_culprits(c, list, n, phase)) return false;
    if (!is_slow(c, phase)) return true;
    drop_rest(c, list, n);
    c->accepted[phase] = is_touched(c, phase);
    return true;
}

/* All phases with changes, then again those in which something was put back. */
static bool decide(struct compared *c) {
    unsigned n = c->program->n_phases;
    bool *only = arena_array(c->t->a, n, sizeof *only);
    c->stale = arena_array(c->t->a, n, sizeof *c->stale), c->accepted = arena_array(c->t->a, n, sizeof *c->accepted);
    for (uint32_t i = 0; i < n; i++) only[i] = is_touched(c, i);
    bool ok = compare(c, only, "all that was found");
    for (uint32_t slow; ok && (slow = find_slow(c)) != UINT32_MAX;) {
        bool any = false;
        if (!settle(c, slow)) return false;
        for (uint32_t i = 0; i < n; i++) only[i] = c->stale[i] && is_touched(c, i), any |= only[i], c->stale[i] = false;
        if (any) ok = compare(c, only, "what is left");
    }
    return ok;
}

/* --- what comes of it ------------------------------------------------------------------------------- */

/* A row again, confirmed; or what was before, as if that search had chosen it. */
static bool append_row(struct compared *c, uint32_t unit, bool shape, bool kept) {
    struct tuner *t = c->t;
    const struct tune_unit *u = &t->all.units[unit];
    const struct tuned_row *found = tune_has_params(u->template, shape) ? holding(t, u, shape, false) : NULL;
    if (!found) return true;
    struct tuned_row row = *found;
    if (!kept) {
        row = tune_row(t, u, c->before[unit], shape ? TUNE_SHAPE : TUNE_KERNEL);
        row.choice = true, row.shape = shape, row.search = found->search;
        row.device = found->device, row.compiler = found->compiler;
    }
    row.status = TUNED_PASSES;
    return tune_append(t, &row);
}

/* What a launch takes as it was is known only of what the spec chooses. */
static void put_back(struct compared *c, uint32_t unit) {
    const struct tune_unit *u = &c->t->all.units[unit];
    struct tune_result *r = &c->t->results[unit];
    struct hash128 before = tune_identity(c->t, u, c->before[unit]), now = tune_identity(c->t, u, u->now);
    if (memcmp(&before, &now, sizeof now)) r->base_us = 0;
    r->best = c->before[unit], r->us = r->base_us;
}

static bool record_change(struct compared *c, const struct change *x) {
    bool whole = false;
    for (unsigned i = 0; i < x->n_units; i++)
        whole |= !same_values(&c->t->all.units[x->units[i]], c->before[x->units[i]], c->found[x->units[i]], true);
    if (whole && !append_row(c, x->units[0], true, x->kept)) return false;
    for (unsigned i = 0; i < x->n_units; i++) {
        if (!append_row(c, x->units[i], false, x->kept)) return false;
        if (differs(c, x->units[i])) {     /* (others of its group may have the kernel that they had) */
            c->v->fate[x->units[i]] = x->kept ? TUNE_KEPT : TUNE_PUT_BACK;
            c->v->n_put_back += !x->kept;
        }
        if (!x->kept) put_back(c, x->units[i]);
    }
    return true;
}

static bool record(struct compared *c) {
    bool ok = true;
    for (unsigned i = 0; i < c->n_changes && ok; i++) ok = record_change(c, &c->changes[i]);
    for (uint32_t i = 0; i < c->program->n_phases; i++)
        if (is_touched(c, i)) c->v->passes[i].before_us = c->before_us[i], c->v->passes[i].us = c->us[i];
    return ok;
}

bool tune_passes(struct tuner *t, double until, struct tune_verdict *v) {
    struct compared c = {.t = t, .v = v, .program = t->all.program, .until = until, .fd = -1};
    unsigned n = c.program->n_phases;
    *v = (struct tune_verdict){.n_passes = n, .passes = arena_array(t->a, n, sizeof *v->passes),
                               .fate = arena_array(t->a, t->all.n_units + 1u, sizeof *v->fate)};
    for (uint32_t i = 0; i < n; i++) v->passes[i] = (struct tune_pass){.kind = c.program->phases[i].kind, .n_tokens = c.program->phases[i].n_tokens};
    c.before_us = arena_array(t->a, n, sizeof *c.before_us), c.us = arena_array(t->a, n, sizeof *c.us);
    find_changes(&c);
    for (unsigned i = 0; i < c.n_changes; i++)
        for (unsigned j = 0; j < c.changes[i].n_units; j++) v->n_changed += differs(&c, c.changes[i].units[j]);
    if (!c.n_changes || base_interrupted) return !base_interrupted;
    progress_begin(&t->progress, 1);
    bool ok = (t->replays || open_old(&c)) && decide(&c);
    progress_end(&t->progress);
    passes_close(&c.old);
    if (c.fd >= 0) close(c.fd);
    return ok ? record(&c) : v->why_not && !base_interrupted;
}
