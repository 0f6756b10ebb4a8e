/* card_peaks.h: what a GPU can multiply at best, by its data sheet. */
#ifndef HY_KERNELS_CARD_PEAKS_H
#define HY_KERNELS_CARD_PEAKS_H

/* Dense bf16 (on sm_75: fp16) operations per second with sums in fp32, by the name the driver gives; 0
 * when the card is not known. */
double hy_card_peak(const char *name);

#endif
