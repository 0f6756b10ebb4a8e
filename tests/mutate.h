/* mutate.h: damage to a file, the same on every run, for tests of what parsers do with it.
 *
 * A mutation flips, overwrites, cuts, inserts or doubles bytes; which of these, where and with what
 * follows from its number alone, so a failing number can be run again. */
#ifndef HY_TESTS_MUTATE_H
#define HY_TESTS_MUTATE_H

#include <stdint.h>
#include <string.h>

#include "base/rng.h"

#define MUTATION_GROWTH 64 /* a mutated copy is at most this much longer */

/* Bytes that mean something to some parser come up more often than by chance. */
static inline uint8_t mutation_byte(uint64_t r) {
    static const uint8_t telling[] = "{}[]\",:\\-+.eEu0123456789 \n\x00\x01\x7F\x80\xC0\xED\xFF";
    return r & 1 ? telling[(r >> 8) % (sizeof telling - 1)] : (uint8_t)(r >> 8);
}

/* One change in place; returns the new size. `data` has room for eight more bytes. */
static inline size_t mutate_once(uint8_t *data, size_t size, uint64_t number, uint64_t round) {
    uint32_t r[4];
    hy_philox(number, HY_RNG_TEST, round, r);
    size_t at = size ? r[1] % size : 0, run = 1 + r[2] % 8;
    if (run > size - at) run = size - at;
    switch (r[0] % 6) {
    case 0:
        if (size) data[at] ^= (uint8_t)(1u << r[3] % 8);
        return size;
    case 1:
        if (size) data[at] = mutation_byte(r[3]);
        return size;
    case 2: return at; /* cut the tail */
    case 3:            /* cut a piece */
        memmove(data + at, data + at + run, size - at - run);
        return size - run;
    case 4: /* insert */
        memmove(data + at + 1, data + at, size - at);
        data[at] = mutation_byte(r[3]);
        return size + 1;
    default: /* double a piece */ memmove(data + at + run, data + at, size - at); return size + run;
    }
}

/* Copies `size` bytes to `out` (room for MUTATION_GROWTH more) and damages them 1 to 4 times. */
static inline size_t mutate(const void *data, size_t size, uint8_t *out, uint64_t number) {
    memcpy(out, data, size);
    uint64_t rounds = 1 + hy_rng_below(number, HY_RNG_TEST, 1000, 4);
    for (uint64_t i = 0; i < rounds; i++) size = mutate_once(out, size, number, i);
    return size;
}

#endif
