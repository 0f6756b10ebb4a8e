/* command.c: writes command lines, ready to be pasted.
 *
 * To resume, naming the run's folder is enough: it holds the whole configuration. */
#include "cli/command.h"

#include <inttypes.h>
#include <stdlib.h>
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

char *hy_cli_command_line(int argc, char *const *argv) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    for (int i = 0; i < argc; i++) {
        if (i > 0) fputc(' ', out);
        write_quoted(out, argv[i]);
    }
    if (fclose(out) == 0) return text;
    free(text);
    return NULL;
}
