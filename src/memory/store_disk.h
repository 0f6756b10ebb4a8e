/* store_disk.h: transfers of a store between disk and host; used only by the files of the store.
 *
 * A class on disk passes through a few pinned buffers, the stages, and from there through the ring
 * like a class in pinned memory. A stage holds one unit. See store_disk.c. */
#pragma once

#include "memory/store.h"

hy_status hy_stages_create(hy_store *store, const hy_disk_backing *backing);
void hy_stages_destroy(hy_store *store); /* waits for transfers in flight */

/* Begins to read the unit unless a stage has it. *is_there: copies up may be enqueued. `waits`:
 * wait for that. */
hy_status hy_stages_fetch(hy_store *store, int32_t unit, bool waits, bool *is_there);
/* The address of a unit that is there; and a call to record that copies out of it were enqueued on
 * up. */
const char *hy_stages_source(const hy_store *store, int32_t unit);
hy_status hy_stages_note_copy(hy_store *store, int32_t unit);

/* A place for the unit's changes: down may copy there and record the unit's is_written_back. The
 * write follows when the copy is complete. */
hy_status hy_stages_return(hy_store *store, int32_t unit, char **out);

/* Gives the host the unit's bytes until it closes them; no stream may run meanwhile. is_new: the
 * caller overwrites all of them, so none are read from the file. */
hy_status hy_stages_open(hy_store *store, int32_t unit, bool is_new, char **out);
void hy_stages_close(hy_store *store, int32_t unit, bool is_changed);

/* The failure of an earlier transfer. */
hy_status hy_stages_failure(const hy_store *store);

/* Waits until everything is in the file. */
hy_status hy_stages_settle(hy_store *store);
