/* lock.h: allows one process at a time in a folder.
 *
 * The process holds FOLDER/.lock with a lock on the open file. The system releases it when the
 * process ends, however it ends, so a leftover file blocks nobody. The file names the process and
 * host that hold it. If the file system has no locks, the process in the file is checked instead,
 * if it is on this host. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_LOCK_FILE ".lock"

typedef struct hy_lock hy_lock;

/* HY_ERR_INPUT names the process and host that hold the lock, or says that a file of that name is
 * not a lock; nothing is changed then. */
hy_status hy_lock_take(const char *folder, hy_lock **out);
/* Whether the lock file still exists: false if it was deleted or replaced. */
bool hy_lock_is_there(const hy_lock *lock);
/* Whether the folder is still the same folder, even if the lock file is gone. */
bool hy_lock_folder_is_there(const hy_lock *lock);
void hy_lock_release(hy_lock *lock); /* lock may be NULL; removes the file */
