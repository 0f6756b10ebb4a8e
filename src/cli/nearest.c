/* nearest.c: edit distance between a mistyped name and the known ones.
 *
 * Insertions, deletions, replacements and swaps of neighbours count one each. A name that
 * begins with what was typed (--batch for --batch-size) counts as one error: people type the
 * beginning. */
#include "cli/nearest.h"

#include <string.h>

#define NAME_MAX_BYTES 48 /* longer than any flag */

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* Three rows of the usual table are enough for swaps. */
static size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length) {
    size_t rows[3][NAME_MAX_BYTES + 1];
    size_t *before = rows[0], *above = rows[1], *row = rows[2];
    for (size_t j = 0; j <= b_length; j++) above[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t replaced = above[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = smaller(replaced, smaller(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = smaller(row[j], before[j - 2] + 1);
        }
        size_t *oldest = before;
        before = above;
        above = row;
        row = oldest;
    }
    return above[b_length];
}

void hy_cli_nearest_begin(hy_cli_nearest *nearest, const char *typed, size_t length) {
    *nearest = (hy_cli_nearest){.typed = typed, .length = length, .distance = (size_t)-1};
}

void hy_cli_nearest_try(hy_cli_nearest *nearest, const char *name) {
    size_t length = strlen(name);
    if (length > NAME_MAX_BYTES || nearest->length > NAME_MAX_BYTES) return;
    size_t distance = edit_distance(nearest->typed, nearest->length, name, length);
    if (nearest->length > 2 && nearest->length < length &&
        memcmp(name, nearest->typed, nearest->length) == 0)
        distance = 1;
    if (distance >= nearest->distance) return;
    nearest->best = name;
    nearest->distance = distance;
}

const char *hy_cli_nearest_end(const hy_cli_nearest *nearest) {
    size_t tolerated = nearest->length / 3 > 2 ? nearest->length / 3 : 2;
    return nearest->distance <= tolerated ? nearest->best : NULL;
}
