/* jllmc: sub-commands. compile_model() reads as the list of passes. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "activations.h"
#include "chat.h"
#include "cost.h"
#include "diff.h"
#include "emit.h"
#include "explain.h"
#include "fit.h"
#include "inspect.h"
#include "knobs.h"
#include "memory.h"
#include "origin.h"
#include "pack.h"
#include "profile.h"
#include "progress.h"
#include "retune.h"
#include "tokenizer.h"
#include "tune.h"

enum { EXIT_BAD_INPUT = 1, EXIT_USAGE = 2, EXIT_ENVIRONMENT = 3, SETS_MAX = 64, FILES_MAX = 256 };

static const char usage[] =
    "usage: jllmc compile MODEL.gguf [--spec NAME|FILE] [-o PLAN] [--set KEY=VALUE]... [--pre NAME]\n"
    "                     [--nvrtc PATH] [--emit graph|select|memory|source|resources|plan-text]\n"
    "                     [-t THREADS] [-q]\n"
    "       jllmc fit MODEL.gguf|-... [--spec NAME|FILE] [--set KEY=VALUE]... [--pre NAME] [-o md|json]\n"
    "       jllmc explain PLAN [--op N] [-o md|json]\n"
    "       jllmc explain MODEL.gguf|- [--spec NAME|FILE] [--set KEY=VALUE]... [--op N] [-o md|json]\n"
    "       jllmc diff PLAN PLAN [-o md|json]\n"
    "       jllmc inspect PLAN [-o md|json]\n"
    "       jllmc tune MODEL.gguf|PLAN [--spec NAME|FILE] [--set KEY=VALUE]... [--sweep T.PARAM=[1|2]]... [--nvrtc PATH]\n"
    "                     [--search fast|mixed|full] [--tuned FILE] [--continue] [--timeout S] [--dry-run] [-o md|json]\n"
    "       jllmc retune PLAN --profile FILE [--top N] [--search fast|mixed|full] [--tuned FILE] [--nvrtc PATH] [-o md|json]\n"
    "       jllmc pack PLAN\n"
    "       jllmc profile summary|ops PROFILE [-o md|csv|json] [--trace FILE] [--html FILE]\n"
    "       jllmc knobs [--spec NAME|FILE] [--set KEY=VALUE]... [-o md|json]\n"
    "       jllmc spec dump|check NAME|FILE [--set KEY=VALUE]...\n"
    "       jllmc --version | --help\n"
    "\n"
    "compile  make a plan from a model; --spec cpu (this machine) is the default, -o plan.bin too.\n"
    "         --emit prints what a pass made and writes no plan. --pre names the pre-tokenizer of a\n"
    "         file that does not (smollm, gpt-2, llama-bpe, qwen2). --nvrtc names the NVRTC that compiles\n"
    "         CUDA kernels: a library, its folder, or an unzipped wheel of NVIDIA's ($JLLM_NVRTC too).\n"
    "fit      before a model is downloaded: does it fit, how fast will it be? The first megabytes of the file\n"
    "         are enough, - reads them from a pipe. A row for each context length.\n"
    "explain  why each kernel is what it is, what each op costs and what binds it; of a model, without compiling.\n"
    "         --op N shows launch N in full (the numbers are in the column `first` of the kernels).\n"
    "diff     what differs between two plans and what it costs. Exit 0 the same, 1 different, 2 trouble.\n"
    "inspect  what a plan holds: facts, memory, kernels and their resources, weights. md is the default.\n"
    "tune     time the parameters that kernels may have on this device, for every shape of a model; the results are\n"
    "         rows of tuned/SPEC.jsonl beside the spec (--tuned names another file), for specs to include.\n"
    "         --continue goes on where a tune was stopped; --timeout stops after S seconds; --sweep tries these alone.\n"
    "retune   tune what a profile says loses most, and give the plan kernels by that; weights stay as they are.\n"
    "pack     drop what a retune has left of earlier kernels in a plan.\n"
    "profile  of a file that jllm-run or jllm-bench --profile wrote: its steps, or every op, the one that loses most\n"
    "         time first. --html draws them in one page, --trace is for Perfetto and chrome://tracing.\n"
    "knobs    what a spec can tune: legal values, defaults, what each does, the line that sets it.\n"
    "spec     dump prints the merged spec and where each value came from; check only checks it.\n"
    "\n"
    "Results go to stdout, everything else to stderr. Exit 0 ok, 1 bad input, 2 usage, 3 what this machine lacks.\n";

enum stage { STAGE_PLAN, STAGE_GRAPH, STAGE_SELECT, STAGE_MEMORY, STAGE_SOURCE, STAGE_RESOURCES, STAGE_TEXT };
static const char *const stage_names[] = {"", "graph", "select", "memory", "source", "resources", "plan-text"};

struct options {
    const char *model, *spec, *out, *pre, *nvrtc, *trace, *html;
    const char *sets[SETS_MAX];
    unsigned n_sets;
    enum stage stage;
    int64_t launch;              /* --op; -1: none */
    struct tune_options tune;
    const char *profile;
    unsigned top;
};

static const char *command = "";     /* "compile ", once that is known */
static const char *command_takes = "";   /* the options it has besides -q, -t and --help, by the letters of parse_options */

static bool begins_with(const char *text, const char *with) { return !strncmp(text, with, strlen(with)); }

/* The part of a command, or (name "") all of it. Lines that are set in belong to the one before. */
static void print_usage(const char *name) {
    static const char next[] = "       jllmc ", rest[] = "Results go to ";
    const char *head = "usage: ", *line = usage, *eol;
    bool wanted = false;
    for (; (eol = strchr(line, '\n')); line = eol + 1) {
        bool synopsis = line == usage || begins_with(line, next);
        if (synopsis || *line != ' ')
            wanted = *line == '\n' || begins_with(line, rest) || begins_with(line + (synopsis ? strlen(next) : 0), name);
        if (!wanted) continue;
        if (synopsis) fputs(head, stdout), line += strlen(head), head = "       ";
        fwrite(line, 1, (size_t)(eol + 1 - line), stdout);
    }
}

static int usage_error(const char *format, const char *what) {
    fputs("error: ", stderr);
    fprintf(stderr, format, what);
    fprintf(stderr, "\njllmc %s--help lists what it takes\n", command);
    return EXIT_USAGE;
}

/* --- what --emit prints ---------------------------------------------------------------------------- */

static void print_selection(const struct program *p) {
    for (unsigned i = 0; i < p->n_kernels; i++) {
        const struct kernel *k = &p->kernels[i];
        printf("%s\n  template %s (%s)\n", k->name, k->template->name, k->template->source);
        for (unsigned j = 0; j < k->n_choices; j++) {
            const struct choice *c = &k->choices[j];
            printf("  %s = %" PRId64 "  from %s", c->name, c->value, c->reason);
            if (c->runner_up) printf(", over %s", c->runner_up);
            putchar('\n');
        }
    }
}

static void print_memory(const struct program *p) {
    struct memory_row rows[MEMORY_ROWS];
    unsigned n_rows = emit_memory(p, rows);
    uint64_t total = 0;
    for (unsigned i = 0; i < p->n_values; i++) {
        const struct value *v = &p->values[i];
        printf("phase %2u  %-10s %8" PRIu64 " bytes at 0x%-8" PRIx64 " live %u..%u%s\n", v->phase, v->name, v->bytes, v->offset,
               v->first, v->last, v->pinned ? " pinned" : "");
    }
    printf("arena_bytes %" PRIu64 "\nlower_bound_bytes %" PRIu64 "\nratio %.4f\n", p->arena_bytes, p->arena_floor_bytes,
           (double)p->arena_bytes / (double)p->arena_floor_bytes);
    printf("context %u\n", p->ctx_max);
    for (unsigned i = 0; i < n_rows; i++) {
        if (!rows[i].bytes) continue;   /* code: not compiled at this stage */
        printf("%-12s %10.1f MiB\n", rows[i].name, (double)rows[i].bytes / (1 << 20));
        total += rows[i].bytes;
    }
    printf("%-12s %10.1f MiB\n", "total", (double)total / (1 << 20));
}

static void print_sources(const struct program *p) {
    for (unsigned i = 0; i < p->n_kernels; i++) printf("/* ==== %s ==== */\n%s\n", p->kernels[i].name, p->kernels[i].source);
}

/* spill_bytes: local memory of a thread; static and dynamic: shared memory of a block. Zeros on a CPU, where none of
 * them exists. */
static void print_resources(const struct program *p, const struct toolchain *t, struct arena *a) {
    uint32_t *dynamic = arena_array(a, p->n_kernels + 1u, sizeof *dynamic);
    for (unsigned i = 0; i < p->n_launches; i++)
        if (p->launches[i].shared_bytes > dynamic[p->launches[i].kernel])
            dynamic[p->launches[i].kernel] = p->launches[i].shared_bytes;
    printf("%s, %s\n", t->target, t->version);
    puts("registers spill_bytes  static dynamic    code  kernel");
    for (unsigned i = 0; i < p->n_kernels; i++) {
        const struct kernel *k = &p->kernels[i];
        printf("%9u %11u %7u %7u %7zu  %s\n", k->registers, k->spill_bytes, k->shared_bytes, dynamic[i], k->image_bytes, k->name);
    }
}

/* --- compile --------------------------------------------------------------------------------------- */

static void print_summary(const struct program *p, const struct options *o, const struct emit_result *r, double seconds) {
    struct rusage usage_now;
    unsigned cached = 0;
    for (unsigned i = 0; i < p->n_kernels; i++) cached += p->kernels[i].cached;
    getrusage(RUSAGE_SELF, &usage_now);
    fprintf(stderr, "%u kernels (%u cached) · %.1f s · %s %.1f MB · peak memory %.0f MB\n", p->n_kernels, cached, seconds, o->out,
            (double)r->plan_bytes / 1e6, (double)usage_now.ru_maxrss * 1024 / 1e6);
}

/* True when path names the same file as the model: a plan must not replace what it is made from. */
static bool same_file(const char *a, const char *b) {
    struct stat x, y;
    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* What lives as long as one compilation. */
struct job {
    const struct options *o;
    struct arena *a;
    struct diag *d;
    struct spec spec;
    struct gguf gguf;
    struct output out;
    struct buffer tokenizer, chat, origin;
};

/* "orin_nano" of "specs/orin_nano.lua": a plan's bytes do not tell from which folder. */
static const char *spec_stem(const char *path, struct arena *a) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    return arena_printf(a, "%.*s", (int)(dot && !strcmp(dot, ".lua") ? (size_t)(dot - name) : strlen(name)), name);
}

static int compile_model(struct job *j, double start) {
    const struct options *o = j->o;
    struct arena *a = j->a;
    struct diag *d = j->d;
    struct model m;
    struct graph graph;
    struct program p;
    struct toolchain toolchain;
    struct selftest selftest = {0};
    struct emit_result result;

    if (!model_load(&m, &j->gguf, a, d)) return EXIT_BAD_INPUT;
    graph_build(&graph, &m, j->spec.buckets, j->spec.n_buckets, a);
    graph_check(&graph, &m);
    if (o->stage == STAGE_GRAPH) return graph_print(&graph, &m, stdout), 0;
    if (!tokenizer_lower(&j->gguf, o->pre, &j->tokenizer, a, d) || !chat_lower(&j->gguf, &j->chat, a, d)) return EXIT_BAD_INPUT;
    if (!contract_lower(&p, &m, &j->spec, &graph, a, d)) return EXIT_BAD_INPUT;
    contract_note_context(&p, d);
    if (o->stage == STAGE_SELECT) return print_selection(&p), 0;
    if (o->stage == STAGE_SOURCE) return print_sources(&p), 0;
    memory_plan(&p);
    if (o->stage == STAGE_MEMORY) return print_memory(&p), 0;
    if (!memory_check(&p, d)) return EXIT_BAD_INPUT;
    uint64_t *token_ns = arena_array(a, p.n_phases, sizeof *token_ns);
    cost_phases(&p, token_ns);
    const uint16_t *cover = cost_cover(&p, token_ns, a);
    struct plan_forecast forecast;
    cost_forecast(&p, token_ns, cover, &forecast);
    if (!toolchain_find(&toolchain, &j->spec, o->nvrtc, a, d) || !toolchain_compile(&toolchain, &p, a, d)) return EXIT_ENVIRONMENT;
    if (o->stage == STAGE_RESOURCES) return print_resources(&p, &toolchain, a), 0;
    origin_write(&p, &j->origin);
    struct emit_input in = {.program = &p, .toolchain = &toolchain, .selftest = &selftest, .cover = cover, .forecast = &forecast,
                            .tokenizer = &j->tokenizer, .chat = &j->chat, .origin = &j->origin,
                            .gguf_hash = hash_bytes(j->gguf.map.data, j->gguf.map.bytes), .spec_name = spec_stem(o->spec, a)};
    if (o->stage == STAGE_TEXT) return emit_print(&in, stdout), 0;
    selftest_build(&selftest, &p, a);
    for (unsigned i = 0; i < selftest.model.n_values; i++)
        if (!isfinite(selftest.logits[i].logit)) {
            diag_error(d, "not-finite", o->model, "the model's logits are not finite: its weights hold infinities or NaN, or are far too large");
            return EXIT_BAD_INPUT;
        }
    if (!activations_report(&selftest, progress_quiet ? NULL : stderr, d)) return EXIT_BAD_INPUT;
    if (!emit_plan(&j->out, &in, &result, a, d)) return EXIT_ENVIRONMENT;
    print_summary(&p, o, &result, base_seconds() - start);
    if (!progress_quiet) fprintf(stderr, "expected on %s\n", fit_line(&p, &forecast, a));
    return 0;
}

/* A result that did not reach stdout is no success. */
static int finish_stdout(int rc) {
    if (rc || (!fflush(stdout) && !ferror(stdout))) return rc;
    fprintf(stderr, "error: cannot write to stdout: %s\n", strerror(errno));
    return EXIT_ENVIRONMENT;
}

/* The end of a command: what was refused since this machine lacks a file is no bad input. */
static int finish(int rc, struct arena *a, struct diag *d) {
    diag_finish(d);
    arena_free(a);
    if (base_interrupted) return 128 + base_interrupted;
    return finish_stdout(rc == EXIT_BAD_INPUT && d->environment ? EXIT_ENVIRONMENT : rc);
}

static int compile(const struct options *o) {
    double start = base_seconds();
    struct arena a = {0};
    struct diag d = {.out = stderr};
    struct job j = {.o = o, .a = &a, .d = &d, .out = {.fd = -1}};
    int rc = EXIT_BAD_INPUT;
    if (same_file(o->model, o->out) || same_file(o->spec, o->out))
        diag_error(&d, "output", o->out, "this is the %s itself: name another output with -o",
                   same_file(o->model, o->out) ? "model" : "spec");
    else if (spec_load(&j.spec, o->spec, o->sets, o->n_sets, &a, &d) && gguf_open(&j.gguf, o->model, &a, &d)) {
        if (o->stage == STAGE_PLAN && !output_open(&j.out, o->out, &a, &d)) rc = EXIT_ENVIRONMENT;
        else rc = compile_model(&j, start);
        gguf_close(&j.gguf);
    }
    output_abandon(&j.out);
    buffer_free(&j.tokenizer), buffer_free(&j.chat), buffer_free(&j.origin);
    return finish(rc, &a, &d);
}

/* --- the command line ------------------------------------------------------------------------------ */

static bool parse_stage(const char *name, enum stage *stage) {
    for (unsigned i = 1; i < COUNT(stage_names); i++)
        if (!strcmp(name, stage_names[i])) return *stage = (enum stage)i, true;
    return false;
}

static bool parse_search(const char *name, enum tune_search *search) {
    for (unsigned i = 0; i < COUNT(tune_search_names); i++)
        if (!strcmp(name, tune_search_names[i])) return *search = (enum tune_search)i, true;
    return false;
}

/* Options of tune and retune; false: it is none of them. */
static bool parse_tune_option(struct options *o, int c, int *rc) {
    struct tune_options *t = &o->tune;
    char *end = NULL;
    switch (c) {
    case 'u': t->tuned = optarg; return true;
    case 'c': t->resume = true; return true;
    case 'd': t->dry_run = true; return true;
    case 'r': o->profile = optarg; return true;
    case 'w':
        if (t->n_sweeps == TUNE_SWEEPS_MAX) *rc = usage_error("too many --sweep: %s", optarg);
        else t->sweeps[t->n_sweeps++] = optarg;
        return true;
    case 'a':
        if (!parse_search(optarg, &t->search)) *rc = usage_error("--search takes fast, mixed or full, not '%s'", optarg);
        return true;
    case 'm':
        t->timeout_s = strtod(optarg, &end);
        if (*end || end == optarg || !(t->timeout_s > 0)) *rc = usage_error("--timeout takes seconds, not '%s'", optarg);
        return true;
    case 'k': {
        long n = strtol(optarg, &end, 10);
        if (*end || end == optarg || n < 1 || n > 1000) *rc = usage_error("--top takes a number from 1 to 1000, not '%s'", optarg);
        o->top = (unsigned)n;
        return true;
    }
    default: return false;
    }
}

/* positional has room for FILES_MAX. */
static int parse_options(struct options *o, int argc, char **argv, const char **positional, unsigned *n_positional) {
    static const struct option longs[] = {
        {"spec", required_argument, NULL, 's'}, {"set", required_argument, NULL, 'S'}, {"emit", required_argument, NULL, 'e'},
        {"pre", required_argument, NULL, 'p'}, {"threads", required_argument, NULL, 't'}, {"output", required_argument, NULL, 'o'},
        {"quiet", no_argument, NULL, 'q'}, {"nvrtc", required_argument, NULL, 'n'}, {"op", required_argument, NULL, 'O'},
        {"sweep", required_argument, NULL, 'w'}, {"search", required_argument, NULL, 'a'}, {"tuned", required_argument, NULL, 'u'},
        {"continue", no_argument, NULL, 'c'}, {"timeout", required_argument, NULL, 'm'}, {"dry-run", no_argument, NULL, 'd'},
        {"profile", required_argument, NULL, 'r'}, {"top", required_argument, NULL, 'k'},
        {"trace", required_argument, NULL, 'T'}, {"html", required_argument, NULL, 'H'}, {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0}};
    int c, rc = 0;
    char *end;
    opterr = 0;
    while ((c = getopt_long(argc, argv, "o:t:qh", longs, NULL)) != -1) {
        if (c != '?' && !strchr(command_takes, c) && !strchr("htq", c)) {
            const struct option *l = longs;
            while (l->val != c) l++;
            return usage_error("this command does not take --%s", l->name);
        }
        switch (c) {
        case 's': o->spec = optarg; break;
        case 'h': print_usage(command); exit(finish_stdout(0));
        case 'o':
            if (!*optarg) return usage_error("-o takes a name, not '%s'", optarg);
            o->out = optarg;
            break;
        case 'p': o->pre = optarg; break;
        case 'n': o->nvrtc = optarg; break;
        case 'T': case 'H':
            if (!*optarg) return usage_error("%s takes the name of a file", c == 'T' ? "--trace" : "--html");
            *(c == 'T' ? &o->trace : &o->html) = optarg;
            break;
        case 'q': progress_quiet = true; break;
        case 'S':
            if (o->n_sets == SETS_MAX) return usage_error("too many --set: %s", optarg);
            o->sets[o->n_sets++] = optarg;
            break;
        case 'e':
            if (!parse_stage(optarg, &o->stage)) return usage_error("--emit takes graph, select, memory, source, resources or plan-text, not '%s'", optarg);
            break;
        case 't': {
            long n = strtol(optarg, &end, 10);
            if (*end || end == optarg || n < 1 || n > 1024) return usage_error("-t takes a number of threads from 1 to 1024, not '%s'", optarg);
            base_set_cores((int)n);
            break;
        }
        case 'O': {
            errno = 0;
            long n = strtol(optarg, &end, 10);
            if (*end || end == optarg || n < 0 || errno) return usage_error("--op takes the number of a launch, not '%s'", optarg);
            o->launch = n;
            break;
        }
        default:
            if (!parse_tune_option(o, c, &rc)) return usage_error("unknown option or missing value: '%s'", argv[optind - 1]);
            if (rc) return rc;
        }
    }
    for (*n_positional = 0; optind < argc; optind++) {
        if (*n_positional == FILES_MAX) return usage_error("one argument too many: '%s'", argv[optind]);
        positional[(*n_positional)++] = argv[optind];
    }
    return 0;
}

/* What a sentence on one argument goes on with. */
static const char *not_more(unsigned n) { return n == 0 ? "" : n == 2 ? ", not two" : ": too many were given"; }

static int command_compile(int argc, char **argv) {
    struct options o = {.spec = "cpu", .out = "plan.bin"};
    const char *positional[FILES_MAX];
    unsigned n;
    int rc = parse_options(&o, argc, argv, positional, &n);
    if (rc) return rc;
    if (n != 1) return usage_error("compile takes one model%s", not_more(n));
    o.model = positional[0];
    return compile(&o);
}

static int command_spec(int argc, char **argv) {
    struct options o = {0};
    const char *positional[FILES_MAX];
    unsigned n;
    int rc = parse_options(&o, argc, argv, positional, &n);
    if (rc) return rc;
    if (n != 2 || (strcmp(positional[0], "dump") && strcmp(positional[0], "check")))
        return usage_error("%s", "spec takes dump or check, and a spec");
    struct arena a = {0};
    struct diag d = {.out = stderr};
    struct spec s;
    struct program p;
    bool ok = spec_load(&s, positional[1], o.sets, o.n_sets, &a, &d) && contract_declare(&p, &s, &a, &d);
    if (ok && !strcmp(positional[0], "dump")) spec_dump(p.spec, stdout);
    return finish(ok ? 0 : EXIT_BAD_INPUT, &a, &d);
}

/* The options of a command that reports: -o names a format. */
static int parse_report(struct options *o, int argc, char **argv, const char **positional, unsigned *n,
                        enum report_format *format) {
    *o = (struct options){.out = "md", .launch = -1, .top = 3, .tune.search = TUNE_MIXED};
    int rc = parse_options(o, argc, argv, positional, n);
    if (rc) return rc;
    return report_parse_format(o->out, format) ? 0 : usage_error("-o takes md or json, not '%s'", o->out);
}

static int command_inspect(int argc, char **argv) {
    struct options o;
    const char *positional[FILES_MAX];
    unsigned n;
    enum report_format format;
    int rc = parse_report(&o, argc, argv, positional, &n, &format);
    if (rc) return rc;
    if (n != 1) return usage_error("inspect takes one plan%s", not_more(n));
    struct arena a = {0};
    struct diag d = {.out = stderr};
    rc = inspect_plan(positional[0], format, stdout, &a, &d);
    return finish(rc, &a, &d);
}

static int command_knobs(int argc, char **argv) {
    struct options o;
    const char *positional[FILES_MAX];
    unsigned n;
    enum report_format format;
    int rc = parse_report(&o, argc, argv, positional, &n, &format);
    if (rc) return rc;
    if (n) return usage_error("knobs takes a spec by --spec and no '%s'", positional[0]);
    struct arena a = {0};
    struct diag d = {.out = stderr};
    struct spec s;
    bool ok = spec_load(&s, o.spec ? o.spec : "cpu", o.sets, o.n_sets, &a, &d) && knobs_print(&s, format, stdout, &a, &d);
    return finish(ok ? 0 : EXIT_BAD_INPUT, &a, &d);
}

static int command_tune(int argc, char **argv) {
    struct options o;
    const char *positional[FILES_MAX];
    unsigned n;
    enum report_format format;
    int rc = parse_report(&o, argc, argv, positional, &n, &format);
    if (rc) return rc;
    if (n != 1) return usage_error("tune takes one model or plan%s", not_more(n));
    struct arena a = {0};
    struct diag d = {.out = stderr};
    o.tune.input = positional[0], o.tune.spec = o.spec, o.tune.nvrtc = o.nvrtc, o.tune.format = format;
    o.tune.sets = o.sets, o.tune.n_sets = o.n_sets;
    rc = tune_run(&o.tune, stdout, &a, &d);
    return finish(rc, &a, &d);
}

static int command_retune(int argc, char **argv) {
    struct options o;
    const char *positional[FILES_MAX];
    unsigned n;
    enum report_format format;
    int rc = parse_report(&o, argc, argv, positional, &n, &format);
    if (rc) return rc;
    if (n != 1) return usage_error("retune takes one plan%s", not_more(n));
    if (!o.profile) return usage_error("retune takes a profile by --profile%s", "");
    struct arena a = {0};
    struct diag d = {.out = stderr};
    struct retune_options retune = {positional[0], o.profile, o.top, o.tune.search, o.nvrtc, o.tune.tuned, format};
    rc = retune_run(&retune, stdout, &a, &d);
    return finish(rc, &a, &d);
}

static int command_pack(int argc, char **argv) {
    struct options o = {0};
    const char *positional[FILES_MAX];
    unsigned n;
    int rc = parse_options(&o, argc, argv, positional, &n);
    if (rc) return rc;
    if (n != 1) return usage_error("pack takes one plan%s", not_more(n));
    struct arena a = {0};
    struct diag d = {.out = stderr};
    rc = pack_plan(positional[0], &a, &d);
    return finish(rc, &a, &d);
}

static int command_profile(int argc, char **argv) {
    static const char *const views[] = {"summary", "ops"}, *const formats[] = {"md", "csv", "json"};
    struct options o = {.out = "md"};
    struct profile_options profile = {0};
    const char *positional[FILES_MAX];
    unsigned n, view = 0, format = 0;
    int rc = parse_options(&o, argc, argv, positional, &n);
    if (rc) return rc;
    while (n == 2 && view < COUNT(views) && strcmp(positional[0], views[view])) view++;
    if (n != 2 || view == COUNT(views)) return usage_error("%s", "profile takes summary or ops, and one profile");
    while (format < COUNT(formats) && strcmp(o.out, formats[format])) format++;
    if (format == COUNT(formats)) return usage_error("-o of profile takes md, csv or json, not '%s'", o.out);
    profile.view = (enum profile_view)view, profile.format = (enum profile_format)format;
    profile.trace = o.trace, profile.html = o.html;
    struct arena a = {0};
    struct diag d = {.out = stderr};
    rc = profile_print(positional[1], &profile, stdout, &a, &d);
    return finish(rc, &a, &d);
}

static int command_fit(int argc, char **argv) {
    struct options o;
    const char *positional[FILES_MAX];
    unsigned n, pipes = 0;
    struct fit_options fit = {0};
    int rc = parse_report(&o, argc, argv, positional, &n, &fit.format);
    if (rc) return rc;
    for (unsigned i = 0; i < n; i++) pipes += !strcmp(positional[i], "-");
    if (!n || pipes > 1) return usage_error("fit takes models%s", n ? ", and one of them at most from stdin" : "");
    struct arena a = {0};
    struct diag d = {.out = stderr};
    fit.spec = o.spec ? o.spec : "cpu", fit.pre = o.pre, fit.sets = o.sets, fit.n_sets = o.n_sets;
    rc = fit_print(positional, n, &fit, stdout, &a, &d);
    return finish(rc, &a, &d);
}

static int command_explain(int argc, char **argv) {
    struct options o;
    const char *positional[FILES_MAX];
    unsigned n;
    struct explain_options explain = {0};
    int rc = parse_report(&o, argc, argv, positional, &n, &explain.format);
    if (rc) return rc;
    if (n != 1) return usage_error("explain takes one plan or model%s", not_more(n));
    struct arena a = {0};
    struct diag d = {.out = stderr};
    explain.spec = o.spec, explain.sets = o.sets, explain.n_sets = o.n_sets, explain.launch = o.launch;
    rc = explain_print(positional[0], &explain, stdout, &a, &d);
    return finish(rc, &a, &d);
}

/* Exit codes are diff(1)'s: trouble of any kind is 2. */
static int command_diff(int argc, char **argv) {
    struct options o;
    const char *positional[FILES_MAX];
    unsigned n;
    enum report_format format;
    int rc = parse_report(&o, argc, argv, positional, &n, &format);
    if (rc) return rc;
    if (n != 2) return usage_error("diff takes two plans%s", n > 2 ? ", not more" : "");
    struct arena a = {0};
    struct diag d = {.out = stderr};
    rc = diff_print(positional[0], positional[1], format, stdout, &a, &d);
    diag_finish(&d);
    arena_free(&a);
    return finish_stdout(0) ? 2 : rc;
}

int main(int argc, char **argv) {
    static const struct { const char *name; int (*run)(int argc, char **argv); const char *takes; } commands[] = {
        {"compile", command_compile, "sSopne"}, {"fit", command_fit, "sSpo"}, {"explain", command_explain, "sSOo"}, {"diff", command_diff, "o"},
        {"inspect", command_inspect, "o"}, {"profile", command_profile, "oTH"}, {"tune", command_tune, "sSwnaucmdo"},
        {"retune", command_retune, "rkauno"}, {"pack", command_pack, ""}, {"knobs", command_knobs, "sSo"}, {"spec", command_spec, "S"}};
    static const char *const names[] = {"compile", "fit", "explain", "diff", "inspect", "profile", "tune", "retune", "pack", "knobs", "spec"};
    static char name[16];
    base_start();
    if (argc < 2) return usage_error("%s", "no command");
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) return print_usage(""), finish_stdout(0);
    if (!strcmp(argv[1], "--version")) return printf("jllmc 0.1.0 (plan version %d)\n", PLAN_VERSION), finish_stdout(0);
    for (size_t i = 0; i < COUNT(commands); i++) {
        if (strcmp(argv[1], commands[i].name)) continue;
        snprintf(name, sizeof name, "%s ", argv[1]);
        command = name, command_takes = commands[i].takes;
        return commands[i].run(argc - 1, argv + 1);
    }
    const char *near = diag_suggest(argv[1], names, COUNT(names));
    fprintf(stderr, "error: unknown command '%s'%s%s%s\njllmc --help lists them\n", argv[1], near ? "; did you mean '" : "", near ? near : "",
            near ? "'?" : "");
    return EXIT_USAGE;
}
