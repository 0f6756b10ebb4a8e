/* slurm.h: parses two kinds of lists in Slurm's environment: nodes and task counts. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first host of a list like "node[01-04,07],big3" or "rack[1-2]n[3-4]": "node01", "rack1n3".
 * False: not such a list, or `out` is too small. */
bool hy_slurm_first_host(const char *list, char *out, size_t size);

/* The tasks of node `node` in a list like "4(x2),3": 4, 4, 3. False: not such a list, or too
 * short. */
bool hy_slurm_tasks_of_node(const char *list, int64_t node, int64_t *out);
