/* An NVRTC that compiles nothing: the "cubin" of a kernel is its source (image.h), and every kernel takes 32 registers. With
 * it jllmc makes CUDA plans on machines without CUDA, for the emulator to run. It says that it is 12.6, which the drivers
 * of all specs load.
 */
#include "image.h"

#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API(name, ...)                                                    \
    __attribute__((visibility("default"))) int nvrtc##name(__VA_ARGS__);  \
    int nvrtc##name(__VA_ARGS__)

enum { OK = 0, INVALID = 3, FAILED = 6, EM_NVIDIA_CUDA = 190, ABI = 7 };

static const int archs[] = {80, 86, 87, 89, 90};
/* Not a version of NVIDIA's: images of both may meet in one cache. */
static const char ptx[] = "// Cuda compilation tools, release 12.6, V12.6.0-sources\n";

struct program { char *source, name[400], log[700]; };

API(Version, int *major, int *minor) { return *major = 12, *minor = 6, OK; }
API(GetNumSupportedArchs, int *n) { return *n = sizeof archs / sizeof *archs, OK; }
API(GetSupportedArchs, int *to) { return memcpy(to, archs, sizeof archs), OK; }

API(CreateProgram, struct program **p, const char *source, const char *name, int n_headers, const char *const *headers,
    const char *const *header_names) {
    (void)name, (void)headers, (void)header_names;
    if (n_headers || !(*p = calloc(1, sizeof **p)) || !((*p)->source = strdup(source))) return INVALID;
    return OK;
}

API(DestroyProgram, struct program **p) {
    free((*p)->source);
    free(*p);
    return OK;
}

/* The kernel's name is defined first thing; the program that jllmc tries NVRTC with has none. */
API(CompileProgram, struct program *p, int n_options, const char *const *options) {
    static const char define[] = "#define JT_NAME ";
    (void)options;
    const char *at = strstr(p->source, define);
    if (n_options < 1) return INVALID;
    if (!at) return OK;
    at += strlen(define);
    snprintf(p->name, sizeof p->name, "%.*s", (int)strcspn(at, "\n"), at);
    snprintf(p->log, sizeof p->log, "ptxas info    : Compiling entry function '%s' for 'sm'\n"
             "ptxas info    : Used 32 registers, used 1 barriers\n", p->name);
    return OK;
}

API(GetProgramLogSize, struct program *p, size_t *bytes) { return *bytes = strlen(p->log) + 1, OK; }
API(GetProgramLog, struct program *p, char *log) { return strcpy(log, p->log), OK; }
API(GetPTXSize, struct program *p, size_t *bytes) { return (void)p, *bytes = sizeof ptx, OK; }
API(GetPTX, struct program *p, char *to) { return (void)p, memcpy(to, ptx, sizeof ptx), OK; }

API(GetCUBINSize, struct program *p, size_t *bytes) {
    *bytes = SIMT_IMAGE_ELF_BYTES + SIMT_IMAGE_HEAD_BYTES + strlen(p->source) + 1;
    return p->name[0] ? OK : FAILED;
}

API(GetCUBIN, struct program *p, char *to) {
    Elf64_Ehdr elf = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT, 51, ABI},
                      .e_type = ET_EXEC, .e_machine = EM_NVIDIA_CUDA, .e_version = EV_CURRENT};
    _Static_assert(sizeof elf == SIMT_IMAGE_ELF_BYTES, "image.h");
    uint64_t hash = 0xcbf29ce484222325u;        /* FNV-1a */
    for (const char *c = p->source; *c; c++) hash = (hash ^ (uint8_t)*c) * 0x100000001b3u;
    memcpy(to, &elf, sizeof elf);
    to += sizeof elf;
    int n = snprintf(to, SIMT_IMAGE_HEAD_BYTES + 1, SIMT_IMAGE_HEAD, (unsigned long long)hash,
                     (unsigned long long)strlen(p->source));
    if (n != SIMT_IMAGE_HEAD_BYTES) return FAILED;
    strcpy(to + n, p->source);
    return OK;
}
