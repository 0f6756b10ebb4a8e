/* config_card.c: the built-in settings for a card. See config_card.h.
 *
 * A few cards have a file in configs/gpu. The settings of all others follow from their memory, by
 * the same rule as those files: micro-batches that fill the card. The safe variant has the same tokens
 * per step, in micro-batches of a quarter of that size. */
#include "config/config_card.h"

#include <stdio.h>
#include <string.h>

#include "config/builtin.h"
#include "kernels/card_list.h"

/* Micro-batch and micro-batches per step for cards with at least so much memory. */
static const struct {
    int gigabytes, batch, accum;
} sizes[] = {{70, 64, 4}, {36, 32, 4}, {20, 16, 4}, {14, 8, 8}, {0, 4, 16}};

#define FULL_SHARE 0.945 /* of the card's memory; the rest is left to display and driver */
#define SAFE_SHARE 0.83

/* The name of the file of this card; NULL: it has none. */
static const char *file_of(const hy_card *card) {
    const char *name;
    for (size_t i = 0; (name = hy_builtin_name("gpu", i)) != NULL; i++) {
        if (hy_card_find(name) == card) return name;
    }
    return NULL;
}

static void write_settings(const hy_card *card, bool is_safe, hy_text *out) {
    double gigabytes = (double)card->memory_mib / 1024;
    size_t i = 0;
    while (sizes[i].gigabytes > gigabytes) i++;
    int pieces = is_safe ? 4 : 1;
    hy_text_addf(out, "train: { batch_size = %d; grad_accum_steps = %d;%s };\n",
                 sizes[i].batch / pieces, sizes[i].accum * pieces,
                 is_safe ? " recompute = \"all\";" : "");
    hy_text_addf(out, "memory: { max_gpu_mem = \"%dGiB\";",
                 (int)(gigabytes * (is_safe ? SAFE_SHARE : FULL_SHARE)));
    if (is_safe) hy_text_addf(out, " cpu_mem = \"%dGiB\";", card->is_desktop ? 24 : 64);
    hy_text_add(out, " };\n");
}

bool hy_config_card(const char *asked, char name[HY_CARD_FILE_NAME], hy_text *out) {
    static const char safe[] = "-safe";
    char stem[HY_CARD_NAME], whole[HY_CARD_FILE_NAME];
    size_t length = strlen(asked), end = strlen(safe);
    bool is_safe = length > end && strcmp(asked + length - end, safe) == 0;
    if (is_safe) length -= end;
    /* A card's name is no path. */
    if (length >= sizeof stem || strpbrk(asked, "/.")) return false;
    snprintf(stem, sizeof stem, "%.*s", (int)length, asked);
    const hy_card *card = hy_card_find(stem);
    if (!card) return false;
    const char *file = file_of(card);
    snprintf(whole, sizeof whole, "%s%s", file ? file : stem, is_safe ? safe : "");
    snprintf(name, HY_CARD_FILE_NAME, "gpu/%.80s", whole);
    if (file)
        hy_text_add(out, hy_builtin_text("gpu", whole));
    else
        write_settings(card, is_safe, out);
    return true;
}
