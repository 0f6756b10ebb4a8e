/* graphs.c: capturing passes and replaying them. See graphs.h. */
#include "model/graphs.h"

/* Elements of the residual above which kernels run longer than enqueueing them takes. */
#define SMALL_RESIDUAL ((int64_t)1 << 22)

/* A pass runs op by op before it is captured: libraries then load what they need on first use,
 * and an input that never repeats costs nothing. */
#define SEEN_BEFORE_CAPTURE 2

/* After this many different inputs, a plan's inputs are assumed to change always. */
#define MOST_CHANGES 64

/* Only for weights that are completely on the device: rings move units by events and copies. And
 * only for passes without a hook or watch, because these do different work each time. */
static bool is_resident(const hy_store *store) {
    return !store || (store->place == HY_DEVICE && store->ring_depth == 0);
}

bool hy_can_capture(const hy_batch_plan *plan, const hy_batch_input *input) {
    int64_t residual = (int64_t)plan->size.batch * plan->size.seq * plan->model->shape.width;
    return plan->backend->capture_begin && !plan->is_uncapturable && residual <= SMALL_RESIDUAL &&
           is_resident(input->weights) && is_resident(input->frozen) && is_resident(input->grads) &&
           is_resident(input->fp8) && is_resident(plan->offload) && !input->hook && !input->watch;
}

static bool is_same(const hy_batch_input *a, const hy_batch_input *b) {
    return a->stream == b->stream && a->weights == b->weights && a->frozen == b->frozen &&
           a->fp8 == b->fp8 && a->seen == b->seen && a->dropout_seed == b->dropout_seed &&
           a->largest == b->largest && a->grads == b->grads && a->tokens == b->tokens &&
           a->targets == b->targets && a->doc_starts == b->doc_starts && a->rope == b->rope &&
           a->rope_rows == b->rope_rows && a->losses == b->losses &&
           a->loss_scale == b->loss_scale && a->accumulate == b->accumulate &&
           a->token_losses == b->token_losses && a->reference == b->reference &&
           a->policy == b->policy && a->loss_stats == b->loss_stats &&
           a->skips_adapters == b->skips_adapters;
}

/* The entry of this input; a new one if it has none. */
static hy_captured_pass *find_entry(hy_batch_plan *plan, const hy_batch_input *input) {
    for (int i = 0; i < HY_GRAPHS; i++) {
        if (plan->captured[i].seen && is_same(&plan->captured[i].input, input)) {
            return &plan->captured[i];
        }
    }
    hy_captured_pass *entry = &plan->captured[plan->captured_next++ % HY_GRAPHS];
    if (plan->captured_next > MOST_CHANGES) plan->is_uncapturable = true;
    if (entry->graph) plan->backend->graph_destroy(entry->graph);
    *entry = (hy_captured_pass){.input = *input};
    return entry;
}

/* If a pass cannot be captured, it runs op by op from now on. */
static void capture(hy_batch_plan *plan, hy_captured_pass *entry, hy_pass_function pass) {
    hy_backend *b = plan->backend;
    if (b->capture_begin(entry->input.stream) != HY_OK) {
        plan->is_uncapturable = true;
        return;
    }
    hy_status status = pass(plan, &entry->input);
    hy_status ended = b->capture_end(entry->input.stream, &entry->graph);
    if (status == HY_OK && ended == HY_OK) return;
    if (entry->graph) b->graph_destroy(entry->graph);
    entry->graph = NULL;
    plan->is_uncapturable = true;
}

hy_status hy_run_captured(hy_batch_plan *plan, const hy_batch_input *input, hy_pass_function pass) {
    if (!hy_can_capture(plan, input)) return pass(plan, input);
    hy_captured_pass *entry = find_entry(plan, input);
    if (!entry->graph && entry->seen++ == SEEN_BEFORE_CAPTURE) capture(plan, entry, pass);
    if (!entry->graph) return pass(plan, input);
    return plan->backend->replay(input->stream, entry->graph);
}

void hy_forget_graphs(hy_batch_plan *plan) {
    for (int i = 0; i < HY_GRAPHS; i++) {
        if (plan->captured[i].graph) {
            plan->backend->graph_destroy(plan->captured[i].graph);
        }
        plan->captured[i] = (hy_captured_pass){0};
    }
}
