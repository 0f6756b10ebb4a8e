/* loop.c: a run with passes that the caller computes between two calls. See hybrid.h.
 *
 * The run has its own thread and sends requests; the caller's thread takes a request and returns
 * the answer. One of the two always waits, so they never access shared data at the same time,
 * and the lock guards only the turn. The run is created, stepped and destroyed in its own thread;
 * only hy_loop_use, calls for units and those of an optimizer use its engine in the caller's
 * thread. */
#include "custom/loop.h"

#include <stdlib.h>

#include "base/sized.h"

/* ---- all loops ------------------------------------------------------------------------------- */

static pthread_mutex_t alive_lock = PTHREAD_MUTEX_INITIALIZER;
static hy_loop *alive;

hy_status hy_loop_enter(hy_loop *loop, const char *call, bool removes) {
    pthread_mutex_lock(&alive_lock);
    hy_loop **at = &alive;
    while (*at && *at != loop) at = &(*at)->next;
    bool is_alive = *at != NULL, is_free = is_alive && !atomic_flag_test_and_set(&loop->is_busy);
    if (is_free && removes) *at = loop->next;
    pthread_mutex_unlock(&alive_lock);
    HY_FAIL_IF(!loop, HY_ERR_INPUT, "%s needs a loop, it is NULL", call);
    HY_FAIL_IF(!is_alive, HY_ERR_STATE, "%s was given a loop that was destroyed", call);
    HY_FAIL_IF(!is_free, HY_ERR_STATE,
               "%s was called during another call of the same loop: only one thread at a time may "
               "use a loop",
               call);
    return HY_OK;
}

hy_status hy_loop_leave(hy_loop *loop, hy_status status) {
    atomic_flag_clear(&loop->is_busy);
    return status;
}

/* ---- turns ----------------------------------------------------------------------------------- */

static void hand_over(hy_loop *loop, bool to_run) {
    pthread_mutex_lock(&loop->lock);
    loop->is_runs_turn = to_run;
    pthread_cond_broadcast(&loop->turned);
    pthread_mutex_unlock(&loop->lock);
}

static void await(hy_loop *loop, bool runs_turn) {
    pthread_mutex_lock(&loop->lock);
    while (loop->is_runs_turn != runs_turn) pthread_cond_wait(&loop->turned, &loop->lock);
    pthread_mutex_unlock(&loop->lock);
}

/* Gives the run an order and waits for its next request, for the result, or for its end. */
static void give_order(hy_loop *loop, order what) {
    loop->order = what;
    hand_over(loop, true);
    await(loop, false);
}

/* ---- the run's side -------------------------------------------------------------------------- */

static hy_status save_here(hy_loop *loop) {
    HY_FAIL_IF(loop->trainer->schedule->is_in_fork, HY_ERR_STATE,
               "cannot save during a paired test, because its steps are discarded: save between "
               "two steps");
    HY_FAIL_IF(loop->request->todo != HY_DO_GRADIENTS, HY_ERR_STATE,
               "cannot save in %s: save between two steps, while gradients are requested",
               hy_phase_name(loop->request->phase));
    return hy_trainer_save(loop->trainer);
}

static hy_status plan_here(hy_loop *loop) {
    hy_engine *e = loop->trainer->engine;
    HY_FAIL_IF(
        loop->trainer->schedule->is_in_fork || loop->request->todo != HY_DO_GRADIENTS, HY_ERR_STATE,
        "cannot plan again in %s: call hy_loop_plan_again while gradients are requested, and "
        "not in a paired test",
        hy_phase_name(loop->request->phase));
    for (int32_t i = 0; i < e->model->params.units; i++) {
        HY_FAIL_IF(e->custom->has_grads[i], HY_ERR_STATE,
                   "cannot plan again after gradients of the step were added; call "
                   "hy_loop_plan_again before its first micro-batch");
    }
    hy_error why;
    hy_status status = hy_trainer_replan_caller(loop->trainer, loop->caller);
    bool stays = status == HY_ERR_INPUT; /* in the old plan; rows may have moved there and back */
    hy_error_save(&why, status);
    if (status == HY_OK || stays) { /* a moved copy in 16 bits is made again */
        status = hy_custom_begin_step(e, e->update.dtype);
    }
    loop->units.is_broken |= status != HY_OK;
    HY_TRY(status);
    return stays ? hy_fail(HY_ERR_MEMORY, "%s", why.text) : HY_OK;
}

static hy_status answer(void *user, const hy_loop_step *request, hy_program_answer *out) {
    hy_loop *loop = user;
    loop->request = request;
    for (;;) {
        hand_over(loop, false);
        await(loop, true);
        if (loop->order != ORDER_SAVE && loop->order != ORDER_PLAN) break;
        hy_error_save(&loop->ordered,
                      loop->order == ORDER_SAVE ? save_here(loop) : plan_here(loop));
    }
    loop->request = NULL;
    loop->custom.provider.is_abandoned = loop->order == ORDER_ABANDON;
    if (loop->order != ORDER_ANSWER) return hy_fail(HY_STOPPED, "the loop was stopped");
    *out = loop->given;
    return HY_OK;
}

static void on_step(hy_provider *provider, const hy_step_info *info) {
    hy_loop *loop = (hy_loop *)provider;
    *loop->last = *info;
}

static void *run(void *user) {
    hy_loop *loop = user;
    await(loop, true);
    hy_making making = {.provider = &loop->custom.provider};
    hy_status status = hy_trainer_make(loop->config, loop->observer, &making, &loop->trainer);
    if (status == HY_OK) status = hy_trainer_run(loop->trainer);
    hy_error_save(&loop->result, status);
    loop->is_over = true;
    hand_over(loop, false);
    await(loop, true); /* the caller reads the result until then */
    hy_trainer_destroy(loop->trainer);
    return NULL;
}

/* ---- create and destroy ---------------------------------------------------------------------- */

/* Ends the thread of a run that is over. */
static void end_thread(hy_loop *loop) {
    hand_over(loop, true);
    pthread_join(loop->thread, NULL);
}

static void give_back(hy_loop *loop) {
    pthread_cond_destroy(&loop->turned);
    pthread_mutex_destroy(&loop->lock);
    hy_custom_provider_fini(&loop->custom);
    free(loop->units.holds);
    free(loop->last);
    free(loop);
}

/* Makes the run and waits for its first request. */
static hy_status start(hy_loop *loop) {
    HY_FAIL_IF(pthread_create(&loop->thread, NULL, run, loop) != 0, HY_ERR_MEMORY,
               "cannot create a thread for the run");
    give_order(loop, ORDER_ANSWER);
    if (!loop->is_over || loop->result.status == HY_OK) return HY_OK;
    end_thread(loop);
    return hy_error_restore(&loop->result);
}

hy_status hy_loop_create(const hy_config *config, const hy_loop_options *options,
                         const hy_observer *observer, hy_loop **out) {
    if (out) *out = NULL;
    HY_FAIL_IF(!config || !options || !out, HY_ERR_INPUT,
               "hy_loop_create needs a configuration, options and an output pointer; one is NULL");
    hy_loop *loop = calloc(1, sizeof *loop);
    hy_step_info *last = calloc(1, sizeof *last);
    hy_status status =
        loop && last ? hy_custom_provider_init(&loop->custom, &options->parameters, options, true)
                     : hy_fail(HY_ERR_MEMORY, "not enough memory for a loop");
    if (status != HY_OK) {
        free(last);
        free(loop);
        return status;
    }
    loop->last = last;
    loop->custom.user = loop;
    loop->custom.answer = answer;
    loop->custom.provider.facts.writes_if_asked = true;
    loop->config = config;
    loop->observer = observer;
    loop->ops = hy_custom_ops;
    loop->ops.on_step = on_step;
    loop->custom.provider.ops = &loop->ops;
    atomic_flag_clear(&loop->is_busy);
    pthread_mutex_init(&loop->lock, NULL);
    pthread_cond_init(&loop->turned, NULL);
    status = start(loop);
    loop->config = NULL;
    loop->observer = NULL;
    if (status != HY_OK) {
        give_back(loop);
        return status;
    }
    if (loop->custom.unit_of) { /* the run has checked the list */
        int32_t units = loop->trainer->engine->model->params.units;
        loop->units.holds = calloc((size_t)units, sizeof *loop->units.holds);
        status = loop->units.holds ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory for a loop");
    }
    pthread_mutex_lock(&alive_lock);
    loop->next = alive;
    alive = loop;
    pthread_mutex_unlock(&alive_lock);
    if (status != HY_OK) {
        hy_loop_destroy(loop);
        return status;
    }
    *out = loop;
    return HY_OK;
}

void hy_loop_destroy(hy_loop *loop) {
    if (!loop || hy_loop_enter(loop, "hy_loop_destroy", true) != HY_OK) return;
    while (!loop->is_over) give_order(loop, ORDER_ABANDON);
    end_thread(loop);
    give_back(loop);
}

/* ---- the caller's side ----------------------------------------------------------------------- */

static void give_request(const hy_loop *loop, hy_loop_step *out, size_t size) {
    static const hy_loop_step over = {
        .todo = HY_DO_NOTHING, .is_over = true, .reason = "", .obstacle = ""};
    hy_copy_sized(out, size, loop->request ? loop->request : &over, sizeof over);
}

hy_status hy_loop_next_sized(hy_loop *loop, hy_loop_step *out, size_t size) {
    HY_FAIL_IF(!out, HY_ERR_INPUT, "hy_loop_next needs an output pointer for the step; it is NULL");
    HY_TRY(hy_loop_enter(loop, "hy_loop_next", false));
    give_request(loop, out, size);
    return hy_loop_leave(loop, HY_OK);
}

/* Before an answer: all units were released, and their gradients are of this many targets. */
static hy_status check_units(const hy_loop *loop, int64_t tokens) {
    HY_FAIL_IF(loop->units.is_broken, HY_ERR_STATE,
               "an answer was given after a unit could not be used, so gradients are missing; stop "
               "the loop, and resume it from its last checkpoint");
    HY_FAIL_IF(loop->units.held > 0, HY_ERR_STATE,
               "an answer was given while %d unit(s) are held; release them before",
               (int)loop->units.held);
    HY_FAIL_IF(loop->units.tokens && loop->units.tokens != tokens, HY_ERR_INPUT,
               "the answer has %lld tokens, but its gradients were added for %lld",
               (long long)tokens, (long long)loop->units.tokens);
    return HY_OK;
}

static hy_status give_answer(hy_loop *loop, double loss, int64_t tokens) {
    HY_FAIL_IF(loop->is_over, HY_ERR_STATE,
               "hy_loop_answer was called, but the run is over (hy_loop_next has reported it)");
    HY_FAIL_IF(tokens < 1, HY_ERR_INPUT,
               "hy_loop_answer was given %lld tokens; the loss is a mean of at least 1",
               (long long)tokens);
    const hy_custom_side *side = &loop->custom.side;
    HY_TRY(check_units(loop, tokens));
    bool has_grads = loop->request->todo == HY_DO_GRADIENTS && !side->unit_of;
    for (int32_t i = 0; has_grads && i < side->count; i++) {
        HY_FAIL_IF(!side->grads[i], HY_ERR_INPUT,
                   "parameter %s has no gradient: give it with hy_loop_set_gradient before the "
                   "answer",
                   side->params[i].name);
    }
    loop->given = (hy_program_answer){.loss_sum = loss * (double)tokens,
                                      .counted = (double)tokens,
                                      .tokens = tokens,
                                      .is_mean = true};
    loop->units.tokens = 0;
    give_order(loop, ORDER_ANSWER);
    if (!loop->is_over || loop->result.status == HY_OK) return HY_OK;
    return hy_error_restore(&loop->result);
}

hy_status hy_loop_answer(hy_loop *loop, double loss, int64_t tokens) {
    HY_TRY(hy_loop_enter(loop, "hy_loop_answer", false));
    return hy_loop_leave(loop, give_answer(loop, loss, tokens));
}

hy_status hy_loop_no_parameter(const hy_loop *loop, int32_t parameter) {
    return hy_fail(HY_ERR_INPUT,
                   "parameter number %d does not exist; the model has %d, numbered from 0",
                   parameter, loop->custom.side.count);
}

static hy_status set_gradient(hy_loop *loop, int32_t parameter, void *grads) {
    const hy_custom_side *side = &loop->custom.side;
    if (parameter < 0 || parameter >= side->count) return hy_loop_no_parameter(loop, parameter);
    HY_FAIL_IF(!grads, HY_ERR_INPUT, "the gradient of parameter %s is NULL",
               side->params[parameter].name);
    loop->custom.grads[parameter] = grads;
    return HY_OK;
}

hy_status hy_loop_set_gradient(hy_loop *loop, int32_t parameter, void *grads) {
    HY_TRY(hy_loop_enter(loop, "hy_loop_set_gradient", false));
    return hy_loop_leave(loop, set_gradient(loop, parameter, grads));
}

static hy_status set_gradients(hy_loop *loop, void *const *grads) {
    for (int32_t i = 0; i < loop->custom.side.count; i++) {
        HY_TRY(set_gradient(loop, i, grads[i]));
    }
    return HY_OK;
}

hy_status hy_loop_set_gradients(hy_loop *loop, void *const *grads) {
    HY_FAIL_IF(!grads, HY_ERR_INPUT, "hy_loop_set_gradients needs a list of gradients; it is NULL");
    HY_TRY(hy_loop_enter(loop, "hy_loop_set_gradients", false));
    return hy_loop_leave(loop, set_gradients(loop, grads));
}

hy_status hy_loop_exchange_sized(hy_loop *loop, void *const *grads, double loss, int64_t tokens,
                                 hy_loop_step *next, size_t next_size, hy_step_info *last,
                                 size_t last_size) {
    HY_FAIL_IF(!next, HY_ERR_INPUT,
               "hy_loop_exchange needs an output pointer for the step; it is NULL");
    HY_TRY(hy_loop_enter(loop, "hy_loop_exchange", false));
    hy_status status = grads ? set_gradients(loop, grads) : HY_OK;
    if (status == HY_OK) status = give_answer(loop, loss, tokens);
    if (status == HY_OK) give_request(loop, next, next_size);
    if (status == HY_OK && loop->last->step > 0) {
        hy_copy_sized(last, last_size, loop->last, sizeof *loop->last);
    }
    return hy_loop_leave(loop, status);
}

/* The run's thread waits in answer() meanwhile, so nothing else uses its engine. On a GPU the
 * caller's thread has the same current device, because its weights are there. */
static hy_status use(hy_loop *loop, int32_t parameter) {
    const hy_custom_side *side = &loop->custom.side;
    HY_FAIL_IF(
        parameter < -1 || parameter >= side->count, HY_ERR_INPUT,
        "parameter number %d does not exist; the model has %d, numbered from 0, and -1 means all",
        parameter, side->count);
    bool is_due = loop->request && loop->request->todo == HY_DO_GRADIENTS && side->uses_in_turn;
    return is_due ? hy_custom_use(loop->trainer->engine, parameter) : HY_OK;
}

hy_status hy_loop_use(hy_loop *loop, int32_t parameter) {
    HY_TRY(hy_loop_enter(loop, "hy_loop_use", false));
    return hy_loop_leave(loop, use(loop, parameter));
}

static hy_status check_released(const hy_loop *loop, const char *name) {
    HY_FAIL_IF(loop->units.held > 0, HY_ERR_STATE,
               "cannot %s while %d unit(s) are held; release them before", name,
               (int)loop->units.held);
    return HY_OK;
}

/* An order between two answers, while nothing is held. */
static hy_status give_between(hy_loop *loop, order what, const char *name) {
    HY_FAIL_IF(loop->is_over, HY_ERR_STATE, "cannot %s: the run is over", name);
    HY_TRY(check_released(loop, name));
    give_order(loop, what);
    return hy_error_restore(&loop->ordered);
}

hy_status hy_loop_save(hy_loop *loop) {
    HY_TRY(hy_loop_enter(loop, "hy_loop_save", false));
    return hy_loop_leave(loop, give_between(loop, ORDER_SAVE, "save"));
}

hy_status hy_loop_plan_again(hy_loop *loop, int64_t caller_bytes, uint64_t caller_held) {
    HY_FAIL_IF(caller_bytes < -1, HY_ERR_INPUT,
               "hy_loop_plan_again was given %lld bytes; expected 0 or more, or -1: not known",
               (long long)caller_bytes);
    HY_TRY(hy_loop_enter(loop, "hy_loop_plan_again", false));
    if (!loop->custom.side.unit_of)
        return hy_loop_leave(loop, hy_fail(HY_ERR_STATE,
                                           "hy_loop_plan_again is for loops with units (unit_of); "
                                           "this one has none"));
    loop->caller = (hy_callers_part){caller_bytes, caller_held};
    return hy_loop_leave(loop, give_between(loop, ORDER_PLAN, "plan again"));
}

hy_status hy_loop_stop(hy_loop *loop) {
    HY_TRY(hy_loop_enter(loop, "hy_loop_stop", false));
    hy_status released = loop->is_over ? HY_OK : check_released(loop, "stop");
    if (released != HY_OK) return hy_loop_leave(loop, released);
    while (!loop->is_over) give_order(loop, ORDER_STOP);
    hy_status result = loop->result.status;
    bool is_well = result == HY_OK || result == HY_STOPPED;
    return hy_loop_leave(loop, is_well ? HY_OK : hy_error_restore(&loop->result));
}

bool hy_loop_last_sized(hy_loop *loop, hy_step_info *out, size_t size) {
    if (hy_loop_enter(loop, "hy_loop_last", false) != HY_OK) return false;
    bool has_last = loop->last->step > 0;
    if (has_last) hy_copy_sized(out, size, loop->last, sizeof *loop->last);
    hy_loop_leave(loop, HY_OK);
    return has_last;
}

const hy_trainer *hy_loop_trainer(hy_loop *loop) {
    if (hy_loop_enter(loop, "hy_loop_trainer", false) != HY_OK) return NULL;
    const hy_trainer *trainer = loop->trainer;
    hy_loop_leave(loop, HY_OK);
    return trainer;
}

hy_status hy_loop_begin_call(hy_loop *loop, const char *call, hy_trainer **out) {
    HY_TRY(hy_loop_enter(loop, call, false));
    *out = loop->trainer;
    bool is_between = loop->request && loop->request->todo == HY_DO_GRADIENTS &&
                      !loop->trainer->schedule->is_in_fork;
    if (is_between) return HY_OK;
    return hy_loop_leave(loop,
                         hy_fail(HY_ERR_STATE,
                                 "%s was called outside of steps: call it while gradients are "
                                 "requested, and not in a paired test",
                                 call));
}
