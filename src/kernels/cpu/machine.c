/* machine.c: reads facts about the machine from /proc and /sys. See machine.h.
 *
 * Nothing here fails: a value that cannot be read is reported as unknown or 0. */
#include "kernels/cpu/machine.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/host_memory.h"

int hy_machine_threads(void) {
    cpu_set_t set;
    int count = 0;
    if (sched_getaffinity(0, sizeof set, &set) == 0) count = CPU_COUNT(&set);
    if (count < 1) count = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : count;
}

/* ---- name ------------------------------------------------------------------------------------ */

/* The value of the first "key : value" line in /proc/cpuinfo. */
static bool read_field(const char *key, char *out, size_t size) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[512];
    bool is_found = false;
    if (!file) return false;
    while (!is_found && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        const char *value = strchr(line, ':');
        if (!value) continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(out, size, "%.*s", (int)strcspn(value, "\n"), value);
        is_found = true;
    }
    fclose(file);
    return is_found;
}

/* Arm CPUs report only numbers. */
static const struct {
    unsigned implementer, part;
    const char *name;
} arm_cores[] = {
    {0x41, 0xd03, "Cortex-A53"},  {0x41, 0xd05, "Cortex-A55"},  {0x41, 0xd07, "Cortex-A57"},
    {0x41, 0xd08, "Cortex-A72"},  {0x41, 0xd09, "Cortex-A73"},  {0x41, 0xd0a, "Cortex-A75"},
    {0x41, 0xd0b, "Cortex-A76"},  {0x41, 0xd0c, "Neoverse-N1"}, {0x41, 0xd0d, "Cortex-A77"},
    {0x41, 0xd40, "Neoverse-V1"}, {0x41, 0xd41, "Cortex-A78"},  {0x41, 0xd44, "Cortex-X1"},
    {0x41, 0xd47, "Cortex-A710"}, {0x41, 0xd48, "Cortex-X2"},   {0x41, 0xd49, "Neoverse-N2"},
    {0x41, 0xd4f, "Neoverse-V2"}, {0x41, 0xd84, "Neoverse-V3"}, {0x41, 0xd8e, "Neoverse-N3"},
    {0x46, 0x001, "A64FX"},       {0x48, 0xd01, "Kunpeng-920"}, {0x61, 0x022, "Apple M1"},
    {0x61, 0x023, "Apple M1"},    {0x61, 0x032, "Apple M2"},    {0x61, 0x033, "Apple M2"},
    {0xc0, 0xac3, "Ampere-1"},    {0xc0, 0xac4, "Ampere-1a"},   {0x4e, 0x004, "Carmel"},
};

static void name_arm_core(char *out, size_t size) {
    char first[64] = "", second[64] = "";
    read_field("CPU implementer", first, sizeof first);
    read_field("CPU part", second, sizeof second);
    unsigned implementer = (unsigned)strtoul(first, NULL, 0);
    unsigned part = (unsigned)strtoul(second, NULL, 0);
    for (size_t i = 0; i < sizeof arm_cores / sizeof arm_cores[0]; i++) {
        if (arm_cores[i].implementer == implementer && arm_cores[i].part == part) {
            snprintf(out, size, "%s", arm_cores[i].name);
            return;
        }
    }
    if (part) {
        snprintf(out, size, "Arm implementer 0x%02x part 0x%03x", implementer, part);
    } else {
        snprintf(out, size, "unknown");
    }
}

void hy_machine_cpu_name(char *out, size_t size) {
    if (!read_field("model name", out, size)) name_arm_core(out, size);
}

/* ---- memory ---------------------------------------------------------------------------------- */

void hy_machine_memory(size_t *total, size_t *free) {
    hy_host_memory host;
    hy_host_memory_read("/proc", "/sys", &host);
    *total = (size_t)host.total;
    *free = (size_t)host.available;
}
