/* card_peaks.h: what a GPU can multiply at best, by its data sheet. */
#ifndef HY_KERNELS_CARD_PEAKS_H
#define HY_KERNELS_CARD_PEAKS_H

#include <stdbool.h>

/* Dense bf16 (on sm_75: fp16) operations per second with sums in fp32, by the name the driver gives; 0
 * when the card is not known. */
double hy_card_peak(const char *name);

/* Whole words only: an A100 is no A10, an L40 no L4, and "NVIDIA H100 80GB HBM3" is an H100. */
bool hy_card_has_words(const char *text, const char *words);

#endif
