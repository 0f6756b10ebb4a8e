/* host_memory.c: reads /proc and the control groups through files that stay open. See
 * host_memory.h.
 *
 * The limit of a control group may be set on the group of the process or on any group above it. In
 * a container, the names in /proc may not exist under /sys. So every folder from the group up to
 * the root is tried, and missing ones are ignored. The kernel generates the text again each time a
 * file is read from the beginning. */
#include "base/host_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define PATH_BYTES 1024
#define TEXT_BYTES 8192
#define MOST_GROUPS 16
/* Version 1 of control groups writes "no limit" as a number near 2^63. */
#define ABSURD ((uint64_t)1 << 60)

/* Values are read again only after this time, and after a thousand times the duration of a read. */
#define LEAST_SECONDS 0.1
#define COST_SHARE 1000

#define RESERVE_PART 16
#define RESERVE_MOST ((uint64_t)2 << 30)

/* If less than this part of the memory is left, stalls mean that memory is short. */
#define SCARCE_PART 8
#define STALLED_MUCH 0.1

/* Names in the two versions of control groups. */
typedef struct group_names {
    const char *mount; /* under /sys */
    const char *limit, *used, *cached;
} group_names;

static const group_names version_2 = {"fs/cgroup", "memory.max", "memory.current",
                                      "inactive_file "};
static const group_names version_1 = {"fs/cgroup/memory", "memory.limit_in_bytes",
                                      "memory.usage_in_bytes", "total_inactive_file "};

typedef struct group {
    const group_names *names;
    int limit, used, statistics; /* files; -1: missing */
} group;

struct hy_host_watch {
    int meminfo, statm, pressure;
    group groups[MOST_GROUPS];
    int group_count;
    uint64_t page;
    double next_look; /* clock, seconds */
    hy_host_memory latest;
    char text[TEXT_BYTES]; /* content of the last file that was read */
};

/* ---- texts ----------------------------------------------------------------------------------- */

/* Reads a file from its beginning into the watch's text; "" on failure. */
static const char *read_text(hy_host_watch *w, int file) {
    size_t size = 0;
    while (file >= 0 && size < sizeof w->text - 1) {
        ssize_t got = pread(file, w->text + size, sizeof w->text - 1 - size, (off_t)size);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        size += (size_t)got;
    }
    w->text[size] = '\0';
    return w->text;
}

/* The text after `key` at the beginning of a line; NULL: no such line. */
static const char *find_line(const char *text, const char *key) {
    size_t length = strlen(key);
    while (text) {
        if (strncmp(text, key, length) == 0) return text + length;
        text = strchr(text, '\n');
        if (text) text++;
    }
    return NULL;
}

/* The number at the beginning of a text; `missing` if there is none, or a word ("max"). */
static uint64_t number_of(const char *text, uint64_t missing) {
    char *end;
    if (!text) return missing;
    unsigned long long value = strtoull(text, &end, 10);
    return end == text ? missing : (uint64_t)value;
}

static int open_file(const char *folder, const char *name) {
    char path[PATH_BYTES + 64];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    return length < (int)sizeof path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
}

static void close_file(int file) {
    if (file >= 0) close(file);
}

/* ---- control groups -------------------------------------------------------------------------- */

/* Opens the folder of the group and all above it, up to the root of the groups. Only groups that
 * have a file for the limit are kept. */
static void walk_groups(hy_host_watch *w, const char *sys, const char *name,
                        const group_names *names) {
    char folder[PATH_BYTES];
    int root = snprintf(folder, sizeof folder, "%s/%s", sys, names->mount);
    int length = snprintf(folder, sizeof folder, "%s/%s%s", sys, names->mount, name);
    if (root >= (int)sizeof folder) return;
    if (length >= (int)sizeof folder) folder[root] = '\0'; /* the name is too long */
    if (strcmp(name, "/") == 0) folder[root] = '\0';
    while (w->group_count < MOST_GROUPS) {
        group *g = &w->groups[w->group_count];
        *g = (group){.names = names, .limit = open_file(folder, names->limit)};
        if (g->limit >= 0) {
            g->used = open_file(folder, names->used);
            g->statistics = open_file(folder, "memory.stat");
            w->group_count++;
        }
        char *slash = strrchr(folder, '/');
        if (slash < folder + root) return;
        *slash = '\0';
    }
}

/* Lines are "0::/user.slice/..." in version 2 and "9:memory:/docker/..." in version 1. */
static void open_groups(hy_host_watch *w, const char *proc, const char *sys) {
    char name_2[PATH_BYTES] = "", name_1[PATH_BYTES] = "";
    int file = open_file(proc, "self/cgroup");
    for (const char *line = read_text(w, file); *line;) {
        int length = (int)strcspn(line, "\n");
        const char *memory = strstr(line, ":memory:");
        bool is_memory = memory && memory < line + length;
        if (strncmp(line, "0::", 3) == 0)
            snprintf(name_2, sizeof name_2, "%.*s", length - 3, line + 3);
        if (is_memory) {
            const char *name = memory + strlen(":memory:");
            snprintf(name_1, sizeof name_1, "%.*s", (int)(line + length - name), name);
        }
        line += length + (line[length] == '\n');
    }
    close_file(file);
    walk_groups(w, sys, name_2, &version_2);
    walk_groups(w, sys, name_1, &version_1);
}

/* The group with the least memory left counts. Cached files count as used in the group, but the
 * kernel drops them when memory is needed, so they are added again. */
static void read_groups(hy_host_watch *w, hy_host_memory *out) {
    out->group_limit = out->group_left = HY_HOST_NO_LIMIT;
    for (int i = 0; i < w->group_count; i++) {
        const group *g = &w->groups[i];
        uint64_t limit = number_of(read_text(w, g->limit), HY_HOST_NO_LIMIT);
        if (limit == 0 || limit >= ABSURD) continue; /* a limit of 0 is not a real limit */
        uint64_t used = number_of(read_text(w, g->used), 0);
        uint64_t cached = number_of(find_line(read_text(w, g->statistics), g->names->cached), 0);
        used -= cached < used ? cached : used;
        uint64_t left = limit > used ? limit - used : 0;
        if (left >= out->group_left) continue;
        out->group_left = left;
        out->group_limit = limit;
    }
}

/* ---- the machine and this process ------------------------------------------------------------ */

static void read_all(hy_host_watch *w, hy_host_memory *out) {
    const char *meminfo = read_text(w, w->meminfo);
    *out =
        (hy_host_memory){.ram_total = number_of(find_line(meminfo, "MemTotal:"), 0) << 10,
                         .ram_available = number_of(find_line(meminfo, "MemAvailable:"), 0) << 10};
    read_groups(w, out);
    /* The file has "size resident shared ...", in pages. */
    const char *resident = strchr(read_text(w, w->statm), ' ');
    out->resident = resident ? number_of(resident + 1, 0) * w->page : 0;
    /* The file has "full avg10=1.25 avg60=..." in percent; kernels before 4.20 and some containers
     * have no such file. */
    const char *stalled = find_line(read_text(w, w->pressure), "full avg10=");
    out->stalled = stalled ? strtod(stalled, NULL) / 100 : 0;
    bool is_limited = out->group_limit != HY_HOST_NO_LIMIT &&
                      (out->ram_total == 0 || out->group_limit < out->ram_total);
    bool is_known = out->ram_total != 0;
    out->total = is_limited ? out->group_limit : out->ram_total;
    out->available = out->ram_available;
    if (out->group_left < out->available || !is_known) {
        out->available = out->group_left == HY_HOST_NO_LIMIT ? 0 : out->group_left;
    }
}

static void open_all(hy_host_watch *w, const char *proc, const char *sys) {
    long page = sysconf(_SC_PAGESIZE);
    *w = (hy_host_watch){.meminfo = open_file(proc, "meminfo"),
                         .statm = open_file(proc, "self/statm"),
                         .pressure = open_file(proc, "pressure/memory"),
                         .page = page > 0 ? (uint64_t)page : 4096};
    open_groups(w, proc, sys);
}

static void close_all(hy_host_watch *w) {
    close_file(w->meminfo);
    close_file(w->statm);
    close_file(w->pressure);
    for (int i = 0; i < w->group_count; i++) {
        close_file(w->groups[i].limit);
        close_file(w->groups[i].used);
        close_file(w->groups[i].statistics);
    }
}

void hy_host_memory_read(const char *proc, const char *sys, hy_host_memory *out) {
    hy_host_watch w;
    open_all(&w, proc, sys);
    read_all(&w, out);
    close_all(&w);
}

/* ---- the watch ------------------------------------------------------------------------------- */

hy_host_watch *hy_host_watch_open(const char *proc, const char *sys) {
    hy_host_watch *w = malloc(sizeof *w);
    if (w) open_all(w, proc, sys);
    return w;
}

void hy_host_watch_close(hy_host_watch *w) {
    if (w) close_all(w);
    free(w);
}

static const hy_host_memory nothing = {.group_limit = HY_HOST_NO_LIMIT,
                                       .group_left = HY_HOST_NO_LIMIT};

const hy_host_memory *hy_host_watch_read(hy_host_watch *w) {
    if (!w) return &nothing;
    double begin = hy_clock();
    read_all(w, &w->latest);
    double end = hy_clock(), pause = COST_SHARE * (end - begin);
    w->next_look = end + (pause > LEAST_SECONDS ? pause : LEAST_SECONDS);
    return &w->latest;
}

const hy_host_memory *hy_host_watch_look(hy_host_watch *w) {
    if (w && hy_clock() < w->next_look) return &w->latest;
    return hy_host_watch_read(w);
}

/* ---- memory pressure ------------------------------------------------------------------------- */

uint64_t hy_host_reserve(uint64_t total, int64_t asked) {
    if (asked > 0) return (uint64_t)asked;
    return total / RESERVE_PART < RESERVE_MOST ? total / RESERVE_PART : RESERVE_MOST;
}

uint64_t hy_host_budget(const hy_host_memory *host, uint64_t ours, uint64_t limit,
                        uint64_t reserve) {
    uint64_t room = host->available > reserve ? host->available - reserve : 0;
    if (host->total == 0) return limit;
    if (limit && limit < ours + room) return limit;
    return ours + room ? ours + room : 1;
}

double hy_host_pressure(const hy_host_memory *host, uint64_t ours, uint64_t limit,
                        uint64_t reserve) {
    uint64_t budget = hy_host_budget(host, ours, limit, reserve);
    double share = budget ? (double)ours / (double)budget : 0;
    if (host->total == 0) return share;
    double into_reserve =
        host->available < reserve ? 1 + (1 - (double)host->available / (double)reserve) : 0;
    bool is_scarce = host->available < host->total / SCARCE_PART;
    double standstill = is_scarce && host->stalled >= STALLED_MUCH ? 1 : 0;
    if (into_reserve > share) share = into_reserve;
    return standstill > share ? standstill : share;
}
