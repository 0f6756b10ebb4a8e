/* wire.h: encodes messages of the control channel to bytes and decodes them.
 *
 * A message is a head of 24 bytes and up to HY_WIRE_MOST bytes after it. Numbers have the
 * machine's byte order: the first word detects a machine with another one. Readers detect an
 * invalid head before they store anything. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_WIRE_MAGIC 0x31545948u /* "HYT1" */
#define HY_WIRE_PROTOCOL 1
#define HY_WIRE_MOST ((uint32_t)64 << 20)

typedef enum hy_wire_kind {
    HY_WIRE_GREETING = 1, /* rank 0 sends first: nothing is ever sent to a foreign port */
    HY_WIRE_HELLO = 2,
    HY_WIRE_ROSTER = 3,
    HY_WIRE_BEAT = 4,
    HY_WIRE_CALL = 5,
    HY_WIRE_RESULT = 6,
    HY_WIRE_FAILURE = 7,
    HY_WIRE_BYE = 8,
    HY_WIRE_KINDS = 9
} hy_wire_kind;

typedef struct hy_wire_head {
    uint32_t magic;
    uint16_t kind;
    uint16_t what;   /* CALL, RESULT: which call; FAILURE: hy_status */
    uint32_t rank;   /* FAILURE: the rank that failed */
    uint32_t size;   /* bytes after the head */
    uint64_t number; /* CALL, RESULT: number of the call; GREETING: the job */
} hy_wire_head;

typedef struct hy_wire_message {
    hy_wire_head head;
    const uint8_t *data;
} hy_wire_message;

/* Bytes that wait to be sent or decoded: data[begin .. end). */
typedef struct hy_wire_buffer {
    uint8_t *data;
    size_t begin, end, room;
} hy_wire_buffer;

/* Appends a message. false: no memory. */
bool hy_wire_add(hy_wire_buffer *buffer, const hy_wire_head *head, const void *data);
/* Makes room for `more` bytes at the end. false: no memory. */
bool hy_wire_reserve(hy_wire_buffer *buffer, size_t more);
void hy_wire_free(hy_wire_buffer *buffer);

typedef enum hy_wire_found {
    HY_WIRE_NONE = 0, /* more bytes are needed */
    HY_WIRE_ONE = 1,
    HY_WIRE_NONSENSE = 2 /* the bytes are not our protocol */
} hy_wire_found;

/* Removes the first message. Its data stay valid until the buffer is written again. */
hy_wire_found hy_wire_take(hy_wire_buffer *buffer, hy_wire_message *out);
