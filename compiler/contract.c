/* Runs a target's contract (templates/<device>/contract.lua) over the graph and collects what it says:
 * templates, launches, values, weight pieces, kernels. The Lua interface is documented in contract.h.
 *
 * Guarantees: every launch names a declared template and passes all of its arguments; every tensor is
 * stored in one layout; parameters come from select.c with their reason. A contract that breaks a rule
 * is reported with its file and line. Does not compile, place or pack anything.
 */
#include "contract.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "kernel.h"
#include "layout.h"
#include "reference.h"
#include "select.h"
#include "tuned.h"

struct lowering {
    struct program *p;
    struct arena *a;
    struct diag *d;
    lua_State *lua;
    const char *dir;              /* HOME/templates/<device> */
    const char *kv;
    unsigned room_templates, room_kernels, room_values, room_pieces, room_launches;
    uint32_t phase, phase_first;  /* index, and its first launch */
    const struct op *op;
    uint32_t value[VALUE_COUNT];  /* the graph's values as they stand before the op */
    uint32_t max_tokens;
    int rope_piece[2];            /* of layers that see all, and of those with a window; -1: not asked for yet */
    uint32_t kernel_index_room;
    uint32_t *kernel_index;       /* open addressing over kernel names, 1-based */
    const char *only;             /* template of the kernels whose sources are wanted; NULL: all */
    const struct program *like;   /* has read the files; NULL: read them */
    const struct contract_template *chosen;   /* of the last choose(), and the key that it got */
    struct key_field *chosen_key; unsigned n_chosen_key;
    const struct choice *choices;    /* of the launch that is being made; NULL: of none */
};

static struct lowering *lowering_of(lua_State *L) {
    return *(struct lowering **)lua_getextraspace(L);
}

/* One more item at the end of an arena array that doubles. */
static void *append(struct arena *a, void **items, unsigned *n, unsigned *room, size_t size) {
    if (*n == *room) {
        *room = *room ? *room * 2 : 64;
        void *more = arena_array(a, *room, size);
        if (*n) memcpy(more, *items, *n * size);
        *items = more;
    }
    return (char *)*items + (size_t)(*n)++ * size;
}
#define APPEND(lo, field) \
    append((lo)->a, (void **)&(lo)->p->field, &(lo)->p->n_##field, &(lo)->room_##field, sizeof *(lo)->p->field)

static const char *copy(struct lowering *lo, const char *s) {
    return arena_copy(lo->a, s, strlen(s));
}

/* --- template "name" { ... } ------------------------------------------------------------------- */

static const char **string_list(lua_State *L, struct lowering *lo, int table, const char *key, unsigned *n) {
    if (lua_getfield(L, table, key) != LUA_TTABLE) luaL_error(L, "template: '%s' must be a list", key);
    *n = (unsigned)lua_rawlen(L, -1);
    const char **list = arena_array(lo->a, *n + 1u, sizeof *list);
    for (unsigned i = 0; i < *n; i++) {
        lua_rawgeti(L, -1, (lua_Integer)i + 1);
        list[i] = copy(lo, luaL_checkstring(L, -1));
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    return list;
}

static const char *string_field(lua_State *L, struct lowering *lo, int table, const char *key) {
    lua_getfield(L, table, key);
    if (!lua_isstring(L, -1)) luaL_error(L, "'%s' must be a string", key);
    const char *s = copy(lo, lua_tostring(L, -1));
    lua_pop(L, 1);
    return s;
}

static void read_param(lua_State *L, struct lowering *lo, struct contract_param *param) {
    int table = lua_gettop(L);
    luaL_checktype(L, table, LUA_TTABLE);
    param->name = string_field(L, lo, table, "name");
    param->doc = string_field(L, lo, table, "doc");
    lua_getfield(L, table, "default");
    param->otherwise = luaL_checkinteger(L, -1);
    lua_getfield(L, table, "shape");
    param->shape = lua_toboolean(L, -1);
    if (lua_getfield(L, table, "values") != LUA_TTABLE) luaL_error(L, "param '%s': no values", param->name);
    param->n_values = (unsigned)lua_rawlen(L, -1);
    param->values = arena_array(lo->a, param->n_values + 1u, sizeof *param->values);
    bool legal = false;
    for (unsigned i = 0; i < param->n_values; i++) {
        lua_rawgeti(L, -1, (lua_Integer)i + 1);
        param->values[i] = luaL_checkinteger(L, -1);
        legal |= param->values[i] == param->otherwise;
        lua_pop(L, 1);
    }
    if (!legal) luaL_error(L, "param '%s': the default is not among its values", param->name);
    lua_settop(L, table);
}

static void read_form(lua_State *L, struct lowering *lo, struct contract_form *form) {
    int table = lua_gettop(L);
    luaL_checktype(L, table, LUA_TTABLE);
    form->name = string_field(L, lo, table, "name");
    form->doc = string_field(L, lo, table, "doc");
    form->otherwise = string_field(L, lo, table, "default");
    form->values = string_list(L, lo, table, "values", &form->n_values);
}

static int template_define(lua_State *L) {
    struct lowering *lo = lowering_of(L);
    struct contract_template *t = APPEND(lo, templates);
    t->name = lua_tostring(L, lua_upvalueindex(1));
    luaL_checktype(L, 1, LUA_TTABLE);
    t->name = copy(lo, t->name);
    t->source = string_field(L, lo, 1, "source");
    t->reference = string_field(L, lo, 1, "reference");
    t->args = string_list(L, lo, 1, "args", &t->n_args);
    t->keys = string_list(L, lo, 1, "keys", &t->n_keys);
    if (t->n_args > PLAN_ARGS_MAX) luaL_error(L, "template '%s': too many args", t->name);
    if (lua_getfield(L, 1, "params") == LUA_TTABLE) {
        t->n_params = (unsigned)lua_rawlen(L, -1);
        if (t->n_params > CONTRACT_PARAMS_MAX) luaL_error(L, "template '%s': too many params", t->name);
        t->params = arena_array(lo->a, t->n_params + 1u, sizeof *t->params);
        for (unsigned i = 0; i < t->n_params; i++) {
            lua_rawgeti(L, -1, (lua_Integer)i + 1);
            read_param(L, lo, &t->params[i]);
            lua_pop(L, 1);
        }
    }
    lua_settop(L, 1);
    if (lua_getfield(L, 1, "forms") == LUA_TTABLE) {
        t->n_forms = (unsigned)lua_rawlen(L, -1);
        t->forms = arena_array(lo->a, t->n_forms + 1u, sizeof *t->forms);
        for (unsigned i = 0; i < t->n_forms; i++) {
            lua_rawgeti(L, -1, (lua_Integer)i + 1);
            read_form(L, lo, &t->forms[i]);
            lua_pop(L, 1);
        }
    }
    return 0;
}

static int api_template(lua_State *L) {
    luaL_checkstring(L, 1);
    lua_settop(L, 1);
    lua_pushcclosure(L, template_define, 1);
    return 1;
}

/* --- values ------------------------------------------------------------------------------------ */

static enum plan_dtype dtype_check(lua_State *L, const char *name) {
    if (!strcmp(name, "f32")) return PLAN_F32;
    if (!strcmp(name, "f16")) return PLAN_F16;
    if (!strcmp(name, "i32")) return PLAN_I32;
    if (!strcmp(name, "a16")) return PLAN_A16;
    if (!strcmp(name, "a8")) return PLAN_A8;
    if (!strcmp(name, "x16")) return PLAN_X16;
    luaL_error(L, "unknown dtype '%s'", name);
    return PLAN_F32;
}

static uint64_t dtype_bytes(lua_State *L, enum plan_dtype t, uint64_t rows, uint64_t cols) {
    switch (t) {
    case PLAN_F16: return rows * cols * 2;
    case PLAN_A16:
        if (cols % 32) luaL_error(L, "a16 needs a multiple of 32 columns");
        return u64_round_up(rows * cols * 2, 64) + 2 * u64_round_up(rows * (cols / 32) * 4, 64);
    case PLAN_A8:
        if (cols % 32) luaL_error(L, "a8 needs a multiple of 32 columns");
        return rows * cols * 2;
    case PLAN_X16:
        if (cols % 32 || (rows != 1 && rows % 8)) luaL_error(L, "x16 needs a multiple of 32 columns and 1 or a multiple of 8 rows");
        return u64_round_up((rows == 1 ? u64_round_up(cols, 256) : rows * cols) * 2, 64) + u64_round_up(rows * (cols / 32) * 4, 64);
    default: return rows * cols * 4;
    }
}

static uint32_t value_new(struct lowering *lo, const char *name, uint64_t rows, uint64_t cols) {
    uint32_t index = lo->p->n_values;
    struct value *v = APPEND(lo, values);
    v->name = name;
    v->rows = rows;
    v->cols = cols;
    v->phase = lo->phase;
    v->first = UINT32_MAX;
    return index;
}

static void value_type(lua_State *L, struct value *v, enum plan_dtype t) {
    v->dtype = t;
    v->bytes = dtype_bytes(L, t, v->rows, v->cols);
}

static void set_integer(lua_State *L, const char *key, uint64_t v) {
    lua_pushinteger(L, (lua_Integer)v);
    lua_setfield(L, -2, key);
}

static void set_string(lua_State *L, const char *key, const char *v) {
    lua_pushstring(L, v);
    lua_setfield(L, -2, key);
}

static void push_value(lua_State *L, struct lowering *lo, uint32_t index) {
    static const char *const dtypes[] = {NULL, "f32", "f16", "i32", "a16", "x16", "a8"};
    const struct value *v = &lo->p->values[index];
    lua_createtable(L, 0, 5);
    set_integer(L, "_value", index);
    set_string(L, "name", v->name);
    set_integer(L, "rows", v->rows);
    set_integer(L, "cols", v->cols);
    if (v->dtype) set_string(L, "dtype", dtypes[v->dtype]);
}

static int64_t hidden_index(lua_State *L, int table, const char *key) {
    if (!lua_istable(L, table) || lua_getfield(L, table, key) != LUA_TNUMBER) return -1;
    int64_t i = lua_tointeger(L, -1);
    lua_pop(L, 1);
    return i;
}

static int api_define(lua_State *L) {
    struct lowering *lo = lowering_of(L);
    int64_t i = hidden_index(L, 1, "_value");
    if (i < 0) luaL_error(L, "define: not a value");
    if (lo->p->values[i].dtype) luaL_error(L, "define: '%s' is defined already", lo->p->values[i].name);
    value_type(L, &lo->p->values[i], dtype_check(L, luaL_checkstring(L, 2)));
    lua_pushvalue(L, 2);
    lua_setfield(L, 1, "dtype");
    return 0;
}

static int api_scratch(lua_State *L) {
    struct lowering *lo = lowering_of(L);
    lua_Integer rows = luaL_checkinteger(L, 3), cols = luaL_checkinteger(L, 4);
    if (rows < 1 || cols < 1) luaL_error(L, "scratch: empty");
    uint32_t i = value_new(lo, copy(lo, luaL_checkstring(L, 1)), (uint64_t)rows, (uint64_t)cols);
    value_type(L, &lo->p->values[i], dtype_check(L, luaL_checkstring(L, 2)));
    push_value(L, lo, i);
    return 1;
}

/* --- weights, cache, rope table ---------------------------------------------------------------- */

static void push_piece(lua_State *L, uint32_t index) {
    lua_createtable(L, 0, 1);
    set_integer(L, "_piece", index);
}

static int api_weight(lua_State *L) {
    struct lowering *lo = lowering_of(L);
    const char *layout = luaL_checkstring(L, 2);
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_getfield(L, 1, "_tensor");
    const struct gguf_tensor *t = lua_touserdata(L, -1);
    if (!t) luaL_error(L, "weight: not a tensor");
    lua_getfield(L, LUA_REGISTRYINDEX, "pieces");
    if (lua_rawgetp(L, -1, t) == LUA_TNUMBER) {
        uint32_t i = (uint32_t)lua_tointeger(L, -1);
        if (strcmp(lo->p->pieces[i].layout, layout))
            luaL_error(L, "tensor '%s' in two layouts: '%s' and '%s'", t->name, lo->p->pieces[i].layout, layout);
        push_piece(L, i);
        return 1;
    }
    lua_pop(L, 1);
    uint32_t i = lo->p->n_pieces;
    struct piece *piece = APPEND(lo, pieces);
    *piece = (struct piece){.tensor = t, .name = t->name, .layout = copy(lo, layout), .quant = quant_find(t->type),
                            .rows = tensor_rows(t), .cols = tensor_cols(t), .gguf_bytes = t->bytes};
    if (!layout_bytes(layout, piece->quant, piece->rows, piece->cols, &piece->bytes))
        luaL_error(L, "layout '%s' does not take %s ('%s')", layout, piece->quant->name, t->name);
    lua_pushinteger(L, i);
    lua_rawsetp(L, -2, t);
    push_piece(L, i);
    return 1;
}

static int api_rope_table(lua_State *L) {
    struct lowering *lo = lowering_of(L);
    const struct model *m = lo->p->model;
    if (lo->op->layer == UINT32_MAX) luaL_error(L, "rope_table: the op is in no layer");
    bool local = m->layers[lo->op->layer].window;
    int *index = &lo->rope_piece[local];
    if (*index < 0) {
        uint64_t cols = m->rope_dim;
        float *table = NULL;   /* rope_freqs may be missing from a header, and nothing is made of it */
        if (!m->gguf->header_only) {
            table = arena_array(lo->a, (size_t)lo->p->ctx_max * cols, sizeof *table);
            reference_rope_table(m, local, lo->p->ctx_max, table);
        }
        *index = (int)lo->p->n_pieces;
        struct piece *piece = APPEND(lo, pieces);
        *piece = (struct piece){.name = local ? "rope_table_local" : "rope_table", .layout = "plain", .quant = &quant_formats[QUANT_F32],
                                .rows = lo->p->ctx_max, .cols = cols, .bytes = lo->p->ctx_max * cols * sizeof *table,
                                .constant = table};
    }
    push_piece(L, (uint32_t)*index);
    return 1;
}

static uint64_t cache_piece_bytes(const struct program *p, const char *kv) {
    const struct model *m = p->model;
    enum plan_dtype type = !strcmp(kv, "f16") ? PLAN_F16 : !strcmp(kv, "i16") ? PLAN_I16 : PLAN_F32;
    uint64_t units = (p->ctx_max + PLAN_CACHE_POSITIONS - 1) / PLAN_CACHE_POSITIONS * (uint64_t)m->n_head_kv;
    if (p->cache_units) return units * plan_cache_unit_bytes(type, m->head_dim);
    return u64_round_up((uint64_t)p->ctx_max * m->n_head_kv * m->head_dim * (type == PLAN_F16 ? 2 : 4), PLAN_ARENA_ALIGN);
}

static int api_cache(lua_State *L) {
    struct lowering *lo = lowering_of(L);
    const char *which = luaL_checkstring(L, 1);
    bool v = !strcmp(which, "v");
    if (!v && strcmp(which, "k")) luaL_error(L, "cache: 'k' or 'v'");
    if (lo->op->layer == UINT32_MAX) luaL_error(L, "cache: the op is in no layer");
    uint64_t one = cache_piece_bytes(lo->p, lo->kv);
    lua_createtable(L, 0, 2);
    set_integer(L, "_cache", (2u * lo->op->layer + v) * one);
    set_integer(L, "bytes", one);
    return 1;
}

static int api_ceil_div(lua_State *L) {
    lua_Integer a = luaL_checkinteger(L, 1), b = luaL_checkinteger(L, 2);
    if (a < 0 || b < 1) luaL_error(L, "ceil_div: out of range");
    lua_pushinteger(L, (a + b - 1) / b);
    return 1;
}

/* --- launch ------------------------------------------------------------------------------------ */

static const struct contract_template *find_template(lua_State *L, struct lowering *lo, const char *name) {
    for (unsigned i = 0; i < lo->p->n_templates; i++)
        if (!strcmp(lo->p->templates[i].name, name)) return &lo->p->templates[i];
    luaL_error(L, "launch: unknown template '%s'", name);
    return NULL;
}

static struct key_field *read_key(lua_State *L, struct lowering *lo, int table, unsigned *n) {
    unsigned count = 0;
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) count++;
    struct key_field *key = arena_array(lo->a, count + 1, sizeof *key);
    *n = 0;
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
        struct key_field *f = &key[(*n)++];
        if (lua_type(L, -2) != LUA_TSTRING) luaL_error(L, "launch: a key's names are strings");
        f->name = copy(lo, lua_tostring(L, -2));
        if (lua_isinteger(L, -1)) {
            f->type = KEY_INTEGER;
            f->integer = lua_tointeger(L, -1);
        } else if (lua_type(L, -1) == LUA_TNUMBER) {
            f->type = KEY_FLOAT;
            f->number = lua_tonumber(L, -1);
        } else if (lua_type(L, -1) == LUA_TSTRING) {
            f->type = KEY_STRING;
            f->string = copy(lo, lua_tostring(L, -1));
        } else luaL_error(L, "launch: key '%s' is neither a number nor a string", f->name);
    }
    kernel_sort_key(key, *n);
    return key;
}

static void index_grow(struct lowering *lo) {
    lo->kernel_index_room = lo->kernel_index_room ? lo->kernel_index_room * 2 : 512;
    lo->kernel_index = arena_array(lo->a, lo->kernel_index_room, sizeof *lo->kernel_index);
}

static uint32_t *index_slot(struct lowering *lo, const char *name) {
    struct hash128 h = hash_bytes(name, strlen(name));
    uint32_t i;
    memcpy(&i, h.bytes, sizeof i);
    for (;; i++) {
        uint32_t *slot = &lo->kernel_index[i & (lo->kernel_index_room - 1)];
        if (!*slot || !strcmp(lo->p->kernels[*slot - 1].name, name)) return slot;
    }
}

/* What a launch's key has beyond that of the choose() before it follows from what was chosen. */
static void mark_following(const struct lowering *lo, const struct contract_template *t, struct key_field *key, unsigned n_key) {
    for (unsigned i = 0; i < n_key && lo->chosen == t; i++) {
        bool given = false;
        for (unsigned j = 0; j < lo->n_chosen_key && !given; j++) given = !strcmp(lo->chosen_key[j].name, key[i].name);
        key[i].follows = !given;
    }
}

/* A kernel that has the template's text already; NULL: there is none. */
static const struct kernel *find_like(const struct lowering *lo, const struct contract_template *t) {
    for (unsigned i = 0; lo->like && i < lo->like->n_kernels; i++)
        if (lo->like->kernels[i].source && !strcmp(lo->like->kernels[i].template->name, t->name)) return &lo->like->kernels[i];
    return NULL;
}

/* The kernel of a template and a key; made when it is new. Parameters are a function of the two, so names are identities. */
static uint32_t find_kernel(lua_State *L, struct lowering *lo, const struct contract_template *t,
                            struct key_field *key, unsigned n_key) {
    const char *name = kernel_name(t, key, n_key, lo->a);
    if (lo->p->n_kernels * 2 >= lo->kernel_index_room) {
        index_grow(lo);
        for (uint32_t i = 0; i < lo->p->n_kernels; i++) *index_slot(lo, lo->p->kernels[i].name) = i + 1;
    }
    uint32_t *slot = index_slot(lo, name);
    if (*slot) return *slot - 1;
    uint32_t index = lo->p->n_kernels;
    struct kernel *k = APPEND(lo, kernels);
    *slot = index + 1;
    mark_following(lo, t, key, n_key);
    lo->choices = NULL;
    *k = (struct kernel){.template = t, .key = key, .n_key = n_key, .name = name, .n_choices = t->n_params};
    k->choices = arena_array(lo->a, t->n_params + 1u, sizeof *k->choices);
    k->forms = arena_array(lo->a, t->n_forms + 1u, sizeof *k->forms);
    if (!select_choose(lo->p->spec, t, key, n_key, k->choices, lo->a, lo->d)) luaL_error(L, "selection");
    if (!select_forms(lo->p->spec, t, key, n_key, k->forms, lo->a, lo->d)) luaL_error(L, "selection");
    bool wanted = !lo->only || !strcmp(lo->only, t->name);
    if (wanted && !kernel_source(k, find_like(lo, t), lo->dir, lo->a, lo->d)) luaL_error(L, "source");
    return index;
}

/* choose("matmul", key): the parameters that a launch with this key will get, for geometry that depends on them. */
static int api_choose(lua_State *L) {
    struct lowering *lo = lowering_of(L);
    const struct contract_template *t = find_template(L, lo, luaL_checkstring(L, 1));
    luaL_checktype(L, 2, LUA_TTABLE);
    unsigned n_key;
    struct key_field *key = read_key(L, lo, 2, &n_key);
    struct choice *choices = arena_array(lo->a, t->n_params + 1u, sizeof *choices);
    lo->chosen = t, lo->chosen_key = key, lo->n_chosen_key = n_key, lo->choices = NULL;
    if (!select_choose(lo->p->spec, t, key, n_key, choices, lo->a, lo->d)) luaL_error(L, "selection");
    struct choice *forms = arena_array(lo->a, t->n_forms + 1u, sizeof *forms);
    if (!select_forms(lo->p->spec, t, key, n_key, forms, lo->a, lo->d)) luaL_error(L, "selection");
    lo->choices = choices;
    lua_createtable(L, 0, (int)(t->n_params + t->n_forms));
    for (unsigned i = 0; i < t->n_params; i++) set_integer(L, choices[i].name, (uint64_t)choices[i].value);
    for (unsigned i = 0; i < t->n_forms; i++) set_string(L, forms[i].name, forms[i].word);
    return 1;
}

static void touch_value(struct lowering *lo, uint32_t index) {
    struct value *v = &lo->p->values[index];
    uint32_t at = lo->p->n_launches - 1 - lo->phase_first;   /* the launch is appended already */
    if (v->first == UINT32_MAX) v->first = at;
    if (v->last < at) v->last = at;
}

static void read_arg(lua_State *L, struct lowering *lo, struct launch_arg *arg, const char *name) {
    int table = lua_gettop(L);
    int64_t i;
    if ((i = hidden_index(L, table, "_value")) >= 0) {
        const struct value *v = &lo->p->values[i];
        if (!v->dtype) luaL_error(L, "launch: value '%s' is used before define()", v->name);
        *arg = (struct launch_arg){PLAN_SPACE_ARENA, (uint32_t)i, 0, v->bytes};
        touch_value(lo, (uint32_t)i);
        return;
    }
    lua_settop(L, table);
    if ((i = hidden_index(L, table, "_piece")) >= 0) {
        *arg = (struct launch_arg){PLAN_SPACE_WEIGHTS, (uint32_t)i, 0, lo->p->pieces[i].bytes};
        return;
    }
    lua_settop(L, table);
    if ((i = hidden_index(L, table, "_cache")) >= 0) {
        *arg = (struct launch_arg){PLAN_SPACE_CACHE, 0, (uint64_t)i, (uint64_t)hidden_index(L, table, "bytes")};
        return;
    }
    luaL_error(L, "launch: argument '%s' is missing or no value, weight or cache", name);
}

static uint64_t number_field(lua_State *L, int table, const char *key, int64_t otherwise) {
    int64_t v = otherwise;
    if (lua_getfield(L, table, key) != LUA_TNIL) v = luaL_checkinteger(L, -1);
    lua_pop(L, 1);
    if (v < 0) luaL_error(L, "launch: '%s' is missing or negative", key);
    return (uint64_t)v;
}

static int api_launch(lua_State *L) {
    struct lowering *lo = lowering_of(L);
    if (!lo->op) luaL_error(L, "launch outside of a lower function");
    for (int i = 2; i <= 4; i++) luaL_checktype(L, i, LUA_TTABLE);
    const struct contract_template *t = find_template(L, lo, luaL_checkstring(L, 1));
    unsigned n_key;
    struct key_field *key = read_key(L, lo, 3, &n_key);
    uint32_t kernel = find_kernel(L, lo, t, key, n_key);
    struct launch *l = APPEND(lo, launches);
    l->kernel = kernel;
    l->op = lo->op;
    l->n_args = t->n_args;
    l->items = (uint32_t)number_field(L, 4, "items", -1);
    l->chunk = (uint32_t)number_field(L, 4, "chunk", 1);
    l->grid_y = (uint32_t)number_field(L, 4, "grid_y", 1);
    l->grid_z = (uint32_t)number_field(L, 4, "grid_z", 1);
    l->shared_bytes = (uint32_t)number_field(L, 4, "shared", 0);
    l->bytes = number_field(L, 4, "bytes", 0);
    l->flops = number_field(L, 4, "flops", 0);
    lua_getfield(L, 4, "barrier");
    l->barrier = lua_toboolean(L, -1) || lo->p->n_launches - 1 == lo->phase_first;
    lua_settop(L, 4);
    if (!l->items || !l->chunk || !l->grid_y || !l->grid_z) luaL_error(L, "launch: items, chunk and grid are at least 1");
    for (unsigned i = 0; i < t->n_args; i++) {
        lua_getfield(L, 2, t->args[i]);
        read_arg(L, lo, &l->args[i], t->args[i]);
        lua_settop(L, 4);
    }
    unsigned given = 0;
    for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1)) given++;
    if (given != t->n_args) luaL_error(L, "launch: '%s' takes %d arguments, not %d", t->name, (int)t->n_args, (int)given);
    return 0;
}

/* --- ops --------------------------------------------------------------------------------------- */

static void set_tensor(lua_State *L, const char *role, const struct gguf_tensor *t) {
    if (!t) return;
    char key[64];
    size_t n = strlen(role);
    const char *dot = strrchr(role, '.');
    bool weight = dot && !strcmp(dot, ".weight");
    snprintf(key, sizeof key, "%.*s%s", (int)(dot ? (size_t)(dot - role) : n), role, weight || !dot ? "" : "_bias");
    lua_createtable(L, 0, 6);
    set_string(L, "name", t->name);
    set_string(L, "quant", quant_find(t->type)->name);
    set_integer(L, "m", tensor_rows(t));
    set_integer(L, "k", tensor_cols(t));
    set_integer(L, "bytes", t->bytes);
    lua_pushlightuserdata(L, (void *)(uintptr_t)t);
    lua_setfield(L, -2, "_tensor");
    lua_setfield(L, -2, key);
}

static void push_weights(lua_State *L, const struct model *m, const struct op *op) {
    lua_newtable(L);
    for (unsigned r = 0; r < ROLE_COUNT; r++) set_tensor(L, model_role_names[r], m->role[r]);
    if (op->layer == UINT32_MAX) return;
    for (unsigned r = 0; r < ROLE_LAYER_COUNT; r++)
        set_tensor(L, model_layer_role_names[r], m->layers[op->layer].role[r]);
}

static void push_dims(lua_State *L, const struct lowering *lo, const struct op *op) {
    const struct model *m = lo->p->model;
    lua_newtable(L);
    set_integer(L, "n_layer", m->n_layer);
    set_integer(L, "n_embd", m->n_embd);
    set_integer(L, "n_head", m->n_head);
    set_integer(L, "n_head_kv", m->n_head_kv);
    set_integer(L, "head_dim", m->head_dim);
    set_integer(L, "n_vocab", m->n_vocab);
    set_integer(L, "rope_dim", m->rope_dim);
    set_integer(L, "rope_neox", m->rope_neox);
    set_integer(L, "ctx", lo->p->ctx_max);
    if (op->layer != UINT32_MAX) set_integer(L, "n_ff", m->layers[op->layer].n_ff);
    if (op->layer != UINT32_MAX && m->layers[op->layer].window) set_integer(L, "window", m->layers[op->layer].window);
    if (m->arch->act != MODEL_SILU) set_string(L, "act", model_act_names[m->arch->act]);
    if (m->embd_scale != 1) {
        lua_pushnumber(L, (double)m->embd_scale);
        lua_setfield(L, -2, "embd_scale");
    }
    lua_pushnumber(L, m->rms_eps);
    lua_setfield(L, -2, "rms_eps");
}

static void value_pin(struct lowering *lo, enum graph_value which, const char *name, uint64_t rows, uint64_t cols,
                      enum plan_dtype t) {
    lo->value[which] = value_new(lo, name, rows, cols);   /* which may move the values */
    struct value *v = &lo->p->values[lo->value[which]];
    v->pinned = true;
    value_type(lo->lua, v, t);
}

/* New graph values for what the op produces; x is one value a phase, as large as the largest bucket, so that its rows
 * stand where head looks for them. */
static void op_values_new(struct lowering *lo, const struct op *op) {
    const struct model *m = lo->p->model;
    uint64_t heads = (uint64_t)m->n_head * m->head_dim;
    switch (op->kind) {
    case OP_QKV: lo->value[VALUE_Q] = value_new(lo, "q", op->n, heads); break;
    case OP_ATTENTION: lo->value[VALUE_O] = value_new(lo, "o", op->n, heads); break;
    case OP_FFN_UP: lo->value[VALUE_H] = value_new(lo, "h", op->n, m->layers[op->layer].n_ff); break;
    case OP_HEAD: value_pin(lo, VALUE_LOGITS, "logits", 1, m->n_vocab, PLAN_F32); break;
    case OP_CANDIDATES:
        value_pin(lo, VALUE_LOGITS, "logits", 1, m->n_vocab, PLAN_F32);
        value_pin(lo, VALUE_CANDIDATES, "candidates", PLAN_CANDIDATES_MAX, 2, PLAN_I32);
        break;
    default: break;
    }
}

static void push_op(lua_State *L, struct lowering *lo, const struct op *op) {
    static const struct { const char *name; enum graph_value v; } fields[] = {
        {"x", VALUE_X}, {"q", VALUE_Q}, {"o", VALUE_O}, {"h", VALUE_H}, {"logits", VALUE_LOGITS},
        {"candidates", VALUE_CANDIDATES}};
    lua_newtable(L);
    set_string(L, "kind", graph_op_names[op->kind]);
    set_string(L, "kv", lo->kv);
    set_integer(L, "n", op->n);
    if (op->layer != UINT32_MAX) set_integer(L, "layer", op->layer);
    push_dims(L, lo, op);
    lua_setfield(L, -2, "dims");
    push_weights(L, lo->p->model, op);
    lua_setfield(L, -2, "w");
    for (size_t i = 0; i < COUNT(fields); i++) {
        if (lo->value[fields[i].v] == UINT32_MAX) continue;
        push_value(L, lo, lo->value[fields[i].v]);
        lua_setfield(L, -2, fields[i].name);
    }
}

/* The function that lowers an op, on the stack; false, and nothing there: the contract leaves an optional one out. */
static bool push_lower(lua_State *L, enum op_kind kind) {
    lua_getglobal(L, "lower");
    if (lua_istable(L, -1) && lua_getfield(L, -1, graph_op_names[kind]) == LUA_TFUNCTION) return true;
    if (kind != OP_CHOOSE && kind != OP_CANDIDATES) luaL_error(L, "the contract has no lower.%s", graph_op_names[kind]);
    lua_settop(L, 0);
    return false;
}

static void lower_op(lua_State *L, struct lowering *lo, const struct op *op) {
    if (!push_lower(L, op->kind)) return;
    lo->op = op;
    op_values_new(lo, op);
    push_op(L, lo, op);
    lua_call(L, 1, 0);
    lua_pop(L, 1);
}

static void lower_phase(lua_State *L, struct lowering *lo, const struct graph_phase *gp) {
    struct program *p = lo->p;
    for (unsigned v = 0; v < VALUE_COUNT; v++) lo->value[v] = UINT32_MAX;
    lo->phase_first = p->n_launches;
    lo->value[VALUE_X] = value_new(lo, "x", lo->max_tokens, p->model->n_embd);
    p->values[lo->value[VALUE_X]].pinned = true;
    value_type(L, &p->values[lo->value[VALUE_X]], PLAN_F32);
    for (unsigned i = 0; i < gp->n_ops; i++) lower_op(L, lo, &gp->ops[i]);
    struct program_phase *out = &p->phases[lo->phase];
    *out = (struct program_phase){gp->kind, gp->n_tokens, lo->phase_first, p->n_launches - lo->phase_first, 0};
    assert(out->n_launches > 0);
    struct value *x = &p->values[lo->value[VALUE_X]];
    x->first = 0;
    x->last = out->n_launches - 1;
    if (lo->value[VALUE_LOGITS] != UINT32_MAX) p->values[lo->value[VALUE_LOGITS]].last = out->n_launches - 1;
}

static void set_target(lua_State *L, const struct spec *s) {
    lua_createtable(L, 0, 2);
    set_integer(L, "sms", (uint64_t)spec_get(s, "target.sms")->integer);
    set_integer(L, "smem_kib", (uint64_t)spec_get(s, "target.smem_kib")->integer);
    lua_setglobal(L, "target");
}

static int keep_chunk(lua_State *L, const void *p, size_t bytes, void *out) {
    (void)L;
    buffer_append(out, p, bytes);
    return 0;
}

/* The contract as a function on the stack, and in the program for others like it: a tune lowers thousands. */
static void load_contract(lua_State *L, struct lowering *lo) {
    const char *path = arena_printf(lo->a, "%s/contract.lua", lo->dir);
    struct buffer b = {0};
    int status = lo->like ? luaL_loadbufferx(L, lo->like->contract, lo->like->contract_bytes, path, "b") : luaL_loadfilex(L, path, "t");
    if (status != LUA_OK) lua_error(L);
    if (lo->like) return;
    lua_dump(L, keep_chunk, &b, false);
    lo->p->contract = arena_copy(lo->a, b.data, b.bytes), lo->p->contract_bytes = b.bytes;
    buffer_free(&b);
}

/* Runs under lua_pcall, so that any error of the contract lands in one place. */
static int lower_graph(lua_State *L) {
    struct lowering *lo = lowering_of(L);
    set_target(L, lo->p->spec);
    lua_newtable(L);
    lua_setglobal(L, "lower");
    load_contract(L, lo);
    lua_call(L, 0, 0);
    if (!(lo->p->spec = tuned_apply(lo->p->spec, lo->p->templates, lo->p->n_templates, lo->dir, lo->a, lo->d))) luaL_error(L, "tuned");
    if (!select_check(lo->p->spec, lo->p->templates, lo->p->n_templates, lo->d)) luaL_error(L, "spec");
    for (unsigned i = 0; i < lo->p->graph->n_phases; i++) {
        const struct graph_phase *gp = &lo->p->graph->phases[i];
        if (gp->kind == PLAN_PHASE_CANDIDATES && !push_lower(L, OP_CANDIDATES)) continue;   /* the last, if any */
        lua_settop(L, 0);
        lo->phase = lo->p->n_phases++;
        lower_phase(L, lo, gp);
    }
    return 0;
}

static lua_State *state_new(struct lowering *lo) {
    static const luaL_Reg api[] = {
        {"template", api_template}, {"launch", api_launch}, {"weight", api_weight}, {"scratch", api_scratch},
        {"define", api_define}, {"cache", api_cache}, {"choose", api_choose}, {"rope_table", api_rope_table}, {"ceil_div", api_ceil_div}};
    lua_State *L = luaL_newstate();
    if (!L) base_fail("out of memory");
    *(struct lowering **)lua_getextraspace(L) = lo;
    luaL_requiref(L, "_G", luaopen_base, 1);
    luaL_requiref(L, "string", luaopen_string, 1);
    luaL_requiref(L, "table", luaopen_table, 1);
    luaL_requiref(L, "math", luaopen_math, 1);
    lua_settop(L, 0);
    for (size_t i = 0; i < COUNT(api); i++) lua_register(L, api[i].name, api[i].func);
    lua_newtable(L);
    lua_setfield(L, LUA_REGISTRYINDEX, "pieces");
    return L;
}

static uint32_t largest_bucket(const struct graph *g) {
    uint32_t n = 1;
    for (unsigned i = 0; i < g->n_phases; i++)
        if (g->phases[i].n_tokens > n) n = g->phases[i].n_tokens;
    return n;
}

/* Where the parameters come from of a launch that the contract could not make. */
static void note_choices(const struct lowering *lo) {
    const char *text = "";
    for (unsigned i = 0; lo->choices && i < lo->chosen->n_params; i++) {
        const struct choice *c = &lo->choices[i];
        if (strcmp(c->reason, "default")) text = arena_printf(lo->a, "%s%s%s = %lld (%s)", text, *text ? ", " : "", c->name, (long long)c->value, c->reason);
    }
    if (*text) diag_note(lo->d, "of that launch are set: %s", text);
}

/* Run the contract over the graph's phases (none: only its declarations and the spec's entries are checked). */
static bool contract_run(struct lowering *lo) {
    lo->dir = arena_printf(lo->a, "%s/templates/%s", base_home(), spec_get(lo->p->spec, "target.device")->string);
    lo->lua = state_new(lo);
    lua_pushcfunction(lo->lua, lower_graph);
    unsigned before = lo->d->errors;
    bool ok = lua_pcall(lo->lua, 0, 0, 0) == LUA_OK;
    if (!ok && lo->d->errors == before) {
        diag_error(lo->d, "contract", NULL, "%s", lua_tostring(lo->lua, -1));
        note_choices(lo);
    }
    lua_close(lo->lua);
    return ok;
}

bool contract_declare(struct program *p, const struct spec *s, struct arena *a, struct diag *d) {
    static const struct graph none;
    *p = (struct program){.spec = s, .graph = &none};
    struct lowering lo = {.p = p, .a = a, .d = d};
    return contract_run(&lo);
}

bool contract_check(const struct spec *s, struct arena *a, struct diag *d) {
    struct program p;
    return contract_declare(&p, s, a, d);
}

static void place_pieces(struct program *p) {
    uint64_t offset = 0;
    for (unsigned i = 0; i < p->n_pieces; i++) {   /* in the order of first use, which is the order of reading */
        p->pieces[i].offset = offset;
        offset += u64_round_up(p->pieces[i].bytes, PLAN_WEIGHT_ALIGN);
    }
}

void contract_note_context(const struct program *p, struct diag *d) {
    const struct spec_value *v = spec_get(p->spec, "memory.ctx_max");
    if (p->ctx_max >= v->integer || !strcmp(v->place.file, "specs/defaults.lua")) return;
    const char *line = v->place.line ? ":" : "";
    diag_note(d, "%s%s%.0u: memory.ctx_max = %lld is more than the model was trained for: the context is %u tokens", v->place.file, line,
              v->place.line, (long long)v->integer, p->ctx_max);
}

bool contract_lower(struct program *p, const struct model *m, const struct spec *s, const struct graph *g,
                    struct arena *a, struct diag *d) {
    return contract_lower_one(p, NULL, m, s, g, NULL, a, d);
}

bool contract_lower_one(struct program *p, const struct program *like, const struct model *m, const struct spec *s, const struct graph *g,
                        const char *template_name, struct arena *a, struct diag *d) {
    uint64_t ctx = (uint64_t)spec_get(s, "memory.ctx_max")->integer;
    *p = (struct program){.model = m, .spec = s, .graph = g};
    p->phases = arena_array(a, g->n_phases, sizeof *p->phases);
    p->ctx_max = (uint32_t)(m->ctx_train && m->ctx_train < ctx ? m->ctx_train : ctx);
    struct lowering lo = {.p = p, .a = a, .d = d, .kv = spec_get(s, "memory.kv")->string, .rope_piece = {-1, -1},
                          .only = template_name, .like = like, .max_tokens = largest_bucket(g)};
    p->cache_units = !strcmp(spec_get(s, "target.device")->string, "cpu");
    p->cache_bytes = 2 * (uint64_t)m->n_layer * cache_piece_bytes(p, lo.kv);
    bool ok = contract_run(&lo);
    ok = ok && select_check_matches(p, d);
    if (ok) place_pieces(p);
    return ok;
}
