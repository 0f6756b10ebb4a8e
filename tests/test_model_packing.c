/* test_model_packing.c: packed examples have the same loss as alone.
 *
 * The same rows are read with and without packing and passed through a model with rotary positions,
 * one with learned positions, and one with linear attention: each example's loss, and the gradient of all of them, must agree.
 * Without the document mask they do not. */
#include <math.h>

#include "base/rng.h"
#include "data/dataset.h"
#include "linear_shape.h"
#include "model_rig.h"

enum { SEQ = 64, BATCH = 4, EXAMPLES = 40, VOCAB = 256 };

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

static hy_shape rope_shape(void) {
    return (hy_shape){.layers = 2,
                      .width = 32,
                      .heads = 4,
                      .kv_heads = 2,
                      .mlp_width = 48,
                      .vocab = VOCAB,
                      .context = SEQ,
                      .is_rms = true,
                      .has_rope = true,
                      .is_gated = true,
                      .norm_eps = 1e-5,
                      .rope_theta = 10000,
                      .init_std = 0.2};
}

static hy_shape learned_shape(void) {
    return (hy_shape){.layers = 2,
                      .width = 32,
                      .heads = 4,
                      .kv_heads = 4,
                      .mlp_width = 64,
                      .vocab = VOCAB,
                      .context = SEQ,
                      .has_qkv_bias = true,
                      .has_proj_bias = true,
                      .has_tied_head = true,
                      .norm_eps = 1e-5,
                      .init_std = 0.2};
}

/* Examples that begin with two bytes of their own, so that each is found again. */
static const char *write_examples(void) {
    static char path[512];
    hy_text rows = {0};
    for (int i = 0; i < EXAMPLES; i++) {
        int size = 3 + (int)hy_rng_below(4, HY_RNG_TEST, (uint64_t)i, 25);
        hy_text_addf(&rows, "{\"prompt\": \"%c%cxy\", \"completion\": \"", 'A' + i % 26,
                     'a' + i / 26);
        for (int k = 0; k < size; k++) {
            uint64_t letter = hy_rng_below(9, HY_RNG_TEST, (uint64_t)(100 * i + k), 26);
            hy_text_addf(&rows, "%c", (int)('a' + letter));
        }
        hy_text_add(&rows, "\"}\n");
    }
    snprintf(path, sizeof path, "%s/x.jsonl", folder);
    must(hy_file_write_atomic(path, rows.data, rows.size));
    hy_text_free(&rows);
    return path;
}

static hy_dataset *open_rows(const char *path, bool packs) {
    hy_dataset_options options = {.path = path,
                                  .val_path = path,
                                  .seq = SEQ,
                                  .vocab = VOCAB,
                                  .seed = 3,
                                  .shuffle = true,
                                  .packs = packs,
                                  .workers = 1};
    hy_dataset *data;
    must(hy_dataset_open(&options, &data));
    return data;
}

typedef struct outcome {
    double losses[EXAMPLES]; /* sum over each example's answer */
    float *grads;
    size_t grad_count;
} outcome;

/* Adds the losses of a sequence to the examples it holds. */
static void collect(const model_rig *rig, const int32_t *doc_starts, int row, outcome *out) {
    const int32_t *tokens = rig->tokens + row * SEQ;
    for (int i = 0; i < SEQ; i++) {
        int begin = doc_starts ? doc_starts[row * SEQ + i] : 0;
        if (rig->targets[row * SEQ + i] < 0) continue;
        int example = tokens[begin] - 'A' + 26 * (tokens[begin + 1] - 'a');
        ck_assert(example >= 0 && example < EXAMPLES);
        out->losses[example] += (double)rig->losses[row * SEQ + i];
    }
}

static hy_shape packed_shape(int kind) {
    if (kind < 2) return kind ? learned_shape() : rope_shape();
    hy_shape shape = linear_shape();
    shape.vocab = VOCAB;
    shape.context = SEQ;
    return shape;
}

static void run_all(const char *path, int kind, bool packs, bool masks, outcome *out) {
    hy_shape shape = packed_shape(kind);
    hy_batch_options options = {.batch = BATCH,
                                .seq = SEQ,
                                .dtype = HY_F32,
                                .grad_dtype = HY_F32,
                                .is_training = true,
                                .has_doc_starts = masks};
    model_rig rig;
    hy_dataset *data = open_rows(path, packs);
    uint64_t sequences = hy_dataset_describe(data)->sequences[HY_TRAIN];
    int32_t doc_starts[BATCH * SEQ];
    *out = (outcome){0};
    rig_open(&rig, &shape, &options, 11);
    for (uint64_t first = 0; first < sequences; first += BATCH) {
        for (uint64_t row = 0; row < BATCH; row++) {
            bool is_filler = first + row >= sequences;
            hy_dataset_fill(data, HY_TRAIN, is_filler ? 0 : first + row, rig.tokens + row * SEQ,
                            rig.targets + row * SEQ, doc_starts + row * SEQ);
            for (int i = 0; is_filler && i < SEQ; i++) rig.targets[row * SEQ + (uint64_t)i] = -1;
        }
        hy_batch_input input = rig_input(&rig, 1, first > 0);
        if (masks) input.doc_starts = doc_starts;
        must(hy_batch_train(rig.plan, &input));
        rig_sync(&rig);
        for (int row = 0; row < BATCH; row++) collect(&rig, doc_starts, row, out);
    }
    out->grad_count = (size_t)rig.grads.layout.bytes / sizeof(float);
    out->grads = malloc(out->grad_count * sizeof(float));
    memcpy(out->grads, hy_store_backing(&rig.grads, 0), out->grad_count * sizeof(float));
    rig_close(&rig);
    hy_dataset_close(data);
}

static double largest_difference(const outcome *a, const outcome *b) {
    double most = 0;
    for (int i = 0; i < EXAMPLES; i++) {
        most = fmax(most, fabs(a->losses[i] - b->losses[i]) / fabs(a->losses[i]));
    }
    return most;
}

START_TEST(packed_examples_lose_what_they_lose_alone) {
    const char *path = write_examples();
    outcome alone, packed;
    run_all(path, _i, false, false, &alone);
    run_all(path, _i, true, true, &packed);
    ck_assert_double_le(largest_difference(&alone, &packed), 1e-5);
    double square = 0, apart = 0;
    ck_assert_uint_eq(alone.grad_count, packed.grad_count);
    for (size_t i = 0; i < alone.grad_count; i++) {
        double a = (double)alone.grads[i], b = (double)packed.grads[i];
        if (!isfinite(a) || !isfinite(b)) continue; /* between tensors */
        square += a * a;
        apart += (a - b) * (a - b);
    }
    ck_assert_double_gt(square, 0);
    ck_assert_double_le(sqrt(apart / square), 1e-5);
    free(alone.grads);
    free(packed.grads);
}
END_TEST

START_TEST(without_the_mask_they_would_not) {
    const char *path = write_examples();
    outcome alone, packed;
    run_all(path, _i, false, false, &alone);
    run_all(path, _i, true, false, &packed);
    ck_assert_double_gt(largest_difference(&alone, &packed), 1e-3);
    free(alone.grads);
    free(packed.grads);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("model: packing");
    TCase *cases = tcase_create("packing");
    tcase_add_checked_fixture(cases, make_folder, drop_folder);
    tcase_add_loop_test(cases, packed_examples_lose_what_they_lose_alone, 0, 3);
    tcase_add_loop_test(cases, without_the_mask_they_would_not, 0, 3);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
