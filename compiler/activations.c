/* Says what selftest.c has measured of 8-bit activations, and refuses them where they would not do. */
#include "activations.h"

#include <math.h>
#include <string.h>

#include "cost.h"

static const double cosine_min = 0.99;

static bool same_kind(const struct gguf_tensor *a, const struct gguf_tensor *b) {
    return a->type == b->type && tensor_rows(a) == tensor_rows(b) && tensor_cols(a) == tensor_cols(b);
}

/* The kind of matrix i, unless an earlier one stands for it: the mean errors, and the matrix that is worst. */
static void print_kind(const struct selftest *t, unsigned i, FILE *out) {
    const struct gguf_tensor *w = t->q8[i].w;
    const struct selftest_q8 *worst = &t->q8[i];
    struct reference_q8_error mean = {0};
    unsigned n = 0;
    for (unsigned j = 0; j < t->n_q8; j++) {
        if (!same_kind(w, t->q8[j].w)) continue;
        if (j < i) return;
        const struct reference_q8_error *e = &t->q8[j].error;
        mean.own += e->own, mean.seeded += e->seeded, mean.outlier += e->outlier;
        if (e->own > worst->error.own) worst = &t->q8[j];
        n++;
    }
    fprintf(out, "8-bit activations: %u of %s %llux%llu: error %.2f %% (worst %.2f %%: %s); seeded %.2f %%, with an outlier %.2f %%\n", n,
            quant_find(w->type)->name, (unsigned long long)tensor_rows(w), (unsigned long long)tensor_cols(w), 100 * mean.own / n,
            100 * worst->error.own, worst->w->name, 100 * mean.seeded / n, 100 * mean.outlier / n);
}

bool activations_report(const struct selftest *t, FILE *out, struct diag *d) {
    bool ok = true;
    for (unsigned i = 0; i < t->n_q8; i++) {
        const struct gguf_tensor *w = t->q8[i].w;
        double cosine = t->q8[i].error.cosine;
        if (out) print_kind(t, i, out);
        if (cosine >= cosine_min) continue;
        diag_error(d, "activations", w->name,
                   "8-bit activations leave its product a cosine of %.4f from the exact one, less than %.2f: shape \"matmul\" "
                   "{ quant = \"%s\", m = %llu, k = %llu, activations = \"exact\" } leaves such matrices out",
                   cosine, cosine_min, quant_find(w->type)->name, (unsigned long long)tensor_rows(w), (unsigned long long)tensor_cols(w));
        ok = false;
    }
    if (ok && out && t->n_q8)
        fprintf(out, "8-bit activations: errors of many layers add up, so ask this model something before you keep the plan; %s\n", cost_q8_note);
    return ok;
}
