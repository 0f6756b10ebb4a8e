/* control_calls.c: calls that all ranks make together: rank 0 collects and answers. See control.h.
 *
 * A rank waits for the answer to a call before it makes the next, so rank 0 holds at most one
 * arrival per rank. */
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "comm/control_parts.h"

/* ---- messages -------------------------------------------------------------------------------- */

typedef struct call_name {
    char text[96];
} call_name;

/* "gather 7 (8 bytes)" */
static call_name name_call(const call_place *p) {
    call_name out;
    unsigned long long number = p->number, bytes = p->bytes;
    if (p->kind == CALL_BARRIER)
        snprintf(out.text, sizeof out.text, "barrier %llu", number);
    else if (p->kind == CALL_GATHER)
        snprintf(out.text, sizeof out.text, "gather %llu (%llu bytes)", number, bytes);
    else
        snprintf(out.text, sizeof out.text, "share %llu (%llu bytes from rank %d)", number, bytes,
                 p->root);
    return out;
}

/* ---- rank 0 collects ------------------------------------------------------------------------- */

/* The number of bytes that this rank contributes to a call. */
static size_t contributed(const call_place *p, int32_t rank) {
    bool has_part = p->kind == CALL_GATHER || (p->kind == CALL_SHARE && p->root == rank);
    return has_part ? (size_t)p->bytes : 0;
}

static size_t answer_bytes(const hy_control *c, const call_place *p) {
    size_t parts = p->kind == CALL_GATHER ? (size_t)c->ranks.count : p->kind == CALL_SHARE;
    return parts * (size_t)p->bytes;
}

static void finish_call(hy_control *c) {
    const call_place place = c->arrivals[0].place;
    size_t size = answer_bytes(c, &place), used = 0;
    if (hy_array_reserve(&c->answer, &c->answer_room, size, 1, "an answer") != HY_OK) {
        hy_control_record(c, HY_ERR_MEMORY, 0,
                          "rank 0: not enough memory for the answer of a call");
        return;
    }
    for (int32_t r = 0; r < c->ranks.count; r++) {
        size_t part = contributed(&place, r);
        if (part) memcpy(c->answer + used, c->arrivals[r].data, part);
        used += part;
        c->arrivals[r].place.kind = 0;
    }
    hy_wire_head head = {.kind = HY_WIRE_RESULT,
                         .what = (uint16_t)place.kind,
                         .size = (uint32_t)size,
                         .number = place.number};
    for (int32_t r = 1; r < c->ranks.count; r++) hy_line_send(c, r, &head, c->answer);
    c->answered = place.number;
    c->answer_size = size;
    pthread_cond_broadcast(&c->is_changed);
}

/* Is `rank` at the same call as the other waiting ranks, and has no rank ended meanwhile? */
static bool is_at_same_call(hy_control *c, int32_t rank) {
    const call_place *place = &c->arrivals[rank].place;
    for (int32_t r = 0; r < c->ranks.count; r++) {
        const call_place *other = &c->arrivals[r].place;
        char message[512];
        if (other->kind == 0 || memcmp(other, place, sizeof *place) == 0) continue;
        snprintf(message, sizeof message,
                 "rank %d is at %s, but rank %d is at %s: all ranks must make the same calls", rank,
                 name_call(place).text, r, name_call(other).text);
        hy_control_record(c, HY_ERR_INTERNAL, rank, message);
        return false;
    }
    for (int32_t r = 1; r < c->ranks.count; r++) {
        if (c->lines[r].state == LINE_LEFT) hy_control_left(c, r);
    }
    return !c->has_failed;
}

/* On rank 0: `rank` has reached a call. The last rank completes it. */
static void arrive(hy_control *c, int32_t rank, const call_place *place, const void *data,
                   size_t size) {
    arrival *a = &c->arrivals[rank];
    if (c->has_failed) return;
    if (hy_array_reserve(&a->data, &a->room, size, 1, "a call") != HY_OK) {
        hy_control_record(c, HY_ERR_MEMORY, 0, "rank 0: not enough memory for a call");
        return;
    }
    if (size) memcpy(a->data, data, size);
    a->place = *place;
    if (!is_at_same_call(c, rank)) return;
    for (int32_t r = 0; r < c->ranks.count; r++) {
        if (c->arrivals[r].place.kind == 0) return;
    }
    finish_call(c);
}

void hy_control_arrive(hy_control *c, int32_t rank, const hy_wire_message *m) {
    call_place place;
    bool is_call = m->head.size >= sizeof place;
    if (is_call) {
        memcpy(&place, m->data, sizeof place);
        is_call = place.kind >= CALL_BARRIER && place.kind <= CALL_SHARE &&
                  place.bytes <= HY_WIRE_MOST && c->arrivals[rank].place.kind == 0 &&
                  m->head.size - sizeof place == contributed(&place, rank);
    }
    if (is_call)
        arrive(c, rank, &place, m->data + sizeof place, m->head.size - sizeof place);
    else
        hy_control_lose(c, rank, "sent an invalid control message");
}

void hy_control_left(hy_control *c, int32_t rank) {
    char message[512];
    for (int32_t r = 0; r < c->ranks.count && !c->has_failed; r++) {
        if (c->arrivals[r].place.kind == 0) continue;
        snprintf(message, sizeof message, "%s has ended, while rank %d is at %s",
                 hy_control_name(c, rank).text, r, name_call(&c->arrivals[r].place).text);
        hy_control_record(c, HY_ERR_INTERNAL, rank, message);
    }
}

void hy_control_answer(hy_control *c, const hy_wire_message *m) {
    if (hy_array_reserve(&c->answer, &c->answer_room, m->head.size, 1, "an answer") != HY_OK) {
        hy_control_record(c, HY_ERR_MEMORY, c->ranks.rank,
                          "not enough memory for the answer of a call");
        return;
    }
    if (m->head.size) memcpy(c->answer, m->data, m->head.size);
    c->answered = m->head.number;
    c->answer_size = m->head.size;
    pthread_cond_broadcast(&c->is_changed);
}

/* ---- the owner's side ------------------------------------------------------------------------ */

static hy_status send_call(hy_control *c, const call_place *place, const void *data, size_t size) {
    HY_FAIL_IF(c->lines[0].state != LINE_OPEN, HY_ERR_STATE, "rank 0 has ended; rank %d is at %s",
               c->ranks.rank, name_call(place).text);
    HY_TRY(hy_array_reserve(&c->call, &c->call_room, sizeof *place + size, 1, "a control call"));
    memcpy(c->call, place, sizeof *place);
    if (size) memcpy(c->call + sizeof *place, data, size);
    hy_wire_head head = {.kind = HY_WIRE_CALL,
                         .what = (uint16_t)place->kind,
                         .size = (uint32_t)(sizeof *place + size),
                         .number = place->number};
    hy_line_send(c, 0, &head, c->call);
    return HY_OK;
}

/* Makes the call and waits until all ranks have made it. */
static hy_status make_call(hy_control *c, call_place place, const void *mine, void *all) {
    int32_t rank = c->ranks.rank;
    size_t size = answer_bytes(c, &place);
    HY_FAIL_IF(size + sizeof place > HY_WIRE_MOST, HY_ERR_INPUT,
               "%zu bytes in one call of the control channel: expected at most %u", size,
               HY_WIRE_MOST - (uint32_t)sizeof place);
    pthread_mutex_lock(&c->lock);
    place.number = ++c->number;
    hy_status status = HY_OK;
    if (!c->has_failed && rank == 0)
        arrive(c, 0, &place, mine, contributed(&place, 0));
    else if (!c->has_failed)
        status = send_call(c, &place, mine, contributed(&place, rank));
    while (status == HY_OK && !c->has_failed && c->answered != place.number)
        pthread_cond_wait(&c->is_changed, &c->lock);
    if (status == HY_OK && c->answered != place.number) status = hy_error_restore(&c->failure);
    if (status == HY_OK && c->answer_size != size)
        status = hy_fail(HY_ERR_INTERNAL, "rank 0 answered %zu bytes to %s", c->answer_size,
                         name_call(&place).text);
    if (status == HY_OK && size) memcpy(all, c->answer, size);
    pthread_mutex_unlock(&c->lock);
    return status;
}

hy_status hy_control_barrier(hy_control *c) {
    if (c->ranks.count == 1) return HY_OK;
    return make_call(c, (call_place){.kind = CALL_BARRIER}, NULL, NULL);
}

hy_status hy_control_gather_bytes(hy_control *c, const void *mine, size_t size, void *all) {
    if (c->ranks.count == 1) {
        if (size) memmove(all, mine, size);
        return HY_OK;
    }
    return make_call(c, (call_place){.kind = CALL_GATHER, .bytes = size}, mine, all);
}

hy_status hy_control_gather(hy_control *c, const double *mine, int32_t count, double *all) {
    return hy_control_gather_bytes(c, mine, (size_t)count * sizeof *mine, all);
}

hy_status hy_control_share(hy_control *c, void *data, size_t size, int32_t root) {
    HY_FAIL_IF(root < 0 || root >= c->ranks.count, HY_ERR_INPUT,
               "share from rank %d: expected 0 to %d", root, c->ranks.count - 1);
    if (c->ranks.count == 1) return HY_OK;
    return make_call(c, (call_place){.kind = CALL_SHARE, .bytes = size, .root = root}, data, data);
}
