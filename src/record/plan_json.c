/* plan_json.c: a plan as JSON, for --plan --json and for OUT/plan.json. See record.h.
 *
 * Keys are never renamed, because reports and other programs read them. Numbers are bytes, seconds
 * and counts. */
#include "base/json.h"
#include "plan/plan_value.h"
#include "record/record.h"

static void put_sentences(const char *key, const char list[][HY_PLAN_TEXT], int32_t count,
                          hy_json_writer *w) {
    hy_json_open_array(w, key);
    for (int32_t i = 0; i < count; i++) hy_json_put_string(w, NULL, list[i]);
    hy_json_close_array(w);
}

static void put_groups(const hy_group_info *groups, int32_t count, hy_json_writer *w) {
    hy_json_open_array(w, "groups");
    for (int32_t i = 0; i < count; i++) {
        hy_json_open_object(w, NULL);
        hy_json_put_string(w, "names", groups[i].names);
        hy_json_put_string(w, "changes", groups[i].changes);
        hy_json_put_int(w, "parameters", groups[i].parameters);
        hy_json_put_int(w, "elements", groups[i].elements);
        hy_json_close_object(w);
    }
    hy_json_close_array(w);
}

hy_status hy_plan_to_json(const hy_summary *s, const hy_plan_facts *facts,
                          const hy_plan_choice *choice, const hy_group_info *groups,
                          int32_t group_count, const hy_ranks_info *ranks, char **out) {
    hy_text text = {0};
    hy_json_writer w;
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    hy_json_put_bool(&w, "fits", facts->fits);
    if (!facts->fits) hy_json_put_string(&w, "problem", facts->problem);
    hy_json_put_string(&w, "model", s->model);
    hy_json_put_int(&w, "parameters", s->parameters);
    hy_json_put_int(&w, "trained_parameters", s->trained);
    hy_json_put_string(&w, "device", s->device);
    hy_put_ranks(&w, ranks);
    hy_json_put_int(&w, "vram_peak_bytes", (int64_t)facts->vram_bytes);
    if (facts->caller_bytes > 0) hy_json_put_int(&w, "caller_bytes", (int64_t)facts->caller_bytes);
    hy_json_put_int(&w, "host_pinned_bytes", (int64_t)facts->host_pinned_bytes);
    hy_json_put_int(&w, "host_limit_bytes", (int64_t)facts->host_limit);
    hy_json_put_int(&w, "disk_bytes", (int64_t)facts->disk_bytes);
    hy_json_put_int(&w, "host_fork_bytes", (int64_t)facts->host_fork_bytes);
    hy_json_put_int(&w, "data_host_bytes", (int64_t)facts->data_host_bytes);
    hy_json_put_int(&w, "data_buffer_bytes", (int64_t)facts->data_buffer_bytes);
    hy_json_put_int(&w, "data_disk_bytes", (int64_t)facts->data_disk_bytes);
    hy_json_put_int(&w, "checkpoint_bytes", (int64_t)s->checkpoint_bytes);
    hy_json_put_int(&w, "checkpoint_frozen_bytes", (int64_t)s->checkpoint_frozen_bytes);
    hy_json_put_int(&w, "eval_batch_size", facts->eval_batch_size);
    hy_json_put_double(&w, "tokens_per_second", facts->tokens_per_second);
    hy_json_put_double(&w, "step_seconds", facts->step_seconds);
    hy_json_put_double(&w, "wait_seconds", facts->wait_seconds);
    if (facts->rollout_seconds > 0)
        hy_json_put_double(&w, "rollout_seconds", facts->rollout_seconds);
    hy_json_put_double(&w, "run_seconds",
                       (facts->step_seconds + facts->rollout_seconds) * (double)s->steps_total);
    hy_json_put_int(&w, "step_bytes_up", (int64_t)facts->bytes_up);
    hy_json_put_int(&w, "step_bytes_down", (int64_t)facts->bytes_down);
    hy_json_put_int(&w, "step_bytes_to_disk", (int64_t)facts->disk_written);
    hy_json_put_double(&w, "compute_seconds", facts->compute_seconds);
    hy_json_put_double(&w, "bus_seconds", facts->bus_seconds);
    hy_json_put_string(&w, "bound", facts->bound);
    if (facts->ranks > 1) { /* the traffic between ranks; all other figures are those of one rank */
        hy_json_open_object(&w, "link");
        hy_json_put_string(&w, "name", facts->link);
        hy_json_put_int(&w, "step_bytes_grads", (int64_t)facts->link_grads);
        hy_json_put_int(&w, "step_bytes_weights", (int64_t)facts->link_weights);
        hy_json_put_int(&w, "step_bytes", (int64_t)facts->link_bytes);
        hy_json_put_double(&w, "seconds", facts->link_seconds);
        hy_json_close_object(&w);
    }
    hy_plan_write_choices(choice, &w);
    if (group_count > 0) put_groups(groups, group_count, &w);
    put_sentences("reasons", facts->reasons, facts->reason_count, &w);
    put_sentences("changes", facts->changes, facts->change_count, &w);
    hy_json_open_object(&w, "phases");
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        if (i == HY_REFERENCE && !s->measures_reference) continue;
        if (i == HY_ROLLOUT && !s->generates_answers) continue;
        hy_json_open_object(&w, hy_phase_name((hy_phase)i));
        hy_json_put_int(&w, "vram_bytes", (int64_t)s->phases[i].vram_planned_bytes);
        hy_put_classes(&w, &s->phases[i], false);
        hy_json_close_object(&w);
    }
    hy_json_close_object(&w);
    hy_json_close_object(&w);
    hy_text_add(&text, "\n");
    return hy_text_take(&text, out);
}
