/* metrics.c: the table of metrics. See metrics.h.
 *
 * Rows are in the order of the keys in a line. TensorBoard shows a row under its tag. A jump has
 * the number of the step before it, so a value that both have gets no tag, or another tag, in
 * jumps. */
#include "report/metrics.h"

#include <string.h>

#define FIELD(name, type, condition, ...)                                                          \
    { .key = name, .kind = HY_FIELD_##type, .when = condition, __VA_ARGS__ }
#define STEP(member) .from = offsetof(hy_step_line, step.member)
#define LINE(member) .from = offsetof(hy_step_line, member)
#define START(member) .from = offsetof(hy_start_line, member)
#define POINT(member) .into = offsetof(hy_point_line, point.member)
#define RANKS(figure) .into = offsetof(hy_point_line, of_ranks[HY_RANK_##figure])
#define FACT(member) .into = offsetof(hy_run_facts, member)
#define UNREAD .into = HY_NO_FIELD
#define SAME(member) STEP(member), POINT(member)
#define TAG(name) .tag = name
#define TAGS(of_step, of_jump) .tag = of_step, .jump_tag = of_jump

/* Of rows for evaluation. */
#define SCORE(name, type, member)                                                                  \
    FIELD(name, type, HY_IF_KNOWN, LINE(rows.member), POINT(member),                               \
          TAGS("rows/" name, "rows/" name))

/* Charts use offsets in a point. */
_Static_assert(offsetof(hy_point_line, point) == 0, "a point is the first member of what is read");

#define GPU (HY_IF_GPU | HY_IF_KNOWN)

/* Of answers with rewards. */
#define REWARD(name, type)                                                                         \
    FIELD(#name, type, HY_IF_KNOWN, SAME(rewards.name), TAG("rewards/" #name))

#define SCORES                                                                                     \
    SCORE("accuracy", SHARE, accuracy), SCORE("accuracy_error", SHARE, accuracy_error),            \
        SCORE("accuracy_norm", SHARE, accuracy_norm),                                              \
        SCORE("accuracy_norm_error", SHARE, accuracy_norm_error),                                  \
        SCORE("greedy_accuracy", SHARE, greedy_accuracy),                                          \
        SCORE("greedy_accuracy_error", SHARE, greedy_accuracy_error),                              \
        SCORE("answer_loss", NUMBER, answer_loss), SCORE("pair_accuracy", SHARE, pair_accuracy),   \
        SCORE("pair_accuracy_error", SHARE, pair_accuracy_error),                                  \
        SCORE("reward_margin", NUMBER, reward_margin), SCORE("val_reward", NUMBER, val_reward),    \
        SCORE("val_reward_error", NUMBER, val_reward_error)

const hy_field hy_score_fields[HY_SCORE_FIELDS] = {SCORES};
const hy_field hy_step_fields[] = {
    FIELD("step", INTEGER, HY_ALWAYS, SAME(step)),
    FIELD("phase", PHASE, HY_ALWAYS, SAME(phase), TAGS("phase", "phase")),
    FIELD("loss", NUMBER, HY_ALWAYS, SAME(loss), TAGS("loss/train", "loss/predict")),
    FIELD("lr", NUMBER, HY_ALWAYS, SAME(lr), TAG("lr")),
    FIELD("grad_norm", NUMBER, HY_ALWAYS, SAME(grad_norm), TAG("grad_norm")),
    FIELD("tokens", INTEGER, HY_ALWAYS, SAME(tokens)),
    FIELD("tokens_per_second", NUMBER, HY_ALWAYS, SAME(tokens_per_second),
          TAG("tokens_per_second")),
    FIELD("seconds", NUMBER, HY_ALWAYS, SAME(seconds)),
    FIELD("elapsed", NUMBER, HY_ALWAYS, SAME(elapsed)),
    FIELD("confidence", NUMBER, HY_ALWAYS, SAME(confidence), TAGS("confidence", "confidence")),
    FIELD("precision", DTYPE, HY_ALWAYS, STEP(precision), UNREAD),
    FIELD("fp8_largest", LAYERS, HY_ALWAYS, LINE(fp8_largest), UNREAD),
    FIELD("fp8_zeros", LAYERS, HY_ALWAYS, LINE(fp8_zeros), UNREAD),
    FIELD("fp8_grad_largest", LAYERS, HY_ALWAYS, LINE(fp8_grad_largest), UNREAD),
    FIELD("fp8_grad_zeros", LAYERS, HY_ALWAYS, LINE(fp8_grad_zeros), UNREAD),
    FIELD("rank_seconds", LAYERS, HY_ALWAYS, LINE(rank_seconds), RANKS(SECONDS)),
    FIELD("rank_waited", LAYERS, HY_ALWAYS, LINE(rank_waited), RANKS(WAITED)),
    FIELD("rank_exchanged", LAYERS, HY_ALWAYS, LINE(rank_exchanged), RANKS(EXCHANGED)),
    FIELD("rank_bytes", LAYERS, HY_ALWAYS, LINE(rank_bytes), RANKS(BYTES)),
    FIELD("rank_memory", LAYERS, HY_ALWAYS, LINE(rank_memory), RANKS(MEMORY)),
    FIELD("batch_size", INTEGER, HY_IF_POSITIVE, SAME(batch_size), TAG("batch_size")),
    FIELD("grad_accum", INTEGER, HY_ALWAYS, SAME(grad_accum)),
    FIELD("vram_bytes", INTEGER, HY_ALWAYS, SAME(vram_bytes), TAGS("memory/vram", "memory/vram")),
    FIELD("vram_peak_bytes", INTEGER, HY_ALWAYS, SAME(vram_peak_bytes)),
    FIELD("vram_planned_bytes", INTEGER, HY_IF_POSITIVE, SAME(vram_planned_bytes),
          TAGS("memory/planned", "memory/planned")),
    FIELD("vram_reserved_bytes", INTEGER, HY_IF_POSITIVE, SAME(vram_reserved_bytes),
          TAGS("memory/reserved", "memory/reserved")),
    FIELD("vram_free_bytes", INTEGER, HY_IF_POSITIVE, SAME(vram_free_bytes)),
    FIELD("host_pinned_bytes", INTEGER, HY_ALWAYS, SAME(host_pinned_bytes),
          TAGS("memory/pinned", "memory/pinned")),
    FIELD("host_resident_bytes", INTEGER, HY_IF_POSITIVE, SAME(host_resident_bytes),
          TAGS("memory/host_resident", "memory/host_resident")),
    FIELD("memory_status", STATUS, HY_IF_MONITORED, SAME(memory_status)),
    FIELD("memory", CLASSES, HY_ALWAYS, LINE(device), POINT(device)),
    FIELD("pinned", CLASSES, HY_ALWAYS, LINE(pinned), POINT(pinned)),
    FIELD("wait_seconds", NUMBER, HY_ALWAYS, SAME(wait_seconds),
          TAGS("wait_seconds", "wait_seconds")),
    FIELD("bytes_moved", INTEGER, HY_ALWAYS, SAME(bytes_moved)),
    FIELD("spent", NUMBER, HY_ALWAYS, SAME(spent)),
    FIELD("mfu", SHARE, HY_IF_POSITIVE, SAME(mfu), TAG("mfu")),
    FIELD("sol", SHARE, HY_IF_POSITIVE, STEP(sol), UNREAD),
    FIELD("gpu_power_watts", NUMBER, GPU, STEP(gpu.power_watts), POINT(gpu_power_watts),
          TAG("gpu/power_watts")),
    FIELD("gpu_temperature_c", NUMBER, GPU, STEP(gpu.temperature_c), POINT(gpu_temperature_c),
          TAG("gpu/temperature_c")),
    FIELD("gpu_sm_clock_mhz", NUMBER, GPU, STEP(gpu.sm_clock_mhz), UNREAD, TAG("gpu/sm_clock_mhz")),
    FIELD("gpu_utilization", SHARE, GPU, STEP(gpu.utilization), POINT(gpu_utilization),
          TAG("gpu/utilization")),
    FIELD("predicted_steps", NUMBER, HY_IF_JUMP, SAME(predicted_steps),
          TAGS(NULL, "predicted_steps")),
    FIELD("rejected", BOOL, HY_IF_JUMP, SAME(was_rejected)),
    FIELD("guard_before", NUMBER, HY_IF_JUMP | HY_IF_OWN, LINE(guard_before), UNREAD),
    FIELD("guard_after", NUMBER, HY_IF_JUMP | HY_IF_OWN, LINE(guard_after), UNREAD),
    FIELD("residual_cosine", NUMBER, HY_IF_KNOWN, SAME(residual_cosine)),
    FIELD("residual_length", NUMBER, HY_IF_KNOWN, STEP(residual_length), UNREAD),
    FIELD("rolled_back", BOOL, HY_IF_KNOWN, SAME(was_rolled_back)),
    FIELD("reason", TEXT, HY_IF_KNOWN, SAME(reason)),
    FIELD("obstacle", TEXT, HY_IF_KNOWN | HY_IF_OWN, STEP(obstacle), UNREAD),
    FIELD("skipped", BOOL, HY_IF_KNOWN, SAME(was_skipped)),
    FIELD("loss_scale", NUMBER, HY_IF_KNOWN | HY_IF_OWN, LINE(loss_scale), UNREAD),
    FIELD("train_pair_accuracy", SHARE, HY_IF_KNOWN, SAME(train_pair_accuracy),
          TAG("pairs/accuracy")),
    FIELD("train_reward_chosen", NUMBER, HY_IF_KNOWN, SAME(train_reward_chosen),
          TAG("pairs/chosen")),
    FIELD("train_reward_rejected", NUMBER, HY_IF_KNOWN, SAME(train_reward_rejected),
          TAG("pairs/rejected")),
    REWARD(reward, NUMBER),
    REWARD(reward_deviation, NUMBER),
    REWARD(answer_tokens, NUMBER),
    REWARD(answers_ended, SHARE),
    REWARD(groups_equal, SHARE),
    REWARD(rollout_seconds, NUMBER),
    REWARD(rollout_speed, NUMBER),
    REWARD(rollout_copy_seconds, NUMBER),
    REWARD(reward_seconds, NUMBER),
    REWARD(clipped, SHARE),
    REWARD(kl, NUMBER),
    REWARD(apart, NUMBER),
    REWARD(apart_most, NUMBER),
    REWARD(importance, NUMBER),
    REWARD(capped, SHARE),
    REWARD(entropy, NUMBER),
    FIELD("val_loss", NUMBER, HY_IF_KNOWN, LINE(val_loss), POINT(val_loss),
          TAGS("loss/validation", "loss/validation")),
    SCORES,
};
const size_t hy_step_field_count = sizeof hy_step_fields / sizeof hy_step_fields[0];

const hy_field hy_start_fields[] = {
    FIELD("time", NUMBER, HY_ALWAYS, START(time), FACT(began)),
    FIELD("version", TEXT, HY_ALWAYS, START(version), FACT(version)),
    FIELD("command", TEXT, HY_ALWAYS, START(command), FACT(command)),
    FIELD("model", TEXT, HY_ALWAYS, START(model), FACT(model)),
    FIELD("parameters", INTEGER, HY_ALWAYS, START(parameters), FACT(parameters)),
    FIELD("device", TEXT, HY_ALWAYS, START(device), FACT(device)),
    FIELD("ranks", INTEGER, HY_IF_POSITIVE, START(ranks), FACT(ranks)),
    FIELD("zero_stage", INTEGER, HY_IF_KNOWN, START(zero_stage), FACT(zero_stage)),
    FIELD("transport", TEXT, HY_IF_KNOWN, START(transport), FACT(transport)),
    FIELD("data", TEXT, HY_ALWAYS, START(data), FACT(data)),
    FIELD("predictor", TEXT, HY_ALWAYS, START(predictor), FACT(predictor)),
    FIELD("resumed", TEXT, HY_IF_KNOWN, START(resumed), UNREAD),
    FIELD("steps_total", INTEGER, HY_ALWAYS, START(steps_total), FACT(steps_total)),
    FIELD("tokens_per_step", INTEGER, HY_IF_POSITIVE, START(tokens_per_step),
          FACT(tokens_per_step)),
    FIELD("seq_len", INTEGER, HY_IF_POSITIVE, START(seq_len), FACT(seq_len)),
    FIELD("batch_size", INTEGER, HY_IF_POSITIVE, START(batch_size), UNREAD),
    FIELD("grad_accum", INTEGER, HY_ALWAYS, START(grad_accum), UNREAD),
    FIELD("vram_budget_bytes", INTEGER, HY_IF_POSITIVE, START(vram_budget_bytes),
          FACT(vram_budget_bytes)),
    FIELD("host_budget_bytes", INTEGER, HY_IF_POSITIVE, START(host_budget_bytes),
          FACT(host_budget_bytes)),
    FIELD("thresholds", LEVELS, HY_ALWAYS, START(thresholds), FACT(thresholds)),
};
const size_t hy_start_field_count = sizeof hy_start_fields / sizeof hy_start_fields[0];

unsigned hy_step_conditions(const hy_step_info *step) {
    return (step->phase == HY_PREDICT ? HY_IF_JUMP : 0) | (step->gpu.is_known ? HY_IF_GPU : 0);
}

const hy_field *hy_step_field(const char *key) {
    for (size_t i = 0; i < hy_step_field_count; i++)
        if (strcmp(hy_step_fields[i].key, key) == 0) return &hy_step_fields[i];
    return NULL;
}
