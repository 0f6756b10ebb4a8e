/* pinned.c: from what the machine has left to what may be pinned, and saying it. See pinned.h. */
#include "memory/pinned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "memory/host_memory.h"

#define PATH_BYTES 1024
#define LINE_BYTES 1024

/* Left for the system: a twentieth of all memory, and no more than this. */
#define MARGIN_MOST ((uint64_t)3 << 29)
#define MARGIN_PART 20

/* ---- reading ----------------------------------------------------------------------------------- */

/* Finds the line that begins with `key` and copies what follows. */
static bool find_line(const char *path, const char *key, char out[LINE_BYTES]) {
    FILE *file = fopen(path, "r");
    char line[LINE_BYTES];
    bool is_found = false;
    if (!file) return false;
    while (!is_found && fgets(line, sizeof line, file)) {
        is_found = strncmp(line, key, strlen(key)) == 0;
    }
    fclose(file);
    if (!is_found) return false;
    line[strcspn(line, "\n")] = '\0';
    snprintf(out, LINE_BYTES, "%s", line + strlen(key));
    return true;
}

/* "Max locked memory         8388608              8388608              bytes" */
static uint64_t read_memlock(const char *path) {
    char text[LINE_BYTES], *end;
    if (!find_line(path, "Max locked memory", text)) return HY_PIN_NO_LIMIT;
    unsigned long long value = strtoull(text, &end, 10);
    return end == text ? HY_PIN_NO_LIMIT : (uint64_t)value;
}

/* WSL 1 has no card; of both, version 2 alone calls its kernel "microsoft" in small letters. */
static bool is_wsl2(const char *path) {
    char text[LINE_BYTES];
    return find_line(path, "", text) && strstr(text, "microsoft") != NULL;
}

/* ---- the limit --------------------------------------------------------------------------------- */

static uint64_t margin_of(uint64_t total) {
    uint64_t part = total / MARGIN_PART;
    return part < MARGIN_MOST ? part : MARGIN_MOST;
}

static uint64_t less(uint64_t bytes, uint64_t margin) {
    return bytes > margin ? bytes - margin : 0;
}

static void lower(hy_pin_limits *out, uint64_t limit, hy_pin_cause cause) {
    if (limit >= out->likely_limit) return;
    out->likely_limit = limit;
    out->which = cause;
}

static void find_limit(hy_pin_limits *out) {
    out->likely_limit = HY_PIN_NO_LIMIT;
    out->which = HY_PIN_UNKNOWN;
    if (out->ram_available) {
        lower(out, less(out->ram_available, margin_of(out->ram_total)), HY_PIN_RAM);
    }
    if (out->cgroup_limit != HY_PIN_NO_LIMIT) {
        lower(out, less(out->cgroup_left, margin_of(out->cgroup_limit)), HY_PIN_CGROUP);
    }
    if (out->is_wsl2 && out->ram_total) lower(out, out->ram_total / 2, HY_PIN_WSL2);
}

void hy_pin_probe(const char *proc, const char *sys, hy_pin_limits *out) {
    char path[PATH_BYTES];
    hy_host_memory host;
    hy_host_memory_read(proc, sys, &host);
    *out = (hy_pin_limits){.ram_total = host.ram_total,
                           .ram_available = host.ram_available,
                           .cgroup_limit = host.group_limit,
                           .cgroup_left = host.group_left};
    snprintf(path, sizeof path, "%s/self/limits", proc);
    out->memlock = read_memlock(path);
    snprintf(path, sizeof path, "%s/version", proc);
    out->is_wsl2 = is_wsl2(path);
    find_limit(out);
}

/* ---- words ------------------------------------------------------------------------------------- */

char *hy_pin_reason(const hy_pin_limits *limits, char *buffer, size_t size) {
    char a[32], b[32];
    switch (limits->which) {
    case HY_PIN_RAM:
        snprintf(buffer, size, "free memory less %s for the system",
                 hy_format_bytes((double)margin_of(limits->ram_total), a, sizeof a));
        break;
    case HY_PIN_CGROUP:
        snprintf(buffer, size, "what is left of the control group's limit of %s, less %s",
                 hy_format_bytes((double)limits->cgroup_limit, a, sizeof a),
                 hy_format_bytes((double)margin_of(limits->cgroup_limit), b, sizeof b));
        break;
    case HY_PIN_WSL2:
        snprintf(buffer, size, "WSL2 lets about half of its memory of %s be pinned",
                 hy_format_bytes((double)limits->ram_total, a, sizeof a));
        break;
    default: snprintf(buffer, size, "no limit that the system reports"); break;
    }
    return buffer;
}

/* What would make room, for each cause. */
static const char *remedy(hy_pin_cause cause) {
    switch (cause) {
    case HY_PIN_RAM: return "end other programs, keep less in pinned memory or add memory";
    case HY_PIN_CGROUP:
        return "give the container or job more memory (docker run --memory, systemd MemoryMax)";
    case HY_PIN_WSL2:
        return "raise memory= under [wsl2] in .wslconfig, keep less in pinned memory or run Linux "
               "itself";
    default: return "keep less in pinned memory";
    }
}

hy_status hy_pin_allows(const hy_pin_limits *limits, uint64_t bytes) {
    char need[32], have[32], reason[160];
    if (bytes <= limits->likely_limit) return HY_OK;
    return hy_fail(HY_ERR_MEMORY, "%s of memory cannot be pinned here, %s at most (%s): %s",
                   hy_format_bytes((double)bytes, need, sizeof need),
                   hy_format_bytes((double)limits->likely_limit, have, sizeof have),
                   hy_pin_reason(limits, reason, sizeof reason), remedy(limits->which));
}

hy_status hy_pin_check(uint64_t bytes) {
    hy_pin_limits limits;
    hy_pin_probe("/proc", "/sys", &limits);
    return hy_pin_allows(&limits, bytes);
}

hy_status hy_pin_refused(const hy_pin_limits *limits, hy_status status, uint64_t bytes) {
    char refusal[HY_ERROR_MESSAGE_MAX], lock[32], likely[HY_ERROR_MESSAGE_MAX];
    snprintf(refusal, sizeof refusal, "%s", hy_error_message());
    if (hy_pin_allows(limits, bytes) != HY_OK) {
        snprintf(likely, sizeof likely, "%s", hy_error_message());
        return hy_fail(status, "%.400s; %.500s", refusal, likely);
    }
    if (limits->is_wsl2) {
        return hy_fail(status, "%.500s; under WSL2 Windows decides how much may be pinned: %s",
                       refusal, remedy(HY_PIN_WSL2));
    }
    if (bytes > limits->memlock) {
        return hy_fail(status,
                       "%.500s; the limit on locked memory is %s: if the driver heeds it, raise it "
                       "with \"ulimit -l unlimited\" or memlock in /etc/security/limits.conf",
                       refusal, hy_format_bytes((double)limits->memlock, lock, sizeof lock));
    }
    return hy_fail(status,
                   "%.500s; the system would allow it, the driver does not: keep less in "
                   "pinned memory, or look for its reason with dmesg",
                   refusal);
}

/* A CPU's pinned memory is ordinary memory, which the budget looks after. */
hy_status hy_pin_take(hy_backend *b, uint64_t bytes, void **out) {
    hy_pin_limits limits;
    *out = NULL;
    if (!b->facts.is_gpu) return b->alloc(b, HY_PINNED, bytes, out);
    hy_pin_probe("/proc", "/sys", &limits);
    HY_TRY(hy_pin_allows(&limits, bytes));
    hy_status status = b->alloc(b, HY_PINNED, bytes, out);
    return status == HY_OK ? HY_OK : hy_pin_refused(&limits, status, bytes);
}
