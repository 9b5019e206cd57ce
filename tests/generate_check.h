/* Greedy generation and candidates on the tiny plan, against direct calls of its kernels: the same for every device.
 * The caller has included plan_builder.h, jllm.h and cmocka, and gives an empty session each time. */
#ifndef GENERATE_CHECK_H
#define GENERATE_CHECK_H

/* What was said, and after how many choices `token` ends it. */
struct answer { struct jllm_session *s; int32_t ids[TINY_CTX]; size_t n, most, position; };

static bool answer_token(void *user, int32_t id) {
    struct answer *a = user;
    assert_int_equal(jllm_position(a->s), a->position + a->n + 1);   /* what was chosen before has been appended */
    a->ids[a->n++] = id;
    return a->n < a->most;
}

/* The sequence of a generation: n tokens that are given, then choices up to the end of the context. */
static void greedy_reference(int32_t *ids, size_t n, float (*logits)[TINY_VOCAB]) {
    for (; n <= TINY_CTX; n++) {
        tiny_reference(ids, n, logits[n]);
        int32_t best = 0;
        for (int32_t i = 1; i < TINY_VOCAB; i++)
            if (logits[n][i] > logits[n][best]) best = i;
        if (n < TINY_CTX) ids[n] = best;
    }
}

/* Choice number `at` (counted from 1) is the first of its id. */
static bool is_first(const int32_t *ids, size_t given, size_t at) {
    for (size_t i = 1; i < at; i++)
        if (ids[given + i - 1] == ids[given + at - 1]) return false;
    return true;
}

enum { GIVEN = 6 };

/* The sequence is `n` tokens of `ids`, and goes on as if they had been appended one by one. */
static void expect_state(struct jllm_session *s, const int32_t *ids, size_t n, float (*logits)[TINY_VOCAB], bool candidates) {
    struct jllm_error e = {0};
    struct jllm_candidate list[JLLM_CANDIDATES_MAX];
    assert_int_equal(jllm_position(s), n);
    if (candidates) {
        if (jllm_candidates(s, list, 3, &e) != 3) fail_msg("%s", e.text);
        if (n < TINY_CTX) assert_int_equal(list[0].id, ids[n]);
    }
    assert_non_null(jllm_logits(s));
    if (memcmp(jllm_logits(s), logits[n], sizeof logits[n])) fail_msg("logits of %zu tokens differ", n);
    if (n == TINY_CTX) return;
    if (!jllm_decode(s, ids[n], &e)) fail_msg("%s", e.text);
    if (memcmp(jllm_logits(s), logits[n + 1], sizeof logits[n])) fail_msg("logits differ after %zu tokens and one", n);
    jllm_reset(s, 0);
}

static void generate_once(struct jllm_session *s, const int32_t *ids, struct answer *a, size_t n_max, const int32_t *stop_ids,
                          size_t n_stop) {
    struct jllm_error e = {0};
    a->s = s, a->n = 0, a->position = GIVEN - 1;
    jllm_reset(s, 0);
    if (!jllm_prefill(s, ids, GIVEN - 1, &e)) fail_msg("%s", e.text);
    struct jllm_stats before = jllm_session_stats(s);
    if (!jllm_generate(s, ids[GIVEN - 1], n_max, stop_ids, n_stop, answer_token, a, &e)) fail_msg("%s", e.text);
    struct jllm_stats after = jllm_session_stats(s);
    assert_int_equal(after.decode_steps - before.decode_steps, a->n);
    assert_int_equal((after.weight_bytes - before.weight_bytes) % a->n, 0);
    assert_memory_equal(a->ids, ids + GIVEN, (a->n < TINY_CTX - GIVEN ? a->n : TINY_CTX - GIVEN) * sizeof *ids);
}

/* However it ends, what is there afterwards is the same. */
static void check_generate(struct jllm_session *s, const int32_t *prompt) {
    static float logits[TINY_CTX + 1][TINY_VOCAB];
    int32_t ids[TINY_CTX];
    struct answer a = {.most = SIZE_MAX};
    memcpy(ids, prompt, GIVEN * sizeof *ids);
    greedy_reference(ids, GIVEN, logits);
    for (size_t n = 1; n <= 12; n++) {
        generate_once(s, ids, &a, n, NULL, 0);                    /* by n_max */
        assert_int_equal(a.n, n);
        expect_state(s, ids, GIVEN + n - 1, logits, n % 2);
        a.most = n;
        generate_once(s, ids, &a, n + 5, NULL, 0);                /* by the callback */
        assert_int_equal(a.n, n);
        expect_state(s, ids, GIVEN + n - 1, logits, n % 2);
        a.most = SIZE_MAX;
        int32_t stop[16] = {-1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11, -12, -13, -14, -15, ids[GIVEN + n - 1]};
        if (!is_first(ids, GIVEN, n)) continue;
        generate_once(s, ids, &a, 40, stop, 16);                  /* by an id */
        assert_int_equal(a.n, n);
        expect_state(s, ids, GIVEN + n - 1, logits, n % 2);
        a.most = n;
        generate_once(s, ids, &a, n, &stop[15], 1);               /* by everything at once */
        assert_int_equal(a.n, n);
        expect_state(s, ids, GIVEN + n - 1, logits, true);
        a.most = SIZE_MAX;
    }
    generate_once(s, ids, &a, SIZE_MAX, NULL, 0);                 /* by the context */
    assert_int_equal(a.n, TINY_CTX - GIVEN + 1);
    expect_state(s, ids, TINY_CTX, logits, true);
    struct jllm_error e = {0};
    assert_false(jllm_generate(s, 1, 1, NULL, 0, answer_token, &a, &e));
    assert_int_equal(e.code, JLLM_CONTEXT_FULL);
    expect_state(s, ids, TINY_CTX, logits, true);
    jllm_reset(s, 0);
}

/* Wrong use changes nothing. */
static void check_generate_refusals(struct jllm_session *s, const int32_t *prompt) {
    struct jllm_error e = {0};
    struct answer a = {.s = s, .most = SIZE_MAX};
    struct jllm_candidate list[JLLM_CANDIDATES_MAX];
    int32_t stop[17] = {0};
    float want[TINY_VOCAB];
    assert_int_equal(jllm_candidates(s, list, 3, &e), 0);
    assert_int_equal(e.code, JLLM_BAD_USE);
    if (!jllm_prefill(s, prompt, 9, &e)) fail_msg("%s", e.text);
    assert_false(jllm_generate(s, -1, 5, NULL, 0, answer_token, &a, &e) || jllm_generate(s, 5, 0, NULL, 0, answer_token, &a, &e) ||
                 jllm_generate(s, 5, 5, stop, 17, answer_token, &a, &e) || jllm_candidates(s, list, 0, &e) ||
                 jllm_candidates(s, list, JLLM_CANDIDATES_MAX + 1, &e));
    assert_int_equal(e.code, JLLM_BAD_USE);
    assert_int_equal(a.n, 0);
    tiny_reference(prompt, 9, want);
    assert_memory_equal(jllm_logits(s), want, sizeof want);
    jllm_reset(s, 0);
}

/* All of them, and the first few, after prompts of all lengths. */
static void check_candidates(struct jllm_session *s, const int32_t *prompt) {
    struct jllm_candidate list[JLLM_CANDIDATES_MAX + 1];
    struct jllm_error e = {0};
    float want[TINY_VOCAB];
    for (size_t n = 1; n <= TINY_CTX; n++) {
        size_t k = 1 + n * 7 % JLLM_CANDIDATES_MAX, k_there = k < TINY_VOCAB ? k : TINY_VOCAB;
        if (!jllm_prefill(s, prompt, n, &e)) fail_msg("%s", e.text);
        tiny_reference(prompt, n, want);
        list[k].id = 12345;
        assert_int_equal(jllm_candidates(s, list, k, &e), k_there);
        assert_int_equal(list[k].id, 12345);
        for (size_t i = 0; i < k_there; i++) {
            size_t before = 0;
            assert_true(list[i].logit == want[list[i].id]);
            for (int32_t id = 0; id < TINY_VOCAB; id++)
                before += want[id] > list[i].logit || (want[id] == list[i].logit && id < list[i].id);
            assert_int_equal(before, i);
        }
        assert_memory_equal(jllm_logits(s), want, sizeof want);
        jllm_reset(s, 0);
    }
}

static void expect_not_finite(struct jllm_session *s, struct jllm_error *e, bool ok, const char *words) {
    assert_false(ok);
    assert_int_equal(e->code, JLLM_NOT_FINITE);
    if (!strstr(e->text, words)) fail_msg("expected \"%s\" in: %s", words, e->text);
    assert_null(jllm_logits(s));
    assert_non_null(jllm_session_failure(s));
    assert_false(jllm_decode(s, 1, e));
    assert_int_equal(e->code, JLLM_NOT_FINITE);
    jllm_reset(s, 0);
}

static void check_generate_not_finite(struct jllm_session *s, const int32_t *prompt) {
    struct jllm_error e = {0};
    struct answer a = {.s = s, .most = SIZE_MAX, .position = 4};
    struct jllm_candidate list[1];
    if (!jllm_prefill(s, prompt, 4, &e)) fail_msg("%s", e.text);
    expect_not_finite(s, &e, jllm_generate(s, TINY_NAN_ID, 9, NULL, 0, answer_token, &a, &e), "residual stream of token 4");
    if (!jllm_prefill(s, prompt, 4, &e)) fail_msg("%s", e.text);
    expect_not_finite(s, &e, jllm_generate(s, TINY_HUGE_ID, 1, NULL, 0, answer_token, &a, &e), "a logit of token 4");
    assert_int_equal(a.n, 0);
    if (!jllm_prefill(s, prompt, 4, &e)) fail_msg("%s", e.text);
    if (jllm_decode(s, TINY_HUGE_ID, &e)) jllm_candidates(s, list, 1, &e);   /* whichever looks first */
    expect_not_finite(s, &e, false, "a logit of token 4");
}
#endif
