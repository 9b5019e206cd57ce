/* Kernels by the system's C compiler: specialised source -> shared object without a dynamic relocation -> the
 * bytes of its one read-execute segment. What a kernel may not contain (undefined symbols, relocations, writable
 * data) is checked here, after every compilation; the cache holds only images that passed.
 */
#include "cc.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined __x86_64__
#include <cpuid.h>
#endif

#include "cache.h"
#include "progress.h"

extern char **environ;

/* Bumped when what is made of a compiler's output changes. */
#define CC_IMAGE_VERSION "image-1"

static const char *const common_flags[] = {
    "-std=gnu11", "-O2", "-ftree-vectorize", "-ffreestanding", "-fPIC", "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-ffp-contract=off", "-fno-math-errno",
    "-fno-trapping-math", "-fno-jump-tables", "-fcf-protection=none", "-Wall", "-Werror=implicit-function-declaration",
    "-nostdlib", "-shared", "-Wl,--no-undefined", "-Wl,--build-id=none", "-Wl,-z,noseparate-code",
    "-Wl,-z,norelro", "-Wl,--hash-style=sysv", "-x", "c"};

static const struct { const char *arch, *flag; enum plan_isa isa; uint64_t features; } arches[] = {
    {"portable", NULL, PLAN_ISA_ANY, 0},
    {"x86-64-v3", "-march=x86-64-v3", PLAN_ISA_X86_64, 0x1f},   /* avx avx2 fma f16c bmi2 */
};

/* --- finding --------------------------------------------------------------------------------------- */

static const char *find_program(const char *name, struct arena *a) {
    const char *path = getenv("PATH");
    for (const char *p = path ? path : "/usr/bin:/bin"; *p;) {
        size_t n = strcspn(p, ":");
        const char *full = arena_printf(a, "%.*s/%s", (int)n, p, name);
        struct stat st;
        if (n && !access(full, X_OK) && !stat(full, &st) && S_ISREG(st.st_mode)) return full;
        p += n + (p[n] == ':');
    }
    return NULL;
}

/* Run argv with stdout and stderr into the file `out` (or discarded); exit status, or -1. */
static int run(const char *const *argv, const char *out) {
    posix_spawn_file_actions_t fa;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&fa, 1, out ? out : "/dev/null", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&fa, 1, 2);
    pid_t pid;
    int rc = posix_spawn(&pid, argv[0], &fa, NULL, (char *const *)(uintptr_t)argv, environ), status = -1;
    posix_spawn_file_actions_destroy(&fa);
    if (rc) return -1;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static char *scratch_dir(struct arena *a) {
    const char *tmp = getenv("TMPDIR");
    char *dir = arena_printf(a, "%s/jllmc-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return mkdtemp(dir);
}

/* First line of what a compiler says of itself; NULL when it does not run. */
static const char *version_line(const struct toolchain *t, const char *dir, struct arena *a) {
    const char **argv = arena_array(a, t->n_command + 2u, sizeof *argv);
    memcpy(argv, t->command, t->n_command * sizeof *argv);
    argv[t->n_command] = "--version";
    const char *out = arena_printf(a, "%s/version", dir);
    char *text = run(argv, out) == 0 ? file_read(a, out, &(size_t){0}) : NULL;
    unlink(out);
    if (text) text[strcspn(text, "\n")] = 0;
    return text;
}

static const char *native_arch(void) {
#if defined __x86_64__
    unsigned eax, ebx, ecx = 0, edx;
    __builtin_cpu_init();   /* "avx2" is true only where the system saves its registers, too */
    bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
    if (f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        return "x86-64-v3";
#endif
    return "portable";
}

static enum plan_isa isa_of(const char *triple) {
    if (!strncmp(triple, "x86_64", 6)) return PLAN_ISA_X86_64;
    if (!strncmp(triple, "aarch64", 7)) return PLAN_ISA_AARCH64;
    return PLAN_ISA_ANY;
}

static const char *host_triple(void) {
#if defined __x86_64__
    return "x86_64";
#elif defined __aarch64__
    return "aarch64";
#else
    return "unknown";
#endif
}

static void set_command(struct toolchain *t, const char *program, const char *argument, struct arena *a) {
    t->command = arena_array(a, 2, sizeof *t->command);
    t->command[0] = program;
    t->n_command = 1;
    if (argument) t->command[t->n_command++] = argument;
}

static bool find_compiler(struct toolchain *t, const struct spec *s, struct arena *a, struct diag *d) {
    const char *triple = spec_get(s, "cc.triple")->string, *family = spec_get(s, "cc.family")->string;
    bool cross = triple && *triple, any = !strcmp(family, "any");
    const char *gcc = cross ? arena_printf(a, "%s-gcc", triple) : "gcc", *p;
    if (any && !cross && (p = find_program("cc", a))) set_command(t, p, NULL, a);
    else if ((any || !strcmp(family, "gcc")) && (p = find_program(gcc, a))) set_command(t, p, NULL, a);
    else if ((any || !strcmp(family, "clang")) && (p = find_program("clang", a)))
        set_command(t, p, cross ? arena_printf(a, "--target=%s", triple) : NULL, a);
    else {
        diag_error(d, "cc-missing", NULL,
                   "no C compiler found on PATH (looked for %s%s); CPU kernels are compiled with one: install gcc or clang",
                   !strcmp(family, "clang") ? "clang" : gcc, any ? ", clang" : "");
        return false;
    }
    return true;
}

static bool choose_arch(struct toolchain *t, const struct spec *s, struct arena *a, struct diag *d) {
    const struct spec_value *arch = spec_get(s, "target.arch");
    const char *triple = spec_get(s, "cc.triple")->string;
    bool cross = triple && *triple;
    const char *place = arena_printf(a, "%s:%u", arch->place.file, arch->place.line);
    t->isa = isa_of(cross ? triple : host_triple());
    if (cross && !strcmp(arch->string, "native")) {
        diag_error(d, "cc-native", place, "arch 'native' is this machine's, but cc.triple is '%s': name the arch", triple);
        return false;
    }
    t->arch = strcmp(arch->string, "native") ? arch->string : native_arch();
    for (size_t i = 0; i < COUNT(arches); i++) {
        if (strcmp(arches[i].arch, t->arch)) continue;
        if (arches[i].isa != PLAN_ISA_ANY && arches[i].isa != t->isa) break;
        t->features = arches[i].features;
        t->flags = arena_array(a, COUNT(common_flags) + 1, sizeof *t->flags);
        memcpy(t->flags, common_flags, sizeof common_flags);
        t->n_flags = COUNT(common_flags);
        if (arches[i].flag) t->flags[t->n_flags++] = arches[i].flag;
        return true;
    }
    diag_error(d, "cc-arch", place, "arch '%s' is not one that CPU kernels are made for here: portable, x86-64-v3 or native", t->arch);
    return false;
}

bool cc_find(struct toolchain *t, const struct spec *s, struct arena *a, struct diag *d) {
    *t = (struct toolchain){0};
    if (!choose_arch(t, s, a, d) || !find_compiler(t, s, a, d)) return false;
    char *dir = scratch_dir(a);
    if (!dir) {
        diag_error(d, "cc-tmp", NULL, "cannot make a temporary folder (TMPDIR or /tmp): %s", strerror(errno));
        return false;
    }
    t->version = version_line(t, dir, a);
    rmdir(dir);
    if (!t->version) {
        diag_error(d, "cc-broken", NULL, "the C compiler '%s' does not run", t->command[0]);
        return false;
    }
    return true;
}

/* --- the object file ------------------------------------------------------------------------------- */

struct elf { const uint8_t *data; size_t bytes; const Elf64_Ehdr *h; };

static const void *elf_at(const struct elf *e, uint64_t offset, uint64_t count, uint64_t size) {
    uint64_t bytes;
    if (offset > e->bytes || !u64_mul(count, size, &bytes) || bytes > e->bytes - offset) return NULL;
    return e->data + offset;
}

/* Why the object cannot be an image, or NULL. */
static const char *elf_forbidden(const struct elf *e, const Elf64_Shdr *sections) {
    for (unsigned i = 0; i < e->h->e_shnum; i++) {
        const Elf64_Shdr *s = &sections[i];
        if (!(s->sh_flags & SHF_ALLOC) || !s->sh_size) continue;
        if (s->sh_type == SHT_RELA || s->sh_type == SHT_REL) return "it needs relocations when loaded";
        if ((s->sh_flags & SHF_WRITE) && s->sh_type != SHT_DYNAMIC) return "it has writable data";
        if (s->sh_flags & SHF_TLS) return "it has thread-local data";
    }
    return NULL;
}

static bool elf_entry(const struct elf *e, const Elf64_Shdr *sections, const char *name, uint64_t *entry) {
    for (unsigned i = 0; i < e->h->e_shnum; i++) {
        if (sections[i].sh_type != SHT_DYNSYM || sections[i].sh_link >= e->h->e_shnum) continue;
        const Elf64_Shdr *strings = &sections[sections[i].sh_link];
        uint64_t n = sections[i].sh_size / sizeof(Elf64_Sym);
        const Elf64_Sym *sym = elf_at(e, sections[i].sh_offset, n, sizeof *sym);
        const char *text = elf_at(e, strings->sh_offset, strings->sh_size, 1);
        for (uint64_t j = 0; sym && text && j < n; j++)
            if (sym[j].st_name < strings->sh_size && sym[j].st_shndx != SHN_UNDEF &&
                !strncmp(text + sym[j].st_name, name, (size_t)(strings->sh_size - sym[j].st_name))) {
                *entry = sym[j].st_value;
                return true;
            }
    }
    return false;
}

/* The image: bytes [0, end) of the segments that are read or executed, at their addresses. NULL and *why otherwise. */
static uint8_t *elf_image(const uint8_t *data, size_t bytes, const char *name, size_t *image_bytes, uint64_t *entry,
                          const char **why) {
    struct elf e = {data, bytes, (const Elf64_Ehdr *)(const void *)data};
    *why = "the compiler's output is not a 64-bit ELF object";
    if (bytes < sizeof *e.h || memcmp(e.h->e_ident, ELFMAG, SELFMAG) || e.h->e_ident[EI_CLASS] != ELFCLASS64) return NULL;
    const Elf64_Shdr *sections = elf_at(&e, e.h->e_shoff, e.h->e_shnum, sizeof *sections);
    const Elf64_Phdr *segments = elf_at(&e, e.h->e_phoff, e.h->e_phnum, sizeof *segments);
    if (!sections || !segments) return NULL;
    if ((*why = elf_forbidden(&e, sections))) return NULL;
    *why = "the entry is missing";
    if (!elf_entry(&e, sections, name, entry)) return NULL;
    uint64_t end = 0;
    for (unsigned i = 0; i < e.h->e_phnum; i++)
        if (segments[i].p_type == PT_LOAD && !(segments[i].p_flags & PF_W) && segments[i].p_vaddr + segments[i].p_filesz > end)
            end = segments[i].p_vaddr + segments[i].p_filesz;
    *why = "its segments make no sense";
    if (*entry >= end || end > (64u << 20)) return NULL;
    uint8_t *image = calloc(1, (size_t)end);
    if (!image) base_fail("out of memory");
    for (unsigned i = 0; i < e.h->e_phnum; i++) {
        const Elf64_Phdr *s = &segments[i];
        if (s->p_type != PT_LOAD || (s->p_flags & PF_W)) continue;
        const void *from = elf_at(&e, s->p_offset, s->p_filesz, 1);
        if (!from) return free(image), NULL;
        memcpy(image + s->p_vaddr, from, s->p_filesz);
    }
    *image_bytes = (size_t)end;
    return image;
}

/* --- compiling ------------------------------------------------------------------------------------- */

struct batch {
    const struct toolchain *t;
    struct program *p;
    struct arena *a;
    struct diag *d;
    const char *dir;
    uint32_t *todo, n_todo;
    pthread_mutex_t lock;     /* over arena, diag and progress */
    struct progress progress;
    bool failed;
};

static void report_failure(struct batch *b, const struct kernel *k, const char *log, const char *why) {
    pthread_mutex_lock(&b->lock);
    size_t bytes;
    char *text = log ? file_read(b->a, log, &bytes) : NULL;
    if (!b->failed) {   /* one kernel's errors say it; the others of the template repeat it */
        diag_error(b->d, "kernel", k->template->source, "kernel %s does not compile with %s: %s", k->name, b->t->command[0],
                   why ? why : "the compiler says:");
        if (text && *text) diag_note(b->d, "%s", text);
    }
    b->failed = true;
    pthread_mutex_unlock(&b->lock);
}

/* Cached payload: the entry, then the image. */
static void keep(struct batch *b, struct kernel *k, const uint8_t *image, size_t bytes, uint64_t entry, bool cached) {
    pthread_mutex_lock(&b->lock);
    k->image = (const uint8_t *)arena_copy(b->a, image, bytes);
    k->image_bytes = bytes;
    k->entry = entry;
    k->cached = cached;
    progress_step(&b->progress, "%s%s", k->name, cached ? " (cached)" : "");
    pthread_mutex_unlock(&b->lock);
}

static void compile_one(void *user, size_t index) {
    struct batch *b = user;
    struct kernel *k = &b->p->kernels[b->todo[index]];
    if (b->failed) return;
    struct arena a = {0};
    const char *source = arena_printf(&a, "%s/%zu.c", b->dir, index), *object = arena_printf(&a, "%s/%zu.so", b->dir, index),
               *log = arena_printf(&a, "%s/%zu.log", b->dir, index), *why = NULL;
    const char **argv = arena_array(&a, b->t->n_command + b->t->n_flags + 4u, sizeof *argv);
    unsigned n = b->t->n_command;
    memcpy(argv, b->t->command, n * sizeof *argv);
    memcpy(argv + n, b->t->flags, b->t->n_flags * sizeof *argv);
    n += b->t->n_flags;
    argv[n++] = "-o";
    argv[n++] = object;
    argv[n++] = source;
    size_t bytes, image_bytes;
    uint64_t entry;
    if (!file_write(source, k->source, strlen(k->source))) report_failure(b, k, NULL, strerror(errno));
    else if (run(argv, log) != 0) report_failure(b, k, log, NULL);
    else {
        char *so = file_read(&a, object, &bytes);
        uint8_t *image = so ? elf_image((const uint8_t *)so, bytes, k->name, &image_bytes, &entry, &why) : NULL;
        if (!image) report_failure(b, k, NULL, why ? why : strerror(errno));
        else {
            struct buffer payload = {0};
            buffer_append(&payload, &entry, sizeof entry);
            buffer_append(&payload, image, image_bytes);
            cache_put(k->source_hash, payload.data, payload.bytes);
            buffer_free(&payload);
            keep(b, k, image, image_bytes, entry, false);
            free(image);
        }
    }
    unlink(source), unlink(object), unlink(log);
    arena_free(&a);
}

/* Over everything that the image depends on, each part with its length before it. */
static struct hash128 source_hash(const struct toolchain *t, const struct kernel *k) {
    struct buffer b = {0};
    const char *parts[] = {CC_IMAGE_VERSION, t->version, t->arch, k->source};
    for (size_t i = 0; i < COUNT(parts); i++) buffer_printf(&b, "%zu:%s", strlen(parts[i]), parts[i]);
    for (unsigned i = 1; i < t->n_command; i++) buffer_printf(&b, "%zu:%s", strlen(t->command[i]), t->command[i]);
    for (unsigned i = 0; i < t->n_flags; i++) buffer_printf(&b, "%zu:%s", strlen(t->flags[i]), t->flags[i]);
    struct hash128 h = hash_bytes(b.data, b.bytes);
    buffer_free(&b);
    return h;
}

static void take_cached(struct batch *b) {
    for (uint32_t i = 0; i < b->p->n_kernels; i++) {
        struct kernel *k = &b->p->kernels[i];
        size_t bytes;
        uint64_t entry;
        k->source_hash = source_hash(b->t, k);
        const uint8_t *payload = cache_get(k->source_hash, b->a, &bytes);
        if (payload && bytes > sizeof entry) {
            memcpy(&entry, payload, sizeof entry);
            keep(b, k, payload + sizeof entry, bytes - sizeof entry, entry, true);
        } else b->todo[b->n_todo++] = i;
    }
}

bool cc_compile_all(const struct toolchain *t, struct program *p, struct arena *a, struct diag *d) {
    struct batch b = {.t = t, .p = p, .a = a, .d = d, .lock = PTHREAD_MUTEX_INITIALIZER};
    b.todo = arena_array(a, p->n_kernels + 1u, sizeof *b.todo);
    progress_begin(&b.progress, p->n_kernels);
    take_cached(&b);
    if (b.n_todo) {
        char *dir = scratch_dir(a);
        if (!dir) {
            diag_error(d, "cc-tmp", NULL, "cannot make a temporary folder (TMPDIR or /tmp): %s", strerror(errno));
            return false;
        }
        b.dir = dir;
        base_parallel(b.n_todo, compile_one, &b);
        rmdir(dir);
    }
    progress_end(&b.progress);
    return !b.failed;
}
