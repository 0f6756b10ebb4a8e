/* slurm.h: two small languages of Slurm's environment: lists of nodes and lists of task counts. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first host of a list like "node[01-04,07],big3" or "rack[1-2]n[3-4]": "node01", "rack1n3".
 * False where it is no such list or `out` is too small. */
bool hy_slurm_first_host(const char *list, char *out, size_t size);

/* How many tasks node `node` has by a list like "4(x2),3": 4, 4, 3. False where the list is no such
 * list or shorter. */
bool hy_slurm_tasks_of_node(const char *list, int64_t node, int64_t *out);
