/* store_disk.h: a store's way between disk and host, inside the store's own files only.
 *
 * A class backed by the disk passes through a few pinned buffers, the stages, and from there through the
 * ring as a class in pinned memory does. A stage holds one unit. See store_disk.c. */
#pragma once

#include "memory/store.h"

hy_status hy_stages_create(hy_store *store, const hy_disk_backing *backing);
void hy_stages_destroy(hy_store *store); /* waits for transfers in flight */

/* Begins to read the unit unless it is here. *is_there: copies up may be enqueued. `waits`: until it is. */
hy_status hy_stages_fetch(hy_store *store, int32_t unit, bool waits, bool *is_there);
/* Where a unit that is there lies; and that copies out of it were enqueued on the way up. */
const char *hy_stages_source(const hy_store *store, int32_t unit);
hy_status hy_stages_note_copy(hy_store *store, int32_t unit);

/* A place for the unit's changes: the way down may copy there, and record the unit's is_written_back. The
 * write follows when they are complete. */
hy_status hy_stages_return(hy_store *store, int32_t unit, char **out);

/* For the host, while nothing else goes on: the unit's bytes; is_new: they will all be overwritten. */
hy_status hy_stages_open(hy_store *store, int32_t unit, bool is_new, char **out);
void hy_stages_close(hy_store *store, int32_t unit, bool is_changed);

/* A transfer that failed earlier. */
hy_status hy_stages_failure(const hy_store *store);

/* Waits until everything is in the file. */
hy_status hy_stages_settle(hy_store *store);
