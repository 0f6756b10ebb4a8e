/* summary_json.h: the closing summary for programs. */
#ifndef HY_CLI_SUMMARY_JSON_H
#define HY_CLI_SUMMARY_JSON_H

#include <stdio.h>

#include "hybrid.h"

/* One JSON object and a newline; the same names as in the run's summary.json. */
void hy_cli_summary_json(FILE *out, const hy_summary *summary, hy_status status);

#endif
