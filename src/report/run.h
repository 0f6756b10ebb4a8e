/* run.h: what is known of one run. Of this module alone; others see hybrid_report.h.
 *
 * run.c owns it; line.c turns a line of metrics.jsonl into a point or an event; files.c reads what lies
 * beside it. Strings of points and events are held by the run's word list and live as long as the points. */
#pragma once

#include "base/json.h"
#include "hybrid_report.h"
#include "report/follow.h"
#include "report/metrics.h"

/* Strings held until the run is read anew. */
typedef struct hy_run_words {
    char **word;
    size_t count, capacity;
} hy_run_words;

/* A small file beside the metrics, read again when it was replaced. */
typedef struct hy_run_file {
    double changed; /* unix seconds; 0: not there */
    int64_t size;
} hy_run_file;

struct hy_run {
    hy_follow lines;
    hy_run_point *points;
    hy_run_event *events;
    size_t point_count, point_capacity;
    size_t event_count, event_capacity;
    hy_run_words words;   /* of events and starts */
    hy_run_words reasons; /* of points, each once */
    bool is_start_last;   /* the newest line says that a session began */
    size_t line_count;    /* read so far, understood or not */
    bool was_restarted;   /* by the refresh that is going on */

    char *folder, *name;
    char title[128], notes[1024]; /* as its configuration says them */
    hy_run_file summary_file, plan_file, config_file, sample_file;
    hy_json *summary, *plan, *sample; /* NULL: not there, or not to be read */
    char *config;
    hy_run_facts facts;
    hy_run_facts started; /* what the newest start says */
    hy_point_line read;   /* the newest line of a step */
    hy_rank_figures ranks, latest_ranks;
};

/* ---- line.c ---- */
hy_status hy_run_take_line(hy_run *run, const char *line, size_t size);

/* ---- ranks.c ---- */
/* Takes what a step's line says of ranks, if it does. */
hy_status hy_run_take_ranks(hy_run *run, const hy_point_line *line);
void hy_run_forget_ranks(hy_run *run);

/* ---- files.c ---- */
/* Reads summary.json, plan.json and config.cfg where they are new; *has_changed is set then. */
hy_status hy_run_read_files(hy_run *run, bool *has_changed);
void hy_run_free_files(hy_run *run);
/* Puts together the facts from the newest start and from the summary. */
void hy_run_gather_facts(hy_run *run);

/* ---- settings.c ---- */
/* A value of the configuration as it is printed, without quotes; false: the key is not there. */
bool hy_run_setting(const hy_run *run, const char *key, char *value, size_t size);

/* ---- run.c ---- */
/* A copy that the list holds; NULL when memory is out. */
const char *hy_words_keep(hy_run_words *words, const char *text);
/* The same, but equal texts share one; "" when the list is full of others. */
const char *hy_words_share(hy_run_words *words, const char *text);
