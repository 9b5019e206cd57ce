/* `jllmc pack`: a plan without the tails that a retune has left behind. */
#ifndef PACK_H
#define PACK_H

#include "../runtime/device.h"
#include "emit.h"

/* Write the plan anew, with the tail in use alone, and put it in the place of the old one, which processes that have it open keep.
 * A message says how many bytes that saved. 0 or the exit code; diagnostics. */
int pack_plan(const char *path, struct arena *a, struct diag *d);

/* Is fd still what v and the name stand for? A file that was replaced meanwhile is another plan. False: diagnostics. */
bool pack_check(int fd, const struct plan_view *v, const char *path, struct diag *d);
/* Append a tail to the plan that v is the view of, and put it to use: written, synced, and then the slot that is not in use.
 * Stopped at any moment, the plan is as it was. fd is open for writing. False with errno set. */
bool pack_append(int fd, const struct plan_view *v, const struct buffer *tail);
/* Put the tail of v to use again, instead of one appended behind it; that stays in the file until it is packed, as somebody may
 * have it open. False with errno set. */
bool pack_revert(int fd, const struct plan_view *v);
/* Open a plan for changing: for writing, and no other jllmc does so. -1: diagnostics. */
int pack_lock(const char *path, struct diag *d);

#endif
