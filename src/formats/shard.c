/* shard.c: token files. See shard.h for the two formats.
 *
 * An open shard has exactly the bytes that its header says. Other processes may change it while
 * it is read: base/shared_file.h. Tokens start at byte 1024. */
#include "formats/shard.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/shared_file.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token files are little-endian and read as they are"
#endif

typedef unsigned long long ull; /* what %llu prints */

#define HEADER_BYTES 1024
#define OUR_MAGIC "HYTOKENS"
#define OUR_VERSION 1
#define LLMC_MAGIC 20240520u
#define LLMC_VERSION 1

/* Our header, as stored in the file. */
typedef struct header {
    char magic[8];
    uint32_t version, bytes_per_token;
    uint64_t count;
    uint32_t vocab;
    uint8_t zeros[HEADER_BYTES - 28];
} header;
_Static_assert(sizeof(header) == HEADER_BYTES, "the header fills its place exactly");

struct hy_shard {
    hy_shared_file *file;
    uint64_t count;
    uint32_t vocab;
    int bytes_per_token;
};

static uint32_t read_u32(const uint8_t *p) {
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

bool hy_shard_has_magic(const char *path) {
    hy_reader *reader;
    if (hy_reader_open(path, &reader) != HY_OK) return false;
    uint8_t first[8];
    bool is_shard = hy_reader_size(reader) >= sizeof first &&
                    hy_reader_get(reader, 0, first, sizeof first) == HY_OK &&
                    (memcmp(first, OUR_MAGIC, 8) == 0 || read_u32(first) == LLMC_MAGIC);
    hy_reader_close(reader);
    return is_shard;
}

/* ---- opening --------------------------------------------------------------------------------- */

static hy_status read_our_header(hy_shard *shard, const uint8_t *data) {
    header h;
    memcpy(&h, data, sizeof h);
    HY_FAIL_IF(h.version != OUR_VERSION, HY_ERR_INPUT,
               "token file of version %u; only version %d is supported", h.version, OUR_VERSION);
    HY_FAIL_IF(h.bytes_per_token != 2 && h.bytes_per_token != 4, HY_ERR_INPUT,
               "%u bytes per token, expected 2 or 4", h.bytes_per_token);
    for (size_t i = 0; i < sizeof h.zeros; i++) {
        if (h.zeros[i] == 0) continue;
        return hy_fail(HY_ERR_INPUT, "header byte %zu is 0x%02X, expected 0",
                       HEADER_BYTES - sizeof h.zeros + i, h.zeros[i]);
    }
    shard->bytes_per_token = (int)h.bytes_per_token;
    shard->count = h.count;
    shard->vocab = h.vocab;
    return HY_OK;
}

static hy_status read_llmc_header(hy_shard *shard, const uint8_t *data) {
    int32_t version = (int32_t)read_u32(data + 4);
    int32_t count = (int32_t)read_u32(data + 8);
    HY_FAIL_IF(version != LLMC_VERSION, HY_ERR_INPUT,
               "llm.c token file of version %d; only version %d is supported", version,
               LLMC_VERSION);
    HY_FAIL_IF(count < 0, HY_ERR_INPUT, "the header counts %d tokens, expected 0 or more", count);
    shard->bytes_per_token = 2;
    shard->count = (uint64_t)count;
    return HY_OK;
}

static hy_status read_header(hy_shard *shard) {
    uint8_t data[HEADER_BYTES] = {0};
    uint64_t size = hy_shared_file_size(shard->file);
    if (size == 0) return hy_fail(HY_ERR_INPUT, "not a token file: it is empty");
    HY_TRY(hy_shared_file_read(shard->file, 0, data, size < sizeof data ? size : sizeof data));
    bool is_ours = size >= 8 && memcmp(data, OUR_MAGIC, 8) == 0;
    bool is_llmc = size >= 4 && read_u32(data) == LLMC_MAGIC;
    HY_FAIL_IF(!is_ours && !is_llmc, HY_ERR_INPUT,
               "not a token file: it begins neither with \"%s\" nor with %u (its first "
               "number is %u)",
               OUR_MAGIC, LLMC_MAGIC, size >= 4 ? read_u32(data) : 0);
    HY_FAIL_IF(size < HEADER_BYTES, HY_ERR_INPUT,
               "%llu bytes are too few for a token file's header of %d", (ull)size, HEADER_BYTES);
    HY_TRY(is_ours ? read_our_header(shard, data) : read_llmc_header(shard, data));
    /* The file must end exactly where the header says. */
    uint64_t held = size - HEADER_BYTES, needed;
    if (!__builtin_mul_overflow(shard->count, (uint64_t)shard->bytes_per_token, &needed) &&
        needed == held) {
        return HY_OK;
    }
    return hy_fail(HY_ERR_INPUT,
                   "the header counts %llu tokens of %d bytes, but %llu bytes follow it: %s",
                   (ull)shard->count, shard->bytes_per_token, (ull)held,
                   shard->count > held / (uint64_t)shard->bytes_per_token
                       ? "the file is cut off"
                       : "the file continues after the last token");
}

hy_status hy_shard_open(const char *path, hy_shard **out) {
    *out = NULL;
    hy_shard *shard = calloc(1, sizeof *shard);
    if (!shard) return hy_fail(HY_ERR_MEMORY, "out of memory opening %s", path);
    hy_status status = hy_shared_file_open(path, &shard->file);
    if (status == HY_OK) {
        status = read_header(shard);
        if (status == HY_ERR_INPUT) status = hy_fail_context(status, "%s", path);
    }
    if (status == HY_OK) *out = shard;
    if (status != HY_OK) hy_shard_close(shard);
    return status;
}

void hy_shard_close(hy_shard *shard) {
    if (!shard) return;
    hy_shared_file_close(shard->file);
    free(shard);
}

/* ---- reading --------------------------------------------------------------------------------- */

uint64_t hy_shard_count(const hy_shard *shard) { return shard->count; }

const char *hy_shard_path(const hy_shard *shard) { return hy_shared_file_path(shard->file); }

uint32_t hy_shard_vocab(const hy_shard *shard) { return shard->vocab; }

#define CHUNK 16384 /* tokens converted at a time */

hy_status hy_shard_read(const hy_shard *shard, uint64_t first, uint64_t count, int32_t *out) {
    assert(first <= shard->count && count <= shard->count - first);
    uint64_t size = (uint64_t)shard->bytes_per_token;
    if (size == 4) {
        /* Ids above int32 become INT32_MAX, which no vocabulary reaches: never a negative id. */
        HY_TRY(hy_shared_file_read(shard->file, HEADER_BYTES + 4 * first, out, 4 * count));
        for (uint64_t i = 0; i < count; i++) out[i] = out[i] < 0 ? INT32_MAX : out[i];
        return HY_OK;
    }
    uint16_t ids[CHUNK];
    for (uint64_t done = 0, here; done < count; done += here) {
        here = count - done < CHUNK ? count - done : CHUNK;
        uint64_t at = HEADER_BYTES + size * (first + done);
        HY_TRY(hy_shared_file_read(shard->file, at, ids, size * here));
        for (uint64_t i = 0; i < here; i++) out[done + i] = ids[i];
    }
    return HY_OK;
}

hy_status hy_shard_max_token(const hy_shard *shard, int32_t *out, uint64_t *where) {
    int32_t ids[CHUNK], largest = -1;
    uint64_t place = 0;
    for (uint64_t first = 0; first < shard->count; first += CHUNK) {
        uint64_t count = shard->count - first < CHUNK ? shard->count - first : CHUNK;
        HY_TRY(hy_shard_read(shard, first, count, ids));
        int32_t here = largest;
        for (uint64_t i = 0; i < count; i++) here = ids[i] > here ? ids[i] : here;
        if (here == largest) continue; /* the common case stays a plain maximum */
        uint64_t i = 0;
        while (ids[i] != here) i++;
        largest = here;
        place = first + i;
    }
    *out = largest;
    if (where) *where = place;
    return HY_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static hy_status put_tokens(hy_writer *w, const int32_t *tokens, uint64_t count, bool is_short) {
    uint16_t ids[CHUNK];
    if (!is_short) return hy_writer_put(w, tokens, (size_t)count * sizeof *tokens);
    for (uint64_t first = 0; first < count; first += CHUNK) {
        uint64_t here = count - first < CHUNK ? count - first : CHUNK;
        for (uint64_t i = 0; i < here; i++) ids[i] = (uint16_t)tokens[first + i];
        HY_TRY(hy_writer_put(w, ids, (size_t)here * sizeof ids[0]));
    }
    return HY_OK;
}

hy_status hy_shard_write(const char *path, const int32_t *tokens, uint64_t count, uint32_t vocab,
                         int bytes_per_token) {
    HY_FAIL_IF(bytes_per_token != 2 && bytes_per_token != 4, HY_ERR_INPUT,
               "%s: %d bytes per token, expected 2 or 4", path, bytes_per_token);
    int64_t limit = bytes_per_token == 2 ? UINT16_MAX : INT32_MAX;
    if (vocab > 0 && (int64_t)vocab - 1 < limit) limit = (int64_t)vocab - 1;
    for (uint64_t i = 0; i < count; i++) {
        if (tokens[i] >= 0 && tokens[i] <= limit) continue;
        return hy_fail(HY_ERR_INPUT, "%s: token %llu is %d, expected 0 to %lld", path, (ull)i,
                       tokens[i], (long long)limit);
    }
    header h = {.version = OUR_VERSION,
                .bytes_per_token = (uint32_t)bytes_per_token,
                .count = count,
                .vocab = vocab};
    memcpy(h.magic, OUR_MAGIC, sizeof h.magic);
    hy_writer *w;
    HY_TRY(hy_writer_replace(path, &w));
    hy_status status = hy_writer_put(w, &h, sizeof h);
    if (status == HY_OK) status = put_tokens(w, tokens, count, bytes_per_token == 2);
    if (status == HY_OK) return hy_writer_close(w, true);
    hy_writer_abandon(w);
    return status;
}
