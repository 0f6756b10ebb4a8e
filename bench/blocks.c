/* blocks.c: millions of numbers per second that one core encodes and decodes, for each number type
 * of GGUF files: seconds of processor time, the best of five, so that other load matters little.
 *   build/bench/blocks */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "formats/blocks.h"

enum { ROWS = 64, COLS = 4096, COUNT = ROWS * COLS };

static float numbers[COUNT], decoded[COUNT], importance[COLS];
static uint8_t blocks[4 * COUNT];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double encode_rate(hy_block_type type, const float *weights) {
    double best = INFINITY;
    for (int i = 0; i < 5; i++) {
        double begin = now();
        hy_blocks_encode(type, numbers, ROWS, COLS, weights, blocks);
        best = fmin(best, now() - begin);
    }
    return COUNT / best / 1e6;
}

static double decode_rate(hy_block_type type) {
    double best = INFINITY;
    for (int i = 0; i < 5; i++) {
        double begin = now();
        hy_blocks_decode(type, blocks, COUNT, decoded);
        best = fmin(best, now() - begin);
    }
    return COUNT / best / 1e6;
}

int main(void) {
    srand(1);
    for (int i = 0; i < COUNT; i++) {
        for (int k = 0; k < 6; k++) numbers[i] += 0.02f * ((float)rand() / (float)RAND_MAX - 0.5f);
    }
    for (int i = 0; i < COLS; i++) importance[i] = (float)rand() / (float)RAND_MAX;
    printf("%-8s %10s %10s %10s   million numbers per second and core\n", "type", "encode",
           "weighted", "decode");
    for (uint32_t type = 0; type < HY_BLOCK_TYPES; type++) {
        const hy_block_traits *traits = hy_block_traits_of(type);
        if (!traits || !traits->can_decode) continue;
        printf("%-8s", traits->name);
        if (traits->can_encode) {
            printf(" %10.0f %10.0f", encode_rate(type, NULL), encode_rate(type, importance));
        } else {
            printf(" %10s %10s", "-", "-");
        }
        printf(" %10.0f\n", decode_rate(type));
    }
    return 0;
}
