/* The format is that of tools/perf/Documentation/jit-interface.txt in Linux. The folder is everybody's and the name can be
 * guessed: the file is always a new one, never a link nor what somebody else has left there. */
#include "perf_map.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "utf8.h"

static bool fail(struct jllm_error *e, const char *path) {
    e->code = JLLM_ENVIRONMENT;
    snprintf(e->text, sizeof e->text, "%s: %s", path, strerror(errno));
    return false;
}

static FILE *file_new(const char *path) {
    if (unlink(path) && errno != ENOENT) return NULL;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f && fd >= 0) close(fd);
    return f;
}

static void write_line(FILE *f, const struct jllm_kernel *kernel) {
    char name[256];
    snprintf(name, sizeof name, "%s", kernel->name);
    for (char *p = name; (p = strchr(p, '\n'));) *p = '?';
    utf8_disarm(name, strlen(name));
    fprintf(f, "%" PRIxPTR " %zx %s\n", (uintptr_t)kernel->address, kernel->bytes, name);
}

bool perf_map_write(const struct jllm_plan *plan, struct jllm_error *e) {
    struct jllm_kernel kernel;
    char path[64];
    if (!jllm_plan_kernel(plan, 0, &kernel)) {
        *e = (struct jllm_error){JLLM_BAD_USE, "--perf-map is for CPU plans: perf does not see what a GPU runs"};
        return false;
    }
    snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
    FILE *f = file_new(path);
    if (!f) return fail(e, path);
    for (size_t i = 0; jllm_plan_kernel(plan, i, &kernel); i++) write_line(f, &kernel);
    bool written = !fflush(f) && !ferror(f);
    if (!fclose(f) && written) return true;
    fail(e, path);
    unlink(path);
    return false;
}
