/* run.h: all data of one run, for this module only; others use hybrid_report.h.
 *
 * run.c owns it; line.c turns a line of metrics.jsonl into a point or an event; files.c reads the
 * other files. The run's word list owns the strings of points and events; they live as long as the
 * points. */
#pragma once

#include "base/json.h"
#include "hybrid_report.h"
#include "report/follow.h"
#include "report/metrics.h"

/* Strings kept until the run is read again from the start. */
typedef struct hy_run_words {
    char **word;
    size_t count, capacity;
} hy_run_words;

/* A small file next to the metrics; read again if it was replaced. */
typedef struct hy_run_file {
    double changed; /* unix seconds; 0: it does not exist */
    int64_t size;
} hy_run_file;

struct hy_run {
    hy_follow lines;
    hy_run_point *points;
    hy_run_event *events;
    size_t point_count, point_capacity;
    size_t event_count, event_capacity;
    hy_run_words words;   /* strings of events and starts */
    hy_run_words reasons; /* strings of points, each once */
    bool is_start_last;   /* the newest line is the start of a session */
    size_t line_count;    /* lines read so far, understood or not */
    bool was_restarted;   /* set by the current refresh */

    char *folder, *name;
    char title[128], notes[1024]; /* from its configuration */
    hy_run_file summary_file, plan_file, config_file, sample_file, exports_file;
    hy_json *summary, *plan, *sample, *exports; /* NULL: missing or unreadable */
    char *config;
    hy_run_facts facts;
    hy_run_facts started; /* from the newest start */
    hy_point_line read;   /* the newest line of a step */
    hy_rank_figures ranks, latest_ranks;
};

/* ---- line.c ---------------------------------------------------------------------------------- */
hy_status hy_run_take_line(void *run, const char *line, size_t size); /* a sink of follow.h */

/* ---- files.c --------------------------------------------------------------------------------- */
/* Reads summary.json, plan.json and config.cfg if they are new, and then sets *has_changed. */
hy_status hy_run_read_files(hy_run *run, bool *has_changed);
void hy_run_free_files(hy_run *run);
/* Combines the facts of the newest start and of the summary. */
void hy_run_gather_facts(hy_run *run);

/* Memory by phase and class. plan.json is written when a run starts and has planned bytes;
 * summary.json also has measured bytes. */
typedef struct hy_planned {
    const hy_json_node *phases;
    bool has_measured; /* it comes from summary.json */
} hy_planned;

typedef struct hy_planned_cell {
    const char *place, *dtype;
    double planned, measured; /* NaN: not given */
} hy_planned_cell;

/* False: there is no such file. */
bool hy_planned_open(const hy_run *run, bool is_summary, hy_planned *out);
/* False: the class has no bytes in that phase. */
bool hy_planned_read(const hy_planned *from, int phase, int cls, hy_planned_cell *out);

/* ---- settings.c ------------------------------------------------------------------------------ */
/* A configuration value as printed, without quotes; false: the key is missing. */
bool hy_run_setting(const hy_run *run, const char *key, char *value, size_t size);

/* ---- run.c ----------------------------------------------------------------------------------- */
/* The cost of steps on each rank. The figures are those of the current ranks: a session with
 * another number of ranks starts over. Adds what a step's line reports about ranks, if it does. */
hy_status hy_run_take_ranks(hy_run *run, const hy_point_line *line);
void hy_run_forget_ranks(hy_run *run);
/* A copy that the list owns; NULL without memory. */
const char *hy_words_keep(hy_run_words *words, const char *text);
/* As above, but equal texts share one copy; "" if the list is full. */
const char *hy_words_share(hy_run_words *words, const char *text);
