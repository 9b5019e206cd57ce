/* The GGUF parser: good files of both versions, and every kind of bad one, each refused with the
 * words that help, in little memory and time. Run under ASan for the full effect: a file's copy
 * ends where it ends.
 */
#include "gguf_builder.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MEMORY_MAX = 64 << 20 };

static void expect_refused(const void *file, size_t bytes, const char *const *texts) {
    struct outcome o;
    outcome_open(&o, file, bytes);
    if (o.ok) fail_msg("taken; expected '%s'", texts[0]);
    assert_true(o.diag.errors >= 1);
    assert_int_equal(strncmp(o.text, "error: t.gguf", 13), 0);
    expect_texts(o.text, texts);
    assert_true(o.arena.bytes < MEMORY_MAX);
    assert_true(o.seconds < 1);
    outcome_close(&o);
}

static void finish_refused(struct builder *b, const char *const *texts) {
    struct buffer file = build_finish(b);
    expect_refused(file.data, file.bytes, texts);
    buffer_free(&file);
}

static struct builder small(void) {
    struct builder b = { 0 };
    build_text(&b, "general.architecture", "llama");
    build_u32(&b, "llama.block_count", 2);
    build_tensor(&b, "first", 0, 10, 0);
    build_tensor(&b, "second", 8, 64, 3);
    return b;
}

/* ---- files that are taken ---- */

static void test_good_versions(void **state) {
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct builder b = small();
        b.version = version;
        struct buffer file = build_finish(&b);
        struct outcome o;
        outcome_open(&o, file.data, file.bytes);
        assert_string_equal(o.text, "");
        assert_true(o.ok);
        assert_int_equal(o.gguf.version, version);
        assert_int_equal(o.gguf.n_tensors, 2);
        assert_int_equal(o.gguf.alignment, 32);
        const struct gguf_tensor *t = gguf_find_tensor(&o.gguf, "second");
        assert_non_null(t);
        assert_int_equal(t->dims[0], 64);
        assert_int_equal(t->dims[1], 3);
        assert_int_equal(t->dims[2], 1);
        assert_int_equal(t->bytes, 6 * 34);
        assert_int_equal(t->offset % 32, 0);
        assert_ptr_equal(t->data + t->bytes, o.bytes + file.bytes);
        assert_ptr_equal(t->data, o.bytes + t->offset);
        float one;
        memcpy(&one, gguf_find_tensor(&o.gguf, "first")->data, 4);
        assert_true(one == 1);
        assert_null(gguf_find_tensor(&o.gguf, "third"));
        outcome_close(&o);
        buffer_free(&file);
    }
}

static void test_values(void **state) {
    (void)state;
    struct builder b = small();
    uint8_t u8 = 200, yes = 1;
    int16_t i16 = -3;
    int64_t i64 = 5;
    double f64 = 0.1;
    uint16_t u16s[3] = { 1, 2, 65535 };
    int8_t i8s[2] = { -1, 2 };
    float f32s[2] = { 0.5f, -2 };
    build_kv(&b, "u8", GGUF_U8, &u8, 1);
    build_kv(&b, "yes", GGUF_BOOL, &yes, 1);
    build_kv(&b, "i16", GGUF_I16, &i16, 2);
    build_kv(&b, "i64", GGUF_I64, &i64, 8);
    build_kv(&b, "f64", GGUF_F64, &f64, 8);
    build_f32(&b, "f32", 1.5f);
    build_u64(&b, "u64", UINT64_MAX);
    build_array(&b, "u16s", GGUF_U16, 3, u16s, 6);
    build_array(&b, "i8s", GGUF_I8, 2, i8s, 2);
    build_array(&b, "f32s", GGUF_F32, 2, f32s, 8);
    build_array(&b, "none", GGUF_STRING, 0, NULL, 0);
    build_tokens(&b, 300);
    struct buffer file = build_finish(&b);
    struct outcome o;
    outcome_open(&o, file.data, file.bytes);
    const struct gguf *g = &o.gguf;
    struct diag *d = &o.diag;
    bool found = false;
    assert_true(o.ok);
    assert_int_equal(gguf_u64(g, "u8", 0, &found, d), 200);
    assert_true(found);
    assert_int_equal(gguf_u64(g, "absent", 77, &found, d), 77);
    assert_false(found);
    assert_int_equal(gguf_u64(g, "i64", 0, NULL, d), 5);
    assert_true(gguf_u64(g, "u64", 0, NULL, d) == UINT64_MAX);
    assert_true(gguf_f64(g, "f64", 0, NULL, d) == 0.1);
    assert_true(gguf_f64(g, "f32", 0, NULL, d) == 1.5);
    assert_true(gguf_bool(g, "yes", false, NULL, d));
    struct gguf_string s = gguf_string(g, "general.architecture", NULL, d);
    assert_int_equal(s.bytes, 5);
    assert_memory_equal(s.p, "llama", 5);
    assert_int_equal(gguf_item_u64(gguf_find(g, "u16s"), 2), 65535);
    assert_true(gguf_item_u64(gguf_find(g, "i8s"), 0) == UINT64_MAX);
    assert_true(gguf_item_f64(gguf_find(g, "f32s"), 1) == -2);
    assert_int_equal(gguf_find(g, "none")->count, 0);
    gguf_strings(gguf_find(g, "none"), &o.arena);
    struct gguf_string *tokens = gguf_strings(gguf_find(g, "tokenizer.ggml.tokens"), &o.arena);
    assert_int_equal(tokens[299].bytes, 4);
    assert_memory_equal(tokens[299].p, "t299", 4);
    assert_int_equal(d->errors, 0);

    assert_int_equal(gguf_u64(g, "i16", 9, &found, d), 9);
    assert_int_equal(gguf_u64(g, "f32", 9, &found, d), 9);
    assert_true(found);
    assert_int_equal(gguf_u64(g, "yes", 9, NULL, d), 9);
    assert_int_equal(gguf_u64(g, "u16s", 9, NULL, d), 9);
    assert_true(gguf_f64(g, "u8", 9, NULL, d) == 9);
    assert_false(gguf_bool(g, "u8", false, NULL, d));
    assert_int_equal(gguf_string(g, "u8", NULL, d).bytes, 0);
    assert_int_equal(d->errors, 7);
    fflush(d->out);
    expect_texts(o.text, TEXTS("key 'i16' is -3, which is negative",
                               "key 'f32' is of type float32; expected an integer",
                               "key 'u16s' is of type array of uint16; expected an integer",
                               "expected bool", "expected string", "error: t.gguf+0x"));
    outcome_close(&o);
    buffer_free(&file);
}

static void test_alignments(void **state) {
    (void)state;
    for (uint32_t alignment = 1; alignment <= 4096; alignment *= 2) {
        struct builder b = { .alignment = alignment };
        build_u32(&b, "general.alignment", alignment);
        build_tensor(&b, "first", 0, 3, 0);
        build_tensor(&b, "second", 0, 3, 0);
        if (alignment < 8) {
            finish_refused(&b, TEXTS("general.alignment", "power of two"));
            continue;
        }
        struct buffer file = build_finish(&b);
        struct outcome o;
        outcome_open(&o, file.data, file.bytes);
        assert_true(o.ok);
        assert_int_equal(o.gguf.tensors[1].offset,
                         o.gguf.data_offset + (alignment > 16 ? alignment : 16));
        outcome_close(&o);
        buffer_free(&file);
    }
    static const uint32_t bad[] = { 0, 24, 33, 1u << 31 };
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct builder b = small();
        build_u32(&b, "general.alignment", bad[i]);
        finish_refused(&b, TEXTS("general.alignment", "power of two", "[gguf-alignment]"));
    }
    struct builder b = small();
    build_text(&b, "general.alignment", "32");
    finish_refused(&b, TEXTS("general.alignment", "expected an integer"));
}

static void test_no_tensors(void **state) {
    (void)state;
    struct builder b = { 0 };
    build_tokens(&b, 3);
    struct buffer file = build_finish(&b);
    struct outcome o;
    outcome_open(&o, file.data, file.bytes);
    assert_true(o.ok);
    outcome_close(&o);
    buffer_free(&file);
}

/* ---- files cut short, and files that are none ---- */

static void test_every_cut(void **state) {
    (void)state;
    struct builder b = small();
    struct buffer file = build_finish(&b);
    char size[64];
    for (size_t n = 0; n < file.bytes; n++) {
        snprintf(size, sizeof size, "%zu", n);
        expect_refused(file.data, n, TEXTS(size, "need"));
    }
    expect_refused(file.data, 0, TEXTS("the file is empty"));
    expect_refused(file.data, 3,
                   TEXTS("has 3 bytes, and at least 24 are needed", "gguf-truncated"));
    expect_refused(file.data, 23, TEXTS("has 23 bytes, and at least 24 are needed"));
    char needed[64];
    snprintf(needed, sizeof needed, "has %zu bytes; %zu are needed", file.bytes - 1, file.bytes);
    expect_refused(file.data, file.bytes - 1, TEXTS("tensor 'second' [64, 3]", needed));
    size_t data = file.bytes - 64 - 6 * 34;   /* the first tensor takes 40 bytes, 64 aligned */
    snprintf(needed, sizeof needed, "has %zu bytes; %zu are needed", data, file.bytes);
    expect_refused(file.data, data,
                   TEXTS("tensor 'first' [10]", needed, "first of 2 tensors outside"));
    buffer_free(&file);
}

static void test_other_files(void **state) {
    (void)state;
    const char *html = "\xef\xbb\xbf\n  <!DOCTYPE html>\n<html><body>Not found</body></html>";
    const char *html2 = "<HTML><head>",
               *lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n";
    expect_refused(html, strlen(html), TEXTS("not a model but a web page", "download again"));
    expect_refused(html2, strlen(html2), TEXTS("not a model but a web page", "download again"));
    expect_refused(lfs, strlen(lfs), TEXTS("Git-LFS pointer", "download again"));
    expect_refused("PK\3\4\0\0\0\0", 8, TEXTS("not a GGUF model", "PK\\x03\\x04"));
    expect_refused("<", 1, TEXTS("not a GGUF model"));
    expect_refused("FUGG\0\0\0\3", 8, TEXTS("other byte order"));
}

static void test_versions(void **state) {
    (void)state;
    static const uint32_t bad[] = { 0, 1, 4, 77 };
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct builder b = small();
        struct buffer file = build_finish(&b);
        memcpy(file.data + 4, &bad[i], 4);
        char text[64];
        snprintf(text, sizeof text, "version %u not supported", bad[i]);
        expect_refused(file.data, file.bytes, TEXTS(text));
        buffer_free(&file);
    }
    struct builder b = small();
    struct buffer file = build_finish(&b);
    memcpy(file.data + 4, "\0\0\0\3", 4);
    struct outcome o;
    outcome_open(&o, file.data, file.bytes);
    assert_false(o.ok);
    expect_texts(o.text, TEXTS("other byte order"));
    assert_null(strstr(o.text, "corrupt"));
    outcome_close(&o);
    buffer_free(&file);
}

static void test_open(void **state) {
    (void)state;
    char folder[] = "/tmp/test_gguf.XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    struct outcome o;
    outcome_open(&o, "", 0);
    assert_false(gguf_open(&o.gguf, path, &o.arena, &o.diag));
    assert_false(gguf_open(&o.gguf, folder, &o.arena, &o.diag));
    assert_false(gguf_open(&o.gguf, "/dev/null", &o.arena, &o.diag));
    fflush(o.diag.out);
    expect_texts(o.text, TEXTS("No such file", "Is a directory", "not a regular file", path));
    struct builder b = small();
    struct buffer file = build_finish(&b);
    assert_true(file_write(path, file.data, file.bytes));
    assert_true(gguf_open(&o.gguf, path, &o.arena, &o.diag));
    assert_int_equal(o.gguf.n_tensors, 2);
    assert_true(strstr(gguf_place(&o.gguf, 0x1f40), "/m.gguf+0x1f40") != NULL);
    gguf_close(&o.gguf);
    outcome_close(&o);
    buffer_free(&file);
    unlink(path);
    rmdir(folder);
}

/* A header without its weights, or with some of them: places and sizes are known, contents are not made up, and gguf_parse
 * takes none of it. */
static void test_header_alone(void **state) {
    (void)state;
    char folder[] = "/tmp/test_gguf.XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    struct builder b = small();
    struct buffer file = build_finish(&b);
    struct outcome whole;
    outcome_open(&whole, file.data, file.bytes);
    uint64_t header = whole.gguf.data_offset, first_end = whole.gguf.tensors[0].offset + whole.gguf.tensors[0].bytes;
    for (uint64_t bytes = header; bytes < file.bytes; bytes++) {
        struct outcome o;
        outcome_open(&o, file.data, bytes);
        assert_false(o.ok);
        assert_true(file_write(path, file.data, bytes));
        assert_true(gguf_open_header(&o.gguf, path, &o.arena, &o.diag));
        assert_int_equal(o.gguf.whole_bytes, file.bytes);
        for (uint64_t i = 0; i < 2; i++) {
            assert_int_equal(o.gguf.tensors[i].offset, whole.gguf.tensors[i].offset);
            assert_int_equal(o.gguf.tensors[i].bytes, whole.gguf.tensors[i].bytes);
        }
        assert_int_equal(o.gguf.tensors[0].data != NULL, bytes >= first_end);
        assert_null(o.gguf.tensors[1].data);
        gguf_close(&o.gguf);
        outcome_close(&o);
    }
    struct outcome o;
    outcome_open(&o, "", 0);
    assert_true(file_write(path, file.data, file.bytes));
    assert_true(gguf_open_header(&o.gguf, path, &o.arena, &o.diag));
    assert_memory_equal(o.gguf.tensors[1].data, whole.gguf.tensors[1].data, whole.gguf.tensors[1].bytes);
    gguf_close(&o.gguf);
    assert_false(gguf_open_header(&o.gguf, folder, &o.arena, &o.diag));
    assert_false(gguf_open_header(&o.gguf, "/dev/null", &o.arena, &o.diag));
    assert_false(gguf_open_header(&o.gguf, "/dev/zero", &o.arena, &o.diag));
    fflush(o.diag.out);
    expect_texts(o.text, TEXTS("Is a directory", "/dev/null: the file is empty", "/dev/zero: this is not a GGUF model"));
    outcome_close(&o);
    outcome_close(&whole);
    buffer_free(&file);
    unlink(path);
    rmdir(folder);
}

/* ---- hostile counts ---- */

static void test_counts(void **state) {
    (void)state;
    static const uint64_t bad[] = { (uint64_t)1 << 31, (uint64_t)1 << 61, (uint64_t)1 << 63,
                                    UINT64_MAX, 10 };
    for (size_t i = 0; i < COUNT(bad); i++)
        for (int field = 0; field < 2; field++) {
            uint8_t file[100] = "GGUF\3";
            memcpy(file + (field ? 16 : 8), &bad[i], 8);
            char text[64];
            snprintf(text, sizeof text, "promises %" PRIu64 " %s", bad[i],
                     field ? "keys" : "tensors");
            expect_refused(file, sizeof file, TEXTS(text, "the file has 100"));
        }
}

/* Counts that the bytes would allow, but no model has. */
static void test_count_limits(void **state) {
    (void)state;
    struct buffer file = { 0 };
    buffer_append(&file, "GGUF\3\0\0\0", 8);
    buffer_append(&file, NULL, 4 << 20);
    uint64_t n = 100000;
    memcpy(file.data + 8, &n, 8);
    expect_refused(file.data, file.bytes, TEXTS("100000 tensors; at most", "[gguf-count]"));
    memset(file.data + 8, 0, 8);
    memcpy(file.data + 16, &n, 8);
    expect_refused(file.data, file.bytes, TEXTS("100000 keys; at most"));
    buffer_free(&file);
}

static void test_string_lengths(void **state) {
    (void)state;
    static const uint64_t bad[] = { (uint64_t)1 << 63, UINT64_MAX, 41, 1 << 20 };
    for (size_t i = 0; i < COUNT(bad); i++) {
        uint8_t value[48] = { 0 };
        memcpy(value, &bad[i], 8);
        struct builder b = { 0 };
        build_kv(&b, "k", GGUF_STRING, value, sizeof value);   /* the value is all that is left */
        finish_refused(&b, TEXTS("gguf-truncated", "bytes, and at least"));
        struct buffer file = { 0 };   /* the same as a key */
        buffer_append(&file, "GGUF\3\0\0\0", 8);
        put_u64(&file, 0);
        put_u64(&file, 1);
        buffer_append(&file, value, sizeof value);
        expect_refused(file.data, file.bytes, TEXTS("gguf-truncated"));
        buffer_free(&file);
    }
}

static void test_arrays(void **state) {
    (void)state;
    static const uint64_t bad[] = { (uint64_t)1 << 63, UINT64_MAX, (uint64_t)1 << 61, 100 };
    static const uint32_t types[] = { GGUF_U8, GGUF_F32, GGUF_U64, GGUF_STRING, GGUF_BOOL };
    for (size_t i = 0; i < COUNT(bad); i++)
        for (size_t j = 0; j < COUNT(types); j++) {
            struct builder b = { 0 };
            build_array(&b, "list", types[j], bad[i], "0123456789", 10);
            finish_refused(&b, TEXTS("key 'list'", "gguf-truncated"));
        }
    struct builder b = { 0 };
    build_array(&b, "list", 255, 3, "0123456789", 10);
    finish_refused(&b, TEXTS("key 'list'", "unknown value type 255"));
    b = (struct builder){ 0 };
    build_kv(&b, "odd", 13, "0123456789", 10);
    finish_refused(&b, TEXTS("key 'odd'", "unknown value type 13"));
}

static void test_nested_arrays(void **state) {
    (void)state;
    struct buffer value = { 0 };
    for (int depth = 0; depth < 10000; depth++) {
        put_u32(&value, GGUF_ARRAY);
        put_u64(&value, 1);
    }
    put_u32(&value, GGUF_U8);
    put_u64(&value, 0);
    struct builder b = { 0 };
    build_kv(&b, "deep", GGUF_ARRAY, value.data, value.bytes);
    finish_refused(&b, TEXTS("key 'deep'", "arrays of arrays"));
    buffer_free(&value);
}

static void test_keys(void **state) {
    (void)state;
    struct builder b = small();
    build_u32(&b, "llama.block_count", 3);
    finish_refused(&b, TEXTS("key 'llama.block_count' occurs twice"));
    b = small();
    build_u32(&b, "", 3);
    finish_refused(&b, TEXTS("key '' is empty"));
    b = small();
    build_kv(&b, "flag", GGUF_BOOL, "\2", 1);
    finish_refused(&b, TEXTS("key 'flag'", "neither 0 nor 1"));
    b = small();
    build_array(&b, "flags", GGUF_BOOL, 3, "\0\1\377", 3);
    finish_refused(&b, TEXTS("key 'flags'", "neither 0 nor 1"));
    char much[2000] = "";
    memset(much, 'k', sizeof much - 1);
    b = small();
    build_u32(&b, much, 3);
    finish_refused(&b, TEXTS("is too long"));
    b = small();
    build_u32(&b, "zero!byte", 3);
    *(uint8_t *)memchr(b.kv.data, '!', b.kv.bytes) = 0;
    finish_refused(&b, TEXTS("key 'zero\\x00byte' has a zero byte"));
}

/* ---- tensors ---- */

static void refused_tensor(uint32_t n_dims, const uint64_t *dims, uint32_t type,
                           const char *const *texts) {
    struct builder b = small();
    build_info(&b, "bad", n_dims, dims, type, 320);
    finish_refused(&b, texts);
}

static void test_dims(void **state) {
    (void)state;
    const uint64_t minus = UINT64_MAX, big = INT64_MAX, two32 = (uint64_t)1 << 32;
    refused_tensor(0, NULL, 0, TEXTS("tensor 'bad' has 0 dimensions"));
    refused_tensor(5, (uint64_t[]){ 1, 1, 1, 1, 1 }, 0, TEXTS("tensor 'bad' has 5 dimensions"));
    refused_tensor(UINT32_MAX, (uint64_t[8]){ 1 }, 0,
                   TEXTS("tensor 'bad' has 4294967295 dimensions"));
    refused_tensor(2, (uint64_t[]){ 0, 4 }, 0, TEXTS("tensor 'bad' [0, 4]", "must be positive"));
    refused_tensor(2, (uint64_t[]){ 32, 0 }, 8, TEXTS("tensor 'bad' [32, 0]", "must be positive"));
    refused_tensor(2, (uint64_t[]){ minus, 1 }, 0,
                   TEXTS("tensor 'bad' [-1, 1]", "must be positive"));
    refused_tensor(2, (uint64_t[]){ 4, minus }, 0,
                   TEXTS("tensor 'bad' [4, -1]", "must be positive"));
    refused_tensor(2, (uint64_t[]){ big, 2 }, 0,
                   TEXTS("tensor 'bad' [9223372036854775807, 2]", "below 2^63"));
    refused_tensor(4, (uint64_t[]){ two32, two32, 2, 1 }, 0,
                   TEXTS("tensor 'bad' [4294967296, 4294967296, 2, 1]", "below 2^63"));
    refused_tensor(1, (uint64_t[]){ (uint64_t)1 << 62 }, 0,
                   TEXTS("tensor 'bad' [4611686018427387904]", "does not fit 64 bits"));
    refused_tensor(1, (uint64_t[]){ (uint64_t)1 << 62 }, 8,
                   TEXTS("tensor 'bad' [4611686018427387904]"));
    refused_tensor(1, (uint64_t[]){ big - 31 }, 8, TEXTS("tensor 'bad' [9223372036854775776]"));
    refused_tensor(
        2, (uint64_t[]){ 896, 2 }, 12,
        TEXTS("tensor 'bad' [896, 2]", "row length 896 is not a multiple of 256", "[tensor-row]"));
    refused_tensor(1, (uint64_t[]){ 16 }, 8, TEXTS("row length 16 is not a multiple of 32"));
}

static void test_types(void **state) {
    (void)state;
    static const uint32_t bad[] = { 4, 5, 36, 40, 255, UINT32_MAX };
    for (size_t i = 0; i < COUNT(bad); i++) {
        char text[64];
        snprintf(text, sizeof text, "tensor 'bad' [256, 2]: %s type %u",
                 bad[i] < 40 ? "removed" : "unknown", bad[i]);
        refused_tensor(2, (uint64_t[]){ 256, 2 }, bad[i], TEXTS(text));
    }
    struct builder b = small();   /* all of them, not only the first */
    build_info(&b, "bad1", 1, (uint64_t[]){ 32 }, 255, 320);
    build_info(&b, "bad2", 1, (uint64_t[]){ 0 }, 0, 320);
    build_info(&b, "bad3", 1, (uint64_t[]){ 8 }, 8, 320);
    finish_refused(&b, TEXTS("'bad1'", "'bad2'", "'bad3'"));
    b = small();   /* types that jllm does not take are parsed all the same */
    build_tensor(&b, "other", 23, 256, 4);
    struct buffer file = build_finish(&b);
    struct outcome o;
    outcome_open(&o, file.data, file.bytes);
    assert_true(o.ok);
    assert_int_equal(gguf_find_tensor(&o.gguf, "other")->bytes, 4 * 136);
    outcome_close(&o);
    buffer_free(&file);
}

static void refused_offset(uint64_t offset, const char *const *texts) {
    struct builder b = small();
    build_info(&b, "bad", 1, (uint64_t[]){ 32 }, 8, offset);
    finish_refused(&b, texts);
}

static void test_offsets(void **state) {
    (void)state;
    refused_offset(8, TEXTS("tensor 'bad' [32]", "offset 8 is not a multiple of the alignment 32"));
    refused_offset(UINT64_MAX - 15, TEXTS("tensor 'bad' [32]"));
    refused_offset(UINT64_MAX - 31, TEXTS("tensor 'bad' [32]", "do not fit 64 bits"));
    refused_offset((uint64_t)1 << 63, TEXTS("tensor 'bad' [32]", "outside the file"));
    refused_offset(320, TEXTS("tensor 'bad' [32]", "outside the file"));
    refused_offset(
        256, TEXTS("tensor 'bad' [32]", "outside the file")); /* 12 bytes of its 34 are there */
    refused_offset(224, TEXTS("tensor 'bad' [32]", "shares bytes with tensor 'second'"));
    refused_offset(0, TEXTS("shares bytes with tensor"));
    refused_offset(64, TEXTS("tensor 'second'", "tensor 'bad'", "shares bytes"));
    struct builder b = small();   /* begins inside, and its end wraps to inside again */
    build_info(&b, "bad", 1, (uint64_t[]){ INT64_MAX }, 1, 256);
    finish_refused(&b, TEXTS("tensor 'bad' [9223372036854775807]", "do not fit 64 bits"));
    for (unsigned bytes = 0; bytes <= 1;
         bytes++) { /* ends where the file ends, or one byte after */
        b = (struct builder){ 0 };
        build_info(&b, "last", 1, (uint64_t[]){ 32 }, 8, 32);
        buffer_append(&b.data, NULL, 32 + 33 + bytes);
        struct buffer file = build_finish(&b);
        if (!bytes)
            expect_refused(file.data, file.bytes, TEXTS("tensor 'last' [32]", "outside the file"));
        struct outcome o;
        outcome_open(&o, file.data, file.bytes);
        assert_int_equal(o.ok, bytes == 1);
        outcome_close(&o);
        buffer_free(&file);
    }
}

/* One that reaches over its neighbour into the next but one. */
static void test_far_overlap(void **state) {
    (void)state;
    struct builder b = { 0 };
    build_info(&b, "wide", 1, (uint64_t[]){ 100 }, 0, 0);
    build_info(&b, "inner", 1, (uint64_t[]){ 4 }, 0, 32);
    build_info(&b, "outer", 1, (uint64_t[]){ 4 }, 0, 384);
    buffer_append(&b.data, NULL, 1000);
    finish_refused(&b, TEXTS("tensor 'inner' [4]: shares bytes with tensor 'wide'",
                             "tensor 'outer' [4]: shares bytes with tensor 'wide'"));
}

static void test_tensor_names(void **state) {
    (void)state;
    struct builder b = small();
    build_tensor(&b, "first", 0, 8, 0);
    finish_refused(&b, TEXTS("tensor 'first' occurs twice"));
    b = small();
    build_tensor(&b, "", 0, 8, 0);
    finish_refused(&b, TEXTS("tensor name '' is empty"));
    b = small();
    build_tensor(
        &b, "a name of more than sixty-four bytes, which no program that makes these files writes",
        0, 8, 0);
    finish_refused(&b, TEXTS("is too long"));
}

/* As many keys and tensors as are taken, with names that are long and alike. */
static void test_large_tables(void **state) {
    (void)state;
    struct builder b = { 0 };
    char name[1100];
    for (int i = 0; i < 1 << 14; i++) {
        snprintf(name, sizeof name, "%01000d", i % 16383);
        build_kv(&b, name, GGUF_U8, "", 1);
    }
    for (int i = 0; i < 1 << 16; i++) {
        snprintf(name, sizeof name, "%060d", i % 65535);
        build_info(&b, name, 1, (uint64_t[]){ 1 }, 0, 0);
    }
    struct buffer file = build_finish(&b);
    expect_refused(file.data, file.bytes, TEXTS("occurs twice"));
    buffer_free(&file);
}

/* Whatever one changed byte does, it is either taken or refused with an error. */
static void test_changed_bytes(void **state) {
    (void)state;
    struct builder b = small();
    build_tokens(&b, 5);
    struct buffer file = build_finish(&b);
    for (size_t i = 0; i < file.bytes - 300; i++)
        for (unsigned change = 1; change < 256; change = change * 2 + 1) {
            struct outcome o;
            file.data[i] ^= (uint8_t)change;
            outcome_open(&o, file.data, file.bytes);
            assert_int_equal(o.ok, o.diag.errors == 0);
            file.data[i] ^= (uint8_t)change;
            outcome_close(&o);
        }
    buffer_free(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_versions),  cmocka_unit_test(test_values),
        cmocka_unit_test(test_alignments),     cmocka_unit_test(test_no_tensors),
        cmocka_unit_test(test_every_cut),      cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_versions),       cmocka_unit_test(test_open),
        cmocka_unit_test(test_header_alone),
        cmocka_unit_test(test_counts),         cmocka_unit_test(test_count_limits),
        cmocka_unit_test(test_string_lengths), cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_nested_arrays),  cmocka_unit_test(test_keys),
        cmocka_unit_test(test_dims),           cmocka_unit_test(test_types),
        cmocka_unit_test(test_offsets),        cmocka_unit_test(test_far_overlap),
        cmocka_unit_test(test_tensor_names),   cmocka_unit_test(test_large_tables),
        cmocka_unit_test(test_changed_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
