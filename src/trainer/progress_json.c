/* progress_json.c: writes and reads trainer.json of a checkpoint: the progress of a run and what it
 * depends on.
 *
 * Reading compares everything that decides the order of data with this run: with another
 * sequence length, seed or data set the position in the data would be wrong, so a difference is
 * an error that names the key. */
#include "trainer/progress_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "kernels/grid.h"
#include "plan/plan_value.h"
#include "record/row_scores.h"
#include "record/state_files.h"
#include "trainer/eval_schedule.h"
#include "trainer/resumed_adapters.h"

#define PROGRESS_VERSION 1
#define FITTED_STEP "fitted_step_tokens"
#define CALLER_BYTES "caller_bytes"
#define FROZEN_TEXT 32 /* bytes of the name of a storage type */

/* A value of hy_progress or of hy_engine_progress: an int64_t or a double. */
typedef struct field {
    const char *key;
    size_t offset;
    bool is_double, is_engine;
} field;

#define INT(member) offsetof(hy_progress, member), false, false
#define DOUBLE(member) offsetof(hy_progress, member), true, false
#define ENGINE_INT(member) offsetof(hy_engine_progress, member), false, true
#define ENGINE_DOUBLE(member) offsetof(hy_engine_progress, member), true, true

static const field fields[] = {
    {"step", INT(step)},
    {"updates", ENGINE_INT(updates)},
    {"skipped", ENGINE_INT(skipped)},
    {"sequences", INT(sequences)},
    {"tokens", INT(tokens)},
    {"backward_passes", ENGINE_INT(backward_passes)},
    {"val_step", INT(val_step)},
    {"true_steps", INT(machine.done)},
    {"window", INT(machine.window)},
    {"correct_left", INT(machine.correct_left)},
    {"cooldown", INT(machine.cooldown)},
    {"next_cooldown", INT(machine.next_cooldown)},
    {"moves", INT(machine.moves)},
    {"rejections", INT(machine.rejections)},
    {"divergences", INT(machine.divergences)},
    {"healthy_steps", INT(divergence.count)},
    {"guard_moves", INT(guard.count)},
    {"forks", INT(confidence.forks)},
    {"scale_good_steps", ENGINE_INT(loss_scale.good_steps)},
    {"line_streak", INT(jumps.streak)},
    {"tail_samples", ENGINE_INT(average_samples)},
    {"next_fork", INT(forks.next)},
    {"fork_wait", INT(forks.wait)},
    {"seconds", DOUBLE(seconds)},
    {"spent", DOUBLE(spent)},
    {"loss_mean", DOUBLE(divergence.loss_mean)},
    {"loss_variance", DOUBLE(divergence.loss_variance)},
    {"grad_level", DOUBLE(divergence.grad_level)},
    {"log_odds", DOUBLE(confidence.log_odds)},
    {"fork_gain", DOUBLE(confidence.gain_sum)},
    {"fork_spent", DOUBLE(forks.spent)},
    {"fork_gain_steps", DOUBLE(forks.gain_steps)},
    {"loss_scale", ENGINE_DOUBLE(loss_scale.scale)},
    {"predicted_steps", DOUBLE(jumps.steps)},
};

static const field best_fields[] = {
    {"last", DOUBLE(best.last)},
    {"loss", DOUBLE(best.loss)},
    {"step", INT(best.step)},
    {"saved_loss", DOUBLE(best.saved_loss)},
    {"saved_step", INT(best.saved_step)},
    {"mark", DOUBLE(best.mark)},
    {"stale", INT(best.stale)},
    {"sequences", INT(best.sequences)},
    {"stride", INT(best.stride)},
    {"of", INT(best.of)},
};

/* Each is an array with an entry for each phase. */
static const field phase_fields[] = {
    {"steps", INT(phases.steps)},
    {"seconds", DOUBLE(phases.seconds)},
    {"wait_seconds", DOUBLE(phases.wait)},
    {"bytes_moved", INT(phases.bytes_moved)},
};

#define LENGTH(list) (int)(sizeof list / sizeof list[0])

/* The address of a value; `index` is for arrays. */
static void *field_at(const hy_trainer *t, const field *f, int index) {
    char *base = f->is_engine ? (char *)&t->engine->progress : (char *)t->progress;
    return base + f->offset + (size_t)index * sizeof(int64_t);
}

static void write_fields(const hy_trainer *t, const field *list, int count, int index,
                         hy_json_writer *w) {
    for (const field *f = list; f < list + count; f++) {
        const void *value = field_at(t, f, index);
        if (f->is_double) {
            hy_json_put_double(w, f->key, *(const double *)value);
        } else {
            hy_json_put_int(w, f->key, *(const int64_t *)value);
        }
    }
}

static hy_status read_fields(hy_trainer *t, const field *list, int count, int index,
                             const hy_json *json, const hy_json_node *node) {
    for (const field *f = list; f < list + count; f++) {
        void *value = field_at(t, f, index);
        HY_TRY(f->is_double ? hy_json_double(json, node, f->key, value)
                            : hy_json_int(json, node, f->key, value));
        HY_FAIL_IF(!f->is_double && *(int64_t *)value < 0, HY_ERR_INPUT,
                   "%s/trainer.json: %s is %lld; expected 0 or more", t->resumed, f->key,
                   (long long)*(int64_t *)value);
    }
    return HY_OK;
}

/* Older checkpoints have no lowest losses; values that are not finite are null in the file. */
static void read_best(hy_trainer *t, const hy_json_node *node) {
    t->progress->best = HY_NO_BEST;
    for (int i = 0; i < LENGTH(best_fields); i++) {
        const field *f = &best_fields[i];
        const hy_json_node *member = hy_json_get(node, f->key);
        (void)(f->is_double ? hy_json_as_double(member, field_at(t, f, 0))
                            : hy_json_as_int(member, field_at(t, f, 0)));
    }
}

static void write_ring(hy_json_writer *w, const char *key, const double *values, int count) {
    hy_json_open_array(w, key);
    for (int i = 0; i < count; i++) hy_json_put_double(w, NULL, values[i]);
    hy_json_close_array(w);
}

/* The order of data depends on these values. The packing of rows and the counted tokens change
 * the last two, which older checkpoints do not have. */
typedef struct identity {
    const char *key, *name; /* in the file; in messages */
    int64_t ours;
    bool may_lack;
} identity;
enum { IDENTITIES = 6 };

static void describe_identity(const hy_trainer *t, identity out[IDENTITIES]) {
    const hy_dataset_facts *facts = hy_trainer_data(t);
    int64_t tokens = (int64_t)facts->tokens[HY_TRAIN], rows = (int64_t)facts->sequences[HY_TRAIN];
    out[0] = (identity){"seed", "seed", t->settings->seed, false};
    out[1] = (identity){"seq_len", "seq_len", t->settings->train.seq_len, false};
    out[2] = (identity){"train_tokens", "the number of training tokens", tokens, false};
    out[3] = (identity){"train_sequences", "the number of training sequences", rows, true};
    out[4] = (identity){"train_targets", "the number of target tokens",
                        (int64_t)facts->targets[HY_TRAIN], true};
    out[5] = (identity){"stream_window", "stream_window (0: rows are not streamed)",
                        (int64_t)facts->stream_window, true};
}

static void write_hash(hy_json_writer *w, const char *key, uint64_t hash) {
    char hex[17];
    snprintf(hex, sizeof hex, "%016" PRIx64, hash);
    if (hash) hy_json_put_string(w, key, hex);
}

static bool is_other_hash(const hy_json_node *data, const char *key, uint64_t ours) {
    const char *hex;
    bool has_hash = hy_json_as_string(hy_json_get(data, key), &hex, NULL);
    return has_hash && ours && strtoull(hex, NULL, 16) != ours;
}

/* For plans (custom/trainer_plan.c): what the tensors do not say about parameters in a provider's
 * memory. */
static void write_own(const hy_provider *p, hy_json_writer *w) {
    const hy_custom_side *m = p->memory;
    if (!m) return;
    hy_json_put_bool(w, "own", true);
    hy_json_open_object(w, "own_parameters");
    hy_json_put_string(w, "dtype", hy_dtype_name(m->types.weights));
    hy_json_put_string(w, "grad_dtype", hy_dtype_name(m->types.grads));
    hy_json_put_bool(w, "sums_gradients", m->types.asks_each);
    hy_json_put_bool(w, "uses_in_turn", m->uses_in_turn);
    hy_json_put_bool(w, "can_rewind", p->facts.can_rewind);
    if (m->types.caller_bytes > 0) hy_json_put_int(w, CALLER_BYTES, m->types.caller_bytes);
    if (m->unit_of) hy_json_open_array(w, "unit_of");
    for (int32_t i = 0; m->unit_of && i < m->count; i++) hy_json_put_int(w, NULL, m->unit_of[i]);
    if (m->unit_of) hy_json_close_array(w);
    hy_json_close_object(w);
}

/* ---- groups of parameters -------------------------------------------------------------------- */

/* The optimizer that a group gives a parameter; NULL: the run's. */
static const char *own_optimizer(const hy_trainer *t, const hy_param *p) {
    const hy_optimizer_kind *run = t->engine->plan->optimizer.kind;
    if (!p->own_optimizer) return NULL;
    const char *name = hy_optimizer_kind_of((hy_optimizer_id)(p->own_optimizer - 1))->name;
    return strcmp(name, run->name) == 0 ? NULL : name;
}

/* How a caller's frozen parameter is stored: "bf16", or for quantised ones "nf4 of bf16". */
static const char *frozen_type(const hy_engine *e, int32_t param, char text[FROZEN_TEXT]) {
    const hy_params *params = &e->model->params;
    const char *given = hy_dtype_name(e->custom->params[param].dtype);
    if (!hy_params_are_coded(params, param)) return given;
    hy_dtype codes = hy_params_codes(params, param);
    bool is_single = codes == HY_NF4 && params->has_plain_scales;
    snprintf(text, FROZEN_TEXT, "%s%s of %s", hy_dtype_name(codes), is_single ? "_single" : "",
             given);
    return text;
}

/* Another type gives other numbers. Older checkpoints do not have the types. */
static hy_status check_frozen_type(const hy_engine *e, int32_t param, const hy_json_node *frozen,
                                   const char *path) {
    const char *name = e->model->params.list[param].name, *then;
    char text[FROZEN_TEXT];
    if (!e->custom || !hy_json_as_string(hy_json_get(frozen, name), &then, NULL)) return HY_OK;
    const char *now = frozen_type(e, param, text);
    HY_FAIL_IF(strcmp(then, now) != 0, HY_ERR_INPUT,
               "%s: the frozen parameter %s was stored in %s when this was saved and in %s now, "
               "which changes the model: restore frozen_dtype, or the type of the parameter",
               path, name, then, now);
    return HY_OK;
}

/* Optimizers of groups and frozen parameters decide which state a checkpoint has. */
static void write_sets(const hy_trainer *t, hy_json_writer *w) {
    const hy_params *params = &t->engine->model->params;
    char text[FROZEN_TEXT];
    hy_json_open_object(w, "own_optimizers");
    for (int32_t i = 0; i < params->count; i++) {
        const hy_param *p = &params->list[i];
        const char *own = own_optimizer(t, p);
        if (own && p->is_trainable && p->part_at == 0) hy_json_put_string(w, p->name, own);
    }
    hy_json_close_object(w);
    hy_json_open_object(w, "frozen");
    for (int32_t i = 0; i < params->count; i++) {
        const hy_param *p = &params->list[i];
        if (p->is_trainable) continue;
        if (t->engine->custom) {
            hy_json_put_string(w, p->name, frozen_type(t->engine, i, text));
        } else {
            hy_json_put_bool(w, p->name, true);
        }
    }
    hy_json_close_object(w);
}

/* Another optimizer cannot use the state, and frozen parameters have none. Older checkpoints do
 * not list frozen parameters; they have one optimizer. */
static hy_status check_sets(const hy_trainer *t, const hy_json_node *root, const char *path) {
    const hy_params *params = &t->engine->model->params;
    const char *run = t->engine->plan->optimizer.kind->name;
    const hy_json_node *frozen = hy_json_get(root, "frozen");
    const hy_json_node *optimizers = hy_json_get(root, "own_optimizers");
    for (int32_t i = 0; i < params->count; i++) {
        const hy_param *p = &params->list[i];
        const char *ours = own_optimizer(t, p), *theirs = run;
        bool was_frozen = frozen ? hy_json_get(frozen, p->name) != NULL : !p->is_trainable;
        HY_FAIL_IF(was_frozen == p->is_trainable, HY_ERR_INPUT,
                   "%s: %s was %s when this was saved and is %s now; continue with the same train "
                   "and frozen groups",
                   path, p->name, was_frozen ? "frozen" : "trained",
                   p->is_trainable ? "trained" : "frozen");
        if (frozen && was_frozen) HY_TRY(check_frozen_type(t->engine, i, frozen, path));
        if (optimizers) {
            (void)hy_json_as_string(hy_json_get(optimizers, p->name), &theirs, NULL);
        }
        HY_FAIL_IF(p->is_trainable && strcmp(theirs, ours ? ours : run) != 0, HY_ERR_INPUT,
                   "%s: the optimizer of %s was %s when this was saved and is %s now; continue "
                   "with that optimizer (lr_scale and decay of groups may change)",
                   path, p->name, theirs, ours ? ours : run);
    }
    return HY_OK;
}

static void write_data(const hy_trainer *t, hy_json_writer *w) {
    identity data[IDENTITIES];
    describe_identity(t, data);
    hy_json_open_object(w, "data");
    for (int i = 0; i < IDENTITIES; i++) hy_json_put_int(w, data[i].key, data[i].ours);
    write_hash(w, "hash", t->data.hash);
    write_hash(w, "val_hash", t->data.val_hash);
    const hy_dataset_facts *facts = hy_trainer_data(t);
    hy_json_put_string(w, "description", facts->description);
    hy_prompt_format_put(w, facts->prompt);
    if (t->schedule->fitted_step) hy_json_put_int(w, FITTED_STEP, t->schedule->fitted_step);
    if (t->data.set) hy_dataset_write_streams(t->data.set, w);
    hy_json_close_object(w);
}

static void write_phases(const hy_trainer *t, hy_json_writer *w) {
    hy_json_open_array(w, "phases");
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        hy_json_open_object(w, NULL);
        hy_json_put_string(w, "phase", hy_phase_name((hy_phase)i));
        write_fields(t, phase_fields, LENGTH(phase_fields), i, w);
        hy_json_close_object(w);
    }
    hy_json_close_array(w);
}

void hy_progress_write(const hy_trainer *t, hy_text *out) {
    const hy_progress *p = t->progress;
    hy_json_writer w;
    hy_json_begin(&w, out, true);
    hy_json_open_object(&w, NULL);
    hy_json_put_string(&w, "format", "hybrid-train checkpoint");
    hy_json_put_int(&w, "version", PROGRESS_VERSION);
    hy_json_put_string(&w, "model", t->settings->model);
    if (t->initial[0]) hy_json_put_string(&w, "init_from", t->initial);
    write_own(t->provider, &w);
    hy_json_put_int(&w, "parameters", t->engine->model->params.elements);
    hy_json_put_string(&w, "optimizer", t->engine->plan->optimizer.kind->name);
    hy_json_put_int(&w, "optimizer_arrays", t->engine->state->rows->optim_count);
    write_sets(t, &w);
    write_fields(t, fields, LENGTH(fields), 0, &w);
    hy_json_put_string(&w, "phase", hy_phase_name(p->machine.phase));
    hy_json_put_bool(&w, "residual_due", p->jumps.is_residual_due);
    hy_json_put_int(&w, "skipped_in_a_row", t->engine->progress.skipped_in_a_row);
    hy_json_put_int(&w, "early_steps", p->bound.seen);
    hy_json_put_int(&w, "steps_above", p->bound.above);
    hy_json_put_double(&w, "first_loss", p->bound.first);
    hy_json_put_double(&w, "early_loss", p->bound.early);
    hy_json_put_bool(&w, "validation_due", t->schedule->is_validation_due);
    hy_json_put_bool(&w, "validation_cut", t->schedule->is_validation_cut);
    hy_json_put_bool(&w, "rest_owed", t->schedule->is_rest_owed);
    hy_json_put_bool(&w, "is_closed", t->schedule->is_closed);
    hy_json_put_bool(&w, "has_snapshot", t->engine->progress.has_snapshot);
    hy_json_put_int(&w, "slow_exponent", t->engine->progress.slow_exponent);
    hy_json_put_double(&w, "val_loss", p->val_loss);
    hy_row_scores_put(&p->row_scores, &w);
    hy_json_open_object(&w, "best");
    write_fields(t, best_fields, LENGTH(best_fields), 0, &w);
    hy_json_close_object(&w);
    write_ring(&w, "loss_tail", p->loss_tail, HY_LOSS_TAIL);
    write_ring(&w, "guard_changes", p->guard.change, HY_GUARD_HISTORY);
    /* An open paired test. */
    if (t->schedule->fork.is_open) {
        hy_json_open_object(&w, "fork");
        hy_json_put_int(&w, "compare_at", t->schedule->fork.compare_at);
        hy_json_put_int(&w, "first", t->schedule->fork.first);
        write_ring(&w, "with", t->schedule->fork.with, HY_FORK_SEQUENCES);
        hy_json_close_object(&w);
    }
    write_phases(t, &w);
    hy_json_open_object(&w, "schedule");
    hy_json_put_int(&w, "warmup", t->schedule->lr_schedule.warmup);
    hy_json_put_int(&w, "total", t->schedule->lr_schedule.total);
    hy_json_close_object(&w);
    write_data(t, &w);
    hy_plan_write_kept(&t->engine->request, t->engine->plan, t->first_batch, &w);
    hy_json_put_bool(&w, HY_LACKS_BASE, t->engine->base_is_named);
    hy_json_close_object(&w);
    hy_text_add(out, "\n");
}

static hy_status read_phase(const hy_json *json, const char *path, hy_phase *out) {
    const char *name;
    HY_TRY(hy_json_string(json, hy_json_root(json), "phase", &name, NULL));
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        if (strcmp(name, hy_phase_name((hy_phase)i)) == 0) {
            *out = (hy_phase)i;
            return HY_OK;
        }
    }
    return hy_fail(HY_ERR_INPUT, "%s: \"%s\" is not a phase", path, name);
}

static void read_ring(const hy_json_node *object, const char *key, double *values, int count) {
    const hy_json_node *list = hy_json_get(object, key);
    const hy_json_node *node = list ? hy_json_first(list) : NULL;
    for (int i = 0; i < count && node; i++, node = hy_json_next(node)) {
        if (!hy_json_as_double(node, &values[i])) values[i] = NAN;
    }
}

static hy_status check_identity(const hy_trainer *t, const hy_json *json, const char *path) {
    const hy_json_node *data = hy_json_get(hy_json_root(json), "data");
    identity list[IDENTITIES];
    if (!data) return hy_fail(HY_ERR_INPUT, "%s: \"data\" is missing", path);
    describe_identity(t, list);
    for (int i = 0; i < IDENTITIES; i++) {
        int64_t theirs;
        bool is_there = hy_json_as_int(hy_json_get(data, list[i].key), &theirs);
        if (!is_there && list[i].may_lack) continue;
        HY_TRY(hy_json_int(json, data, list[i].key, &theirs));
        if (theirs == list[i].ours) continue;
        hy_status status =
            hy_fail(HY_ERR_INPUT,
                    "%s: %s was %lld when this was saved and is %lld now, so the run could not "
                    "continue with the same order of data: restore it",
                    path, list[i].name, (long long)theirs, (long long)list[i].ours);
        if (t->settings->task != HY_LOSS_POLICY) return status;
        return hy_fail_hint(status,
                            "grpo.answer_tokens and grpo.reward decide which rows are kept");
    }
    if (is_other_hash(data, "val_hash", t->data.val_hash)) {
        hy_say(t, HY_WARNING,
               "the held-out data in %s has changed since %s was saved: losses before and after "
               "cannot be compared",
               t->settings->val_data, path);
    }
    HY_FAIL_IF(is_other_hash(data, "hash", t->data.hash), HY_ERR_INPUT,
               "%s: the data in %s is not the data that the run was trained on; the run could not "
               "continue with the same order of data; name the path of the original data (--data "
               "PATH)",
               path, t->settings->data);
    return t->data.set ? hy_dataset_read_streams(t->data.set, data) : HY_OK;
}

/* Another optimizer cannot use the state. Older checkpoints do not name their optimizer: it is
 * AdamW. */
static hy_status check_optimizer(const hy_trainer *t, const hy_json_node *root, const char *path) {
    const hy_optimizer_kind *ours = t->engine->plan->optimizer.kind;
    int64_t arrays = t->engine->state->rows->optim_count, theirs;
    const char *name = "adamw";
    (void)hy_json_as_string(hy_json_get(root, "optimizer"), &name, NULL);
    if (!hy_json_as_int(hy_json_get(root, "optimizer_arrays"), &theirs)) theirs = arrays;
    if (strcmp(name, ours->name) == 0) HY_TRY(check_sets(t, root, path));
    if (strcmp(name, ours->name) == 0 && theirs >= arrays) return HY_OK;
    return hy_fail(
        HY_ERR_INPUT,
        "%s: the checkpoint has no %s for optimizer %s: it was saved by a run with optimizer %s%s; "
        "continue with that optimizer",
        path, ours->arrays[0], ours->name, name,
        strcmp(name, ours->name) == 0 ? " and momentum 0" : "");
}

static hy_status read_progress(hy_trainer *t, const hy_json *json, const char *path) {
    const hy_json_node *root = hy_json_root(json);
    hy_progress *p = t->progress;
    int64_t version;
    HY_TRY(hy_json_int(json, root, "version", &version));
    HY_FAIL_IF(version != PROGRESS_VERSION, HY_ERR_INPUT,
               "%s has version %lld; this program reads version %d", path, (long long)version,
               PROGRESS_VERSION);
    const char *initial = "";
    if (hy_json_as_string(hy_json_get(root, "init_from"), &initial, NULL))
        snprintf(t->initial, sizeof t->initial, "%s", initial);
    hy_status status = check_identity(t, json, path);
    if (status == HY_OK) status = check_optimizer(t, root, path);
    if (status == HY_ERR_INPUT) return hy_trainer_advise_new_run(t, t->resumed, status);
    HY_TRY(status);
    HY_TRY(read_fields(t, fields, LENGTH(fields), 0, json, root));
    HY_TRY(read_phase(json, path, &p->machine.phase));
    HY_TRY(hy_json_bool(json, root, "residual_due", &p->jumps.is_residual_due));
    HY_TRY(hy_json_bool(json, root, "has_snapshot", &t->engine->progress.has_snapshot));
    HY_FAIL_IF(t->engine->progress.has_snapshot && !hy_has_row(t->engine, HY_ROW_SNAPSHOT),
               HY_ERR_INPUT, "%s was saved in Correct with a snapshot; resume with snapshot = true",
               path);
    int64_t skipped = 0; /* older checkpoints lack it */
    (void)hy_json_as_int(hy_json_get(root, "skipped_in_a_row"), &skipped);
    t->engine->progress.skipped_in_a_row = skipped > 0 ? skipped : 0;
    int64_t exponent = 0; /* older checkpoints lack it, and have no slow weights in 8 bits */
    (void)hy_json_as_int(hy_json_get(root, "slow_exponent"), &exponent);
    HY_FAIL_IF(exponent < -HY_GRID_EXPONENT_MAX || exponent > HY_GRID_EXPONENT_MAX, HY_ERR_INPUT,
               "%s: slow_exponent is %lld, expected %d to %d", path, (long long)exponent,
               -HY_GRID_EXPONENT_MAX, HY_GRID_EXPONENT_MAX);
    t->engine->progress.slow_exponent = (int32_t)exponent;
    hy_loss_bound bound = {0}; /* older checkpoints lack it: the next step counts as the first */
    bool has_bound = hy_json_as_int(hy_json_get(root, "early_steps"), &bound.seen) &&
                     hy_json_as_double(hy_json_get(root, "first_loss"), &bound.first) &&
                     hy_json_as_double(hy_json_get(root, "early_loss"), &bound.early);
    (void)hy_json_as_int(hy_json_get(root, "steps_above"), &bound.above);
    if (has_bound && bound.above >= 0) p->bound = bound;
    /* A validation that waits for the next Predict step; older checkpoints lack some of these. */
    (void)hy_json_as_bool(hy_json_get(root, "is_closed"), &t->schedule->is_closed);
    (void)hy_json_as_bool(hy_json_get(root, "validation_due"), &t->schedule->is_validation_due);
    (void)hy_json_as_bool(hy_json_get(root, "rest_owed"), &t->schedule->is_rest_owed);
    t->schedule->is_validation_cut = t->schedule->is_validation_due && t->schedule->is_rest_owed;
    (void)hy_json_as_bool(hy_json_get(root, "validation_cut"), &t->schedule->is_validation_cut);
    read_ring(root, "loss_tail", p->loss_tail, HY_LOSS_TAIL);
    read_ring(root, "guard_changes", p->guard.change, HY_GUARD_HISTORY);
    if (!hy_json_as_double(hy_json_get(root, "val_loss"), &p->val_loss)) p->val_loss = NAN;
    p->row_scores = hy_row_scores_get(root);
    read_best(t, hy_json_get(root, "best"));
    hy_trainer_fit_best(t, is_other_hash(hy_json_get(root, "data"), "val_hash", t->data.val_hash));
    hy_fork *fork = &t->schedule->fork;
    const hy_json_node *test = hy_json_get(root, "fork"), *phases = hy_json_get(root, "phases");
    fork->is_open = test != NULL;
    if (test) {
        HY_TRY(hy_json_int(json, test, "compare_at", &fork->compare_at));
        HY_TRY(hy_json_int(json, test, "first", &fork->first));
        read_ring(test, "with", fork->with, HY_FORK_SEQUENCES);
    }
    const hy_json_node *phase = phases ? hy_json_first(phases) : NULL;
    for (int i = 0; i < HY_PHASE_COUNT && phase; i++, phase = hy_json_next(phase)) {
        HY_TRY(read_fields(t, phase_fields, LENGTH(phase_fields), i, json, phase));
    }
    return HY_OK;
}

/* A run that is extended has another learning rate schedule, which is reported. A finished
 * warm-up is not repeated. */
static void fit_schedule(hy_trainer *t, const hy_json_node *root) {
    const hy_json_node *node = hy_json_get(root, "schedule"); /* older checkpoints have none */
    hy_schedule *now = &t->schedule->lr_schedule, then = *now;
    hy_phase_state *machine = &t->progress->machine;
    int64_t done = hy_trainer_schedule_step(t);
    if (hy_json_as_int(hy_json_get(node, "warmup"), &then.warmup) &&
        hy_json_as_int(hy_json_get(node, "total"), &then.total)) {
        if (done >= then.warmup && then.warmup >= 0) now->warmup = then.warmup;
        double before = hy_schedule_rate(&then, done), after = hy_schedule_rate(now, done);
        bool goes_on = done < now->total;
        if (goes_on && then.total != now->total && fabs(after - before) > 0.01 * now->lr) {
            hy_say(t, HY_NOTE,
                   "the run is now %lld steps long instead of %lld, so its learning rate continues "
                   "at %.3g instead of %.3g",
                   (long long)now->total, (long long)then.total, after, before);
        }
    }
    t->schedule->rules.warmup_steps = now->warmup;
    bool is_rising = machine->phase == HY_WARMUP && machine->done < now->warmup;
    if (machine->phase == HY_WARMUP && !is_rising) machine->phase = HY_FULL;
    machine->reason = is_rising ? HY_WHY_BEGIN : HY_WHY_SAME;
}

static hy_status open_file(const hy_trainer *t, char path[HY_PATH_MAX], hy_json **out) {
    HY_TRY(hy_path_join(path, HY_PATH_MAX, t->resumed, "trainer.json"));
    return hy_json_read_file(path, out);
}

hy_status hy_progress_read_fitted_step(const hy_trainer *t, int64_t *out) {
    char path[HY_PATH_MAX];
    hy_json *json;
    *out = 0;
    HY_TRY(open_file(t, path, &json));
    (void)hy_json_as_int(hy_json_get(hy_json_get(hy_json_root(json), "data"), FITTED_STEP), out);
    hy_json_free(json);
    return HY_OK;
}

hy_status hy_progress_read(hy_trainer *t) {
    char path[HY_PATH_MAX];
    hy_json *json;
    HY_TRY(open_file(t, path, &json));
    hy_status status = read_progress(t, json, path);
    if (status == HY_OK) fit_schedule(t, hy_json_root(json));
    hy_json_free(json);
    return status;
}

/* A caller that does not know yet what its passes need: it knew when this was saved. */
static void read_caller(const hy_json *json, hy_custom_types *types) {
    const hy_json_node *own = hy_json_get(hy_json_root(json), "own_parameters");
    int64_t bytes;
    if (types->caller_bytes >= 0 || !hy_json_as_count(hy_json_get(own, CALLER_BYTES), &bytes)) {
        return;
    }
    types->caller_bytes = bytes;
    types->is_caller_stored = true;
}

hy_status hy_progress_read_choices(hy_trainer *t) {
    char path[HY_PATH_MAX];
    hy_json *json;
    hy_status status = HY_OK;
    HY_TRY(open_file(t, path, &json));
    if (t->provider->facts.has_model_files) {
        status = hy_checkpoint_must_be_ours(hy_json_root(json), t->resumed);
    }
    if (status == HY_OK) {
        status = hy_plan_read_kept(json, path, &t->engine->request, &t->first_batch);
    }
    if (status == HY_OK && t->engine->custom) read_caller(json, &t->engine->custom->types);
    hy_json_free(json);
    return status;
}
