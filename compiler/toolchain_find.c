/* Which toolchain a spec's device takes; the one place that knows all of them. */
#include <string.h>

#include "cc.h"
#include "nvrtc.h"

bool toolchain_find(struct toolchain *t, const struct spec *s, const char *nvrtc, struct arena *a, struct diag *d) {
    if (strcmp(spec_get(s, "target.device")->string, "cuda")) return cc_find(t, s, a, d);
    return nvrtc_find(t, s, nvrtc, a, d);
}
