"""Headers of models of published shapes, quantised as llama.cpp's Q4_K_M does: what predictions are compared on."""
import product

# arch, layers, embd, ffn, heads, kv heads, head dim, vocabulary, tied, context
SHAPES = {
    "Qwen3-4B": ("qwen3", 36, 2560, 9728, 32, 8, 128, 151936, True, 40960),
    "Llama-3.2-3B": ("llama", 28, 3072, 8192, 24, 8, 128, 128256, True, 131072),
    "TinyLlama": ("llama", 22, 2048, 5632, 32, 4, 64, 32000, False, 2048),
    "TinyLlama-128k": ("llama", 22, 2048, 5632, 32, 4, 64, 128256, False, 2048),    # with the vocabulary of Llama 3
    "Llama-3.2-1B": ("llama", 16, 2048, 8192, 32, 8, 64, 128256, True, 131072),
    "Qwen3-8B": ("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, False, 40960),
    "Qwen3-1.7B": ("qwen3", 28, 2048, 6144, 16, 8, 128, 151936, True, 40960),
    "Qwen3-0.6B": ("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, True, 40960),
}


def more_bits(i, n):
    """The layers whose attn_v and ffn_down Q4_K_M keeps as Q6_K."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def header(name):
    """Path of the header of a model of SHAPES."""
    arch, layers, embd, ffn, heads, kv, dim, vocab, tied, ctx = SHAPES[name]
    sets = ["token_embd=q6_k"] if tied else ["output=q6_k"]
    sets += [f"blk.{i}.{role}=q6_k" for i in range(layers) if more_bits(i, layers) for role in ("attn_v", "ffn_down")]
    flags = ("--arch", arch, "--layers", layers, "--embd", embd, "--ffn", ffn, "--heads", heads, "--kv-heads", kv, "--head-dim", dim,
             "--vocab", vocab, "--ctx", ctx, "--name", name, "--header", *(("--tied",) if tied else ()))
    return product.model(*flags, *(x for s in sets for x in ("--set", s)))


def smollm2():
    """The header of SmolLM2 135M as its Q4_1 file has it."""
    return product.model("--layers", 30, "--embd", 576, "--ffn", 1536, "--heads", 9, "--kv-heads", 3, "--head-dim", 64, "--vocab", 49152, "--ctx", 8192,
                         "--name", "SmolLM2-135M", "--tied", "--type", "q4_1", "--set", "token_embd=q8_0", "--header")


def gemma3():
    """The header of Gemma 3 270M as its Q4_K_M file has it: rows of 640 are no blocks of 256."""
    sets = ["token_embd=q8_0", "attn_output=q4_k", "ffn_down=q4_k"]
    sets += [f"blk.{i}.{what}" for i in range(18) if more_bits(i, 18) for what in ("attn_v=q8_0", "ffn_down=q6_k")]
    return product.model("--arch", "gemma3", "--layers", 18, "--embd", 640, "--ffn", 2048, "--heads", 4, "--kv-heads", 1, "--head-dim", 256,
                         "--vocab", 262144, "--ctx", 32768, "--window", 512, "--name", "Gemma-3-270M", "--tied", "--type", "q5_0",
                         *(x for s in sets for x in ("--set", s)), "--header")


def model(name):
    """By the name that benchmarks give it."""
    return {"SmolLM2": smollm2, "Gemma-3-270M": gemma3}.get(name, lambda: header(name))()
