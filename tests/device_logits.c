/* device_logits PLAN: does the words on stdin with a session of the plan, and writes what comes of them to stdout, row after
 * row of float32 [n_vocab].
 *
 *   p1,2,3         prefill of these ids: the logits of the last       r1,2,3   the same: the logits of each
 *   d4             decode of one: its logits                          l        the logits of the last token, asked for again
 *   g4,N,M,5,6     greedy generation from 4, at most N choices, the host ends it after M, the device at 5 and 6: a row that
 *                  begins with the choices, -1 after them
 *   kN             keep N positions and forget the rest
 */
#include "../runtime/jllm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDS_MAX = 1 << 16 };

static int complain(const char *what, const char *why) {
    fprintf(stderr, "error: %s: %s\n", what, why);
    return 1;
}

static size_t read_ids(const char *text, int32_t *ids) {
    size_t n = 0;
    char *end = (char *)(uintptr_t)text;
    for (; n < IDS_MAX && *end; end += *end == ',') ids[n++] = (int32_t)strtol(end, &end, 10);
    return n;
}

static void write_row(void *user, size_t index, const float *logits) {
    (void)index;
    fwrite(logits, sizeof *logits, *(const size_t *)user, stdout);
}

struct choices { float row[IDS_MAX]; size_t n, most; };
static bool take_choice(void *user, int32_t id) {
    struct choices *c = user;
    c->row[c->n++] = (float)id;
    return c->n < c->most;
}

static bool generate(struct jllm_session *s, const int32_t *ids, size_t n, size_t n_vocab, struct jllm_error *e) {
    static struct choices c;
    c.n = 0, c.most = (size_t)ids[2];
    for (size_t i = 0; i < n_vocab; i++) c.row[i] = -1;
    if (!jllm_generate(s, ids[0], (size_t)ids[1], ids + 3, n - 3, take_choice, &c, e)) return false;
    write_row(&n_vocab, 0, c.row);
    return true;
}

/* One word, but for k; what it writes of the last token's logits comes after. */
static bool do_word(struct jllm_session *s, char kind, const int32_t *ids, size_t n, size_t n_vocab, struct jllm_error *e) {
    switch (kind) {
    case 'p': return jllm_prefill(s, ids, n, e);
    case 'r': return jllm_prefill_rows(s, ids, n, write_row, &n_vocab, e);
    case 'd': return jllm_decode(s, ids[0], e);
    case 'g': return generate(s, ids, n, n_vocab, e);
    default: return true;
    }
}

static int run(struct jllm_session *s, size_t n_vocab) {
    static int32_t ids[IDS_MAX];
    struct jllm_error e;
    char *word = NULL;
    for (; scanf("%ms", &word) == 1; free(word)) {
        if (*word == 'k') {
            jllm_reset(s, strtoul(word + 1, NULL, 10));
            continue;
        }
        if (!do_word(s, *word, ids, read_ids(word + 1, ids), n_vocab, &e)) return complain(word, e.text);
        if (*word == 'r' || *word == 'g') continue;
        const float *logits = jllm_logits(s);
        if (!logits) return complain(word, jllm_session_failure(s)->text);
        write_row(&n_vocab, 0, logits);
    }
    return fflush(stdout) ? complain("stdout", "cannot be written") : 0;
}

int main(int argc, char **argv) {
    struct jllm_error e;
    if (argc != 2) return complain("usage", "device_logits PLAN");
    struct jllm_plan *plan = jllm_open(argv[1], NULL, &e);
    if (!plan) return complain(argv[1], e.text);
    struct jllm_session *s = jllm_session_new(plan, &e);
    int rc = s ? run(s, jllm_plan_info(plan)->n_vocab) : complain(argv[1], e.text);
    jllm_session_free(s);
    jllm_close(plan);
    return rc;
}
