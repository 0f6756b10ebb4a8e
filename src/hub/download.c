/* download.c: downloads a model folder from the hub; implements hy_download of hybrid.h.
 *
 * A file is written as NAME.partial, compared with the hub's checksum, synced, and then renamed;
 * an interrupted download continues at its last byte. In the hub's cache the files are
 * blobs/HASH, and snapshots/COMMIT has links to them. The links and refs/REVISION are made when
 * all files are complete, so a model is found complete or not at all. In the caller's own
 * folder, config.json comes last for the same reason. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/lock.h"
#include "base/say.h"
#include "base/sized.h"
#include "hub/hf_folder.h"
#include "hub/hf_tensors.h"
#include "hub/http.h"
#include "hub/hub_listing.h"

#define LISTING_MOST ((uint64_t)16 << 20)
#define DISK_MARGIN ((uint64_t)64 << 20) /* stays free on the disk */
#define TELL_SECONDS 0.25
#define CHUNK ((size_t)256 << 10)
enum { MOST_TRIES = 5, LIST_TRIES = 2, TEXT_BYTES = 512, TOKEN_BYTES = 4096, ADDRESS_BYTES = 2048 };

typedef struct download {
    const hy_observer *observer;
    hy_http *http;
    char name[TEXT_BYTES], revision[TEXT_BYTES];
    char endpoint[TEXT_BYTES], token[TOKEN_BYTES];
    bool is_cache;
    char folder[HY_HF_PATH_MAX];
    hy_hub_listing listing;
    uint64_t total, done; /* bytes that are needed, and how many of them exist */
    uint64_t fetched;     /* bytes downloaded by this call */
    double told_at, rate; /* bytes per second, smoothed */
    uint64_t told_fetched;
} download;

/* ---- name, server and token ------------------------------------------------------------------ */

/* Branches, tags and commits: no part begins with a dot, so refs/REVISION stays inside its
 * folder. */
static bool is_revision(const char *text) {
    if (!*text || strlen(text) >= 128) return false;
    for (const char *c = text; *c; c++) {
        bool begins = c == text || c[-1] == '/';
        bool is_plain =
            strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", *c);
        if (!is_plain && (begins || !strchr("-./", *c))) return false;
    }
    return text[strlen(text) - 1] != '/';
}

static hy_status read_name(download *d, const char *name) {
    const char *at = strchr(name, '@');
    size_t size = at ? (size_t)(at - name) : strlen(name);
    snprintf(d->name, sizeof d->name, "%.*s", (int)(size < TEXT_BYTES ? size : 0), name);
    snprintf(d->revision, sizeof d->revision, "%s", at ? at + 1 : "main");
    HY_FAIL_IF(!hy_hf_is_hub_name(d->name) || !is_revision(d->revision), HY_ERR_INPUT,
               "%.200s is not a model name on the hub; accepted: ORG/NAME as in Qwen/Qwen2.5-0.5B, "
               "or ORG/NAME@REVISION",
               name);
    return HY_OK;
}

static hy_status choose_endpoint(download *d) {
    const char *given = getenv("HF_ENDPOINT");
    if (!given || !*given) given = "https://huggingface.co";
    size_t size = strlen(given);
    while (size && given[size - 1] == '/') size--;
    HY_FAIL_IF(size >= sizeof d->endpoint, HY_ERR_INPUT, "HF_ENDPOINT=%.100s... is too long",
               given);
    memcpy(d->endpoint, given, size);
    d->endpoint[size] = 0;
    return HY_OK;
}

/* A token is one word of visible characters: anything else could add another header. */
static hy_status take_token(download *d, const char *text, const char *from) {
    size_t begin = strspn(text, " \t\r\n"), size = strcspn(text + begin, " \t\r\n");
    bool is_word = text[begin + size + strspn(text + begin + size, " \t\r\n")] == 0;
    for (size_t i = 0; i < size; i++)
        is_word = is_word && text[begin + i] > 32 && text[begin + i] < 127;
    HY_FAIL_IF(!is_word || size >= sizeof d->token, HY_ERR_INPUT,
               "%s does not contain a token; a token is one word of letters and digits", from);
    memcpy(d->token, text + begin, size);
    d->token[size] = 0;
    return HY_OK;
}

/* The token, or the path of a file with it: the first that the environment has. */
static hy_status find_token(download *d) {
    static const struct {
        const char *variable,
            *file; /* the file's path after the value; NULL: the value is a token */
    } places[] = {{"HF_TOKEN", NULL},
                  {"HUGGING_FACE_HUB_TOKEN", NULL},
                  {"HF_TOKEN_PATH", ""},
                  {"HF_HOME", "/token"},
                  {"HOME", "/.cache/huggingface/token"}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const char *value = getenv(places[i].variable);
        char path[HY_HF_PATH_MAX], *text;
        size_t size;
        if (!value || !*value) continue;
        if (!places[i].file) return take_token(d, value, places[i].variable);
        int length = snprintf(path, sizeof path, "%s%s", value, places[i].file);
        if (length >= (int)sizeof path || !hy_path_exists(path)) continue;
        HY_TRY(hy_file_read(path, &text, &size));
        hy_status status = take_token(d, text, path);
        free(text);
        return status;
    }
    return HY_OK;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The error for an answer other than success, and what to do. */
static hy_status refused(const download *d, const char *what, const hy_http_answer *answer) {
    const char *code = answer->error_code;
    bool is_gated = strcmp(code, "GatedRepo") == 0 || (!*code && answer->status == 403);
    if (is_gated) {
        return hy_fail(
            HY_ERR_INPUT,
            "%s is gated: accept its terms at %s/%s, and set HF_TOKEN to a token of that "
            "account (%s/settings/tokens)%s",
            d->name, d->endpoint, d->name, d->endpoint,
            d->token[0] ? "; the token that was sent has no access" : "");
    }
    if (strcmp(code, "RevisionNotFound") == 0) {
        return hy_fail(HY_ERR_INPUT,
                       "%s has no revision %s; the revisions are listed at %s/%s/commits", d->name,
                       d->revision, d->endpoint, d->name);
    }
    if (answer->status == 401 || answer->status == 404) {
        return hy_fail(HY_ERR_INPUT, "%s has no %s%s%s: check the name%s", d->endpoint, d->name,
                       *what ? "/" : "", what,
                       d->token[0] ? "; or the token that was sent has no access"
                                   : "; if it is private, set HF_TOKEN to a token with access");
    }
    return hy_fail(HY_ERR_IO, "%s answered with HTTP status %ld for %s%s%s; try again later",
                   d->endpoint, answer->status, d->name, *what ? "/" : "", what);
}

/* Waits before attempt number `tries` without progress; the first attempt starts at once. */
static void wait_for_try(int tries) {
    struct timespec time = {.tv_sec = tries > 1 ? 1 << (tries - 2) : 0};
    nanosleep(&time, NULL);
}

static hy_status add_text(void *user, uint64_t offset, const void *data, size_t size) {
    hy_text *text = user;
    if (offset == 0) hy_text_clear(text);
    HY_FAIL_IF(offset != text->size || offset + size > LISTING_MOST, HY_ERR_IO,
               "the hub's list of files is longer than %s", hy_bytes_as_text(LISTING_MOST).text);
    hy_text_add_bytes(text, data, size);
    return hy_text_status(text);
}

static hy_status get_listing(download *d) {
    char url[ADDRESS_BYTES], revision[3 * TEXT_BYTES] = "";
    for (const char *c = d->revision; *c; c++)
        snprintf(revision + strlen(revision), 4, *c == '/' ? "%%2F" : "%c", *c);
    snprintf(url, sizeof url, "%s/api/models/%s/revision/%s?blobs=true", d->endpoint, d->name,
             revision);
    hy_text text = {0};
    hy_http_answer answer = {.may_be_retried = true};
    hy_http_request request = {.url = url, .token = d->token, .on_data = add_text, .user = &text};
    hy_status status = HY_OK;
    for (int tries = 0; tries < LIST_TRIES && answer.may_be_retried; tries++) {
        wait_for_try(tries);
        hy_text_clear(&text);
        status = hy_http_get(d->http, &request, &answer);
    }
    if (status == HY_OK && answer.status != 200) status = refused(d, "", &answer);
    if (status == HY_OK)
        status = hy_hub_listing_read(hy_text_string(&text), text.size, d->name, &d->listing);
    hy_text_free(&text);
    return status;
}

/* ---- progress -------------------------------------------------------------------------------- */

static void tell(download *d, bool is_last) {
    double now = hy_clock(), passed = now - d->told_at;
    char text[256], left[32] = "?";
    if (!d->observer->on_progress || (passed < TELL_SECONDS && !is_last)) return;
    double current = (double)(d->fetched - d->told_fetched) / (passed > 1e-3 ? passed : 1e-3);
    d->rate = d->rate > 0 ? 0.8 * d->rate + 0.2 * current : current;
    d->told_at = now;
    d->told_fetched = d->fetched;
    if (d->rate > 0) hy_format_duration((double)(d->total - d->done) / d->rate, left, sizeof left);
    snprintf(text, sizeof text, "%s of %s, %s/s, %s left", hy_bytes_as_text(d->done).text,
             hy_bytes_as_text(d->total).text, hy_bytes_as_text((uint64_t)d->rate).text, left);
    d->observer->on_progress(d->observer->user, text,
                             d->total ? (double)d->done / (double)d->total : 1);
}

/* ---- one file -------------------------------------------------------------------------------- */

/* A file that is being downloaded: its bytes so far, hashed. */
typedef struct arrival {
    download *download;
    const hy_hub_file *file;
    const char *path; /* of the partial file */
    int fd;
    uint64_t at;
    bool is_resumed; /* it begins with bytes of an earlier call */
    hy_sha sha;
} arrival;

static void begin_hash(arrival *a) {
    char head[40];
    a->at = 0;
    a->is_resumed = false;
    hy_sha_init(&a->sha, a->file->kind);
    int size = snprintf(head, sizeof head, "blob %llu", (unsigned long long)a->file->size);
    if (a->file->kind == HY_SHA1) hy_sha_add(&a->sha, head, (size_t)size + 1);
}

static hy_status start_over(arrival *a) {
    if (a->fd >= 0) hy_disk_close(a->fd);
    a->download->done -= a->at;
    begin_hash(a);
    a->fd = hy_disk_create(a->path);
    return a->fd >= 0 ? HY_OK : hy_fail_path("cannot create", a->path);
}

/* Hashes an existing file. */
static hy_status hash_file(arrival *a, const char *path) {
    hy_reader *reader;
    char *chunk = malloc(CHUNK);
    if (!chunk) return hy_fail(HY_ERR_MEMORY, "not enough memory to read %s", path);
    hy_status status = hy_reader_open(path, &reader);
    begin_hash(a);
    while (status == HY_OK && a->at < hy_reader_size(reader)) {
        uint64_t left = hy_reader_size(reader) - a->at;
        size_t size = left < CHUNK ? (size_t)left : CHUNK;
        status = hy_reader_get(reader, a->at, chunk, size);
        if (status == HY_OK) hy_sha_add(&a->sha, chunk, size);
        a->at += size;
    }
    hy_reader_close(reader);
    free(chunk);
    return status;
}

static bool is_size(const char *path, uint64_t *size) {
    struct stat info;
    bool is_file = lstat(path, &info) == 0 && S_ISREG(info.st_mode);
    *size = is_file ? (uint64_t)info.st_size : 0;
    return is_file;
}

static hy_status open_arrival(arrival *a) {
    uint64_t size;
    a->fd = -1;
    if (!is_size(a->path, &size) || size == 0 || size > a->file->size) {
        begin_hash(a);
        return start_over(a);
    }
    HY_TRY(hash_file(a, a->path));
    a->is_resumed = true;
    a->download->done += a->at;
    a->fd = hy_disk_open(a->path, O_WRONLY | O_NOFOLLOW);
    return a->fd >= 0 ? HY_OK : hy_fail_path("cannot open", a->path);
}

static hy_status add_bytes(void *user, uint64_t offset, const void *data, size_t size) {
    arrival *a = user;
    if (offset == 0 && a->at > 0)
        HY_TRY(start_over(a)); /* the server sends the file from its beginning */
    HY_FAIL_IF(
        offset != a->at || size > a->file->size - a->at, HY_ERR_IO,
        "%s: the server sent bytes from offset %llu, but the download is at byte %llu of %llu",
        a->file->name, (unsigned long long)offset, (unsigned long long)a->at,
        (unsigned long long)a->file->size);
    if (hy_disk_write_at(a->fd, data, size, offset) != 0)
        return hy_fail_path("cannot write", a->path);
    hy_sha_add(&a->sha, data, size);
    a->at += size;
    a->download->done += size;
    a->download->fetched += size;
    tell(a->download, false);
    return HY_OK;
}

/* Requests the file until all bytes have arrived; gives up after several attempts in a row
 * without progress. Bytes that were discarded do not count again as progress: otherwise a server
 * that always starts over would be asked forever. */
static hy_status receive(arrival *a) {
    download *d = a->download;
    char url[ADDRESS_BYTES];
    hy_http_answer answer;
    hy_status status = HY_OK;
    uint64_t most = a->at;
    snprintf(url, sizeof url, "%s/%s/resolve/%s/%s", d->endpoint, d->name, d->listing.commit,
             a->file->name);
    for (int tries = 0; a->at < a->file->size && tries < MOST_TRIES; tries++) {
        hy_http_request request = {
            .url = url, .token = d->token, .from = a->at, .on_data = add_bytes, .user = a};
        wait_for_try(tries);
        status = hy_http_get(d->http, &request, &answer);
        if (a->at > most) tries = 0;
        most = a->at > most ? a->at : most;
        bool is_success = status == HY_OK && (answer.status == 200 || answer.status == 206);
        if (status == HY_OK && answer.status == 416 && a->at > 0) {
            if (a->is_resumed) most = 0;
            HY_TRY(start_over(a)); /* the existing bytes do not belong to this file */
            continue;
        }
        if (status == HY_OK && !is_success) status = refused(d, a->file->name, &answer);
        if (!is_success && !answer.may_be_retried) return status;
    }
    if (a->at == a->file->size) return HY_OK;
    return status != HY_OK
               ? status
               : hy_fail(HY_ERR_IO, "%s: received only %llu of %llu bytes", a->file->name,
                         (unsigned long long)a->at, (unsigned long long)a->file->size);
}

static bool has_right_hash(const arrival *a, char found[HY_SHA_HEX]) {
    hy_sha_text(&a->sha, found);
    return strcmp(found, a->file->hash) == 0;
}

/* Bytes from an earlier call may belong to another revision: then the file is downloaded again. */
static hy_status receive_right(arrival *a) {
    char found[HY_SHA_HEX];
    HY_TRY(receive(a));
    if (has_right_hash(a, found)) return HY_OK;
    if (a->is_resumed) {
        HY_TRY(start_over(a));
        HY_TRY(receive(a));
        if (has_right_hash(a, found)) return HY_OK;
    }
    hy_disk_unlink_at(AT_FDCWD, a->path, 0);
    return hy_fail(HY_ERR_IO,
                   "%s: the downloaded file has checksum %s, but the hub lists %s. The file was "
                   "deleted; try again",
                   a->file->name, found, a->file->hash);
}

/* The path of a file: blobs/HASH in the cache; in a caller's folder, the file's own name. */
static hy_status place_of(const download *d, const hy_hub_file *file, char path[HY_HF_PATH_MAX]) {
    char blob[HY_SHA_HEX + 8];
    snprintf(blob, sizeof blob, "blobs/%s", file->hash);
    return hy_path_join(path, HY_HF_PATH_MAX, d->folder, d->is_cache ? blob : file->name);
}

/* Checks whether the file exists. A blob was verified before it got its name; a file in the
 * caller's folder is compared, and a different one is never replaced. */
static hy_status look_for(download *d, hy_hub_file *file) {
    char path[HY_HF_PATH_MAX], found[HY_SHA_HEX];
    uint64_t size;
    HY_TRY(place_of(d, file, path));
    if (file->is_here || !is_size(path, &size)) return HY_OK;
    if (!d->is_cache) {
        arrival a = {.download = d, .file = file};
        if (size == file->size) HY_TRY(hash_file(&a, path));
        HY_FAIL_IF(
            size != file->size || !has_right_hash(&a, found), HY_ERR_INPUT,
            "%s exists but differs from the hub's %s; choose another folder, or remove the file",
            path, file->name);
    }
    file->is_here = size == file->size;
    return HY_OK;
}

static hy_status fetch(download *d, hy_hub_file *file) {
    char path[HY_HF_PATH_MAX], partial[HY_HF_PATH_MAX + 16];
    HY_TRY(look_for(d, file));
    d->done += file->is_here ? file->size : 0;
    if (file->is_here) return HY_OK;
    HY_TRY(place_of(d, file, path));
    snprintf(partial, sizeof partial, "%s.partial", path);
    arrival a = {.download = d, .file = file, .path = partial};
    hy_status status = open_arrival(&a);
    if (status == HY_OK) status = receive_right(&a);
    if (status == HY_OK && hy_disk_sync(a.fd) != 0) status = hy_fail_path("cannot sync", partial);
    if (a.fd >= 0 && hy_disk_close(a.fd) != 0 && status == HY_OK)
        status = hy_fail_path("cannot write", partial);
    if (status == HY_OK) status = hy_path_rename(partial, path);
    return status == HY_OK ? hy_path_sync_parent(path) : status;
}

/* ---- all files ------------------------------------------------------------------------------- */

/* The index lists the files with the weights, so it is downloaded before they are counted. */
static hy_status choose_weights(download *d) {
    hy_hub_file *index = hy_hub_listing_find(&d->listing, HY_HF_INDEX);
    char path[HY_HF_PATH_MAX], *text = NULL;
    size_t size = 0;
    bool has_single = hy_hub_listing_find(&d->listing, HY_HF_SINGLE);
    if (!has_single) {
        HY_FAIL_IF(index->size > HY_FILE_READ_MOST, HY_ERR_INPUT, "%s: " HY_HF_INDEX " has %s",
                   d->name, hy_bytes_as_text(index->size).text);
        HY_TRY(fetch(d, index));
        HY_TRY(place_of(d, index, path));
        HY_TRY(hy_file_read(path, &text, &size));
    }
    hy_status status = hy_hub_listing_want_weights(&d->listing, text, size);
    free(text);
    d->done = 0;
    return status;
}

/* Counts the needed bytes, and checks the disk space for those that are missing. */
static hy_status count_bytes(download *d, hy_downloaded *out) {
    uint64_t missing = 0, part, available;
    char path[HY_HF_PATH_MAX], partial[HY_HF_PATH_MAX + 16];
    for (size_t i = 0; i < d->listing.count; i++) {
        hy_hub_file *file = &d->listing.files[i];
        if (!file->is_wanted) continue;
        HY_FAIL_IF(file->size > INT64_MAX - d->total, HY_ERR_INPUT, "%s lists invalid file sizes",
                   d->name);
        HY_TRY(look_for(d, file));
        HY_TRY(place_of(d, file, path));
        snprintf(partial, sizeof partial, "%s.partial", path);
        if (!is_size(partial, &part) || part > file->size) part = 0;
        if (!file->is_here) missing += file->size - part;
        d->total += file->size;
        out->files++;
    }
    out->bytes = d->total;
    available = hy_path_free(d->folder);
    HY_FAIL_IF(missing && available != UINT64_MAX && missing + DISK_MARGIN > available, HY_ERR_IO,
               "%s: the download needs %s, but the disk of %s has only %s free; free some space, "
               "or choose another folder with --out",
               d->name, hy_bytes_as_text(missing).text, d->folder,
               hy_bytes_as_text(available).text);
    return HY_OK;
}

/* Publishes the model: links in snapshots/COMMIT, config.json last, and the revision's name. */
static hy_status publish(const download *d, char folder[HY_HF_PATH_MAX]) {
    char name[2 * TEXT_BYTES], path[HY_HF_PATH_MAX], target[HY_SHA_HEX + 16];
    snprintf(name, sizeof name, "snapshots/%s", d->listing.commit);
    HY_TRY(hy_path_join(folder, HY_HF_PATH_MAX, d->folder, name));
    HY_TRY(hy_dir_make(folder));
    for (size_t i = 0; i < d->listing.count; i++) {
        const hy_hub_file *file = &d->listing.files[i];
        if (!file->is_wanted) continue;
        snprintf(target, sizeof target, "../../blobs/%s", file->hash);
        HY_TRY(hy_path_join(path, sizeof path, folder, file->name));
        HY_TRY(hy_path_link(target, path));
    }
    HY_TRY(hy_dir_sync(folder));
    if (strcmp(d->revision, d->listing.commit) == 0) return HY_OK;
    snprintf(name, sizeof name, "refs/%s", d->revision);
    HY_TRY(hy_path_join(path, sizeof path, d->folder, name));
    HY_TRY(hy_path_parent(name, sizeof name, path));
    HY_TRY(hy_dir_make(name));
    return hy_file_write_atomic(path, d->listing.commit, strlen(d->listing.commit));
}

static hy_status fetch_all(download *d, hy_downloaded *out) {
    char blobs[HY_HF_PATH_MAX];
    HY_TRY(hy_path_join(blobs, sizeof blobs, d->folder, d->is_cache ? "blobs" : ""));
    HY_TRY(hy_dir_make(blobs));
    HY_TRY(choose_weights(d));
    HY_TRY(count_bytes(d, out));
    d->told_at = hy_clock();
    for (size_t i = 0; i < d->listing.count; i++)
        if (d->listing.files[i].is_wanted) HY_TRY(fetch(d, &d->listing.files[i]));
    tell(d, true);
    snprintf(out->folder, sizeof out->folder, "%s", d->folder);
    return d->is_cache ? publish(d, out->folder) : HY_OK;
}

static hy_status run(download *d, const char *folder, hy_downloaded *out) {
    HY_TRY(choose_endpoint(d));
    HY_TRY(find_token(d));
    HY_TRY(hy_http_open(&d->http));
    HY_TRY(get_listing(d));
    d->is_cache = !folder || !*folder;
    if (d->is_cache)
        HY_TRY(hy_hf_cache_folder(d->name, d->folder));
    else
        HY_TRY(hy_path_join(d->folder, sizeof d->folder, "", folder));
    hy_lock *lock;
    HY_TRY(hy_dir_make(d->folder));
    HY_TRY(hy_lock_take(d->folder, &lock));
    hy_status status = fetch_all(d, out);
    hy_lock_release(lock);
    snprintf(out->commit, sizeof out->commit, "%s", d->listing.commit);
    out->fetched = d->fetched;
    return status;
}

hy_status hy_download_sized(const char *name, const char *folder, const hy_observer *observer,
                            hy_downloaded *out, size_t size) {
    static const hy_observer nobody;
    hy_downloaded result = {0};
    download *d = calloc(1, sizeof *d);
    if (!d) return hy_fail(HY_ERR_MEMORY, "not enough memory for a download");
    d->observer = observer ? observer : &nobody;
    hy_status status = read_name(d, name);
    if (status == HY_OK) status = run(d, folder, &result);
    hy_copy_sized(out, size, &result, sizeof result);
    hy_hub_listing_free(&d->listing);
    hy_http_close(d->http);
    free(d);
    return status;
}

hy_status hy_downloaded_json_sized(const hy_downloaded *downloaded, size_t size, char **out) {
    hy_text text = {0};
    hy_json_writer w;
    hy_downloaded d = {0};
    hy_copy_sized(&d, sizeof d, downloaded, size);
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    hy_json_put_string(&w, "folder", d.folder);
    hy_json_put_string(&w, "commit", d.commit);
    hy_json_put_int(&w, "files", d.files);
    hy_json_put_int(&w, "bytes", (int64_t)d.bytes);
    hy_json_put_int(&w, "fetched", (int64_t)d.fetched);
    hy_json_close_object(&w);
    hy_text_add(&text, "\n");
    return hy_text_take(&text, out);
}
