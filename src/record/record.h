/* record.h: the folder of a run: who may write there, and what a run leaves in it.
 *
 * OUT/config.cfg, plan.json and summary.json are written whole; metrics.jsonl and tensorboard/ grow while the
 * run goes on. Everything is given as values, so that a run of the trainer and a run with a model of the
 * caller's keep their record alike. Nothing here fails a run that has begun: a record that cannot be
 * written ends with a warning. */
#pragma once

#include "base/file.h"
#include "base/lock.h"
#include "base/text.h"
#include "config/settings.h"
#include "formats/tfevents.h"
#include "hybrid_tools.h"
#include "memory/ledger.h"
#include "plan/plan.h"
#include "report/metrics.h"

typedef struct hy_record {
    hy_observer observer;  /* gets the warnings */
    char out[HY_PATH_MAX]; /* the run's folder; "": nothing is written */
    bool is_out_ours;      /* what lies there is of this run, which is being built again */
    hy_lock *lock;         /* on that folder; NULL: not taken yet */
    char *config_text;     /* the configuration as printed; owned */
    char *command;         /* that started the run; "": not known; owned */
    unsigned conditions;   /* HY_IF_MONITORED, HY_IF_OWN: of all lines */
    hy_tfevents *tensorboard;
    bool has_metrics;      /* metrics.jsonl is written */
    bool is_late;          /* the disk refused it the last time */
    uint64_t written;      /* bytes of it that are in the file */
    hy_text line, waiting; /* in the making; whole ones that are not in the file yet */
    double flushed;
} hy_record;

/* When something happened: what a resumed run compares with its checkpoint. */
typedef struct hy_moment {
    int64_t step;
    double spent, elapsed;
} hy_moment;

/* A line with "event": the micro-batch, the status of memory or the plan changed, or a step had to be done
 * again. What is NULL or 0 is left out. Strings are only read during the call. */
typedef struct hy_event_line {
    const char *event;                      /* "batch", "memory", "recovery", "plan" */
    const char *text;                       /* one sentence of what happened */
    const char *reason;                     /* batch: why */
    int64_t batch_size, grad_accum;         /* batch: from now on */
    int64_t old_batch_size, old_grad_accum; /* and before */
    const char *status, *old_status;        /* memory: "normal", "warning", ... */
    double utilization;                     /* memory: share of the budget */
} hy_event_line;

/* ---- folder.c ---- */
/* runs/NAME-DATE-TIME, and a number where that exists. */
void hy_default_folder(const char *name, char out[HY_PATH_MAX]);
/* record->out by `out` and `resume`, checked before anything is written: a folder that holds a run is an
 * error unless it is resumed, overwritten or ours, and it must be possible to write there. A run that is
 * there is locked: while another process works on it, that is an error, too. */
hy_status hy_record_choose_folder(hy_record *record, const hy_settings *settings);
/* The folder exists and is nobody else's from here on. */
hy_status hy_record_lock(hy_record *record);
/* Makes it, clears it of the run that is overwritten, and writes config.cfg. */
hy_status hy_record_make_folder(hy_record *record, const hy_settings *settings);
/* A file of the folder, written whole. */
hy_status hy_record_write(const hy_record *record, const char *name, const char *text);

/* ---- origin.c ---- */
#define HY_ORIGIN_FOLDER "origin"
#define HY_ORIGIN_PARTIAL "." HY_ORIGIN_FOLDER ".partial"
#define HY_ORIGIN_OLD "." HY_ORIGIN_FOLDER ".old"
bool hy_origin_is_kept(const char *run);
hy_status hy_origin_drop(const char *run); /* fine when nothing is kept */
/* What the folder of a run keeps; a file that is missing or was changed is an error that names it. Folders of
 * earlier versions keep nothing: *out is empty. */
hy_status hy_origin_read(const char *run, hy_kept_origin *out);
/* The files that the model of a run began as, where they were or where lora.base says, to read its weights again:
 * HY_ERR_INPUT where they are gone or others
 * than they were. */
hy_status hy_origin_find_weights(const hy_settings *settings, hy_model_files *kind,
                                 char path[HY_HF_PATH_MAX]);
/* The adapter of a run that trained beside a model's files is of no use beside others: HY_ERR_INPUT. Of other
 * adapters nothing is known. */
hy_status hy_origin_check_adapter(const hy_settings *settings, const char *adapter);
/* Copies what the model began as into the run's folder, unless a run is resumed that has it, and makes the
 * settings go by the copy from here on. */
struct hy_model;
hy_status hy_origin_keep(const hy_record *record, hy_settings *settings,
                         const struct hy_model *model);

/* ---- metrics.c ---- */
/* Begins a session: with start->resumed the lines past `now` are dropped from metrics.jsonl and it goes on,
 * else it begins. What start says of settings, time and version is filled in. */
hy_status hy_record_open(hy_record *record, const hy_settings *settings, hy_start_line *start,
                         const hy_moment *now);
/* The line of a step or jump, and its values for TensorBoard. The ledger gives line->device and pinned. */
void hy_record_step(hy_record *record, hy_step_line *line, const hy_ledger *ledger);
/* Reaches the file at once: events are rare and readers wait for them. */
void hy_record_event(hy_record *record, const hy_event_line *event, const hy_moment *now);
void hy_record_flush(hy_record *record); /* what the disk does not take is warned of and kept */
hy_status hy_record_close(hy_record *record);
void hy_record_release(hy_record *record); /* whatever became of the run */

/* ---- tensorboard.c ---- */
void hy_tensorboard_open(hy_record *record, int64_t step);
void hy_tensorboard_step(hy_record *record, const hy_step_line *line, const hy_ledger *ledger);
void hy_tensorboard_flush(hy_record *record);
void hy_tensorboard_close(hy_record *record);

/* ---- summary_json.c, plan_json.c: *out is allocated ---- */
/* What summary.json says beside hy_summary. */
typedef struct hy_summary_extras {
    const char *command;               /* "": not known */
    int64_t recoveries, batch_changes; /* that a shortage of memory made in this session */
    int64_t batch_size, grad_accum;    /* at its end; 0: not known */
    const hy_ranks_info *ranks;        /* of none: there is one */
    const hy_savings *savings;         /* NULL: they could not be computed */
} hy_summary_extras;
hy_status hy_summary_to_json(const hy_summary *summary, const hy_summary_extras *extras,
                             char **out);
/* Adds how many ranks there are, "zero_stage" and "transport", where there are several. */
struct hy_json_writer;
void hy_put_ranks(struct hy_json_writer *w, const hy_ranks_info *ranks);
/* Adds what each class takes in a phase, as "classes". */
void hy_put_classes(struct hy_json_writer *w, const hy_phase_summary *phase, bool is_measured);
/* In a run it is what was planned: bytes that were taken before step 0, and places as chosen; and the groups
 * of its parameters. */
hy_status hy_plan_to_json(const hy_summary *summary, const hy_plan_facts *facts,
                          const hy_plan_choice *choice, const hy_group_info *groups,
                          int32_t group_count, const hy_ranks_info *ranks, char **out);
