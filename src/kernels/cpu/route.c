/* route.c: which experts a token chooses, their weights and the gradient of both, and the order of
 * rows by expert.
 *
 * Experts are chosen by their logits, or with a bias by score + bias: the logits of a softmax have
 * the order of its scores, and are exact. How often a sequence chose each expert is counted first,
 * into the workspace. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

#define ELEMENTS_PER_TASK (16 * 1024)

/* The scores of a token. */
typedef struct scores {
    float logit[HY_ROUTE_EXPERTS_MAX];
    float score[HY_ROUTE_EXPERTS_MAX];
    float lse; /* not finite: the token has no scores */
} scores;

static void read_scores(const hy_op_call *call, const hy_tensor *logits, int64_t row, scores *s) {
    int64_t E = hy_tensor_width(logits);
    const float *x = hy_read(logits, row * E, E, s->logit);
    float most = -INFINITY, sum = 0;
    if (x != s->logit) memcpy(s->logit, x, (size_t)E * sizeof *x);
    for (int64_t e = 0; e < E; e++) most = x[e] > most ? x[e] : most;
    for (int64_t e = 0; e < E; e++) {
        s->score[e] = hy_exp(s->logit[e] - most);
        sum += s->score[e];
    }
    s->lse = most + logf(sum);
    bool is_softmax = call->attr.route.score == HY_ROUTE_SOFTMAX;
    for (int64_t e = 0; e < E; e++) {
        s->score[e] = is_softmax ? s->score[e] / sum : hy_sigmoid(s->logit[e]);
    }
}

/* p: the scores, made to sum to 1. Returns what they were divided by. */
static float make_shares(const hy_op_call *call, const scores *s, int64_t E, float *p) {
    float sum = 1;
    if (call->attr.route.score == HY_ROUTE_SIGMOID) {
        sum = 0;
        for (int64_t e = 0; e < E; e++) sum += s->score[e];
        sum += HY_ROUTE_EPS;
    }
    for (int64_t e = 0; e < E; e++) p[e] = s->score[e] / sum;
    return sum;
}

/* ---- how often a sequence chose each expert -------------------------------------------------- */

/* Where choices, logits and weights are in a call. */
typedef struct places {
    const hy_tensor *logits, *choice;
    int64_t N, E, k;
    bool counts; /* are counts used? */
} places;

static places places_of(const hy_op_call *call) {
    bool is_forward = call->kind == HY_OP_ROUTE;
    const hy_tensor *t = call->t;
    places p = {.logits = &t[is_forward ? HY_ROUTE_LOGITS : HY_ROUTE_BWD_LOGITS],
                .choice = &t[is_forward ? HY_ROUTE_CHOICE : HY_ROUTE_BWD_CHOICE]};
    p.N = hy_tensor_height(p.logits);
    p.E = hy_tensor_width(p.logits);
    p.k = hy_tensor_width(p.choice);
    p.counts = is_forward ? t[HY_ROUTE_LOSSES].data != NULL : call->attr.route.balance != 0;
    return p;
}

size_t hy_cpu_route_workspace(const hy_op_call *call, int threads) {
    places p = places_of(call);
    (void)threads;
    if (!p.counts) return 0;
    return hy_cpu_aligned((size_t)(p.N / call->attr.route.seq * p.E) * sizeof(float));
}

static void count_sequence(const hy_cpu_run *run, int64_t sequence, int worker) {
    const hy_op_call *call = run->call;
    places p = places_of(call);
    int64_t chosen = call->attr.route.seq * p.k;
    const int32_t *choice = (const int32_t *)p.choice->data + sequence * chosen;
    float *count = (float *)call->workspace.data + sequence * p.E;
    (void)worker;
    for (int64_t e = 0; e < p.E; e++) count[e] = 0;
    for (int64_t i = 0; i < chosen; i++) {
        if (choice[i] >= 0 && choice[i] < p.E) count[choice[i]]++;
    }
}

/* E / (k T), and the counts of the token's sequence. */
static float balance_of(const hy_op_call *call, const places *p, int64_t row, const float **count) {
    int64_t T = call->attr.route.seq;
    *count = (const float *)call->workspace.data + row / T * p->E;
    return (float)p->E / ((float)p->k * (float)T);
}

/* ---- forward --------------------------------------------------------------------------------- */

static void choose(const hy_op_call *call, const places *p, const scores *s, int32_t *choice) {
    const float *bias = call->t[HY_ROUTE_BIAS].data;
    float key[HY_ROUTE_EXPERTS_MAX];
    bool is_taken[HY_ROUTE_EXPERTS_MAX] = {false};
    for (int64_t e = 0; e < p->E; e++) {
        key[e] = bias ? s->score[e] + bias[e] : s->logit[e];
        if (!(key[e] > -INFINITY)) key[e] = -INFINITY;
    }
    for (int64_t j = 0; j < p->k; j++) {
        int32_t best = -1;
        for (int32_t e = 0; e < p->E; e++) {
            if (!is_taken[e] && (best < 0 || key[e] > key[best])) best = e;
        }
        is_taken[best] = true;
        choice[j] = best;
    }
}

static void route_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    places p = places_of(call);
    const hy_route_attr *a = &call->attr.route;
    scores s;
    for (int64_t row = first; row < first + rows; row++) {
        int32_t *choice = (int32_t *)p.choice->data + row * p.k;
        float *weights = (float *)call->t[HY_ROUTE_WEIGHTS].data + row * p.k, sum = 0;
        read_scores(call, p.logits, row, &s);
        if (!isfinite(s.lse)) {
            for (int32_t j = 0; j < p.k; j++) choice[j] = j, weights[j] = NAN;
            continue;
        }
        choose(call, &p, &s, choice);
        for (int64_t j = 0; j < p.k; j++) sum += s.score[choice[j]];
        float factor = a->is_renormalised ? a->scale / (sum + HY_ROUTE_EPS) : a->scale;
        for (int64_t j = 0; j < p.k; j++) weights[j] = s.score[choice[j]] * factor;
    }
}

static void loss_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    places p = places_of(call);
    scores s;
    float share[HY_ROUTE_EXPERTS_MAX];
    for (int64_t row = first; row < first + rows; row++) {
        const float *count;
        float *losses = (float *)call->t[HY_ROUTE_LOSSES].data + row * HY_ROUTE_LOSSES_COUNT;
        float factor = balance_of(call, &p, row, &count), balance = 0, entropy = 0;
        read_scores(call, p.logits, row, &s);
        make_shares(call, &s, p.E, share);
        for (int64_t e = 0; e < p.E; e++) {
            balance += count[e] * share[e];
            if (share[e] != 0) entropy -= share[e] * logf(share[e]);
        }
        losses[0] = s.lse * s.lse;
        losses[1] = factor * balance;
        losses[2] = entropy;
    }
}

static int64_t rows_per_task(int64_t E) { return hy_max64(1, ELEMENTS_PER_TASK / E); }

hy_status hy_cpu_route(const hy_cpu_run *run) {
    places p = places_of(run->call);
    HY_TRY(hy_cpu_for_rows(run, p.N, rows_per_task(p.E), route_rows));
    if (!p.counts) return HY_OK;
    hy_cpu_for_each(run, p.N / run->call->attr.route.seq, count_sequence);
    return hy_cpu_for_rows(run, p.N, rows_per_task(p.E), loss_rows);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* slope: the gradient of each score, from the weights of the chosen ones. With S the sum of the
 * chosen scores, weight = scale score / S, so dscore = (scale dweight - sum of dweight weight) / S. */
static void add_weight_slopes(const hy_op_call *call, const places *p, int64_t row, const scores *s,
                              float *slope) {
    const hy_route_attr *a = &call->attr.route;
    const int32_t *choice = (const int32_t *)p->choice->data + row * p->k;
    const float *dweights = (const float *)call->t[HY_ROUTE_BWD_DWEIGHTS].data + row * p->k;
    float sum = HY_ROUTE_EPS, product = 0;
    for (int64_t j = 0; j < p->k; j++) {
        sum += s->score[choice[j]];
        product += dweights[j] * s->score[choice[j]];
    }
    for (int64_t j = 0; j < p->k; j++) {
        float slope_of_one = dweights[j];
        if (a->is_renormalised) slope_of_one = (dweights[j] - product / sum) / sum;
        slope[choice[j]] += a->scale * slope_of_one;
    }
}

static void add_balance_slopes(const hy_op_call *call, const places *p, int64_t row,
                               const scores *s, float *slope) {
    const float *count;
    float share[HY_ROUTE_EXPERTS_MAX], mean = 0;
    float factor = balance_of(call, p, row, &count) * call->attr.route.balance;
    float sum = make_shares(call, s, p->E, share);
    bool is_softmax = call->attr.route.score == HY_ROUTE_SOFTMAX;
    for (int64_t e = 0; e < p->E && !is_softmax; e++) mean += count[e] * share[e];
    for (int64_t e = 0; e < p->E; e++) slope[e] += factor * (count[e] - mean) / sum;
}

static void route_bwd_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    places p = places_of(call);
    const hy_route_attr *a = &call->attr.route;
    const hy_tensor *out = &call->t[HY_ROUTE_BWD_DLOGITS];
    scores s;
    float slope[HY_ROUTE_EXPERTS_MAX], buffer[HY_ROUTE_EXPERTS_MAX];
    for (int64_t row = first; row < first + rows; row++) {
        float *dlogits = hy_target(out, row * p.E, buffer), mean = 0;
        read_scores(call, p.logits, row, &s);
        memset(slope, 0, (size_t)p.E * sizeof *slope);
        add_weight_slopes(call, &p, row, &s, slope);
        if (p.counts) add_balance_slopes(call, &p, row, &s, slope);
        bool is_softmax = a->score == HY_ROUTE_SOFTMAX, is_finite = isfinite(s.lse);
        for (int64_t e = 0; e < p.E && is_softmax; e++) mean += slope[e] * s.score[e];
        for (int64_t e = 0; e < p.E; e++) {
            float inner = is_softmax ? slope[e] - mean : slope[e] * (1 - s.score[e]);
            float z = a->z != 0 ? 2 * a->z * s.lse * hy_exp(s.logit[e] - s.lse) : 0;
            dlogits[e] = is_finite ? s.score[e] * inner + z : NAN;
        }
        hy_write(out, row * p.E, p.E, dlogits);
    }
}

/* The choices index the scores. */
static hy_status check_choice(const hy_op_call *call, const hy_tensor *choice, int64_t E) {
    const int32_t *chosen = choice->data;
    for (int64_t i = 0; i < hy_tensor_count(choice); i++) {
        HY_FAIL_IF(chosen[i] < 0 || chosen[i] >= E, HY_ERR_INPUT,
                   "%s: element %lld of choice is %d, expected 0 to %lld", hy_op_name(call->kind),
                   (long long)i, chosen[i], (long long)E - 1);
    }
    return HY_OK;
}

hy_status hy_cpu_route_bwd(const hy_cpu_run *run) {
    places p = places_of(run->call);
    HY_TRY(check_choice(run->call, p.choice, p.E));
    if (p.counts) hy_cpu_for_each(run, p.N / run->call->attr.route.seq, count_sequence);
    return hy_cpu_for_rows(run, p.N, rows_per_task(p.E), route_bwd_rows);
}

/* ---- sorting --------------------------------------------------------------------------------- */

/* offsets[e] first counts up to the end of expert e, which is where the next one begins. */
hy_status hy_cpu_sort_experts(const hy_cpu_run *run) {
    const hy_tensor *t = run->call->t;
    const int32_t *choice = t[HY_SORT_EXPERTS_CHOICE].data;
    int32_t *order = t[HY_SORT_EXPERTS_ORDER].data, *place = t[HY_SORT_EXPERTS_PLACE].data;
    int32_t *offsets = t[HY_SORT_EXPERTS_OFFSETS].data;
    int64_t rows = hy_tensor_count(&t[HY_SORT_EXPERTS_CHOICE]);
    int64_t E = hy_tensor_count(&t[HY_SORT_EXPERTS_OFFSETS]) - 1;
    HY_TRY(check_choice(run->call, &t[HY_SORT_EXPERTS_CHOICE], E));
    memset(offsets, 0, (size_t)(E + 1) * sizeof *offsets);
    for (int64_t i = 0; i < rows; i++) offsets[choice[i] + 1]++;
    for (int64_t e = 0; e < E; e++) offsets[e + 1] += offsets[e];
    for (int64_t i = 0; i < rows; i++) {
        place[i] = offsets[choice[i]]++;
        order[place[i]] = (int32_t)i;
    }
    for (int64_t e = E; e > 0; e--) offsets[e] = offsets[e - 1];
    offsets[0] = 0;
    return HY_OK;
}
