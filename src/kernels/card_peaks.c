/* card_peaks.c: what a GPU can multiply at best, by its data sheet.
 *
 * Dense bf16 matmuls with sums in fp32 (fp16 on Turing, which has no bf16). Data centre cards: NVIDIA's
 * data sheets, whose larger figures are for sparse matrices and twice these. GeForce: multiprocessors x
 * 512 operations x boost clock, the "FP32 accumulate" rows of NVIDIA's Turing, GA102, Ada and RTX
 * Blackwell architecture papers; workstation cards of the same chips do 1,024. Cards of laptops are left
 * out: their clocks differ from maker to maker. */
#include "kernels/card_peaks.h"

#include <ctype.h>
#include <stddef.h>
#include <string.h>

typedef struct card {
    const char *name; /* words of the driver's name, as they stand there */
    double teraflops;
} card;

/* A longer name stands before one that it contains. */
static const card cards[] = {
    {"B200", 2250},
    {"GB200", 2500},
    {"H200 NVL", 835.5},
    {"H200", 989.4},
    {"GH200", 989.4},
    {"H100 PCIe", 756},
    {"H100 NVL", 835.5},
    {"H100", 989.4},
    {"H800 PCIe", 756},
    {"H800", 989.4},
    {"H20", 148},
    {"A100", 312},
    {"A800", 312},
    {"A30", 165},
    {"A40", 149.7},
    {"A10", 125},
    {"A10G", 70}, /* 80 multiprocessors x 512 x 1.71 GHz: the rate of a GeForce */
    {"L40S", 362.05},
    {"L40", 181.05},
    {"L4", 121},
    {"T4", 65},

    {"RTX PRO 6000 Blackwell", 503.8}, /* 188 x 1024 x 2.617 GHz */
    {"RTX 6000 Ada", 364.2},           /* 142 x 1024 x 2.505 */
    {"RTX A6000", 154.8},              /* 84 x 1024 x 1.800 */
    {"RTX A5000", 111.1},              /* 64 x 1024 x 1.695 */

    {"RTX 5090", 209.5},   /* 170 x 512 x 2.407 */
    {"RTX 5080", 112.6},   /* 84 x 512 x 2.617 */
    {"RTX 5070 Ti", 87.9}, /* 70 x 512 x 2.452 */
    {"RTX 5070", 61.7},    /* 48 x 512 x 2.512 */
    {"RTX 5060 Ti", 47.4}, /* 36 x 512 x 2.572 */
    {"RTX 5060", 38.4},    /* 30 x 512 x 2.497 */

    {"RTX 4090", 165.2},         /* 128 x 512 x 2.520 */
    {"RTX 4080 SUPER", 104.4},   /* 80 x 512 x 2.550 */
    {"RTX 4080", 97.5},          /* 76 x 512 x 2.505 */
    {"RTX 4070 Ti SUPER", 88.2}, /* 66 x 512 x 2.610 */
    {"RTX 4070 Ti", 80.2},       /* 60 x 512 x 2.610 */
    {"RTX 4070 SUPER", 71.0},    /* 56 x 512 x 2.475 */
    {"RTX 4070", 58.3},          /* 46 x 512 x 2.475 */
    {"RTX 4060 Ti", 44.1},       /* 34 x 512 x 2.535 */
    {"RTX 4060", 30.2},          /* 24 x 512 x 2.460 */

    {"RTX 3090 Ti", 80.0}, /* 84 x 512 x 1.860 */
    {"RTX 3090", 71.2},    /* 82 x 512 x 1.695 */
    {"RTX 3080 Ti", 68.2}, /* 80 x 512 x 1.665 */
    {"RTX 3080", 59.5},    /* 68 x 512 x 1.710 */
    {"RTX 3070 Ti", 43.5}, /* 48 x 512 x 1.770 */
    {"RTX 3070", 40.6},    /* 46 x 512 x 1.725 */
    {"RTX 3060 Ti", 32.4}, /* 38 x 512 x 1.665 */
    {"RTX 3060", 25.5},    /* 28 x 512 x 1.777 */

    {"RTX 2080 Ti", 53.8}, /* 68 x 512 x 1.545 */
};

bool hy_card_has_words(const char *text, const char *words) {
    size_t length = strlen(words);
    for (const char *at = strstr(text, words); at; at = strstr(at + 1, words)) {
        bool begins = at == text || !isalnum((unsigned char)at[-1]);
        if (begins && !isalnum((unsigned char)at[length])) return true;
    }
    return false;
}

double hy_card_peak(const char *name) {
    if (hy_card_has_words(name, "Laptop")) return 0;
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        if (hy_card_has_words(name, cards[i].name)) return 1e12 * cards[i].teraflops;
    }
    return 0;
}
