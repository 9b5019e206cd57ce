/* A chat template through Jinja into the plan's chat section, which the runtime then reads and renders. The vocabulary is of
 * bytes and a few control tokens. */
#include "fuzz.h"

#include "../../compiler/chat.h"
#include "../../compiler/tokenizer.h"
#include "../../runtime/host/chat.h"
#include "../vocab.h"

bool fuzz_accepted;

static const char *const controls[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>"};
enum { N_TOKENS = 256 + COUNT(controls) };

static void write_vocabulary(struct vocab_file *f) {
    char letters[256][3];
    const char *tokens[N_TOKENS];
    for (unsigned b = 0; b < 256; b++) tokens[b] = vocab_byte(b, letters[b]);
    memcpy(tokens + 256, controls, sizeof controls);
    vocab_string(f, "tokenizer.ggml.model", "gpt2");
    vocab_string(f, "tokenizer.ggml.pre", "smollm");
    vocab_strings(f, "tokenizer.ggml.tokens", tokens, N_TOKENS);
    vocab_array(f, "tokenizer.ggml.token_type", GGUF_I32, N_TOKENS);
    for (unsigned i = 0; i < N_TOKENS; i++) vocab_u32(&f->bytes, i < 256 ? 1 : 3);
    vocab_strings(f, "tokenizer.ggml.merges", NULL, 0);
    vocab_id(f, "tokenizer.ggml.bos_token_id", 257);
    vocab_id(f, "tokenizer.ggml.eos_token_id", 258);
}

static void render(const struct buffer *section, struct tokenizer *t) {
    static const struct chat_message turns[] = {{" hi ", 4}, {"<|im_end|>", 10}, {"", 0}};
    struct jllm_error e;
    struct chat c;
    struct tokenizer_ids ids = {0};
    uint8_t *copy = fuzz_copy(section->data, section->bytes);
    bool opened = chat_open(&c, copy, section->bytes, N_TOKENS, &e);
    assert(opened);
    for (unsigned i = 0; i < 8; i++) chat_render(&c, t, i & 1 ? "be brief" : NULL, turns, i & 2 ? 3 : 1, i & 4, &ids, &e);
    for (size_t i = 0; i < ids.n; i++) assert(ids.ids[i] >= 0 && ids.ids[i] < (int32_t)N_TOKENS);
    for (int32_t id = 0; id < (int32_t)N_TOKENS; id++) chat_is_stop(&c, t, id);
    tokenizer_ids_free(&ids);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct arena a = {0};
    struct diag d = {.out = fuzz_sink()};
    struct vocab_file f = {0};
    struct buffer vocabulary = {0}, rules = {0};
    struct gguf g;
    struct jllm_error e;
    write_vocabulary(&f);
    vocab_key(&f, "tokenizer.chat_template", GGUF_STRING);
    vocab_text(&f.bytes, (const char *)data, bytes);
    vocab_finish(&f);
    bool ok = gguf_parse(&g, "fuzz.gguf", f.bytes.data, f.bytes.bytes, &a, &d) && tokenizer_lower(&g, NULL, &vocabulary, &a, &d) &&
              chat_lower(&g, &rules, &a, &d);
    assert(ok && !d.errors);
    fuzz_accepted = rules.bytes > 0;
    if (fuzz_accepted) {
        struct tokenizer *t = tokenizer_open(vocabulary.data, vocabulary.bytes, &e);
        assert(t);
        render(&rules, t);
        tokenizer_close(t);
    }
    buffer_free(&vocabulary), buffer_free(&rules), buffer_free(&f.bytes);
    arena_free(&a);
    return 0;
}
