/* jllm-run: a plan and a prompt to text. The answer goes to stdout, everything else to stderr.
 * Exit codes: 0, 1 bad input, 2 usage, 3 environment. Answers one prompt; does not chat. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <jansson.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "../jllm.h"
#include "../plan.h"
#include "args.h"
#include "chat.h"
#include "measure.h"
#include "npy.h"
#include "ops.h"
#include "perf_map.h"
#include "profile.h"
#include "sampler.h"
#include "tokenizer.h"
#include "unfinished.h"
#include "utf8.h"

struct run {
    struct args args;
    struct jllm_plan *plan;
    const struct jllm_info *info;
    struct jllm_session *session;
    struct tokenizer *tokenizer;
    struct chat chat;
    bool chatting;              /* the prompt is a user's turn */
    struct sampler *sampler;
    struct tokenizer_stream stream;
    struct tokenizer_ids prompt;
    size_t ctx;                 /* tokens that may be used */
    size_t most, n_generated;
    bool ended;                 /* by a token that ends answers */
    int32_t stop_ids[JLLM_STOP_IDS_MAX];
    size_t n_stop;
    double start, loaded, prefilled, finished;
    struct jllm_stats stats_prefilled;
};

/* A line that may hold words of the plan: a terminal is not given what they hide. */
static void say(FILE *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(FILE *f, const char *format, ...) {
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0) return;
    utf8_disarm(text, (size_t)n);
    fputs(text, f);
    free(text);
}

static _Noreturn void stop(int code, const char *text) {
    say(stderr, "error: %s\n", text);
    exit(code);
}

static _Noreturn void stop_error(const struct jllm_error *e) {
    stop(e->code == JLLM_ENVIRONMENT ? EXIT_ENVIRONMENT : EXIT_BAD_INPUT, e->text);
}

/* ---- opening ---- */

static void open_plan(struct run *r) {
    struct jllm_error e;
    struct jllm_options options = {.n_threads = r->args.threads, .verify = r->args.verify, .no_mmap = r->args.no_mmap,
                                   .device = r->args.device,
                                   .single_launches = r->args.single_launches};
    /* Words need no machine that can run the model. */
    options.no_device = (r->args.mode == ARGS_TOKENIZE || r->args.mode == ARGS_DETOKENIZE) && !r->args.perf_map;
    r->plan = jllm_open(r->args.plan, &options, &e);
    if (!r->plan) stop_error(&e);
    if (r->args.perf_map && !perf_map_write(r->plan, &e)) stop_error(&e);
    r->info = jllm_plan_info(r->plan);
    r->ctx = r->args.ctx ? (size_t)r->args.ctx : r->info->ctx_max;
    if (r->args.no_mmap && strcmp(r->info->device, "cpu") != 0)
        stop(EXIT_USAGE, "--no-mmap is for CPU plans: a GPU has the weights in its own memory");
    if (r->args.single_launches && strcmp(r->info->device, "cpu") == 0)
        stop(EXIT_USAGE, "--single-launches is for CUDA plans: on a CPU there is nothing to wait for");
    if (r->ctx <= r->info->ctx_max) return;
    fprintf(stderr, "error: -c %zu: the plan's context holds %u tokens; %s\n", r->ctx, r->info->ctx_max,
            args_more_context(r->info->ctx_max, r->info->ctx_train, r->ctx));
    exit(EXIT_USAGE);
}

static void open_tokenizer(struct run *r) {
    struct jllm_error e;
    size_t bytes = 0;
    const void *section = jllm_plan_section(r->plan, PLAN_TOKENIZER, &bytes);
    r->tokenizer = tokenizer_open(section, bytes, &e);
    if (!r->tokenizer) stop_error(&e);
    uint32_t n_vocab = tokenizer_facts(r->tokenizer)->n_vocab;
    if (n_vocab != r->info->n_vocab)
        stop(EXIT_BAD_INPUT, "the plan's tokenizer and model have different vocabularies");
    section = jllm_plan_section(r->plan, PLAN_CHAT, &bytes);
    if (section && !chat_open(&r->chat, section, bytes, n_vocab, &e)) stop_error(&e);
    r->chatting = section && !r->args.raw;
    if (r->chatting || !(r->args.system || r->args.plain)) return;
    fprintf(stderr, "error: %s %s\n", r->args.system ? "-sys" : "--reasoning-budget 0",
            section ? "does not go with -no-cnv"
                    : "needs chat rules, and the plan has none: the model's chat template is missing or was not understood");
    exit(EXIT_USAGE);
}

static void open_session(struct run *r) {
    struct jllm_error e;
    r->session = jllm_session_new(r->plan, &e);
    if (!r->session) stop_error(&e);
}

static void show_plan(const struct run *r) {
    const struct jllm_info *i = r->info;
    say(stderr, "model   %s (%s, %s), vocabulary %u, context %u of %u\n", i->model_name,
            i->arch, i->quants, i->n_vocab, i->ctx_max, i->ctx_train);
    say(stderr, "plan    %s, spec %s (%s), target %s, %s\n", i->plan_hash, i->spec_name,
            i->spec_hash, i->target, i->compiler);
    fprintf(stderr, "memory  weights %.1f MiB, cache %.1f MiB, arena %.1f MiB\n",
            (double)i->weights_bytes / 0x1p20, (double)i->cache_bytes / 0x1p20,
            (double)i->arena_bytes / 0x1p20);
    fprintf(stderr, "device  %s", i->device);
    if (*i->device_name) fprintf(stderr, ", %s", i->device_name);
    else fprintf(stderr, ", %u threads", i->n_threads);
    fprintf(stderr, "; prompt %zu tokens%s\n", r->prompt.n, r->chatting ? ", by chat rules" : "");
}

/* ---- the prompt ---- */

static void add_bos(struct run *r) {
    const struct tokenizer_header *h = tokenizer_facts(r->tokenizer);
    if ((h->flags & TOKENIZER_ADD_BOS) && h->bos != TOKENIZER_NONE)
        tokenizer_ids_add(&r->prompt, (int32_t)h->bos);
}

/* A template that writes bos itself does not get a second one. */
static void encode_chat(struct run *r, struct jllm_error *e) {
    struct chat_message turn = {r->args.prompt, strlen(r->args.prompt)};
    struct tokenizer_ids ids = {0};
    if (!chat_render(&r->chat, r->tokenizer, r->args.system, &turn, 1, !r->args.plain, &ids, e))
        stop_error(e);
    if (!ids.n || (uint32_t)ids.ids[0] != tokenizer_facts(r->tokenizer)->bos) add_bos(r);
    for (size_t i = 0; i < ids.n; i++) tokenizer_ids_add(&r->prompt, ids.ids[i]);
    tokenizer_ids_free(&ids);
}

/* Raw text is its writer's own, special tokens included. */
static void encode_raw(struct run *r, const char *text, size_t bytes, struct tokenizer_ids *ids) {
    struct jllm_error e;
    if (!(r->args.plain_text ? tokenizer_encode : tokenizer_encode_special)(r->tokenizer, text, bytes, ids, &e)) stop_error(&e);
}

static void encode_prompt(struct run *r) {
    struct jllm_error e;
    if (r->chatting) {
        encode_chat(r, &e);
    } else {
        add_bos(r);
        size_t added = r->prompt.n;
        encode_raw(r, r->args.prompt, strlen(r->args.prompt), &r->prompt);
        if (added && r->prompt.n > added && r->prompt.ids[added] == r->prompt.ids[0])
            fputs("warning: the prompt begins with the token that is put in front of every prompt: it is there twice\n", stderr);
    }
}

static const char *skip_blanks(const char *p, bool list) { return list ? p + strspn(p, " ") : p; }

/* --tokens 1,2,3 or, as --tokenize prints them, [1, 2, 3] */
static void parse_tokens(struct run *r) {
    const char *p = r->args.tokens;
    bool list = *p == '[', more = true;
    for (p += list; more; p += more) {
        char *end;
        p = skip_blanks(p, list);
        long id = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : -1;
        if (id < 0 || id >= (long)r->info->n_vocab) break;
        tokenizer_ids_add(&r->prompt, (int32_t)id);
        p = skip_blanks(end, list);
        more = *p == ',';
    }
    if (!more && strcmp(p, list ? "]" : "") == 0) return;
    char what[200];
    snprintf(what, sizeof what, "--tokens takes ids of the vocabulary (0 to %u), as in 1,2,3 or [1, 2, 3]; after %zu of them comes '%.20s'",
             r->info->n_vocab - 1, r->prompt.n, p);
    stop(EXIT_USAGE, what);
}

/* How to get a context of at least n tokens; below the plan's limit it is only -c that is in the
 * way. */
static void say_remedy(const struct run *r, size_t n) {
    if (n <= r->info->ctx_max)
        fprintf(stderr, "-c allows %zu tokens of the plan's %u\n", r->ctx, r->info->ctx_max);
    else
        fprintf(stderr, "%s\n", args_more_context(r->info->ctx_max, r->info->ctx_train, (n + 1023) / 1024 * 1024));
}

static void check_prompt(const struct run *r) {
    if (!r->prompt.n) stop(EXIT_BAD_INPUT, "the prompt is empty");
    if (r->prompt.n <= r->ctx) return;
    fprintf(stderr, "error: the prompt has %zu tokens, the context holds %zu; ", r->prompt.n,
            r->ctx);
    say_remedy(r, r->prompt.n);
    exit(EXIT_BAD_INPUT);
}

/* ---- output ---- */

static void write_out(const char *p, size_t bytes) {
    args_check_output(fwrite(p, 1, bytes, stdout) == bytes && fflush(stdout) == 0);
}

static void write_token(struct run *r, int32_t id) {
    size_t bytes;
    const char *text = tokenizer_print(r->tokenizer, id, &bytes);
    char out[TOKENIZER_TOKEN_BYTES_MAX + 4];
    if (text && bytes <= TOKENIZER_TOKEN_BYTES_MAX) {
        size_t n = tokenizer_stream_push(&r->stream, text, bytes, out);
        if (n) write_out(out, n);
    }
}

static void write_end(struct run *r) {
    char out[5];
    size_t n = tokenizer_stream_flush(&r->stream, out);
    out[n++] = '\n';
    write_out(out, n);
}

/* ---- generating ---- */

static bool is_stop(const struct run *r, int32_t id) {
    return r->chatting ? chat_is_stop(&r->chat, r->tokenizer, id)
                       : tokenizer_is_stop(r->tokenizer, id);
}

static void start_sampler(struct run *r) {
    uint64_t seed = (uint64_t)r->args.seed;
    if (r->args.seed < 0) {
        if (getentropy(&seed, sizeof seed)) seed = (uint64_t)(measure_seconds() * 1e9);
        seed &= 0xFFFFFFFF;
        if (r->args.sampler.temperature > 0)
            fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
    }
    r->args.sampler.seed = seed;
    r->sampler = sampler_new(&r->args.sampler, r->info->n_vocab);
    if (!r->sampler) stop(EXIT_ENVIRONMENT, "out of memory");
    for (int32_t id = 0; id < (int32_t)r->info->n_vocab; id++) {
        if (!is_stop(r, id)) continue;
        if (r->args.ignore_eos) sampler_ban(r->sampler, id);
        else if (r->n_stop < JLLM_STOP_IDS_MAX) r->stop_ids[r->n_stop++] = id;   /* others are seen when they are read */
    }
    for (size_t i = 0; i < r->prompt.n; i++) sampler_accept(r->sampler, r->prompt.ids[i]);
}

/* On a GPU it shows only here that a step went wrong. */
static const float *need_logits(struct run *r) {
    const float *logits = jllm_logits(r->session);
    if (!logits) stop_error(jllm_session_failure(r->session));
    return logits;
}

static volatile sig_atomic_t interrupted;

static volatile sig_atomic_t answered;

/* The first Ctrl-C ends the answer, the second, and one after it, the program. */
static void on_interrupt(int number) {
    bool last = interrupted || answered;
    interrupted = number;
    if (!last) return;
    unfinished_drop();
    signal(number, SIG_DFL);
    raise(number);
}

static void catch_interrupt(void) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART}, before;
    sigaction(SIGINT, NULL, &before);
    if (before.sa_handler != SIG_IGN) sigaction(SIGINT, &action, NULL);     /* a script's background job goes on */
}

/* A chosen token goes into the text, unless it ends the answer. True: there is to be another. */
static bool take_token(void *user, int32_t id) {
    struct run *r = user;
    r->ended = is_stop(r, id);
    if (r->ended) return false;
    sampler_accept(r->sampler, id);
    write_token(r, id);
    return ++r->n_generated < r->most && !interrupted;
}

static int32_t choose_token(struct run *r) {
    struct jllm_error e;
    struct jllm_candidate largest[JLLM_CANDIDATES_MAX];
    size_t k = sampler_looks_at(r->sampler);
    if (!k) return sampler_choose(r->sampler, need_logits(r));
    size_t n = jllm_candidates(r->session, largest, k, &e);
    if (!n) stop_error(&e);
    return sampler_choose_of(r->sampler, largest, n);
}

/* Append a token that is to have a successor, and where each is the likeliest one all that follow it, too. True: choose the
 * next one. */
static bool append_token(struct run *r, int32_t id, size_t room) {
    struct jllm_error e;
    size_t left = r->most - r->n_generated, n = left < room ? left : room;
    bool greedy = sampler_looks_at(r->sampler) == 1;   /* of one candidate any temperature draws the same */
    bool ok = greedy ? jllm_generate(r->session, id, n, r->stop_ids, r->n_stop, take_token, r, &e)
                     : jllm_decode(r->session, id, &e);
    if (ok) return !greedy;
    write_end(r);
    stop_error(&e);
}

/* Until its end, -n, Ctrl-C or the end of the context, which only the last is said of. */
static void generate(struct run *r) {
    struct jllm_error e;
    size_t room;
    if (!jllm_prefill(r->session, r->prompt.ids, r->prompt.n, &e)) stop_error(&e);
    r->prefilled = measure_seconds();
    r->stats_prefilled = jllm_session_stats(r->session);
    r->most = r->args.n_predict < 0 ? SIZE_MAX : (size_t)r->args.n_predict;
    bool more = r->most && !interrupted;
    while (more) {
        int32_t id = choose_token(r);
        more = take_token(r, id);
        room = r->ctx - jllm_position(r->session);
        if (!more || !room || !append_token(r, id, room)) break;
    }
    write_end(r);
    r->finished = measure_seconds();
    bool full = r->most && !r->ended && !interrupted && r->n_generated < r->most;
    if (!full) return;
    fprintf(stderr, "\nthe context of %zu tokens is full; ", r->ctx);
    say_remedy(r, r->ctx < r->info->ctx_max ? r->ctx : 2 * r->ctx);
}

/* ---- what it took ---- */

static void show_rate(const char *name, double seconds, uint64_t n, const char *unit) {
    fprintf(stderr, "%16s time = %10.2f ms / %5llu %s", name, 1e3 * seconds, (unsigned long long)n,
            unit);
    if (n)
        fprintf(stderr, " (%8.2f ms per token, %8.2f tokens per second)", 1e3 * seconds / (double)n,
                (double)n / seconds);
    fputc('\n', stderr);
}

/* Of a CPU, whose memory says nothing of itself. More threads than cores read no faster. */
static unsigned reading_threads(const struct run *r) {
    unsigned cores = measure_cores();
    return r->info->n_threads < cores ? r->info->n_threads : cores;
}

/* Decoding reads every weight once a token, so that its limit is how fast as much can be read, from memory or from the cache
 * that it fits; 0 where a core's share fits the core's own, as then something else is the limit. */
static double measure_limit(const struct run *r, size_t *bytes, bool *unsteady) {
    size_t threads = reading_threads(r), own = 4 * measure_private_cache() * threads, most = (size_t)256 << 20;
    uint64_t spare = measure_memory_free() / 4;
    if (most < own) most = own;
    if (spare && most > spare) most = (size_t)spare;
    *bytes = r->info->weights_bytes < most ? (size_t)r->info->weights_bytes : most;
    return 2 * *bytes < own ? 0 : measure_read_gbps((unsigned)threads, *bytes, 0.05, unsteady);
}

/* Gives the limit; 0: it is not known, or decoding was faster than what had been measured. */
static double show_bandwidth(const struct run *r, uint64_t decode_bytes, double seconds) {
    double gbps = 1e-9 * (double)decode_bytes / seconds, peak = r->info->peak_gbps;
    bool gpu = *r->info->device_name, unsteady = false;
    size_t bytes = 0;
    char of[80] = "";
    if (gpu) snprintf(of, sizeof of, "of %.60s", r->info->device_name);
    else if ((peak = measure_limit(r, &bytes, &unsteady)) > 0)
        snprintf(of, sizeof of, "that %u threads read from %.0f MiB", reading_threads(r), (double)bytes / 0x1p20);
    fprintf(stderr, "%16s      = %10.2f GB/s of weights", "bandwidth", gbps);
    if (peak > 0 && gbps > peak) fprintf(stderr, ", more than the %.1f GB/s %s", peak, of);
    else if (peak > 0) fprintf(stderr, ", %.0f %% of the %.1f GB/s %s", 100 * gbps / peak, peak, of);
    fputs(unsteady ? "; the machine is busy, these numbers are unsteady\n" : "\n", stderr);
    return gbps > peak ? 0 : peak;
}

/* What the spec calls its target, whatever its file is called; plans of before that are without. */
static void say_target(const struct run *r) {
    size_t bytes = 0;
    const char *name = jllm_plan_section(r->plan, PLAN_TARGET, &bytes);
    if (!name || !memchr(name, 0, bytes) || !strcmp(name, r->info->spec_name)) say(stderr, " on %s", r->info->spec_name);
    else say(stderr, " on %s (spec %s)", name, r->info->spec_name);
}

/* The rate beside the plan's floor and what its spec led to expect. The floor is worked out for the memory that is here
 * (peak, in GB/s), which need not be the spec's: then that is the likeliest reason for a rate that falls short. */
static void show_audit(const struct run *r, uint64_t steps, double seconds, double peak) {
    struct plan_forecast f;
    size_t bytes = 0;
    const void *section = jllm_plan_section(r->plan, PLAN_FORECAST, &bytes);
    if (!section || bytes != sizeof f) return;
    memcpy(&f, section, sizeof f);
    double depth = (double)r->prompt.n + (double)steps / 2, spec_gbps = f.rates.dram_gbps, rate = (double)steps / seconds, positions = 0;
    for (uint32_t i = 0; i < r->info->n_layer; i++) positions += ops_positions(r->plan, i, depth - 1, 1) / r->info->n_layer;
    double expected_ns = f.decode_ns + positions * f.position_ns, floor_ns = f.decode_floor_ns + positions * f.position_floor_ns;
    if (peak > 0 && spec_gbps > 0) floor_ns *= spec_gbps / peak;
    fprintf(stderr, "%16s      = %10.2f tokens per second", "audit", rate);
    bool known = f.decode_floor_ns > 0 && (peak > 0 || spec_gbps <= 0);
    if (known) fprintf(stderr, " = %.0f %% of this plan's floor here (%.4g)", 1e-7 * rate * floor_ns, 1e9 / floor_ns);
    if (expected_ns > 0) fprintf(stderr, "%s %.0f %% of the %.4g expected", known ? "," : " =", 1e-7 * rate * expected_ns, 1e9 / expected_ns);
    say_target(r);
    if (1e-9 * rate * expected_ns < 0.9 && peak > 0 && peak < 0.9 * spec_gbps)
        fprintf(stderr, "; memory moves %.1f GB/s here and %.1f by the spec", peak, spec_gbps);
    fputc('\n', stderr);
}

static void show_timings(struct run *r) {
    struct jllm_stats now = jllm_session_stats(r->session);
    uint64_t steps = now.decode_steps - r->stats_prefilled.decode_steps;
    double decoding = r->finished - r->prefilled;
    uint64_t memory = measure_memory_peak();   /* before the bandwidth's buffer adds to it */
    fprintf(stderr, "\n%16s time = %10.2f ms\n", "load", 1e3 * (r->loaded - r->start));
    show_rate("prompt eval", r->prefilled - r->loaded, r->prompt.n, "tokens");
    show_rate("eval", decoding, steps, "runs  ");
    fprintf(stderr, "%16s time = %10.2f ms / %5llu tokens\n", "total",
            1e3 * (r->finished - r->start), (unsigned long long)(r->prompt.n + steps));
    if (steps) show_audit(r, steps, decoding, show_bandwidth(r, now.weight_bytes - r->stats_prefilled.weight_bytes, decoding));
    fprintf(stderr, "%16s      = %10.2f MiB at most, with what was read of the plan's %.2f MiB\n", "memory",
            (double)memory / 0x1p20, (double)r->info->plan_bytes / 0x1p20);
    fprintf(
        stderr, "%16s      = %016llx\n", "logits hash",
        (unsigned long long)XXH3_64bits(need_logits(r), r->info->n_vocab * sizeof(float)));
}

/* ---- where it went ---- */

enum { PROFILE_REPETITIONS = 10, TABLE_REPETITIONS = 3 };

static struct profile *profile;   /* NULL: none is wanted, or none any more */

/* Whatever ends the program: nothing half-written stays. */
static void drop_profile(void) { profile_close(profile, false, NULL); }

/* Before the answer, so that nobody waits for one whose profile cannot be written. A GPU's rate is not known; a table alone
 * needs none. */
static void open_profile(struct run *r) {
    struct jllm_error e;
    const char *isa;
    struct profile_machine machine = {.gbps = r->info->peak_gbps};
    const char *path = r->args.profile_path;
    if (!path && !r->args.verbose) return;
    if (path && !*r->info->device_name) {
        uint64_t most = measure_memory_free() / 4;
        machine.gbps = measure_read_gbps(reading_threads(r), most && most < (1u << 28) ? (size_t)most : (size_t)1 << 28, 0.2, NULL);
        machine.gflops = 2 * measure_gmacs(r->info->n_threads, 0.2, &isa);
    }
    profile = profile_open(path, "jllm-run", r->plan, r->args.plan, path ? PROFILE_REPETITIONS : TABLE_REPETITIONS, &machine, &e);
    if (!profile) stop_error(&e);
    if (r->args.verbose) profile_table(profile, stderr);
    atexit(drop_profile);
}

/* For each phase the depth at which it ran last; SIZE_MAX: it did not. */
static void find_depths(const struct run *r, const struct plan_phase *p, uint32_t n_phases, size_t *depths) {
    size_t bytes, start = 0;
    const uint16_t *cover = jllm_plan_section(r->plan, PLAN_COVER, &bytes);
    for (uint32_t i = 0; i < n_phases; i++) depths[i] = SIZE_MAX;
    for (size_t at = 0; at < r->prompt.n; at += p[cover[r->prompt.n - at]].n_tokens) depths[cover[r->prompt.n - at]] = start = at;
    bool decoded = jllm_session_stats(r->session).decode_steps > 0, chosen = r->most && sampler_looks_at(r->sampler);
    for (uint32_t i = 0; i < n_phases; i++) {
        if (p[i].kind == PLAN_PHASE_HEAD || (p[i].kind == PLAN_PHASE_CANDIDATES && chosen)) depths[i] = start;
        if (p[i].kind == PLAN_PHASE_DECODE && decoded) depths[i] = jllm_position(r->session);
    }
}

/* A sequence only gets shorter: the deepest first. Where its last pass has no room for another one, it moves up. */
static bool profile_phases(struct run *r, struct jllm_error *e) {
    size_t bytes, depths[PLAN_BUCKETS_MAX + 4];
    const struct plan_phase *p = jllm_plan_section(r->plan, PLAN_PHASES, &bytes);
    uint32_t n_phases = (uint32_t)(bytes / sizeof *p);
    find_depths(r, p, n_phases, depths);
    for (;;) {
        uint32_t next = n_phases;
        for (uint32_t i = 0; i < n_phases; i++)
            if (depths[i] != SIZE_MAX && (next == n_phases || depths[i] > depths[next])) next = i;
        if (next == n_phases) return true;
        size_t deepest = r->info->ctx_max - p[next].n_tokens;
        jllm_reset(r->session, depths[next] < deepest ? depths[next] : deepest);
        if (!profile_phase(profile, r->session, next, e)) return false;
        depths[next] = SIZE_MAX;
    }
}

static void write_profile(struct run *r) {
    struct jllm_error e;
    answered = 1;
    if (!profile || (interrupted && !r->args.profile_path)) return;
    if (!profile_phases(r, &e)) stop_error(&e);
    struct profile *done = profile;
    profile = NULL;
    if (!profile_close(done, true, &e)) stop_error(&e);
    if (r->args.profile_path) fprintf(stderr, "the profile is in %s: jllmc profile ops reads it\n", r->args.profile_path);
}

static int run_generate(struct run *r) {
    open_tokenizer(r);
    encode_prompt(r);
    check_prompt(r);
    if (r->args.verbose) show_plan(r);
    open_session(r);
    start_sampler(r);
    open_profile(r);
    catch_interrupt();
    r->loaded = measure_seconds();
    if (!r->chatting && !r->args.hide_prompt) write_out(r->args.prompt, strlen(r->args.prompt));
    generate(r);
    show_timings(r);
    write_profile(r);
    return interrupted ? 128 + interrupted : 0;
}

/* ---- the other modes ---- */

struct rows { struct npy file; size_t n_vocab; };

static void keep_row(void *user, size_t index, const float *logits) {
    struct rows *rows = user;
    (void)index;
    npy_row(&rows->file, logits, rows->n_vocab);
}

static _Noreturn void stop_file(const char *path, const char *why) {
    fprintf(stderr, "error: %s: %s\n", path, why);
    exit(EXIT_ENVIRONMENT);
}

static _Noreturn void stop_written(const char *path) {
    char why[200];
    snprintf(why, sizeof why, "cannot write logits: %s", strerror(errno));
    stop_file(path, why);
}

static int run_logits(struct run *r) {
    struct jllm_error e;
    struct rows rows = {.n_vocab = r->info->n_vocab};
    if (r->args.tokens) {
        parse_tokens(r);
    } else {
        open_tokenizer(r);
        encode_prompt(r);
    }
    check_prompt(r);
    open_session(r);
    const char *path = r->args.logits_path;
    struct stat plan, file;
    if (!stat(r->args.plan, &plan) && !stat(path, &file) && plan.st_ino == file.st_ino && plan.st_dev == file.st_dev)
        stop(EXIT_USAGE, "--logits names the plan itself");
    if (!lstat(path, &file) && !S_ISREG(file.st_mode)) stop_file(path, "not a regular file, which logits could replace");
    if (!npy_open(&rows.file, path, r->prompt.n, rows.n_vocab)) stop_written(path);
    bool ok = jllm_prefill_rows(r->session, r->prompt.ids, r->prompt.n, keep_row, &rows, &e);
    if (!npy_close(&rows.file, ok) && ok) stop_written(path);
    if (!ok) stop_error(&e);
    return 0;
}

static char *read_stdin(size_t *bytes) {
    size_t room = 1 << 16, n = 0;
    char *text = malloc(room);
    *bytes = 0;
    while (text && (n = fread(text + *bytes, 1, room - *bytes, stdin)) > 0)
        if ((*bytes += n) == room) {
            if (room >= ARGS_INPUT_BYTES_MAX) stop(EXIT_BAD_INPUT, "stdin is longer than 256 MiB");
            text = realloc(text, room *= 2);
        }
    if (!text) stop(EXIT_ENVIRONMENT, "out of memory");
    if (ferror(stdin)) stop_file("stdin", strerror(errno));
    return text;
}

static char *need_copy(const char *text, size_t *bytes) {
    char *copy = strdup(text);
    if (!copy) stop(EXIT_ENVIRONMENT, "out of memory");
    *bytes = strlen(text);
    return copy;
}

static int run_tokenize(struct run *r) {
    struct tokenizer_ids ids = {0};
    size_t bytes;
    open_tokenizer(r);
    char *text = r->args.prompt ? need_copy(r->args.prompt, &bytes) : read_stdin(&bytes);
    encode_raw(r, text, bytes, &ids);
    json_t *list = json_array();
    for (size_t i = 0; i < ids.n; i++) json_array_append_new(list, json_integer(ids.ids[i]));
    char *json = json_dumps(list, 0);
    if (!json) stop(EXIT_ENVIRONMENT, "out of memory");
    write_out(json, strlen(json));
    write_out("\n", 1);
    free(json);
    json_decref(list);
    tokenizer_ids_free(&ids);
    free(text);
    return 0;
}

static const char *element_text(const struct run *r, const json_t *item, size_t *bytes) {
    json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
    return id >= 0 && id <= INT32_MAX ? tokenizer_text(r->tokenizer, (int32_t)id, bytes) : NULL;
}

/* Text that encoding made the array's first token of gets a blank in front there, which goes here. */
static size_t element_prefix(const struct run *r, const json_t *list, size_t i) {
    bool after_bos = i == 1 && json_integer_value(json_array_get(list, 0)) == tokenizer_facts(r->tokenizer)->bos;
    return i == 0 || after_bos ? tokenizer_prefix(r->tokenizer, (int32_t)json_integer_value(json_array_get(list, i))) : 0;
}

/* Control tokens are shown here: whoever gives ids wants to see them all. Checked before anything
 * is written. */
static int run_detokenize(struct run *r) {
    json_error_t error;
    json_t *list = json_loadf(stdin, 0, &error), *item;
    size_t i, bytes = 0;
    open_tokenizer(r);
    if (!json_is_array(list))
        stop(EXIT_BAD_INPUT, list ? "stdin holds JSON, but no array of ids" : error.text);
    json_array_foreach(list, i, item) {
        if (element_text(r, item, &bytes)) continue;
        fprintf(stderr,
                "error: element %zu of the array is not an id of the vocabulary (0 to %u)\n", i,
                r->info->n_vocab - 1);
        exit(EXIT_BAD_INPUT);
    }
    json_array_foreach(list, i, item) {
        const char *text = element_text(r, item, &bytes);
        size_t skip = element_prefix(r, list, i);
        args_check_output(fwrite(text + skip, 1, bytes - skip, stdout) == bytes - skip);
    }
    args_check_output(fflush(stdout) == 0);
    json_decref(list);
    return 0;
}

static void show_check(void *user, const struct jllm_check *check) {
    unsigned *n = user;
    n[check->ok ? 0 : 1]++;
    say(stdout, "%-4s  %s", check->ok ? "ok" : "FAIL", check->name);
    if (check->bound > 0) printf("  error %.2e, bound %.2e", check->error, check->bound);
    putchar('\n');
}

static int run_selftest(struct run *r) {
    struct jllm_error e;
    unsigned n[2] = {0};
    bool ok = jllm_selftest(r->plan, show_check, n, &e);
    printf("selftest: %u checks passed, %u failed\n", n[0], n[1]);
    args_check_output(fflush(stdout) == 0);
    if (!ok) stop_error(&e);
    return 0;
}

int main(int argc, char **argv) {
    static int (*const modes[])(struct run *) = {
        [ARGS_GENERATE] = run_generate, [ARGS_LOGITS] = run_logits, [ARGS_TOKENIZE] = run_tokenize,
        [ARGS_DETOKENIZE] = run_detokenize, [ARGS_SELFTEST] = run_selftest,
    };
    struct run r = {.start = measure_seconds()};
    args_start();
    args_parse(&r.args, argc, argv);
    open_plan(&r);
    int code = modes[r.args.mode](&r);
    tokenizer_ids_free(&r.prompt);
    sampler_free(r.sampler);
    tokenizer_close(r.tokenizer);
    jllm_session_free(r.session);
    jllm_close(r.plan);
    args_free(&r.args);
    return code;
}
