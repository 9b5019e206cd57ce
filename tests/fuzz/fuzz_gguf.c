/* A GGUF file as `jllmc compile` and `jllmc fit` take it, up to where kernels would be compiled: the whole file is parsed, then
 * its header alone goes through model, tokenizer, chat rules, and is lowered for a CPU and a GPU. What the compiler
 * writes into a plan's sections the runtime must take. Mutations know the format (gguf_mutator.c). */
#include "fuzz.h"

#include "../../compiler/chat.h"
#include "../../compiler/lower.h"
#include "../../compiler/memory.h"
#include "../../compiler/tokenizer.h"
#include "../../runtime/host/chat.h"

enum { FILE_BYTES_MAX = 1 << 20, N_SPECS = 2 };

bool fuzz_accepted;

/* One bucket: more of them are more of the same. */
static const struct spec *spec_for(int i) {
    static const char *const names[N_SPECS] = {"cpu_x86_64_v3", "orin_nano"}, *const sets[] = {"buckets=8"};
    static struct arena a;
    static struct spec specs[N_SPECS];
    struct diag d = {.out = stderr};
    if (!specs[i].file && !spec_load(&specs[i], names[i], sets, 1, &a, &d)) abort();
    return &specs[i];
}

/* All bytes that a tensor of a whole file has are there. */
static void parse_whole(const uint8_t *data, size_t bytes) {
    struct arena a = {0};
    struct diag d = {.out = fuzz_sink()};
    struct gguf g;
    bool ok = gguf_parse(&g, "fuzz.gguf", data, bytes, &a, &d);
    assert(ok == !d.errors);
    volatile uint8_t sum = 0;
    for (uint64_t i = 0; ok && i < g.n_tensors; i++)
        sum = (uint8_t)(sum + g.tensors[i].data[0] + g.tensors[i].data[g.tensors[i].bytes - 1]);
    arena_free(&a);
}

static void use_sections(const struct buffer *vocabulary, const struct buffer *rules) {
    static const char text[] = "Hi there,\n 42 \xC3\xA9\xE2\x96\x81\xFF<|im_end|>";
    struct tokenizer_ids ids = {0};
    struct jllm_error e;
    struct chat c;
    struct tokenizer *t = tokenizer_open(vocabulary->data, vocabulary->bytes, &e);
    assert(t);
    uint32_t n_vocab = tokenizer_facts(t)->n_vocab;
    tokenizer_encode(t, text, sizeof text - 1, &ids, &e);
    if (rules->bytes) {
        bool opened = chat_open(&c, rules->data, rules->bytes, n_vocab, &e);
        assert(opened);
        chat_render(&c, t, NULL, &(struct chat_message){text, sizeof text - 1}, 1, true, &ids, &e);
    }
    for (size_t i = 0; i < ids.n; i++) assert(ids.ids[i] >= 0 && (uint32_t)ids.ids[i] < n_vocab);
    tokenizer_ids_free(&ids);
    tokenizer_close(t);
}

/* Fit and compile take a file whose model, tokenizer and chat rules are all good. */
static bool front_end(const struct gguf *g, struct arena *a, struct diag *d) {
    struct buffer vocabulary = {0}, rules = {0};
    struct model m;
    bool ok = model_load(&m, g, a, d) && tokenizer_lower(g, NULL, &vocabulary, a, d) && chat_lower(g, &rules, a, d);
    assert(ok == !d->errors);
    if (ok) use_sections(&vocabulary, &rules);
    if (!ok) {   /* also where the model is what is wrong */
        chat_lower(g, &rules, a, d);
        tokenizer_lower(g, "gpt-2", &vocabulary, a, d);
    }
    buffer_free(&vocabulary), buffer_free(&rules);
    return ok;
}

static bool lower(const struct gguf *g, const struct spec *s) {
    struct arena a = {0};
    struct diag d = {.out = fuzz_sink()};
    struct lowered l;
    struct memory_need need;
    bool ok = lower_model(&l, g, s, &a, &d);
    assert(ok == !d.errors);
    if (ok) {
        memory_need(&l.program, &need);
        memory_fits(&need);
    }
    arena_free(&a);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes > FILE_BYTES_MAX) return 0;
    struct arena a = {0};
    struct diag d = {.out = fuzz_sink()};
    struct gguf g;
    parse_whole(data, bytes);
    fuzz_accepted = gguf_parse_header(&g, "fuzz.gguf", data, bytes, &a, &d) && front_end(&g, &a, &d);
    for (int i = 0; i < N_SPECS && fuzz_accepted; i++) fuzz_accepted = lower(&g, spec_for(i));
    arena_free(&a);
    return 0;
}
