/* summary_json.c: the result of a run as JSON: for OUT/summary.json and for programs. See record.h.
 *
 * Keys are never renamed, because reports and other programs read them. A figure that is not known
 * is null or left out. */
#include <math.h>

#include "base/json.h"
#include "record/record.h"
#include "record/row_scores.h"

void hy_put_classes(hy_json_writer *w, const hy_phase_summary *p, bool is_measured) {
    hy_json_open_object(w, "classes");
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        const hy_memory_cell *cell = &p->memory[cls];
        if (cell->place == HY_NOWHERE) continue;
        hy_json_open_object(w, hy_class_name((hy_class)cls));
        hy_json_put_string(w, "place", hy_place_name(cell->place));
        hy_json_put_string(w, "dtype", hy_dtype_name(cell->dtype));
        hy_json_put_int(w, is_measured ? "planned_bytes" : "bytes", (int64_t)cell->planned_bytes);
        if (is_measured) hy_json_put_int(w, "measured_bytes", (int64_t)cell->measured_bytes);
        hy_json_close_object(w);
    }
    hy_json_close_object(w);
}

void hy_put_ranks(hy_json_writer *w, const hy_ranks_info *ranks) {
    if (ranks->count < 1) return;
    hy_json_put_int(w, "ranks", ranks->count);
    hy_json_put_int(w, "zero_stage", ranks->zero_stage);
    hy_json_put_string(w, "transport", ranks->transport);
}

static void put_phases(const hy_summary *s, hy_json_writer *w) {
    hy_json_open_object(w, "phases");
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        if (i == HY_REFERENCE && !s->measures_reference) continue;
        if (i == HY_ROLLOUT && !s->generates_answers) continue;
        const hy_phase_summary *p = &s->phases[i];
        hy_json_open_object(w, hy_phase_name((hy_phase)i));
        hy_json_put_int(w, "steps", p->steps);
        hy_json_put_double(w, "seconds", p->seconds);
        hy_json_put_int(w, "vram_planned_bytes", (int64_t)p->vram_planned_bytes);
        hy_json_put_int(w, "vram_peak_bytes", (int64_t)p->vram_peak_bytes);
        hy_json_put_double(w, "wait_seconds", p->wait_seconds);
        hy_json_put_int(w, "bytes_moved", (int64_t)p->bytes_moved);
        hy_put_classes(w, p, true);
        hy_json_close_object(w);
    }
    hy_json_close_object(w);
}

static void put_results(const hy_summary *s, hy_json_writer *w) {
    hy_json_put_int(w, "steps", s->steps);
    hy_json_put_int(w, "steps_total", s->steps_total);
    hy_json_put_int(w, "full_steps", s->full_steps);
    hy_json_put_int(w, "predicted_steps", s->predicted_steps);
    hy_json_put_int(w, "correct_steps", s->correct_steps);
    hy_json_put_int(w, "backward_passes", s->backward_passes);
    hy_json_put_int(w, "skipped_steps", s->skipped_steps);
    if (s->fp8_matmuls) {
        hy_json_put_int(w, "fp8_matmuls", s->fp8_matmuls);
        hy_json_put_int(w, "block_matmuls", s->block_matmuls);
    }
    hy_json_put_string(w, "predictor", s->predictor);
    hy_json_put_int(w, "moves", s->moves);
    hy_json_put_int(w, "rejected_moves", s->rejected_moves);
    hy_json_put_int(w, "divergences", s->divergences);
    hy_json_put_int(w, "forks", s->forks);
    hy_json_put_double(w, "fork_gain", s->fork_gain);
    hy_json_put_double(w, "fork_gain_steps", s->fork_gain_steps);
    hy_json_put_double(w, "confidence", s->confidence);
    hy_json_put_double(w, "spent", s->spent);
    hy_json_put_int(w, "tokens", s->tokens);
    if (s->tokens_per_step > 0 && !s->generates_answers)
        hy_json_put_int(w, "tokens_per_step", s->tokens_per_step);
    hy_json_put_double(w, "seconds", s->seconds);
    hy_json_put_double(w, "tokens_per_second", s->tokens_per_second);
    hy_json_put_double(w, "flops_per_token", s->flops_per_token);
    hy_json_put_double(w, "final_loss", s->final_loss);
    hy_json_put_double(w, "val_loss", s->val_loss);
    if (s->val_tokens > 0 && s->row_scores.pairs == 0)
        hy_json_put_int(w, "val_tokens", s->val_tokens);
    if (s->best_val_step >= 0 && !isnan(s->best_val_loss)) {
        hy_json_put_double(w, "best_val_loss", s->best_val_loss);
        hy_json_put_int(w, "best_val_step", s->best_val_step);
    }
    hy_row_scores_put(&s->row_scores, w);
    if (!isnan(s->raw_val_loss)) hy_json_put_double(w, "raw_val_loss", s->raw_val_loss);
    if (s->knows_entropy) {
        hy_json_put_double(w, "source_entropy", s->source_entropy);
        hy_json_put_double(w, "val_optimum", s->val_optimum);
    }
    if (!isnan(s->ngram_loss)) hy_json_put_double(w, "ngram_loss", s->ngram_loss);
}

hy_status hy_summary_to_json(const hy_summary *s, const hy_summary_extras *extras, char **out) {
    hy_text text = {0};
    hy_json_writer w;
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    hy_json_put_string(&w, "program", "hybrid-train " HYBRID_VERSION);
    hy_json_put_bool(&w, "finished",
                     s->spent >= (double)s->steps_total - 0.5 || s->is_stopped_early);
    hy_json_put_string(&w, "model", s->model);
    hy_json_put_int(&w, "parameters", s->parameters);
    hy_json_put_int(&w, "trained_parameters", s->trained);
    hy_json_put_string(&w, "device", s->device);
    hy_put_ranks(&w, extras->ranks);
    hy_json_put_string(&w, "matmul", s->matmul);
    if (s->is_gpu) {
        hy_json_put_int(&w, "compute_capability", s->capability);
        if (s->peak_flops > 0) hy_json_put_double(&w, "peak_flops", s->peak_flops);
        if (s->matmul_flops > 0) hy_json_put_double(&w, "matmul_flops", s->matmul_flops);
        if (s->mfu > 0) hy_json_put_double(&w, "mfu", s->mfu);
        if (s->sol > 0) hy_json_put_double(&w, "sol", s->sol);
    }
    hy_json_put_string(&w, "data", s->data);
    if (s->rows > 0) {
        hy_json_put_string(&w, "row_format", s->row_format);
        hy_json_put_int(&w, "rows", s->rows);
        hy_json_put_int(&w, "rows_dropped", s->rows_dropped);
        hy_json_put_int(&w, "rows_cut", s->rows_cut);
    }
    if (s->tokens_encoded > 0) {
        hy_json_put_int(&w, "tokens_encoded", s->tokens_encoded);
        hy_json_put_int(&w, "tokens_unknown", s->tokens_unknown);
    }
    if (s->row_losses[0]) hy_json_put_string(&w, "row_losses", s->row_losses);
    if (s->task[0]) hy_json_put_string(&w, "task", s->task);
    hy_json_put_string(&w, "out", s->out);
    if (extras->command[0]) hy_json_put_string(&w, "command", extras->command);
    put_results(s, &w);
    hy_json_put_int(&w, "recoveries", extras->recoveries);
    hy_json_put_int(&w, "batch_changes", extras->batch_changes);
    if (extras->batch_size > 0) hy_json_put_int(&w, "batch_size", extras->batch_size);
    hy_json_put_int(&w, "grad_accum", extras->grad_accum);
    hy_json_put_int(&w, "checkpoint_bytes", (int64_t)s->checkpoint_bytes);
    put_phases(s, &w);
    if (extras->savings) {
        hy_json_open_array(&w, "savings");
        for (int32_t i = 0; i < extras->savings->count; i++) {
            const hy_saving *saving = &extras->savings->list[i];
            hy_json_open_object(&w, NULL);
            hy_json_put_string(&w, "name", saving->name);
            hy_json_put_string(&w, "key", saving->key);
            hy_json_put_string(&w, "value", saving->now);
            hy_json_put_bool(&w, "on", saving->is_on);
            hy_json_put_bool(&w, "measured", saving->is_measured);
            hy_json_put_int(&w, "device_bytes", saving->device_bytes);
            hy_json_put_int(&w, "host_bytes", saving->host_bytes);
            hy_json_close_object(&w);
        }
        hy_json_close_array(&w);
    }
    hy_json_close_object(&w);
    hy_text_add(&text, "\n");
    return hy_text_take(&text, out);
}
