/* test_adapters.c: low-rank adapters of frozen matrices: their gradients follow from those of the
 * merged matrix by the chain rule, with any recomputation and any places. */
#include "linear_shape.h"
#include "sets_rig.h"

#include "model/adapter.h"

#define RANK 3
#define SCALE 1.75
#define TRAINED "*.lora_a,*.lora_b"

static hy_shape gpt2_shape(void) {
    return (hy_shape){.layers = 3,
                      .width = 16,
                      .heads = 2,
                      .vocab = 61,
                      .context = 12,
                      .has_qkv_bias = true,
                      .has_proj_bias = true,
                      .has_tied_head = true,
                      .norm_eps = 1e-5,
                      .init_std = 0.1};
}

static hy_shape llama_shape(void) {
    return (hy_shape){.layers = 3,
                      .width = 16,
                      .heads = 4,
                      .kv_heads = 2,
                      .mlp_width = 24,
                      .vocab = 61,
                      .context = 12,
                      .is_rms = true,
                      .has_rope = true,
                      .is_gated = true,
                      .has_qk_norm = true,
                      .norm_eps = 1e-6,
                      .rope_theta = 10000,
                      .init_std = 0.1};
}

static const struct {
    bool is_gpt2;
    int32_t parts;
} cases[] = {{true, HY_ADAPT_ALL},
             {true, HY_ADAPT_V | HY_ADAPT_DOWN},
             {false, HY_ADAPT_ALL},
             {false, HY_ADAPT_Q | HY_ADAPT_V},
             {false, HY_ADAPT_K | HY_ADAPT_UP},
             {false, HY_ADAPT_GATE | HY_ADAPT_O},
             {false, HY_ADAPT_DOWN}};
enum { CASES = sizeof cases / sizeof cases[0] };

static hy_shape shape_of(int i) {
    hy_shape shape = cases[i].is_gpt2 ? gpt2_shape() : llama_shape();
    shape.adapter = (hy_adapter){.rank = RANK, .scale = SCALE, .parts = cases[i].parts};
    return shape;
}

static void write_param(sets_rig *r, int32_t index, const float *values) {
    const hy_param *p = &r->model->params.list[index];
    hy_store *store = &r->stores[p->is_trainable ? SETS_WEIGHTS : SETS_FROZEN];
    must(hy_store_write(store, r->compute, hy_store_offset(store, hy_store_item_of(store, index)),
                        values, (uint64_t)p->count * sizeof *values));
}

/* B begins as zero, which would hide most of what can go wrong. */
static void fill_b(sets_rig *r) {
    for (int32_t i = 0; i < r->model->params.count; i++) {
        const hy_param *p = &r->model->params.list[i];
        if (!strstr(p->name, ".lora_b")) continue;
        float *values = malloc((size_t)p->count * sizeof *values);
        for (int64_t k = 0; k < p->count; k++) {
            values[k] = (float)(0.2 * hy_rng_normal(8, HY_RNG_TEST, (uint64_t)(p->first + k)));
        }
        write_param(r, i, values);
        free(values);
    }
}

static const hy_param_kind matrices[] = {HY_P_QKV, HY_P_OUT, HY_P_UP, HY_P_DOWN};

/* Where row m of a matrix has its rows of A (rank of them) and its row of B; false: it has no
 * adapter. */
static bool find_rows(const hy_adapter_pieces *pieces, int64_t m, int64_t *a, int64_t *b) {
    int64_t begin = 0;
    *a = *b = 0;
    for (int32_t i = 0; i < pieces->count; i++) {
        if (m < begin + pieces->rows[i]) {
            *b += m - begin;
            return pieces->is_there[i];
        }
        begin += pieces->rows[i];
        *a += pieces->is_there[i] ? RANK : 0;
        *b += pieces->is_there[i] ? pieces->rows[i] : 0;
    }
    return false;
}

/* An adapter and its matrix in the two models. */
typedef struct beside {
    hy_adapter_pieces pieces;
    int32_t a, b, matrix; /* in the model with adapters */
    int32_t whole;        /* the matrix in the plain one */
    int64_t rows, in;
} beside;

static bool find_adapter(sets_rig *some, sets_rig *full, int32_t unit, hy_param_kind kind,
                         beside *out) {
    const hy_params *p = &some->model->params;
    out->a = hy_params_find(p, unit, hy_adapter_kind(kind));
    if (out->a < 0) return false;
    out->b = hy_params_find(p, unit, (hy_param_kind)(hy_adapter_kind(kind) + 1));
    out->matrix = hy_params_find(p, unit, kind);
    out->whole = hy_params_find(&full->model->params, unit, kind);
    out->pieces = hy_shape_adapter_pieces(&some->model->shape, kind);
    out->rows = p->list[out->matrix].shape[0];
    out->in = p->list[out->matrix].shape[1];
    return true;
}

static void merge(sets_rig *some, sets_rig *full, const beside *at) {
    float *a = sets_read(some, SETS_WEIGHTS, at->a), *b = sets_read(some, SETS_WEIGHTS, at->b);
    float *w = sets_read(some, SETS_FROZEN, at->matrix);
    for (int64_t m = 0; m < at->rows; m++) {
        int64_t row_a, row_b;
        if (!find_rows(&at->pieces, m, &row_a, &row_b)) continue;
        for (int64_t c = 0; c < at->in; c++) {
            double sum = w[m * at->in + c];
            for (int64_t k = 0; k < RANK; k++) {
                sum += SCALE * b[row_b * RANK + k] * a[(row_a + k) * at->in + c];
            }
            w[m * at->in + c] = (float)sum;
        }
    }
    write_param(full, at->whole, w);
    free(a);
    free(b);
    free(w);
}

static void compare(const float *got, const double *wanted, int64_t count, const char *name) {
    double error = 0, length = 0;
    for (int64_t i = 0; i < count; i++) {
        error += (got[i] - wanted[i]) * (got[i] - wanted[i]);
        length += wanted[i] * wanted[i];
    }
    ck_assert_msg(length > 0, "%s has no gradient", name);
    ck_assert_msg(error <= 1e-10 * length, "the gradient of %s is off by %g", name,
                  sqrt(error / length));
}

/* dA = scale B' dW, dB = scale dW A', piece by piece. */
static void check_gradients(sets_rig *some, sets_rig *full, const beside *at) {
    const hy_params *p = &some->model->params;
    float *a = sets_read(some, SETS_WEIGHTS, at->a), *b = sets_read(some, SETS_WEIGHTS, at->b);
    float *da = sets_read(some, SETS_GRADS, at->a), *db = sets_read(some, SETS_GRADS, at->b);
    float *dw = sets_read(full, SETS_GRADS, at->whole);
    double *want_a = calloc((size_t)p->list[at->a].count, sizeof *want_a);
    double *want_b = calloc((size_t)p->list[at->b].count, sizeof *want_b);
    for (int64_t m = 0; m < at->rows; m++) {
        int64_t row_a, row_b;
        if (!find_rows(&at->pieces, m, &row_a, &row_b)) continue;
        for (int64_t c = 0; c < at->in; c++) {
            double d = SCALE * dw[m * at->in + c];
            for (int64_t k = 0; k < RANK; k++) {
                want_a[(row_a + k) * at->in + c] += d * b[row_b * RANK + k];
                want_b[row_b * RANK + k] += d * a[(row_a + k) * at->in + c];
            }
        }
    }
    compare(da, want_a, p->list[at->a].count, p->list[at->a].name);
    compare(db, want_b, p->list[at->b].count, p->list[at->b].name);
    free(a);
    free(b);
    free(da);
    free(db);
    free(dw);
    free(want_a);
    free(want_b);
}

static int for_all(sets_rig *some, sets_rig *full,
                   void (*visit)(sets_rig *, sets_rig *, const beside *)) {
    int count = 0;
    for (int32_t unit = 1; unit <= some->model->shape.layers; unit++) {
        for (size_t k = 0; k < 4; k++) {
            beside at;
            if (!find_adapter(some, full, unit, matrices[k], &at)) continue;
            visit(some, full, &at);
            count++;
        }
    }
    return count;
}

START_TEST(gradients_are_those_of_the_merged_matrix) {
    sets_choice choice = {.shape = shape_of(_i), .trained = TRAINED};
    sets_choice plain = {.shape = shape_of(_i)};
    sets_rig some, full;
    plain.shape.adapter = (hy_adapter){0};
    sets_open(&some, &choice);
    sets_open(&full, &plain);
    fill_b(&some);
    for_all(&some, &full, merge);
    sets_train(&some);
    sets_train(&full);
    for (int i = 0; i < SETS_ROWS; i++) {
        ck_assert_float_eq_tol(some.losses[i], full.losses[i], 1e-5f);
    }
    ck_assert_int_gt(for_all(&some, &full, check_gradients), 0);
    sets_close(&some);
    sets_close(&full);
}
END_TEST

/* With B zero the model is the plain one, to the bit: what is added is zero. */
START_TEST(a_new_adapter_changes_nothing) {
    sets_choice choice = {.shape = shape_of(_i), .trained = TRAINED};
    sets_choice plain = {.shape = shape_of(_i)};
    sets_rig some, full;
    plain.shape.adapter = (hy_adapter){0};
    sets_open(&some, &choice);
    sets_open(&full, &plain);
    sets_train(&some);
    sets_train(&full);
    ck_assert_mem_eq(some.losses, full.losses, SETS_ROWS * sizeof *some.losses);
    sets_close(&some);
    sets_close(&full);
}
END_TEST

/* Recomputation, rings, disk, offloaded activations and delays; with dropout, whose numbers are
 * found again. */
START_TEST(neither_place_nor_recomputation_changes_a_bit) {
    static const int groups[] = {0, HY_KEEP_CHEAP, HY_KEEP_CHEAP | HY_KEEP_ATTENTION,
                                 HY_KEEP_CHEAP | HY_KEEP_MLP, HY_KEEP_ALL};
    sets_choice choice = {.shape = shape_of(_i % CASES), .trained = TRAINED};
    choice.shape.adapter.dropout = _i < CASES ? 0 : 0.25;
    sets_rig base, other;
    sets_open(&base, &choice);
    fill_b(&base);
    sets_train(&base);
    for (int g = 0; g < 5; g++) {
        for (int place = 0; place < 3; place++) {
            sets_choice c = choice;
            char what[64];
            c.options.recompute = groups[g];
            c.options.offloads = place == 2;
            c.place[SETS_FROZEN] = place == 1 ? HY_DISK : place == 2 ? HY_PINNED : HY_DEVICE;
            c.place[SETS_WEIGHTS] = c.place[SETS_GRADS] = place == 2 ? HY_PINNED : HY_DEVICE;
            c.delay = place * 20;
            sets_open(&other, &c);
            fill_b(&other);
            sets_train(&other);
            snprintf(what, sizeof what, "recompute %d, place %d", groups[g], place);
            sets_compare(&base, &other, what);
            sets_close(&other);
        }
    }
    sets_close(&base);
}
END_TEST

/* ---- dropout --------------------------------------------------------------------------------- */

/* Another seed, other numbers; evaluation leaves nothing out. */
START_TEST(dropout_follows_its_seed_and_leaves_evaluation_alone) {
    sets_choice choice = {.shape = shape_of(2), .trained = TRAINED};
    float first[SETS_ROWS], second[SETS_ROWS], without[SETS_ROWS];
    sets_rig r;
    choice.shape.adapter.dropout = 0.5;
    sets_open(&r, &choice);
    fill_b(&r);
    hy_batch_input input = sets_input(&r, 0, false);
    must(hy_batch_evaluate(r.plan, &input));
    must(r.backend->stream_sync(r.compute));
    memcpy(without, r.losses, sizeof without);
    must(hy_batch_train(r.plan, &input));
    must(r.backend->stream_sync(r.compute));
    memcpy(first, r.losses, sizeof first);
    r.dropout_seed[0]++;
    must(hy_batch_train(r.plan, &input));
    must(r.backend->stream_sync(r.compute));
    memcpy(second, r.losses, sizeof second);
    sets_close(&r);
    ck_assert_mem_ne(first, second, sizeof first);
    ck_assert_mem_ne(first, without, sizeof first);
    choice.shape.adapter.dropout = 0;
    sets_open(&r, &choice);
    fill_b(&r);
    input = sets_input(&r, 0, false);
    must(hy_batch_evaluate(r.plan, &input));
    must(r.backend->stream_sync(r.compute));
    ck_assert_mem_eq(r.losses, without, sizeof without);
    sets_close(&r);
}
END_TEST

START_TEST(dropout_leaves_out_its_share_and_keeps_the_mean) {
    enum { COUNT = 100003 };
    float *x = malloc(COUNT * sizeof *x), *y = calloc(COUNT, sizeof *y);
    int32_t seed[2] = {5, -7};
    hy_backend *b;
    hy_stream *s;
    int zeros = 0;
    for (int i = 0; i < COUNT; i++) x[i] = 1 + (float)(i % 7);
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 2}, &b));
    must(b->stream_create(b, "compute", &s));
    hy_op_call call = {.kind = HY_OP_DROPOUT, .attr.dropout = {.rate = 0.2f, .first = 77}};
    call.t[HY_DROPOUT_X] = hy_tensor_1d(x, HY_F32, COUNT);
    call.t[HY_DROPOUT_SEED] = hy_tensor_1d(seed, HY_I32, 2);
    call.t[HY_DROPOUT_Y] = hy_tensor_1d(y, HY_F32, COUNT);
    must(b->supports(b, &call));
    must(b->enqueue(s, &call));
    must(b->stream_sync(s));
    for (int i = 0; i < COUNT; i++) {
        zeros += y[i] == 0;
        if (y[i] != 0) ck_assert_float_eq_tol(y[i], x[i] / 0.8f, 1e-5f);
    }
    ck_assert_int_ge(zeros, COUNT / 5 - 600); /* five deviations */
    ck_assert_int_le(zeros, COUNT / 5 + 600);
    float before = y[COUNT - 1];
    call.t[HY_DROPOUT_C] = hy_tensor_1d(y, HY_F32, COUNT);
    must(b->enqueue(s, &call));
    must(b->stream_sync(s));
    ck_assert_float_eq(y[COUNT - 1], 2 * before);
    call.t[HY_DROPOUT_SEED].data = NULL;
    must_fail(b->supports(b, &call), HY_ERR_INPUT, "seed is missing");
    b->stream_destroy(s);
    b->destroy(b);
    free(x);
    free(y);
}
END_TEST

/* Through the mask as well: along its own gradient the loss rises by the gradient's square. */
START_TEST(gradients_pass_through_dropout) {
    sets_choice choice = {.shape = shape_of(_i), .trained = TRAINED};
    double loss[2], square = 0, step = 0;
    sets_rig r;
    choice.shape.adapter.dropout = 0.4;
    sets_open(&r, &choice);
    fill_b(&r);
    hy_batch_input input = sets_input(&r, 0, false);
    must(hy_batch_train(r.plan, &input));
    must(r.backend->stream_sync(r.compute));
    float **grads = calloc((size_t)r.model->params.count, sizeof *grads);
    for (int32_t i = 0; i < r.model->params.count; i++) {
        if (!r.model->params.list[i].is_trainable) continue;
        grads[i] = sets_read(&r, SETS_GRADS, i);
        for (int64_t k = 0; k < r.model->params.list[i].count; k++) {
            square += (double)grads[i][k] * grads[i][k];
        }
    }
    step = 2e-3 / sqrt(square);
    for (int side = 0; side < 2; side++) {
        for (int32_t i = 0; i < r.model->params.count; i++) {
            if (!grads[i]) continue;
            float *values = sets_read(&r, SETS_WEIGHTS, i);
            for (int64_t k = 0; k < r.model->params.list[i].count; k++) {
                values[k] += (float)((side ? -2 : 1) * step * grads[i][k]);
            }
            write_param(&r, i, values);
            free(values);
        }
        must(hy_batch_train(r.plan, &input));
        must(r.backend->stream_sync(r.compute));
        loss[side] = 0;
        for (int i = 0; i < SETS_ROWS; i++) loss[side] += (double)r.losses[i] / SETS_ROWS;
    }
    double measured = (loss[0] - loss[1]) / (2 * step);
    ck_assert_msg(fabs(measured - square) < 0.01 * square, "%g, expected %g", measured, square);
    for (int32_t i = 0; i < r.model->params.count; i++) free(grads[i]);
    free(grads);
    sets_close(&r);
}
END_TEST

/* ---- names ----------------------------------------------------------------------------------- */

START_TEST(names_mean_the_matrices_of_the_family) {
    const int32_t without_up = HY_ADAPT_Q | HY_ADAPT_K | HY_ADAPT_V | HY_ADAPT_O | HY_ADAPT_DOWN;
    hy_shape llama = llama_shape(), gpt2 = gpt2_shape();
    int32_t parts;
    must(hy_adapter_parts_named(&llama, "q_proj, v_proj", &parts));
    ck_assert_int_eq(parts, HY_ADAPT_Q | HY_ADAPT_V);
    must(hy_adapter_parts_named(&llama, "attention,down", &parts));
    ck_assert_int_eq(parts, without_up);
    must(hy_adapter_parts_named(&gpt2, "c_attn,c_proj", &parts));
    ck_assert_int_eq(parts, without_up);
    must_fail(hy_adapter_parts_named(&llama, "q_proj,c_attn", &parts), HY_ERR_INPUT,
              "\"c_attn\" is not a matrix of this model; accepted: q_proj, k_proj, v_proj, o_proj, "
              "gate_proj, up_proj, down_proj");
    must_fail(hy_adapter_parts_named(&gpt2, "gate", &parts), HY_ERR_INPUT, "c_attn, attn.c_proj");
    must_fail(hy_adapter_parts_named(&llama, "c_proj", &parts), HY_ERR_INPUT, "not a matrix");
    must_fail(hy_adapter_parts_named(&llama, "", &parts), HY_ERR_INPUT, "\"\" is not a matrix");
    llama.adapter = (hy_adapter){.rank = -2, .parts = HY_ADAPT_ALL};
    must_fail(hy_shape_complete(&llama), HY_ERR_INPUT, "between 1 and 1024");
    llama.adapter = (hy_adapter){.rank = 4};
    must_fail(hy_shape_complete(&llama), HY_ERR_INPUT, "no matrix of this model");
}
END_TEST

START_TEST(modules_have_names_of_ours) {
    static const struct {
        hy_arch arch;
        const char *module, *ours;
    } names[] = {
        {HY_ARCH_NONE, "embed", "embed.tokens.weight"},
        {HY_ARCH_NONE, "model.embed_tokens", "embed.tokens.weight"},
        {HY_ARCH_NONE, "lm_head", "head.weight"},
        {HY_ARCH_NONE, "model.norm", "final_norm.*"},
        {HY_ARCH_NONE, "input_layernorm", "blocks.*.norm1.*"},
        {HY_ARCH_NONE, "model.layers.13.post_attention_layernorm", "blocks.13.norm2.*"},
        {HY_ARCH_NONE, "transformer.h.2.ln_1", "blocks.2.norm1.*"},
        {HY_ARCH_NONE, "transformer.ln_f", "final_norm.*"},
        {HY_ARCH_NONE, "k_proj", "blocks.*.attn.qkv.*"},
        {HY_ARCH_NONE, "model.layers.7.mlp.up_proj", "blocks.7.mlp.gate_up.*"},
        {HY_ARCH_NONE, "attn.c_proj", "blocks.*.attn.out.*"},
        {HY_ARCH_NONE, "transformer.h.11.mlp.c_proj", "blocks.11.mlp.down.*"},
        {HY_ARCH_OLMO2, "post_attention_layernorm", "blocks.*.norm1_after.*"},
        {HY_ARCH_GEMMA3, "model.layers.2.post_attention_layernorm", "blocks.2.norm1_after.*"},
        {HY_ARCH_GEMMA3, "pre_feedforward_layernorm", "blocks.*.norm2.*"},
        {HY_ARCH_GRANITE4, "post_attention_layernorm", "blocks.*.norm2.*"},
        {HY_ARCH_GRANITE4, "shared_mlp.input_linear", "blocks.*.mlp.gate_up.*"},
        {HY_ARCH_PHI3, "qkv_proj", "blocks.*.attn.qkv.*"},
        {HY_ARCH_NEOX, "norm", "final_norm.*"}};
    char out[64];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *module = names[i].module;
        ck_assert(hy_adapter_module_params(names[i].arch, module, strlen(module), out, sizeof out));
        ck_assert_str_eq(out, names[i].ours);
    }
    ck_assert(
        !hy_adapter_module_params(HY_ARCH_NONE, "blocks.1.norm1.weight", 21, out, sizeof out));
    /* of attention or mlp? */
    ck_assert(!hy_adapter_module_params(HY_ARCH_NONE, "c_proj", 6, out, sizeof out));
}
END_TEST

START_TEST(an_adapter_knows_its_matrix_and_its_rows) {
    hy_shape shape = shape_of(3);
    must(hy_shape_complete(&shape));
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
        hy_param_kind a = hy_adapter_kind(matrices[i]), b = (hy_param_kind)(a + 1);
        ck_assert_int_eq(hy_adapter_matrix(a), matrices[i]);
        ck_assert_int_eq(hy_adapter_matrix(b), matrices[i]);
        ck_assert(!hy_is_adapter_b(a) && hy_is_adapter_b(b) && !hy_is_adapter_b(matrices[i]));
    }
    shape.adapter.parts = HY_ADAPT_Q | HY_ADAPT_V;
    hy_adapter_pieces pieces = hy_shape_adapter_pieces(&shape, HY_P_QKV);
    hy_adapter_rows before = hy_adapter_rows_before(&pieces, 2, 3); /* k has none */
    ck_assert_int_eq(before.a, 3);
    ck_assert_int_eq(before.b, pieces.rows[0]);
    before = hy_adapter_rows_before(&pieces, pieces.count, 3);
    ck_assert_int_eq(before.a, 6);
    ck_assert_int_eq(before.b, pieces.rows[0] + pieces.rows[2]);
}
END_TEST

START_TEST(modules_of_one_matrix_are_named_together) {
    must(hy_adapter_check_modules("none"));
    must(hy_adapter_check_modules("v_proj, q_proj,lm_head ,k_proj"));
    must(hy_adapter_check_modules("model.layers.1.mlp.up_proj,model.layers.1.mlp.gate_proj"));
    must_fail(hy_adapter_check_modules("q_proj,k_proj"), HY_ERR_INPUT,
              "q_proj is listed without v_proj");
    must_fail(hy_adapter_check_modules("model.layers.1.mlp.up_proj,gate_proj"), HY_ERR_INPUT,
              "without model.layers.1.mlp.gate_proj");
}
END_TEST

static void check_beside(const hy_shape *shape, const char *names, const char *refusal) {
    hy_params params;
    must(hy_params_init(&params, shape));
    must(hy_params_mark_beside(&params, names));
    if (refusal)
        must_fail(hy_adapter_check_beside(&params), HY_ERR_INPUT, refusal);
    else
        must(hy_adapter_check_beside(&params));
    hy_params_fini(&params);
}

START_TEST(what_is_trained_whole_is_whole_modules_without_adapters) {
    hy_shape shape = shape_of(2);
    must(hy_shape_complete(&shape));
    shape.adapter.parts = HY_ADAPT_GATE | HY_ADAPT_UP;
    check_beside(&shape, "embed.*,head.weight,final_norm.*,*.norm?.*", NULL);
    check_beside(&shape, "*.attn.*,blocks.1.mlp.down.weight", NULL);
    check_beside(&shape, "blocks.0.mlp.*", "blocks.0.mlp.gate_up.weight already has an adapter");
    shape.adapter.parts = HY_ADAPT_K;
    check_beside(&shape, "blocks.1.*", "blocks.1.attn.qkv.weight already has an adapter");
    shape.has_qkv_bias = true;
    check_beside(&shape, "*.qkv.bias", "blocks.0.attn.qkv.bias already has an adapter");
    shape.adapter.parts = HY_ADAPT_O;
    check_beside(&shape, "*.qkv.weight", "blocks.0.attn.qkv.bias is not");
    check_beside(&shape, "*.qkv.bias", "blocks.0.attn.qkv.weight is not");
    check_beside(&shape, "*.qkv.*", NULL);
    shape = linear_shape();
    must(hy_shape_complete(&shape));
    check_beside(&shape, "*.linear.norm.weight,*.linear.conv.weight", NULL);
    check_beside(&shape, "*.linear.a_log", "blocks.0.linear.a_log cannot be trained beside");
    check_beside(&shape, "blocks.1.linear.dt_bias", "it is only a parameter of one; accepted: ");
}
END_TEST

START_TEST(the_base_has_the_random_numbers_it_has_without_adapters) {
    hy_shape with = shape_of(2), without = llama_shape();
    hy_params a, b;
    must(hy_shape_complete(&with));
    must(hy_shape_complete(&without));
    must(hy_params_init(&a, &with));
    must(hy_params_init(&b, &without));
    int32_t k = 0;
    for (int32_t i = 0; i < a.count; i++) {
        if (hy_is_adapter(a.list[i].kind)) {
            ck_assert_int_ge(a.list[i].first, b.elements);
            continue;
        }
        ck_assert_str_eq(a.list[i].name, b.list[k].name);
        ck_assert_int_eq(a.list[i].first, b.list[k].first);
        k++;
    }
    ck_assert_int_eq(k, b.count);
    hy_params_fini(&a);
    hy_params_fini(&b);
}
END_TEST

static Suite *adapters_suite(void) {
    Suite *suite = suite_create("adapters");
    TCase *tests = tcase_create("adapters");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, gradients_are_those_of_the_merged_matrix, 0, CASES);
    tcase_add_loop_test(tests, a_new_adapter_changes_nothing, 0, CASES);
    tcase_add_loop_test(tests, neither_place_nor_recomputation_changes_a_bit, 0, 2 * CASES);
    tcase_add_test(tests, dropout_follows_its_seed_and_leaves_evaluation_alone);
    tcase_add_loop_test(tests, gradients_pass_through_dropout, 0, CASES);
    tcase_add_test(tests, dropout_leaves_out_its_share_and_keeps_the_mean);
    tcase_add_test(tests, names_mean_the_matrices_of_the_family);
    tcase_add_test(tests, modules_have_names_of_ours);
    tcase_add_test(tests, an_adapter_knows_its_matrix_and_its_rows);
    tcase_add_test(tests, modules_of_one_matrix_are_named_together);
    tcase_add_test(tests, what_is_trained_whole_is_whole_modules_without_adapters);
    tcase_add_test(tests, the_base_has_the_random_numbers_it_has_without_adapters);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(adapters_suite)
