/* plan_check and what follows it, for libFuzzer: `ninja fuzz` builds out/fuzz_plan, and `test_plan FILE` writes a plan to
 * begin with. Hashes are made good again, so that mutations reach what lies behind them. Code of such a plan never runs. */
#include "plan_builder.h"
#include "../runtime/device.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct plan_view v;
    struct jllm_error e;
    uint8_t *copy = malloc(bytes ? bytes : 1);
    assert(copy);
    memcpy(copy, data, bytes);
    if (bytes >= PLAN_HEADER_BYTES) plan_rehash(copy, bytes);
    if (plan_check(&v, copy, bytes, &e)) plan_verify_weights(&v, &e);
    free(copy);
    return 0;
}
