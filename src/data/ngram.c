/* ngram.c: counts all strings of up to `order` bytes in one hash table, and computes their loss.
 *
 * Witten-Bell: n(h) is how often context h was followed by any byte, and t(h) is the number of
 * different bytes that followed it. Then
 *     P(c | h) = (n(hc) + t(h) P(c | h')) / (n(h) + t(h)),
 * where h' is h without its oldest byte; the empty context falls back to 1/256. n(h) is the count
 * of h as a string, minus one if the text ends with it. So one entry per string is enough. */
#include "data/ngram.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/error.h"

#define ORDER_MAX 6

typedef struct entry {
    uint64_t key;        /* the length and the bytes of the string; 0: unused */
    uint64_t seen : 48;  /* how often it occurs */
    uint64_t kinds : 16; /* number of different bytes that follow it */
} entry;

typedef struct counts {
    entry *entries;
    uint64_t used;
    int bits;                   /* the table has 2^bits entries and is at most half full */
    uint64_t ending[ORDER_MAX]; /* by length: the string at the end of the text; 0: none */
} counts;

/* The key of the `length` bytes before `end`, with the length as a tag. Never 0, not even for the
 * empty string. */
static uint64_t string_key(const uint8_t *end, int length) {
    uint64_t key = (uint64_t)(length + 1);
    for (int i = length; i > 0; i--) key = key << 8 | end[-i];
    return key;
}

static entry *place_of(const counts *table, uint64_t key) {
    uint64_t mask = ((uint64_t)1 << table->bits) - 1;
    uint64_t at = key * 0x9E3779B97F4A7C15u >> (64 - table->bits);
    while (table->entries[at].key && table->entries[at].key != key) at = (at + 1) & mask;
    return &table->entries[at];
}

static bool counts_init(counts *table, int bits) {
    *table = (counts){.bits = bits};
    table->entries = calloc((size_t)1 << bits, sizeof(entry));
    return table->entries != NULL;
}

static bool counts_grow(counts *table) {
    counts larger;
    if (!counts_init(&larger, table->bits + 1)) return false;
    for (uint64_t i = 0; i < (uint64_t)1 << table->bits; i++) {
        if (table->entries[i].key) *place_of(&larger, table->entries[i].key) = table->entries[i];
    }
    larger.used = table->used;
    free(table->entries);
    *table = larger;
    return true;
}

static bool count_text(counts *table, const uint8_t *text, uint64_t size, int order) {
    entry *empty = place_of(table, string_key(text, 0));
    *empty = (entry){.key = string_key(text, 0), .seen = size};
    table->used++;
    for (uint64_t i = 0; i < size; i++) {
        bool is_full = 2 * (table->used + ORDER_MAX) > (uint64_t)1 << table->bits;
        if (is_full && !counts_grow(table)) return false;
        /* Count the byte, alone and with its contexts, as strings of up to `order` bytes. */
        const uint8_t *end = text + i + 1;
        for (int length = i + 1 < (uint64_t)order ? (int)i + 1 : order; length > 0; length--) {
            uint64_t key = string_key(end, length);
            entry *string = place_of(table, key);
            string->seen++;
            if (string->key) continue;
            string->key = key;
            table->used++;
            /* always found: it was counted with the byte before */
            place_of(table, string_key(end - 1, length - 1))->kinds++;
        }
    }
    for (int length = 1; length < order && (uint64_t)length <= size; length++) {
        table->ending[length] = string_key(text + size, length);
    }
    return true;
}

/* The probability of the byte at `at` after up to `longest` bytes before it. */
static double probability(const counts *table, const uint8_t *at, int longest) {
    double p = 1.0 / 256;
    for (int length = 0; length <= longest; length++) {
        uint64_t key = string_key(at, length);
        const entry *context = place_of(table, key);
        double followed = (double)context->seen - (key == table->ending[length]);
        if (followed <= 0) break; /* unknown context; every longer one is unknown, too */
        double kinds = (double)context->kinds;
        double together = (double)place_of(table, string_key(at + 1, length + 1))->seen;
        p = (together + kinds * p) / (followed + kinds);
    }
    return p;
}

hy_status hy_ngram_loss(const uint8_t *train, uint64_t train_size, const uint8_t *held_out,
                        uint64_t held_out_size, int order, double *nats_per_byte) {
    HY_FAIL_IF(order < 1 || order > ORDER_MAX, HY_ERR_INPUT,
               "the n-gram order is %d; expected 1 to %d", order, ORDER_MAX);
    HY_FAIL_IF(train_size == 0 || held_out_size == 0, HY_ERR_INPUT,
               "n-gram baseline: the %s text is empty", train_size == 0 ? "training" : "held-out");
    counts table;
    bool has_room = counts_init(&table, 16) && count_text(&table, train, train_size, order);
    double nats = 0;
    for (uint64_t i = 0; has_room && i < held_out_size; i++) {
        int longest = i < (uint64_t)order - 1 ? (int)i : order - 1;
        nats -= log(probability(&table, held_out + i, longest));
    }
    free(table.entries);
    if (!has_room)
        return hy_fail(HY_ERR_MEMORY, "n-gram baseline: not enough memory for the counts");
    *nats_per_byte = nats / (double)held_out_size;
    return HY_OK;
}
