#include "unfinished.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static const int numbers[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers };
static struct sigaction before[N_NUMBERS];
static const char *volatile unfinished;

/* Without a handler (SA_RESETHAND) the signal, raised again, ends the program as if there had never been one. */
static void on_end(int number) {
    unfinished_drop();
    raise(number);
}

void unfinished_drop(void) {
    if (unfinished) unlink(unfinished);
}

void unfinished_begin(const char *path) {
    struct sigaction action = {.sa_handler = on_end, .sa_flags = (int)SA_RESETHAND};
    unfinished = path;
    for (int i = 0; i < N_NUMBERS; i++) {
        sigaction(numbers[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN) sigaction(numbers[i], &action, NULL);     /* nohup's stay ignored */
    }
}

void unfinished_end(void) {
    if (!unfinished) return;
    for (int i = 0; i < N_NUMBERS; i++) sigaction(numbers[i], &before[i], NULL);
    unfinished = NULL;
}
