/* What a profile says of a machine, on trees of files as a Jetson, a workstation and a machine without any have them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../runtime/host/state.h"

static char root[64];

static int setup(void **state) {
    (void)state;
    strcpy(root, "/tmp/jllm-state-XXXXXX");
    return mkdtemp(root) ? 0 : 1;
}

static int teardown(void **state) {
    char command[100];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static void put(const char *path, const char *text, size_t bytes) {
    char full[300];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(full, 0700);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    fclose(f);
}
static void put_text(const char *path, const char *text) { put(path, text, strlen(text)); }

static void expect(json_t *got, const char *want) {
    char *text = json_dumps(got, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(9));
    assert_string_equal(text, want);
    free(text);
    json_decref(got);
}

static void test_nothing_is_invented(void **state) {
    (void)state;
    expect(state_identity(root), "{}");
    expect(state_now(root), "{}");
}

static void test_jetson(void **state) {
    (void)state;
    static const char model[] = "NVIDIA Jetson Orin Nano Developer Kit";   /* with the NUL that a device tree has */
    put("/proc/device-tree/model", model, sizeof model);
    put_text("/etc/nv_tegra_release", "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n");
    expect(state_identity(root), "{\"board\":\"NVIDIA Jetson Orin Nano Developer Kit\",\"l4t\":\"R36.4.3\"}");
    put_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "729600\n");
    put_text("/sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "1344000\n");
    put_text("/sys/devices/system/cpu/cpu1/cpufreq/cpuinfo_max_freq", "1728000\n");
    put_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "schedutil\n");
    put_text("/sys/class/thermal/thermal_zone0/type", "cpu-thermal\n");
    put_text("/sys/class/thermal/thermal_zone0/temp", "48125\n");
    put_text("/sys/class/thermal/thermal_zone1/type", "cv0-thermal\n");   /* switched off: its temperature cannot be read */
    put_text("/var/lib/nvpmodel/status", "pmode:0002\n");
    put_text("/etc/nvpmodel.conf", "# modes\n< POWER_MODEL ID=0 NAME=15W >\nCPU_ONLINE CORE_0 1\n< POWER_MODEL ID=2 NAME=MAXN_SUPER >\n< PM_CONFIG DEFAULT=2 >\n");
    put_text("/sys/class/devfreq/17000000.gpu/cur_freq", "1020000000\n");
    put_text("/sys/class/devfreq/17000000.gpu/max_freq", "1020000000\n");
    put_text("/sys/kernel/debug/bpmp/debug/clk/emc/rate", "3199000000\n");
    put_text("/sys/class/hwmon/hwmon1/in1_label", "VDD_IN\n");
    put_text("/sys/class/hwmon/hwmon1/in1_input", "5000\n");
    put_text("/sys/class/hwmon/hwmon1/curr1_input", "1504\n");
    put_text("/sys/class/hwmon/hwmon1/in4_label", "sum of shunt voltages\n");   /* of no current */
    put_text("/sys/class/hwmon/hwmon1/in4_input", "12\n");
    expect(state_now(root), "{\"cpu_max_mhz\":1728.0,\"cpu_mhz\":1344.0,\"emc_mhz\":3199.0,\"governor\":\"schedutil\",\"gpu_max_mhz\":1020.0,"
                            "\"gpu_mhz\":1020.0,\"power_mode\":\"MAXN_SUPER\",\"rails_mw\":{\"VDD_IN\":7520.0},\"temperature_c\":{\"cpu-thermal\":48.125}}");
    put_text("/etc/nvpmodel.conf", "< POWER_MODEL ID=0 NAME=15W >\n");
    json_t *now = state_now(root);
    assert_string_equal(json_string_value(json_object_get(now, "power_mode")), "2");
    json_decref(now);
}

static void test_workstation(void **state) {
    (void)state;
    put_text("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build  (x)\nGCC version: 12\n");
    expect(state_identity(root), "{\"driver\":\"570.86.10\"}");
    put_text("/sys/module/nvidia/version", "575.57.08\n");
    expect(state_identity(root), "{\"driver\":\"575.57.08\"}");
    put_text("/proc/cpuinfo", "processor : 0\ncpu MHz\t\t: 2300.000\nprocessor : 1\ncpu MHz\t\t: 3100.500\n");
    put_text("/sys/class/hwmon/hwmon0/in0_label", "\xff\xfe\n");   /* no text */
    put_text("/sys/class/hwmon/hwmon0/in0_input", "much\n");
    expect(state_now(root), "{\"cpu_mhz\":3100.5}");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nothing_is_invented, setup, teardown),
        cmocka_unit_test_setup_teardown(test_jetson, setup, teardown),
        cmocka_unit_test_setup_teardown(test_workstation, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
