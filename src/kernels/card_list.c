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
 * workstation cards with the same chips have 1,024. Laptop cards are omitted, because their clocks
 * vary. */
#include "kernels/card_list.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GEN5 55e9
#define GEN4 26e9
#define GEN3 12.5e9

static const hy_card cards[] = {
    {"RTX 5090", 32607, 170, 120, 1792e9, GEN5, true, 209.5},               /* 170 x 512 x 2.407 */
    {"RTX 5080", 16303, 84, 120, 960e9, GEN5, true, 112.6},                 /* 84 x 512 x 2.617 */
    {"RTX 5070 Ti", 16303, 70, 120, 896e9, GEN5, true, 87.9},               /* 70 x 512 x 2.452 */
    {"RTX 5070", 12227, 48, 120, 672e9, GEN5, true, 61.7},                  /* 48 x 512 x 2.512 */
    {"RTX 5060 Ti", 16311, 36, 120, 448e9, GEN5 / 2, true, 47.4},           /* 36 x 512 x 2.572 */
    {"RTX 4090", 24564, 128, 89, 1008e9, GEN4, true, 165.2},                /* 128 x 512 x 2.520 */
    {"RTX 4080 SUPER", 16376, 80, 89, 736e9, GEN4, true, 104.4},            /* 80 x 512 x 2.550 */
    {"RTX 4080", 16376, 76, 89, 717e9, GEN4, true, 97.5},                   /* 76 x 512 x 2.505 */
    {"RTX 4070 Ti SUPER", 16376, 66, 89, 672e9, GEN4, true, 88.2},          /* 66 x 512 x 2.610 */
    {"RTX 4070 Ti", 12282, 60, 89, 504e9, GEN4, true, 80.2},                /* 60 x 512 x 2.610 */
    {"RTX 4070 SUPER", 12282, 56, 89, 504e9, GEN4, true, 71.0},             /* 56 x 512 x 2.475 */
    {"RTX 4070", 12282, 46, 89, 504e9, GEN4, true, 58.3},                   /* 46 x 512 x 2.475 */
    {"RTX 4060 Ti", 8188, 34, 89, 288e9, GEN4 / 2, true, 44.1},             /* 34 x 512 x 2.535 */
    {"RTX 4060", 8188, 24, 89, 272e9, GEN4 / 2, true, 30.2},                /* 24 x 512 x 2.460 */
    {"RTX 3090 Ti", 24564, 84, 86, 1008e9, GEN4, true, 80.0},               /* 84 x 512 x 1.860 */
    {"RTX 3090", 24576, 82, 86, 936e9, GEN4, true, 71.2},                   /* 82 x 512 x 1.695 */
    {"RTX 3080 Ti", 12288, 80, 86, 912e9, GEN4, true, 68.2},                /* 80 x 512 x 1.665 */
    {"RTX 3080", 10240, 68, 86, 760e9, GEN4, true, 59.5},                   /* 68 x 512 x 1.710 */
    {"RTX 3070 Ti", 8192, 48, 86, 608e9, GEN4, true, 43.5},                 /* 48 x 512 x 1.770 */
    {"RTX 3070", 8192, 46, 86, 448e9, GEN4, true, 40.6},                    /* 46 x 512 x 1.725 */
    {"RTX 3060 Ti", 8192, 38, 86, 448e9, GEN4, true, 32.4},                 /* 38 x 512 x 1.665 */
    {"RTX 3060", 12288, 28, 86, 360e9, GEN4, true, 25.5},                   /* 28 x 512 x 1.777 */
    {"RTX 2080 Ti", 11264, 68, 75, 616e9, GEN3, true, 53.8},                /* 68 x 512 x 1.545 */
    {"RTX PRO 6000 Blackwell", 97887, 188, 120, 1792e9, GEN5, true, 503.8}, /* 188 x 1024 x 2.617 */
    {"RTX 6000 Ada", 49140, 142, 89, 960e9, GEN4, true, 364.2},             /* 142 x 1024 x 2.505 */
    {"RTX A6000", 49140, 84, 86, 768e9, GEN4, true, 154.8},                 /* 84 x 1024 x 1.800 */
    {"L40S", 46068, 142, 89, 864e9, GEN4, false, 362.05},
    {"L4", 23034, 58, 89, 300e9, GEN4, false, 121},
    {"A10", 23028, 72, 86, 600e9, GEN4, false, 125},
    {"A100 40GB", 40960, 108, 80, 1555e9, GEN4, false, 312},
    {"A100", 81920, 108, 80, 2039e9, GEN4, false, 312},
    {"T4", 15360, 40, 75, 320e9, GEN3, false, 65},
    {"H100", 81559, 132, 90, 3350e9, GEN5, false, 989.4},
    {"H200", 143771, 132, 90, 4800e9, GEN5, false, 989.4},

    /* Cards of which only the rate is known. */
    {.name = "B200", .teraflops = 2250},
    {.name = "GB200", .teraflops = 2500},
    {.name = "H200 NVL", .teraflops = 835.5},
    {.name = "GH200", .teraflops = 989.4},
    {.name = "H100 PCIe", .teraflops = 756},
    {.name = "H100 NVL", .teraflops = 835.5},
    {.name = "H800 PCIe", .teraflops = 756},
    {.name = "H800", .teraflops = 989.4},
    {.name = "H20", .teraflops = 148},
    {.name = "A800", .teraflops = 312},
    {.name = "A30", .teraflops = 165},
    {.name = "A40", .teraflops = 149.7},
    {.name = "A10G", .teraflops = 70}, /* 80 x 512 x 1.710: the rate of a GeForce */
    {.name = "L40", .teraflops = 181.05},
    {.name = "RTX A5000", .teraflops = 111.1}, /* 64 x 1024 x 1.695 */
    {.name = "RTX 5060", .teraflops = 38.4},   /* 30 x 512 x 2.497 */
};

#define COUNT (sizeof cards / sizeof cards[0])
#define NAME_BYTES 64

/* Keeps letters and digits, in lower case, without the manufacturer's words. */
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

/* The card with the longest name such that `name` has all its words. has_memory: only cards of
 * which more than the rate is known. */
static const hy_card *card_by_words(const char *name, bool has_memory) {
    const hy_card *best = NULL;
    for (size_t i = 0; i < COUNT && !has_words(name, "Laptop"); i++) {
        if ((has_memory && cards[i].memory_mib == 0) || !has_words(name, cards[i].name)) continue;
        if (!best || strlen(cards[i].name) > strlen(best->name)) best = &cards[i];
    }
    return best;
}

double hy_card_peak(const char *name) {
    const hy_card *card = card_by_words(name, false);
    return card ? 1e12 * card->teraflops : 0;
}

/* Recognises a name with gigabytes: "h100-80" is the H100, "a100-40" the A100 40GB. */
static bool is_with_memory(const char *asked, const hy_card *card) {
    char known[NAME_BYTES], *end;
    squeeze(card->name, known);
    size_t length = strlen(known);
    if (length > 2 && strcmp(known + length - 2, "gb") == 0) {
        return strlen(asked) == length - 2 && strncmp(asked, known, length - 2) == 0;
    }
    if (strncmp(asked, known, length) != 0 || !isdigit((unsigned char)asked[length])) return false;
    double gigabytes = strtod(asked + length, &end), has = (double)card->memory_mib / 1024;
    return (*end == 0 || strcmp(end, "gb") == 0) && fabs(gigabytes - has) < 0.03 * has;
}

int hy_card_too_old(const char *name) {
    static const struct {
        const char *name;
        int capability;
    } old[] = {{"V100", 70},     {"TITAN V", 70},  {"GV100", 70},    {"P100", 60},
               {"P40", 61},      {"P6000", 61},    {"TITAN Xp", 61}, {"GTX 1080 Ti", 61},
               {"GTX 1080", 61}, {"GTX 1070", 61}, {"GTX 1060", 61}, {"M40", 52},
               {"M60", 52},      {"K80", 37}};
    char asked[NAME_BYTES], known[NAME_BYTES];
    squeeze(name, asked);
    for (size_t i = 0; i < sizeof old / sizeof old[0]; i++) {
        squeeze(old[i].name, known);
        size_t length = strlen(known); /* "v10032gb", "v100sxm232gb" */
        bool is_same = strncmp(asked, known, length) == 0 &&
                       strspn(asked + length, "0123456789gbsxmpcieti") == strlen(asked + length);
        if (is_same || has_words(name, old[i].name)) return old[i].capability;
    }
    return 0;
}

const hy_card *hy_card_find(const char *name) {
    char asked[NAME_BYTES], known[NAME_BYTES];
    squeeze(name, asked);
    for (size_t i = 0; hy_card_at(i); i++) {
        squeeze(cards[i].name, known);
        if (strcmp(asked, known) == 0) return &cards[i];
    }
    /* Example: "4090" is the RTX 4090. */
    for (size_t i = 0; asked[0] && hy_card_at(i); i++) {
        squeeze(cards[i].name, known);
        if (strncmp(known, "rtx", 3) == 0 && strcmp(known + 3, asked) == 0) return &cards[i];
    }
    const hy_card *card = card_by_words(name, true);
    for (size_t i = 0; !card && hy_card_at(i); i++) {
        if (is_with_memory(asked, &cards[i])) card = &cards[i];
    }
    return card;
}

const hy_card *hy_card_at(size_t i) { return i < COUNT && cards[i].memory_mib ? &cards[i] : NULL; }
