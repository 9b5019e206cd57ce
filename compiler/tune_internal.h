/* What the files of the search share: tune_try.c knows settings of one unit, tune_rounds.c walks through a stage's, tune_search.c
 * through stages and groups.
 */
#ifndef TUNE_INTERNAL_H
#define TUNE_INTERNAL_H

#include "tune_search.h"

enum { TUNE_ROUNDS = 7, TUNE_ROUNDS_CONFIRM = 21, STAGE_AXES_MAX = CONTRACT_PARAMS_MAX };   /* pairs of runs */

/* --- rows (tune_try.c) ----------------------------------------------------------------------------- */

struct tuned_row tune_row(const struct tuner *t, const struct tune_unit *u, const int64_t *values, enum tune_which which);
bool tune_same_launches(const struct tuned_row *a, const struct tuned_row *b);
/* The last candidate with the launches, parameters and rounds of `like`; of any machine, or of its own. NULL: there is none. */
const struct tuned_row *tune_find_tried(const struct tuned_row *rows, unsigned n, const struct tuned_row *like, bool any_machine);
/* The last choice for the launches of `like` that was made on its machine; NULL: there is none. */
const struct tuned_row *tune_find_choice(const struct tuner *t, const struct tuned_row *like);
/* False: diagnostics. */
bool tune_append(struct tuner *t, const struct tuned_row *r);

/* The values that a row sets, into values[n_params]. */
void tune_take_row(const struct tuned_row *r, const struct contract_template *t, int64_t *values);
bool tune_has_params(const struct contract_template *t, bool shape);

/* --- settings of a unit (tune_try.c) ---------------------------------------------------------------- */

struct tune_todo { const int64_t *values; struct hash128 identity; };   /* a setting that has to run */
bool tune_is_listed(const struct tune_todo *todo, unsigned n, struct hash128 identity);

void tune_add_memo(struct tuner *t, struct tune_result *r, struct tune_memo m);
/* Of the first thing that was timed; 0: nothing was. */
double tune_base_us(const struct tune_result *r);
bool tune_is_over(struct tuner *t);   /* time is up, or a user stops it */
bool tune_base_is_good(struct tuner *t, const struct tune_unit *u, const struct tune_candidate *base);   /* false: diagnostics */
/* identity[n], allowed[n] of settings[n]; unfinished when base_interrupted. */
void tune_identify(struct tuner *t, const struct tune_unit *u, int64_t *const *settings, unsigned n, struct hash128 *identity, bool *allowed);
struct hash128 tune_identity(struct tuner *t, const struct tune_unit *u, int64_t *values);   /* zeros: the contract refuses it */
/* Which parameters of a unit make no difference: "from 16 tokens on" none does to one token. */
const bool *tune_idle(struct tuner *t, const struct tune_unit *u);
/* What is known of a setting, from this search or from rows; NULL: nothing. */
const struct tune_memo *tune_recall(struct tuner *t, const struct tune_unit *u, const int64_t *values, struct hash128 identity, unsigned rounds);
/* ratio[i]: time of settings[i] by that of what the spec chooses; infinite when it cannot be chosen, or time is up. */
bool tune_try(struct tuner *t, const struct tune_unit *u, int64_t *const *settings, unsigned n, unsigned rounds, double *ratio);

/* --- a stage: some parameters of some units (tune_rounds.c) ------------------------------------------ */

struct axis { unsigned param; const int64_t *values; unsigned n; };

struct stage {
    struct tuner *t;
    const struct contract_template *template;
    const uint32_t *units; unsigned n_units;
    uint32_t only;                /* see tuner_group */
    struct axis axes[STAGE_AXES_MAX]; unsigned n_axes;
    int64_t *now;                 /* the setting that holds, and its score */
    double score;
    int64_t *start;               /* what held before the search, and its score */
    double start_score;
    bool active;                  /* a further round may find something */
    struct arena a;               /* of the round: */
    int64_t **trials; unsigned n_trials;
    double *scores;               /* [n_trials] */
};

int64_t *stage_copy(const struct stage *s, const int64_t *values, struct arena *a);
/* Whether a parameter is looked for at all. */
bool stage_is_open(const struct tuner *t, const struct contract_template *template, unsigned param, bool shape);
void stage_add_axis(struct stage *s, unsigned param);
size_t stage_product(const struct stage *s);   /* combinations of the axes */
/* Scores: of all units together, weighted by what they take in a use of the model. */
bool stage_score(struct stage *s, int64_t *const *settings, unsigned n, unsigned rounds, double *scores, struct arena *a);
/* Rounds of stages[n], in step, until none finds anything. */
bool stage_walk(struct stage *stages, unsigned n);
/* Measure once more and longer what was found: of many the best one was also the luckiest. Time that is up does not forbid it. */
bool stage_confirm(struct stage *s);

#endif
