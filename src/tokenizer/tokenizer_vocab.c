/* tokenizer_vocab.c: tokens by text and by id.
 *
 * One block holds all texts; an open-addressing table, at most half full, finds an id by the hash of
 * its text. The upper half of the hash lies in the slot, so that a text is compared only when it is
 * almost surely the one. */
#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"

hy_status hy_vocab_init(hy_vocab *vocab, int32_t ids, size_t tokens, size_t bytes) {
    uint32_t slots = 16;
    while (slots < tokens * 2) slots *= 2;
    size_t places = ids > 0 ? (size_t)ids : 1;
    *vocab = (hy_vocab){.ids = ids, .mask = slots - 1};
    vocab->bytes = malloc(bytes + tokens + 1);
    vocab->places = malloc(places * sizeof *vocab->places);
    vocab->slots = calloc(slots, sizeof *vocab->slots);
    if (!vocab->bytes || !vocab->places || !vocab->slots) {
        hy_vocab_fini(vocab);
        return hy_fail(HY_ERR_MEMORY, "out of memory for a vocabulary of %zu tokens", tokens);
    }
    memset(vocab->places, 0xFF, places * sizeof *vocab->places);
    return HY_OK;
}

void hy_vocab_fini(hy_vocab *vocab) {
    free(vocab->bytes);
    free(vocab->places);
    free(vocab->slots);
    *vocab = (hy_vocab){0};
}

bool hy_vocab_add(hy_vocab *vocab, const char *text, size_t size, int32_t id) {
    uint64_t hash = hy_vocab_hash(text, size);
    if (vocab->places[id].start != UINT32_MAX) return false;
    if (hy_vocab_find_hashed(vocab, hash, text, size) >= 0) return false;
    uint32_t i = (uint32_t)hash & vocab->mask;
    while (vocab->slots[i]) i = (i + 1) & vocab->mask;
    vocab->slots[i] = (hash >> 32) << 32 | (uint32_t)(id + 1);
    memcpy(vocab->bytes + vocab->used, text, size);
    vocab->bytes[vocab->used + size] = '\0';
    vocab->places[id].start = (uint32_t)vocab->used;
    vocab->places[id].size = (uint32_t)size;
    vocab->used += size + 1;
    return true;
}

int32_t hy_vocab_find_hashed(const hy_vocab *vocab, uint64_t hash, const char *text, size_t size) {
    for (uint32_t i = (uint32_t)hash & vocab->mask;; i = (i + 1) & vocab->mask) {
        uint64_t slot = vocab->slots[i];
        if (!slot) return -1;
        if (slot >> 32 != hash >> 32) continue;
        int32_t id = (int32_t)((uint32_t)slot - 1);
        if (hy_vocab_is(vocab, id, text, size)) return id;
    }
}

int32_t hy_vocab_find(const hy_vocab *vocab, const char *text, size_t size) {
    return hy_vocab_find_hashed(vocab, hy_vocab_hash(text, size), text, size);
}
