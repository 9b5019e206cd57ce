/* A plan as the runtime opens it, and as the compiler's commands read it: inspect, explain, and the model and spec that a
 * retune starts from, which are lowered again. Hashes are made good again, so that mutations (mutator.c) reach what lies
 * behind them. Code of such a plan never runs. */
#include "fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include "../../compiler/explain.h"
#include "../../compiler/inspect.h"
#include "../../compiler/memory.h"
#include "../../compiler/origin.h"
#include "../../compiler/sheet.h"
#include "../../runtime/host/chat.h"
#include "../plan_builder.h"

bool fuzz_accepted;

static void open_tokenizer(const struct plan_view *v) {
    static const char text[] = "Hi there,\n 42 \xC3\xA9\xE2\x96\x81\xFF<|im_end|>";
    const struct chat_message turn = {text, sizeof text - 1};
    uint64_t bytes = 0, chat_bytes = 0;
    const void *section = sheet_section(v, PLAN_TOKENIZER, &bytes), *rules = sheet_section(v, PLAN_CHAT, &chat_bytes);
    struct jllm_error e;
    struct tokenizer_ids ids = {0};
    struct chat c;
    struct tokenizer *t = section ? tokenizer_open(section, bytes, &e) : NULL;
    if (!t) return;
    tokenizer_encode(t, text, sizeof text - 1, &ids, &e);
    for (int thinking = 0; thinking < 2; thinking++)
        if (rules && chat_open(&c, rules, chat_bytes, tokenizer_facts(t)->n_vocab, &e))
            chat_render(&c, t, "be brief", &turn, 1, thinking, &ids, &e);
    for (size_t i = 0, n; i < ids.n; i++) tokenizer_print(t, ids.ids[i], &n);
    tokenizer_ids_free(&ids);
    tokenizer_close(t);
}

/* As a retune and a tune do, which takes most of the time: so once for all inputs that say the same about the model. */
static void lower_again(const struct plan_view *v, const struct origin *o, struct arena *a, struct diag *d) {
    static uint64_t seen[1 << 16];
    uint64_t bytes = 0, hash = 0;
    struct graph g;
    struct program p;
    const void *origin = sheet_section(v, PLAN_ORIGIN, &bytes);
    const struct { const void *p; size_t bytes; } parts[] = {
        {v->info, sizeof *v->info}, {v->strings, v->n_strings}, {v->pieces, v->n_pieces * sizeof *v->pieces}, {origin, bytes}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) hash = XXH3_64bits_withSeed(parts[i].p, parts[i].bytes, hash);
    if (seen[hash % (1 << 16)] == hash) return;
    seen[hash % (1 << 16)] = hash;
    graph_build(&g, &o->model, o->spec.buckets, o->spec.n_buckets, a);
    if (contract_lower(&p, &o->model, &o->spec, &g, a, d)) memory_plan(&p);
}

static void read_origin(const struct plan_view *v) {
    struct arena a = {0};
    struct diag d = {.out = fuzz_sink()};
    struct origin o;
    bool ok = origin_read(&o, v, "fuzz.plan", &a, &d);
    assert(ok == !d.errors);
    if (ok) lower_again(v, &o, &a, &d);
    arena_free(&a);
}

/* The commands take a file's name. */
static void print_reports(const uint8_t *data, size_t bytes) {
    char path[64];
    int fd = memfd_create("plan", MFD_CLOEXEC);
    assert(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    for (int format = 0; format < 2; format++) {
        struct arena a = {0};
        struct diag d = {.out = fuzz_sink()};
        struct explain_options all = {.launch = -1, .format = (enum report_format)format}, one = {.launch = 0, .format = all.format};
        int inspected = inspect_plan(path, all.format, d.out, &a, &d), explained = explain_print(path, &all, d.out, &a, &d);
        assert(!inspected && !explained && !d.errors);
        explain_print(path, &one, d.out, &a, &d);
        arena_free(&a);
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct plan_view v;
    struct jllm_error e = {.code = JLLM_OK};
    uint8_t *copy = fuzz_copy(data, bytes);
    if (bytes >= PLAN_HEADER_BYTES) plan_rehash(copy, bytes);
    fuzz_accepted = plan_check(&v, copy, bytes, &e);
    if (fuzz_accepted) {
        plan_verify_weights(&v, &e);
        open_tokenizer(&v);
        read_origin(&v);
        print_reports(copy, bytes);
    } else {
        assert(e.code != JLLM_OK && *e.text);
    }
    free(copy);
    return 0;
}
