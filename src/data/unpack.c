/* unpack.c: decompresses gzip and zstd with the libraries of the system. See unpack.h.
 *
 * The interfaces of both libraries are small and stable, so the functions used are declared here
 * and looked up at run time. A file may hold several members (gzip) or frames (zstd), as parallel
 * compressors and `cat` write them; zeros after the last member are padding. */
#include "data/unpack.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

#define BUFFER_BYTES ((size_t)64 << 10)
#define MOST_RATIO 256
#define RATIO_FROM ((uint64_t)64 << 20)

/* ---- the libraries --------------------------------------------------------------------------- */

/* The z_stream of zlib. */
typedef struct zlib_stream {
    const uint8_t *next_in;
    unsigned avail_in;
    unsigned long total_in;
    uint8_t *next_out;
    unsigned avail_out;
    unsigned long total_out;
    const char *msg;
    void *state, *zalloc, *zfree, *opaque;
    int data_type;
    unsigned long adler, reserved;
} zlib_stream;

/* Files with a long window (zstd --long=31, as in large dumps) are accepted. The memory of a window
 * is only touched as far as there is text, which MOST_RATIO limits. */
enum { ZSTD_WINDOW_LOG_MAX = 100, LONGEST_WINDOW = 31 };

enum { ZLIB_OK = 0, ZLIB_STREAM_END = 1, ZLIB_MEM_ERROR = -4, ZLIB_BUF_ERROR = -5 };
#define ZLIB_GZIP_WINDOW (15 + 16) /* the largest window, with the header and checksum of gzip */

typedef struct zstd_in {
    const void *src;
    size_t size, pos;
} zstd_in;

typedef struct zstd_out {
    void *dst;
    size_t size, pos;
} zstd_out;

typedef struct libraries {
    void *handle;
    int (*inflate_init)(zlib_stream *, int, const char *, int);
    int (*inflate)(zlib_stream *, int);
    int (*inflate_reset)(zlib_stream *);
    int (*inflate_end)(zlib_stream *);
    void *(*zstd_create)(void);
    size_t (*zstd_free)(void *);
    size_t (*zstd_set)(void *, int, int);
    size_t (*zstd_decompress)(void *, zstd_out *, zstd_in *);
    unsigned (*zstd_is_error)(size_t);
    const char *(*zstd_error)(size_t);
} libraries;

struct hy_unpacker {
    char *path;
    hy_packer packer;
    libraries lib;
    hy_reader *file;
    uint64_t size, read, made; /* size of the file; bytes of it read; bytes decompressed */
    uint8_t *buffer;
    size_t at, filled; /* position and end in the buffer */
    zlib_stream gzip;
    void *zstd;
    bool has_gzip;  /* its stream must be ended */
    bool is_inside; /* a member or frame has begun and not ended */
};

static const struct {
    const char *name, *file, *package;
} packers[] = {
    [HY_GZIP] = {"gzip", "libz.so.1", "zlib1g"}, [HY_ZSTD] = {"zstd", "libzstd.so.1", "libzstd1"}};

static bool find_functions(hy_packer packer, libraries *lib) {
    const struct {
        hy_packer packer;
        const char *name;
        void *slot;
    } wanted[] = {{HY_GZIP, "inflateInit2_", &lib->inflate_init},
                  {HY_GZIP, "inflate", &lib->inflate},
                  {HY_GZIP, "inflateReset", &lib->inflate_reset},
                  {HY_GZIP, "inflateEnd", &lib->inflate_end},
                  {HY_ZSTD, "ZSTD_createDStream", &lib->zstd_create},
                  {HY_ZSTD, "ZSTD_freeDStream", &lib->zstd_free},
                  {HY_ZSTD, "ZSTD_DCtx_setParameter", &lib->zstd_set},
                  {HY_ZSTD, "ZSTD_decompressStream", &lib->zstd_decompress},
                  {HY_ZSTD, "ZSTD_isError", &lib->zstd_is_error},
                  {HY_ZSTD, "ZSTD_getErrorName", &lib->zstd_error}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (wanted[i].packer != packer) continue;
        void *found = dlsym(lib->handle, wanted[i].name);
        if (!found) return false;
        memcpy(wanted[i].slot, &found, sizeof found);
    }
    return true;
}

static hy_status open_library(hy_unpacker *u) {
    const char *file = packers[u->packer].file;
    u->lib.handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (u->lib.handle && find_functions(u->packer, &u->lib)) return HY_OK;
    const char *reason = u->lib.handle ? "it is too old" : dlerror();
    bool is_missing = !reason || strstr(reason, "No such file");
    HY_FAIL_IF(!is_missing, HY_ERR_IO, "cannot decompress %s: the library for %s does not load: %s",
               u->path, packers[u->packer].name, reason);
    return hy_fail(HY_ERR_INPUT,
                   "%s is compressed with %s, but the library %s is missing; install it (Debian "
                   "package %s) or decompress the file first",
                   u->path, packers[u->packer].name, file, packers[u->packer].package);
}

/* ---- opening --------------------------------------------------------------------------------- */

hy_packer hy_packer_of(const uint8_t *begin, size_t size) {
    static const uint8_t gzip[] = {0x1F, 0x8B, 0x08}, zstd[] = {0x28, 0xB5, 0x2F, 0xFD};
    static const uint8_t skipped[] = {0x2A, 0x4D, 0x18}; /* 0x184D2A50 to 5F: a skippable frame */
    if (size >= sizeof gzip && memcmp(begin, gzip, sizeof gzip) == 0) return HY_GZIP;
    if (size >= sizeof zstd && memcmp(begin, zstd, sizeof zstd) == 0) return HY_ZSTD;
    bool is_note = size > sizeof skipped && begin[0] >> 4 == 5;
    return is_note && memcmp(begin + 1, skipped, sizeof skipped) == 0 ? HY_ZSTD : HY_NOT_PACKED;
}

static hy_status open_stream(hy_unpacker *u, const char *path) {
    u->path = strdup(path);
    u->buffer = malloc(BUFFER_BYTES);
    HY_FAIL_IF(!u->path || !u->buffer, HY_ERR_MEMORY, "not enough memory to decompress %s", path);
    HY_TRY(open_library(u));
    HY_TRY(hy_reader_open(path, &u->file));
    u->size = hy_reader_size(u->file);
    if (u->packer == HY_GZIP) {
        int code = u->lib.inflate_init(&u->gzip, ZLIB_GZIP_WINDOW, "1.2.0", (int)sizeof u->gzip);
        u->has_gzip = code == ZLIB_OK;
        HY_FAIL_IF(code == ZLIB_MEM_ERROR, HY_ERR_MEMORY, "not enough memory to decompress %s",
                   path);
        HY_FAIL_IF(code != ZLIB_OK, HY_ERR_INTERNAL, "zlib does not start (code %d)", code);
    } else {
        u->zstd = u->lib.zstd_create();
        HY_FAIL_IF(!u->zstd, HY_ERR_MEMORY, "not enough memory to decompress %s", path);
        (void)u->lib.zstd_set(u->zstd, ZSTD_WINDOW_LOG_MAX, LONGEST_WINDOW);
    }
    return HY_OK;
}

hy_status hy_unpacker_open(const char *path, hy_packer packer, hy_unpacker **out) {
    *out = NULL;
    hy_unpacker *u = calloc(1, sizeof *u);
    if (!u) return hy_fail(HY_ERR_MEMORY, "not enough memory to decompress %s", path);
    u->packer = packer;
    hy_status status = open_stream(u, path);
    if (status == HY_OK)
        *out = u;
    else
        hy_unpacker_close(u);
    return status;
}

void hy_unpacker_close(hy_unpacker *u) {
    if (!u) return;
    if (u->has_gzip) u->lib.inflate_end(&u->gzip);
    if (u->zstd) u->lib.zstd_free(u->zstd);
    if (u->lib.handle) dlclose(u->lib.handle);
    hy_reader_close(u->file);
    free(u->buffer);
    free(u->path);
    free(u);
}

/* ---- reading --------------------------------------------------------------------------------- */

static hy_status fail_at(const hy_unpacker *u, const char *what) {
    uint64_t place = u->read - (u->filled - u->at);
    return hy_fail(HY_ERR_INPUT, "%s: at byte %llu of %llu: %s (%s)", u->path,
                   (unsigned long long)place, (unsigned long long)u->size, what,
                   packers[u->packer].name);
}

/* Calls the library once, from the buffer to dst; *got is the number of bytes written. */
static hy_status unpack_gzip(hy_unpacker *u, uint8_t *dst, size_t room, size_t *got) {
    zlib_stream *z = &u->gzip;
    *got = 0;
    if (!u->is_inside) {
        if (u->buffer[u->at] == 0 && u->made > 0) { /* padding */
            u->at++;
            return HY_OK;
        }
        u->is_inside = true;
        if (u->lib.inflate_reset(z) != ZLIB_OK) return fail_at(u, "zlib cannot restart");
    }
    z->next_in = u->buffer + u->at;
    z->avail_in = (unsigned)(u->filled - u->at);
    z->next_out = dst;
    z->avail_out = (unsigned)room;
    int code = u->lib.inflate(z, 0);
    u->at = u->filled - z->avail_in;
    *got = room - z->avail_out;
    if (code == ZLIB_STREAM_END) u->is_inside = false;
    if (code == ZLIB_OK || code == ZLIB_STREAM_END || code == ZLIB_BUF_ERROR) return HY_OK;
    HY_FAIL_IF(code == ZLIB_MEM_ERROR, HY_ERR_MEMORY, "not enough memory to decompress %s",
               u->path);
    return fail_at(u, z->msg ? z->msg : "damaged");
}

static hy_status unpack_zstd(hy_unpacker *u, uint8_t *dst, size_t room, size_t *got) {
    zstd_in in = {u->buffer, u->filled, u->at};
    zstd_out out = {dst, room, 0};
    size_t code = u->lib.zstd_decompress(u->zstd, &out, &in);
    u->at = in.pos;
    *got = out.pos;
    if (u->lib.zstd_is_error(code)) return fail_at(u, u->lib.zstd_error(code));
    u->is_inside = code != 0;
    return HY_OK;
}

hy_status hy_unpacker_read(hy_unpacker *u, void *dst, size_t room, size_t *got) {
    const size_t most = (size_t)1 << 30; /* zlib counts in 32 bits */
    *got = 0;
    while (*got < room) {
        size_t here, left = room - *got < most ? room - *got : most;
        uint8_t *to = (uint8_t *)dst + *got;
        if (u->at == u->filled) {
            uint64_t rest = u->size - u->read;
            u->filled = rest < BUFFER_BYTES ? (size_t)rest : BUFFER_BYTES;
            u->at = 0;
            HY_TRY(hy_reader_get(u->file, u->read, u->buffer, u->filled));
            u->read += u->filled;
        }
        bool is_end = u->filled == 0;
        if (is_end && !u->is_inside) return HY_OK;
        /* Take the bytes that the library still holds before reading more of the file. */
        HY_TRY(u->packer == HY_GZIP ? unpack_gzip(u, to, left, &here)
                                    : unpack_zstd(u, to, left, &here));
        if (is_end && here == 0 && u->is_inside) return fail_at(u, "the file ends too early");
        *got += here;
        u->made += here;
        HY_FAIL_IF(u->made > RATIO_FROM && u->made / MOST_RATIO > u->read, HY_ERR_INPUT,
                   "%s: %llu bytes decompress to more than %llu bytes, so this is not text",
                   u->path, (unsigned long long)u->read, (unsigned long long)u->made);
    }
    return HY_OK;
}

double hy_unpacker_share(const hy_unpacker *u) {
    uint64_t needed = u->read - (u->filled - u->at);
    return u->size ? (double)needed / (double)u->size : 1;
}
