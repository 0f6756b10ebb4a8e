/* card_list.h: cards by name, with the facts a plan needs for a card that is not present. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hy_card {
    const char *name; /* as in the driver's name: "RTX 5080" */
    int32_t memory_mib;
    int32_t multiprocessors;
    int32_t capability;
    double bandwidth; /* of its memory, bytes per second */
    double wire;     /* of pinned copies to or from the host, one way at a time, bytes per second */
    bool is_desktop; /* its host has two memory channels, not twelve */
    double teraflops; /* best rate of matmuls, by its data sheet */
} hy_card;

/* Finds a card by name in any spelling: "rtx5080", "RTX 5080", "NVIDIA GeForce RTX 5080", with or
 * without its memory: "RTX 4060 Ti 16GB", "a100-40". NULL: unknown, or not sold with this size. */
const hy_card *hy_card_find(const char *name);
/* Does the name mean a card that is older than those that the CUDA backend supports? */
bool hy_card_is_too_old(const char *name);
#define HY_CARD_TOO_OLD                                                                            \
    "is not supported: the CUDA backend needs compute capability 7.5 or higher (RTX 20, T4 and "   \
    "newer)"
#define HY_CARD_NAME 64
/* Writes the name; with the memory if the card was sold with two sizes. */
void hy_card_describe(const hy_card *card, char *out, size_t size);
/* NULL after the last. */
const hy_card *hy_card_at(size_t i);

/* Dense bf16 (on sm_75: fp16) operations per second with fp32 sums, by the driver's name; 0:
 * unknown card. Knows more cards than the list. */
double hy_card_peak(const char *name);
