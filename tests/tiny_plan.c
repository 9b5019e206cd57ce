/* Writes plan_builder.h's tiny plan, with a tokenizer, so that jllm-run answers. The CPU's is for the instruction set
 * that this program was compiled for; the CUDA one, for the driver of fake_cuda.c, is the same on every machine.
 *
 *   tiny_plan FILE cpu [FEATURES]      FEATURES: the bits of PLAN_CPU_FEATURES that it says to need
 *   tiny_plan FILE cuda [KERNEL]       KERNEL: what serves as tk_mix
 */
#include "plan_builder.h"
#include "../runtime/host/tokenizer.h"

/* Tokens are the bytes of this text; the last is the two before it as one. It holds all that stands in place of the id of
 * a vocabulary of TINY_VOCAB. */
static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz .,!?'-:;\n\xc3\xa9";
enum { BYTES = sizeof alphabet - 1, JOINED = BYTES };
_Static_assert(BYTES + 2 == TINY_VOCAB, "the joined token and one that is never printed");

/* "qu" is merged; NFC makes e and U+0301 the bytes c3 a9. */
static void add_tokenizer(struct blob *s) {
    const uint32_t q = 'q' - 'a', u = 'u' - 'a';
    struct tokenizer_header h = {.magic = TOKENIZER_MAGIC, .version = TOKENIZER_VERSION, .pre = TOKENIZER_PRE_GPT2,
                                 .flags = TOKENIZER_NFC, .n_vocab = TINY_VOCAB, .n_merges = 1,
                                 .bos = TOKENIZER_NONE, .eos = TOKENIZER_NONE};
    memset(h.byte_id, 0xff, sizeof h.byte_id);
    for (uint32_t i = 0; i < BYTES; i++) h.byte_id[(uint8_t)alphabet[i]] = i;
    blob_add(s, &h, sizeof h);
    for (uint32_t i = 0; i <= TINY_VOCAB; i++) {
        uint32_t first = i <= JOINED ? i : BYTES + 2;
        blob_add(s, &first, sizeof first);
    }
    for (uint32_t i = 0; i <= TINY_VOCAB; i++) {
        uint32_t first = i > q;
        blob_add(s, &first, sizeof first);
    }
    blob_add(s, &(struct tokenizer_merge){.right = u, .id = JOINED}, sizeof(struct tokenizer_merge));
    for (uint32_t i = 0; i < TINY_VOCAB; i++) {
        uint8_t type = i <= JOINED ? TOKENIZER_NORMAL : TOKENIZER_UNUSED;
        blob_add(s, &type, 1);
    }
    blob_add(s, alphabet, BYTES);
    blob_add(s, "qu", 2);
}

int main(int argc, char **argv) {
    struct plan_builder b;
    if (argc < 3) return 2;
    const bool cuda = !strcmp(argv[2], "cuda");
    tiny_build(&b, &(struct tiny_options){.chooses = cuda});
    add_tokenizer(&b.section[PLAN_TOKENIZER]);
    build_tail(&b, 0, 2);
    if (cuda) {
        tiny_to_cuda(&b, argc > 3 ? argv[3] : NULL);
    } else {
        struct plan_info *info = plan_find(b.file.data, PLAN_INFO);
        if (argc > 3) info->features = strtoull(argv[3], NULL, 0);
        plan_rehash(b.file.data, b.file.bytes);
    }
    FILE *f = fopen(argv[1], "wb");
    bool ok = f && fwrite(b.file.data, 1, b.file.bytes, f) == b.file.bytes;
    if (f && fclose(f)) ok = false;
    build_free(&b);
    return ok ? 0 : 1;
}
