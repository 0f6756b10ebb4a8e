/* plan_value.c: the decisions of a plan, one table line each. See plan_value.h.
 *
 * A decision is a number in hy_plan. The table lists its offset, its kind and its key in files.
 * Packed, all decisions are an array of integers that ranks send and compare. Number types,
 * offload strategy, bytes and seconds are not in the table: each rank derives them from its own
 * request. */
#include "plan/plan_value.h"

#include <stddef.h>
#include <string.h>

#include "base/error.h"
#include "config/derived.h"

typedef enum kind { NUMBER, FLAG, TYPE, PLACE, RECOMPUTE, UPDATE } kind;
typedef enum group { CHOICES, KEPT, OTHER } group;

typedef struct decision {
    const char *key;
    group group; /* the JSON object */
    kind kind;
    size_t at; /* offset in hy_plan */
} decision;

#define IN(member) offsetof(hy_plan, member)
static const decision decisions[] = {
    {"batch_size", CHOICES, NUMBER, IN(choice.batch)},
    {"grad_accum_steps", CHOICES, NUMBER, IN(choice.accum)},
    {"recompute", CHOICES, RECOMPUTE, IN(choice.recompute)},
    {"recompute_layers", CHOICES, NUMBER, IN(choice.recompute_layers)},
    {"loss_chunks", CHOICES, NUMBER, IN(choice.loss_chunks)},
    {"mlp_chunks", CHOICES, NUMBER, IN(choice.mlp_chunks)},
    {"weights_place", CHOICES, PLACE, IN(choice.state[HY_PLAN_WEIGHTS])},
    {"master_place", CHOICES, PLACE, IN(choice.state[HY_PLAN_MASTER])},
    {"grads_place", CHOICES, PLACE, IN(choice.state[HY_PLAN_GRADS])},
    {"optim_place", CHOICES, PLACE, IN(choice.state[HY_PLAN_OPTIM])},
    {"activations_place", CHOICES, PLACE, IN(choice.activations)},
    {"predictor_place", CHOICES, PLACE, IN(choice.predictor)},
    {"update", CHOICES, UPDATE, IN(choice.keeps_update_pending)},
    {"ring_depth", CHOICES, NUMBER, IN(choice.ring_depth)},
    {"resident_units", CHOICES, NUMBER, IN(choice.resident_units)},
    {"master", KEPT, TYPE, IN(level.master)},
    {"grads", KEPT, TYPE, IN(level.grads)},
    {"optim", KEPT, TYPE, IN(level.optim)},
    {"small_predictor", KEPT, FLAG, IN(level.is_predictor_8bit)},
    {"predicts", KEPT, FLAG, IN(level.predicts)},
    {"snapshot", KEPT, FLAG, IN(level.has_snapshot)},
    {"is_aside", KEPT, FLAG, IN(choice.prediction_awaits_test)},
    {"zero_stage", OTHER, NUMBER, IN(zero_stage)},
};
enum { DECISIONS = sizeof decisions / sizeof decisions[0] };

_Static_assert(sizeof(hy_dtype) == sizeof(int32_t) && sizeof(hy_place) == sizeof(int32_t) &&
                   sizeof(hy_recompute) == sizeof(int32_t),
               "every decision is an int32_t or a bool");

static bool is_bool(const decision *d) { return d->kind == FLAG || d->kind == UPDATE; }

static int32_t value_of(const hy_plan *plan, const decision *d) {
    const char *at = (const char *)plan + d->at;
    return is_bool(d) ? *(const bool *)at : *(const int32_t *)(const void *)at;
}

static void set_value(hy_plan *plan, const decision *d, int32_t value) {
    char *at = (char *)plan + d->at;
    if (is_bool(d)) {
        *(bool *)at = value != 0;
    } else {
        *(int32_t *)(void *)at = value;
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* A class that does not exist counts as on the device. */
static void write_one(const decision *d, int32_t value, hy_json_writer *w) {
    switch (d->kind) {
    case NUMBER: hy_json_put_int(w, d->key, value); break;
    case FLAG: hy_json_put_bool(w, d->key, value); break;
    case TYPE: hy_json_put_string(w, d->key, hy_dtype_name((hy_dtype)value)); break;
    case RECOMPUTE: hy_json_put_string(w, d->key, hy_choice_name("recompute", value)); break;
    case UPDATE: hy_json_put_string(w, d->key, value ? "gather" : "now"); break;
    case PLACE:
        hy_json_put_string(w, d->key,
                           hy_place_name(value == HY_NOWHERE ? HY_DEVICE : (hy_place)value));
        break;
    }
}

static void write_group(const hy_plan *plan, group which, hy_json_writer *w) {
    for (int i = 0; i < DECISIONS; i++) {
        if (decisions[i].group == which) {
            write_one(&decisions[i], value_of(plan, &decisions[i]), w);
        }
    }
}

hy_plan_choice hy_choice_as_run(const hy_plan_choice *choice, int64_t seq) {
    hy_plan_choice c = *choice;
    if (c.loss_chunks > 1) c.loss_chunks = hy_batch_divide(c.batch * seq, c.loss_chunks);
    if (c.mlp_chunks > 1) c.mlp_chunks = hy_batch_divide(c.batch * seq, c.mlp_chunks);
    return c;
}

void hy_plan_write_choices(const hy_plan_choice *choice, hy_json_writer *w) {
    hy_plan plan = {.choice = *choice};
    hy_json_open_object(w, "choices");
    write_group(&plan, CHOICES, w);
    hy_json_close_object(w);
}

/* Writes the decisions that a resumed run must keep: the split of a step, because another split
 * gives different bits, and the decisions of group KEPT. */
void hy_plan_write_kept(const hy_plan_request *r, const hy_plan *plan, int64_t first_batch,
                        hy_json_writer *w) {
    hy_json_open_object(w, "split");
    hy_json_put_int(w, "batch_size", plan->choice.batch);
    hy_json_put_int(w, "grad_accum_steps", plan->choice.accum);
    hy_json_put_int(w, "first_batch_size", first_batch);
    hy_json_put_int(w, "loss_chunks", plan->choice.loss_chunks);
    hy_json_put_int(w, "mlp_chunks", plan->choice.mlp_chunks);
    hy_json_put_int(w, "chunk_budget", (int64_t)r->chunk_budget);
    hy_json_close_object(w);
    hy_json_open_object(w, "kept");
    write_group(plan, KEPT, w);
    if (r->fixed.has_fp8) {
        hy_json_put_int(w, "fp8_weights", r->fixed.fp8.weights);
        hy_json_put_int(w, "fp8_grads", r->fixed.fp8.grads);
    }
    hy_json_close_object(w);
}

hy_status hy_dtype_read(const hy_json *json, const hy_json_node *node, const char *key,
                        const char *path, hy_dtype *out) {
    const char *name;
    HY_TRY(hy_json_string(json, node, key, &name, NULL));
    for (int i = 0; i < HY_DTYPE_COUNT; i++) {
        *out = (hy_dtype)i;
        if (strcmp(name, hy_dtype_name(*out)) == 0) return HY_OK;
    }
    return hy_fail(HY_ERR_INPUT, "%s: %s is \"%s\", which is not a number type", path, key, name);
}

static hy_status read_split(const hy_json *json, hy_plan_request *r, int64_t *first_batch) {
    const hy_json_node *node = hy_json_get(hy_json_root(json), "split");
    const hy_settings *s = r->settings;
    hy_step_split split = {.mlp_chunks = 1};
    if (!node) return HY_OK;
    HY_TRY(hy_json_int(json, node, "batch_size", &split.batch));
    HY_TRY(hy_json_int(json, node, "grad_accum_steps", &split.accum));
    HY_TRY(hy_json_int(json, node, "loss_chunks", &split.loss_chunks));
    if (hy_json_get(node, "mlp_chunks")) /* older checkpoints do not have it */
        HY_TRY(hy_json_int(json, node, "mlp_chunks", &split.mlp_chunks));
    int64_t asked = s->train.step_tokens ? s->train.step_tokens / s->train.seq_len
                                         : s->train.batch_size * s->train.grad_accum_steps;
    int64_t ranks = r->ranks.count > 1 ? r->ranks.count : 1; /* the split is that of one rank */
    if (split.batch < 1 || split.accum < 1 || split.batch * split.accum * ranks != asked) {
        return HY_OK;
    }
    if (hy_json_get(node, "chunk_budget")) { /* likewise */
        int64_t budget;
        HY_TRY(hy_json_int(json, node, "first_batch_size", first_batch));
        HY_TRY(hy_json_int(json, node, "chunk_budget", &budget));
        r->chunk_budget = (uint64_t)budget;
    }
    if (*first_batch < split.batch) *first_batch = split.batch;
    r->fixed.split = split;
    return HY_OK;
}

hy_status hy_plan_read_kept(const hy_json *json, const char *path, hy_plan_request *r,
                            int64_t *first_batch) {
    const hy_json_node *node = hy_json_get(hy_json_root(json), "kept");
    const int64_t most = (1 << HY_LINEARS) - 1;
    int64_t weights, grads;
    hy_plan_fixed *fixed = &r->fixed;
    hy_plan plan = {.level = hy_precision_finest(),
                    .choice.prediction_awaits_test = fixed->prediction_awaits_test};
    HY_TRY(read_split(json, r, first_batch));
    for (int i = 0; i < DECISIONS && node; i++) {
        const decision *d = &decisions[i];
        hy_dtype type = HY_F32;
        bool flag = false;
        if (d->group != KEPT) continue;
        HY_TRY(d->kind == TYPE ? hy_dtype_read(json, node, d->key, path, &type)
                               : hy_json_bool(json, node, d->key, &flag));
        set_value(&plan, d, d->kind == TYPE ? (int32_t)type : flag);
    }
    fixed->has_level = true;
    fixed->level = plan.level;
    fixed->prediction_awaits_test = plan.choice.prediction_awaits_test;
    /* The matmuls that use fp8, in a run that has any. */
    if (!node || !hy_json_get(node, "fp8_weights")) return HY_OK;
    HY_TRY(hy_json_int(json, node, "fp8_weights", &weights));
    HY_TRY(hy_json_int(json, node, "fp8_grads", &grads));
    HY_FAIL_IF(weights < 0 || weights > most || grads < 0 || grads > most, HY_ERR_INPUT,
               "%s: fp8_weights %lld and fp8_grads %lld, expected 0 to %lld", path,
               (long long)weights, (long long)grads, (long long)most);
    fixed->fp8.weights = (uint32_t)weights;
    fixed->fp8.grads = (uint32_t)grads;
    fixed->has_fp8 = true;
    return HY_OK;
}

/* ---- for people ------------------------------------------------------------------------------ */

static const char *type_word(hy_dtype dtype) {
    return dtype == HY_U8 ? "8-bit" : hy_dtype_name(dtype);
}

void hy_plan_describe(const hy_plan_request *r, const hy_plan *plan, hy_text *out) {
    const hy_plan_choice *c = &plan->choice;
    const hy_types *types = &plan->types;
    const hy_place *place = c->state;
    hy_text_addf(out,
                 "%s weights on %s, %s gradients on %s, %s optimizer state on %s, activations on "
                 "%s; micro-batches of %d x %lld tokens, %d of them in a step; recompute %s; about "
                 "%.0f tokens/s",
                 type_word(types->master), hy_place_name(place[HY_PLAN_WEIGHTS]),
                 type_word(types->grads), hy_place_name(place[HY_PLAN_GRADS]),
                 type_word(types->optim), hy_place_name(place[HY_PLAN_OPTIM]),
                 hy_place_name(plan->work.train.host > 0 ? HY_PINNED : HY_DEVICE), c->batch,
                 (long long)r->settings->train.seq_len, c->accum,
                 hy_choice_name("recompute", c->recompute), hy_request_tokens_per_second(r, plan));
}

/* ---- between ranks --------------------------------------------------------------------------- */

typedef struct packed {
    int32_t value[DECISIONS];
} packed;

static packed pack(const hy_plan *plan) {
    packed out;
    for (int i = 0; i < DECISIONS; i++) out.value[i] = value_of(plan, &decisions[i]);
    return out;
}

/* The plan of this rank: its shard may be larger, or its memory smaller, than another rank's. */
static hy_status unpack(const hy_plan_request *r, const packed *from, hy_plan *out) {
    hy_plan decided = {0};
    for (int i = 0; i < DECISIONS; i++) set_value(&decided, &decisions[i], from->value[i]);
    hy_plan_request same = hy_plan_request_keeping(r, &decided);
    return hy_plan_at(&same, &decided.choice, out);
}

hy_status hy_plan_share(hy_team *team, const hy_plan_request *r, hy_plan *plan) {
    packed shared = {0};
    if (team->who.rank == 0) shared = pack(plan);
    HY_TRY(hy_control_share(team->control, &shared, sizeof shared, 0));
    return team->who.rank == 0 ? HY_OK : unpack(r, &shared, plan);
}

/* Does every rank have room for these decisions? */
static hy_status fits_all(hy_team *team, const hy_plan_request *r, const packed *decided,
                          bool *out) {
    hy_plan plan;
    double has_room[HY_RANKS_MOST];
    bool fits = unpack(r, decided, &plan) == HY_OK && plan.fits;
    double own = fits && hy_budget_check(r, &plan) == HY_OK;
    HY_TRY(hy_control_gather(team->control, &own, 1, has_room));
    *out = true;
    for (int32_t k = 0; k < team->who.count; k++) *out &= has_room[k] != 0;
    return HY_OK;
}

hy_status hy_plan_share_fitting(hy_team *team, const hy_plan_request *r, hy_plan *plan,
                                int32_t *chosen) {
    packed own = pack(plan), all[HY_RANKS_MOST];
    bool is_found = false;
    *chosen = 0;
    HY_TRY(hy_control_gather_bytes(team->control, &own, sizeof own, all));
    for (int32_t rank = 0; rank < team->who.count && !is_found; rank++) {
        bool is_known = false;
        for (int32_t k = 0; k < rank; k++) is_known |= !memcmp(&all[k], &all[rank], sizeof own);
        if (!is_known) HY_TRY(fits_all(team, r, &all[rank], &is_found));
        if (is_found) *chosen = rank;
    }
    return team->who.rank == *chosen ? HY_OK : unpack(r, &all[*chosen], plan);
}
