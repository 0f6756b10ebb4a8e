/* command.h: the command line that goes on with a run. */
#ifndef HY_CLI_COMMAND_H
#define HY_CLI_COMMAND_H

#include <stdint.h>
#include <stdio.h>

/* Writes the command that resumes the run in `folder`, with steps > 0 to that many steps. `program`
 * is argv[0]. Words are quoted for a shell where they need it. */
void hy_cli_write_resume_command(FILE *out, const char *program, const char *folder, int64_t steps);

#endif
