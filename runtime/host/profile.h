/* Measures phases launch by launch, for a file (docs/profile.md has the format; it appears when it is whole, or not at all), for
 * a table, or for both. */
#ifndef PROFILE_H
#define PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "../jllm.h"

struct profile;

/* What the machine gives at most, as measured or as its driver says; 0: unknown. */
struct profile_machine { double gbps, gflops; };

/* Begin a profile of the plan, which is not path itself; `repetitions` is that of every time. What was made of a file by that
 * name stays until profile_close. path NULL: no file. NULL: *e. */
struct profile *profile_open(const char *path, const char *program, struct jllm_plan *plan, const char *plan_path, size_t repetitions,
                             const struct profile_machine *machine, struct jllm_error *e);

/* From now on every phase goes to `table` as well: where its time goes, op by op, the slowest first. */
void profile_table(struct profile *p, FILE *table);

/* Measure a phase (an index in the plan) at the session's position, which has room for its tokens. The sequence stays. */
bool profile_phase(struct profile *p, struct jllm_session *s, uint32_t phase, struct jllm_error *e);

/* keep: finish the file, else leave nothing. p NULL is fine. False: *e. */
bool profile_close(struct profile *p, bool keep, struct jllm_error *e);

#endif
