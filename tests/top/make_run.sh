#!/bin/sh
# make_run.sh FOLDER STEPS [TOTAL [gpu]]: writes metrics of a run of STEPS steps out of TOTAL, as
# hybrid-train would, with figures that follow from the step's number: loss 2 + 8/step, 1,000 tokens a
# step of 0.5 s, a move after every 20 steps (every third rejected), a validation every 25 steps. With
# "gpu" the fields of a card are there. Nothing else of a run is made; the summary is added by tests.
folder=$1 steps=$2 total=${3:-$2} kind=${4:-cpu}
mkdir -p "$folder"
awk -v steps="$steps" -v total="$total" -v kind="$kind" -v model="${MODEL:-tiny-1m}" '
function line(step, phase, more) {
    printf "{\"step\":%d,\"phase\":\"%s\",\"lr\":0.0003,\"tokens\":%d,\"tokens_per_second\":%d", \
        step, phase, step * 1000, 2000 + step % 7
    printf ",\"seconds\":0.5,\"elapsed\":%.1f,\"confidence\":0.82,\"precision\":\"bf16\"", step / 2
    printf ",\"batch_size\":8,\"grad_accum\":4,\"vram_bytes\":%.0f,\"vram_peak_bytes\":%.0f", 9 * G, 10 * G
    printf ",\"host_pinned_bytes\":%.0f,\"wait_seconds\":0.025,\"bytes_moved\":%.0f", 6 * G, G / 2
    printf ",\"spent\":%d,\"memory\":{\"weights\":%.0f,\"grads\":%.0f,\"activations\":%.0f}", step, 3 * G, 2 * G, 4 * G
    printf ",\"pinned\":{\"master\":%.0f,\"optim\":%.0f},\"memory_status\":\"normal\"", 2 * G, 4 * G
    printf ",\"vram_planned_bytes\":%.0f", 11 * G
    if (kind == "gpu")
        printf ",\"mfu\":0.421,\"gpu_power_watts\":312,\"gpu_temperature_c\":64,\"gpu_utilization\":0.98" \
            ",\"vram_reserved_bytes\":%.0f,\"vram_free_bytes\":%.0f", 12 * G, 3 * G
    printf "%s}\n", more
}
BEGIN {
    G = 1073741824
    printf "{\"event\":\"start\",\"step\":0,\"spent\":0,\"elapsed\":0,\"time\":1700000000"
    printf ",\"version\":\"0.1.0\",\"command\":\"hybrid-train --model %s\",\"model\":\"%s\"", model, model
    printf ",\"parameters\":1234567,\"device\":\"CPU: test\",\"data\":\"corpus.txt\",\"predictor\":\"outer\""
    printf ",\"steps_total\":%d,\"tokens_per_step\":1000,\"seq_len\":32", total
    printf ",\"vram_budget_bytes\":%.0f,\"host_budget_bytes\":%.0f", 12 * G, 24 * G
    printf ",\"thresholds\":{\"target\":0.9,\"warning\":0.92,\"critical\":0.95,\"emergency\":0.97}}\n"
    for (s = 1; s <= steps; s++) {
        phase = s <= 10 ? "warmup" : s > 20 && s % 20 <= 2 && s % 20 > 0 ? "correct" : "full"
        more = sprintf(",\"loss\":%.6f,\"grad_norm\":0.75", 2 + 8 / s)
        if (s % 25 == 0) more = more sprintf(",\"val_loss\":%.6f", 2.1 + 8 / s)
        line(s, phase, more)
        if (s % 20 == 0)
            line(s, "predict", sprintf(",\"predicted_steps\":5,\"rejected\":%s", s % 60 == 0 ? "true" : "false"))
        if (s == 30)
            printf "{\"event\":\"batch\",\"step\":30,\"spent\":30,\"elapsed\":15,\"batch_size\":8,\"grad_accum\":4,\"old_batch_size\":16,\"old_grad_accum\":2,\"reason\":\"memory is critical\"}\n"
        if (s == 31)
            printf "{\"event\":\"memory\",\"step\":31,\"spent\":31,\"elapsed\":15.5,\"status\":\"normal\",\"old_status\":\"critical\",\"utilization\":0.75,\"text\":\"memory is normal again\"}\n"
    }
}' > "$folder/metrics.jsonl"
