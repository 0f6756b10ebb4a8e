/* pinned.c: computes how much memory may be pinned, and explains the limit. See pinned.h. */
#include "memory/pinned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/text.h"

#define PATH_BYTES 1024
#define TEXT_BYTES 4096

/* Memory left for the system: a twentieth of all memory, at most this. */
#define MARGIN_MOST ((uint64_t)3 << 29)
#define MARGIN_PART 20

/* ---- reading /proc --------------------------------------------------------------------------- */

/* Finds the text after `word` in a file; false if it is missing. */
static bool find_word(const char *root, const char *name, const char *word, char out[TEXT_BYTES]) {
    char path[PATH_BYTES], text[TEXT_BYTES];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "r");
    size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[size] = '\0';
    const char *found = strstr(text, word);
    if (found) snprintf(out, TEXT_BYTES, "%s", found + strlen(word));
    return found != NULL;
}

/* ---- the limit ------------------------------------------------------------------------------- */

static uint64_t margin_of(uint64_t total) {
    uint64_t part = total / MARGIN_PART;
    return part < MARGIN_MOST ? part : MARGIN_MOST;
}

static void lower(hy_pin_limits *out, uint64_t bytes, uint64_t margin, hy_pin_cause cause) {
    uint64_t limit = bytes > margin ? bytes - margin : 0;
    if (limit >= out->likely_limit) return;
    out->likely_limit = limit;
    out->which = cause;
}

void hy_pin_probe(const char *proc, const char *sys, hy_pin_limits *out) {
    char text[TEXT_BYTES], *end = text;
    hy_host_memory host;
    hy_host_memory_read(proc, sys, &host);
    *out = (hy_pin_limits){.ram_total = host.ram_total,
                           .ram_available = host.ram_available,
                           .cgroup_limit = host.group_limit,
                           .cgroup_left = host.group_left,
                           .memlock = HY_PIN_NO_LIMIT,
                           .likely_limit = HY_PIN_NO_LIMIT};
    /* The line is "Max locked memory         8388608              8388608              bytes". */
    if (find_word(proc, "self/limits", "Max locked memory", text)) {
        unsigned long long bytes = strtoull(text, &end, 10);
        if (end != text) out->memlock = (uint64_t)bytes;
    }
    /* WSL 1 has no card. Only version 2 has "microsoft" in lower case in its kernel name. */
    out->is_wsl2 = find_word(proc, "version", "microsoft", text);
    uint64_t total = out->ram_total, limit = out->cgroup_limit;
    if (out->ram_available) lower(out, out->ram_available, margin_of(total), HY_PIN_RAM);
    if (limit != HY_PIN_NO_LIMIT) lower(out, out->cgroup_left, margin_of(limit), HY_PIN_CGROUP);
    if (out->is_wsl2 && total) lower(out, total / 2, 0, HY_PIN_WSL2);
}

/* Free memory is without what is held; the limit of Windows is for all of it. */
uint64_t hy_pin_most(const hy_pin_limits *limits, uint64_t held) {
    uint64_t half = limits->ram_total / 2;
    if (limits->likely_limit == HY_PIN_NO_LIMIT) return HY_PIN_NO_LIMIT;
    uint64_t most = limits->likely_limit + held;
    return limits->is_wsl2 && half && half < most ? half : most;
}

/* ---- messages -------------------------------------------------------------------------------- */

char *hy_pin_reason(const hy_pin_limits *limits, char *buffer, size_t size) {
    switch (limits->which) {
    case HY_PIN_RAM:
        snprintf(buffer, size, "free memory less %s for the system",
                 hy_bytes_as_text(margin_of(limits->ram_total)).text);
        break;
    case HY_PIN_CGROUP:
        snprintf(buffer, size, "the rest of the control group's limit of %s, less %s",
                 hy_bytes_as_text(limits->cgroup_limit).text,
                 hy_bytes_as_text(margin_of(limits->cgroup_limit)).text);
        break;
    case HY_PIN_WSL2:
        snprintf(buffer, size, "WSL2 allows about half of its memory of %s to be pinned",
                 hy_bytes_as_text(limits->ram_total).text);
        break;
    default: snprintf(buffer, size, "no limit that the system reports"); break;
    }
    return buffer;
}

/* What to do, for each cause. */
static const char *remedy(hy_pin_cause cause) {
    switch (cause) {
    case HY_PIN_RAM: return "close other programs, use less pinned memory, or add memory";
    case HY_PIN_CGROUP:
        return "give the container or job more memory (docker run --memory, systemd MemoryMax)";
    case HY_PIN_WSL2:
        return "raise memory= under [wsl2] in .wslconfig, use less pinned memory, or run Linux "
               "directly";
    default: return "use less pinned memory";
    }
}

hy_status hy_pin_allows(const hy_pin_limits *limits, uint64_t bytes) {
    char reason[160];
    if (bytes <= limits->likely_limit) return HY_OK;
    return hy_fail(HY_ERR_MEMORY, "cannot pin %s of memory; the limit is %s (%s): %s",
                   hy_bytes_as_text(bytes).text, hy_bytes_as_text(limits->likely_limit).text,
                   hy_pin_reason(limits, reason, sizeof reason), remedy(limits->which));
}

hy_status hy_pin_check(uint64_t bytes) {
    hy_pin_limits limits;
    hy_pin_probe("/proc", "/sys", &limits);
    return hy_pin_allows(&limits, bytes);
}

hy_status hy_pin_refused(const hy_pin_limits *limits, hy_status status, uint64_t bytes) {
    hy_error refusal, likely;
    hy_error_save(&refusal, status);
    hy_error_save(&likely, hy_pin_allows(limits, bytes));
    (void)hy_error_restore(&refusal);
    if (likely.status != HY_OK) return hy_fail_hint(status, "%s", likely.text);
    if (limits->is_wsl2) {
        return hy_fail_hint(status, "under WSL2, Windows decides how much memory may be pinned: %s",
                            remedy(HY_PIN_WSL2));
    }
    if (bytes > limits->memlock) {
        return hy_fail_hint(status,
                            "the limit on locked memory is %s: if the driver respects it, raise it "
                            "with \"ulimit -l unlimited\" or memlock in /etc/security/limits.conf",
                            hy_bytes_as_text(limits->memlock).text);
    }
    return hy_fail_hint(status, "the system would allow it, but the driver does not: use less "
                                "pinned memory, or check dmesg for the reason");
}

/* Pinned memory of the CPU backend is ordinary memory, which the budget covers. */
hy_status hy_pin_take(hy_backend *b, uint64_t bytes, void **out) {
    hy_pin_limits limits;
    *out = NULL;
    if (!b->facts.is_gpu) return b->alloc(b, HY_PINNED, bytes, out);
    hy_pin_probe("/proc", "/sys", &limits);
    HY_TRY(hy_pin_allows(&limits, bytes));
    hy_status status = b->alloc(b, HY_PINNED, bytes, out);
    return status == HY_OK ? HY_OK : hy_pin_refused(&limits, status, bytes);
}
