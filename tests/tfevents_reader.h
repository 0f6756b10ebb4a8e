/* tfevents_reader.h: event files read back by the rules of their format, and by nothing of ours.
 *
 * Lengths and both checksums are verified bit by bit with a plain CRC; every field that is not
 * known is an error, so that nothing can be written that was not meant. */
#ifndef HY_TESTS_TFEVENTS_READER_H
#define HY_TESTS_TFEVENTS_READER_H

#include "harness.h"

#define READ_EVENTS 4096
#define READ_VALUES 48

typedef struct read_value {
    char tag[48];
    float number;
    char *text; /* NULL: a number */
} read_value;

typedef struct read_event {
    double time;
    int64_t step;
    char version[32];
    int session; /* status; 0: none */
    int count;
    read_value values[READ_VALUES];
} read_event;

typedef struct read_file {
    int count;
    size_t left; /* bytes after the last whole record */
    read_event *events;
} read_file;

typedef struct read_bytes {
    const uint8_t *at, *end;
} read_bytes;

static inline uint32_t plain_crc(const uint8_t *data, size_t size) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < size * 8; i++) {
        uint32_t bit = (crc ^ data[i / 8] >> i % 8) & 1;
        crc = crc >> 1 ^ (bit ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static inline uint64_t read_little(const uint8_t *at, int size) {
    uint64_t value = 0;
    for (int i = size; i-- > 0;) value = value << 8 | at[i];
    return value;
}

static inline uint64_t read_varint(read_bytes *in) {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        ck_assert(in->at < in->end);
        uint8_t byte = *in->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
    }
    ck_abort_msg("a number without end");
    return 0;
}

static inline uint64_t read_fixed(read_bytes *in, int size) {
    ck_assert(in->end - in->at >= size);
    in->at += size;
    return read_little(in->at - size, size);
}

static inline read_bytes read_message(read_bytes *in) {
    uint64_t size = read_varint(in);
    ck_assert_uint_le(size, (uint64_t)(in->end - in->at));
    read_bytes out = {in->at, in->at + size};
    in->at += size;
    return out;
}

static inline void read_string(read_bytes *in, char *out, size_t size) {
    read_bytes bytes = read_message(in);
    ck_assert_uint_lt((size_t)(bytes.end - bytes.at), size);
    memcpy(out, bytes.at, (size_t)(bytes.end - bytes.at));
    out[bytes.end - bytes.at] = 0;
}

/* DT_STRING, no dimensions, one string. */
static inline char *read_text_tensor(read_bytes in) {
    char *text = NULL;
    while (in.at < in.end) {
        uint64_t key = read_varint(&in);
        if (key == (1 << 3)) {
            ck_assert_uint_eq(read_varint(&in), 7);
        } else if (key == (2 << 3 | 2)) {
            read_bytes shape = read_message(&in);
            ck_assert(shape.at == shape.end);
        } else {
            ck_assert_uint_eq(key, 8 << 3 | 2);
            ck_assert_ptr_null(text);
            read_bytes bytes = read_message(&in);
            text = strndup((const char *)bytes.at, (size_t)(bytes.end - bytes.at));
        }
    }
    return text;
}

static inline void check_text_metadata(read_bytes in) {
    static const uint8_t expected[] = {1 << 3 | 2, 6, 1 << 3 | 2, 4, 't', 'e', 'x', 't', 4 << 3, 2};
    ck_assert_uint_eq((size_t)(in.end - in.at), sizeof expected);
    ck_assert_mem_eq(in.at, expected, sizeof expected);
}

static inline void read_value_of(read_bytes in, read_value *out) {
    while (in.at < in.end) {
        uint64_t key = read_varint(&in);
        if (key == (1 << 3 | 2)) {
            read_string(&in, out->tag, sizeof out->tag);
        } else if (key == (2 << 3 | 5)) {
            uint32_t bits = (uint32_t)read_fixed(&in, 4);
            memcpy(&out->number, &bits, sizeof bits);
        } else if (key == (8 << 3 | 2)) {
            out->text = read_text_tensor(read_message(&in));
        } else {
            ck_assert_uint_eq(key, 9 << 3 | 2);
            check_text_metadata(read_message(&in));
        }
    }
}

static inline void read_summary(read_bytes in, read_event *out) {
    while (in.at < in.end) {
        ck_assert_uint_eq(read_varint(&in), 1 << 3 | 2);
        ck_assert_int_lt(out->count, READ_VALUES);
        read_value_of(read_message(&in), &out->values[out->count++]);
    }
}

static inline void read_session(read_bytes in, read_event *out) {
    ck_assert_uint_eq(read_varint(&in), 1 << 3);
    out->session = (int)read_varint(&in);
    ck_assert(in.at == in.end);
}

static inline void read_event_of(read_bytes in, read_event *out) {
    while (in.at < in.end) {
        uint64_t bits, key = read_varint(&in);
        switch (key) {
        case 1 << 3 | 1:
            bits = read_fixed(&in, 8);
            memcpy(&out->time, &bits, sizeof bits);
            break;
        case 2 << 3: out->step = (int64_t)read_varint(&in); break;
        case 3 << 3 | 2: read_string(&in, out->version, sizeof out->version); break;
        case 5 << 3 | 2: read_summary(read_message(&in), out); break;
        case 7 << 3 | 2: read_session(read_message(&in), out); break;
        default: ck_abort_msg("field %d of an event", (int)(key >> 3));
        }
    }
}

/* The records that are whole; one whose checksum is wrong fails the test. */
static inline read_file read_records(const uint8_t *data, size_t size) {
    read_file file = {.left = size, .events = calloc(READ_EVENTS, sizeof *file.events)};
    ck_assert_ptr_nonnull(file.events);
    while (file.left >= 16) {
        const uint8_t *at = data + size - file.left;
        uint64_t length = read_little(at, 8);
        ck_assert_uint_eq(read_little(at + 8, 4), plain_crc(at, 8));
        if (length + 16 > file.left) break;
        ck_assert_uint_eq(read_little(at + 12 + length, 4), plain_crc(at + 12, length));
        ck_assert_int_lt(file.count, READ_EVENTS);
        read_event_of((read_bytes){at + 12, at + 12 + length}, &file.events[file.count++]);
        file.left -= length + 16;
    }
    return file;
}

static inline read_file read_event_file(const char *path) {
    char *data;
    size_t size;
    must(hy_file_read(path, &data, &size));
    read_file file = read_records((const uint8_t *)data, size);
    free(data);
    return file;
}

static inline void forget_file(read_file *file) {
    for (int i = 0; i < file->count; i++) {
        for (int j = 0; j < file->events[i].count; j++) free(file->events[i].values[j].text);
    }
    free(file->events);
}

static inline const read_value *value_of(const read_event *event, const char *tag) {
    for (int i = 0; i < event->count; i++) {
        if (strcmp(event->values[i].tag, tag) == 0) return &event->values[i];
    }
    return NULL;
}

#endif
