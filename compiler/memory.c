/* Offsets of all values in one arena, by liveness.
 *
 * Guarantees: two values that are live at the same moment never share a byte; a pinned value has one offset in
 * all phases and keeps its contents to the end of each; offsets are multiples of PLAN_ARENA_ALIGN. The result
 * depends on nothing but the program. It is not the optimum (that is bin packing): the best of a few greedy
 * orders is kept, and arena_floor_bytes says how far from a bound it can be.
 */
#include "memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A value as a rectangle: moments of its phase by bytes of the arena. */
struct extent {
    uint32_t phase, first, last;   /* moments, inclusive */
    uint64_t bytes;
    uint32_t slot;
};

/* What gets one offset: a value, or the pinned values of one name. */
struct slot {
    uint32_t first_extent, n_extents;   /* in order[] */
    uint64_t bytes;                     /* of its largest value */
    uint64_t moments;                   /* how long it lives, all phases together */
    uint32_t start;                     /* earliest moment */
    bool pinned, placed;
    uint64_t offset;
};

struct placer {
    const struct program *p;
    struct extent *extents;             /* one per value */
    uint32_t *order;                    /* extents, those of a slot together */
    uint32_t **in_phase, *n_in_phase;   /* extents of a phase */
    struct slot *slots;    uint32_t n_slots;
    uint32_t *sequence;                 /* slots, in the order of placing */
    uint64_t *offsets;                  /* of slots, the best so far */
    struct span { uint64_t from, to; } *taken;
    struct arena arena;
};

/* Moment of each launch: launches that no barrier separates are one. */
static uint32_t *moments_number(struct placer *pl) {
    const struct program *p = pl->p;
    uint32_t *moment = arena_array(&pl->arena, p->n_launches + 1, sizeof *moment);
    for (unsigned f = 0; f < p->n_phases; f++) {
        const struct program_phase *phase = &p->phases[f];
        for (uint32_t i = 1; i < phase->n_launches; i++) {
            uint32_t at = phase->first_launch + i;
            moment[at] = moment[at - 1] + p->launches[at].barrier;
        }
    }
    return moment;
}

static bool same_slot(const struct value *a, const struct value *b) {
    return a->pinned && b->pinned && !strcmp(a->name, b->name);
}

static void slots_collect(struct placer *pl) {
    const struct program *p = pl->p;
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_values; i++) {
        pl->extents[i].slot = UINT32_MAX;
        for (uint32_t s = 0; p->values[i].pinned && s < pl->n_slots; s++)
            if (same_slot(&p->values[i], &p->values[pl->order[pl->slots[s].first_extent]]))
                pl->extents[i].slot = s;
        if (pl->extents[i].slot != UINT32_MAX)
            continue;
        struct slot *slot = &pl->slots[pl->n_slots];
        *slot = (struct slot){ .first_extent = n, .pinned = p->values[i].pinned, .start = UINT32_MAX };
        for (uint32_t j = i; j < p->n_values; j++) {
            if (j != i && !same_slot(&p->values[i], &p->values[j]))
                continue;
            pl->order[n++] = j;
            slot->n_extents++;
            if (slot->bytes < p->values[j].bytes)
                slot->bytes = p->values[j].bytes;
            if (!slot->pinned)
                break;
        }
        pl->n_slots++;
    }
    assert(n == p->n_values);
}

/* A pinned value is read after its phase: logits by the caller, the residual stream by the head, which may be
 * asked for row after row and so must leave all of it alone. */
static void extents_fill(struct placer *pl) {
    const struct program *p = pl->p;
    uint32_t *moment = moments_number(pl);
    for (uint32_t s = 0; s < pl->n_slots; s++) {
        struct slot *slot = &pl->slots[s];
        for (uint32_t i = 0; i < slot->n_extents; i++) {
            uint32_t at = pl->order[slot->first_extent + i];
            const struct value *v = &p->values[at];
            const struct program_phase *phase = &p->phases[v->phase];
            struct extent *e = &pl->extents[at];
            e->slot = s;
            e->phase = v->phase;
            if (v->first == UINT32_MAX) continue;   /* no launch touches it: no bytes at the first moment */
            assert(v->first <= v->last && v->last < phase->n_launches);
            e->first = moment[phase->first_launch + v->first];
            e->last = moment[phase->first_launch + (v->pinned ? phase->n_launches - 1 : v->last)];
            e->bytes = v->pinned && phase->kind == PLAN_PHASE_HEAD ? slot->bytes : v->bytes;
            slot->moments += e->last - e->first + 1;
            if (slot->start > e->first)
                slot->start = e->first;
        }
    }
}

static void phases_index(struct placer *pl) {
    unsigned n_phases = pl->p->n_phases;
    pl->in_phase = arena_array(&pl->arena, n_phases, sizeof *pl->in_phase);
    pl->n_in_phase = arena_array(&pl->arena, n_phases, sizeof *pl->n_in_phase);
    for (uint32_t i = 0; i < pl->p->n_values; i++)
        pl->n_in_phase[pl->extents[i].phase]++;
    for (unsigned f = 0; f < n_phases; f++) {
        pl->in_phase[f] = arena_array(&pl->arena, pl->n_in_phase[f] + 1, sizeof(uint32_t));
        pl->n_in_phase[f] = 0;
    }
    for (uint32_t i = 0; i < pl->p->n_values; i++) {
        uint32_t f = pl->extents[i].phase;
        pl->in_phase[f][pl->n_in_phase[f]++] = i;
    }
}

static bool extents_meet(const struct extent *a, const struct extent *b) {
    return a->phase == b->phase && a->first <= b->last && b->first <= a->last;
}

static int span_compare(const void *a, const void *b) {
    const struct span *s = a, *t = b;
    if (s->from != t->from)
        return s->from < t->from ? -1 : 1;
    return (s->to > t->to) - (s->to < t->to);
}

/* Offsets at which slot s may not begin, because of what is placed: sorted spans, `to` exclusive. */
static uint32_t spans_collect(struct placer *pl, uint32_t s) {
    const struct slot *slot = &pl->slots[s];
    uint32_t n = 0;
    for (uint32_t i = 0; i < slot->n_extents; i++) {
        const struct extent *own = &pl->extents[pl->order[slot->first_extent + i]];
        for (uint32_t j = 0; j < pl->n_in_phase[own->phase]; j++) {
            const struct extent *other = &pl->extents[pl->in_phase[own->phase][j]];
            const struct slot *there = &pl->slots[other->slot];
            if (!there->placed || other->slot == s || !extents_meet(own, other))
                continue;
            uint64_t from = there->offset >= own->bytes ? there->offset - own->bytes + 1 : 0;
            pl->taken[n++] = (struct span){ from, there->offset + other->bytes };
        }
    }
    qsort(pl->taken, n, sizeof *pl->taken, span_compare);
    return n;
}

/* The allowed offset with the least room above it (best fit), or the lowest one. */
static uint64_t offset_choose(const struct span *taken, uint32_t n, bool best_fit) {
    uint64_t chosen = UINT64_MAX, least = UINT64_MAX, at = 0;
    for (uint32_t i = 0; i <= n; i++) {
        uint64_t end = i < n ? taken[i].from : UINT64_MAX;
        if (at < end && (chosen == UINT64_MAX || end - at < least)) {
            least = end - at;
            chosen = at;
            if (!best_fit)
                break;
        }
        if (i < n && at < taken[i].to)
            at = u64_round_up(taken[i].to, PLAN_ARENA_ALIGN);
    }
    assert(chosen != UINT64_MAX);
    return chosen;
}

static uint64_t slots_place(struct placer *pl, bool best_fit) {
    uint64_t end = 0;
    for (uint32_t s = 0; s < pl->n_slots; s++)
        pl->slots[s].placed = false;
    for (uint32_t i = 0; i < pl->n_slots; i++) {
        struct slot *slot = &pl->slots[pl->sequence[i]];
        uint32_t n = spans_collect(pl, pl->sequence[i]);
        slot->offset = offset_choose(pl->taken, n, best_fit);
        slot->placed = true;
        if (end < slot->offset + slot->bytes)
            end = slot->offset + slot->bytes;
    }
    return u64_round_up(end, PLAN_ARENA_ALIGN);
}

/* Orders of placing; negative: a first. Equal slots keep the order of the program. */
static int by_size(const struct slot *a, const struct slot *b) {
    return (a->bytes < b->bytes) - (a->bytes > b->bytes);
}

static int by_lifetime(const struct slot *a, const struct slot *b) {
    int c = (a->moments < b->moments) - (a->moments > b->moments);
    return c ? c : by_size(a, b);
}

static int by_start(const struct slot *a, const struct slot *b) {
    int c = (a->start > b->start) - (a->start < b->start);
    return c ? c : by_size(a, b);
}

static int by_area(const struct slot *a, const struct slot *b) {
    double x = (double)a->bytes * (double)a->moments, y = (double)b->bytes * (double)b->moments;
    return (x < y) - (x > y);
}

/* Stable merge of two sorted halves; qsort's order of equals may differ from one C library to the next. */
static void sequence_sort(struct placer *pl, uint32_t *order, uint32_t n, uint32_t *room,
                          int (*compare)(const struct slot *, const struct slot *)) {
    if (n < 2)
        return;
    uint32_t half = n / 2, a = 0, b = half, i = 0;
    sequence_sort(pl, order, half, room, compare);
    sequence_sort(pl, order + half, n - half, room, compare);
    while (a < half || b < n) {
        bool left = b == n || (a < half && compare(&pl->slots[order[a]], &pl->slots[order[b]]) <= 0);
        room[i++] = order[left ? a++ : b++];
    }
    memcpy(order, room, n * sizeof *order);
}

/* Pinned slots first where wanted: they meet the most others. */
static void sequence_build(struct placer *pl, int (*compare)(const struct slot *, const struct slot *),
                           bool pinned_first, uint32_t *room) {
    uint32_t n = 0;
    for (unsigned pass = 0; pass < 2; pass++)
        for (uint32_t s = 0; s < pl->n_slots; s++)
            if ((pinned_first && pl->slots[s].pinned ? 0u : 1u) == pass)
                pl->sequence[n++] = s;
    uint32_t n_pinned = 0;
    while (pinned_first && n_pinned < n && pl->slots[pl->sequence[n_pinned]].pinned)
        n_pinned++;
    sequence_sort(pl, pl->sequence, n_pinned, room, compare);
    sequence_sort(pl, pl->sequence + n_pinned, n - n_pinned, room, compare);
}

static uint64_t orders_try(struct placer *pl) {
    int (*const compares[])(const struct slot *, const struct slot *) = { by_size, by_lifetime, by_start, by_area };
    uint32_t *room = arena_array(&pl->arena, pl->n_slots + 1, sizeof *room);
    uint64_t least = UINT64_MAX;
    for (unsigned i = 0; i < COUNT(compares) * 4; i++) {
        sequence_build(pl, compares[i / 4], !(i & 1), room);
        uint64_t bytes = slots_place(pl, !(i & 2));
        if (bytes >= least)
            continue;
        least = bytes;
        for (uint32_t s = 0; s < pl->n_slots; s++)
            pl->offsets[s] = pl->slots[s].offset;
    }
    return least;
}

/* Largest sum of bytes live at one moment: no arena can be smaller. */
static uint64_t floor_bytes(struct placer *pl) {
    uint64_t most = 0;
    for (unsigned f = 0; f < pl->p->n_phases; f++) {
        uint32_t n = pl->p->phases[f].n_launches;
        uint64_t *change = calloc((size_t)n + 1, sizeof *change), live = 0;   /* modulo 2^64 */
        if (!change)
            base_fail("out of memory");
        for (uint32_t i = 0; i < pl->n_in_phase[f]; i++) {
            const struct extent *e = &pl->extents[pl->in_phase[f][i]];
            change[e->first] += e->bytes;
            change[e->last + 1] -= e->bytes;
        }
        for (uint32_t i = 0; i < n; i++) {
            live += change[i];
            if (most < live)
                most = live;
        }
        free(change);
    }
    return most;
}

static void placer_open(struct placer *pl, const struct program *p) {
    size_t n = (size_t)p->n_values + 1, meetings = 0;
    *pl = (struct placer){ .p = p };
    pl->extents = arena_array(&pl->arena, n, sizeof *pl->extents);
    pl->order = arena_array(&pl->arena, n, sizeof *pl->order);
    pl->slots = arena_array(&pl->arena, n, sizeof *pl->slots);
    pl->sequence = arena_array(&pl->arena, n, sizeof *pl->sequence);
    pl->offsets = arena_array(&pl->arena, n, sizeof *pl->offsets);
    slots_collect(pl);
    extents_fill(pl);
    phases_index(pl);
    for (uint32_t s = 0; s < pl->n_slots; s++) {
        size_t met = 0;
        for (uint32_t i = 0; i < pl->slots[s].n_extents; i++)
            met += pl->n_in_phase[pl->extents[pl->order[pl->slots[s].first_extent + i]].phase];
        if (meetings < met)
            meetings = met;
    }
    pl->taken = arena_array(&pl->arena, meetings + 1, sizeof *pl->taken);
}

void memory_plan(struct program *p) {
    struct placer pl;
    placer_open(&pl, p);
    p->arena_bytes = p->n_values ? orders_try(&pl) : 0;
    p->arena_floor_bytes = floor_bytes(&pl);
    assert(p->arena_bytes >= p->arena_floor_bytes);
    for (uint32_t i = 0; i < p->n_values; i++) {
        struct value *v = &p->values[i];
        v->offset = pl.offsets[pl.extents[i].slot];
        if (v->pinned && !strcmp(v->name, "x"))
            p->hidden_offset = v->offset;
        if (v->pinned && !strcmp(v->name, "logits"))
            p->logits_offset = v->offset;
        if (v->pinned && !strcmp(v->name, "candidates"))
            p->candidates_offset = v->offset;
    }
    arena_free(&pl.arena);
}

void memory_need(const struct program *p, struct memory_need *m) {
    const double mib = 1 << 20, gib = 1 << 30;
    const struct spec_value *memory = spec_get(p->spec, "target.memory_gib"), *reserve = spec_get(p->spec, "memory.reserve_mib");
    *m = (struct memory_need){.cache = (double)p->cache_bytes, .activations = (double)p->arena_bytes, .stated = memory->number > 0};
    for (unsigned i = 0; i < p->n_pieces; i++) m->weights += (double)u64_round_up(p->pieces[i].bytes, PLAN_WEIGHT_ALIGN);
    if (m->stated) m->room = memory->number * gib - (double)reserve->integer * mib;
}

bool memory_fits(const struct memory_need *m) {
    return !m->stated || m->weights + m->cache + m->activations <= m->room;
}

bool memory_check(const struct program *p, struct diag *d) {
    const double mib = 1 << 20;
    const struct spec_value *gib = spec_get(p->spec, "target.memory_gib"), *reserve = spec_get(p->spec, "memory.reserve_mib");
    struct memory_need m;
    memory_need(p, &m);
    if (memory_fits(&m)) return true;
    spec_error(p->spec, d, gib->place, "memory",
               "the plan needs %.1f MiB (weights %.1f, cache %.1f of %u tokens, activations %.1f) and has %.1f: "
               "memory_gib = %g without reserve_mib = %lld; a smaller memory.ctx_max makes the cache smaller",
               (m.weights + m.cache + m.activations) / mib, m.weights / mib, m.cache / mib, p->ctx_max, m.activations / mib,
               m.room > 0 ? m.room / mib : 0.0, gib->number, (long long)reserve->integer);
    return false;
}
