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

/* Finds a card by name in any spelling: "rtx5080", "RTX 5080", "NVIDIA GeForce RTX 5080". NULL:
 * unknown. */
const hy_card *hy_card_find(const char *name);
/* Compute capability of a card that our kernels do not support (they need sm_75); 0: not such a
 * card. */
int hy_card_too_old(const char *name);
/* NULL after the last. */
const hy_card *hy_card_at(size_t i);

/* Dense bf16 (on sm_75: fp16) operations per second with fp32 sums, by the driver's name; 0:
 * unknown card. Knows more cards than the list. */
double hy_card_peak(const char *name);
