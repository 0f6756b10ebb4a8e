/* command.c: writes the command that resumes a run, ready to be pasted.
 *
 * The run's folder holds its whole configuration, so naming the folder is enough. */
#include "cli/command.h"

#include <inttypes.h>
#include <string.h>

static void write_quoted(FILE *out, const char *word) {
    const char *plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:+@%";
    if (*word != '\0' && word[strspn(word, plain)] == '\0') {
        fputs(word, out);
        return;
    }
    fputc('\'', out);
    for (; *word != '\0'; word++) {
        if (*word == '\'')
            fputs("'\\''", out);
        else
            fputc(*word, out);
    }
    fputc('\'', out);
}

void hy_cli_write_resume_command(FILE *out, const char *program, const char *folder,
                                 int64_t steps) {
    write_quoted(out, program);
    fputs(" --resume ", out);
    write_quoted(out, folder);
    if (steps > 0) fprintf(out, " --steps %" PRId64, steps);
}
