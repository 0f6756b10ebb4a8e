/* opening.c: the few lines over a run. */
#include "cli/opening.h"

#include <inttypes.h>

#include "cli/figures.h"

static void say(const hy_cli_terminal *terminal, const char *what, const char *value) {
    fprintf(terminal->out, "%s%-8s%s  %s", hy_cli_colour_code(terminal, HY_CLI_DIM), what,
            hy_cli_colour_code(terminal, HY_CLI_PLAIN), value);
}

void hy_cli_opening(const hy_cli_terminal *terminal, const hy_summary *summary) {
    FILE *out = terminal->out;
    if (terminal->is_quiet) return;
    say(terminal, "model", summary->model);
    fprintf(out, ", %s parameters\n", hy_cli_count(summary->parameters).text);
    say(terminal, "device", summary->device);
    fprintf(out, ", %s\n", summary->matmul);
    say(terminal, "data", summary->data);
    fputc('\n', out);
    say(terminal, "steps", hy_cli_count(summary->steps_total).text);
    fprintf(out, " of %s tokens", hy_cli_count(summary->tokens_per_step).text);
    if (summary->steps > 0) fprintf(out, ", %s done before", hy_cli_count(summary->steps).text);
    fputc('\n', out);
    if (summary->out[0] == '\0') {
        say(terminal, "out", "nothing is written\n");
    } else {
        say(terminal, "out", summary->out);
        fprintf(out, ", a checkpoint is %s\n", hy_cli_bytes(summary->checkpoint_bytes).text);
        say(terminal, "watch it", "hybrid-top ");
        fprintf(out, "%s\n", summary->out);
    }
    fflush(out);
}
