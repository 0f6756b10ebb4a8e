/* lock.h: one process at a time in a folder.
 *
 * FOLDER/.lock is held with a lock of the open file, which the system takes back when the process ends,
 * however it ends: a file that was left behind keeps nobody out. It says which process of which host
 * holds it. Where the file system has no locks, the process that the file names is asked for instead,
 * as far as it is on this host. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_LOCK_FILE ".lock"

typedef struct hy_lock hy_lock;

/* HY_ERR_INPUT with process id and host of the holder where someone has it, or where a file of that name is not
 * one of these; nothing is changed then. */
hy_status hy_lock_take(const char *folder, hy_lock **out);
/* Whether the folder still has the file that is held: not where it was deleted or replaced. */
bool hy_lock_is_there(const hy_lock *lock);
/* Whether the folder is the one it was taken for, whatever became of the file in it. */
bool hy_lock_folder_is_there(const hy_lock *lock);
void hy_lock_release(hy_lock *lock); /* lock may be NULL; the file goes */
