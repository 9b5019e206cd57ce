#include "progress.h"

#include <unistd.h>

bool progress_quiet;

void progress_begin(struct progress *p, size_t total) {
    *p = (struct progress){0, total, isatty(2) != 0};
}

void progress_step(struct progress *p, const char *format, ...) {
    p->done++;
    if (progress_quiet) return;
    char text[160];
    va_list v;
    va_start(v, format);
    vsnprintf(text, sizeof text, format, v);
    va_end(v);
    fprintf(stderr, p->terminal ? "\r\033[K[%zu/%zu] %.70s" : "[%zu/%zu] %s\n", p->done, p->total, text);
}

void progress_end(struct progress *p) {
    if (!progress_quiet && p->terminal && p->done) fputs("\r\033[K", stderr);
}
