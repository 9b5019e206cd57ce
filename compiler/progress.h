/* One status line on stderr, overwritten on a terminal, a line a step elsewhere: `[12/47] jk_matmul_q4_1_m576_k576_n8`. */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "base.h"

struct progress { size_t done, total; bool terminal; };
void progress_begin(struct progress *p, size_t total);
void progress_step(struct progress *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void progress_end(struct progress *p);
extern bool progress_quiet;   /* no lines at all */

#endif
