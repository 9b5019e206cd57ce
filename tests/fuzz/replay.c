/* Runs a fuzz target over files without libFuzzer, so that any compiler can: replay FILE...
 *
 * Each input must be done within UNIT_MAX_SECONDS of CPU time and leave the process below MEMORY_MAX_KIB, under
 * sanitizers. Prints the input at hand before it runs, so that the last line names the one which ended the process, and at
 * the end how many inputs there were. Exit 0: all of them are well.
 */
#include "fuzz.h"

#include <errno.h>
#include <sys/resource.h>
#include <time.h>

enum { MEMORY_MAX_KIB = 512 << 10 };
#define UNIT_MAX_SECONDS 2.0

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint8_t *read_file(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rb");
    uint8_t *data = NULL;
    if (!f || fseek(f, 0, SEEK_END) || ftell(f) < 0) {
        fprintf(stderr, "error: cannot read %s: %s\n", path, strerror(errno));
        exit(3);
    }
    *bytes = (size_t)ftell(f);
    rewind(f);
    data = malloc(*bytes ? *bytes : 1);
    if (!data || fread(data, 1, *bytes, f) != *bytes) exit(3);
    fclose(f);
    return data;
}

/* False: too slow or too large. */
static bool replay(const char *path, double *slowest) {
    size_t bytes;
    struct rusage usage;
    uint8_t *data = read_file(path, &bytes);
    printf("%s (%zu bytes): ", path, bytes);
    fflush(stdout);
    double start = cpu_seconds();
    LLVMFuzzerTestOneInput(data, bytes);
    double seconds = cpu_seconds() - start;
    free(data);
    puts(fuzz_accepted ? "accepted" : "refused");
    getrusage(RUSAGE_SELF, &usage);
    if (seconds > *slowest) *slowest = seconds;
    if (seconds > UNIT_MAX_SECONDS) printf("error: it took %.1f s, more than %.1f\n", seconds, UNIT_MAX_SECONDS);
    if (usage.ru_maxrss > MEMORY_MAX_KIB)
        printf("error: %ld MiB were in use, more than %d\n", usage.ru_maxrss >> 10, MEMORY_MAX_KIB >> 10);
    return seconds <= UNIT_MAX_SECONDS && usage.ru_maxrss <= MEMORY_MAX_KIB;
}

int main(int argc, char **argv) {
    double slowest = 0;
    for (int i = 1; i < argc; i++)
        if (!replay(argv[i], &slowest)) return 1;
    printf("%d inputs, the slowest took %.3f s\n", argc - 1, slowest);
    return 0;
}
