/* getopt_long_only takes llama.cpp's single-dash long names; its abbreviations are refused, since a
 * later option would change what they mean. What a plan has fixed is refused with what to do instead,
 * everything unknown is a usage error. */
#include "args.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../plan.h"
#include "unfinished.h"

static const char usage[] =
    "usage: jllm-run PLAN -p PROMPT [options]\n"
    "       jllm-run PLAN --selftest | --tokenize | --detokenize | --logits FILE.npy -p PROMPT\n"
    "\n"
    "Answers once and ends: no interactive chat, no session files, no JSON output. Options are llama.cpp's where it has them.\n"
    "\n"
    "  -m, --model PLAN         the plan, instead of as the first argument\n"
    "  -p, --prompt TEXT        the prompt; with chat rules one user message, answered once\n"
    "  -f, --file FILE          the prompt from a file; -: from stdin\n"
    "  -sys, --system-prompt T  the system message\n"
    "  --no-escape              take \\n, \\t, \\\\ and the like in -p and -sys as they are\n"
    "  -no-cnv                  raw completion, without chat rules; names of special tokens in the prompt stand for those tokens\n"
    "  --no-parse-special       raw completion, --tokenize: they are plain text, as they always are in a message\n"
    "  -n, --predict N          tokens of the answer at most (-1: until its end)\n"
    "  -c, --ctx-size N         use at most N tokens of the plan's context\n"
    "  -t, --threads N          threads (all cores that the process may use)\n"
    "  --device cpu|cuda        refuse a plan that is for another device\n"
    "  --single-launches        CUDA: wait for each launch, so that an error names its kernel\n"
    "  --reasoning-budget 0     ask for an answer without thinking\n"
    "  --temp T                 temperature (0.8); 0 or less: always the likeliest token\n"
    "  --top-k N  --top-p P  --min-p P                    samplers (40, 0.95, 0.05)\n"
    "  --repeat-penalty X  --repeat-last-n N              penalty of repeated tokens (1: off; 64)\n"
    "  -s, --seed N             seed (-1: random)\n"
    "  --ignore-eos             go on after the end of the answer\n"
    "  --no-display-prompt      raw completion: do not print the prompt\n"
    "  --selftest               check weights, every kernel, and the model against stored values\n"
    "  --verify                 check the hash of every weight first\n"
    "  --no-mmap                CPU: read the weights into memory of their own, in large pages: a later start, faster decoding\n"
    "  --logits FILE.npy        float32 [tokens, vocabulary] for every position of the prompt, by chat rules unless -no-cnv\n"
    "  --tokens 1,2,3           with --logits: ids instead of a prompt; a JSON array, too\n"
    "  --tokenize               text of -p, -f or stdin to a JSON array of ids on stdout, as it is: no chat rules, nothing in front\n"
    "  --detokenize             a JSON array of ids on stdin to text on stdout\n"
    "  --profile FILE           afterwards, time every launch of the phases that ran, for jllmc profile\n"
    "  --perf-map               kernels get names in perf report: writes /tmp/perf-PID.map for perf record\n"
    "  -v, --verbose            the plan's facts before the answer, afterwards a table of where its phases' time goes\n"
    "  --version  -h, --help\n";

enum option_id {
    OPT_MODEL = 1, OPT_PROMPT, OPT_FILE, OPT_SYSTEM, OPT_NO_ESCAPE, OPT_RAW, OPT_PREDICT,
    OPT_CTX, OPT_THREADS, OPT_REASONING, OPT_TEMP, OPT_TOP_K, OPT_TOP_P, OPT_MIN_P,
    OPT_REPEAT_PENALTY, OPT_REPEAT_LAST, OPT_SEED, OPT_IGNORE_EOS, OPT_HIDE_PROMPT,
    OPT_SELFTEST, OPT_VERIFY, OPT_NO_MMAP, OPT_LOGITS, OPT_TOKENS, OPT_TOKENIZE, OPT_DETOKENIZE, OPT_VERBOSE,
    OPT_DEVICE, OPT_SINGLE_LAUNCHES, OPT_PLAIN_TEXT, OPT_PROFILE, OPT_PERF_MAP, OPT_VERSION, OPT_HELP, OPT_FIXED_LAYERS, OPT_FIXED_BATCH, OPT_FIXED_CACHE, OPT_FIXED_FLASH,
    OPT_FIXED_CHAT,
};

static const struct option options[] = {
    {"m", 1, 0, OPT_MODEL}, {"model", 1, 0, OPT_MODEL},
    {"p", 1, 0, OPT_PROMPT}, {"prompt", 1, 0, OPT_PROMPT},
    {"f", 1, 0, OPT_FILE}, {"file", 1, 0, OPT_FILE},
    {"sys", 1, 0, OPT_SYSTEM}, {"system-prompt", 1, 0, OPT_SYSTEM},
    {"no-escape", 0, 0, OPT_NO_ESCAPE},
    {"no-cnv", 0, 0, OPT_RAW}, {"no-conversation", 0, 0, OPT_RAW},
    {"n", 1, 0, OPT_PREDICT}, {"predict", 1, 0, OPT_PREDICT}, {"n-predict", 1, 0, OPT_PREDICT},
    {"c", 1, 0, OPT_CTX}, {"ctx-size", 1, 0, OPT_CTX},
    {"t", 1, 0, OPT_THREADS}, {"threads", 1, 0, OPT_THREADS},
    {"device", 1, 0, OPT_DEVICE}, {"single-launches", 0, 0, OPT_SINGLE_LAUNCHES},
    {"no-parse-special", 0, 0, OPT_PLAIN_TEXT}, {"reasoning-budget", 1, 0, OPT_REASONING},
    {"temp", 1, 0, OPT_TEMP}, {"temperature", 1, 0, OPT_TEMP},
    {"top-k", 1, 0, OPT_TOP_K}, {"top-p", 1, 0, OPT_TOP_P}, {"min-p", 1, 0, OPT_MIN_P},
    {"repeat-penalty", 1, 0, OPT_REPEAT_PENALTY}, {"repeat-last-n", 1, 0, OPT_REPEAT_LAST},
    {"s", 1, 0, OPT_SEED}, {"seed", 1, 0, OPT_SEED},
    {"ignore-eos", 0, 0, OPT_IGNORE_EOS}, {"no-display-prompt", 0, 0, OPT_HIDE_PROMPT},
    {"selftest", 0, 0, OPT_SELFTEST}, {"verify", 0, 0, OPT_VERIFY}, {"no-mmap", 0, 0, OPT_NO_MMAP},
    {"logits", 1, 0, OPT_LOGITS}, {"tokens", 1, 0, OPT_TOKENS},
    {"tokenize", 0, 0, OPT_TOKENIZE}, {"detokenize", 0, 0, OPT_DETOKENIZE},
    {"profile", 1, 0, OPT_PROFILE}, {"perf-map", 0, 0, OPT_PERF_MAP},
    {"v", 0, 0, OPT_VERBOSE}, {"verbose", 0, 0, OPT_VERBOSE},
    {"version", 0, 0, OPT_VERSION}, {"h", 0, 0, OPT_HELP}, {"help", 0, 0, OPT_HELP},
    {"ngl", 2, 0, OPT_FIXED_LAYERS}, {"gpu-layers", 2, 0, OPT_FIXED_LAYERS},
    {"n-gpu-layers", 2, 0, OPT_FIXED_LAYERS},
    {"b", 2, 0, OPT_FIXED_BATCH}, {"batch-size", 2, 0, OPT_FIXED_BATCH},
    {"ub", 2, 0, OPT_FIXED_BATCH}, {"ubatch-size", 2, 0, OPT_FIXED_BATCH},
    {"fa", 2, 0, OPT_FIXED_FLASH}, {"flash-attn", 2, 0, OPT_FIXED_FLASH},
    {"ctk", 2, 0, OPT_FIXED_CACHE}, {"cache-type-k", 2, 0, OPT_FIXED_CACHE},
    {"ctv", 2, 0, OPT_FIXED_CACHE}, {"cache-type-v", 2, 0, OPT_FIXED_CACHE},
    {"cnv", 2, 0, OPT_FIXED_CHAT}, {"conversation", 2, 0, OPT_FIXED_CHAT},
    {"i", 2, 0, OPT_FIXED_CHAT}, {"interactive", 2, 0, OPT_FIXED_CHAT}, {"interactive-first", 2, 0, OPT_FIXED_CHAT},
    {0},
};

static _Noreturn void stop(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
static _Noreturn void stop(int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("error: ", stderr);
    vfprintf(stderr, format, args);
    if (code == EXIT_USAGE) fprintf(stderr, "\n%s --help lists the options", program_invocation_short_name);
    fputc('\n', stderr);
    va_end(args);
    exit(code);
}

void args_check_output(bool ok) {
    if (ok) return;
    int why = errno;
    unfinished_drop();
    if (why == EPIPE) _exit(EXIT_BAD_INPUT);
    fprintf(stderr, "error: cannot write to stdout: %s\n", strerror(why));
    _exit(EXIT_ENVIRONMENT);
}

static void on_bus_error(int number) {
    static const char text[] = "\nerror: the plan became shorter while it was in use\n";
    (void)number;
    (void)!write(2, text, sizeof text - 1);
    unfinished_drop();
    _exit(EXIT_BAD_INPUT);
}

void args_start(void) {
    int fd;
    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= 2) {}
    if (fd > 2) close(fd);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGBUS, on_bus_error);
}

const char *args_more_context(uint32_t ctx_max, uint32_t ctx_train, unsigned long long n) {
    static char text[120];
    if (ctx_train && ctx_train <= ctx_max) return "that is all that the model was trained for";
    if (ctx_train && n > ctx_train) n = ctx_train, snprintf(text, sizeof text, "the model was trained for %u: ", ctx_train);
    else snprintf(text, sizeof text, "for more: ");
    size_t at = strlen(text);
    snprintf(text + at, sizeof text - at, "jllmc compile MODEL.gguf --set memory.ctx_max=%llu", n);
    return text;
}

/* ---- options as getopt takes them ---- */

enum { WORD_MAX = 32 };

/* Edits (one letter more, less or another) between a[n] and b. */
static size_t word_distance(const char *a, size_t n, const char *b) {
    size_t row[WORD_MAX + 1], m = strlen(b);
    if (n > WORD_MAX || m > WORD_MAX) return WORD_MAX;
    for (size_t j = 0; j <= m; j++) row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t corner = row[0]++;
        for (size_t j = 1; j <= m; j++) {
            size_t best = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[m];
}

/* The option that word[n] may have meant: one letter in three wrong at most, else the first that it
 * begins; NULL: none. What is known only to be refused has an optional value, and is not suggested. */
static const char *near_option(const char *word, size_t n, const struct option *known) {
    const char *best = NULL, *longer = NULL;
    size_t nearest = n < 3 ? 1 : n / 3 + 1;
    for (const struct option *o = known; o->name; o++) {
        if (o->has_arg == optional_argument) continue;
        size_t distance = word_distance(word, n, o->name);
        if (distance < nearest) nearest = distance, best = o->name;
        if (!longer && n && strncmp(word, o->name, n) == 0) longer = o->name;
    }
    return best ? best : longer;
}

static _Noreturn void refuse_unknown(const char *argument, const char *word, size_t n,
                                     const struct option *known) {
    const char *near = near_option(word, n, known);
    if (near)
        stop(EXIT_USAGE, "unknown option '%s'; did you mean '%s%s'?", argument,
             near[1] ? "--" : "-", near);
    stop(EXIT_USAGE, "unknown option '%s'", argument);
}

int args_next(int argc, char **argv, const struct option *known, char name[ARGS_NAME_BYTES]) {
    opterr = 0;
    int id = getopt_long_only(argc, argv, "", known, NULL);
    if (id == -1) return id;
    bool apart = id != '?' && optarg && optarg == argv[optind - 1];
    const char *argument = argv[optind - 1 - apart], *word = argument + strspn(argument, "-");
    size_t n = strcspn(word, "=");
    const struct option *o = known;
    while (o->name && (strncmp(o->name, word, n) || o->name[n])) o++;
    if (!o->name) refuse_unknown(argument, word, n, known);
    if (id == '?') stop(EXIT_USAGE, word[n] ? "'%s': it takes no value" : "'%s' needs a value", argument);
    snprintf(name, ARGS_NAME_BYTES, "%.*s", (int)(word + n - argument), argument);
    return id;
}

/* ---- values ---- */

/* A number in [low, high], the whole argument. */
static long long number(const char *name, const char *text, long long low, long long high) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (errno || end == text || *end || n < low || n > high)
        stop(EXIT_USAGE, "%s '%s': not a whole number from %lld to %lld", name, text, low, high);
    return n;
}

static float fraction(const char *name, const char *text, double low, double high) {
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !(x >= low && x <= high))
        stop(EXIT_USAGE, "%s '%s': not a number from %g to %g", name, text, low, high);
    return (float)x;
}

/* llama.cpp's escapes: \n \r \t \' \" \\ ; others stay. In place. */
static void resolve_escapes(char *text) {
    static const char codes[] = "n\nr\rt\t\'\'\"\"\\\\";
    char *out = text;
    for (const char *p = text; *p; p++) {
        const char *code = codes;
        while (*p == '\\' && *code && *code != p[1]) code += 2;
        bool known = *p == '\\' && p[1] && *code;
        *out++ = known ? code[1] : *p;
        p += known;
    }
    *out = 0;
}

/* A text file or, by "-", stdin; like llama.cpp without the newline at its end. */
static char *read_file(const char *path) {
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    size_t bytes = 0, room = 1 << 16;
    char *text = malloc(room);
    if (!f) stop(EXIT_ENVIRONMENT, "%s: cannot open this text: %s", path, strerror(errno));
    for (size_t n; text && (n = fread(text + bytes, 1, room - bytes - 1, f)) > 0;) {
        bytes += n;
        if (bytes > ARGS_INPUT_BYTES_MAX)
            stop(EXIT_BAD_INPUT, "%s: longer than %d MiB", path, ARGS_INPUT_BYTES_MAX >> 20);
        if (room - bytes < 2) text = realloc(text, room *= 2);
    }
    if (!text) stop(EXIT_ENVIRONMENT, "%s: %s", path, "out of memory");
    if (ferror(f)) stop(EXIT_ENVIRONMENT, "%s: cannot read this text: %s", path, strerror(errno));
    if (f != stdin) fclose(f);
    if (memchr(text, 0, bytes))
        stop(EXIT_BAD_INPUT, "%s: %s", path, "the file holds NUL bytes: it is not text");
    if (bytes && text[bytes - 1] == '\n') bytes--;
    text[bytes] = 0;
    return text;
}

static _Noreturn void refuse_fixed(int id, const char *name) {
    static const char *const what[] = {
        "the plan's target decides what runs where; compile for another one: jllmc compile "
        "MODEL.gguf --spec SPEC.lua",
        "the plan's buckets decide how prompts are batched: jllmc compile MODEL.gguf --spec "
        "SPEC.lua, with buckets { … } there",
        "the plan fixes the cache type: jllmc compile MODEL.gguf --set memory.kv=f16",
        "attention is part of the plan; there is nothing to switch",
        "jllm-run answers one prompt and ends; -p is one user message, or with -no-cnv any text, such as a whole conversation",
    };
    stop(EXIT_USAGE, "%s: %s", name, what[id - OPT_FIXED_LAYERS]);
}

static const char *const mode_names[] = {
    [ARGS_LOGITS] = "--logits", [ARGS_TOKENIZE] = "--tokenize", [ARGS_DETOKENIZE] = "--detokenize", [ARGS_SELFTEST] = "--selftest"};

static _Noreturn void refuse_both(const char *one, const char *other) {
    stop(EXIT_USAGE, "%s and %s exclude each other: give one of them", one, other);
}

static void set_mode(struct args *a, enum args_mode mode) {
    if (a->mode != ARGS_GENERATE && a->mode != mode) refuse_both(mode_names[a->mode], mode_names[mode]);
    a->mode = mode;
}

/* The last of several counts. */
static void replace_text(char **text, char *now) {
    free(*text);
    *text = now;
}

static void apply_text(struct args *a, int id, const char *value) {
    switch (id) {
    case OPT_MODEL: a->plan = value; break;
    case OPT_FILE: replace_text(&a->prompt, read_file(value)); break;
    case OPT_PROMPT: replace_text(&a->prompt, strdup(value)); break;
    case OPT_SYSTEM: replace_text(&a->system, strdup(value)); break;
    case OPT_LOGITS: set_mode(a, ARGS_LOGITS); a->logits_path = value; break;
    case OPT_TOKENS: a->tokens = value; break;
    case OPT_PROFILE: a->profile_path = value; break;
    case OPT_DEVICE:
        a->device = value;
        if (strcmp(value, "cpu") != 0 && strcmp(value, "cuda") != 0)
            stop(EXIT_USAGE, "--device '%s': cpu or cuda", value);
        break;
    default: break;
    }
}

static void apply_number(struct args *a, int id, const char *name, const char *value) {
    switch (id) {
    case OPT_PREDICT: a->n_predict = (int)number(name, value, -1, INT_MAX); break;
    case OPT_CTX: a->ctx = (long)number(name, value, 0, PLAN_CTX_MAX); break;
    case OPT_THREADS: a->threads = (int)number(name, value, 1, PLAN_THREADS_MAX); break;
    case OPT_REASONING: a->plain = number(name, value, -1, 0) == 0; break;
    case OPT_TOP_K: a->sampler.top_k = (int)number(name, value, 0, INT_MAX); break;
    case OPT_REPEAT_LAST:
        a->sampler.repeat_last = (int)number(name, value, 0, SAMPLER_PENALTY_LAST_MAX);
        break;
    case OPT_SEED: a->seed = number(name, value, -1, LLONG_MAX); break;
    case OPT_TEMP: a->sampler.temperature = fraction(name, value, -1e6, 1e6); break;
    case OPT_TOP_P: a->sampler.top_p = fraction(name, value, 0, 1); break;
    case OPT_MIN_P: a->sampler.min_p = fraction(name, value, 0, 1); break;
    case OPT_REPEAT_PENALTY: a->sampler.repeat_penalty = fraction(name, value, 1e-3, 1e3); break;
    default: break;
    }
}

static void apply_switch(struct args *a, int id) {
    switch (id) {
    case OPT_RAW: a->raw = true; break;
    case OPT_PLAIN_TEXT: a->plain_text = true; break;
    case OPT_IGNORE_EOS: a->ignore_eos = true; break;
    case OPT_HIDE_PROMPT: a->hide_prompt = true; break;
    case OPT_VERIFY: a->verify = true; break;
    case OPT_NO_MMAP: a->no_mmap = true; break;
    case OPT_VERBOSE: a->verbose = true; break;
    case OPT_PERF_MAP: a->perf_map = true; break;
    case OPT_SINGLE_LAUNCHES: a->single_launches = true; break;
    case OPT_SELFTEST: set_mode(a, ARGS_SELFTEST); break;
    case OPT_TOKENIZE: set_mode(a, ARGS_TOKENIZE); break;
    case OPT_DETOKENIZE: set_mode(a, ARGS_DETOKENIZE); break;
    case OPT_HELP:
        args_check_output(fputs(usage, stdout) >= 0 && !fflush(stdout));
        exit(0);
    case OPT_VERSION:
        args_check_output(printf("jllm-run %s (plan version %d)\n", JLLM_VERSION, PLAN_VERSION) > 0 && !fflush(stdout));
        exit(0);
    default: break;
    }
}

/* prompt: "-p" or "-f", by which one was given. */
static void check(const struct args *a, const char *prompt) {
    if (!a->plan) stop(EXIT_USAGE, "no plan given");
    if (a->tokens && a->mode != ARGS_LOGITS) stop(EXIT_USAGE, "--tokens goes with --logits");
    if (a->tokens && a->prompt) stop(EXIT_USAGE, "--tokens stands for a prompt; give one of the two");
    if (a->logits_path && !*a->logits_path) stop(EXIT_USAGE, "--logits takes the name of a file");
    if (a->profile_path && (!*a->profile_path || a->mode != ARGS_GENERATE))
        stop(EXIT_USAGE, *a->profile_path ? "--profile goes with an answer" : "--profile takes the name of a file");
    if (a->prompt && a->mode == ARGS_DETOKENIZE)
        stop(EXIT_USAGE, "--detokenize reads ids from stdin, and takes no prompt: %s", prompt);
    if (a->prompt && a->mode == ARGS_SELFTEST) refuse_both("--selftest", prompt);
    if ((a->system || a->plain) && (a->tokens || (a->mode != ARGS_GENERATE && a->mode != ARGS_LOGITS)))
        stop(EXIT_USAGE, "%s goes with a prompt by chat rules", a->system ? "-sys" : "--reasoning-budget 0");
    bool wants_prompt = a->mode == ARGS_GENERATE || (a->mode == ARGS_LOGITS && !a->tokens);
    if (wants_prompt && !a->prompt) stop(EXIT_USAGE, "no prompt given: -p TEXT or -f FILE");
}

void args_parse(struct args *a, int argc, char **argv) {
    bool escapes = true;
    int id, prompt = 0;
    char name[ARGS_NAME_BYTES];
    *a = (struct args){.n_predict = -1, .seed = -1, .sampler = SAMPLER_DEFAULTS};
    while ((id = args_next(argc, argv, options, name)) != -1) {
        if (id >= OPT_FIXED_LAYERS) refuse_fixed(id, name);
        if (id == OPT_NO_ESCAPE) escapes = false;
        if (id == OPT_PROMPT || id == OPT_FILE) {
            if (prompt && prompt != id) refuse_both("-p", "-f");
            prompt = id;
        }
        if (!optarg) {
            apply_switch(a, id);
        } else {
            apply_text(a, id, optarg);
            apply_number(a, id, name, optarg);
        }
    }
    if (optind < argc && !a->plan) a->plan = argv[optind++];
    if (optind < argc) stop(EXIT_USAGE, "unexpected argument '%s'", argv[optind]);
    if (escapes && prompt == OPT_PROMPT) resolve_escapes(a->prompt);
    if (escapes && a->system) resolve_escapes(a->system);
    check(a, prompt == OPT_PROMPT ? "-p" : "-f");
}

void args_free(struct args *a) {
    free(a->prompt);
    free(a->system);
}
