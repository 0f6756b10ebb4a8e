/* card_list.c: the table of cards. See card_list.h.
 *
 * Memory as the driver shows it, multiprocessors and memory bandwidth by NVIDIA's data sheets. The wire
 * is what pinned copies reach on PCIe: 55 GB/s on 5.0 x16, 26 on 4.0 x16, 12.5 on 3.0 x16, half of that
 * on 8 lanes. A longer name stands before one that it contains. */
#include "kernels/card_list.h"

#include <ctype.h>
#include <string.h>

#include "kernels/card_peaks.h"

#define GEN5 55e9
#define GEN4 26e9
#define GEN3 12.5e9

static const hy_card cards[] = {
    {"RTX 5090", 32607, 170, 120, 1792e9, GEN5, true},
    {"RTX 5080", 16303, 84, 120, 960e9, GEN5, true},
    {"RTX 5070 Ti", 16303, 70, 120, 896e9, GEN5, true},
    {"RTX 5070", 12227, 48, 120, 672e9, GEN5, true},
    {"RTX 5060 Ti", 16311, 36, 120, 448e9, GEN5 / 2, true},
    {"RTX 4090", 24564, 128, 89, 1008e9, GEN4, true},
    {"RTX 4080 SUPER", 16376, 80, 89, 736e9, GEN4, true},
    {"RTX 4080", 16376, 76, 89, 717e9, GEN4, true},
    {"RTX 4070 Ti SUPER", 16376, 66, 89, 672e9, GEN4, true},
    {"RTX 4070 Ti", 12282, 60, 89, 504e9, GEN4, true},
    {"RTX 4070 SUPER", 12282, 56, 89, 504e9, GEN4, true},
    {"RTX 4070", 12282, 46, 89, 504e9, GEN4, true},
    {"RTX 4060 Ti", 8188, 34, 89, 288e9, GEN4 / 2, true},
    {"RTX 4060", 8188, 24, 89, 272e9, GEN4 / 2, true},
    {"RTX 3090 Ti", 24564, 84, 86, 1008e9, GEN4, true},
    {"RTX 3090", 24576, 82, 86, 936e9, GEN4, true},
    {"RTX 3080 Ti", 12288, 80, 86, 912e9, GEN4, true},
    {"RTX 3080", 10240, 68, 86, 760e9, GEN4, true},
    {"RTX 3070 Ti", 8192, 48, 86, 608e9, GEN4, true},
    {"RTX 3070", 8192, 46, 86, 448e9, GEN4, true},
    {"RTX 3060 Ti", 8192, 38, 86, 448e9, GEN4, true},
    {"RTX 3060", 12288, 28, 86, 360e9, GEN4, true},
    {"RTX 2080 Ti", 11264, 68, 75, 616e9, GEN3, true},
    {"RTX PRO 6000 Blackwell", 97887, 188, 120, 1792e9, GEN5, true},
    {"RTX 6000 Ada", 49140, 142, 89, 960e9, GEN4, true},
    {"RTX A6000", 49140, 84, 86, 768e9, GEN4, true},
    {"L40S", 46068, 142, 89, 864e9, GEN4, false},
    {"L4", 23034, 58, 89, 300e9, GEN4, false},
    {"A10", 23028, 72, 86, 600e9, GEN4, false},
    {"A100 40GB", 40960, 108, 80, 1555e9, GEN4, false},
    {"A100", 81920, 108, 80, 2039e9, GEN4, false},
    {"T4", 15360, 40, 75, 320e9, GEN3, false},
    {"H100", 81559, 132, 90, 3350e9, GEN5, false},
    {"H200", 143771, 132, 90, 4800e9, GEN5, false},
};

#define COUNT (sizeof cards / sizeof cards[0])
#define NAME_BYTES 64

/* Letters and digits in one row, small, without the maker's words. */
static void squeeze(const char *name, char out[NAME_BYTES]) {
    static const char *const words[] = {"nvidia", "geforce", "tesla"};
    size_t length = 0;
    for (; *name && length + 1 < NAME_BYTES; name++) {
        if (isalnum((unsigned char)*name)) out[length++] = (char)tolower((unsigned char)*name);
    }
    out[length] = 0;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t word = strlen(words[i]);
        if (strncmp(out, words[i], word) == 0) memmove(out, out + word, strlen(out + word) + 1);
    }
}

const hy_card *hy_card_find(const char *name) {
    char asked[NAME_BYTES], known[NAME_BYTES];
    squeeze(name, asked);
    for (size_t i = 0; i < COUNT; i++) {
        squeeze(cards[i].name, known);
        if (strcmp(asked, known) == 0) return &cards[i];
    }
    for (size_t i = 0; i < COUNT && !hy_card_has_words(name, "Laptop"); i++) {
        if (hy_card_has_words(name, cards[i].name)) return &cards[i];
    }
    return NULL;
}

const hy_card *hy_card_at(size_t i) { return i < COUNT ? &cards[i] : NULL; }
