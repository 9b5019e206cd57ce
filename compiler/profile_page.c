/* The two drawings of a profile: trace events for Perfetto and chrome://tracing, and a page from templates/profile/page.html,
 * which gets the profile as JSON in one script element and draws it by itself. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "profile.h"
#include "report.h"

/* --- trace events ---------------------------------------------------------------------------------- */

enum { ROW_REPLAY = 1, ROW_LAUNCHES, ROW_FLOORS };

static void add_name(json_t *events, const char *what, unsigned process, unsigned thread, const char *name) {
    json_t *e = report_append(events, json_object()), *args = json_object();
    report_set(args, "name", report_text(name));
    report_set(e, "ph", json_string("M"));
    report_set(e, "name", json_string(what));
    report_set(e, "pid", report_integer(process));
    report_set(e, "tid", report_integer(thread));
    report_set(e, "args", args);
}

/* args: NULL, or what the viewer shows of the slice; taken over. */
static void add_slice(json_t *events, unsigned process, unsigned thread, const char *name, double at_us, double us, json_t *args) {
    json_t *e = report_append(events, json_object());
    report_set(e, "ph", json_string("X"));
    report_set(e, "name", report_text(name));
    report_set(e, "cat", json_string(thread == ROW_FLOORS ? "floor" : "measured"));
    report_set(e, "pid", report_integer(process));
    report_set(e, "tid", report_integer(thread));
    report_set(e, "ts", report_real(at_us));
    report_set(e, "dur", report_real(us));
    if (args) report_set(e, "args", args);
}

static void trace_phase(json_t *events, const struct profile_phase *ph, unsigned process) {
    double at = 0;
    add_name(events, "process_name", process, 0, ph->label);
    add_name(events, "thread_name", process, ROW_REPLAY, "as a pass runs it");
    add_name(events, "thread_name", process, ROW_LAUNCHES, "launch by launch");
    add_name(events, "thread_name", process, ROW_FLOORS, "floors");
    add_slice(events, process, ROW_REPLAY, ph->label, 0, profile_number(ph->row, "replay_us"), NULL);
    for (const struct profile_launch *l = ph->launches; l < ph->launches + ph->n_launches; l++) {
        const struct profile_op *op = &ph->ops[l->op];
        json_t *args = json_object(), *layer = json_object_get(l->row, "layer");
        report_set(args, "kernel", report_text(op->kernel));
        if (layer) report_set(args, "layer", json_incref(layer));
        if (op->cause) report_set(args, "cause", json_string(op->cause));
        add_slice(events, process, ROW_LAUNCHES, profile_text(l->row, "op"), at, l->us, args);
        if (op->floor_us > 0) add_slice(events, process, ROW_FLOORS, profile_text(l->row, "op"), at, op->floor_us, NULL);
        at += l->us > op->floor_us ? l->us : op->floor_us;
    }
}

static void dump(const json_t *root, struct buffer *out) {
    char *text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!text) base_fail("out of memory");
    buffer_append(out, text, strlen(text));
    free(text);
}

void profile_trace(const struct profile *p, struct buffer *out) {
    json_t *root = json_object(), *events = json_array();
    for (unsigned i = 0; i < p->n_phases; i++) trace_phase(events, &p->phases[i], i + 1);
    report_set(root, "traceEvents", events);
    report_set(root, "displayTimeUnit", json_string("ns"));
    report_set(root, "otherData", json_incref(p->first));
    dump(root, out);
    buffer_append(out, "\n", 1);
    json_decref(root);
}

/* --- the page -------------------------------------------------------------------------------------- */

static json_t *phase_data(const struct profile_phase *ph) {
    json_t *o = json_object(), *ops = json_array(), *launches = json_array();
    json_object_update(o, ph->row);
    report_set(o, "label", report_text(ph->label));
    for (const struct profile_op *op = ph->ops; op < ph->ops + ph->n_ops; op++) {
        json_t *row = report_append(ops, json_object());
        json_object_update(row, op->row);
        report_set(row, "took_us", report_real(op->took_us));
        if (op->cause) report_set(row, "cause", json_string(op->cause));
    }
    for (const struct profile_launch *l = ph->launches; l < ph->launches + ph->n_launches; l++) {
        json_t *row = report_append(launches, json_object()), *layer = json_object_get(l->row, "layer");
        report_set(row, "op", report_integer(l->op));
        report_set(row, "us", report_real(l->us));
        if (layer) report_set(row, "layer", json_incref(layer));
    }
    report_set(o, "ops", ops);
    report_set(o, "timeline", launches);
    return o;
}

/* JSON that may stand in a script element: "<" can only be in a string, where it can be written as an escape. */
static void append_data(const struct profile *p, struct buffer *out) {
    json_t *root = json_object(), *phases = json_array();
    struct buffer json = {0};
    report_set(root, "profile", json_incref(p->first));
    report_set(root, "end", json_incref(p->last));
    for (unsigned i = 0; i < p->n_phases; i++) report_append(phases, phase_data(&p->phases[i]));
    report_set(root, "phases", phases);
    dump(root, &json);
    for (size_t i = 0; i < json.bytes; i++) {
        if (json.data[i] == '<') buffer_append(out, "\\u003c", 6);
        else buffer_append(out, &json.data[i], 1);
    }
    buffer_free(&json);
    json_decref(root);
}

bool profile_page(const struct profile *p, struct buffer *out, struct arena *a, struct diag *d) {
    static const char marker[] = "{\"the profile\": \"stands here\"}";
    const char *path = arena_printf(a, "%s/templates/profile/page.html", base_home());
    size_t bytes;
    errno = 0;
    const char *text = file_read(a, path, &bytes), *at = text ? strstr(text, marker) : NULL;
    if (!at) {
        diag_error(d, "page", path, "the page's template is %s: %s", text ? "damaged" : "missing",
                   text ? "it has no place for the profile" : strerror(errno));
        return false;
    }
    buffer_append(out, text, (size_t)(at - text));
    append_data(p, out);
    at += strlen(marker);
    buffer_append(out, at, strlen(at));
    return true;
}
