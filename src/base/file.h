/* file.h: reading and writing files so that a crash or a full disk never leaves half of one.
 *
 * Every system call that changes the disk goes through one counter, and a test can make the n-th of
 * them fail (hy_fault_arm): whoever writes must survive a failure at each of them. Messages name
 * the path and the system's reason. A path that is missing, forbidden or of another kind is
 * HY_ERR_INPUT; a disk that is full or failing is HY_ERR_IO. */
#pragma once

#include "base/hash.h"
#include <stdbool.h>

#include "hybrid_types.h"

#define HY_PATH_MAX 1024 /* bytes of a path of a run, with its end */

/* ---- reading (file.c) ------------------------------------------------------------------------ */

/* Reads a small file whole, a configuration or a text of JSON: HY_ERR_INPUT for more than
 * HY_FILE_READ_MOST bytes. *data is allocated, zero-terminated (not counted in *size), freed by the caller. */
#define HY_FILE_READ_MOST ((size_t)64 << 20)
hy_status hy_file_read(const char *path, char **data, size_t *size);

/* A file mapped read-only. */
typedef struct hy_file_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;
} hy_file_map;
hy_status hy_file_map_open(const char *path, hy_file_map *out);
void hy_file_map_close(hy_file_map *map);

/* A regular file read at any place; reading is thread-safe. */
typedef struct hy_reader hy_reader;
hy_status hy_reader_open(const char *path, hy_reader **out);
uint64_t hy_reader_size(const hy_reader *r); /* when it was opened */
/* Exactly `size` bytes from `offset`; HY_ERR_IO when the file has become shorter. */
hy_status hy_reader_get(const hy_reader *r, uint64_t offset, void *dst, uint64_t size);
/* Whether these bytes would have to come from the disk, and can come past the page cache: that spares the
 * processor a copy and others their share of the cache. What is in the cache is faster from there. */
bool hy_reader_is_cold(const hy_reader *r, uint64_t offset, uint64_t size);
/* The same bytes past the page cache. `buffer` lies on a border of HY_DIRECT bytes and has room for
 * HY_DIRECT_ROOM(size); *data is where in it they begin. Where that fails they come the usual way. */
#define HY_DIRECT ((uint64_t)4096)
#define HY_DIRECT_ROOM(size) (((uint64_t)(size) / HY_DIRECT + 2) * HY_DIRECT)
hy_status hy_reader_get_direct(const hy_reader *r, uint64_t offset, uint64_t size, void *buffer,
                               char **data);
void hy_reader_close(hy_reader *r); /* r may be NULL */

hy_status hy_file_hash(const char *path, uint64_t *hash, uint64_t *size);

/* ---- writing (writer.c) ---------------------------------------------------------------------- */

/* A file being written, buffered. Create makes a new file, and whatever had its name is gone. No link in the
 * last part of the path is followed: a name that was planted in a folder leads nowhere else
 * (hy_disk_create). Close returns the first
 * failure; with `sync` the bytes are on the disk when it returns HY_OK. Hash (XXH64, seed 0) and
 * size are of all bytes put since opening. A failed or abandoned writer leaves the partial file to
 * its owner. Replace writes under another name (".NAME.partial" beside it) and close puts the file
 * in its place, synced in any case: the old one or the new one is there, never a part; failed or
 * abandoned, it removes what it wrote. */
typedef struct hy_writer hy_writer;
hy_status hy_writer_create(const char *path, hy_writer **out);
hy_status hy_writer_replace(const char *path, hy_writer **out);
/* Of a new file, before anything is put: it will have this many bytes. A large one passes the page cache by
 * and keeps the disk busy while more is put (bulk.h); HY_ERR_IO when the disk has no room for it. */
#define HY_BULK_LEAST ((uint64_t)64 << 20)
hy_status hy_writer_expect(hy_writer *w, uint64_t size);
hy_status hy_writer_put(hy_writer *w, const void *data, size_t size);
/* The same without a copy: where the next bytes may be made, *size of them at the most and one at the least,
 * and how many were. Nothing else is put in between. */
void *hy_writer_room(hy_writer *w, size_t *size);
hy_status hy_writer_commit(hy_writer *w, size_t size);
hy_status hy_writer_flush(hy_writer *w); /* to the system, not to the disk */
uint64_t hy_writer_hash(const hy_writer *w);
uint64_t hy_writer_size(const hy_writer *w);
hy_status hy_writer_close(hy_writer *w, bool sync); /* w may be NULL; frees it in any case */
void hy_writer_abandon(hy_writer *w); /* closes without writing what is buffered; w may be NULL */

/* Writes into a regular file, which is made where there is none, from *offset on, or from its end where it is
 * shorter (HY_FILE_END), and moves *offset behind what it wrote. Failed, the file may have a part of it: the
 * same call again writes over it. Links are not followed. */
#define HY_FILE_END UINT64_MAX
hy_status hy_file_put_at(const char *path, uint64_t *offset, const void *data, size_t size);

/* Writes a small file whole: under another name, synced, renamed. */
hy_status hy_file_write_atomic(const char *path, const void *data, size_t size);

/* ---- folders and names (folder.c) ------------------------------------------------------------ */

bool hy_path_exists(const char *path);
bool hy_path_is_dir(const char *path);
bool hy_path_is_link(const char *path); /* a symbolic one */
/* Whether `path`, with all links followed, is a regular file somewhere below `folder`. */
bool hy_path_is_file_below(const char *path, const char *folder);
/* Bytes to be had where it is, or will be; UINT64_MAX: not known. */
uint64_t hy_path_free(const char *path);
hy_status hy_dir_make(const char *path); /* with parents, durably; fine when it exists */
hy_status hy_dir_sync(const char *path);
hy_status hy_dir_remove(const char *path); /* with all inside; fine when absent */
/* A symbolic link; what has the name already stays, and is taken for it. */
hy_status hy_path_link(const char *target, const char *path);
hy_status hy_path_rename(const char *from, const char *to); /* not synced: hy_dir_sync the parent */
/* Makes `path` a symbolic link to `target`, durably and in one step; a link that was there is replaced, anything
 * else is HY_ERR_INPUT. */
hy_status hy_link_put(const char *path, const char *target);
hy_status hy_path_exchange(const char *a, const char *b); /* swaps two names in one step */
hy_status hy_path_join(char *out, size_t size, const char *dir, const char *name);
hy_status hy_path_sync_parent(const char *path); /* makes the name itself durable */
hy_status hy_path_parent(char *out, size_t size, const char *path); /* "." for a bare name */
/* Sorted names in a folder, without . and ..; free with hy_dir_list_free. */
hy_status hy_dir_list(const char *path, char ***names, size_t *count);
void hy_dir_list_free(char **names, size_t count);

/* ---- faults (disk.c) ------------------------------------------------------------------------- */

/* Test hook. The call number `at` (from 0, counted from arming) that changes the disk fails with
 * `error_number`; is_lasting: all after it too. A write that fails has written half.
 * hy_fault_disarm returns how many calls were counted. */
void hy_fault_arm(long at, int error_number, bool is_lasting);
/* The process ends at that call with `exit_status`, as if killed: nothing is flushed or cleaned. */
void hy_fault_arm_kill(long at, int exit_status);
/* Plays a disk with this much free; 0: the real one. */
void hy_fault_limit_disk(uint64_t bytes);
/* Plays a file system that cannot swap two names; stays until told otherwise. */
void hy_fault_lack_exchange(bool lacks);
long hy_fault_disarm(void);
