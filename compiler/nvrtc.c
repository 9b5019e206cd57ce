/* CUDA kernels by NVRTC: specialised source -> cubin. Registers, local and static shared memory come from ptxas's own
 * report in the log, which is the same in NVRTC 12 and 13.
 *
 * Guarantees: the library is no newer than the CUDA that the target's driver knows, knows the target's architecture, and
 * every cubin has the ABI version that such a driver loads. Include paths do not exist: templates stand alone.
 */
#include "nvrtc.h"

#include <assert.h>
#include <dlfcn.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Bumped when what is made of NVRTC's output changes. */
#define NVRTC_IMAGE_VERSION "cubin-1"

/* Everything that is called. X(name without "nvrtc", parameters); each gives 0 for success. */
#define NVRTC_SYMBOLS(X)                                                                                     \
    X(Version, (int *major, int *minor))                                                                     \
    X(GetNumSupportedArchs, (int *n))                                                                        \
    X(GetSupportedArchs, (int *archs))                                                                       \
    X(CreateProgram, (nvrtc_program *p, const char *source, const char *name, int n_headers,                 \
                      const char *const *headers, const char *const *header_names))                          \
    X(DestroyProgram, (nvrtc_program *p))                                                                    \
    X(CompileProgram, (nvrtc_program p, int n_options, const char *const *options))                          \
    X(GetProgramLogSize, (nvrtc_program p, size_t *bytes))                                                   \
    X(GetProgramLog, (nvrtc_program p, char *log))                                                           \
    X(GetPTXSize, (nvrtc_program p, size_t *bytes))                                                          \
    X(GetPTX, (nvrtc_program p, char *ptx))                                                                  \
    X(GetCUBINSize, (nvrtc_program p, size_t *bytes))                                                        \
    X(GetCUBIN, (nvrtc_program p, char *cubin))

typedef struct nvrtc_program_opaque *nvrtc_program;
enum { ARCHS_MAX = 256, OPTIONS_MAX = 8, EM_NVIDIA_CUDA = 190 };

struct nvrtc {
    const char *path;
    void *library;
#define X(name, parameters) int (*name) parameters;
    NVRTC_SYMBOLS(X)
#undef X
    int version;                 /* 12060 */
    unsigned cubin_abi;
    const char *options[OPTIONS_MAX]; unsigned n_options;
};

/* --- finding --------------------------------------------------------------------------------------- */

static const char *const library_names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
/* Where a library lies in what --nvrtc may name: its own folder, a toolkit, wheels of CUDA 12 and of CUDA 13. */
static const char *const inner_folders[] = {"", "/lib64", "/lib", "/nvidia/cuda_nvrtc/lib", "/nvidia/cu13/lib"};
#define TOOLKIT_FOLDER "/usr/local/cuda/lib64"

struct candidates { const char *path[16]; unsigned n; };

static bool is_mode(const char *path, mode_t type) {
    struct stat st;
    return !stat(path, &st) && (st.st_mode & S_IFMT) == type;
}

static void add_folder(struct candidates *c, const char *folder, struct arena *a) {
    for (size_t i = 0; i < COUNT(library_names); i++) {
        const char *path = arena_printf(a, "%s/%s", folder, library_names[i]);
        if (is_mode(path, S_IFREG)) c->path[c->n++] = path;
    }
    assert(c->n <= COUNT(c->path));
}

/* What the user named: nothing else is tried. */
static void add_given(struct candidates *c, const char *given, struct arena *a) {
    if (is_mode(given, S_IFREG)) c->path[c->n++] = strchr(given, '/') ? given : arena_printf(a, "./%s", given);
    for (size_t i = 0; !c->n && i < COUNT(inner_folders); i++)
        add_folder(c, arena_printf(a, "%s%s", given, inner_folders[i]), a);
}

static void add_usual(struct candidates *c, struct arena *a) {
    for (size_t i = 0; i < COUNT(library_names); i++) c->path[c->n++] = library_names[i];
    add_folder(c, TOOLKIT_FOLDER, a);
}

/* A version as drivers count it: 12060 for "12.6"; 0 for "". */
static int cuda_number(const char *s) {
    int major = 0, minor = 0;
    return sscanf(s, "%d.%d", &major, &minor) == 2 ? major * 1000 + minor * 10 : 0;
}

static const char *cuda_text(int version, struct arena *a) {
    return arena_printf(a, "%d.%d", version / 1000, version % 1000 / 10);
}

/* The lines that get an NVRTC that fits. NVIDIA's wheels are usable as unzipped. */
static void note_remedy(int cuda, struct arena *a, struct diag *d) {
    const char *package = cuda >= 13000 ? "nvidia-cuda-nvrtc" : "nvidia-cuda-nvrtc-cu12";
    const char *version = cuda ? cuda_text(cuda, a) : "12";
    diag_note(d, "get one with: python3 -m pip download --no-deps -d nvrtc-%s '%s==%s.*' && python3 -m zipfile -e nvrtc-%s/*.whl nvrtc-%s",
              version, package, version, version, version);
    diag_note(d, "then compile with --nvrtc nvrtc-%s", version);
}

/* NVRTC loads its other half by bare name, and whether the loader then looks beside NVRTC depends on who built it and on
 * who calls. Once it is loaded from there, the name finds it. One that is missing shows in exact_version. */
static void load_builtins(struct nvrtc *n, int major, int minor, struct arena *a) {
    Dl_info info;
    if (!dladdr(*(void **)(void *)&n->Version, &info) || !info.dli_fname) return;
    const char *slash = strrchr(info.dli_fname, '/');
    if (!slash) return;
    n->path = arena_copy(a, info.dli_fname, strlen(info.dli_fname));
    (void)dlopen(arena_printf(a, "%.*s/libnvrtc-builtins.so.%d.%d", (int)(slash - info.dli_fname), info.dli_fname, major, minor),
                 RTLD_NOW | RTLD_LOCAL);
}

/* Load a library and bind what is called. False: *why. */
static bool library_load(struct nvrtc *n, const char *path, const char **why, struct arena *a) {
    *n = (struct nvrtc){.path = path, .library = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    if (!n->library) return *why = arena_printf(a, "%s", dlerror()), false;
    *why = NULL;
#define X(name, parameters)                                      \
    *(void **)(void *)&n->name = dlsym(n->library, "nvrtc" #name); \
    if (!n->name && !*why) *why = arena_printf(a, "%s has no function nvrtc%s", path, #name);
    NVRTC_SYMBOLS(X)
#undef X
    int major = 0, minor = 0;
    if (!*why && n->Version(&major, &minor)) *why = arena_printf(a, "%s does not say its version", path);
    if (*why) return dlclose(n->library), false;
    n->version = major * 1000 + minor * 10;
    load_builtins(n, major, minor, a);
    return true;
}

static void report_newer(const struct nvrtc *n, const struct spec *s, int cuda, struct arena *a, struct diag *d) {
    spec_error(s, d, spec_get(s, "target.cuda")->place, "nvrtc-newer",
               "NVRTC %s (%s) is newer than the CUDA that the target's driver knows, %s: it would not load the kernels",
               cuda_text(n->version, a), n->path, cuda_text(cuda, a));
    note_remedy(cuda, a, d);
}

static void report_missing(const char *given, const char *why, int cuda, struct arena *a, struct diag *d) {
    if (why) diag_error(d, "nvrtc-missing", NULL, "cannot load NVRTC: %s", why);
    else if (given)
        diag_error(d, "nvrtc-missing", NULL, "no NVRTC in '%s': it is neither a library nor a folder with %s, %s or %s", given,
                   library_names[0], library_names[1], library_names[2]);
    else
        diag_error(d, "nvrtc-missing", NULL,
                   "no NVRTC found (looked for %s, %s and %s on the loader's path and in " TOOLKIT_FOLDER
                   "); CUDA kernels are compiled with it", library_names[0], library_names[1], library_names[2]);
    note_remedy(cuda, a, d);
}

/* The first library that is not too new for the target. */
static bool find_library(struct nvrtc *n, const struct spec *s, const char *given, int cuda, struct arena *a, struct diag *d) {
    struct candidates c = {.n = 0};
    if (given) add_given(&c, given, a);
    else add_usual(&c, a);
    struct nvrtc newer = {.version = 0};
    const char *why = NULL, *given_why = NULL;
    for (unsigned i = 0; i < c.n; i++) {
        if (!library_load(n, c.path[i], &why, a)) {
            if (strchr(c.path[i], '/')) given_why = why;   /* a bare name that the loader does not know is no news */
            continue;
        }
        if (!cuda || n->version <= cuda) return true;
        if (!newer.version) newer = *n;
        dlclose(n->library);
    }
    if (newer.version) report_newer(&newer, s, cuda, a, d);
    else report_missing(given, given_why, cuda, a, d);
    return false;
}

/* --- what it is ------------------------------------------------------------------------------------ */

static bool check_arch(const struct nvrtc *n, const struct spec *s, uint32_t sm_arch, int cuda, struct arena *a, struct diag *d) {
    int count = 0, archs[ARCHS_MAX] = {0};
    const char *known = "";
    if (!n->GetNumSupportedArchs(&count) && count <= ARCHS_MAX && !n->GetSupportedArchs(archs))
        for (int i = 0; i < count; i++) {
            if (archs[i] == (int)sm_arch) return true;
            if (archs[i] >= 80) known = arena_printf(a, "%s%ssm_%d", known, *known ? ", " : "", archs[i]);
        }
    spec_error(s, d, spec_get(s, "target.arch")->place, "nvrtc-arch", "NVRTC %s (%s) does not know %s, only %s",
               cuda_text(n->version, a), n->path, spec_get(s, "target.arch")->string, known);
    if (!cuda || cuda > n->version) note_remedy(cuda > n->version ? cuda : 13000, a, d);
    else diag_note(d, "no NVRTC up to the target's CUDA %s does: correct target.arch or target.cuda", cuda_text(cuda, a));
    return false;
}

static char *program_log(const struct nvrtc *n, nvrtc_program p) {
    size_t bytes = 0;
    char *log = n->GetProgramLogSize(p, &bytes) ? NULL : calloc(1, bytes + 1);
    if (log && bytes) (void)n->GetProgramLog(p, log);
    return log;
}

/* Compile an empty kernel: proves that the library's other half (libnvrtc-builtins) is there, and its PTX names the exact
 * version ("Cuda compilation tools, release 12.6, V12.6.85"). NULL: *log, malloc'd or NULL, says why not. */
static const char *exact_version(const struct nvrtc *n, uint32_t sm_arch, char **log, struct arena *a) {
    static const char source[] = "extern \"C\" __global__ void jk_empty() {}\n";
    const char *option = arena_printf(a, "--gpu-architecture=compute_%u", sm_arch), *version = NULL;
    nvrtc_program p = NULL;
    size_t bytes = 0;
    if (n->CreateProgram(&p, source, "jk_empty.cu", 0, NULL, NULL)) return NULL;
    if (n->CompileProgram(p, 1, &option) || n->GetPTXSize(p, &bytes)) *log = program_log(n, p);
    else {
        char *ptx = arena_array(a, bytes + 1, 1);
        char *at = n->GetPTX(p, ptx) ? NULL : strstr(ptx, ", V");
        version = at ? arena_printf(a, "%.*s", (int)strcspn(at + 3, "\r\n \t"), at + 3) : cuda_text(n->version, a);
    }
    (void)n->DestroyProgram(&p);
    return version;
}

/* --- compiling ------------------------------------------------------------------------------------- */

/* The number in front of a phrase of a line; 0 when the phrase is not there. */
static uint64_t number_before(const char *line, const char *phrase) {
    const char *at = strstr(line, phrase);
    if (!at) return 0;
    while (at > line && at[-1] >= '0' && at[-1] <= '9') at--;
    return strtoull(at, NULL, 10);
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* What ptxas says of each function ("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") and of the kernel
 * ("Used 40 registers, used 1 barriers, 256 bytes smem"). A stack frame is local memory whether registers were spilled
 * to it or an array could not live in registers: both count. */
static bool read_report(const char *log, const char *name, uint64_t facts[IMAGE_FACTS], struct arena *a) {
    if (!strstr(log, arena_printf(a, "Compiling entry function '%s'", name))) return false;
    for (const char *p = log; *p; p += strcspn(p, "\n"), p += *p == '\n') {
        const char *line = arena_printf(a, "%.*s", (int)strcspn(p, "\n"), p);
        if (strncmp(line, "ptxas", 5)) continue;
        facts[IMAGE_SPILL_BYTES] += larger(number_before(line, " bytes stack frame"),
                                           larger(number_before(line, " bytes spill stores"), number_before(line, " bytes spill loads")));
        facts[IMAGE_REGISTERS] = larger(facts[IMAGE_REGISTERS], number_before(line, " registers"));
        facts[IMAGE_SHARED_BYTES] = larger(facts[IMAGE_SHARED_BYTES], number_before(line, " bytes smem"));
    }
    return facts[IMAGE_REGISTERS] > 0;
}

/* ELF's ABI version: drivers of CUDA 12 load 7, those of CUDA 13 both. NVRTC 12 writes 8 for what only came with it. */
static unsigned expected_abi(int version, uint32_t sm_arch) {
    return version < 13000 && sm_arch < 100 ? 7 : 8;
}

static const char *check_cubin(const struct image *image, unsigned abi) {
    Elf64_Ehdr h;
    if (image->bytes < sizeof h) return "NVRTC's output is no cubin";
    memcpy(&h, image->data, sizeof h);
    if (memcmp(h.e_ident, ELFMAG, SELFMAG) || h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_machine != EM_NVIDIA_CUDA)
        return "NVRTC's output is no cubin";
    return h.e_ident[EI_ABIVERSION] == abi ? NULL : "its cubin has another ABI version than this NVRTC is known to write";
}

/* The cubin and its facts; false: f->why. */
static bool take_cubin(const struct nvrtc *n, nvrtc_program p, const char *name, struct image *out, struct image_failure *f,
                       struct arena *a) {
    f->why = "NVRTC gives no cubin";
    if (n->GetCUBINSize(p, &out->bytes) || !out->bytes) return false;
    out->data = malloc(out->bytes);
    if (!out->data) base_fail("out of memory");
    if (n->GetCUBIN(p, (char *)out->data) || (f->why = check_cubin(out, n->cubin_abi))) return false;
    char *log = program_log(n, p);
    f->why = log && read_report(log, name, out->facts, a) ? NULL : "NVRTC's report does not name this kernel and its registers";
    free(log);
    return !f->why;
}

static bool nvrtc_compile(const struct toolchain *t, const struct kernel *k, const char *dir, size_t index, struct image *out,
                          struct image_failure *f, struct arena *a) {
    (void)dir, (void)index;
    const struct nvrtc *n = t->own;
    nvrtc_program p = NULL;
    f->why = "NVRTC cannot start";
    if (n->CreateProgram(&p, k->source, k->template->source, 0, NULL, NULL)) return false;
    bool ok = !n->CompileProgram(p, (int)n->n_options, n->options);
    if (ok) ok = take_cubin(n, p, k->name, out, f, a);
    else f->why = NULL, f->log = program_log(n, p);
    (void)n->DestroyProgram(&p);
    return ok;
}

static struct hash128 nvrtc_hash(const struct toolchain *t, const char *source) {
    const struct nvrtc *n = t->own;
    struct buffer b = {0};
    const char *parts[] = {NVRTC_IMAGE_VERSION, t->version, t->arch, source};
    for (size_t i = 0; i < COUNT(parts); i++) toolchain_hash_part(&b, parts[i]);
    for (unsigned i = 0; i < n->n_options; i++) toolchain_hash_part(&b, n->options[i]);
    struct hash128 h = hash_bytes(b.data, b.bytes);
    buffer_free(&b);
    return h;
}

/* Templates say fmaf where they want it: a contraction would make a sum's bits depend on the compiler's mood. */
static void set_options(struct nvrtc *n, const char *arch, struct arena *a) {
    const char *const options[] = {arena_printf(a, "--gpu-architecture=%s", arch), "--std=c++17", "--fmad=false",
                                   "--device-as-default-execution-space", "--no-source-include", "--ptxas-options=-v"};
    _Static_assert(COUNT(options) < OPTIONS_MAX, "options");
    memcpy(n->options, options, sizeof options);
    n->n_options = COUNT(options);
    /* From 12.9 on NVRTC keeps what it made in a cache of its own, and what comes from there has no report of registers. */
    if (n->version >= 12090) n->options[n->n_options++] = "--no-cache";
}

bool nvrtc_find(struct toolchain *t, const struct spec *s, const char *given, struct arena *a, struct diag *d) {
    struct nvrtc *n = arena_alloc(a, sizeof *n);
    const char *arch = spec_get(s, "target.arch")->string, *env = getenv("JLLM_NVRTC");
    int cuda = cuda_number(spec_get(s, "target.cuda")->string);
    bool plain = !strcmp(spec_get(s, "target.launch")->string, "plain");
    uint32_t sm_arch = (uint32_t)strtoul(arch + strlen("sm_"), NULL, 10);
    char *log = NULL;
    if (!given && env && *env) given = env;
    if (!find_library(n, s, given, cuda, a, d) || !check_arch(n, s, sm_arch, cuda, a, d)) return false;
    const char *version = exact_version(n, sm_arch, &log, a);
    if (!version) {
        diag_error(d, "nvrtc-broken", n->path, "this NVRTC does not compile an empty kernel");
        if (log && *log) diag_note(d, "%s", log);
        note_remedy(cuda, a, d);
        free(log);
        return false;
    }
    n->cubin_abi = expected_abi(n->version, sm_arch);
    set_options(n, arch, a);
    *t = (struct toolchain){.program = n->path, .version = arena_printf(a, "NVRTC %s (cubin ABI %u)", version, n->cubin_abi),
                            .target = arena_printf(a, "cuda %s", arch), .arch = arch, .device = PLAN_DEVICE_CUDA,
                            .isa = PLAN_ISA_SM, .features = plain ? PLAN_CUDA_LAUNCHES : 0, .sm_arch = sm_arch, .driver_min = (uint32_t)(cuda ? cuda : n->version),
                            .code_align = PLAN_SECTION_ALIGN, .n_facts = IMAGE_FACTS, .one_at_a_time = true, .own = n, .hash = nvrtc_hash, .compile = nvrtc_compile};
    return true;
}
