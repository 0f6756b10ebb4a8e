/* card_list.h: cards by name: what a plan must know of one that is not here. */
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
    double wire;     /* to the host and back, bytes per second of pinned memory one way at a time */
    bool is_desktop; /* the host beside it has two channels of memory, not twelve */
    double teraflops; /* of matmuls at best, by its data sheet */
} hy_card;

/* By a name however it is written: "rtx5080", "RTX 5080", "NVIDIA GeForce RTX 5080". NULL: not known. */
const hy_card *hy_card_find(const char *name);
/* NULL past the last. */
const hy_card *hy_card_at(size_t i);

/* Dense bf16 (on sm_75: fp16) operations per second with sums in fp32, by the name the driver gives; 0
 * when the card is not known. Knows more cards than the list. */
double hy_card_peak(const char *name);
