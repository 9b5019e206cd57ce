#include "state.h"

#include <ctype.h>
#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 256, PATH_BYTES = 512 };

/* The first line of a file, without what ends it; false: there is none. */
static bool read_line(const char *root, const char *path, char line[LINE_BYTES]) {
    char full[PATH_BYTES];
    snprintf(full, sizeof full, "%s%s", root, path);
    FILE *f = fopen(full, "re");
    bool ok = f && fgets(line, LINE_BYTES, f);
    if (f) fclose(f);
    if (ok) line[strcspn(line, "\r\n")] = 0;
    return ok && *line;
}

static bool read_number(const char *root, const char *path, double *number) {
    char line[LINE_BYTES], *end;
    if (!read_line(root, path, line)) return false;
    *number = strtod(line, &end);
    return end != line && !*end;
}

static void set_text(json_t *o, const char *key, const char *text) {
    json_t *value = json_string(text);    /* NULL: not UTF-8, and then it is left out */
    if (value) json_object_set_new(o, key, value);
}

/* Three places are more than any sensor has. */
static void set_number(json_t *o, const char *key, double number) {
    char text[40];
    snprintf(text, sizeof text, "%.3f", number);
    json_object_set_new(o, key, json_real(strtod(text, NULL)));
}

/* The number of a file, in units of `unit`. */
static bool set_from(json_t *o, const char *key, const char *root, const char *path, double unit) {
    double number;
    bool ok = read_number(root, path, &number) && number > 0;
    if (ok) set_number(o, key, number / unit);
    return ok;
}

/* Paths without the root; globfree by the caller where true. */
static bool find(const char *root, const char *pattern, glob_t *found) {
    char full[PATH_BYTES];
    snprintf(full, sizeof full, "%s%s", root, pattern);
    return glob(full, 0, NULL, found) == 0;
}

static const char *without_root(const char *root, const char *path) { return path + strlen(root); }

/* The file `name` in the folder, or beside the file, that `of` names. */
static const char *beside(const char *of, size_t bytes, const char *name) {
    static char path[PATH_BYTES];
    snprintf(path, sizeof path, "%.*s%s", (int)bytes, of, name);
    return path;
}

/* ---- the CPU ---- */

static double largest(const char *root, const char *pattern) {
    glob_t found;
    double most = 0, number;
    if (!find(root, pattern, &found)) return 0;
    for (size_t i = 0; i < found.gl_pathc; i++)
        if (read_number(root, without_root(root, found.gl_pathv[i]), &number) && number > most) most = number;
    globfree(&found);
    return most;
}

/* Where no governor is at work, /proc/cpuinfo may know. */
static double cpuinfo_mhz(const char *root) {
    char full[PATH_BYTES], line[LINE_BYTES];
    double most = 0, mhz;
    snprintf(full, sizeof full, "%s/proc/cpuinfo", root);
    FILE *f = fopen(full, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "cpu MHz : %lf", &mhz) == 1 && mhz > most) most = mhz;
    if (f) fclose(f);
    return most;
}

static void read_cpu(json_t *o, const char *root) {
    char line[LINE_BYTES];
    double now = largest(root, "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq") / 1e3;
    double most = largest(root, "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/cpuinfo_max_freq") / 1e3;
    if (now <= 0) now = cpuinfo_mhz(root);
    if (now > 0) set_number(o, "cpu_mhz", now);
    if (most > 0) set_number(o, "cpu_max_mhz", most);
    if (read_line(root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", line)) set_text(o, "governor", line);
}

/* ---- sensors ---- */

static void set_part(json_t *o, const char *key, json_t *part) {
    if (json_object_size(part)) json_object_set_new(o, key, part);
    else json_decref(part);
}

static void read_temperatures(json_t *o, const char *root) {
    json_t *zones = json_object();
    char zone[LINE_BYTES];
    glob_t found;
    if (find(root, "/sys/class/thermal/thermal_zone*/type", &found)) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            const char *type = without_root(root, found.gl_pathv[i]);
            if (read_line(root, type, zone)) set_from(zones, zone, root, beside(type, strlen(type) - strlen("type"), "temp"), 1e3);
        }
        globfree(&found);
    }
    set_part(o, "temperature_c", zones);
}

/* One channel of a power monitor: millivolts and milliamperes, with the name of what they feed. */
static void read_rail(json_t *rails, const char *root, const char *label) {
    char name[LINE_BYTES], file[32];
    const char *base = strrchr(label, '/') + 1;
    size_t folder = (size_t)(base - label);
    double millivolts, milliamperes;
    int channel = atoi(base + strlen("in"));
    if (!read_line(root, label, name)) return;
    snprintf(file, sizeof file, "in%d_input", channel);
    if (!read_number(root, beside(label, folder, file), &millivolts)) return;
    snprintf(file, sizeof file, "curr%d_input", channel);
    if (read_number(root, beside(label, folder, file), &milliamperes)) set_number(rails, name, millivolts * milliamperes / 1e3);
}

static void read_rails(json_t *o, const char *root) {
    json_t *rails = json_object();
    glob_t found;
    if (find(root, "/sys/class/hwmon/hwmon*/in[0-9]*_label", &found)) {
        for (size_t i = 0; i < found.gl_pathc; i++) read_rail(rails, root, without_root(root, found.gl_pathv[i]));
        globfree(&found);
    }
    set_part(o, "rails_mw", rails);
}

/* ---- boards ---- */

/* devfreq's folders of a GPU, by the names that boards give it. */
static void read_gpu(json_t *o, const char *root) {
    static const char *const names[] = {"*.gpu", "*.ga10b", "*.gv11b", "gpu-gpc-0"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char pattern[PATH_BYTES];
        glob_t found;
        snprintf(pattern, sizeof pattern, "/sys/class/devfreq/%s", names[i]);
        if (!find(root, pattern, &found)) continue;
        const char *folder = without_root(root, found.gl_pathv[0]);
        set_from(o, "gpu_mhz", root, beside(folder, strlen(folder), "/cur_freq"), 1e6);
        set_from(o, "gpu_max_mhz", root, beside(folder, strlen(folder), "/max_freq"), 1e6);
        globfree(&found);
        return;
    }
}

static void read_memory(json_t *o, const char *root) {
    set_from(o, "emc_mhz", root, "/sys/kernel/debug/bpmp/debug/clk/emc/rate", 1e6);
    set_from(o, "emc_max_mhz", root, "/sys/kernel/debug/bpmp/debug/clk/emc/max_rate", 1e6);
}

/* "pmode:0002", and in the list of modes "< POWER_MODEL ID=2 NAME=25W >". */
static void read_power_mode(json_t *o, const char *root) {
    char line[LINE_BYTES], full[PATH_BYTES], name[64];
    int mode, id;
    if (!read_line(root, "/var/lib/nvpmodel/status", line) || sscanf(line, "pmode:%d", &mode) != 1) return;
    snprintf(name, sizeof name, "%d", mode);
    snprintf(full, sizeof full, "%s/etc/nvpmodel.conf", root);
    FILE *f = fopen(full, "re");
    while (f && fgets(line, sizeof line, f)) {
        char said[64];
        if (sscanf(line, " < POWER_MODEL ID=%d NAME=%63[^ >]", &id, said) == 2 && id == mode) strcpy(name, said);
    }
    if (f) fclose(f);
    set_text(o, "power_mode", name);
}

json_t *state_now(const char *root) {
    json_t *o = json_object();
    read_cpu(o, root);
    read_temperatures(o, root);
    read_power_mode(o, root);
    read_gpu(o, root);
    read_memory(o, root);
    read_rails(o, root);
    return o;
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue ..." where the module's own file is missing. */
static bool read_driver(const char *root, char line[LINE_BYTES]) {
    char said[LINE_BYTES];
    if (read_line(root, "/sys/module/nvidia/version", line)) return true;
    if (!read_line(root, "/proc/driver/nvidia/version", said)) return false;
    for (char *word = strtok(said, " "); word; word = strtok(NULL, " "))
        if (isdigit((unsigned char)*word) && strchr(word, '.')) return strcpy(line, word), true;
    return false;
}

json_t *state_identity(const char *root) {
    json_t *o = json_object();
    char line[LINE_BYTES], l4t[LINE_BYTES];
    int release, major, minor;
    if (read_driver(root, line)) set_text(o, "driver", line);
    if (read_line(root, "/proc/device-tree/model", line)) set_text(o, "board", line);
    if (read_line(root, "/etc/nv_tegra_release", line) &&
        sscanf(line, "# R%d (release), REVISION: %d.%d", &release, &major, &minor) == 3) {
        snprintf(l4t, sizeof l4t, "R%d.%d.%d", release, major, minor);
        set_text(o, "l4t", l4t);
    }
    return o;
}
