/* recorded.c: recording passes and playing them. See recorded.h. */
#include "model/recorded.h"

#include "base/error.h"

/* Elements of the residual stream above which kernels take longer than it takes to enqueue them. */
#define SMALL_STREAM ((int64_t)1 << 22)

/* Runs op by op before it is recorded: what libraries load on first use is loaded then, and an input
 * that does not come back costs nothing. */
#define SEEN_BEFORE_RECORDING 2

/* Inputs thrown out unplayed: after so many they are taken to change all the time. */
#define MOST_CHANGES 64

/* Only what lies on the device whole: rings move their units by events and copies. And only what nobody
 * watches: a watcher has work of its own to do, each time another. */
static bool is_resident(const hy_store *store) {
    return !store || (store->place == HY_DEVICE && store->ring_depth == 0 && !store->maker);
}

static bool is_worth_it(const hy_batch_plan *plan, const hy_batch_input *input) {
    int64_t stream = (int64_t)plan->size.batch * plan->size.seq * plan->model->shape.width;
    return plan->backend->record_begin && !plan->is_unrecordable && stream <= SMALL_STREAM &&
           is_resident(input->weights) && is_resident(input->grads) && is_resident(plan->offload) &&
           !input->watch;
}

static bool is_same(const hy_batch_input *a, const hy_batch_input *b) {
    return a->stream == b->stream && a->weights == b->weights && a->grads == b->grads &&
           a->tokens == b->tokens && a->targets == b->targets && a->docs == b->docs &&
           a->rope == b->rope && a->losses == b->losses && a->loss_scale == b->loss_scale &&
           a->accumulate == b->accumulate;
}

/* The entry of this input, a new one when it has none. */
static hy_recorded_pass *find_entry(hy_batch_plan *plan, const hy_batch_input *input) {
    for (int i = 0; i < HY_RECORDINGS; i++) {
        if (plan->recorded[i].seen && is_same(&plan->recorded[i].input, input)) {
            return &plan->recorded[i];
        }
    }
    hy_recorded_pass *entry = &plan->recorded[plan->recorded_next++ % HY_RECORDINGS];
    if (plan->recorded_next > MOST_CHANGES) plan->is_unrecordable = true;
    if (entry->recording) plan->backend->recording_destroy(entry->recording);
    *entry = (hy_recorded_pass){.input = *input};
    return entry;
}

/* A pass that cannot be recorded is no failure: it runs op by op from now on. */
static void record(hy_batch_plan *plan, hy_recorded_pass *entry, hy_pass_function pass) {
    hy_backend *b = plan->backend;
    if (b->record_begin(entry->input.stream) != HY_OK) {
        plan->is_unrecordable = true;
        return;
    }
    hy_status status = pass(plan, &entry->input);
    hy_status ended = b->record_end(entry->input.stream, &entry->recording);
    if (status == HY_OK && ended == HY_OK) return;
    if (entry->recording) b->recording_destroy(entry->recording);
    entry->recording = NULL;
    plan->is_unrecordable = true;
}

hy_status hy_run_recorded(hy_batch_plan *plan, const hy_batch_input *input, hy_pass_function pass) {
    if (!is_worth_it(plan, input)) return pass(plan, input);
    hy_recorded_pass *entry = find_entry(plan, input);
    if (!entry->recording && entry->seen++ == SEEN_BEFORE_RECORDING) record(plan, entry, pass);
    if (!entry->recording) return pass(plan, input);
    return plan->backend->play(input->stream, entry->recording);
}

void hy_forget_recordings(hy_batch_plan *plan) {
    for (int i = 0; i < HY_RECORDINGS; i++) {
        if (plan->recorded[i].recording) {
            plan->backend->recording_destroy(plan->recorded[i].recording);
        }
        plan->recorded[i] = (hy_recorded_pass){0};
    }
}
