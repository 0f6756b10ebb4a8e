/* fp8_gradients.c: compares the gradients of a step in fp8 with those in bf16.
 *
 * Makes one optimizer step with each from the same weights on the same batches, and compares the
 * sums of gradients matrix by matrix: cosine and ratio of lengths, the worst and the mean over the
 * layers. Each kind of parameter is shown, because a loss could hide a wrong matmul. Runs with
 * gradients as e4m3 and as e5m2. The state must be on the device, with fp32 gradients.
 *   build/bench/fp8_gradients [--steps N] KEY=VALUE ...    as for gpu_loss
 *
 * The compared step follows N steps in bf16, so that all have the same weights. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "gpu_heading.h"
#include "trainer/trainer.h"

/* Kinds of parameters; qkv is split into its rows, which share one fp8 scale. */
enum { Q = HY_P_KIND_COUNT, K, V, KINDS };
static const char *const names[KINDS] = {[HY_P_TOKENS] = "embedding",
                                         [HY_P_POSITIONS] = "positions",
                                         [HY_P_NORM1] = "norm 1",
                                         [Q] = "q",
                                         [K] = "k",
                                         [V] = "v",
                                         [HY_P_QKV_BIAS] = "qkv bias",
                                         [HY_P_OUT] = "attention out",
                                         [HY_P_NORM2] = "norm 2",
                                         [HY_P_UP] = "mlp up",
                                         [HY_P_DOWN] = "mlp down",
                                         [HY_P_FINAL_NORM] = "last norm",
                                         [HY_P_HEAD] = "head"};

/* Sums over the layers for one kind of parameter. */
typedef struct kind_figures {
    double cosine, ratio, worst_cosine, least_ratio, most_ratio;
    int count;
} kind_figures;

/* ---- one run --------------------------------------------------------------------------------- */

static hy_status set(hy_config *config, const char *pair) {
    char key[128];
    const char *equals = strchr(pair, '=');
    HY_FAIL_IF(!equals || (size_t)(equals - pair) >= sizeof key, HY_ERR_INPUT,
               "\"%s\" is no setting; expected KEY=VALUE", pair);
    snprintf(key, sizeof key, "%.*s", (int)(equals - pair), pair);
    return hy_config_set(config, key, equals + 1, HY_FROM_FLAG);
}

static hy_status configure(hy_config *config, int argc, char **argv, const char *const *own) {
    static const char *const fixed[] = {
        "out=none",        "sample_tokens=0",    "predictor=none",        "eval_batches=1",
        "grad_dtype=fp32", "grads_place=device", "offload_strategy=none", "precision_correct=same"};
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) HY_TRY(set(config, fixed[i]));
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) == 0) {
            i++; /* every option has a value */
        } else {
            HY_TRY(set(config, argv[i]));
        }
    }
    for (; *own; own++) HY_TRY(set(config, *own));
    /* The steps before the compared one are Warmup. */
    HY_TRY(hy_config_set(config, "precision", "bf16", HY_FROM_FLAG));
    return hy_config_set(config, "warmup_steps", gpu_option(argc, argv, "--steps", "0"),
                         HY_FROM_FLAG);
}

/* Copies the gradients of the last step into one array, in the order of the parameters. */
static hy_status fetch(hy_trainer *t, float *out) {
    hy_engine *e = t->engine;
    hy_store *grads = hy_store_of(e, HY_ROW_GRADS);
    for (int32_t i = 0; i < e->model->params.count; i++) {
        const hy_param *param = &e->model->params.list[i];
        int32_t item = hy_store_item_of(grads, i);
        size_t bytes = (size_t)param->count * sizeof *out;
        HY_TRY(e->device.backend->copy(e->device.compute, out + param->first,
                                       hy_store_device(grads, item), bytes));
    }
    return e->device.backend->stream_sync(e->device.compute);
}

static hy_status make_steps(hy_trainer *t, int steps, const char *name, float **out) {
    hy_step_info info = {0};
    for (int i = 0; i <= steps; i++) HY_TRY(hy_trainer_step(t, &info));
    printf("  %-12s loss %.6f, norm of the gradient %.6f\n", name, info.loss, info.grad_norm);
    *out = malloc((size_t)t->engine->model->params.elements * sizeof **out);
    HY_FAIL_IF(!*out, HY_ERR_MEMORY, "no memory for the gradients");
    return fetch(t, *out);
}

static hy_status run(int argc, char **argv, const char *name, const char *const *own, float **out,
                     hy_trainer **kept) {
    int steps = atoi(gpu_option(argc, argv, "--steps", "0"));
    hy_config *config;
    HY_TRY(hy_config_create(&config));
    hy_status status = configure(config, argc, argv, own);
    if (status == HY_OK) status = hy_trainer_create(config, NULL, kept);
    hy_config_destroy(config);
    HY_TRY(status);
    return make_steps(*kept, steps, name, out);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void compare_param(const float *a, const float *b, int64_t n, kind_figures *k) {
    double aa = 0, bb = 0, ab = 0;
    for (int64_t i = 0; i < n; i++) {
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
        ab += (double)a[i] * (double)b[i];
    }
    double cosine = ab / sqrt(aa * bb), ratio = sqrt(bb / aa);
    if (k->count == 0 || cosine < k->worst_cosine) k->worst_cosine = cosine;
    if (k->count == 0 || ratio < k->least_ratio) k->least_ratio = ratio;
    if (k->count == 0 || ratio > k->most_ratio) k->most_ratio = ratio;
    k->cosine += cosine;
    k->ratio += ratio;
    k->count++;
}

static void compare(const hy_model *model, const char *title, const float *a, const float *b) {
    kind_figures kinds[KINDS] = {0};
    const hy_shape *s = &model->shape;
    int64_t heads[] = {s->heads, s->kv_heads, s->kv_heads};
    for (int32_t i = 0; i < model->params.count; i++) {
        const hy_param *p = &model->params.list[i];
        int64_t at = p->first;
        compare_param(a + at, b + at, p->count, &kinds[p->kind]);
        for (int part = 0; part < 3 && p->kind == HY_P_QKV; part++) {
            int64_t count = heads[part] * s->head_size * p->shape[1];
            compare_param(a + at, b + at, count, &kinds[Q + part]);
            at += count;
        }
    }
    printf("%s\n  %-16s %10s %10s %10s %10s %10s\n", title, "gradient of", "cosine", "worst",
           "length", "least", "most");
    for (int k = 0; k < KINDS; k++) {
        if (!kinds[k].count || !names[k]) continue;
        printf("  %-16s %10.5f %10.5f %10.5f %10.5f %10.5f\n", names[k],
               kinds[k].cosine / kinds[k].count, kinds[k].worst_cosine,
               kinds[k].ratio / kinds[k].count, kinds[k].least_ratio, kinds[k].most_ratio);
    }
}

static hy_status compare_all(int argc, char **argv) {
    static const char *const plain[] = {"precision_full=bf16", NULL};
    static const char *const fp8[] = {"precision_full=fp8", NULL};
    static const char *const wider[] = {"precision_full=fp8", "fp8_grad=e5m2", NULL};
    float *base = NULL, *other = NULL;
    hy_trainer *t = NULL;
    HY_TRY(run(argc, argv, "bf16", plain, &base, &t));
    hy_trainer_destroy(t);
    hy_status status = run(argc, argv, "fp8", fp8, &other, &t);
    if (status == HY_OK) compare(t->engine->model, "fp8 compared with bf16", base, other);
    if (status == HY_OK) hy_trainer_destroy(t);
    free(other);
    other = NULL;
    if (status == HY_OK) status = run(argc, argv, "fp8 e5m2", wider, &other, &t);
    if (status == HY_OK) compare(t->engine->model, "fp8 with e5m2 compared with bf16", base, other);
    if (status == HY_OK) hy_trainer_destroy(t);
    free(other);
    free(base);
    return status;
}

int main(int argc, char **argv) {
    if (argc == 1) {
        puts("fp8_gradients: settings are missing, for example model=gpt2-124m device=cuda ...");
        return 0;
    }
    hy_status status = compare_all(argc, argv);
    if (status != HY_OK) fprintf(stderr, "fp8_gradients: %s\n", hy_error_message());
    return status == HY_OK ? 0 : status == HY_ERR_INPUT ? 2 : 1;
}
