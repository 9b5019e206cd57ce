/* The plan file: every struct that stands in it, its limits, and nothing else.
 *
 * The compiler writes what this header says and the runtime reads it; it is the one header that
 * both include. PLAN.md beside it has the drawing, an annotated hex dump, and the growth rule.
 *
 *   0        struct plan_header          4 KiB: identity, weights, two slots
 *   4096     weights                     pieces in the order in which kernels read them, 4 KiB aligned
 *   tail     struct plan_tail            directory of sections, then the sections, 64-byte aligned
 *
 * All integers are little-endian, all offsets in bytes, all structs free of padding. A retune
 * appends a new tail, syncs, and writes the other slot: the valid slot of the highest generation
 * wins. Hashes are XXH3-128 in canonical (big-endian) byte order: they find damage, not malice.
 */
#ifndef JLLM_PLAN_H
#define JLLM_PLAN_H

#include <stdint.h>

/* A byte above 127 (7-bit transfer), CR LF and a lone LF (text mode), Ctrl-Z (DOS type): as PNG. */
#define PLAN_MAGIC "\x89JLM\r\n\x1a\n"
enum {
    PLAN_VERSION = 4,
    PLAN_HEADER_BYTES = 4096,
    PLAN_WEIGHT_ALIGN = 4096,  /* of a piece, so that a piece can be mapped or read with O_DIRECT */
    PLAN_SECTION_ALIGN = 64,   /* of a section within the tail */
    PLAN_CODE_ALIGN = 4096,    /* of a CPU kernel's image within the code section */
    PLAN_ARENA_ALIGN = 64,     /* of every value in arena and cache */
    PLAN_TOKENS_MAX = 512,     /* largest bucket */
    PLAN_COUNTERS_MAX = 4096,
    PLAN_BUCKETS_MAX = 32,
    PLAN_ARGS_MAX = 24,        /* arguments of one launch */
    PLAN_KERNELS_MAX = 1 << 16,
    PLAN_LAUNCHES_MAX = 1 << 20,
    PLAN_PIECES_MAX = 1 << 20,
    PLAN_VOCAB_MAX = 1 << 24,
    PLAN_CTX_MAX = 1 << 24,
    PLAN_CHUNKS_MAX = (1 << 24) - 4096,  /* cpu: chunks of the launches between two barriers */
    PLAN_THREADS_MAX = 256,
    PLAN_STOP_IDS_MAX = 16,    /* ids that end a generation on the device */
    PLAN_RING_ENTRIES = 16,    /* choices that the host may be behind */
    PLAN_CANDIDATES_MAX = 64,
    PLAN_CACHE_POSITIONS = 256, /* cpu: of a unit of the cache (drawn at PLAN_I16) */
};
#define PLAN_BYTES_MAX ((uint64_t)1 << 46)  /* of anything: sums of two never overflow */

struct plan_hash { uint8_t bytes[16]; };

struct plan_slot {            /* 64 bytes */
    uint64_t generation;      /* 0 = never written */
    uint64_t tail_offset;     /* from the start of the file, multiple of 4096 */
    uint64_t tail_bytes;
    struct plan_hash tail_hash;   /* over the tail_bytes at tail_offset */
    uint64_t reserved;
    struct plan_hash slot_hash;   /* over the 48 bytes before */
};

struct plan_header {          /* the first bytes of the 4 KiB; the rest is zero */
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;    /* PLAN_HEADER_BYTES */
    uint64_t weights_offset;  /* PLAN_HEADER_BYTES */
    uint64_t weights_bytes;   /* multiple of PLAN_WEIGHT_ALIGN */
    struct plan_hash gguf_hash;   /* of the GGUF file that the weights came from */
    struct plan_hash header_hash; /* over the 48 bytes before */
    struct plan_slot slot[2];
};

enum plan_section_kind {
    PLAN_INFO = 1,    /* one struct plan_info */
    PLAN_STRINGS,     /* NUL-terminated UTF-8; offset 0 is "" */
    PLAN_CODE,        /* kernel images; loaded read + execute (cpu) or as modules (cuda) */
    PLAN_KERNELS,     /* struct plan_kernel[] */
    PLAN_ARGS,        /* struct plan_arg[] */
    PLAN_LAUNCHES,    /* struct plan_launch[] */
    PLAN_PHASES,      /* struct plan_phase[] */
    PLAN_COVER,       /* uint16_t[ctx_max + 1]: for a prompt of L tokens, the phase that takes its first tokens; [0] is unused */
    PLAN_WEIGHTS,     /* struct plan_piece[] */
    PLAN_MEMORY,      /* struct plan_memory[]: what a session takes, stated before it is taken */
    PLAN_TOKENIZER,   /* see host/tokenizer.h */
    PLAN_CHAT,        /* see host/chat.h; absent when the template was not understood */
    PLAN_TESTS,       /* struct plan_test[]: one per distinct kernel */
    PLAN_TEST_INPUTS, /* struct plan_test_input[] */
    PLAN_TEST_VALUES, /* struct plan_test_value[] */
    PLAN_TEST_MODEL,  /* struct plan_test_model, then ids and values: the whole model on a few tokens */
    PLAN_FORECAST,    /* optional, one struct plan_forecast: what the spec's facts say this plan takes */
    PLAN_ORIGIN,      /* optional: struct plan_origin, then the spec's text: what a retune lowers the model by again */
    PLAN_TARGET,      /* optional: what the spec calls its target, with a NUL at the end */
    PLAN_SECTION_KINDS
};
enum { PLAN_SECTION_OPTIONAL = 1 };   /* a reader that does not know the kind may ignore it */

struct plan_section {         /* 32 bytes */
    uint32_t kind;
    uint32_t flags;
    uint64_t offset;          /* from the start of the tail */
    uint64_t bytes;           /* stride * count */
    uint32_t count;
    uint32_t stride;          /* bytes of one entry, 1 for a blob; fixed by the version (PLAN.md, growth) */
};                            /* sections stand in the order of their offsets and do not overlap */

struct plan_tail {            /* the first bytes of a tail */
    uint32_t n_sections;
    uint32_t reserved;
    /* struct plan_section[n_sections] */
};

enum plan_device { PLAN_DEVICE_CPU = 1, PLAN_DEVICE_CUDA = 2 };

/* CPU features, bits of plan_info.features_lo; a plan is refused where one is missing. */
#define PLAN_CPU_FEATURES(X) /* bit, name */ \
    X(0, AVX, "avx") X(1, AVX2, "avx2") X(2, FMA, "fma") X(3, F16C, "f16c") X(4, BMI2, "bmi2")   \
    X(5, AVX512F, "avx512f") X(6, AVX512BW, "avx512bw") X(7, AVX512VL, "avx512vl")              \
    X(8, AVX512DQ, "avx512dq") X(9, AVX512VNNI, "avx512_vnni") X(10, AVX512BF16, "avx512_bf16") \
    X(32, ASIMD, "asimd") X(33, ASIMDHP, "asimdhp") X(34, ASIMDDP, "asimddp")                    \
    X(35, I8MM, "i8mm") X(36, SVE, "sve")
enum plan_isa { PLAN_ISA_ANY = 0, PLAN_ISA_X86_64 = 1, PLAN_ISA_AARCH64 = 2, PLAN_ISA_SM = 3 };
/* Bits of plan_info.features of a CUDA plan. */
enum { PLAN_CUDA_LAUNCHES = 1 };  /* replay phases launch by launch instead of as graphs */

struct plan_info {
    uint32_t device;          /* enum plan_device */
    uint32_t isa;             /* enum plan_isa */
    uint64_t features;        /* bits of PLAN_CPU_FEATURES that kernels use; of CUDA plans see there */
    uint32_t sm_arch;         /* 87 for sm_87; 0 on a CPU */
    uint32_t driver_min;      /* CUDA driver version, 12060 for 12.6; 0 on a CPU */
    uint32_t n_vocab, n_layer, n_embd, ctx_max, ctx_train, n_tokens_max;
    uint64_t arena_bytes;     /* activations and workspace of a session */
    uint64_t cache_bytes;     /* K and V of a session */
    uint64_t logits_offset;   /* in the arena: float[n_vocab] after head or decode */
    uint64_t hidden_offset;   /* in the arena: float[n_tokens_max][n_embd], the residual stream */
    uint64_t candidates_offset;   /* in the arena: uint64_t[PLAN_CANDIDATES_MAX] after candidates; 0 without that phase */
    uint64_t decode_bytes;    /* weight and constant bytes that one decode step reads */
    uint64_t macs_per_token;  /* multiply-adds of weight matrices for one token, head excluded */
    /* offsets into PLAN_STRINGS */
    uint32_t model_name, arch_name, file_name, spec_name, spec_hash, target_name, compiler_name;
    uint32_t quant_name;      /* "q4_1 q8_0 f32": types by bytes, largest first */
};

struct plan_kernel {
    uint32_t name;            /* PLAN_STRINGS: jk_matmul_q4_1_m576_k576_n8 */
    uint32_t detail;          /* PLAN_STRINGS: parameters and the reason for them */
    uint64_t code_offset;     /* in PLAN_CODE, multiple of PLAN_CODE_ALIGN (cpu) or PLAN_SECTION_ALIGN (cuda) */
    uint64_t code_bytes;
    uint64_t entry;           /* from code_offset */
    struct plan_hash source_hash;  /* key of the kernel cache */
    uint32_t registers, spill_bytes, shared_bytes; /* cuda */
    uint32_t template_name;   /* PLAN_STRINGS: "matmul" */
    uint32_t quant;           /* PLAN_STRINGS: type of its matrix, "" without one */
    uint32_t m, k, n;         /* what it was specialised for: rows and columns of the matrix, tokens; 0: does not apply */
};

enum plan_space {             /* what an argument's offset counts from */
    PLAN_SPACE_ARENA = 1, PLAN_SPACE_CACHE, PLAN_SPACE_WEIGHTS, PLAN_SPACE_STEP,
    PLAN_SPACE_END
};
struct plan_arg {             /* a pointer: space base + offset; `bytes` from there are what a kernel may touch */
    uint32_t space;
    uint32_t piece;           /* PLAN_SPACE_WEIGHTS: index into PLAN_WEIGHTS, else 0 */
    uint64_t offset;          /* within the piece for weights */
    uint64_t bytes;
};

enum { PLAN_LAUNCH_BARRIER = 1 };  /* wait for all launches before this one; without it they may overlap */
struct plan_launch {
    uint32_t kernel;
    uint32_t first_arg, n_args;
    uint32_t flags;
    uint32_t items;           /* cpu: independent work items; cuda: grid x */
    uint32_t chunk;           /* cpu: items that a thread takes at a time; cuda: block x */
    uint32_t grid_y, grid_z, shared_bytes;
    uint32_t op;              /* PLAN_STRINGS: "ffn_up" */
    uint32_t layer;           /* UINT32_MAX: not in a layer */
    uint32_t reserved;
    uint64_t bytes;           /* weight bytes read */
    uint64_t flops;
};

/* Candidates: the largest logits, run when somebody asks for them. Optional: without it the host looks at the logits. */
enum plan_phase_kind { PLAN_PHASE_PREFILL = 1, PLAN_PHASE_HEAD, PLAN_PHASE_DECODE, PLAN_PHASE_CANDIDATES };
struct plan_phase {
    uint32_t kind;
    uint32_t n_tokens;        /* most tokens that it takes; 1 for all but prefill */
    uint32_t first_launch, n_launches;
    uint64_t cost_ns;         /* modelled or measured; what the cover was made from */
};

enum plan_dtype {
    PLAN_F32 = 1, PLAN_F16, PLAN_I32,
    /* A16: rows x cols activations as 16-bit integers with one fp32 scale per 32 columns:
     *   int16_t q[rows][cols]; float scale[rows][cols/32]; float sum[rows][cols/32];
     * value = q * scale; sum = scale * (the 32 q added exactly). Each array 64-byte aligned in size. */
    PLAN_A16,
    /* X16: rows x cols fp16 activations in the order of mma.m16n8k16's B fragments, then fp32 sums of 32 columns.
     * Element (i, k), with e = (k%32/16)*4 + (k%16/8)*2 + k%2 and t = k%8/2, stands at half number
     *   rows == 1: ((k/256) * 32 + (k/32%8) * 4 + t) * 8 + e          (eight blocks of 32 on the eight columns)
     *   else:      ((k/32 * (rows/8) + i/8) * 32 + i%8 * 4 + t) * 8 + e   (eight tokens on the eight columns)
     * rows is 1 or a multiple of 8; for one row cols are padded with zeros to a multiple of 256. Then, from the next
     * multiple of 64 bytes: float sum[cols/32][rows], the sum of the 32 halves as they are. */
    PLAN_X16,
    /* A8: rows x cols activations as 8-bit integers with one fp32 scale per 32 columns, which take 64 bytes:
     *   int8_t q[32]; float scale; float sum[3]; int32_t start[3]; int32_t zero
     * value = q * scale. Of every 8 columns q has 0, 4, 1, 5, 2, 6, 3, 7 in this order. Index 0 of sum and start is of all 32,
     * 1 and 2 are of 16 columns each: sum = scale * (their q added exactly), start = -128 * (the same). */
    PLAN_A8,
    /* I16, of a CPU's cache alone: 16-bit integers with one fp32 scale for each position of a head; value = item * scale.
     * Keys, or values, of a layer on a CPU are seen as rows (positions) x cols (heads of k and v, head_dim each) of F32, F16 or I16. They
     * stand in units of PLAN_CACHE_POSITIONS rows of a head, first all heads of the first rows; row and d counted in the unit:
     *   float scale[PLAN_CACHE_POSITIONS]; (I16 alone)
     *   keys: item[row / 16][head_dim][16], element [row / 16][d][row % 16]; values: item[PLAN_CACHE_POSITIONS][head_dim] */
    PLAN_I16,
    PLAN_DTYPE_END
};

struct plan_piece {           /* one weight tensor (or a part of one) in its kernel's layout */
    uint32_t name;            /* PLAN_STRINGS: GGUF name */
    uint32_t quant;           /* PLAN_STRINGS: "q4_k" */
    uint32_t layout;          /* PLAN_STRINGS: "rows16", "plain" */
    uint32_t reserved;
    uint64_t offset;          /* from weights_offset; the end of the piece before, rounded up to PLAN_WEIGHT_ALIGN */
    uint64_t bytes;           /* without the padding to the next piece */
    uint64_t gguf_bytes;      /* what it took in the GGUF; 0 for computed constants */
    uint64_t rows, cols;
    struct plan_hash hash;    /* over bytes and the zero padding up to the next multiple of the alignment */
};

/* What the plan and one session take. A CUDA plan is refused where less than the sum of all rows is available, so what must
 * stay free (the spec's reserve, the driver's own memory) is a row too. */
struct plan_memory { uint32_t name; uint32_t reserved; uint64_t bytes; };

/* Self-test of one kernel: fill inputs, set the step, run one launch, compare sampled outputs:
 * sqrt(sum (got-want)^2) <= bound * sqrt(sum want^2) over the values. */
struct plan_test {
    uint32_t kernel, launch;
    uint32_t n_tokens, pos, row, id;   /* of the step; ids are (id + 17 i) mod n_vocab */
    uint32_t first_input, n_inputs;
    uint32_t out_arg, out_dtype;       /* which argument of the launch, and how to read it */
    uint32_t out_rows, out_cols;
    uint32_t first_value, n_values;
    float bound;
    uint32_t out_cache;                /* as plan_test_input.cache */
};
enum { PLAN_CACHE_KEYS = 1u << 31 };
struct plan_test_input {      /* argument `arg` of the launch, seen as rows x cols of dtype */
    uint32_t arg, dtype, rows, cols;
    uint64_t seed;
    float amplitude;          /* values are uniform in [-amplitude, amplitude) */
    uint32_t cache;           /* of a CPU: head_dim, and PLAN_CACHE_KEYS for keys; 0: not a cache, element (row, col) at row * cols + col */
};
struct plan_test_value { uint32_t row, col; float want; uint32_t reserved; };
struct plan_test_model {      /* int32_t ids[n_tokens]; struct { uint32_t id; float logit; }[n_values] of the last position */
    uint32_t n_tokens, n_values;
    float bound;
    uint32_t top1;            /* id of the largest logit */
};

/* The spec's facts that predictions divide by (docs/prediction.md); 0: not stated, and then nothing is bound by it. */
struct plan_rates {
    double dram_gbps;         /* what memory can do, */
    double dram_share;        /* and the share of it that kernels reading weights, */
    double cache_share;       /* and keys and values, get */
    double peak_gflops;       /* what the device can do, */
    double gflops;            /* and what matrix kernels do with many tokens */
    double gweights;          /* 10^9 weights a second that matrix kernels unpack, for however few tokens */
    double barrier_us;        /* a launch that waits for those before it, */
    double barrier_token_us;  /* and what each token of a pass adds to that */
    double load_gbps;         /* from storage into the device's memory */
    double cache_bytes;       /* of the last cache, as much of it as weights keep from one step to the next */
};
/* The bandwidth, in GB/s, at which memory gives weights when a decode step reads this many bytes: the last cache has its
 * share of them, only the rest comes from memory, and when there is no rest, memory binds nothing: 0, not stated. */
static inline double plan_weights_gbps(const struct plan_rates *r, double decode_bytes) {
    double missed = decode_bytes - r->cache_bytes;
    return missed > 0 ? r->dram_gbps * decode_bytes / missed : 0;
}
enum { PLAN_FORECAST_PROMPT = 33 };
/* Nothing that runs depends on it. Floors are what no kernel can be faster than: bytes over dram_gbps, flops over
 * peak_gflops; the rest is what is expected. */
struct plan_forecast {
    struct plan_rates rates;
    double decode_floor_ns, decode_ns;       /* one step with an empty cache, */
    double position_floor_ns, position_ns;   /* and what each position of the cache adds that all layers read */
    double prompt_ns;         /* a prompt of PLAN_FORECAST_PROMPT tokens, to its logits */
    double load_ns;           /* 0: not known */
    uint32_t sms, bound;      /* bound: enum cost_bound of a decode step, in the compiler's cost.h */
};

/* Dimensions that no other section states. The spec's text is what `jllmc spec dump` prints without places, with --set of
 * parameters as comments of that form. */
struct plan_origin { uint32_t n_head, n_head_kv, head_dim, rope_dim, rope_neox, spec_bytes, window, window_period; double rms_eps; };

/* What changes from step to step; the only thing besides arena and cache that a kernel may see change. */
struct plan_step {
    uint32_t n_tokens;        /* tokens in this pass, 1..the phase's n_tokens; kernels skip the rest */
    uint32_t pos;             /* cache position of the first of them */
    uint32_t row;             /* head: the row of the residual stream whose logits are wanted */
    uint32_t stop;            /* cuda: not 0, kernels leave everything as it is */
    /* cuda, of a decode phase that chooses its next token itself: */
    uint32_t advance;         /* 0: its last launch, the choice, does nothing */
    uint32_t limit;           /* stop when pos gets there */
    uint32_t n_stop;          /* stop when one of stop_ids is chosen */
    uint32_t serial;          /* of the next choice, counted from 1 */
    uint64_t ring;            /* device address of uint64_t[PLAN_RING_ENTRIES] in the host's memory */
    uint32_t arrived;         /* blocks of the choice that are done; 0 between launches */
    uint32_t reserved;
    int32_t stop_ids[PLAN_STOP_IDS_MAX];
    int32_t ids[PLAN_TOKENS_MAX];
    uint32_t counters[PLAN_COUNTERS_MAX];   /* CUDA: of blocks that have arrived; zero between launches */
};

/* Choosing on the device. A logit's key is larger when the logit is, and of equal logits when the id is lower; -0 is 0, and
 * all logits that are not finite have PLAN_KEY_BAD, which is larger than any other's:
 *   key = order << 32 | ~id,  order = bits of the fp32 logit, all flipped where it is negative, else the sign alone
 * The largest key is the choice. It goes to ring[serial % PLAN_RING_ENTRIES] as serial << 32 | id, with PLAN_ID_BAD for
 * PLAN_KEY_BAD; then serial + 1, and either stop = 1 (PLAN_ID_BAD) or ids[0] = id, pos + 1 and stop by limit and stop_ids.
 * A candidates phase leaves the PLAN_CANDIDATES_MAX largest keys in descending order, and 0 where there are none left. */
#define PLAN_KEY_BAD UINT64_MAX
#define PLAN_ID_BAD UINT32_MAX
static inline uint64_t plan_key(float logit, uint32_t id) {
    union { float f; uint32_t u; } bits = {logit};
    if ((bits.u & 0x7f800000) == 0x7f800000) return PLAN_KEY_BAD;
    if (bits.u == 0x80000000) bits.u = 0;
    return (uint64_t)(bits.u ^ (bits.u >> 31 ? UINT32_MAX : 0x80000000)) << 32 | (uint32_t)~id;
}
static inline float plan_key_logit(uint64_t key) {
    uint32_t order = (uint32_t)(key >> 32);
    union { uint32_t u; float f; } bits = {order ^ (order >> 31 ? 0x80000000 : UINT32_MAX)};
    return bits.f;
}
static inline int32_t plan_key_id(uint64_t key) { return (int32_t)(uint32_t)~key; }

/* A CUDA kernel is `extern "C" __global__ void NAME(a0, a1, ..., const plan_step *step)`: the launch's arguments in order as
 * pointers, the step last, which the choice alone changes. Its code is a cubin in PLAN_CODE, its name the plan_kernel's
 * name, its grid (items, grid_y, grid_z), its block `chunk` threads, its dynamic shared memory shared_bytes. */

/* A CPU kernel does items [first, last) of its launch; nothing is promised about who does which. */
typedef void plan_cpu_kernel(void *const *args, const struct plan_step *step, uint32_t first, uint32_t last);

/* Value i of a seeded input, in [-1, 1): splitmix64 (Steele, Lea, Flood 2014) of seed + i. */
static inline float plan_seeded(uint64_t seed, uint64_t i) {
    uint64_t z = (seed + i) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (float)((int64_t)(z >> 40) - (1 << 23)) * (1.0f / (1 << 23));
}

/* A16 inputs of a test: q = round(32767 * seeded(seed, row*cols + col)); the scale of block b of a row is
 * amplitude / 32767 * (1 + seeded(seed ^ 0x5ca1e, row*(cols/32) + b) / 2), so that neighbours differ. The product
 * 32767 * seeded and its rounding (to nearest even) are done in float. F16 and X16 inputs are rounded to fp16.
 * A8 inputs: the same as A16 with 127 in the place of 32767. I16 inputs: the same as A16 with blocks of head_dim columns. */

/* A unit of a CPU's cache. */
static inline uint64_t plan_cache_unit_bytes(uint32_t dtype, uint32_t head_dim) {
    uint64_t items = (uint64_t)PLAN_CACHE_POSITIONS * head_dim;
    return dtype == PLAN_F32 ? items * 4 : items * 2 + (dtype == PLAN_I16 ? PLAN_CACHE_POSITIONS * 4u : 0);
}
/* What a position takes of the cache of all layers; a CPU's cache has room for whole units. */
static inline double plan_position_bytes(enum plan_device device, uint64_t cache_bytes, uint32_t ctx_max) {
    uint64_t units = ((uint64_t)ctx_max + PLAN_CACHE_POSITIONS - 1) / PLAN_CACHE_POSITIONS;
    return (double)cache_bytes / (double)(device == PLAN_DEVICE_CPU ? units * PLAN_CACHE_POSITIONS : ctx_max);
}

_Static_assert(sizeof(struct plan_slot) == 64, "slot");
_Static_assert(sizeof(struct plan_header) == 64 + 2 * 64, "header");
_Static_assert(sizeof(struct plan_section) == 32, "section");
_Static_assert(sizeof(struct plan_tail) == 8, "tail");
_Static_assert(sizeof(struct plan_info) == 8 + 8 + 8 + 24 + 56 + 32, "info");
_Static_assert(sizeof(struct plan_kernel) == 80, "kernel");
_Static_assert(sizeof(struct plan_arg) == 24, "arg");
_Static_assert(sizeof(struct plan_launch) == 64, "launch");
_Static_assert(sizeof(struct plan_phase) == 24, "phase");
_Static_assert(sizeof(struct plan_piece) == 72, "piece");
_Static_assert(sizeof(struct plan_memory) == 16, "memory");
_Static_assert(sizeof(struct plan_test) == 64, "test");
_Static_assert(sizeof(struct plan_test_input) == 32, "test input");
_Static_assert(sizeof(struct plan_test_value) == 16, "test value");
_Static_assert(sizeof(struct plan_test_model) == 16, "test model");
_Static_assert(sizeof(struct plan_step) == 112 + 4 * PLAN_TOKENS_MAX + 4 * PLAN_COUNTERS_MAX, "step");
_Static_assert(sizeof(struct plan_forecast) == 10 * 8 + 6 * 8 + 8, "forecast");
_Static_assert(sizeof(struct plan_origin) == 40, "origin");

#endif
