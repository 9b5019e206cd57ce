/* Jobs in child processes; see workers.h. A child takes the next job from a counter that all share, and writes its result to a pipe
 * of its own, with index and length before it.
 */
#include "workers.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct frame { uint64_t index, bytes; };

struct child {
    pid_t pid;
    int fd;                  /* its results; -1: it has ended */
    struct buffer read;      /* up to one unfinished frame */
    struct frame expects;    /* that frame's head, once it is known */
};

/* Seen by all processes. at[c]: 1 + the job that child c is at; 0: at none. */
struct shared { atomic_size_t next; atomic_size_t at[]; };

static bool is_over(const struct workers *w) { return base_interrupted || *w->stop; }

static _Noreturn void child_main(const struct workers *w, struct shared *s, size_t c, size_t n, int fd, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    bool ok = getppid() == parent;      /* it may have died before that was set */
    for (size_t i; ok && !base_interrupted && (i = atomic_fetch_add(&s->next, 1)) < n;) {
        struct buffer result = {0};
        atomic_store(&s->at[c], i + 1);
        w->work(w->user, i, &result);
        struct frame head = {i, result.bytes};
        atomic_store(&s->at[c], 0);
        ok = file_put(fd, &head, sizeof head) && file_put(fd, result.data, result.bytes);
        buffer_free(&result);
    }
    _exit(0);
}

static bool child_start(struct child *child, const struct workers *w, struct shared *s, size_t c, size_t n) {
    int ends[2];
    pid_t parent = getpid();
    if (pipe(ends)) return false;
    child->pid = fork();
    if (!child->pid) child_main(w, s, c, n, ends[1], parent);
    close(ends[1]);
    child->fd = child->pid > 0 ? ends[0] : -1;
    if (child->pid < 0) close(ends[0]);
    return child->pid > 0;
}

/* Whole frames of what was read; how many. */
static size_t take_frames(const struct workers *w, struct child *c) {
    size_t at = 0, n = 0;
    for (; !is_over(w); n++) {
        struct frame head;
        if (c->read.bytes - at < sizeof head) break;
        memcpy(&head, c->read.data + at, sizeof head);
        if (c->read.bytes - at - sizeof head < head.bytes) break;
        w->take(w->user, (size_t)head.index, c->read.data + at + sizeof head, (size_t)head.bytes);
        at += sizeof head + (size_t)head.bytes;
    }
    if (at) memmove(c->read.data, c->read.data + at, c->read.bytes - at);
    c->read.bytes -= at;
    return n;
}

/* The child has closed its pipe: it is done, or dead. True: it took a job with it. */
static bool child_end(const struct workers *w, struct child *c, size_t at) {
    int status = 0;
    char how[64];
    close(c->fd);
    c->fd = -1;
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR) {}
    buffer_free(&c->read);
    if (!at || is_over(w)) return false;
    if (WIFSIGNALED(status)) snprintf(how, sizeof how, "signal %d", WTERMSIG(status));
    else snprintf(how, sizeof how, "exit status %d", WEXITSTATUS(status));
    w->lost(w->user, at - 1, how);
    return true;
}

static size_t child_read(const struct workers *w, struct child *c, size_t at) {
    static char part[1 << 16];
    ssize_t n = read(c->fd, part, sizeof part);
    if (n < 0 && errno == EINTR) return 0;
    if (n <= 0) return child_end(w, c, at);
    buffer_append(&c->read, part, (size_t)n);
    return take_frames(w, c);
}

/* How many jobs were taken or lost. A child that died of one is replaced. */
static size_t collect(const struct workers *w, struct child *children, size_t n_children, struct shared *s, size_t n) {
    struct pollfd *polled = calloc(n_children, sizeof *polled);
    size_t n_done = 0, n_open = n_children;
    if (!polled) base_fail("out of memory");
    while (n_open && !is_over(w)) {
        for (size_t c = 0; c < n_children; c++) polled[c] = (struct pollfd){.fd = children[c].fd, .events = POLLIN};
        if (poll(polled, n_children, -1) < 0) continue;
        for (size_t c = 0; c < n_children; c++)
            if (children[c].fd >= 0 && polled[c].revents) {
                size_t at = atomic_load(&s->at[c]);
                n_done += child_read(w, &children[c], at);
                if (children[c].fd >= 0) continue;
                atomic_store(&s->at[c], 0);
                n_open -= !at || is_over(w) || !child_start(&children[c], w, s, c, n);
            }
    }
    free(polled);
    return n_done;
}

bool workers_run(const struct workers *w, size_t n, struct diag *d) {
    size_t wanted = (size_t)base_cores(), n_children = 0, n_done = 0;
    if (wanted > n) wanted = n;
    if (!n) return true;
    size_t bytes = sizeof(struct shared) + wanted * sizeof(atomic_size_t);
    struct shared *s = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct child *children = calloc(wanted, sizeof *children);
    if (s == MAP_FAILED || !children) base_fail("out of memory");
    fflush(NULL);            /* a child must not write what waits in a buffer here */
    while (n_children < wanted && child_start(&children[n_children], w, s, n_children, n)) n_children++;
    if (!n_children) diag_error(d, "process", NULL, "cannot start a process: %s", strerror(errno));
    n_done = collect(w, children, n_children, s, n);
    for (size_t c = 0; c < n_children; c++)
        if (children[c].fd >= 0) {
            kill(children[c].pid, SIGKILL);
            child_end(w, &children[c], 0);
        }
    bool ok = n_children && (n_done == n || is_over(w));
    if (n_children && !ok) diag_error(d, "process", NULL, "processes died, and %zu jobs were not done", n - n_done);
    free(children);
    munmap(s, bytes);
    return ok;
}
