/* The search for parameters: what is tried, in which order, and what is chosen.
 *
 * Guarantees: a candidate counts only when its output is right; its time is that of runs in turn with the launch as the spec
 * chooses it, so results of different moments compare. Choices follow from results alone: with the same results a search that was
 * stopped anywhere and goes on ends in the same. A choice that differs is at least TUNE_MARGIN faster, twice measured.
 */
#ifndef TUNE_SEARCH_H
#define TUNE_SEARCH_H

#include "progress.h"
#include "tune_bench.h"
#include "tuned.h"

enum tune_search { TUNE_FAST, TUNE_FULL, TUNE_MIXED };
extern const char *const tune_search_names[TUNE_MIXED + 1];
#define TUNE_MARGIN 0.01

/* --sweep matmul.places=[3|4] */
struct tune_sweep { const char *template_name, *param; int64_t *values; unsigned n_values; };

struct tune_memo { struct hash128 identity; const char *status; unsigned rounds; double us, base_us; };

/* What a setting comes to. */
struct tune_known { const int64_t *values; struct hash128 identity; bool allowed; };

/* What is known of a unit. */
struct tune_result {
    int64_t *best;                    /* [n_params] */
    double us, base_us;               /* of best, and of what the spec chooses; 0: nothing was timed */
    unsigned n_tried, n_wrong;
    bool reused;                      /* from rows of an earlier tune */
    struct tune_memo *memo; unsigned n_memo, room_memo;
    struct tune_known *known; unsigned n_known, room_known;   /* by hash of the values; room is a power of two */
    size_t n_first[2];                /* candidates of a first round, [shape]; 0 from where that stage begins */
    bool *idle;                       /* [n_params]: parameters that make no difference; NULL: not asked yet */
};

struct tuner {
    struct tune_units all;
    struct toolchain toolchain;
    struct bench bench;
    enum tune_search search;
    const struct tune_sweep *sweeps; unsigned n_sweeps;
    const char *search_text;          /* of choices: "mixed", "sweep matmul.tokens=[1|2]" */
    const char *target, *device, *compiler;
    int fd;                           /* rows are appended to; -1: nowhere */
    struct tuned_row *log; unsigned n_log;         /* rows that hold */
    struct tuned_row *choices; unsigned n_choices, room_choices;   /* all of the file, oldest first, with those of this search */
    const struct tuned_row *replay; unsigned n_replay;   /* times come from here, when `replays` */
    bool replays;
    double deadline;                  /* base_seconds; 0: none */
    bool cut;                         /* the deadline has passed */
    bool confirming;                  /* which does not matter while this is set */
    double start;
    struct progress progress;
    size_t n_done, n_planned, n_later;   /* candidates; later: of groups whose search has not begun, about */
    struct tune_result *results;      /* [n_units] */
    struct arena *a;
    struct diag *d;
};

/* False: diagnostics; no such template, parameter or value. Text is copied. */
bool tune_sweep_parse(struct tune_sweep *s, const char *text, const struct program *p, struct arena *a, struct diag *d);
/* The sweep of a parameter, or (param NULL) of any of the template's. NULL: there is none. */
const struct tune_sweep *tune_sweep_find(const struct tuner *t, const char *template_name, const char *param);

/* A choice of the file, in the order of its rows. */
void tuner_keep_choice(struct tuner *t, const struct tuned_row *r);
/* Take up t->all, t->toolchain, options and log, which are set; opens the device. */
bool tuner_begin(struct tuner *t);
void tuner_end(struct tuner *t);
/* Search the parameters of a group: those that fix the order of sums over all of its units, then the others of each unit for
 * which chosen[unit] (NULL: all). With `only` (index; or UINT32_MAX) settings of the former that leave that unit as it is are
 * not tried. Results are in t->results, choices are appended as rows. False: diagnostics. */
bool tuner_group(struct tuner *t, unsigned group, const bool *chosen, uint32_t only);
/* Candidates of a first round, besides what the spec chooses; *n_illegal: settings that the contract refuses. */
unsigned tuner_count(struct tuner *t, uint32_t unit, unsigned *n_illegal);
/* Whether what was found for a unit is another kernel or launch than what the spec chooses. */
bool tuner_changed(struct tuner *t, uint32_t unit);
/* These values of a unit, and what fixes the order of sums for its group, as rows; at most 2. */
unsigned tuner_choices(const struct tuner *t, uint32_t unit, const int64_t *values, struct tuned_row *out);
/* The spec without tuned choices, with entries that give units values[n_units] (NULL: as they are), nearer than all that it says
 * itself; `place` is what reasons call them. */
void tuner_spec(const struct tuner *t, int64_t *const *values, const char *place, struct spec *s);

#endif
