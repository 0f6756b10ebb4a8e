/* wire.c: encodes and decodes messages of the control channel. See wire.h. */
#include "comm/wire.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(hy_wire_head) == 24, "the head has no holes");

bool hy_wire_reserve(hy_wire_buffer *buffer, size_t more) {
    if (buffer->begin == buffer->end) buffer->begin = buffer->end = 0;
    if (buffer->room - buffer->end >= more) return true;
    size_t used = buffer->end - buffer->begin;
    if (buffer->begin > 0) memmove(buffer->data, buffer->data + buffer->begin, used);
    buffer->begin = 0;
    buffer->end = used;
    if (buffer->room - used >= more) return true;
    size_t room = 2 * (used + more);
    uint8_t *data = realloc(buffer->data, room);
    if (!data) return false;
    buffer->data = data;
    buffer->room = room;
    return true;
}

bool hy_wire_add(hy_wire_buffer *buffer, const hy_wire_head *head, const void *data) {
    if (!hy_wire_reserve(buffer, sizeof *head + head->size)) return false;
    memcpy(buffer->data + buffer->end, head, sizeof *head);
    if (head->size) memcpy(buffer->data + buffer->end + sizeof *head, data, head->size);
    buffer->end += sizeof *head + head->size;
    return true;
}

void hy_wire_free(hy_wire_buffer *buffer) {
    free(buffer->data);
    *buffer = (hy_wire_buffer){0};
}

hy_wire_found hy_wire_take(hy_wire_buffer *buffer, hy_wire_message *out) {
    size_t there = buffer->end - buffer->begin;
    if (there < sizeof out->head) return HY_WIRE_NONE;
    memcpy(&out->head, buffer->data + buffer->begin, sizeof out->head);
    bool is_ours = out->head.magic == HY_WIRE_MAGIC && out->head.kind >= HY_WIRE_GREETING &&
                   out->head.kind < HY_WIRE_KINDS && out->head.size <= HY_WIRE_MOST;
    if (!is_ours) return HY_WIRE_NONSENSE;
    if (there - sizeof out->head < out->head.size) return HY_WIRE_NONE;
    out->data = buffer->data + buffer->begin + sizeof out->head;
    buffer->begin += sizeof out->head + out->head.size;
    return HY_WIRE_ONE;
}
