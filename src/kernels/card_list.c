/* card_list.c: the table of cards. See card_list.h.
 *
 * Memory is what the driver reports; multiprocessors and memory bandwidth are from NVIDIA's data
 * sheets. The wire is the rate of pinned copies over PCIe: 55 GB/s on 5.0 x16, 26 on 4.0 x16, 12.5
 * on 3.0 x16, half of that on 8 lanes.
 *
 * The rate is for dense bf16 matmuls with fp32 sums (fp16 on Turing, which has no bf16). Data
 * centre cards: NVIDIA's data sheets (their larger figures are for sparse matrices and twice
 * these). GeForce: multiprocessors x 512 operations x boost clock in GHz, from the "FP32
 * accumulate" rows of NVIDIA's Turing, GA102, Ada and RTX Blackwell architecture papers;
 * workstation cards with the same chips have 1,024. The "AI TOPS" on NVIDIA's GeForce pages are
 * for sparse fp8 (RTX 40) and fp4 (RTX 50) with smaller sums: 8 and 16 times these rates; on RTX
 * PRO Blackwell, 8 times. Laptop cards are omitted, because their clocks vary. */
#include "kernels/card_list.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define GEN5 55e9
#define GEN4 26e9
#define GEN3 12.5e9

/* A card that was sold with two sizes of memory has two rows; the first is meant if no size is
 * given. */
static const hy_card cards[] = {
    {"RTX 5090", 32607, 170, 120, 1792e9, GEN5, true, 209.5}, /* 170 x 512 x 2.407 */
    {"RTX 5090 D", 32607, 170, 120, 1792e9, GEN5, true, 209.5},
    {"RTX 5090 D v2", 24455, 170, 120, 1344e9, GEN5, true, 209.5},
    {"RTX 5080", 16303, 84, 120, 960e9, GEN5, true, 112.6},       /* 84 x 512 x 2.617 */
    {"RTX 5070 Ti", 16303, 70, 120, 896e9, GEN5, true, 87.9},     /* 70 x 512 x 2.452 */
    {"RTX 5070", 12227, 48, 120, 672e9, GEN5, true, 61.7},        /* 48 x 512 x 2.512 */
    {"RTX 5060 Ti", 16311, 36, 120, 448e9, GEN5 / 2, true, 47.4}, /* 36 x 512 x 2.572 */
    {"RTX 5060 Ti", 8151, 36, 120, 448e9, GEN5 / 2, true, 47.4},
    {"RTX 5060", 8151, 30, 120, 448e9, GEN5 / 2, true, 38.4},      /* 30 x 512 x 2.497 */
    {"RTX 4090", 24564, 128, 89, 1008e9, GEN4, true, 165.2},       /* 128 x 512 x 2.520 */
    {"RTX 4090 D", 24564, 114, 89, 1008e9, GEN4, true, 147.1},     /* 114 x 512 x 2.520 */
    {"RTX 4080 SUPER", 16376, 80, 89, 736e9, GEN4, true, 104.4},   /* 80 x 512 x 2.550 */
    {"RTX 4080", 16376, 76, 89, 717e9, GEN4, true, 97.5},          /* 76 x 512 x 2.505 */
    {"RTX 4070 Ti SUPER", 16376, 66, 89, 672e9, GEN4, true, 88.2}, /* 66 x 512 x 2.610 */
    {"RTX 4070 Ti", 12282, 60, 89, 504e9, GEN4, true, 80.2},       /* 60 x 512 x 2.610 */
    {"RTX 4070 SUPER", 12282, 56, 89, 504e9, GEN4, true, 71.0},    /* 56 x 512 x 2.475 */
    {"RTX 4070", 12282, 46, 89, 504e9, GEN4, true, 58.3},          /* 46 x 512 x 2.475 */
    {"RTX 4060 Ti", 8188, 34, 89, 288e9, GEN4 / 2, true, 44.1},    /* 34 x 512 x 2.535 */
    {"RTX 4060 Ti", 16380, 34, 89, 288e9, GEN4 / 2, true, 44.1},
    {"RTX 4060", 8188, 24, 89, 272e9, GEN4 / 2, true, 30.2},  /* 24 x 512 x 2.460 */
    {"RTX 3090 Ti", 24564, 84, 86, 1008e9, GEN4, true, 80.0}, /* 84 x 512 x 1.860 */
    {"RTX 3090", 24576, 82, 86, 936e9, GEN4, true, 71.2},     /* 82 x 512 x 1.695 */
    {"RTX 3080 Ti", 12288, 80, 86, 912e9, GEN4, true, 68.2},  /* 80 x 512 x 1.665 */
    {"RTX 3080", 10240, 68, 86, 760e9, GEN4, true, 59.5},     /* 68 x 512 x 1.710 */
    {"RTX 3080", 12288, 70, 86, 912e9, GEN4, true, 61.3},     /* 70 x 512 x 1.710 */
    {"RTX 3070 Ti", 8192, 48, 86, 608e9, GEN4, true, 43.5},   /* 48 x 512 x 1.770 */
    {"RTX 3070", 8192, 46, 86, 448e9, GEN4, true, 40.6},      /* 46 x 512 x 1.725 */
    {"RTX 3060 Ti", 8192, 38, 86, 448e9, GEN4, true, 32.4},   /* 38 x 512 x 1.665 */
    {"RTX 3060", 12288, 28, 86, 360e9, GEN4, true, 25.5},     /* 28 x 512 x 1.777 */
    {"RTX 3060", 8192, 28, 86, 240e9, GEN4, true, 25.5},
    {"RTX 3050", 8192, 20, 86, 224e9, GEN4 / 2, true, 18.2},                /* 20 x 512 x 1.777 */
    {"RTX 3050", 6144, 18, 86, 168e9, GEN4 / 2, true, 13.5},                /* 18 x 512 x 1.470 */
    {"RTX 2080 Ti", 11264, 68, 75, 616e9, GEN3, true, 53.8},                /* 68 x 512 x 1.545 */
    {"RTX 2060 SUPER", 8192, 34, 75, 448e9, GEN3, true, 28.7},              /* 34 x 512 x 1.650 */
    {"RTX 2060", 6144, 30, 75, 336e9, GEN3, true, 25.8},                    /* 30 x 512 x 1.680 */
    {"RTX 2060", 12288, 34, 75, 336e9, GEN3, true, 28.7},                   /* 34 x 512 x 1.650 */
    {"RTX PRO 6000 Blackwell", 97887, 188, 120, 1792e9, GEN5, true, 503.8}, /* 188 x 1024 x 2.617 */
    /* 3511 AI TOPS / 8 */
    {"RTX PRO 6000 Blackwell Max-Q", 97887, 188, 120, 1792e9, GEN5, true, 438.9},
    /* 4 x the 120 of its fp32, as on the other two; no sheet gives it */
    {"RTX PRO 6000 Blackwell Server", 97887, 188, 120, 1597e9, GEN5, false, 480},
    {"RTX 6000 Ada", 49140, 142, 89, 960e9, GEN4, true, 364.2}, /* 142 x 1024 x 2.505 */
    {"RTX A6000", 49140, 84, 86, 768e9, GEN4, true, 154.8},     /* 84 x 1024 x 1.800 */
    {"RTX A5000", 24564, 64, 86, 768e9, GEN4, true, 111.1},     /* 64 x 1024 x 1.695 */
    {"L40S", 46068, 142, 89, 864e9, GEN4, false, 362.05},
    {"L40", 46068, 142, 89, 864e9, GEN4, false, 181.05},
    {"L4", 23034, 58, 89, 300e9, GEN4, false, 121},
    {"A10G", 23028, 80, 86, 600e9, GEN4, false, 70}, /* 80 x 512 x 1.710: the rate of a GeForce */
    {"A10", 23028, 72, 86, 600e9, GEN4, false, 125},
    {"A30", 24576, 56, 80, 933e9, GEN4, false, 165},
    {"A40", 46068, 84, 86, 696e9, GEN4, false, 149.7},
    {"A100", 81920, 108, 80, 2039e9, GEN4, false, 312},
    {"A100", 40960, 108, 80, 1555e9, GEN4, false, 312},
    {"A100 80GB PCIe", 81920, 108, 80, 1935e9, GEN4, false, 312},
    {"A800", 81920, 108, 80, 2039e9, GEN4, false, 312},
    {"A800", 40960, 108, 80, 1555e9, GEN4, false, 312},
    {"A800 80GB PCIe", 81920, 108, 80, 1935e9, GEN4, false, 312},
    {"T4", 15360, 40, 75, 320e9, GEN3, false, 65},
    {"H100 PCIe", 81559, 114, 90, 2039e9, GEN5, false, 756},
    {"H100 NVL", 95830, 132, 90, 3938e9, GEN5, false, 835.5},
    {"H100", 81559, 132, 90, 3350e9, GEN5, false, 989.4},
    {"H200", 143771, 132, 90, 4800e9, GEN5, false, 989.4},
    {"H200 NVL", 143771, 132, 90, 4800e9, GEN5, false, 835.5},

    /* Cards of which only the rate is known. */
    {.name = "B200", .teraflops = 2250},
    {.name = "GB200", .teraflops = 2500},
    {.name = "GH200", .teraflops = 989.4},
    {.name = "H800 PCIe", .teraflops = 756},
    {.name = "H800", .teraflops = 989.4},
    {.name = "H20", .teraflops = 148},
};

/* Cards that people still have, without the tensor cores that the CUDA backend needs (sm_75). */
static const char *const too_old[] = {
    "V100",        "TITAN V",  "TITAN Xp", "P100", "P40", "P4",    "GTX 1080 Ti", "GTX 1080",
    "GTX 1070 Ti", "GTX 1070", "GTX 1060", "M40",  "K80", "GV100", "P6000",       "M60"};

#define COUNT (sizeof cards / sizeof cards[0])

/* Keeps letters and digits, in lower case, without the manufacturer's words. */
static void squeeze(const char *name, char out[HY_CARD_NAME]) {
    static const char *const words[] = {"nvidia", "geforce", "tesla"};
    size_t length = 0;
    for (; *name && length + 1 < HY_CARD_NAME; name++) {
        if (isalnum((unsigned char)*name)) out[length++] = (char)tolower((unsigned char)*name);
    }
    out[length] = 0;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t word = strlen(words[i]);
        if (strncmp(out, words[i], word) == 0) memmove(out, out + word, strlen(out + word) + 1);
    }
}

/* Compares whole words: an A100 is not an A10, an L40 not an L4, and "NVIDIA H100 80GB HBM3" is an
 * H100. */
static bool has_words(const char *text, const char *words) {
    size_t length = strlen(words);
    for (const char *at = strstr(text, words); at; at = strstr(at + 1, words)) {
        bool begins = at == text || !isalnum((unsigned char)at[-1]);
        if (begins && !isalnum((unsigned char)at[length])) return true;
    }
    return false;
}

/* A word behind a card's name can make it another model: an RTX 2060 SUPER is no RTX 2060. */
static bool is_other_model(const char *name, const hy_card *card) {
    static const char *const words[] = {"Laptop", "Max-Q", "Ti", "SUPER", "Super", "D", "v2"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (has_words(name, words[i]) && !has_words(card->name, words[i])) return true;
    }
    return false;
}

/* The card with the longest name such that `name` has all its words. has_memory: only cards of
 * which more than the rate is known. */
static const hy_card *card_by_words(const char *name, bool has_memory) {
    const hy_card *best = NULL;
    for (size_t i = 0; i < COUNT; i++) {
        if ((has_memory && cards[i].memory_mib == 0) || !has_words(name, cards[i].name)) continue;
        if (is_other_model(name, &cards[i])) continue;
        if (!best || strlen(cards[i].name) > strlen(best->name)) best = &cards[i];
    }
    return best;
}

double hy_card_peak(const char *name) {
    const hy_card *card = card_by_words(name, false);
    return card ? 1e12 * card->teraflops : 0;
}

/* Reads "16GB", "16gib", "16g" or "16"; 0: `text` is something else. */
static double gigabytes_at(const char *text, bool needs_unit) {
    static const char *const units[] = {"gib", "gb", "g"};
    char *end;
    if (!isdigit((unsigned char)*text)) return 0;
    double gigabytes = strtod(text, &end);
    while (*end == ' ') end++;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        size_t length = strlen(units[i]);
        if (!strncasecmp(end, units[i], length) && !isalnum((unsigned char)end[length]))
            return gigabytes;
    }
    return !needs_unit && *end == 0 ? gigabytes : 0;
}

/* A driver reports up to 7 % less than the size that is sold, because error correction takes some:
 * an L40S with 48 GB has 45 GiB. */
static bool has_size(const hy_card *card, double gigabytes) {
    return fabs(gigabytes - (double)card->memory_mib / 1024) < 0.07 * gigabytes;
}

/* Is this the card, in the squeezed name `asked`, with or without "rtx" and the size at its end? */
static bool is_named(const char *asked, const hy_card *card) {
    char known[HY_CARD_NAME];
    squeeze(card->name, known);
    bool is_short = strncmp(known, "rtx", 3) == 0 && strncmp(asked, "rtx", 3) != 0;
    const char *name = known + (is_short ? 3 : 0);
    size_t length = strlen(name);
    if (asked[0] == 0 || strncmp(asked, name, length) != 0) return false;
    return asked[length] == 0 || has_size(card, gigabytes_at(asked + length, false));
}

/* The size in a text such as "NVIDIA A100-SXM4-40GB"; 0: none. */
static double size_in(const char *name) {
    double size = 0;
    for (const char *at = name; *at && size == 0; at++) {
        if (at == name || !isalnum((unsigned char)at[-1])) size = gigabytes_at(at, true);
    }
    return size;
}

const hy_card *hy_card_find(const char *name) {
    char asked[HY_CARD_NAME];
    squeeze(name, asked);
    for (size_t i = 0; hy_card_at(i); i++) {
        if (is_named(asked, &cards[i])) return &cards[i];
    }
    const hy_card *card = card_by_words(name, true);
    double size = size_in(name);
    for (size_t i = 0; card && size > 0 && hy_card_at(i); i++) {
        if (strcmp(cards[i].name, card->name) == 0 && has_size(&cards[i], size)) return &cards[i];
    }
    return size > 0 ? NULL : card;
}

bool hy_card_is_too_old(const char *name) {
    char asked[HY_CARD_NAME], known[HY_CARD_NAME];
    squeeze(name, asked);
    for (size_t i = 0; i < sizeof too_old / sizeof too_old[0]; i++) {
        squeeze(too_old[i], known);
        size_t length = strlen(known);
        bool begins = strncmp(asked, known, length) == 0;
        if (has_words(name, too_old[i]) || (begins && asked[length] == 0)) return true;
        if (begins && gigabytes_at(asked + length, false) > 0) return true;
    }
    return false;
}

const hy_card *hy_card_at(size_t i) { return i < COUNT && cards[i].memory_mib ? &cards[i] : NULL; }

void hy_card_describe(const hy_card *card, char *out, size_t size) {
    int gigabytes = (int)lround((double)card->memory_mib / 1024);
    int rows = 0;
    for (size_t i = 0; hy_card_at(i); i++) rows += strcmp(cards[i].name, card->name) == 0;
    if (rows > 1)
        snprintf(out, size, "%s %dGB", card->name, gigabytes);
    else
        snprintf(out, size, "%s", card->name);
}
