/* line_edit.c: loads libedit's readline functions at run time. See line_edit.h.
 *
 * The library is looked for once, on the first call, and stays loaded. hybrid-chat is the only
 * caller. */
#include "cli/line_edit.h"

#include <dlfcn.h>
#include <langinfo.h>
#include <locale.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *(*read_line)(const char *prompt);
static int (*keep_line)(const char *line);

static bool find(void *library, const char *name, void *function) {
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* libedit decodes input by the locale of the program and drops unknown characters: in the initial
 * "C" locale all but ASCII. Models read UTF-8. */
static bool use_utf8(void) {
    return setlocale(LC_CTYPE, "C.UTF-8") != NULL ||
           (setlocale(LC_CTYPE, "") != NULL && strcmp(nl_langinfo(CODESET), "UTF-8") == 0);
}

bool hy_cli_can_edit(void) {
    static bool was_tried;
    const char *terminal = getenv("TERM");
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) return false;
    if (terminal == NULL || terminal[0] == '\0' || strcmp(terminal, "dumb") == 0) return false;
    if (!was_tried) {
        was_tried = true;
        void *library = dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL);
        int (*begin)(void);
        if (!use_utf8() || library == NULL || !find(library, "readline", &read_line) ||
            !find(library, "add_history", &keep_line) || !find(library, "rl_initialize", &begin))
            read_line = NULL;
        else
            begin();
    }
    return read_line != NULL;
}

char *hy_cli_edit_line(const char *prompt) {
    char *line = read_line(prompt);
    if (line != NULL && line[0] != '\0') keep_line(line);
    return line;
}
