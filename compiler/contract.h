/* Templates and their contracts. templates/<device>/contract.lua declares each template (source, arguments,
 * tunable parameters with legal values) and says how each op of the graph becomes launches. The compiler's
 * middle knows neither: it hands ops over and gets launches back, so a new kernel touches templates/ alone.
 *
 * What a contract may call:
 *
 *   template "matmul" {
 *       source = "matmul.c",            -- beside the contract
 *       reference = "matmul",           -- what it computes: a function of reference.c, for self-tests
 *       args = { "a", "w", "out" },     -- names, in the order in which the kernel gets them
 *       keys = { "quant", "m", "k", "n" },  -- what spec entries may match on
 *       params = { { name = "tokens", values = { 1, 2, 4 }, default = 4, doc = "tokens of a register tile" } },
 *                                       -- shape = true: fixes the order of sums, so only `shape` entries may set it
 *       forms = { { name = "activations", values = { "exact", "q8" }, default = "exact", doc = "..." } },
 *                                       -- what changes results, a word: set by `shape` entries, never tuned; the contract
 *                                          asks choose() for it and says it in the launch's key where it is not the default
 *   }
 *   function lower.ffn_down(op)         -- one function per op kind: embed qkv attention attn_out ffn_up ffn_down head, and
 *                                          where the target does it: choose candidates
 *       launch("matmul", { a = op.h, w = weight(op.w.ffn_down, "rows16"), out = op.x },
 *              { quant = op.w.ffn_down.quant, m = op.w.ffn_down.m, k = op.w.ffn_down.k, n = op.n, residual = 1 },
 *              { items = 36, chunk = 1, barrier = true, bytes = 184320, flops = 663552 })
 *   end
 *
 *   -- on cuda: items = grid x, chunk = threads of a block, and grid_y, grid_z (1), shared (0: dynamic bytes)
 *
 *   target.sms, target.smem_kib         -- facts of the spec; 0: not stated
 *   op.kind, op.layer, op.n             -- n: most tokens of the phase; the step says how many there are
 *   op.dims.n_layer n_embd n_head n_head_kv head_dim n_ff n_vocab rope_dim rope_neox(0/1) rms_eps ctx
 *   op.dims.act                         -- nil: silu; "gelu" (model.h)
 *   op.dims.embd_scale                  -- nil: embeddings are taken as they are
 *   op.dims.window                      -- nil: a token of this layer sees all positions up to its own; else the last so many of them
 *   op.kv                               -- "i16" | "f32" | "f16": type of the cache
 *   op.w.<role>                         -- { name, quant, m, k, bytes } or nil; roles as in GGUF without ".weight", biases as attn_q_bias
 *   op.x op.q op.o op.h op.logits op.candidates
 *                                       -- values: { name, rows, cols, dtype }; x and logits are "f32", candidates
 *                                          [64][2] "i32", which are keys (plan.h, PLAN_KEY_BAD); the producer of
 *                                          q, o, h calls define(op.h, "a16"); op.w has the layer's weights, those that read it, too
 *   scratch(name, dtype, rows, cols)    -- a value that lives from its first launch to its last, which may be of another op
 *   weight(w, layout)                   -- the tensor in a layout of layout.c: "plain" (fp32 vector), "rows16" or "frag16"
 *   cache("k") cache("v")               -- this layer's cache: [ctx][n_head_kv * head_dim] of op.kv
 *   rope_table()                        -- plain fp32 [ctx][rope_dim / 2][2]: cos, sin, as this layer rotates
 *   choose(template, key)               -- { tokens = 4, ... }: the parameters and forms that a launch with this key gets; fields that
 *                                          follow from them may be missing, and no spec entry may match on those
 *   ceil_div(a, b)
 *
 * Integers of a launch's key become #define JT_M 576, floats #define JT_EPS 0x1.4f8b58p-17f, strings
 * #define JT_QUANT_Q4_1 1 and #define JT_QUANT q4_1; chosen params likewise. Args become the kernel's args[] in declared order.
 * Without `barrier` a launch may overlap the one before it.
 */
#ifndef CONTRACT_H
#define CONTRACT_H

#include "../runtime/plan.h"
#include "graph.h"
#include "spec.h"

enum { CONTRACT_PARAMS_MAX = 32 };      /* of a template */

struct contract_param {
    const char *name, *doc;
    int64_t *values; unsigned n_values;
    int64_t otherwise;           /* the default */
    bool shape;                  /* fixes the order of sums: set by shape entries, and by them alone */
};
struct contract_form {
    const char *name, *doc;
    const char **values; unsigned n_values;
    const char *otherwise;
};
struct contract_template {
    const char *name, *source, *reference;
    const char **args;           unsigned n_args;
    const char **keys;           unsigned n_keys;
    struct contract_param *params; unsigned n_params;   /* CONTRACT_PARAMS_MAX at most */
    struct contract_form *forms; unsigned n_forms;
};

struct key_field {
    const char *name;
    enum { KEY_INTEGER, KEY_FLOAT, KEY_STRING } type;
    int64_t integer; double number; const char *string;
    bool follows;                /* from parameters: it was not yet in the key that choose() got */
};

/* A chosen parameter, or a form, and why. */
struct choice {
    const char *name;
    int64_t value;
    const char *word;            /* a form's value; NULL: a parameter */
    const char *reason;          /* "default", "specs/cpu.lua:12", "--set" */
    const char *runner_up;       /* "specs/defaults.lua:7 (= 4)" or NULL */
};

struct kernel {                  /* a template specialised */
    const struct contract_template *template;
    struct key_field *key;       unsigned n_key;      /* sorted by name */
    struct choice *choices;      unsigned n_choices;
    struct choice *forms;        /* of each of the template's, where a spec sets it or another than the default came out */
    const char *name;            /* jk_matmul_q4_1_m576_k576_n8_residual1 */
    char *source;                /* #defines + #line + template text with own includes in place */
    struct hash128 source_hash;
    const uint8_t *image; size_t image_bytes; uint64_t entry;   /* after compilation */
    uint32_t registers, spill_bytes, shared_bytes;              /* cuda, from the compiler */
    bool cached;
};

struct value {                   /* a buffer in the arena */
    const char *name;
    enum plan_dtype dtype;
    uint64_t rows, cols, bytes;
    uint32_t phase;
    uint32_t first, last;        /* launches of the phase (indices within it) between which it is live, inclusive */
    bool pinned;                 /* same offset in every phase: residual stream, logits */
    uint64_t offset;             /* set by memory.c */
};

struct piece {                   /* a weight tensor in a layout, or a computed constant */
    const struct gguf_tensor *tensor;   /* NULL: computed (rope table) */
    const char *name, *layout;
    const struct quant_format *quant;
    uint64_t rows, cols, bytes, gguf_bytes, offset;
    const float *constant;       /* when tensor is NULL; itself NULL when the model is a header alone */
};

struct launch_arg { enum plan_space space; uint32_t index; uint64_t offset, bytes; };  /* index: value (arena) or piece (weights) */
struct launch {
    uint32_t kernel;
    struct launch_arg args[PLAN_ARGS_MAX]; unsigned n_args;
    uint32_t items, chunk;       /* cuda: grid x, block x */
    uint32_t grid_y, grid_z, shared_bytes;
    bool barrier;
    const struct op *op;
    uint64_t bytes, flops;
};

struct program_phase { enum plan_phase_kind kind; uint32_t n_tokens, first_launch, n_launches; uint64_t cost_ns; };

/* Everything between graph and file: what lowering makes, memory.c and layout.c fill in, emit.c writes. */
struct program {
    const struct model *model;
    const struct spec *spec;
    const struct graph *graph;
    struct contract_template *templates; unsigned n_templates;
    const char *contract; size_t contract_bytes;   /* compiled Lua */
    struct kernel *kernels;  unsigned n_kernels;
    struct value *values;    unsigned n_values;
    struct piece *pieces;    unsigned n_pieces;
    struct launch *launches; unsigned n_launches;
    struct program_phase *phases; unsigned n_phases;
    uint32_t ctx_max;
    uint64_t arena_bytes, arena_floor_bytes, cache_bytes;
    bool cache_units;            /* a CPU's cache, in the units of plan.h at PLAN_I16; else rows of [n_head_kv][head_dim] */
    uint64_t logits_offset, hidden_offset, candidates_offset;
};

/* Load the contract of spec's device, lower every op of the graph, choose parameters, write kernel sources. p->spec then holds
 * tuned choices as entries (tuned.h). */
/* A note where a context that somebody asked for is cut to what the model was trained for. */
void contract_note_context(const struct program *p, struct diag *d);
bool contract_lower(struct program *p, const struct model *m, const struct spec *s, const struct graph *g, struct arena *a, struct diag *d);
/* The same with sources of kernels of one template alone, and no file is read: another program of the device (like) has done that. */
bool contract_lower_one(struct program *p, const struct program *like, const struct model *m, const struct spec *s, const struct graph *g,
                        const char *template_name, struct arena *a, struct diag *d);
/* What the contract of spec's device declares, p->templates and p->spec and nothing else, with the spec's entries checked against it. */
bool contract_declare(struct program *p, const struct spec *s, struct arena *a, struct diag *d);
/* Check the spec's kernel and shape entries against what the contract declares. */
bool contract_check(const struct spec *s, struct arena *a, struct diag *d);
const struct key_field *kernel_key(const struct kernel *k, const char *name);  /* NULL: none */
int64_t kernel_key_integer(const struct kernel *k, const char *name, int64_t otherwise);
/* Index of the argument called name in the kernel's template, or -1. */
int kernel_arg(const struct kernel *k, const char *name);

#endif
