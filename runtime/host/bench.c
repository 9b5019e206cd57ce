/* jllm-bench: how fast a plan runs here, in llama-bench's words. Tokens are generated as jllm-run --temp 0
 * does it; tokenising and sampling are not measured. Every test is run once to warm up, then -r times; a figure comes with its spread, the
 * weight bytes read per second, and their share of the memory bandwidth measured just before (of a
 * GPU: what it says itself); above that bandwidth weights come from a cache, and there is no share.
 * --ops takes a pass apart instead: a table of its kernels, the one that loses most time first; --profile does that with
 * every launch, for a file. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <jansson.h>

#include "../jllm.h"
#include "../plan.h"
#include "args.h"
#include "measure.h"
#include "ops.h"
#include "perf_map.h"
#include "profile.h"

static const char usage[] =
    "usage: jllm-bench PLAN [-p 512] [-n 128] [-pg 512,128] [-d 0] [-r 5] [-t N] [-o "
    "md|json|jsonl|csv]\n"
    "       jllm-bench PLAN --ops [1,8-64] [-d 0] [-r 5] [-t N] [-o md|json|jsonl|csv]\n"
    "       jllm-bench PLAN --profile FILE [--ops 1,8-64] [-d 0] [-r 5] [-t N]\n"
    "       jllm-bench --peak [-t N]\n"
    "\n"
    "  -m, --model PLAN      the plan, instead of as the first argument\n"
    "  -p, --n-prompt LIST   prompt lengths (512); 0: none\n"
    "  -n, --n-gen LIST      tokens generated (128), each the likeliest one, as by jllm-run --temp 0: a GPU\n"
    "                        chooses it by itself and is one step ahead of what is read; 0: none\n"
    "  -pg P,N               a prompt of P and N generated tokens as one test; may be repeated\n"
    "  -d, --n-depth LIST    tokens in the context before the test (0)\n"
    "  -r, --repetitions N   (5)\n"
    "  -t, --threads LIST    (all cores that the process may use)\n"
    "  -o, --output FORMAT   md, json, jsonl or csv\n"
    "  --device cpu|cuda     refuse a plan that is for another device\n"
    "  --no-warmup           skip the first, unmeasured run\n"
    "  --ops [LIST]          instead of tests, every kernel of decode (1) and of prefill by the buckets in LIST (all):\n"
    "                        its launches back to back, and what they lose against bandwidth and rate\n"
    "  --profile FILE        instead of tests, the time of every launch and phase, for jllmc profile; --ops chooses phases\n"
    "  --no-mmap             CPU: read the weights into memory of their own, in large pages, instead of mapping the file\n"
    "  --perf-map            kernels get names in perf report: writes /tmp/perf-PID.map for perf record\n"
    "  --peak                only measure the machine: read bandwidth, multiply-adds of fp32 and of integers\n"
    "  --version  -h, --help\n"
    "LIST: 33,512 or a range 8-64, 8-64+8, 16-512*2; of --ops 8-64 is the buckets in it\n";

enum { LIST_MAX = 64, TESTS_MAX = 256, REPETITIONS_MAX = 1000 };
struct list { int values[LIST_MAX]; size_t n; };
struct test { int n_prompt, n_gen, n_depth; };
struct span { int first, last; };   /* of bucket sizes */

struct bench {
    const char *plan_path, *format, *device, *profile_path;
    struct list prompts, gens, depths, threads;
    struct test pairs[LIST_MAX];
    size_t n_pairs;
    int repetitions;
    bool no_warmup, peak, ops, perf_map, no_mmap;
    struct span ops_phases[LIST_MAX];
    size_t n_ops_phases;        /* 0: all */
    /* of the plan as opened for a number of threads */
    struct jllm_plan *plan;
    const struct jllm_info *info;
    struct jllm_session *session;
    double peak_gbps, dots_gmacs[MEASURE_DOTS_COUNT];   /* the latter 0 until they are needed */
    int32_t *ids;
    json_t *results;
};

/* What one test took. */
struct samples {
    double ns[REPETITIONS_MAX];
    size_t n;
    double *steps;           /* ns of each decode step of all repetitions */
    size_t n_steps;
    uint64_t weight_bytes;
};

static _Noreturn void stop(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
static _Noreturn void stop(int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("error: ", stderr);
    vfprintf(stderr, format, args);
    fputs(code == EXIT_USAGE ? "\njllm-bench --help lists the options\n" : "\n", stderr);
    va_end(args);
    exit(code);
}

static _Noreturn void stop_error(const struct jllm_error *e) {
    stop(e->code == JLLM_ENVIRONMENT ? EXIT_ENVIRONMENT : EXIT_BAD_INPUT, "%s", e->text);
}

static void *need(void *p) {
    if (!p) stop(EXIT_ENVIRONMENT, "out of memory");
    return p;
}

/* ---- command line ---- */

static int parse_number(const char *name, const char *text, char **end, int least) {
    errno = 0;
    long n = strtol(text, end, 10);
    if (errno || *end == text || n < least || n > PLAN_CTX_MAX)
        stop(EXIT_USAGE, "%s: '%s' is not a number in its range", name, text);
    return (int)n;
}

static void list_add(struct list *list, const char *name, int n) {
    if (list->n == LIST_MAX) stop(EXIT_USAGE, "%s: more than %d values", name, LIST_MAX);
    list->values[list->n++] = n;
}

/* first, first-last, first-last+step, first-last*factor */
struct range { int first, last, step; char op; };   /* op: '+', '*', or 0 where neither was said */

static const char *parse_range(struct range *r, const char *name, const char *text, int least) {
    char *end;
    *r = (struct range){.first = parse_number(name, text, &end, least), .step = 1};
    r->last = *end == '-' ? parse_number(name, end + 1, &end, least) : r->first;
    if (*end == '+' || *end == '*') {
        r->op = *end;
        r->step = parse_number(name, end + 1, &end, r->op == '*' ? 2 : 1);
    }
    if (r->op == '*' && r->first == 0) stop(EXIT_USAGE, "%s: a factor goes nowhere from 0", name);
    if (r->last < r->first) stop(EXIT_USAGE, "%s: the range %d-%d ends before it begins", name, r->first, r->last);
    if (*end && *end != ',') stop(EXIT_USAGE, "%s: '%s' is not a list of numbers", name, end);
    return *end ? end + 1 : NULL;
}

static void parse_list(struct list *list, const char *name, const char *text, int least) {
    struct range r;
    for (list->n = 0; text;) {
        text = parse_range(&r, name, text, least);
        for (long long n = r.first; n <= r.last; n = r.op == '*' ? n * r.step : n + r.step) list_add(list, name, (int)n);
    }
}

/* The same of buckets: a range without a step is of those that the plan has in it. */
static void parse_spans(struct bench *b, const char *name, const char *text) {
    struct range r;
    for (b->n_ops_phases = 0; text;) {
        text = parse_range(&r, name, text, 1);
        for (long long n = r.first; n <= r.last; n = !r.op ? r.last + 1 : r.op == '*' ? n * r.step : n + r.step) {
            if (b->n_ops_phases == LIST_MAX) stop(EXIT_USAGE, "%s: more than %d values", name, LIST_MAX);
            b->ops_phases[b->n_ops_phases++] = (struct span){(int)n, r.op ? (int)n : r.last};
        }
    }
}

/* Whether the word after --ops is its list; it may be the plan. */
static bool is_list(const char *word) { return *word && !word[strspn(word, "0123456789,-+*")]; }

static void parse_pair(struct bench *b, const char *name, const char *text) {
    char *end;
    if (b->n_pairs == LIST_MAX) stop(EXIT_USAGE, "more than %d times %s", LIST_MAX, name);
    struct test *t = &b->pairs[b->n_pairs++];
    t->n_prompt = parse_number(name, text, &end, 1);
    if (*end != ',') stop(EXIT_USAGE, "%s takes two numbers, such as 512,128", name);
    t->n_gen = parse_number(name, end + 1, &end, 1);
    if (*end) stop(EXIT_USAGE, "%s takes two numbers, such as 512,128", name);
}

static void apply(struct bench *b, int id, const char *name, const char *value) {
    static const char *const formats[] = {"md", "json", "jsonl", "csv"};
    char *end;
    switch (id) {
    case 'm': b->plan_path = value; break;
    case 'p': parse_list(&b->prompts, name, value, 0); break;
    case 'n': parse_list(&b->gens, name, value, 0); break;
    case 'd': parse_list(&b->depths, name, value, 0); break;
    case 't': parse_list(&b->threads, name, value, 1); break;
    case 'g': parse_pair(b, name, value); break;
    case 'r':
        b->repetitions = parse_number(name, value, &end, 1);
        if (*end || b->repetitions > REPETITIONS_MAX)
            stop(EXIT_USAGE, "%s: 1 to %d", name, REPETITIONS_MAX);
        break;
    case 'o':
        for (size_t i = 0; i < 4; i++)
            if (strcmp(value, formats[i]) == 0) b->format = formats[i];
        if (strcmp(value, b->format) != 0)
            stop(EXIT_USAGE, "%s '%s': md, json, jsonl or csv", name, value);
        break;
    case 'D':
        b->device = value;
        if (strcmp(value, "cpu") != 0 && strcmp(value, "cuda") != 0)
            stop(EXIT_USAGE, "--device '%s': cpu or cuda", value);
        break;
    case 'w': b->no_warmup = true; break;
    case 'k': b->peak = true; break;
    case 'M': b->perf_map = true; break;
    case 'W': b->no_mmap = true; break;
    case 'O': b->ops = true; break;
    case 'P':
        if (!*value) stop(EXIT_USAGE, "--profile takes the name of a file");
        b->profile_path = value;
        break;
    case 'v':
        args_check_output(printf("jllm-bench %s (plan version %d)\n", JLLM_VERSION, PLAN_VERSION) > 0 && !fflush(stdout));
        exit(0);
    default:
        args_check_output(fputs(usage, stdout) >= 0 && !fflush(stdout));
        exit(0);
    }
}

static void parse(struct bench *b, int argc, char **argv) {
    static const struct option options[] = {
        {"m", 1, 0, 'm'},         {"model", 1, 0, 'm'},       {"p", 1, 0, 'p'},
        {"n-prompt", 1, 0, 'p'},  {"n", 1, 0, 'n'},           {"n-gen", 1, 0, 'n'},
        {"pg", 1, 0, 'g'},        {"d", 1, 0, 'd'},           {"n-depth", 1, 0, 'd'},
        {"r", 1, 0, 'r'},         {"repetitions", 1, 0, 'r'}, {"t", 1, 0, 't'},
        {"threads", 1, 0, 't'},   {"o", 1, 0, 'o'},           {"output", 1, 0, 'o'},
        {"no-warmup", 0, 0, 'w'}, {"peak", 0, 0, 'k'},        {"version", 0, 0, 'v'},      {"ops", 0, 0, 'O'},
        {"profile", 1, 0, 'P'},   {"perf-map", 0, 0, 'M'},  {"no-mmap", 0, 0, 'W'},
        {"h", 0, 0, 'h'},         {"help", 0, 0, 'h'},        {"device", 1, 0, 'D'},    {0},
    };
    *b = (struct bench){.format = "md",
                        .prompts = {{512}, 1},
                        .gens = {{128}, 1},
                        .depths = {{0}, 1},
                        .repetitions = 5};
    char name[ARGS_NAME_BYTES];
    bool only_threads = true;
    for (int id; (id = args_next(argc, argv, options, name)) != -1;) {
        apply(b, id, name, optarg);
        only_threads = only_threads && (id == 't' || id == 'k');
        bool has_list = id == 'O' && optind < argc && is_list(argv[optind]);
        if (has_list) parse_spans(b, name, argv[optind++]);
    }
    only_threads = only_threads && optind == argc;
    if (optind < argc && !b->plan_path) b->plan_path = argv[optind++];
    if (optind < argc) stop(EXIT_USAGE, "unexpected argument '%s'", argv[optind]);
    if (!b->plan_path && !b->peak) stop(EXIT_USAGE, "no plan given");
    if (b->peak && !only_threads)
        stop(EXIT_USAGE, "--peak measures the machine and nothing else: it takes -t alone");
    for (size_t i = 0; i < b->threads.n; i++)
        if (b->threads.values[i] > PLAN_THREADS_MAX) stop(EXIT_USAGE, "-t %d: 1 to %d threads", b->threads.values[i], PLAN_THREADS_MAX);
}

/* ---- the machine ---- */

/* Larger than most caches, and never more than a quarter of what is free. */
static double measure_peak(unsigned threads, size_t *bytes, bool *unsteady) {
    uint64_t most = measure_memory_free() / 4;
    *bytes = most && most < (1u << 30) ? (size_t)most : (size_t)1 << 30;
    return measure_read_gbps(threads, *bytes, 0.5, unsteady);
}

static void show_peak(const struct bench *b) {
    struct list one = {{(int)measure_cores()}, 1};
    const struct list *threads = b->threads.n ? &b->threads : &one;
    printf("%s\n", measure_cpu_name());
    for (size_t i = 0; i < threads->n; i++) {
        unsigned n = (unsigned)threads->values[i];
        size_t bytes;
        const char *isa;
        bool unsteady;
        double gbps = measure_peak(n, &bytes, &unsteady), gmacs = measure_gmacs(n, 0.5, &isa);
        printf("%u threads: %.2f GB/s read from %.0f MiB, %.1f fp32 GMAC/s (%s)%s\n", n, gbps,
               (double)bytes / 0x1p20, gmacs, isa, unsteady ? "; the machine is busy, these numbers are unsteady" : "");
        for (enum measure_dots d = 0; d < MEASURE_DOTS_COUNT; d++)
            if ((gmacs = measure_dots_gmacs(d, n, 0.2)) > 0) printf("%u threads: %.1f GMAC/s of integers (%s)\n", n, gmacs, measure_dots_name(d));
    }
}

/* ---- running ---- */

static void open_plan(struct bench *b, int threads) {
    struct jllm_error e;
    struct jllm_options options = {.n_threads = threads, .device = b->device, .no_mmap = b->no_mmap};
    size_t bytes;
    b->plan = jllm_open(b->plan_path, &options, &e);
    if (!b->plan) stop_error(&e);
    if (b->perf_map && !perf_map_write(b->plan, &e)) stop_error(&e);
    b->info = jllm_plan_info(b->plan);
    if (b->no_mmap && strcmp(b->info->device, "cpu") != 0)
        stop(EXIT_USAGE, "--no-mmap is for CPU plans: a GPU has the weights in its own memory");
    b->session = jllm_session_new(b->plan, &e);
    if (!b->session) stop_error(&e);
    unsigned cores = measure_cores();    /* more threads than that read no faster */
    bool unsteady = false;
    b->peak_gbps = *b->info->device_name ? b->info->peak_gbps
                                         : measure_peak(b->info->n_threads < cores ? b->info->n_threads : cores, &bytes, &unsteady);
    if (unsteady) fputs("warning: the machine is busy, the numbers below are unsteady\n", stderr);
    memset(b->dots_gmacs, 0, sizeof b->dots_gmacs);
    b->ids = need(realloc(b->ids, b->info->ctx_max * sizeof *b->ids));
    for (uint32_t i = 0; i < b->info->ctx_max; i++)
        b->ids[i] = (int32_t)((i * 7919ull + 13) % b->info->n_vocab);
}

static void close_plan(struct bench *b) {
    jllm_session_free(b->session);
    jllm_close(b->plan);
}

static void prefill(struct bench *b, int n) {
    struct jllm_error e;
    if (n && !jllm_prefill(b->session, b->ids, (size_t)n, &e)) stop_error(&e);
}

/* When the choice before was read, and where times go; NULL: nowhere. */
struct clock { double from; struct samples *s; };

static bool count_step(void *user, int32_t id) {
    struct clock *c = user;
    double now = measure_seconds();
    (void)id;
    if (c->s) c->s->steps[c->s->n_steps++] = 1e9 * (now - c->from);
    c->from = now;
    return true;
}

static void generate(struct bench *b, int n, struct samples *s) {
    struct jllm_error e;
    struct clock c = {measure_seconds(), s};
    if (n && !jllm_generate(b->session, b->ids[0], (size_t)n, NULL, 0, count_step, &c, &e)) stop_error(&e);
}

/* One repetition; s NULL: the warm-up. */
static void run_once(struct bench *b, const struct test *t, struct samples *s) {
    jllm_reset(b->session, 0);
    prefill(b, t->n_depth);
    uint64_t before = jllm_session_stats(b->session).weight_bytes;
    double start = measure_seconds();
    prefill(b, t->n_prompt);
    generate(b, t->n_gen, s);
    if (!s) return;
    s->ns[s->n++] = 1e9 * (measure_seconds() - start);
    s->weight_bytes = jllm_session_stats(b->session).weight_bytes - before;
}

/* ---- figures ---- */

static int number_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The p-th percentile by nearest rank; sorts. */
static double percentile(double *x, size_t n, double p) {
    qsort(x, n, sizeof *x, number_order);
    size_t rank = (size_t)ceil(p / 100 * (double)n);
    return x[rank ? rank - 1 : 0];
}

static double mean(const double *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i];
    return sum / (double)n;
}

static double deviation(const double *x, size_t n) {
    double m = mean(x, n), sum = 0;
    for (size_t i = 0; i < n; i++) sum += (x[i] - m) * (x[i] - m);
    return n > 1 ? sqrt(sum / (double)(n - 1)) : 0;
}

/* Elements and GGUF bytes of the model's tensors, computed constants left out. */
static void model_size(const struct bench *b, json_int_t *params, json_int_t *bytes) {
    size_t section_bytes = 0;
    const struct plan_piece *p = jllm_plan_section(b->plan, PLAN_WEIGHTS, &section_bytes);
    *params = *bytes = 0;
    for (size_t i = 0; p && i < section_bytes / sizeof *p; i++) {
        if (p[i].gguf_bytes) *params += (json_int_t)(p[i].rows * p[i].cols);
        *bytes += (json_int_t)p[i].gguf_bytes;
    }
}

static void set(json_t *o, const char *key, json_t *value) {
    json_object_set_new(o, key, need(value));
}
static void set_text(json_t *o, const char *key, const char *value) {
    json_t *text = json_string(value);
    set(o, key, text ? text : json_string("?"));   /* not UTF-8 */
}
static void set_int(json_t *o, const char *key, json_int_t value) {
    set(o, key, json_integer(value));
}
static void set_real(json_t *o, const char *key, double value) { set(o, key, json_real(value)); }

static void set_setup(const struct bench *b, json_t *o, const struct test *t) {
    char type[200], now[32];
    json_int_t params, bytes;
    time_t seconds = time(NULL);
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime(&seconds));
    snprintf(type, sizeof type, "%s %s", b->info->arch, b->info->quants);
    model_size(b, &params, &bytes);
    set_text(o, "build_commit", JLLM_VERSION);
    set_int(o, "build_number", PLAN_VERSION);
    set_text(o, "cpu_info", measure_cpu_name());
    set_text(o, "gpu_info", b->info->device_name);
    set_int(o, "gpu_units", b->info->n_units);
    set_text(o, "backends", b->info->device);
    set_text(o, "model_filename", b->plan_path);
    set_text(o, "model_type", type);
    set_int(o, "model_size", bytes);
    set_int(o, "model_n_params", params);
    set_int(o, "n_threads", b->info->n_threads);
    set(o, "use_mmap", json_boolean(!b->no_mmap));
    set_int(o, "n_prompt", t->n_prompt);
    set_int(o, "n_gen", t->n_gen);
    set_int(o, "n_depth", t->n_depth);
    set_text(o, "test_time", now);
}

static void set_samples(json_t *o, const struct samples *s, const struct test *t) {
    double ts[REPETITIONS_MAX];
    json_t *ns_list = need(json_array()), *ts_list = need(json_array());
    for (size_t i = 0; i < s->n; i++) {
        ts[i] = 1e9 * (t->n_prompt + t->n_gen) / s->ns[i];
        json_array_append_new(ns_list, json_integer((json_int_t)s->ns[i]));
        json_array_append_new(ts_list, json_real(ts[i]));
    }
    set_int(o, "avg_ns", (json_int_t)mean(s->ns, s->n));
    set_int(o, "stddev_ns", (json_int_t)deviation(s->ns, s->n));
    set_real(o, "avg_ts", mean(ts, s->n));
    set_real(o, "stddev_ts", deviation(ts, s->n));
    set(o, "samples_ns", ns_list);
    set(o, "samples_ts", ts_list);
}

/* Percentiles: of single decode steps where the test is nothing else, else of repetitions. */
static json_t *make_result(const struct bench *b, const struct test *t, struct samples *s) {
    json_t *o = need(json_object());
    bool steps = t->n_prompt == 0;
    double gbps = (double)s->weight_bytes / mean(s->ns, s->n), *x = steps ? s->steps : s->ns;
    size_t n = steps ? s->n_steps : s->n;
    set_setup(b, o, t);
    set_samples(o, s, t);
    set_text(o, "plan_hash", b->info->plan_hash);
    set_text(o, "spec", b->info->spec_name);
    set_real(o, "gbps", gbps);
    set_real(o, "peak_gbps", b->peak_gbps);
    set(o, "pct_peak", gbps <= b->peak_gbps ? json_real(100 * gbps / b->peak_gbps) : json_null());
    set_int(o, "p50_ns", (json_int_t)percentile(x, n, 50));
    set_int(o, "p90_ns", (json_int_t)percentile(x, n, 90));
    set_int(o, "p99_ns", (json_int_t)percentile(x, n, 99));
    return o;
}

/* ---- output ---- */

static json_int_t get_int(json_t *o, const char *key) {
    return json_integer_value(json_object_get(o, key));
}
static double get_real(json_t *o, const char *key) {
    return json_real_value(json_object_get(o, key));
}
static const char *get_text(json_t *o, const char *key) {
    return json_string_value(json_object_get(o, key));
}

/* llama-bench's: pp512, tg128, pp512+tg128, with " @ d4096" at a depth. */
static void test_name(json_t *o, char *out, size_t bytes) {
    int p = (int)get_int(o, "n_prompt"), n = (int)get_int(o, "n_gen"),
        d = (int)get_int(o, "n_depth");
    char depth[24] = "";
    if (d) snprintf(depth, sizeof depth, " @ d%d", d);
    if (p && n) snprintf(out, bytes, "pp%d+tg%d%s", p, n, depth);
    else snprintf(out, bytes, "%s%d%s", p ? "pp" : "tg", p ? p : n, depth);
}

static void print_md(json_t *o, bool first) {
    char name[80], share[16] = "cached";
    json_t *pct = json_object_get(o, "pct_peak");
    test_name(o, name, sizeof name);
    if (json_is_real(pct)) snprintf(share, sizeof share, "%.0f", json_real_value(pct));
    if (first)
        puts("| model | size | params | backend | threads | test | t/s | GB/s | % of peak | p50 ms "
             "| p99 ms |\n"
             "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    printf("| %s | %.2f MiB | %.2f M | %s | %d | %s | %.2f ± %.2f | %.2f | %s | %.2f | %.2f |\n",
           get_text(o, "model_type"), (double)get_int(o, "model_size") / 0x1p20,
           1e-6 * (double)get_int(o, "model_n_params"), get_text(o, "backends"),
           (int)get_int(o, "n_threads"), name, get_real(o, "avg_ts"), get_real(o, "stddev_ts"),
           get_real(o, "gbps"), share, 1e-6 * (double)get_int(o, "p50_ns"),
           1e-6 * (double)get_int(o, "p99_ns"));
}

/* A number with so many places, or what is said where there is none. */
static void print_cell(json_t *o, const char *key, int places, const char *otherwise) {
    json_t *v = json_object_get(o, key);
    if (json_is_number(v)) printf(" %.*f |", places, json_number_value(v));
    else printf(" %s |", json_is_string(v) && *json_string_value(v) ? json_string_value(v) : otherwise);
}

static void print_ops_md(json_t *o, bool first) {
    static const struct { const char *key, *title; int places; const char *otherwise; } cells[] = {
        {"phase", "phase", 0, ""}, {"op", "op", 0, ""}, {"template", "kernel", 0, ""}, {"quant", "type", 0, "–"},
        {"m", "M", 0, "–"}, {"k", "K", 0, "–"}, {"n", "n", 0, "–"}, {"launches", "launches", 0, ""},
        {"us", "µs", 2, ""}, {"mb", "MB", 3, "–"}, {"gbps", "GB/s", 1, "–"}, {"pct_peak", "% of peak", 0, "–"},
        {"gmacs", "GMAC/s", 1, "–"}, {"pct_macs", "% of peak", 0, "–"}, {"macs_by", "of", 0, "–"},
        {"pct_limit", "% of limit", 0, "–"}, {"lost_us", "µs lost in a pass", 1, ""}};
    enum { CELLS = sizeof cells / sizeof *cells, TEXTS = 4 };
    if (first) {
        printf("|");
        for (int i = 0; i < CELLS; i++) printf(" %s |", cells[i].title);
        printf("\n|");
        for (int i = 0; i < CELLS; i++) printf(i < TEXTS ? " --- |" : " ---: |");
        putchar('\n');
    }
    putchar('|');
    for (int i = 0; i < CELLS; i++) print_cell(o, cells[i].key, cells[i].places, cells[i].otherwise);
    putchar('\n');
}

static void print_csv_text(const char *text) {
    putchar('"');
    for (; *text; text++) {
        if (*text == '"') putchar('"');
        putchar(*text);
    }
    putchar('"');
}

static void print_csv(json_t *o, bool header) {
    const char *key, *comma = "";
    json_t *v;
    json_object_foreach(o, key, v) {
        if (json_is_array(v)) continue;
        fputs(comma, stdout);
        comma = ",";
        if (json_is_null(v) && !header) continue;
        char *number = json_is_string(v) || header
                           ? NULL
                           : json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        print_csv_text(header ? key : number ? number : json_string_value(v));
        free(number);
    }
    putchar('\n');
}

static void print_json(json_t *o) {
    char *text = need(json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9)));
    fputs(text, stdout);
    free(text);
}

static void print_result(const struct bench *b, json_t *o, bool first) {
    if (strcmp(b->format, "md") == 0) (b->ops ? print_ops_md : print_md)(o, first);
    else if (strcmp(b->format, "csv") == 0) {
        if (first) print_csv(o, true);
        print_csv(o, false);
    } else if (strcmp(b->format, "jsonl") == 0) {
        print_json(o);
        putchar('\n');
    } else {
        fputs(first ? "[\n" : ",\n", stdout);
        print_json(o);
    }
    args_check_output(!fflush(stdout) && !ferror(stdout));
}

/* ---- tests ---- */

static size_t list_tests(const struct bench *b, struct test *tests) {
    size_t n = 0;
    for (size_t d = 0; d < b->depths.n; d++) {
        int depth = b->depths.values[d];
        if (n + b->prompts.n + b->gens.n + b->n_pairs > TESTS_MAX)
            stop(EXIT_USAGE, "more than %d tests", TESTS_MAX);
        for (size_t i = 0; i < b->prompts.n; i++)
            if (b->prompts.values[i]) tests[n++] = (struct test){b->prompts.values[i], 0, depth};
        for (size_t i = 0; i < b->gens.n; i++)
            if (b->gens.values[i]) tests[n++] = (struct test){0, b->gens.values[i], depth};
        for (size_t i = 0; i < b->n_pairs; i++)
            tests[n++] = (struct test){b->pairs[i].n_prompt, b->pairs[i].n_gen, depth};
    }
    return n;
}

static void check_context(const struct bench *b, const struct test *tests, size_t n) {
    for (size_t i = 0; i < n; i++) {
        long long tokens = (long long)tests[i].n_depth + tests[i].n_prompt + tests[i].n_gen;
        if (tokens > b->info->ctx_max)
            stop(EXIT_USAGE, "a test needs %lld tokens, the plan's context holds %u; %s", tokens, b->info->ctx_max,
                 args_more_context(b->info->ctx_max, b->info->ctx_train, (unsigned long long)tokens));
    }
}

static void run_test(struct bench *b, const struct test *t, bool first) {
    struct samples s = {
        .steps = need(malloc(((size_t)t->n_gen * (size_t)b->repetitions + 1) * sizeof(double)))};
    if (!b->no_warmup) run_once(b, t, NULL);
    for (int i = 0; i < b->repetitions; i++) run_once(b, t, &s);
    json_t *o = make_result(b, t, &s);
    print_result(b, o, first);
    json_decref(o);
    free(s.steps);
}

/* ---- kernels ---- */

static void set_share(json_t *o, const char *key, double part, double whole) {
    set(o, key, part > 0 && whole > 0 && part <= whole ? json_real(100 * part / whole) : json_null());
}

/* Multiply-adds of a kernel against those of its instructions alone, each measured once. */
static void set_macs(struct bench *b, json_t *o, const struct ops_row *r) {
    enum measure_dots d;
    bool known = ops_dots(b->plan, r, &d);
    if (known && b->dots_gmacs[d] <= 0) b->dots_gmacs[d] = measure_dots_gmacs(d, b->info->n_threads, 0.2);
    set(o, "gmacs", known ? json_real(r->flops / r->us / 2e3) : json_null());
    set(o, "peak_gmacs", known ? json_real(b->dots_gmacs[d]) : json_null());
    set_text(o, "macs_by", known ? measure_dots_name(d) : "");
    set_share(o, "pct_macs", known ? r->flops / r->us / 2e3 : 0, known ? b->dots_gmacs[d] : 0);
}

/* here: as measured; floors are by what the plan's spec states, as in a profile. */
static json_t *make_ops_row(struct bench *b, const struct plan_phase *p, const struct ops_row *r, const struct ops_limits *here) {
    json_t *o = need(json_object());
    char phase[24];
    double gbps = r->bytes / r->us / 1e3;
    snprintf(phase, sizeof phase, p->kind == PLAN_PHASE_DECODE ? "decode" : "prefill %u", p->n_tokens);
    set_text(o, "phase", phase);
    set_text(o, "op", r->op);
    set_text(o, "template", r->template_name);
    set_text(o, "quant", r->quant);
    set(o, "m", r->m ? json_integer(r->m) : json_null());
    set(o, "k", r->k ? json_integer(r->k) : json_null());
    set(o, "n", r->n ? json_integer(r->n) : json_null());
    set_int(o, "launches", r->n_launches);
    set_real(o, "us", r->us);
    set(o, "mb", r->bytes > 0 ? json_real(r->bytes / 1e6) : json_null());
    set(o, "mflop", r->flops > 0 ? json_real(r->flops / 1e6) : json_null());
    set(o, "gbps", r->bytes > 0 ? json_real(gbps) : json_null());
    set_share(o, "pct_peak", gbps, here->gbps);
    set_macs(b, o, r);
    set_share(o, "pct_limit", r->floor_us, r->us);
    set_real(o, "floor_us", r->floor_us);
    set_text(o, "limit", r->floor_us <= 0 ? "unknown" : r->bandwidth_bound ? "bandwidth" : "rate");
    set_real(o, "lost_us", r->lost_us);
    set_text(o, "kernel", r->kernel);
    set_int(o, "n_depth", b->depths.values[0]);
    set_int(o, "n_threads", b->info->n_threads);
    set_text(o, "gpu_info", b->info->device_name);
    set_int(o, "gpu_units", b->info->n_units);
    set_real(o, "peak_gbps", here->gbps);
    set_real(o, "peak_gflops", here->gflops);
    set_text(o, "model_filename", b->plan_path);
    set_text(o, "plan_hash", b->info->plan_hash);
    return o;
}

/* A GPU's rate is not known; of a CPU it is that of fp32, which kernels in integers may exceed. */
static struct ops_limits find_limits(const struct bench *b) {
    const char *isa;
    bool gpu = *b->info->device_name;
    return (struct ops_limits){b->peak_gbps, gpu ? 0 : 2 * measure_gmacs(b->info->n_threads, 0.2, &isa)};
}

static void show_machine(const struct bench *b, const struct ops_limits *here) {
    if (strcmp(b->format, "md") != 0) return;
    if (b->info->n_units) printf("%s, %u multiprocessors in use", b->info->device_name, b->info->n_units);
    else printf("%s, %u threads", measure_cpu_name(), b->info->n_threads);
    printf(", %.1f GB/s", here->gbps);
    if (here->gflops > 0) printf(", %.1f fp32 GFLOP/s", here->gflops);
    printf("; after %d tokens\n\n", b->depths.values[0]);
}

static void show_phase(struct bench *b, uint32_t phase, const struct plan_phase *p, const struct ops_limits *here, bool *first) {
    struct jllm_error e;
    struct plan_rates rates;
    size_t n;
    ops_rates(b->plan, here, &rates);
    struct ops_limits limits = ops_limits(b->plan, &rates);
    struct ops_row *rows = ops_measure(b->plan, b->session, phase, &limits, (size_t)b->repetitions, &n, &e);
    if (!rows) stop_error(&e);
    for (size_t i = 0; i < n; i++, *first = false) {
        json_t *o = make_ops_row(b, p, &rows[i], here);
        print_result(b, o, *first);
        json_decref(o);
    }
    free(rows);
}

/* 1 is decode, whose kernels the prefill of one token shares. */
static uint32_t ops_number(const struct plan_phase *p) {
    bool listed = p->kind == PLAN_PHASE_DECODE || (p->kind == PLAN_PHASE_PREFILL && p->n_tokens > 1);
    return listed ? p->n_tokens : 0;
}

static bool has_room(const struct bench *b, const struct plan_phase *p) {
    return (long long)b->depths.values[0] + p->n_tokens <= b->info->ctx_max;
}

static bool in_span(const struct span *s, const struct plan_phase *p) {
    uint32_t n = ops_number(p);
    return n >= (uint32_t)s->first && n <= (uint32_t)s->last;
}

/* Of all phases those that find room behind the depth; of a list each (check_depth). */
static bool is_wanted(const struct bench *b, const struct plan_phase *p) {
    bool wanted = !b->n_ops_phases && ops_number(p) && has_room(b, p);
    for (size_t i = 0; i < b->n_ops_phases; i++) wanted |= in_span(&b->ops_phases[i], p);
    return wanted;
}

static void check_depth(const struct bench *b, const struct plan_phase *p, size_t n) {
    size_t n_wanted = 0;
    uint32_t tokens = 1;
    for (size_t i = 0; i < n; i++) {
        if (!is_wanted(b, &p[i])) continue;
        n_wanted++;
        if (p[i].n_tokens > tokens) tokens = p[i].n_tokens;
    }
    long long needed = (long long)b->depths.values[0] + tokens;
    if (!n_wanted || needed > b->info->ctx_max)
        stop(EXIT_USAGE, "a pass of %u tokens after %d needs %lld, the plan's context holds %u; %s", tokens, b->depths.values[0], needed,
             b->info->ctx_max, args_more_context(b->info->ctx_max, b->info->ctx_train, (unsigned long long)needed));
}

static void check_ops(const struct bench *b, const struct plan_phase *p, size_t n) {
    for (size_t i = 0; i < b->n_ops_phases; i++) {
        const struct span *s = &b->ops_phases[i];
        size_t k = 0;
        while (k < n && !in_span(s, &p[k])) k++;
        if (k == n && s->first == s->last) stop(EXIT_USAGE, "--ops %d: the plan has no bucket of so many tokens", s->first);
        if (k == n) stop(EXIT_USAGE, "--ops %d-%d: the plan has no bucket of so many tokens", s->first, s->last);
    }
    if (b->depths.n != 1) stop(EXIT_USAGE, "%s takes one -d", b->profile_path ? "--profile" : "--ops");
    check_depth(b, p, n);
}

static void show_ops(struct bench *b, bool *first) {
    size_t bytes;
    const struct plan_phase *p = jllm_plan_section(b->plan, PLAN_PHASES, &bytes);
    uint32_t n = (uint32_t)(bytes / sizeof *p);
    check_ops(b, p, n);
    struct ops_limits here = find_limits(b);
    jllm_reset(b->session, 0);
    prefill(b, b->depths.values[0]);
    if (*first) show_machine(b, &here);
    for (uint32_t i = 0; i < n; i++)
        if (p[i].kind == PLAN_PHASE_DECODE && is_wanted(b, &p[i])) show_phase(b, i, &p[i], &here, first);
    for (uint32_t i = 0; i < n; i++)
        if (p[i].kind != PLAN_PHASE_DECODE && is_wanted(b, &p[i])) show_phase(b, i, &p[i], &here, first);
}

/* ---- a profile ---- */

/* Whole prompts end with a head, which no number names. */
static bool is_profiled(const struct bench *b, const struct plan_phase *p) {
    bool head = p->kind == PLAN_PHASE_HEAD || p->kind == PLAN_PHASE_CANDIDATES;
    return (head ? !b->n_ops_phases : is_wanted(b, p)) && has_room(b, p);
}

static void write_profile(struct bench *b) {
    struct jllm_error e;
    size_t bytes;
    const struct plan_phase *p = jllm_plan_section(b->plan, PLAN_PHASES, &bytes);
    uint32_t n = (uint32_t)(bytes / sizeof *p), depth = (uint32_t)b->depths.values[0];
    check_ops(b, p, n);
    struct ops_limits limits = find_limits(b);
    struct profile_machine machine = {limits.gbps, limits.gflops};
    struct profile *f = profile_open(b->profile_path, "jllm-bench", b->plan, b->plan_path, (size_t)b->repetitions, &machine, &e);
    if (!f) stop_error(&e);
    jllm_reset(b->session, 0);
    bool ok = !depth || jllm_prefill(b->session, b->ids, depth, &e);
    for (uint32_t i = 0; i < n && ok; i++)
        if (is_profiled(b, &p[i])) ok = profile_phase(f, b->session, i, &e);
    struct jllm_error first = e;
    if (!profile_close(f, ok, &e) && ok) stop_error(&e);
    if (!ok) stop_error(&first);
    fprintf(stderr, "the profile is in %s: jllmc profile ops reads it\n", b->profile_path);
}

int main(int argc, char **argv) {
    static struct bench b;
    struct test tests[TESTS_MAX];
    bool first = true;
    args_start();
    signal(SIGPIPE, SIG_DFL);       /* hours of tests that nobody reads are not run */
    parse(&b, argc, argv);
    size_t n = list_tests(&b, tests);
    if (!n && !b.peak && !b.ops && !b.profile_path) stop(EXIT_USAGE, "-p 0 and -n 0 leave no test to run");
    if (b.peak) {
        show_peak(&b);
        args_check_output(!fflush(stdout) && !ferror(stdout));
        return 0;
    }
    if (!b.threads.n) b.threads = (struct list){{0}, 1};
    if (b.profile_path && b.threads.n > 1) stop(EXIT_USAGE, "--profile takes one -t");
    if (b.perf_map && b.threads.n > 1) stop(EXIT_USAGE, "--perf-map takes one -t");
    for (size_t i = 0; i < b.threads.n; i++) {
        open_plan(&b, b.threads.values[i]);
        if (b.profile_path) write_profile(&b);
        else if (b.ops) show_ops(&b, &first);
        else check_context(&b, tests, n);
        for (size_t k = 0; k < n && !b.ops && !b.profile_path; k++, first = false) run_test(&b, &tests[k], first);
        close_plan(&b);
    }
    if (strcmp(b.format, "json") == 0 && !b.profile_path) puts(first ? "[]" : "\n]");
    args_check_output(!fflush(stdout) && !ferror(stdout));
    free(b.ids);
    return 0;
}
