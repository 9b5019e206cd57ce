/* Specs: Lua text in, struct spec out, or diagnostics that show the place.
 *
 * The defaults are read first, then the user's file and what it includes, each file once; then
 * --set holds. The first error that Lua itself raises ends the evaluation; wrong keys and values
 * are all reported. Nothing but the files named and the list of specs/ (for suggestions) is read.
 */
#include "spec.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "spec_internal.h"
#include "tuned.h"

enum { FILE_MAX_BYTES = 256 << 10, TUNED_MAX_BYTES = 64 << 20, DEPTH_MAX = 8 };

/* ---- files ---- */

/* Bytes of a path without ".lua". */
static size_t stem_bytes(const char *path) {
    size_t n = strlen(path);
    return n > 4 && !strcmp(path + n - 4, ".lua") ? n - 4 : n;
}

/* A file's name without directory and ending, but with "tuned/". */
static const char *bare_name(struct arena *a, const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    bool tuned = slash && slash - path >= 5 && !strncmp(slash - 5, "tuned", 5) &&
                 (slash - path == 5 || slash[-6] == '/');
    return arena_printf(a, "%s%.*s", tuned ? "tuned/" : "", (int)stem_bytes(name), name);
}

/* Tuning results, not Lua. */
static bool is_tuned(const char *path) {
    size_t n = strlen(path);
    return n > 6 && !strcmp(path + n - 6, ".jsonl");
}

static bool is_file(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

/* NULL with a diagnostic when the file cannot be a spec. */
static char *read_text(struct reader *r, const char *path, size_t *bytes, struct spec_place from) {
    struct stat st;
    char *text = NULL;
    const char *why = NULL;
    errno = 0;
    if (stat(path, &st) != 0)
        why = strerror(errno);
    else if (!S_ISREG(st.st_mode))
        why = "it is not a regular file";
    else if (st.st_size > (is_tuned(path) ? TUNED_MAX_BYTES : FILE_MAX_BYTES))
        why = is_tuned(path) ? "it is larger than 64 MiB" : "it is larger than 256 KiB";
    else if (!(text = file_read(r->a, path, bytes)))
        why = strerror(errno);
    if (why && errno) r->d->environment = true;
    if (why)
        REFUSE(r, from, "spec-file", "cannot read '%s': %s", diag_quote(path, strlen(path)), why);
    return text;
}

/* Enter a text into the list of files. Its number. */
static int add_text(struct reader *r, const char *name, const char *text, size_t bytes,
                    struct file f) {
    unsigned i = r->n_files++;
    r->sources[i] = (struct spec_source){.name = name, .text = text, .bytes = bytes};
    r->files[i] = f;
    if (!is_tuned(name)) source_scan(&r->sources[i], r->a);
    r->s->sources = r->sources;
    r->s->n_sources = r->n_files;
    return (int)i;
}

/* Read a file: its number; -1 with a diagnostic at `from` when that fails. */
static int add_file(struct reader *r, const char *path, const char *name, unsigned rank,
                    struct spec_place from) {
    size_t bytes;
    char *text = read_text(r, path, &bytes, from), real[PATH_MAX];
    if (!text) return -1;
    if (!realpath(path, real)) snprintf(real, sizeof real, "%s", path);
    struct file f = {.path = path,
                     .real = arena_copy(r->a, real, strlen(real)),
                     .bare = bare_name(r->a, path),
                     .rank = rank,
                     .from = from};
    return add_text(r, name, text, bytes, f);
}

/* Compile a file; leaves its function on Lua's stack, or what report_lua takes. */
static int load_file(struct reader *r, int i) {
    const struct spec_source *source = &r->sources[i];
    char chunk[16];
    snprintf(chunk, sizeof chunk, "=%d", i);
    r->current = (unsigned)i;
    if (!source->bytes || source->text[0] != LUA_SIGNATURE[0])
        return sandbox_load(&r->box, source->text, source->bytes, chunk);
    REFUSE(r, ((struct spec_place){.file = source->name, .line = 1}), "spec-syntax",
           "this is compiled Lua; a spec is text");
    lua_pushnil(r->box.L);
    return LUA_ERRSYNTAX;
}

/* The token that one of Lua's messages is about, if the message quotes one: after "near", or the
 * first. */
static const struct source_token *token_of_message(const struct spec_source *s, unsigned line,
                                                   const char *text) {
    const char *near = strstr(text, " near '"), *quote = near ? near + 6 : strchr(text, '\'');
    const char *end = quote ? (near ? strrchr(quote, '\'') : strchr(quote + 1, '\'')) : NULL;
    if (!end || end <= quote + 1) return NULL;
    return source_word(s, line, quote + 1, (size_t)(end - quote) - 1);
}

/* Turn what Lua raised into a diagnostic; what is no string has been reported. */
static void report_lua(struct reader *r, int status) {
    lua_State *L = r->box.L;
    struct spec_place at = {.file = r->sources[r->current].name};
    const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    unsigned file, line;
    int used = 0;
    if (status == LUA_ERRMEM) {
        REFUSE(r, at, "spec-limit", "the spec %s", sandbox_memory_text);
    } else if (text) {
        const struct source_token *token = NULL;
        if (sscanf(text, "%u:%u: %n", &file, &line, &used) == 2 && used && file < r->n_files) {
            at = (struct spec_place){.file = r->sources[file].name, .line = line};
            token = token_of_message(&r->sources[file], line, text + used);
        }
        const char *code = r->box.exhausted          ? "spec-limit"
                           : status == LUA_ERRSYNTAX ? "spec-syntax"
                                                     : "spec-run";
        REFUSE(r, spec_at_token(at, token), code, "%s%s", r->box.exhausted ? "the spec " : "",
               text + used);
    }
    lua_pop(L, 1);
}

static bool was_versioned(struct reader *r, int i) {
    struct spec_place at = {.file = r->sources[i].name, .line = 1};
    return spec_check_versioned(r, (unsigned)i, at);
}

/* Evaluate a file that was added; false when it could not be finished. */
static bool run_file(struct reader *r, int i) {
    int status = load_file(r, i);
    if (status == LUA_OK) status = lua_pcall(r->box.L, 0, 0, 0);
    if (status != LUA_OK) report_lua(r, status);
    return status == LUA_OK && was_versioned(r, i);
}

/* ---- which file a name means ---- */

static const char *directory_part(struct arena *a, const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? arena_copy(a, path, (size_t)(slash - path) + 1) : "";
}

static const char *home_path(struct arena *a, const char *name) {
    return arena_printf(a, "%s/specs/%s.lua", base_home(), name);
}

/* What an include of `name` may mean in a folder: a spec, or tuning results. */
static const char *const endings[] = {".lua", ".jsonl"};
enum { PLAIN_ENDINGS = 1, TUNED_ENDINGS = 2 };
static unsigned endings_of(const char *name) {
    return strncmp(name, "tuned/", 6) ? PLAIN_ENDINGS : TUNED_ENDINGS;
}

/* Files of ours are shown as specs/NAME.lua wherever they are installed. */
static int add_home(struct reader *r, const char *name, unsigned rank, struct spec_place from) {
    return add_file(r, home_path(r->a, name), arena_printf(r->a, "specs/%s.lua", name), rank, from);
}

enum { NAMES_MAX = 256 };

/* The names in specs/ and specs/tuned/, in order; how many. */
static unsigned list_specs(struct arena *a, const char *names[NAMES_MAX]) {
    unsigned n = 0;
    for (unsigned i = 0; i < 2; i++) {
        DIR *dir = opendir(arena_printf(a, "%s/specs/%s", base_home(), i ? "tuned" : ""));
        for (struct dirent *e; dir && n < NAMES_MAX && (e = readdir(dir));) {
            size_t bytes = stem_bytes(e->d_name);
            if (!e->d_name[bytes] || !strcmp(e->d_name, "defaults.lua")) continue;
            names[n++] = arena_printf(a, "%s%.*s", i ? "tuned/" : "", (int)bytes, e->d_name);
        }
        if (dir) closedir(dir);
    }
    qsort(names, n, sizeof *names, spec_compare_strings);
    return n;
}

static void refuse_name(struct reader *r, struct spec_place at, const char *name,
                        const char *looked) {
    const char *names[NAMES_MAX];
    unsigned n = list_specs(r->a, names);
    const char *near = diag_suggest(name, names, n);
    const char *hint = near ? arena_printf(r->a, "; did you mean '%s'?", near) : "";
    for (unsigned i = 0; i < n && !near; i++)
        hint = arena_printf(r->a, "%s%s%s", hint, i ? ", " : "; there is ", names[i]);
    bool tuned = endings_of(name) == TUNED_ENDINGS;
    if (tuned) hint = arena_printf(r->a, "; jllmc tune --spec %s makes the latter%s", name + strlen("tuned/"), near ? hint : "");
    REFUSE(r, at, "spec-file", "there is no spec '%s': looked for %s and specs/%s.lua%s%s",
           diag_quote(name, strlen(name)), looked, name, tuned ? ", then for the same with .jsonl" : "", hint);
}

/* The file that --spec means, read: its number, or -1 with a diagnostic. */
static int add_main(struct reader *r, const char *path) {
    struct spec_place at = {.file = path};
    const char *bare = arena_copy(r->a, path, stem_bytes(path));
    const char *ended = arena_printf(r->a, "%s.lua", bare);
    bool is_name = spec_is_include_name(bare);
    if (is_file(path)) return add_file(r, path, path, 0, at);
    if (is_file(ended)) return add_file(r, ended, ended, 0, at);
    if (is_name && is_file(home_path(r->a, bare))) return add_home(r, bare, 0, at);
    if (!is_name && strchr(path, '/')) return add_file(r, path, path, 0, at); /* says why not */
    if (strcmp(bare, path)) r->d->environment = true;      /* the name of a file, and not of a spec */
    refuse_name(r, (struct spec_place){.file = "--spec"}, bare, ended);
    return -1;
}

/* The file that an include means, read: its number, or -1 with a diagnostic. */
static int add_included(struct reader *r, const char *name, struct spec_place at) {
    const struct file *from = &r->files[spec_file_of(r, at)];
    const char *near = directory_part(r->a, from->path), *shown = directory_part(r->a, at.file);
    unsigned rank = from->rank < SPEC_RANK_DEFAULTS ? from->rank + 1 : from->rank;
    for (unsigned i = 0; i < endings_of(name); i++) {
        const char *beside = arena_printf(r->a, "%s%s%s", near, name, endings[i]);
        if (is_file(beside)) return add_file(r, beside, arena_printf(r->a, "%s%s%s", shown, name, endings[i]), rank, at);
    }
    for (unsigned i = 0; i < endings_of(name); i++) {
        const char *home = arena_printf(r->a, "%s/specs/%s%s", base_home(), name, endings[i]);
        if (is_file(home)) return add_file(r, home, arena_printf(r->a, "specs/%s%s", name, endings[i]), rank, at);
    }
    refuse_name(r, at, name, arena_printf(r->a, "%s%s.lua", shown, name));
    return -1;
}

/* A file is read once: a second time is a mistake, or an include that never ends. */
static bool is_first_reading(struct reader *r, int i, const char *name, struct spec_place at) {
    for (int j = 0; j < i; j++) {
        if (strcmp(r->files[j].real, r->files[i].real) != 0) continue;
        r->n_files = r->s->n_sources = (unsigned)i;
        struct spec_place from = r->files[j].from;
        if (from.line)
            REFUSE(r, at, "spec-include", "'%s' was already included at %s:%u", name, from.file,
                   from.line);
        else
            REFUSE(r, at, "spec-include", "'%s' is the spec that is being read", name);
        return false;
    }
    return true;
}

/* The choices among the rows of a file that was added. */
static bool take_tuned(struct reader *r, int i) {
    struct spec *s = r->s;
    struct tuned_row *rows;
    unsigned n;
    const struct spec_source *source = &r->sources[i];
    if (!tuned_parse(source->name, source->text, source->bytes, &rows, &n, NULL, r->a, r->d)) return false;
    struct spec_tuned *all = arena_array(r->a, s->n_tuned + n + 1u, sizeof *all);
    if (s->n_tuned) memcpy(all, s->tuned, s->n_tuned * sizeof *all);
    s->tuned = all;
    for (unsigned j = 0; j < n; j++) {
        if (!rows[j].choice) continue;
        all[s->n_tuned++] = (struct spec_tuned){.hash = rows[j].hash, .target = rows[j].target,
            .entry = {.shape = rows[j].shape, .template_name = rows[j].template_name, .match = rows[j].key, .n_match = rows[j].n_key,
                      .set = rows[j].set, .n_set = rows[j].n_set, .rank = r->files[i].rank,
                      .place = {.file = source->name, .line = rows[j].line}}};
    }
    return true;
}

bool spec_include(struct reader *r, const char *name, struct spec_place at) {
    unsigned before = r->current;
    if (!strcmp(name, "defaults")) return true;
    if (r->depth == DEPTH_MAX || r->n_files == FILES_MAX) {
        REFUSE(r, at, "spec-include", "includes may be nested %d deep, and %d files read",
               DEPTH_MAX, FILES_MAX);
        return false;
    }
    int i = add_included(r, name, at);
    if (i < 0 || !is_first_reading(r, i, name, at)) return false;
    if (is_tuned(r->files[i].path)) return take_tuned(r, i);
    int status = load_file(r, i);
    if (status != LUA_OK) {
        report_lua(r, status);
        return false;
    }
    r->depth++;
    lua_call(r->box.L, 0, 0);
    r->depth--;
    r->current = before;
    return was_versioned(r, i);
}

/* ---- loading ---- */

/* Shown at the one of the two that is not a default. */
static void check_arch(struct reader *r) {
    const struct spec_value *arch = spec_get(r->s, "target.arch"),
                            *device = spec_get(r->s, "target.device");
    bool cuda = !strcmp(device->string, "cuda");
    if (spec_is_sm(arch->string) == cuda) return;
    struct spec_place at = arch->place.file == r->sources[0].name ? device->place : arch->place;
    REFUSE(r, spec_place_of_value(r, at), "spec-range",
           "arch \"%s\" does not fit device \"%s\"; %s", arch->string, device->string,
           cuda ? "give arch = \"sm_NN\", such as \"sm_87\"" : "give device = \"cuda\" too");
}

static void check_pending(struct reader *r) {
    for (unsigned i = 0; i < r->n_pending; i++) {
        const struct pending *p = &r->pending[i];
        if (!p->used)
            REFUSE(r, p->place, "spec-type", "%s \"%s\" has no table", p->call, p->template_name);
    }
}

static void hash_text(struct buffer *b, const char *text, size_t bytes) {
    buffer_printf(b, "%zu:", bytes);
    buffer_append(b, text, bytes);
}

static struct hash128 hash_spec(const struct reader *r, const char *const *sets, unsigned n_sets) {
    struct buffer b = {0};
    for (unsigned i = 0; i < r->n_files; i++) {
        hash_text(&b, r->files[i].bare, strlen(r->files[i].bare));
        hash_text(&b, r->sources[i].text, r->sources[i].bytes);
    }
    for (unsigned i = 0; i < n_sets; i++) hash_text(&b, sets[i], strlen(sets[i]));
    struct hash128 h = hash_bytes(b.data, b.bytes);
    buffer_free(&b);
    return h;
}

static struct reader *start(struct spec *s, struct arena *a, struct diag *d) {
    struct reader *r = arena_alloc(a, sizeof *r);
    *s = (struct spec){0};
    r->s = s;
    r->a = a;
    r->d = d;
    r->errors_before = d->errors;
    return r;
}

static int add_defaults(struct reader *r) {
    return add_home(r, "defaults", SPEC_RANK_DEFAULTS,
                    (struct spec_place){.file = "specs/defaults.lua"});
}

/* Evaluate the files added so far: the defaults first, then the user's, if that is another. */
static void evaluate(struct reader *r) {
    int n = (int)r->n_files;
    bool ok = true;
    sandbox_open(&r->box);
    spec_define_calls(r);
    for (int i = 0; i < n && ok; i++) ok = run_file(r, i);
    sandbox_close(&r->box);
}

static void finish(struct reader *r, const char *const *sets, unsigned n_sets) {
    struct spec *s = r->s;
    for (unsigned i = 0; i < n_sets; i++) spec_apply_override(r, sets[i]);
    s->target = spec_take_section(r, "target", &s->n_target);
    s->memory = spec_take_section(r, "memory", &s->n_memory);
    s->cc = spec_take_section(r, "cc", &s->n_cc);
    s->entries = r->entries;
    s->n_entries = r->n_entries;
    check_pending(r);
    if (r->d->errors == r->errors_before) spec_check_complete(r);
    if (r->d->errors == r->errors_before) check_arch(r);
    s->hash = hash_spec(r, sets, n_sets);
}

bool spec_load(struct spec *s, const char *path, const char *const *sets, unsigned n_sets,
               struct arena *a, struct diag *d) {
    struct reader *r = start(s, a, d);
    int defaults = add_defaults(r);
    int main_file = defaults < 0 ? -1 : add_main(r, arena_copy(a, path, strlen(path)));
    if (main_file < 0) return false;
    if (!strcmp(r->files[defaults].real, r->files[main_file].real)) r->n_files = s->n_sources = 1;
    s->file = r->sources[r->n_files - 1].name;
    evaluate(r);
    if (d->errors == r->errors_before) finish(r, sets, n_sets);
    return d->errors == r->errors_before;
}

/* --set lines stand at the beginning of a line and are comments to Lua. */
static unsigned collect_sets(struct reader *r, const char *text, const char **sets, unsigned max) {
    unsigned n = 0;
    for (const char *p = text, *eol; p && *p && n < max; p = eol ? eol + 1 : NULL) {
        eol = strchr(p, '\n');
        if (!strncmp(p, "--set ", 6) && eol) sets[n++] = arena_copy(r->a, p + 6, (size_t)(eol - p) - 6);
    }
    return n;
}

bool spec_load_text(struct spec *s, const char *name, const char *text, size_t bytes, struct arena *a, struct diag *d) {
    struct reader *r = start(s, a, d);
    const char *sets[KEYS_MAX];
    if (add_defaults(r) < 0) return false;
    text = arena_copy(a, text, bytes);
    add_text(r, name, text, bytes, (struct file){.path = name, .real = name, .bare = name});
    s->file = name;
    evaluate(r);
    if (d->errors == r->errors_before) finish(r, sets, collect_sets(r, text, sets, KEYS_MAX));
    return d->errors == r->errors_before;
}
