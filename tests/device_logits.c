/* device_logits PLAN: does the words on stdin with a session of the plan, and writes the logits after each prefill and
 * decode to stdout, float32 [n_vocab] after float32 [n_vocab].
 *
 *   p1,2,3   prefill of these ids      d4   decode of one      kN   keep N positions and forget the rest
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

static int run(struct jllm_session *s, size_t n_vocab) {
    static int32_t ids[IDS_MAX];
    struct jllm_error e;
    char *word = NULL;
    for (; scanf("%ms", &word) == 1; free(word)) {
        if (*word == 'k') {
            jllm_reset(s, strtoul(word + 1, NULL, 10));
            continue;
        }
        size_t n = read_ids(word + 1, ids);
        if (*word == 'p' ? !jllm_prefill(s, ids, n, &e) : !jllm_decode(s, ids[0], &e)) return complain(word, e.text);
        const float *logits = jllm_logits(s);
        if (!logits) return complain(word, jllm_session_failure(s)->text);
        fwrite(logits, sizeof *logits, n_vocab, stdout);
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
