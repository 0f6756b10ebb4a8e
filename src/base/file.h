/* file.h: reads and writes files so that a crash or a full disk never leaves half a file.
 *
 * Every system call that changes the disk is counted, and a test can make the n-th of them fail
 * (hy_fault_arm): code that writes must survive a failure at each of them. Messages name the path
 * and the reason from the system. A path that is missing, forbidden or of another kind is
 * HY_ERR_INPUT; a disk that is full or failing is HY_ERR_IO. */
#pragma once

#include "base/hash.h"
#include <stdbool.h>

#include "hybrid_types.h"

#define HY_PATH_MAX 1024 /* bytes of a path, including the terminating zero */

/* ---- reading (file.c) ------------------------------------------------------------------------ */

/* Reads a small file whole, such as a configuration or JSON; HY_ERR_INPUT if it is larger than
 * HY_FILE_READ_MOST. *data is allocated and zero-terminated (not counted in *size); the caller
 * frees it. */
#define HY_FILE_READ_MOST ((size_t)64 << 20)
hy_status hy_file_read(const char *path, char **data, size_t *size);

/* A file mapped read-only. */
typedef struct hy_file_map {
    const uint8_t *data; /* NULL if the file is empty */
    size_t size;
} hy_file_map;
hy_status hy_file_map_open(const char *path, hy_file_map *out);
void hy_file_map_close(hy_file_map *map);

/* A regular file that is read at any offset; reading is thread-safe. */
typedef struct hy_reader hy_reader;
hy_status hy_reader_open(const char *path, hy_reader **out);
uint64_t hy_reader_size(const hy_reader *r); /* its size on opening */
/* Reads exactly `size` bytes at `offset`; HY_ERR_IO if the file has become shorter. */
hy_status hy_reader_get(const hy_reader *r, uint64_t offset, void *dst, uint64_t size);
/* Whether these bytes are not in the page cache and can be read without it. A direct read saves a
 * copy and leaves the cache to others; cached bytes are read faster from the cache. */
bool hy_reader_is_cold(const hy_reader *r, uint64_t offset, uint64_t size);
/* Reads the same bytes without the page cache. `buffer` is aligned to HY_DIRECT bytes and has room
 * for HY_DIRECT_ROOM(size); *data is where the bytes begin in it. Falls back to a normal read. */
#define HY_DIRECT ((uint64_t)4096)
#define HY_DIRECT_ROOM(size) (((uint64_t)(size) / HY_DIRECT + 2) * HY_DIRECT)
hy_status hy_reader_get_direct(const hy_reader *r, uint64_t offset, uint64_t size, void *buffer,
                               char **data);
void hy_reader_close(hy_reader *r); /* r may be NULL */

hy_status hy_file_hash(const char *path, uint64_t *hash, uint64_t *size);

/* ---- writing (writer.c) ---------------------------------------------------------------------- */

/* A buffered file writer.
 *
 * Create makes a new file and removes an old one of that name. It does not follow a link in the
 * last part of the path, so a link that someone placed in a folder is never written through
 * (hy_disk_create).
 *
 * Replace writes to another name (".NAME.partial" in the same folder), and close renames the file,
 * always synced. So either the old or the new file exists, never a part. On failure, or if
 * abandoned, it removes the partial file.
 *
 * Close returns the first failure; with `sync`, the bytes are on the disk when it returns HY_OK.
 * Hash (XXH64, seed 0) and size cover all bytes since opening. A created file that fails or is
 * abandoned stays incomplete; its owner removes it. */
typedef struct hy_writer hy_writer;
hy_status hy_writer_create(const char *path, hy_writer **out);
hy_status hy_writer_replace(const char *path, hy_writer **out);
/* Announces the size of a new file before the first bytes. A large file bypasses the page cache and
 * is written in parallel (bulk.h). HY_ERR_IO if the disk has no space for it. */
#define HY_BULK_LEAST ((uint64_t)64 << 20)
hy_status hy_writer_expect(hy_writer *w, uint64_t size);
hy_status hy_writer_put(hy_writer *w, const void *data, size_t size);
/* As hy_writer_put, without a copy: returns where to write the next bytes, at least one and at most
 * *size; hy_writer_commit says how many were written. No other call may come in between. */
void *hy_writer_room(hy_writer *w, size_t *size);
hy_status hy_writer_commit(hy_writer *w, size_t size);
hy_status hy_writer_flush(hy_writer *w); /* to the system, not to the disk */
uint64_t hy_writer_hash(const hy_writer *w);
uint64_t hy_writer_size(const hy_writer *w);
hy_status hy_writer_close(hy_writer *w, bool sync); /* w may be NULL; frees it in any case */
void hy_writer_abandon(hy_writer *w); /* closes without writing the buffer; w may be NULL */

/* Writes into a regular file, which is created if missing, from *offset on (HY_FILE_END, or an
 * offset beyond the end: from its end), and moves *offset after the written bytes. On failure the
 * file may contain a part of them; the same call again overwrites it. Links are not followed. */
#define HY_FILE_END UINT64_MAX
hy_status hy_file_put_at(const char *path, uint64_t *offset, const void *data, size_t size);

/* Writes a small file whole: under another name, synced, then renamed. */
hy_status hy_file_write_atomic(const char *path, const void *data, size_t size);

/* ---- folders and names (folder.c) ------------------------------------------------------------ */

bool hy_path_exists(const char *path);
bool hy_path_is_dir(const char *path);
bool hy_path_is_link(const char *path); /* a symbolic link */
/* Whether `path`, with all links resolved, is a regular file below `folder`. */
bool hy_path_is_file_below(const char *path, const char *folder);
/* Free bytes on the file system of the path, which need not exist; UINT64_MAX: unknown. */
uint64_t hy_path_free(const char *path);
hy_status hy_dir_make(const char *path); /* with parents, synced; succeeds if it exists */
hy_status hy_dir_sync(const char *path);
hy_status hy_dir_remove(const char *path); /* with its content; succeeds if it is absent */
/* The same for a folder that a run or an export wrote. It holds files, and folders of a few known
 * names; any other folder in it is the user's: HY_ERR_INPUT names it, and nothing is removed. */
hy_status hy_dir_remove_ours(const char *path);
hy_status hy_dir_check_ours(const char *path); /* succeeds if it is absent */
/* Makes a symbolic link; succeeds if the name already exists. */
hy_status hy_path_link(const char *target, const char *path);
/* not synced: call hy_dir_sync on the parent */
hy_status hy_path_rename(const char *from, const char *to);
/* Makes `path` a symbolic link to `target`, synced and atomic. An existing link is replaced; any
 * other file is HY_ERR_INPUT. */
hy_status hy_link_put(const char *path, const char *target);
hy_status hy_path_exchange(const char *a, const char *b); /* swaps two names atomically */
hy_status hy_path_join(char *out, size_t size, const char *dir, const char *name);
hy_status hy_path_sync_parent(const char *path); /* makes the name itself durable */
hy_status hy_path_parent(char *out, size_t size, const char *path); /* "." for a plain name */
/* The sorted names in a folder, without . and ..; free them with hy_dir_list_free. */
hy_status hy_dir_list(const char *path, char ***names, size_t *count);
void hy_dir_list_free(char **names, size_t count);

/* ---- faults (disk.c) ------------------------------------------------------------------------- */

/* Test hook. Call number `at` (from 0, counted from arming) that changes the disk fails with
 * `error_number`; is_lasting: later calls fail, too. A failing write has written half of its bytes.
 * hy_fault_disarm returns how many calls were counted. */
void hy_fault_arm(long at, int error_number, bool is_lasting);
/* The process exits at that call with `exit_status`, as if killed: nothing is flushed or cleaned
 * up. */
void hy_fault_arm_kill(long at, int exit_status);
/* Simulates a disk with this much free space; 0: the real disk. */
void hy_fault_limit_disk(uint64_t bytes);
/* Simulates a file system that cannot swap two names, until called with false. */
void hy_fault_lack_exchange(bool lacks);
long hy_fault_disarm(void);
