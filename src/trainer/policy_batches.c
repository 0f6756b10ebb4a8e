/* policy_batches.c: see policy_batches.h. */
#include "trainer/policy_batches.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

_Static_assert(sizeof(hy_policy_token) == 4 * sizeof(float), "HY_POLICY_POSITION_BYTES");

struct hy_policy_batches {
    hy_backend *backend;
    int32_t seq;
    int64_t room, count;                    /* sequences; count: with documents */
    int32_t *used;                          /* (room) positions of each */
    void *pinned;                           /* the arrays: */
    int32_t *tokens, *targets, *doc_starts; /* (room, T) */
    hy_policy_token *policy;                /* (room, T) */
    float *losses;                          /* (room, T) */
};

hy_status hy_policy_batches_create(hy_backend *backend, int32_t seq, int64_t most,
                                   hy_policy_batches **out) {
    hy_policy_batches *b = calloc(1, sizeof *b);
    size_t count = (size_t)seq * (size_t)most * 2;
    *out = b;
    HY_FAIL_IF(!b, HY_ERR_MEMORY, "not enough memory for answers");
    b->backend = backend;
    b->seq = seq;
    b->room = 2 * most;
    b->used = calloc((size_t)b->room, sizeof *b->used);
    hy_status status =
        b->used ? backend->alloc(backend, HY_PINNED, (size_t)hy_policy_bytes(seq, most), &b->pinned)
                : hy_fail(HY_ERR_MEMORY, "not enough memory for answers");
    if (status != HY_OK) {
        hy_policy_batches_destroy(b);
        *out = NULL;
        return status;
    }
    b->policy = b->pinned;
    b->tokens = (int32_t *)(void *)(b->policy + count);
    b->targets = b->tokens + count;
    b->doc_starts = b->targets + count;
    b->losses = (float *)(void *)(b->doc_starts + count);
    return HY_OK;
}

void hy_policy_batches_destroy(hy_policy_batches *b) {
    if (!b) return;
    if (b->pinned) {
        uint64_t bytes = hy_policy_bytes(b->seq, b->room / 2);
        b->backend->release(b->backend, HY_PINNED, b->pinned, (size_t)bytes);
    }
    free(b->used);
    free(b);
}

/* As in packing: the rest of a sequence is token 0, does not count, and is a separate document. */
static void clear_rest(hy_policy_batches *b, int64_t sequence, int32_t from) {
    size_t at = (size_t)sequence * (size_t)b->seq;
    for (int32_t i = from; i < b->seq; i++) {
        b->tokens[at + (size_t)i] = 0;
        b->targets[at + (size_t)i] = -1;
        b->doc_starts[at + (size_t)i] = from;
        b->policy[at + (size_t)i] = (hy_policy_token){0};
    }
}

void hy_policy_batches_clear(hy_policy_batches *b) { b->count = 0; }

/* The first sequence with room for so many positions; a new one begins empty. */
static int64_t find_room(hy_policy_batches *b, int32_t positions) {
    int64_t i = 0;
    while (i < b->count && b->used[i] + positions > b->seq) i++;
    if (i == b->count) {
        b->used[b->count++] = 0;
        clear_rest(b, i, 0);
    }
    return i;
}

void hy_policy_batches_add(hy_policy_batches *b, const hy_policy_answer *a) {
    int32_t count = a->prompt_count + a->answer_count - 1; /* the last token is only a target */
    int64_t sequence = find_room(b, count);
    int32_t first = b->used[sequence];
    size_t at = (size_t)sequence * (size_t)b->seq + (size_t)first;
    for (int32_t i = 0; i < count; i++, at++) {
        int32_t of_answer = i - a->prompt_count; /* this token's place in the answer */
        int32_t next = of_answer + 1;            /* the target's */
        bool counts = next >= 0;
        b->tokens[at] = of_answer < 0 ? a->prompt[i] : a->answer[of_answer];
        b->targets[at] = counts ? a->answer[next] : -1;
        b->doc_starts[at] = first;
        b->policy[at] = counts ? (hy_policy_token){.advantage = a->advantage,
                                                   .share = a->share,
                                                   .sampled = a->sampled[next],
                                                   .old = NAN}
                               : (hy_policy_token){0};
    }
    b->used[sequence] = first + count;
    clear_rest(b, sequence, first + count);
}

int32_t hy_policy_batches_count(const hy_policy_batches *b, int32_t size) {
    return (int32_t)((b->count + size - 1) / size);
}

hy_batch hy_policy_batches_at(hy_policy_batches *b, int32_t i, int32_t size) {
    int64_t first = (int64_t)i * size;
    size_t at = (size_t)first * (size_t)b->seq;
    int64_t counted = 0;
    for (int64_t k = first > b->count ? first : b->count; k < first + size; k++)
        clear_rest(b, k, 0);
    for (size_t k = at; k < at + (size_t)size * (size_t)b->seq; k++) counted += b->targets[k] >= 0;
    return (hy_batch){.tokens = b->tokens + at,
                      .targets = b->targets + at,
                      .doc_starts = b->doc_starts + at,
                      .policy = b->policy + at,
                      .first = (uint64_t)first,
                      .targets_counted = counted};
}

float *hy_policy_batches_losses(hy_policy_batches *b) { return b->losses; }

void hy_policy_batches_keep_losses(hy_policy_batches *b) {
    size_t count = (size_t)b->count * (size_t)b->seq;
    for (size_t i = 0; i < count; i++) {
        if (b->targets[i] >= 0) b->policy[i].old = b->losses[i];
    }
}

/* ---- in a checkpoint ------------------------------------------------------------------------- */

typedef struct header {
    char name[8];
    int64_t seq, count;
} header;

/* Copies the arrays of sequences [0, count) to or from `bytes`. */
static void each_array(const hy_policy_batches *b, char *bytes, bool is_read) {
    size_t positions = (size_t)b->count * (size_t)b->seq;
    struct {
        void *array;
        size_t size;
    } all[] = {{b->tokens, sizeof *b->tokens},
               {b->targets, sizeof *b->targets},
               {b->doc_starts, sizeof *b->doc_starts},
               {b->policy, sizeof *b->policy}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        size_t size = positions * all[i].size;
        memcpy(is_read ? all[i].array : bytes, is_read ? bytes : all[i].array, size);
        bytes += size;
    }
}

static size_t bytes_of(int64_t count, int32_t seq) {
    size_t each = 3 * sizeof(int32_t) + sizeof(hy_policy_token);
    return sizeof(header) + (size_t)count * (size_t)seq * each;
}

hy_status hy_policy_batches_write(const hy_policy_batches *b, char **bytes, size_t *size) {
    header head = {"hyroll 1", b->seq, b->count};
    *size = bytes_of(b->count, b->seq);
    *bytes = malloc(*size);
    HY_FAIL_IF(!*bytes, HY_ERR_MEMORY, "not enough memory to save answers");
    memcpy(*bytes, &head, sizeof head);
    each_array(b, *bytes + sizeof head, false);
    return HY_OK;
}

hy_status hy_policy_batches_read(hy_policy_batches *b, const char *bytes, size_t size) {
    header head = {0};
    if (size >= sizeof head) memcpy(&head, bytes, sizeof head);
    bool is_ours = memcmp(head.name, "hyroll 1", sizeof head.name) == 0 && head.seq == b->seq &&
                   head.count >= 0 && head.count <= b->room / 2;
    HY_FAIL_IF(!is_ours || size != bytes_of(head.count, b->seq), HY_ERR_INPUT,
               "the answers of the checkpoint are those of a run with other values of seq_len, "
               "prompts or samples");
    b->count = head.count;
    each_array(b, (char *)bytes + sizeof head, true);
    return HY_OK;
}
