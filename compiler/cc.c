/* Kernels by the system's C compiler: specialised source -> shared object without a dynamic relocation -> the
 * bytes of its one read-execute segment. What a kernel may not contain (undefined symbols, relocations, writable
 * data) is checked here, after every compilation.
 */
#include "cc.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../runtime/device.h"

extern char **environ;

/* Bumped when what is made of a compiler's output changes. */
#define CC_IMAGE_VERSION "image-2"

struct cc {
    const char *triple;                         /* of the compiler; "" for this machine's */
    const char **command; unsigned n_command;   /* program and leading arguments */
    const char **flags;   unsigned n_flags;
};

static const char *const common_flags[] = {
    "-std=gnu11", "-O2", "-ftree-vectorize", "-ffreestanding", "-fPIC", "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-ffp-contract=off", "-fno-math-errno",
    "-fno-trapping-math", "-fno-jump-tables", "-fcf-protection=none", "-Wall", "-Wno-psabi",
    "-Werror=implicit-function-declaration",
    "-nostdlib", "-shared", "-Wl,--no-undefined", "-Wl,--build-id=none", "-Wl,-z,noseparate-code",
    "-Wl,-z,norelro", "-Wl,--hash-style=sysv", "-x", "c"};

/* Better ones later; "native" is the last whose features this machine has. Features are plan.h's bits. */
enum { AVX2_AND_BEFORE = 0x1f, AVX512_VNNI_AND_BEFORE = 0x3ff };
static const struct arch { const char *name, *flags[8]; enum plan_isa isa; uint64_t features; } arches[] = {
    {"portable", {NULL}, PLAN_ISA_ANY, 0},
    {"x86-64-v3", {"-march=x86-64-v3"}, PLAN_ISA_X86_64, AVX2_AND_BEFORE},
    {"x86-64-v4", {"-march=x86-64-v3", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"},
     PLAN_ISA_X86_64, AVX512_VNNI_AND_BEFORE},
    {"aarch64", {"-march=armv8-a"}, PLAN_ISA_AARCH64, (uint64_t)1 << 32},
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

/* Run argv with stdout and stderr into descriptor `out`; exit status, or -1. */
static int run(const char *const *argv, int out) {
    posix_spawn_file_actions_t fa;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&fa, out, 1);
    posix_spawn_file_actions_adddup2(&fa, 1, 2);
    pid_t pid;
    int rc = posix_spawn(&pid, argv[0], &fa, NULL, (char *const *)(uintptr_t)argv, environ), status = -1;
    posix_spawn_file_actions_destroy(&fa);
    if (rc) return -1;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* First line of what a compiler says of itself; NULL when it does not run. */
static const char *version_line(const struct cc *c, struct arena *a) {
    const char **argv = arena_array(a, c->n_command + 2u, sizeof *argv);
    memcpy(argv, c->command, c->n_command * sizeof *argv);
    argv[c->n_command] = "--version";
    char text[256];
    int fd = memfd_create("version", MFD_CLOEXEC);
    ssize_t n = fd >= 0 && run(argv, fd) == 0 ? pread(fd, text, sizeof text - 1, 0) : -1;
    if (fd >= 0) close(fd);
    return n > 0 ? arena_printf(a, "%.*s", (int)strcspn((text[n] = 0, text), "\n"), text) : NULL;
}

static enum plan_isa isa_of(const char *triple) {
    if (!strncmp(triple, "x86_64", 6)) return PLAN_ISA_X86_64;
    if (!strncmp(triple, "aarch64", 7)) return PLAN_ISA_AARCH64;
    return PLAN_ISA_ANY;
}

static const struct arch *native_arch(void) {
    const struct arch *best = &arches[0];
    for (size_t i = 0; i < COUNT(arches); i++)
        if (arches[i].isa == machine_isa() && !(arches[i].features & ~machine_features())) best = &arches[i];
    return best;
}

static void set_command(struct cc *c, const char *program, const char *argument, struct arena *a) {
    c->command = arena_array(a, 2, sizeof *c->command);
    c->command[0] = program;
    c->n_command = 1;
    if (argument) c->command[c->n_command++] = argument;
}

static bool find_compiler(struct cc *c, const struct spec *s, struct arena *a, struct diag *d) {
    const char *triple = c->triple, *family = spec_get(s, "cc.family")->string;
    bool cross = *triple, any = !strcmp(family, "any");
    const char *gcc = cross ? arena_printf(a, "%s-gcc", triple) : "gcc", *p;
    if (any && !cross && (p = find_program("cc", a))) set_command(c, p, NULL, a);
    else if ((any || !strcmp(family, "gcc")) && (p = find_program(gcc, a))) set_command(c, p, NULL, a);
    else if ((any || !strcmp(family, "clang")) && (p = find_program("clang", a)))
        set_command(c, p, cross ? arena_printf(a, "--target=%s", triple) : NULL, a);
    else {
        diag_error(d, "cc-missing", NULL,
                   "no C compiler found on PATH (looked for %s%s); CPU kernels are compiled with one: install gcc or clang",
                   !strcmp(family, "clang") ? "clang" : gcc, any ? ", clang" : "");
        return false;
    }
    return true;
}

/* Kernels for another instruction set than this machine's need a cross compiler: one that cc.triple names, or the usual
 * one for the arch. An instruction set with a single arch needs no name of it. */
static const struct arch *find_arch(struct cc *c, const char *name, const char *triple) {
    bool native = !strcmp(name, "native");
    enum plan_isa isa = *triple ? isa_of(triple) : machine_isa();
    const struct arch *found = native && !*triple ? native_arch() : NULL;
    for (size_t i = 0; i < COUNT(arches) && !found; i++)
        if (native ? arches[i].isa == isa && isa == PLAN_ISA_AARCH64 : !strcmp(arches[i].name, name)) found = &arches[i];
    c->triple = triple;
    if (found && !*triple && found->isa != PLAN_ISA_ANY && found->isa != isa)
        c->triple = found->isa == PLAN_ISA_AARCH64 ? "aarch64-linux-gnu" : "x86_64-linux-gnu";
    return found;
}

const char *cc_arch(const struct spec *s, uint64_t *features) {
    struct cc c = {0};
    const struct arch *found = find_arch(&c, spec_get(s, "target.arch")->string, spec_get(s, "cc.triple")->string);
    if (!found) return NULL;
    *features = found->features;
    return found->name;
}

static bool choose_arch(struct toolchain *t, struct cc *c, const struct spec *s, struct arena *a, struct diag *d) {
    const struct spec_value *arch = spec_get(s, "target.arch");
    const char *triple = spec_get(s, "cc.triple")->string, *names = "";
    const char *place = arch->place.line ? arena_printf(a, "%s:%u", arch->place.file, arch->place.line) : arch->place.file;
    const struct arch *found = find_arch(c, arch->string, triple ? triple : "");
    t->isa = *c->triple ? isa_of(c->triple) : machine_isa();
    if (found && (found->isa == PLAN_ISA_ANY || found->isa == t->isa)) {
        t->arch = found->name;
        t->features = found->features;
        c->flags = arena_array(a, COUNT(common_flags) + COUNT(found->flags), sizeof *c->flags);
        memcpy(c->flags, common_flags, sizeof common_flags);
        c->n_flags = COUNT(common_flags);
        for (size_t i = 0; i < COUNT(found->flags) && found->flags[i]; i++) c->flags[c->n_flags++] = found->flags[i];
        return true;
    }
    for (size_t i = 0; i < COUNT(arches); i++)
        if (arches[i].isa == PLAN_ISA_ANY || arches[i].isa == t->isa) names = arena_printf(a, "%s, %s", names, arches[i].name);
    if (!strcmp(arch->string, "native"))
        diag_error(d, "cc-native", place, "arch 'native' is this machine's, but cc.triple is '%s': name the arch (%s)", triple, names + 2);
    else if (found)
        diag_error(d, "cc-arch", place, "arch '%s' is not one of cc.triple '%s': those are %s", arch->string, triple, names + 2);
    else diag_error(d, "cc-arch", place, "arch '%s' is not one that CPU kernels are made for: %s or native", arch->string, names + 2);
    return false;
}

/* --- the object file ------------------------------------------------------------------------------- */

struct elf { const uint8_t *data; size_t bytes; const Elf64_Ehdr *h; };

static const void *elf_at(const struct elf *e, uint64_t offset, uint64_t count, uint64_t size) {
    uint64_t bytes;
    if (offset > e->bytes || !u64_mul(count, size, &bytes) || bytes > e->bytes - offset) return NULL;
    return e->data + offset;
}

/* GNU ld for aarch64 makes a global offset table whatever the source holds; without a relocation nobody fills it and
 * nobody reads it. */
static bool elf_is_got(const struct elf *e, const Elf64_Shdr *sections, const Elf64_Shdr *s) {
    if (e->h->e_shstrndx >= e->h->e_shnum) return false;
    const Elf64_Shdr *names = &sections[e->h->e_shstrndx];
    const char *text = elf_at(e, names->sh_offset, names->sh_size, 1);
    uint64_t left = text && s->sh_name < names->sh_size ? names->sh_size - s->sh_name : 0;
    return (left >= sizeof ".got" && !memcmp(text + s->sh_name, ".got", sizeof ".got")) ||
           (left >= sizeof ".got.plt" && !memcmp(text + s->sh_name, ".got.plt", sizeof ".got.plt"));
}

/* Why the object cannot be an image, or NULL. */
static const char *elf_forbidden(const struct elf *e, const Elf64_Shdr *sections) {
    for (unsigned i = 0; i < e->h->e_shnum; i++) {
        const Elf64_Shdr *s = &sections[i];
        if (!(s->sh_flags & SHF_ALLOC) || !s->sh_size) continue;
        if (s->sh_type == SHT_RELA || s->sh_type == SHT_REL) return "it needs relocations when loaded";
        if ((s->sh_flags & SHF_WRITE) && s->sh_type != SHT_DYNAMIC && !elf_is_got(e, sections, s)) return "it has writable data";
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
    /* The ELF header tells where sections stand, which depends on the name of a scratch file; nobody reads it any more. */
    memset(image, 0, sizeof *e.h);
    *image_bytes = (size_t)end;
    return image;
}

/* --- compiling ------------------------------------------------------------------------------------- */

static bool run_logged(const char *const *argv, const char *log) {
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && run(argv, fd) == 0;
    if (fd >= 0) close(fd);
    return ok;
}

static bool compile_object(const struct cc *c, const char *source, const char *object, const char *log, struct arena *a) {
    const char **argv = arena_array(a, c->n_command + c->n_flags + 4u, sizeof *argv);
    unsigned n = c->n_command;
    memcpy(argv, c->command, n * sizeof *argv);
    memcpy(argv + n, c->flags, c->n_flags * sizeof *argv);
    n += c->n_flags;
    argv[n++] = "-o";
    argv[n++] = object;
    argv[n++] = source;
    return run_logged(argv, log);
}

static bool cc_compile(const struct toolchain *t, const struct kernel *k, const char *dir, size_t index, struct image *out,
                       struct image_failure *f, struct arena *a) {
    const char *source = arena_printf(a, "%s/%zu.c", dir, index), *object = arena_printf(a, "%s/%zu.so", dir, index),
               *log = arena_printf(a, "%s/%zu.log", dir, index);
    size_t bytes;
    if (!file_write(source, k->source, strlen(k->source))) f->why = strerror(errno);
    else if (!compile_object(t->own, source, object, log, a)) {
        char *text = file_read(a, log, &bytes);
        f->log = text ? strdup(text) : NULL;
    } else {
        char *so = file_read(a, object, &bytes);
        if (so) out->data = elf_image((const uint8_t *)so, bytes, k->name, &out->bytes, &out->facts[IMAGE_ENTRY], &f->why);
        else f->why = strerror(errno);
    }
    unlink(source), unlink(object), unlink(log);
    return out->data != NULL;
}

static struct hash128 cc_hash(const struct toolchain *t, const char *source) {
    const struct cc *c = t->own;
    struct buffer b = {0};
    const char *parts[] = {CC_IMAGE_VERSION, t->version, t->arch, source};
    for (size_t i = 0; i < COUNT(parts); i++) toolchain_hash_part(&b, parts[i]);
    for (unsigned i = 1; i < c->n_command; i++) toolchain_hash_part(&b, c->command[i]);
    for (unsigned i = 0; i < c->n_flags; i++) toolchain_hash_part(&b, c->flags[i]);
    struct hash128 h = hash_bytes(b.data, b.bytes);
    buffer_free(&b);
    return h;
}

bool cc_find(struct toolchain *t, const struct spec *s, struct arena *a, struct diag *d) {
    struct cc *c = arena_alloc(a, sizeof *c);
    *t = (struct toolchain){.device = PLAN_DEVICE_CPU, .code_align = PLAN_CODE_ALIGN, .n_facts = IMAGE_ENTRY + 1,
                            .scratch = true, .own = c, .hash = cc_hash, .compile = cc_compile};
    if (!choose_arch(t, c, s, a, d) || !find_compiler(c, s, a, d)) return false;
    t->program = c->command[0];
    t->target = arena_printf(a, "cpu %s", t->arch);
    t->version = version_line(c, a);
    if (!t->version) diag_error(d, "cc-broken", NULL, "the C compiler '%s' does not run", t->program);
    return t->version != NULL;
}
