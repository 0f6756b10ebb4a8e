/* speed.c: how much of what the device can do is used. See trainer.h.
 *
 * The model's own work counts, whatever is computed again: per token 6 operations for every weight of a
 * matrix, head included, and causal attention at half its square (model/shape.c). */
#include <math.h>

#include "trainer/trainer.h"

#define SMOOTHED_STEPS 10

/* A plain mean at first, later a running one. The first step does not count once there is a second: it
 * pays for what is loaded and warmed up. */
void hy_trainer_note_rate(hy_trainer *t, double rate) {
    int64_t before = t->pace.steps++ - 1;
    double weight = before < 1 ? 1 : fmax(1.0 / SMOOTHED_STEPS, 1.0 / (double)(before + 1));
    t->pace.recent += weight * (rate - t->pace.recent);
}

static double share(const hy_trainer *t, double tokens_per_second, double rate) {
    if (!t->engine.backend->facts.is_gpu || !(rate > 0)) return 0;
    int32_t seq = (int32_t)t->settings.train.seq_len;
    return tokens_per_second * hy_shape_flops_per_token(&t->engine.model->shape, seq) / rate;
}

double hy_trainer_mfu(const hy_trainer *t, double tokens_per_second) {
    return share(t, tokens_per_second, t->engine.backend->facts.peak_flops);
}

double hy_trainer_sol(const hy_trainer *t, double tokens_per_second) {
    return share(t, tokens_per_second, t->engine.backend->facts.matmul_flops);
}

void hy_trainer_describe_gpu(const hy_trainer *t, hy_step_info *info) {
    hy_nvml_sample sample = hy_nvml_latest(t->engine.nvml);
    info->mfu = hy_trainer_mfu(t, info->tokens_per_second);
    info->sol = hy_trainer_sol(t, info->tokens_per_second);
    info->gpu = (hy_gpu_state){.is_known = sample.is_known,
                               .power_watts = sample.power_watts,
                               .temperature_c = sample.temperature_c,
                               .sm_clock_mhz = sample.sm_clock_mhz,
                               .utilization = sample.utilization};
}
