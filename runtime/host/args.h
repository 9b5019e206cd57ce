/* Command line of jllm-run: llama.cpp's names and meanings, one struct of what was said. */
#ifndef ARGS_H
#define ARGS_H

#include <getopt.h>
#include <stdbool.h>

#include "sampler.h"

#define JLLM_VERSION "0.1.0"

enum { EXIT_BAD_INPUT = 1, EXIT_USAGE = 2, EXIT_ENVIRONMENT = 3 };

enum { ARGS_INPUT_BYTES_MAX = 256 << 20 };   /* of -f and of stdin */

enum args_mode { ARGS_GENERATE, ARGS_LOGITS, ARGS_TOKENIZE, ARGS_DETOKENIZE, ARGS_SELFTEST };

struct args {
    enum args_mode mode;
    const char *plan;
    char *prompt;               /* of -p (escapes resolved) or -f; NULL: none given */
    char *system;               /* of -sys; NULL: none given */
    const char *logits_path, *tokens, *profile_path;
    const char *device;         /* "cpu", "cuda"; NULL: the plan's */
    int n_predict;              /* -1: until the end */
    long ctx;                   /* 0: the plan's */
    int threads;                /* 0: the cores given */
    long long seed;             /* -1: random */
    struct sampler_options sampler;
    bool plain_text;            /* no special tokens in a raw text */
    bool raw, ignore_eos, hide_prompt, verify, no_mmap, verbose, plain, single_launches, perf_map;
};

/* A result that did not reach stdout is no success: unless `ok` the program ends, errno saying why, with exit code 3. A reader that
 * has gone away (head, a closed pipe) is no news to anyone: without a word, and 1. */
void args_check_output(bool ok);

/* What both programs begin with: descriptors 0 to 2 are open, so that no file becomes stderr; a closed pipe and a full disk are
 * errors of a write; a plan that becomes shorter has a sentence. */
void args_start(void);

/* What to do for a context of n tokens, which the plan (ctx_max) has not: only what works, as compile goes no further than
 * ctx_train (0: not known). Static buffer. */
const char *args_more_context(uint32_t ctx_max, uint32_t ctx_train, unsigned long long n);

enum { ARGS_NAME_BYTES = 40 };
/* getopt_long_only without abbreviations: the next option's value with optarg and its name as it was typed, or -1.
 * What it does not know (with a suggestion), or what lacks a value or has one too many, ends the
 * program with exit code 2. */
int args_next(int argc, char **argv, const struct option *known, char name[ARGS_NAME_BYTES]);

/* Parses, or prints help or version and exits 0, or prints what is wrong and exits 2 (3 when a file
 * cannot be read). */
void args_parse(struct args *a, int argc, char **argv);
void args_free(struct args *a);

#endif
