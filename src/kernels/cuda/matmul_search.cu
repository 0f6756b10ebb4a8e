/* matmul_search.cu: finds algorithms beyond the few that the library suggests.
 *
 * An algorithm is a family (its id) and settings: tile, stages, cluster, swizzle, split-K, custom
 * option. The library says which settings a family supports and whether a combination is valid;
 * there are thousands. Tuning is a random walk from the best known one, changing one or two
 * settings at a time. */
#include "kernels/cuda/matmul.cuh"

enum { MOST_CHOICES = 1024, ATTEMPTS = 64, NEAR = 4, MOST_PARTS = 12 };

static uint32_t next_random(uint32_t *state) { /* xorshift: good enough for a random walk */
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static uint32_t highest(const cublasLtMatmulAlgo_t *algorithm,
                        cublasLtMatmulAlgoCapAttributes_t which) {
    uint32_t value = 0;
    size_t written;
    cublasLtMatmulAlgoCapGetAttribute(algorithm, which, &value, sizeof value, &written);
    return value;
}

static void put(cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulAlgoConfigAttributes_t which,
                uint32_t value) {
    cublasLtMatmulAlgoConfigSetAttribute(algorithm, which, &value, sizeof value);
}

/* Tiles are sorted by shape: half of the steps go to a nearby one, half anywhere. */
static void vary_from_list(cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulAlgoCapAttributes_t list,
                           cublasLtMatmulAlgoConfigAttributes_t which, uint32_t *state) {
    uint32_t values[MOST_CHOICES], now = 0; /* those that the algorithm's family supports */
    size_t written = 0;
    int at = 0;
    if (cublasLtMatmulAlgoCapGetAttribute(algorithm, list, values, sizeof values, &written)) return;
    int count = (int)(written / sizeof *values);
    if (count == 0) return;
    cublasLtMatmulAlgoConfigGetAttribute(algorithm, which, &now, sizeof now, &written);
    while (at < count && values[at] != now) at++;
    int to = (int)(next_random(state) % (uint32_t)count);
    if (at < count && next_random(state) % 2 == 0) {
        to = (at + (int)(next_random(state) % (2 * NEAR + 1)) - NEAR + count) % count;
    }
    put(algorithm, which, values[to]);
}

static void vary_one(const hy_cuda *cuda, cublasLtMatmulAlgo_t *algorithm, uint32_t *state) {
    switch (next_random(state) % 7) {
    case 0:
        put(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION,
            next_random(state) % (highest(algorithm, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX) + 1));
        break;
    case 1: {
        if (cuda->card.capability < 90) break;
        uint32_t shapes = CUBLASLT_CLUSTER_SHAPE_4x4x1 - CUBLASLT_CLUSTER_SHAPE_1x1x1 + 1;
        uint16_t shape = (uint16_t)(CUBLASLT_CLUSTER_SHAPE_1x1x1 + next_random(state) % shapes);
        cublasLtMatmulAlgoConfigSetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
                                             &shape, sizeof shape);
        break;
    }
    case 2:
        put(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING,
            next_random(state) % (highest(algorithm, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT) + 1));
        break;
    case 3:
        vary_from_list(algorithm, CUBLASLT_ALGO_CAP_STAGES_IDS, CUBLASLT_ALGO_CONFIG_STAGES_ID,
                       state);
        break;
    case 4: { /* more parts of K fill the card if tiles of d are few; partial sums stay in fp32 */
        if (!highest(algorithm, CUBLASLT_ALGO_CAP_SPLITK_SUPPORT)) break;
        uint32_t parts = 1 + next_random(state) % MOST_PARTS;
        put(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, parts);
        put(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
            parts > 1 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE);
        break;
    }
    default:
        vary_from_list(algorithm, CUBLASLT_ALGO_CAP_TILE_IDS, CUBLASLT_ALGO_CONFIG_TILE_ID, state);
    }
}

bool hy_matmul_vary(const hy_cuda *cuda, const hy_matmul_plan *plan,
                    const cublasLtMatmulAlgo_t *from, uint32_t *state,
                    cublasLtMatmulHeuristicResult_t *out) {
    for (int i = 0; i < ATTEMPTS; i++) {
        cublasLtMatmulAlgo_t algorithm = *from;
        int steps = 1 + (int)(next_random(state) % 2);
        for (int step = 0; step < steps; step++) vary_one(cuda, &algorithm, state);
        if (hy_matmul_fits(cuda, plan, &algorithm, &out->workspaceSize)) {
            out->algo = algorithm;
            return true;
        }
    }
    return false;
}
