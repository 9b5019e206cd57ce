#include "report.h"

#include <math.h>
#include <string.h>


bool report_parse_format(const char *text, enum report_format *format) {
    static const char *const names[] = {[REPORT_MARKDOWN] = "md", [REPORT_JSON] = "json"};
    for (unsigned i = 0; i < COUNT(names); i++)
        if (!strcmp(text, names[i])) return *format = (enum report_format)i, true;
    return false;
}

json_t *report_integer(uint64_t n) { return json_integer((json_int_t)n); }   /* sizes in a checked plan are below 2^46 */

json_t *report_text(const char *s) {
    json_t *value = json_string(s);
    return value ? value : json_string(diag_quote(s, strlen(s)));
}

json_t *report_real(double x) { return isfinite(x) ? json_real(x) : json_null(); }
json_t *report_stated(double x) { return x > 0 ? report_real(x) : json_null(); }

void report_set(json_t *object, const char *key, json_t *value) {
    if (!object || json_object_set_new(object, key, value)) base_fail("out of memory");
}

json_t *report_append(json_t *array, json_t *value) {
    if (!array || json_array_append_new(array, value)) base_fail("out of memory");
    return value;
}

/* --- Markdown -------------------------------------------------------------------------------------- */

static void print_text(const char *p, FILE *out) {
    for (; *p; p++) {   /* a name must not end its cell */
        if (*p == '|') fputc('\\', out);
        fputc((unsigned char)*p < ' ' ? '?' : *p, out);
    }
}

static void print_value(const json_t *value, FILE *out) {
    size_t i;
    json_t *item;
    if (json_is_integer(value)) fprintf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value)) fprintf(out, "%.3f", json_real_value(value));
    else if (json_is_string(value)) print_text(json_string_value(value), out);
    else if (json_is_boolean(value)) fputs(json_is_true(value) ? "yes" : "no", out);
    else if (json_is_array(value) && json_array_size(value)) {
        json_array_foreach(value, i, item) {
            if (i) fputs(", ", out);
            print_value(item, out);
        }
    } else fputs("–", out);
}

static void print_cell(const json_t *value, FILE *out) {
    fputc(' ', out);
    print_value(value, out);
    fputs(" |", out);
}

static void print_rows(json_t *rows, FILE *out) {
    const char *key;
    size_t i;
    json_t *row, *value;
    json_array_foreach(rows, i, row) {
        if (!i) {
            fputc('|', out);
            json_object_foreach(row, key, value) fprintf(out, " %s |", key);
            fputs("\n|", out);
            json_object_foreach(row, key, value) fputs(json_is_number(value) ? " ---: |" : " --- |", out);
            fputc('\n', out);
        }
        fputc('|', out);
        json_object_foreach(row, key, value) print_cell(value, out);
        fputc('\n', out);
    }
}

static void print_fields(json_t *object, FILE *out) {
    const char *key;
    json_t *value;
    fputs("| field | value |\n| --- | --- |\n", out);
    json_object_foreach(object, key, value) {
        fprintf(out, "| %s |", key);
        print_cell(value, out);
        fputc('\n', out);
    }
}

static void print_markdown(json_t *root, FILE *out) {
    const char *key;
    json_t *part;
    bool first = true;
    json_object_foreach(root, key, part) {
        if (json_is_array(part) && !json_array_size(part)) continue;
        fprintf(out, "%s## %s\n\n", first ? "" : "\n", key);
        first = false;
        if (json_is_array(part)) print_rows(part, out);
        else print_fields(part, out);
    }
}

void report_finish(json_t *root, enum report_format format, FILE *out) {
    if (format == REPORT_MARKDOWN) print_markdown(root, out);
    else if (!json_dumpf(root, out, JSON_INDENT(2) | JSON_REAL_PRECISION(6))) fputc('\n', out);
    json_decref(root);
}
