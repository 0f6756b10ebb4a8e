/* secret.c: finds, reads and makes secrets. See secret.h. */
#include "comm/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"

#define VARIABLE "HYBRID_SECRET"
#define LEAST 16 /* characters: a shorter secret can be guessed from one greeting */
#define MOST 4096

hy_status hy_random_bytes(void *out, size_t size) {
    HY_FAIL_IF(getrandom(out, size, 0) != (ssize_t)size, HY_ERR_IO,
               "cannot read random bytes from the system");
    return HY_OK;
}

hy_status hy_secret_make(hy_secret *out) {
    *out = (hy_secret){.from = "rank 0"};
    return hy_random_bytes(out->bytes, sizeof out->bytes);
}

hy_status hy_secret_make_text(char out[HY_SHA_HEX]) {
    uint8_t bytes[HY_SHA256_BYTES];
    HY_TRY(hy_random_bytes(bytes, sizeof bytes));
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return HY_OK;
}

/* The secret is the hash of the text without white space at its end. */
static hy_status take_text(const char *text, size_t size, const char *from, hy_secret *out) {
    hy_sha sha;
    while (size > 0 && strchr(" \t\r\n", text[size - 1])) size--;
    HY_FAIL_IF(size < LEAST || size > MOST, HY_ERR_INPUT,
               "the secret in %s has %zu characters: expected %d to %d", from, size, LEAST, MOST);
    snprintf(out->from, sizeof out->from, "%s", from);
    hy_sha_init(&sha, HY_SHA256);
    hy_sha_add(&sha, text, size);
    hy_sha256_bytes(&sha, out->bytes);
    return HY_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

static hy_status read_open_file(int fd, const char *path, hy_secret *out) {
    struct stat info;
    char text[MOST + 64];
    HY_FAIL_IF(fstat(fd, &info) != 0 || !S_ISREG(info.st_mode), HY_ERR_INPUT,
               "%s is not a regular file: expected a file with a secret", path);
    HY_FAIL_IF(info.st_uid != geteuid() && info.st_uid != 0, HY_ERR_INPUT,
               "%s with the secret belongs to user %d: expected a file of your own", path,
               (int)info.st_uid);
    HY_FAIL_IF(info.st_mode & 077, HY_ERR_INPUT,
               "%s with the secret has mode %04o, so other users can read or change it: run "
               "chmod 600 %s",
               path, (unsigned)info.st_mode & 07777, path);
    ssize_t size = read(fd, text, sizeof text);
    HY_FAIL_IF(size < 0, HY_ERR_IO, "cannot read the secret in %s: %s", path, strerror(errno));
    return take_text(text, (size_t)size, path, out);
}

/* Writes another name first and links it, so that ranks that do this at once, on any machine,
 * read one whole file. A file that exists stays. */
static hy_status make_file(const char *path) {
    char text[HY_SHA_HEX], partial[HY_PATH_MAX];
    HY_TRY(hy_secret_make_text(text));
    int needed = snprintf(partial, sizeof partial, "%s.%.16s", path, text);
    HY_FAIL_IF(needed >= (int)sizeof partial, HY_ERR_INPUT, "the path %s is too long", path);
    HY_TRY(hy_secret_make_text(text));
    text[HY_SHA_HEX - 1] = '\n';
    int fd = open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool is_made = fd >= 0 && write(fd, text, sizeof text) == (ssize_t)sizeof text &&
                   fsync(fd) == 0 && (link(partial, path) == 0 || errno == EEXIST);
    int error = errno;
    if (fd >= 0) close(fd);
    unlink(partial);
    HY_FAIL_IF(!is_made, HY_ERR_IO, "cannot make %s with a secret: %s", path, strerror(error));
    return HY_OK;
}

static hy_status read_file(const char *path, hy_secret *out) {
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        HY_TRY(make_file(path));
        fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    }
    HY_FAIL_IF(fd < 0, HY_ERR_INPUT, "cannot read the secret in %s: %s", path, strerror(errno));
    hy_status status = read_open_file(fd, path, out);
    close(fd);
    return status;
}

/* ---- where it comes from --------------------------------------------------------------------- */

hy_status hy_secret_find_given(const char *file, hy_secret *out) {
    const char *text = getenv(VARIABLE);
    *out = (hy_secret){0};
    if (text && *text) return take_text(text, strlen(text), VARIABLE, out);
    return file && *file ? read_file(file, out) : HY_OK;
}

hy_status hy_secret_find_own(hy_secret *out) {
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    bool is_config = config && *config == '/', is_home = home && *home == '/';
    char folder[HY_PATH_MAX - 16], path[HY_PATH_MAX];
    hy_status status =
        is_config || is_home ? HY_OK : hy_fail(HY_ERR_INPUT, "HOME is not an absolute path");
    snprintf(folder, sizeof folder, "%s%s/hybrid-train",
             is_config ? config
             : is_home ? home
                       : "",
             is_config ? "" : "/.config");
    snprintf(path, sizeof path, "%s/rank-secret", folder);
    if (status == HY_OK) status = hy_dir_make(folder);
    if (status == HY_OK) status = read_file(path, out);
    if (status == HY_OK) return HY_OK;
    return hy_fail_context(HY_ERR_INPUT, "ranks on several machines need a secret that all of them "
                                         "know: set " VARIABLE " or --rank-secret-file");
}
