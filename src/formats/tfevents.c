/* tfevents.c: writes TensorBoard's event files. See tfevents.h.
 *
 * A record is: length (u64), checksum of the length (u32), the bytes, checksum of the bytes
 * (u32), all little-endian. The bytes are a protocol buffer, `Event`, encoded by hand: only a
 * few of its fields are used, and their numbers never change. Nested messages are encoded first,
 * because their length precedes them. */
#include "formats/tfevents.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

#define PATH_SIZE 1200
#define NAME_BEGIN "events.out.tfevents."
#define HOST_SIZE 64

struct hy_tfevents {
    hy_writer *file;
    hy_text summary;       /* values of the next record */
    hy_text value, inside; /* one value, and a message inside it */
    hy_text event;
};

/* ---- checksums ------------------------------------------------------------------------------- */

/* For each half byte: the remainder by the reflected polynomial 0x82f63b78. */
static const uint32_t crc_of_half[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};

uint32_t hy_crc32c(const void *data, size_t size) {
    const uint8_t *bytes = data;
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        crc = crc >> 4 ^ crc_of_half[crc & 15];
        crc = crc >> 4 ^ crc_of_half[crc & 15];
    }
    return ~crc;
}

/* A checksum of bytes that contain checksums is weak, so they are rotated and offset before they
 * are stored. */
uint32_t hy_tfevents_mask(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; }

/* ---- protocol buffers ------------------------------------------------------------------------ */

enum { AS_VARINT = 0, AS_64_BITS = 1, AS_BYTES = 2, AS_32_BITS = 5 };

enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SESSION_STATUS = 1, SESSION_STARTS = 1 };
enum { SUMMARY_VALUE = 1 };
enum { VALUE_TAG = 1, VALUE_SIMPLE = 2, VALUE_TENSOR = 8, VALUE_METADATA = 9 };
enum { METADATA_PLUGIN = 1, METADATA_CLASS = 4, PLUGIN_NAME = 1, CLASS_TENSOR = 2 };
enum { TENSOR_TYPE = 1, TENSOR_SHAPE = 2, TENSOR_STRING = 8, TYPE_STRING = 7 };

static void put_varint(hy_text *to, uint64_t value) {
    uint8_t bytes[10];
    size_t size = 0;
    for (; value >= 0x80; value >>= 7) bytes[size++] = (uint8_t)(value | 0x80);
    bytes[size++] = (uint8_t)value;
    hy_text_add_bytes(to, bytes, size);
}

/* The lowest `size` bytes, the lowest first, on every machine. */
static void store_little(uint8_t *to, uint64_t value, size_t size) {
    for (size_t i = 0; i < size; i++) to[i] = (uint8_t)(value >> 8 * i);
}

/* A field begins with its number and the encoding of its value. */
static void put_int(hy_text *to, unsigned field, int64_t value) {
    put_varint(to, field << 3 | AS_VARINT);
    put_varint(to, (uint64_t)value);
}

/* The bits of a double, or of a float: 8 bytes or 4. */
static void put_bits(hy_text *to, unsigned field, uint64_t bits, size_t size) {
    uint8_t bytes[8];
    store_little(bytes, bits, size);
    put_varint(to, field << 3 | (size == 8 ? AS_64_BITS : AS_32_BITS));
    hy_text_add_bytes(to, bytes, size);
}

static void put_bytes(hy_text *to, unsigned field, const void *bytes, size_t size) {
    put_varint(to, field << 3 | AS_BYTES);
    put_varint(to, size);
    hy_text_add_bytes(to, bytes, size);
}

static void put_message(hy_text *to, unsigned field, const hy_text *message) {
    put_bytes(to, field, message->data, message->size);
}

/* ---- records --------------------------------------------------------------------------------- */

static hy_status check(const hy_tfevents *e) {
    const hy_text *texts[] = {&e->summary, &e->value, &e->inside, &e->event};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) HY_TRY(hy_text_status(texts[i]));
    return HY_OK;
}

static void begin_event(hy_tfevents *e, double unix_time) {
    uint64_t bits;
    memcpy(&bits, &unix_time, sizeof bits);
    hy_text_clear(&e->event);
    put_bits(&e->event, EVENT_TIME, bits, sizeof bits);
}

static hy_status write_event(hy_tfevents *e) {
    uint8_t head[12], tail[4];
    HY_TRY(check(e));
    store_little(head, e->event.size, 8);
    store_little(head + 8, hy_tfevents_mask(hy_crc32c(head, 8)), 4);
    store_little(tail, hy_tfevents_mask(hy_crc32c(e->event.data, e->event.size)), 4);
    HY_TRY(hy_writer_put(e->file, head, sizeof head));
    HY_TRY(hy_writer_put(e->file, e->event.data, e->event.size));
    return hy_writer_put(e->file, tail, sizeof tail);
}

void hy_tfevents_add_scalar(hy_tfevents *e, const char *tag, double value) {
    float simple = (float)value;
    uint32_t bits;
    memcpy(&bits, &simple, sizeof bits);
    hy_text_clear(&e->value);
    put_bytes(&e->value, VALUE_TAG, tag, strlen(tag));
    put_bits(&e->value, VALUE_SIMPLE, bits, sizeof bits);
    put_message(&e->summary, SUMMARY_VALUE, &e->value);
}

void hy_tfevents_add_text(hy_tfevents *e, const char *tag, const char *text) {
    hy_text_clear(&e->value);
    put_bytes(&e->value, VALUE_TAG, tag, strlen(tag));
    /* A tensor without dimensions that holds one string. */
    hy_text *tensor = &e->inside, *string = &e->event;
    hy_text_clear(tensor);
    hy_text_clear(string);
    /* Four leading spaces give a fixed-width font: TensorBoard renders texts as Markdown. */
    for (const char *line = text; *line;) {
        size_t size = strcspn(line, "\n");
        hy_text_add(string, "    ");
        hy_text_add_bytes(string, line, size);
        hy_text_add(string, "\n");
        line += size + (line[size] == '\n');
    }
    put_int(tensor, TENSOR_TYPE, TYPE_STRING);
    put_bytes(tensor, TENSOR_SHAPE, "", 0);
    put_message(tensor, TENSOR_STRING, string);
    put_message(&e->value, VALUE_TENSOR, tensor);
    hy_text *metadata = &e->inside, *plugin = &e->event;
    hy_text_clear(metadata);
    hy_text_clear(plugin);
    put_bytes(plugin, PLUGIN_NAME, "text", 4);
    put_message(metadata, METADATA_PLUGIN, plugin);
    put_int(metadata, METADATA_CLASS, CLASS_TENSOR);
    put_message(&e->value, VALUE_METADATA, metadata);
    put_message(&e->summary, SUMMARY_VALUE, &e->value);
}

hy_status hy_tfevents_put(hy_tfevents *e, int64_t step, double unix_time) {
    if (e->summary.size == 0) return check(e);
    begin_event(e, unix_time);
    put_int(&e->event, EVENT_STEP, step);
    put_message(&e->event, EVENT_SUMMARY, &e->summary);
    hy_text_clear(&e->summary);
    return write_event(e);
}

hy_status hy_tfevents_begin(hy_tfevents *e, int64_t step, double unix_time) {
    hy_text_clear(&e->inside);
    put_int(&e->inside, SESSION_STATUS, SESSION_STARTS);
    begin_event(e, unix_time);
    put_int(&e->event, EVENT_STEP, step);
    put_message(&e->event, EVENT_SESSION, &e->inside);
    return write_event(e);
}

/* ---- the file -------------------------------------------------------------------------------- */

static hy_status open_file(const char *folder, hy_writer **out) {
    char host[HOST_SIZE], name[HOST_SIZE + 64], path[PATH_SIZE], **names;
    size_t count;
    HY_FAIL_IF(hy_path_is_link(folder), HY_ERR_INPUT,
               "cannot write to %s: it is a link to another folder", folder);
    HY_TRY(hy_dir_make(folder));
    HY_TRY(hy_dir_list(folder, &names, &count));
    /* Later than the newest file there: the clock may have been set back. */
    long long time = (long long)hy_clock_unix();
    for (size_t i = 0; i < count; i++) {
        if (strncmp(names[i], NAME_BEGIN, strlen(NAME_BEGIN)) != 0) continue;
        long long other = strtoll(names[i] + strlen(NAME_BEGIN), NULL, 10);
        if (time <= other) time = other + 1;
    }
    hy_dir_list_free(names, count);
    /* The machine's name, with characters that every file system supports. */
    if (gethostname(host, HOST_SIZE) != 0 || !host[0]) snprintf(host, HOST_SIZE, "localhost");
    host[HOST_SIZE - 1] = 0;
    for (char *c = host; *c; c++) {
        if (!isalnum((unsigned char)*c) && *c != '-' && *c != '.') *c = '_';
    }
    snprintf(name, sizeof name, NAME_BEGIN "%010lld.%s", time, host);
    HY_TRY(hy_path_join(path, sizeof path, folder, name));
    return hy_writer_create(path, out);
}

static void free_events(hy_tfevents *e) {
    hy_text *texts[] = {&e->summary, &e->value, &e->inside, &e->event};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) hy_text_free(texts[i]);
    free(e);
}

hy_status hy_tfevents_open(const char *folder, hy_tfevents **out) {
    *out = NULL;
    hy_tfevents *e = calloc(1, sizeof *e);
    if (!e) return hy_fail(HY_ERR_MEMORY, "not enough memory for the event file in %s", folder);
    static const char version[] = "brain.Event:2"; /* the first record: the kind of file */
    begin_event(e, hy_clock_unix());
    put_bytes(&e->event, EVENT_VERSION, version, sizeof version - 1);
    hy_status status = open_file(folder, &e->file);
    if (status == HY_OK) status = write_event(e);
    if (status == HY_OK) status = hy_writer_flush(e->file);
    if (status == HY_OK) *out = e;
    if (status != HY_OK) hy_tfevents_abandon(e);
    return status;
}

hy_status hy_tfevents_flush(hy_tfevents *e) { return hy_writer_flush(e->file); }

hy_status hy_tfevents_close(hy_tfevents *e, bool sync) {
    if (!e) return HY_OK;
    hy_status status = hy_writer_close(e->file, sync);
    free_events(e);
    return status;
}

void hy_tfevents_abandon(hy_tfevents *e) {
    if (!e) return;
    hy_writer_abandon(e->file);
    free_events(e);
}
