/* memory_plan: no two values that live at one moment share a byte, pinned values stand still, little is wasted. */
#include "../compiler/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VALUES_MAX = 4096, LAUNCHES_MAX = 8192, PHASES_MAX = 16 };

static struct value values[VALUES_MAX];
static struct launch launches[LAUNCHES_MAX];
static struct program_phase phases[PHASES_MAX];
static struct program program;

static void program_reset(void) {
    memset(values, 0, sizeof values);
    memset(launches, 0, sizeof launches);
    program = (struct program){ .values = values, .launches = launches, .phases = phases };
}

static void phase_add(enum plan_phase_kind kind, uint32_t n_tokens) {
    phases[program.n_phases++] = (struct program_phase){ .kind = kind, .n_tokens = n_tokens,
                                                         .first_launch = program.n_launches };
    assert_true(program.n_phases <= PHASES_MAX);
}

/* Index of the launch within its phase. */
static uint32_t launch_add(bool barrier) {
    assert_true(program.n_launches < LAUNCHES_MAX);
    launches[program.n_launches++].barrier = barrier;
    return phases[program.n_phases - 1].n_launches++;
}

static struct value *value_add(const char *name, uint64_t bytes, uint32_t first, uint32_t last) {
    assert_true(program.n_values < VALUES_MAX);
    struct value *v = &values[program.n_values++];
    *v = (struct value){ .name = name, .bytes = bytes, .phase = program.n_phases - 1, .first = first, .last = last };
    return v;
}

/* ---- the property, checked launch by launch ---- */

static uint32_t run_first(const struct program_phase *p, uint32_t at) {
    while (at > 0 && !launches[p->first_launch + at].barrier) at--;
    return at;
}

static uint32_t run_last(const struct program_phase *p, uint32_t at) {
    while (at + 1 < p->n_launches && !launches[p->first_launch + at + 1].barrier) at++;
    return at;
}

static bool live_at(const struct value *v, uint32_t at) {
    const struct program_phase *p = &phases[v->phase];
    uint32_t last = v->pinned ? p->n_launches - 1 : v->last;
    return run_first(p, v->first) <= at && at <= run_last(p, last);
}

static void check_moment(uint32_t phase, uint32_t at, uint64_t *most) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < program.n_values; i++) {
        const struct value *a = &values[i];
        if (a->phase != phase || !live_at(a, at)) continue;
        sum += a->bytes;
        for (unsigned j = i + 1; j < program.n_values; j++) {
            const struct value *b = &values[j];
            if (b->phase != phase || !live_at(b, at)) continue;
            if (a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes)
                fail_msg("%s at %llu and %s at %llu overlap in launch %u of phase %u", a->name,
                         (unsigned long long)a->offset, b->name, (unsigned long long)b->offset, (unsigned)at,
                         (unsigned)phase);
        }
    }
    if (sum > *most) *most = sum;
}

/* Plans the program; same_sizes: pinned values are as large in every phase, so the floor is the plain sum. */
static void plan_and_check(bool same_sizes) {
    uint64_t most = 0;
    memory_plan(&program);
    for (unsigned f = 0; f < program.n_phases; f++)
        for (uint32_t at = 0; at < phases[f].n_launches; at++) check_moment(f, at, &most);
    for (unsigned i = 0; i < program.n_values; i++) {
        assert_int_equal(values[i].offset % PLAN_ARENA_ALIGN, 0);
        assert_true(values[i].offset + values[i].bytes <= program.arena_bytes);
        for (unsigned j = 0; j < i; j++)
            if (values[i].pinned && values[j].pinned && !strcmp(values[i].name, values[j].name))
                assert_int_equal(values[i].offset, values[j].offset);
    }
    assert_int_equal(program.arena_bytes % PLAN_ARENA_ALIGN, 0);
    assert_true(program.arena_floor_bytes >= most);
    if (same_sizes) assert_int_equal(program.arena_floor_bytes, most);
    assert_true(program.arena_bytes >= program.arena_floor_bytes);
}

/* ---- random programs ---- */

static uint32_t random_below(uint32_t n) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 20) % n;
}

static void random_program(void) {
    program_reset();
    for (uint32_t f = 0, n = 1 + random_below(5); f < n; f++) {
        phase_add((enum plan_phase_kind)(1 + random_below(3)), 1);
        uint32_t n_launches = 1 + random_below(30);
        for (uint32_t i = 0; i < n_launches; i++) launch_add(i == 0 || random_below(3) > 0);
        value_add("x", 1 + random_below(5000), 0, n_launches - 1)->pinned = true;
        if (random_below(2)) value_add("logits", 1 + random_below(9000), n_launches - 1, n_launches - 1)->pinned = true;
        for (uint32_t i = 0, some = random_below(40); i < some; i++) {
            uint32_t first = random_below(n_launches), last = first + random_below(6);
            value_add("v", 1 + random_below(1u << random_below(16)), first, last < n_launches ? last : n_launches - 1);
        }
    }
}

static void test_random_programs(void **state) {
    (void)state;
    for (int i = 0; i < 300; i++) {
        random_program();
        plan_and_check(false);
    }
}

/* ---- programs like the real ones ---- */

struct shape { uint32_t layers, embd, heads, kv_heads, head_dim, ff, vocab; };

static uint64_t a16_bytes(uint64_t rows, uint64_t cols) {
    return u64_round_up(rows * cols * 2, 64) + 2 * u64_round_up(rows * cols / 32 * 4, 64);
}

static void layer_add(const struct shape *s, uint64_t n) {
    uint32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    uint32_t norm = launch_add(true), qkv = launch_add(true);
    launch_add(false);
    launch_add(false);
    uint32_t rope = launch_add(true), attention = launch_add(true), out = launch_add(true);
    uint32_t norm2 = launch_add(true), gate = launch_add(true), up = launch_add(false), act = launch_add(true);
    uint32_t down = launch_add(true);
    (void)up;
    value_add("norm", a16_bytes(n, s->embd), norm, qkv);
    value_add("q", n * q * 4, qkv, attention);
    value_add("k", n * kv * 4, qkv + 1, rope);
    value_add("v", n * kv * 4, qkv + 2, rope);
    value_add("o", a16_bytes(n, q), attention, out);
    value_add("norm", a16_bytes(n, s->embd), norm2, gate);
    value_add("gate", n * s->ff * 4, gate, act);
    value_add("up", n * s->ff * 4, gate + 1, act);
    value_add("h", a16_bytes(n, s->ff), act, down);
}

static void transformer_program(const struct shape *s, const uint32_t *buckets, unsigned n_buckets) {
    uint64_t x_bytes = (uint64_t)buckets[n_buckets - 1] * s->embd * 4;
    program_reset();
    for (unsigned f = 0; f < n_buckets + 2; f++) {
        bool head = f >= n_buckets;
        uint32_t n = head ? 1 : buckets[f];
        phase_add(!head ? PLAN_PHASE_PREFILL : f == n_buckets ? PLAN_PHASE_HEAD : PLAN_PHASE_DECODE, n);
        struct value *x = value_add("x", x_bytes, 0, 0);
        x->pinned = true;
        if (f != n_buckets) {
            launch_add(true);
            for (uint32_t i = 0; i < s->layers; i++) layer_add(s, n);
        }
        if (head) {
            uint32_t norm = launch_add(true), out = launch_add(true);
            value_add("norm", a16_bytes(1, s->embd), norm, out);
            value_add("logits", (uint64_t)s->vocab * 4, out, out)->pinned = true;
        }
        x->last = phases[f].n_launches - 1;
    }
}

static void test_transformers(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        { 30, 576, 9, 3, 64, 1536, 49152 },     /* SmolLM2 135M */
        { 28, 1024, 16, 8, 128, 3072, 151936 }, /* Qwen3 0.6B */
        { 36, 2560, 32, 8, 128, 9728, 151936 }, /* Qwen3 4B */
        { 2, 256, 4, 4, 64, 256, 500 },
        { 2, 64, 8, 8, 128, 32, 300000 },
    };
    static const uint32_t buckets[] = { 1, 8, 16, 24, 32, 40, 48, 64 };
    for (unsigned i = 0; i < COUNT(shapes); i++)
        for (unsigned n = 1; n <= COUNT(buckets); n += 7) {
            transformer_program(&shapes[i], buckets, n);
            plan_and_check(true);
            double ratio = (double)program.arena_bytes / (double)program.arena_floor_bytes;
            if (ratio > 1.10) fail_msg("shape %u, %u buckets: %.3f of the floor", i, n, ratio);
            assert_int_equal(program.hidden_offset, values[0].offset);
            assert_int_equal(program.logits_offset, values[program.n_values - 1].offset);
        }
}

/* ---- single cases ---- */

static void test_chain(void **state) {
    (void)state;
    program_reset();
    phase_add(PLAN_PHASE_PREFILL, 1);
    for (uint32_t i = 0; i < 10; i++) launch_add(true);
    for (uint32_t i = 0; i < 9; i++) value_add("v", 640, i, i + 1);
    plan_and_check(true);
    assert_int_equal(program.arena_bytes, 1280);   /* two take turns */
}

/* Without barriers all ten launches are one moment. */
static void test_overlapping_launches(void **state) {
    (void)state;
    program_reset();
    phase_add(PLAN_PHASE_PREFILL, 1);
    for (uint32_t i = 0; i < 10; i++) launch_add(i == 0);
    for (uint32_t i = 0; i < 10; i++) value_add("v", 640, i, i);
    plan_and_check(true);
    assert_int_equal(program.arena_bytes, 6400);
}

/* A head asked for a second row must find it: all of x stays, though the head's own x is a row. */
static void test_head_keeps_rows(void **state) {
    (void)state;
    program_reset();
    phase_add(PLAN_PHASE_PREFILL, 8);
    launch_add(true);
    value_add("x", 8000, 0, 0)->pinned = true;
    phase_add(PLAN_PHASE_HEAD, 1);
    launch_add(true);
    launch_add(true);
    value_add("x", 1000, 0, 0)->pinned = true;
    struct value *norm = value_add("norm", 1000, 0, 1), *logits = value_add("logits", 4000, 1, 1);
    logits->pinned = true;
    plan_and_check(false);
    assert_true(norm->offset >= values[0].offset + 8000 || norm->offset + 1000 <= values[0].offset);
    assert_true(logits->offset >= values[0].offset + 8000 || logits->offset + 4000 <= values[0].offset);
}

static void test_nothing(void **state) {
    (void)state;
    program_reset();
    phase_add(PLAN_PHASE_DECODE, 1);
    launch_add(true);
    memory_plan(&program);
    assert_int_equal(program.arena_bytes, 0);
    value_add("unused", 100, UINT32_MAX, 0);   /* declared, never an argument */
    memory_plan(&program);
    assert_int_equal(program.arena_floor_bytes, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_programs),    cmocka_unit_test(test_transformers), cmocka_unit_test(test_chain),
        cmocka_unit_test(test_overlapping_launches), cmocka_unit_test(test_head_keeps_rows),
        cmocka_unit_test(test_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
