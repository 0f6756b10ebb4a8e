/* completion.c: writes rows for the shells' completion. The files in completions/ read them. */
#include "cli/completion.h"

void hy_cli_complete_rows(FILE *out, const hy_cli_completion *rows, size_t count) {
    for (size_t i = 0; i < count; i++)
        fprintf(out, "%s\t%s\t%s\t%s\n", rows[i].flag, rows[i].type, rows[i].accepted,
                rows[i].help);
}
