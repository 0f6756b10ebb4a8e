/* record.h: the folder of a run: who may write there, and what a run writes.
 *
 * OUT/config.cfg, plan.json and summary.json are written whole; metrics.jsonl and tensorboard/
 * grow during the run. All data is passed by value, so runs of library models and of custom
 * models keep the same record. A failed write never ends a run that has started; it causes a
 * warning. */
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
    bool is_out_ours;      /* the folder belongs to this run, which is being rebuilt */
    hy_lock *lock;         /* lock of that folder; NULL: not locked yet */
    char *config_text;     /* the configuration as printed; owned */
    char *command;         /* command line of the run; "": not known; owned */
    unsigned conditions;   /* HY_IF_MONITORED, HY_IF_OWN: they hold for all lines */
    hy_tfevents *tensorboard;
    bool has_metrics;      /* metrics.jsonl is written */
    bool has_write_failed; /* the last one; the lines wait for the next */
    uint64_t written;      /* bytes of metrics.jsonl that are in the file */
    hy_text line, waiting; /* the current line, and complete lines that are not written yet */
    double flushed;        /* time of the last write */
} hy_record;

/* When an event happened; a resumed run compares it with its checkpoint. */
typedef struct hy_moment {
    int64_t step;
    double spent, elapsed;
} hy_moment;

/* A line with "event": the micro-batch, the memory status or the plan changed, a step was repeated,
 * or the run ended early. Fields that are NULL or 0 are omitted. Strings are only read during the
 * call. */
typedef struct hy_event_line {
    /* "batch", "memory", "recovery", "plan", "divergence", "early_stop", "validation" */
    const char *event;
    const char *text;                       /* one sentence of what happened */
    const char *reason;                     /* batch: why */
    int64_t batch_size, grad_accum;         /* batch: from now on */
    int64_t old_batch_size, old_grad_accum; /* and before */
    const char *status, *old_status;        /* memory: "normal", "warning", ... */
    double utilization;                     /* memory: share of the budget */
    double val_loss;           /* validation: of the step that was recorded before a resume */
    const hy_row_scores *rows; /* validation: the same; or NULL */
} hy_event_line;

/* ---- folder.c -------------------------------------------------------------------------------- */
/* Sets record->out from `out` and `resume` and checks it before anything is written: a folder
 * that holds a run is an error unless it is resumed, overwritten or ours, and it must be
 * writable. An existing run is locked; it is an error if another process uses it. */
hy_status hy_record_choose_folder(hy_record *record, const hy_settings *settings);
/* Creates the folder, removes the run that is overwritten, and writes config.cfg. */
hy_status hy_record_make_folder(hy_record *record, const hy_settings *settings);
/* Writes a whole file of the folder. */
hy_status hy_record_write(const hy_record *record, const char *name, const char *text);

/* ---- origin.c -------------------------------------------------------------------------------- */
#define HY_ORIGIN_FOLDER "origin"
#define HY_ORIGIN_PARTIAL "." HY_ORIGIN_FOLDER ".partial"
#define HY_ORIGIN_OLD "." HY_ORIGIN_FOLDER ".old"
hy_status hy_origin_drop(const char *run); /* succeeds if nothing is kept */
/* Reads the kept copy; a missing or changed file is an error that names it. Folders of earlier
 * versions have no copy: *out is empty. */
hy_status hy_origin_read(const char *run, hy_kept_origin *out);
/* The model files that a run started from, at their old path or at lora.base, to read the
 * weights again. HY_ERR_INPUT: they are missing or have changed. */
hy_status hy_origin_find_weights(const hy_settings *settings, hy_model_files *kind,
                                 char path[HY_HF_PATH_MAX]);
/* HY_ERR_INPUT if a run's adapter was trained with other base files than these; a note if it was
 * trained with another storage of them (no observer: no note). For other adapters this is not
 * known. */
hy_status hy_origin_check_adapter(const hy_observer *observer, const hy_settings *settings,
                                  const char *adapter);
/* Copies the starting model into the run's folder, unless a resumed run already has the copy,
 * and makes the settings use the copy. */
struct hy_model;
hy_status hy_origin_keep(const hy_record *record, hy_settings *settings,
                         const struct hy_model *model);

/* ---- metrics.c ------------------------------------------------------------------------------- */
/* Starts a session. With start->resumed, lines after `now` are dropped from metrics.jsonl and
 * new lines are appended; else the file is new. Fills in settings, time and version of `start`. */
hy_status hy_record_open(hy_record *record, const hy_settings *settings, hy_start_line *start,
                         const hy_moment *now);
/* The line of a step or jump, and its values for TensorBoard. The ledger gives line->device and
 * pinned. */
void hy_record_step(hy_record *record, hy_step_line *line, const hy_ledger *ledger);
/* Written at once: events are rare, and readers wait for them. */
void hy_record_event(hy_record *record, const hy_event_line *event, const hy_moment *now);
/* a failed write causes a warning, and the lines are kept */
void hy_record_flush(hy_record *record);
hy_status hy_record_close(hy_record *record);
void hy_record_release(hy_record *record); /* frees it, also after a failure */

/* ---- tensorboard.c --------------------------------------------------------------------------- */
void hy_tensorboard_open(hy_record *record, int64_t step);
void hy_tensorboard_step(hy_record *record, const hy_step_line *line, const hy_ledger *ledger);
void hy_tensorboard_flush(hy_record *record);
void hy_tensorboard_close(hy_record *record);

/* ---- summary_json.c, plan_json.c: *out is allocated ------------------------------------------ */
/* What summary.json says beside hy_summary. */
typedef struct hy_summary_extras {
    const char *command;               /* "": not known */
    int64_t recoveries, batch_changes; /* caused by low memory in this session */
    int64_t batch_size, grad_accum;    /* at its end; 0: not known (a custom model) */
    const hy_ranks_info *ranks;        /* count 0: there is only one rank */
    const hy_savings *savings;         /* NULL: they could not be computed */
} hy_summary_extras;
hy_status hy_summary_to_json(const hy_summary *summary, const hy_summary_extras *extras,
                             char **out);
/* With several ranks, adds their number, "zero_stage" and "transport". */
struct hy_json_writer;
void hy_put_ranks(struct hy_json_writer *w, const hy_ranks_info *ranks);
/* Adds the bytes of each class in a phase as "classes". */
void hy_put_classes(struct hy_json_writer *w, const hy_phase_summary *phase, bool is_measured);
/* For a run: the planned values (bytes before the first step and chosen places) and its parameter
 * groups. */
hy_status hy_plan_to_json(const hy_summary *summary, const hy_plan_facts *facts,
                          const hy_plan_choice *choice, const hy_group_info *groups,
                          int32_t group_count, const hy_ranks_info *ranks, char **out);
