/* summary_json.c: writes hy_summary as one JSON object on one line.
 *
 * Numbers that are not finite become null, as JSON has no word for them. Text is escaped; a
 * byte that is not ASCII is passed on as it is (paths are UTF-8 wherever this runs). */
#include "cli/summary_json.h"

#include <inttypes.h>
#include <math.h>

static void write_text(FILE *out, const char *name, const char *text) {
    fprintf(out, "\"%s\":\"", name);
    for (; *text != '\0'; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte == '"' || byte == '\\')
            fprintf(out, "\\%c", byte);
        else if (byte < 0x20)
            fprintf(out, "\\u%04x", byte);
        else
            fputc(byte, out);
    }
    fputc('"', out);
}

static void write_integer(FILE *out, const char *name, int64_t value) {
    fprintf(out, ",\"%s\":%" PRId64, name, value);
}

static void write_bytes(FILE *out, const char *name, uint64_t value) {
    fprintf(out, ",\"%s\":%" PRIu64, name, value);
}

/* Seventeen digits: the number that comes back is the number that was. */
static void write_number(FILE *out, const char *name, double value) {
    if (isfinite(value))
        fprintf(out, ",\"%s\":%.17g", name, value);
    else
        fprintf(out, ",\"%s\":null", name);
}

static void write_cell(FILE *out, hy_class cls, const hy_memory_cell *cell, bool is_first) {
    fprintf(out, "%s\"%s\":{", is_first ? "" : ",", hy_class_name(cls));
    write_text(out, "place", hy_place_name(cell->place));
    fputc(',', out);
    write_text(out, "dtype", hy_dtype_name(cell->dtype));
    write_bytes(out, "planned_bytes", cell->planned_bytes);
    write_bytes(out, "measured_bytes", cell->measured_bytes);
    fputc('}', out);
}

static void write_phase(FILE *out, const hy_phase_summary *phase) {
    bool is_first = true;
    fprintf(out, "{\"steps\":%" PRId64, phase->steps);
    write_number(out, "seconds", phase->seconds);
    write_bytes(out, "vram_planned_bytes", phase->vram_planned_bytes);
    write_bytes(out, "vram_peak_bytes", phase->vram_peak_bytes);
    write_number(out, "wait_seconds", phase->wait_seconds);
    write_bytes(out, "bytes_moved", phase->bytes_moved);
    fputs(",\"classes\":{", out);
    for (int c = 0; c < HY_CLASS_COUNT; c++) {
        const hy_memory_cell *cell = &phase->memory[c];
        if (cell->planned_bytes == 0 && cell->measured_bytes == 0) continue;
        write_cell(out, (hy_class)c, cell, is_first);
        is_first = false;
    }
    fputs("}}", out);
}

static void write_counts(FILE *out, const hy_summary *summary) {
    write_integer(out, "parameters", summary->parameters);
    write_integer(out, "steps_total", summary->steps_total);
    write_integer(out, "steps", summary->steps);
    write_integer(out, "full_steps", summary->full_steps);
    write_integer(out, "predicted_steps", summary->predicted_steps);
    write_integer(out, "correct_steps", summary->correct_steps);
    write_integer(out, "backward_passes", summary->backward_passes);
    write_integer(out, "skipped_steps", summary->skipped_steps);
    write_integer(out, "tokens", summary->tokens);
    write_integer(out, "tokens_per_step", summary->tokens_per_step);
    write_number(out, "seconds", summary->seconds);
    write_number(out, "tokens_per_second", summary->tokens_per_second);
    write_number(out, "flops_per_token", summary->flops_per_token);
    write_bytes(out, "checkpoint_bytes", summary->checkpoint_bytes);
}

static void write_losses(FILE *out, const hy_summary *summary) {
    bool is_known = summary->knows_entropy;
    write_number(out, "final_loss", summary->final_loss);
    write_number(out, "val_loss", summary->val_loss);
    write_number(out, "source_entropy", is_known ? summary->source_entropy : NAN);
    write_number(out, "val_optimum", is_known ? summary->val_optimum : NAN);
    write_number(out, "ngram_loss", is_known ? summary->ngram_loss : NAN);
}

void hy_cli_summary_json(FILE *out, const hy_summary *summary, hy_status status) {
    fputc('{', out);
    write_text(out, "model", summary->model);
    fputc(',', out);
    write_text(out, "device", summary->device);
    fputc(',', out);
    write_text(out, "matmul", summary->matmul);
    fputc(',', out);
    write_text(out, "data", summary->data);
    fputc(',', out);
    write_text(out, "out", summary->out);
    fprintf(out, ",\"was_stopped\":%s", status == HY_STOPPED ? "true" : "false");
    write_counts(out, summary);
    write_losses(out, summary);
    fputs(",\"phases\":{", out);
    for (int p = 0; p < HY_PHASE_COUNT; p++) {
        fprintf(out, "%s\"%s\":", p > 0 ? "," : "", hy_phase_name((hy_phase)p));
        write_phase(out, &summary->phases[p]);
    }
    fputs("}}\n", out);
}
