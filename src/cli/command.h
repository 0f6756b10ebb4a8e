/* command.h: command lines, ready to be pasted: the one that was given, and the one that goes on. */
#ifndef HY_CLI_COMMAND_H
#define HY_CLI_COMMAND_H

#include <stdint.h>
#include <stdio.h>

/* Writes the command that resumes the run in `folder`, with steps > 0 to that many steps. `program`
 * is argv[0]. Words are quoted for a shell where they need it. */
void hy_cli_write_resume_command(FILE *out, const char *program, const char *folder, int64_t steps);

/* The command line as it was given, quoted in the same way. Allocated; NULL without memory. */
char *hy_cli_command_line(int argc, char *const *argv);

#endif
