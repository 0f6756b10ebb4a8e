/* throughput.c: how long steps take, what they wait for, and the utilisation of the device. See
 * throughput.h.
 *
 * Utilisation counts hy_model_flops_per_token (model/model.h), without recomputation. */
#include "trainer/throughput.h"

#include <math.h>

#define SMOOTHED_STEPS 10

/* A plain mean at first, later a running mean. The first step is ignored once there is a second:
 * it includes loading and warm-up. */
void hy_trainer_note_rate(hy_trainer *t, double rate) {
    int64_t before = t->throughput.steps++ - 1;
    double weight = before < 1 ? 1 : fmax(1.0 / SMOOTHED_STEPS, 1.0 / (double)(before + 1));
    t->throughput.recent += weight * (rate - t->throughput.recent);
}

void hy_trainer_utilisation(const hy_trainer *t, double tokens_per_second, double *mfu,
                            double *sol) {
    const hy_device_facts *device = &t->engine->device.backend->facts;
    int32_t seq = (int32_t)t->settings->train.seq_len;
    double flops = tokens_per_second * hy_model_flops_per_token(t->engine->model, seq);
    *mfu = device->is_gpu && device->peak_flops > 0 ? flops / device->peak_flops : 0;
    *sol = device->is_gpu && device->matmul_flops > 0 ? flops / device->matmul_flops : 0;
}

/* ---- accounts -------------------------------------------------------------------------------- */

/* All members are doubles. */
static hy_reward_figures no_rewards(void) {
    hy_reward_figures none;
    double *number = &none.reward;
    for (size_t i = 0; i < sizeof none / sizeof *number; i++) number[i] = NAN;
    return none;
}

static double data_waited(const hy_trainer *t) {
    return t->data.loader ? hy_loader_waited(t->data.loader) : 0;
}

void hy_account_open(hy_trainer *t, hy_account *account) {
    *account = (hy_account){.begin = hy_clock()};
    t->engine->state->host_waited = 0;
    t->throughput.stream_waited =
        t->engine->device.backend->stream_waited(t->engine->device.compute);
    t->data.waited = data_waited(t);
}

void hy_account_close(hy_trainer *t, hy_account *account) {
    hy_progress *p = t->progress;
    hy_phase phase = t->engine->state->ledger.phase;
    double seconds = hy_clock() - account->begin;
    uint64_t moved = hy_engine_moved(t->engine);
    account->waited = t->engine->state->host_waited +
                      t->engine->device.backend->stream_waited(t->engine->device.compute) -
                      t->throughput.stream_waited + data_waited(t) - t->data.waited;
    account->bytes_moved = moved - t->throughput.bytes_accounted;
    t->throughput.bytes_accounted = moved;
    /* Answers are generated for a step. */
    if (hy_phase_advances(&hy_phase_table[phase]) || phase == HY_ROLLOUT) p->seconds += seconds;
    p->phases.seconds[phase] += seconds;
    p->phases.wait[phase] += account->waited;
    p->phases.bytes_moved[phase] += (int64_t)account->bytes_moved;
}

void hy_trainer_describe(const hy_trainer *t, const hy_phase_state *was, const hy_account *account,
                         hy_step_info *info) {
    const hy_progress *p = t->progress;
    double left = fmax(0, (double)t->schedule->steps_total - p->spent);
    double per_unit = p->spent > 0 ? p->seconds / p->spent : 0;
    bool trains = was->phase != HY_PREDICT && t->provider->facts.has_passes;
    *info = (hy_step_info){
        .size = sizeof *info,
        .step = p->step,
        .steps_total = hy_steps_at_end(p->step, p->spent, t->schedule->steps_total),
        .phase = was->phase,
        .reason = hy_phase_reason_text(was->reason),
        .grad_norm = NAN,
        .train_pair_accuracy = NAN,
        .train_reward_chosen = NAN,
        .train_reward_rejected = NAN,
        .rewards = no_rewards(),
        .fp8_largest = NAN,
        .fp8_zeros = NAN,
        .fp8_largest_layer = -1,
        .fp8_zeros_layer = -1,
        .lr = hy_schedule_rate(&t->schedule->lr_schedule, hy_trainer_schedule_step(t)),
        .tokens = p->tokens,
        .tokens_per_second = t->throughput.recent,
        .seconds = hy_clock() - account->begin,
        .elapsed = p->seconds,
        .remaining = per_unit * left,
        .confidence = hy_confidence_value(&p->confidence),
        .precision = trains ? t->engine->update.dtype : t->engine->plan->types.of[was->phase],
        .batch_size = hy_trainer_batch_size(t),
        .grad_accum = t->engine->plan->choice.accum,
        .vram_bytes = t->engine->state->ledger.live_in[HY_DEVICE],
        .vram_peak_bytes = t->engine->state->ledger.peak_in[HY_DEVICE],
        .host_pinned_bytes = t->engine->state->ledger.live_in[HY_PINNED],
        .bytes_moved = account->bytes_moved,
        .wait_seconds = account->waited,
        .spent = p->spent,
        .was_rolled_back = p->machine.rolls_back && hy_has_row(t->engine, HY_ROW_SNAPSHOT),
        .residual_cosine = p->jumps.residual_cosine,
        .residual_length = p->jumps.residual_length,
        .obstacle = hy_phase_obstacle_text(hy_trainer_obstacle(t)),
        .epoch = t->data.set ? hy_dataset_epochs(t->data.set, (uint64_t)p->sequences) : NAN};
    hy_nvml_sample sample = hy_nvml_latest(t->engine->nvml);
    hy_trainer_utilisation(t, info->tokens_per_second, &info->mfu, &info->sol);
    info->gpu = (hy_gpu_state){.is_known = sample.is_known,
                               .power_watts = sample.power_watts,
                               .temperature_c = sample.temperature_c,
                               .sm_clock_mhz = sample.sm_clock_mhz,
                               .utilization = sample.utilization};
}
