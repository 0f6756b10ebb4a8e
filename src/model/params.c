/* params.c: the list of parameters that a shape has. See params.h. */
#include "model/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "formats/safetensors.h"
#include "kernels/coded.h"

#define SMALL_TENSOR 4096

static const char *const kind_names[HY_P_KIND_COUNT] = {
    [HY_P_TOKENS] = "embed.tokens.weight",
    [HY_P_POSITIONS] = "embed.positions.weight",
    [HY_P_NORM1] = "norm1.weight",
    [HY_P_NORM1_BIAS] = "norm1.bias",
    [HY_P_QKV] = "attn.qkv.weight",
    [HY_P_QKV_BIAS] = "attn.qkv.bias",
    [HY_P_Q_NORM] = "attn.q_norm.weight",
    [HY_P_K_NORM] = "attn.k_norm.weight",
    [HY_P_OUT] = "attn.out.weight",
    [HY_P_OUT_BIAS] = "attn.out.bias",
    [HY_P_NORM2] = "norm2.weight",
    [HY_P_NORM2_BIAS] = "norm2.bias",
    [HY_P_UP] = "mlp.up.weight",
    [HY_P_UP_BIAS] = "mlp.up.bias",
    [HY_P_DOWN] = "mlp.down.weight",
    [HY_P_DOWN_BIAS] = "mlp.down.bias",
    [HY_P_FINAL_NORM] = "final_norm.weight",
    [HY_P_FINAL_NORM_BIAS] = "final_norm.bias",
    [HY_P_HEAD] = "head.weight",
    [HY_P_QKV_A] = "attn.qkv.lora_a",
    [HY_P_QKV_B] = "attn.qkv.lora_b",
    [HY_P_OUT_A] = "attn.out.lora_a",
    [HY_P_OUT_B] = "attn.out.lora_b",
    [HY_P_UP_A] = "mlp.up.lora_a",
    [HY_P_UP_B] = "mlp.up.lora_b",
    [HY_P_DOWN_A] = "mlp.down.lora_a",
    [HY_P_DOWN_B] = "mlp.down.lora_b",
};

const char *hy_param_kind_name(hy_param_kind kind, bool is_gated) {
    static const char *const gated[HY_P_KIND_COUNT] = {[HY_P_UP] = "mlp.gate_up.weight",
                                                       [HY_P_UP_A] = "mlp.gate_up.lora_a",
                                                       [HY_P_UP_B] = "mlp.gate_up.lora_b"};
    return is_gated && gated[kind] ? gated[kind] : kind_names[kind];
}

hy_param_kind hy_param_weight_of(hy_param_kind kind) {
    switch (kind) {
    case HY_P_NORM1_BIAS:
    case HY_P_QKV_BIAS:
    case HY_P_OUT_BIAS:
    case HY_P_NORM2_BIAS:
    case HY_P_UP_BIAS:
    case HY_P_DOWN_BIAS:
    case HY_P_FINAL_NORM_BIAS: return (hy_param_kind)(kind - 1);
    default: return kind;
    }
}

/* Adds a parameter of `rows` x `cols`; cols 0 makes it a vector. */
static void add(hy_params *p, const hy_shape *s, int32_t unit, hy_param_kind kind, int64_t rows,
                int64_t cols) {
    hy_param *param = &p->list[p->count];
    int64_t stored = cols ? rows * cols : rows;
    if (kind == HY_P_TOKENS || kind == HY_P_HEAD) rows = hy_shape_vocab_rows(s);
    *param = (hy_param){.kind = kind,
                        .unit = unit,
                        .ndim = cols ? 2 : 1,
                        .shape = {rows, cols},
                        .count = cols ? rows * cols : rows,
                        .stored = stored,
                        .whole = p->count,
                        .is_trainable = true,
                        .has_decay = cols > 0,
                        .own_decay = -1,
                        .lr_scale = 1,
                        .init_std = cols ? s->init_std : 0};
    param->is_hidden = hy_linear_bit(kind) != 0 || hy_is_adapter(kind);
    bool is_norm = kind == HY_P_NORM1 || kind == HY_P_NORM2 || kind == HY_P_FINAL_NORM;
    if (is_norm || kind == HY_P_Q_NORM || kind == HY_P_K_NORM) param->init_mean = 1;
    /* What writes into the residual stream starts smaller: 2L additions (GPT-2's rule). */
    if (kind == HY_P_OUT || kind == HY_P_DOWN) param->init_std /= sqrt(2.0 * s->layers);
    const char *name = hy_param_kind_name(kind, s->is_gated);
    bool is_block = unit >= 1 && unit <= s->layers;
    int length = is_block ? snprintf(param->name, sizeof param->name, "blocks.%d.", unit - 1) : 0;
    snprintf(param->name + length, sizeof param->name - (size_t)length, "%s", name);
    p->at[unit * HY_P_KIND_COUNT + kind] = p->count++;
}

static void add_norm(hy_params *p, const hy_shape *s, int32_t unit, hy_param_kind kind) {
    add(p, s, unit, kind, s->width, 0);
    if (!s->is_rms) add(p, s, unit, (hy_param_kind)(kind + 1), s->width, 0);
}

static void add_linear(hy_params *p, const hy_shape *s, int32_t unit, hy_param_kind kind,
                       int64_t out, int64_t in, bool has_bias) {
    add(p, s, unit, kind, out, in);
    if (has_bias) add(p, s, unit, (hy_param_kind)(kind + 1), out, 0);
}

hy_adapter_pieces hy_shape_adapter_pieces(const hy_shape *s, hy_param_kind matrix) {
    hy_adapter_pieces out = {.count = 1};
    int64_t queries = (int64_t)s->heads * s->head_size, keys = (int64_t)s->kv_heads * s->head_size;
    int32_t first = HY_ADAPT_O; /* the bit of the first piece; those of the others follow */
    out.rows[0] = s->width;
    if (matrix == HY_P_QKV) {
        bool is_one = hy_shape_packs_adapter(s);
        out.count = is_one ? 1 : 3;
        out.rows[0] = is_one ? hy_shape_qkv(s) : queries;
        out.rows[1] = out.rows[2] = keys;
        first = HY_ADAPT_Q;
    } else if (matrix == HY_P_UP) {
        out.count = s->is_gated ? 2 : 1;
        out.rows[0] = out.rows[1] = s->mlp_width;
        first = s->is_gated ? HY_ADAPT_GATE : HY_ADAPT_UP;
    } else if (matrix == HY_P_DOWN) {
        first = HY_ADAPT_DOWN;
    }
    for (int32_t i = 0; i < out.count && s->adapter.rank > 0; i++) {
        out.is_there[i] = (s->adapter.parts & first << i) != 0;
        out.adapted += out.is_there[i];
    }
    return out;
}

hy_adapter_rows hy_adapter_rows_before(const hy_adapter_pieces *pieces, int32_t piece,
                                       int64_t rank) {
    hy_adapter_rows rows = {0};
    for (int32_t i = 0; i < piece; i++) {
        rows.a += pieces->is_there[i] ? rank : 0;
        rows.b += pieces->is_there[i] ? pieces->rows[i] : 0;
    }
    return rows;
}

/* A begins as PyTorch's linear layers do, B as zero: the model begins as it was. */
static void add_adapter(hy_params *p, const hy_shape *s, int32_t unit, hy_param_kind matrix) {
    hy_adapter_pieces pieces = hy_shape_adapter_pieces(s, matrix);
    const hy_param *whole = &p->list[hy_params_find(p, unit, matrix)];
    int64_t in = whole->shape[1], rank = s->adapter.rank;
    if (pieces.adapted == 0) return;
    hy_adapter_rows all = hy_adapter_rows_before(&pieces, pieces.count, rank);
    hy_param *a = &p->list[p->count], *b = a + 1;
    add(p, s, unit, hy_adapter_kind(matrix), all.a, in);
    add(p, s, unit, (hy_param_kind)(hy_adapter_kind(matrix) + 1), all.b, rank);
    a->init_std = b->init_std = 0;
    a->init_bound = 1 / sqrt((double)in);
    if (pieces.adapted == 1) return;
    for (int32_t i = 0; i < pieces.count; i++) {
        if (!pieces.is_there[i]) continue;
        a->piece_rows[a->pieces++] = rank;
        b->piece_rows[b->pieces++] = pieces.rows[i];
    }
}

/* Adapters are numbered behind all others, whose random numbers are the same with and without them. */
static void number(hy_params *p) {
    p->elements = 0;
    for (int is_adapter = 0; is_adapter < 2; is_adapter++) {
        for (int32_t i = 0; i < p->count; i++) {
            if (hy_is_adapter(p->list[i].kind) != is_adapter) continue;
            p->list[i].first = p->elements;
            p->elements += p->list[i].stored;
        }
    }
}

/* The matrices of a packed one. */
static void set_pieces(hy_params *p, const hy_shape *s, int32_t unit) {
    hy_param *qkv = &p->list[hy_params_find(p, unit, HY_P_QKV)];
    hy_param *up = &p->list[hy_params_find(p, unit, HY_P_UP)];
    qkv->pieces = 3;
    qkv->piece_rows[0] = (int64_t)s->heads * s->head_size;
    qkv->piece_rows[1] = qkv->piece_rows[2] = (int64_t)s->kv_heads * s->head_size;
    if (!s->is_gated) return;
    up->pieces = 2;
    up->piece_rows[0] = up->piece_rows[1] = s->mlp_width;
}

static void add_block(hy_params *p, const hy_shape *s, int32_t unit) {
    int32_t attention = s->heads * s->head_size;
    add_norm(p, s, unit, HY_P_NORM1);
    add_linear(p, s, unit, HY_P_QKV, hy_shape_qkv(s), s->width, s->has_qkv_bias);
    if (s->has_qk_norm) {
        add(p, s, unit, HY_P_Q_NORM, s->head_size, 0);
        add(p, s, unit, HY_P_K_NORM, s->head_size, 0);
    }
    add_linear(p, s, unit, HY_P_OUT, s->width, attention, hy_shape_out_bias(s));
    add_norm(p, s, unit, HY_P_NORM2);
    int64_t up = (int64_t)s->mlp_width * (s->is_gated ? 2 : 1);
    add_linear(p, s, unit, HY_P_UP, up, s->width, hy_shape_mlp_bias(s));
    add_linear(p, s, unit, HY_P_DOWN, s->width, s->mlp_width, hy_shape_mlp_bias(s));
    set_pieces(p, s, unit);
    add_adapter(p, s, unit, HY_P_QKV);
    add_adapter(p, s, unit, HY_P_OUT);
    add_adapter(p, s, unit, HY_P_UP);
    add_adapter(p, s, unit, HY_P_DOWN);
}

hy_status hy_params_init(hy_params *p, const hy_shape *s) {
    *p = (hy_params){.units = s->layers + 2};
    size_t slots = (size_t)p->units * HY_P_KIND_COUNT;
    p->list = calloc(slots, sizeof *p->list);
    p->at = malloc(slots * sizeof *p->at);
    if (!p->list || !p->at) {
        hy_params_fini(p);
        return hy_fail(HY_ERR_MEMORY, "no memory for the list of parameters of %d blocks",
                       s->layers);
    }
    for (size_t i = 0; i < slots; i++) p->at[i] = -1;
    add(p, s, 0, HY_P_TOKENS, s->vocab, s->width);
    if (!s->has_rope) add(p, s, 0, HY_P_POSITIONS, s->context, s->width);
    for (int32_t layer = 0; layer < s->layers; layer++) add_block(p, s, layer + 1);
    int32_t last = s->layers + 1;
    add_norm(p, s, last, HY_P_FINAL_NORM);
    if (s->has_tied_head) {
        p->at[last * HY_P_KIND_COUNT + HY_P_HEAD] = hy_params_find(p, 0, HY_P_TOKENS);
    } else {
        add(p, s, last, HY_P_HEAD, s->vocab, s->width);
    }
    number(p);
    return HY_OK;
}

/* ---- a list ------------------------------------------------------------------------------------- */

#define UNIT_ELEMENTS ((int64_t)4 << 20) /* that small parameters fill together */

/* Of a model that is not ours: by what tables of tokens and heads are usually called. */
static bool sounds_hidden(const char *name) {
    static const char *const others[] = {"wte", "wpe", "head", "lm_head"};
    if (strstr(name, "emb")) return false;
    for (const char *word = name; *word; word += *word == '.' || *word == '/') {
        size_t length = strcspn(word, "./");
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
            if (strlen(others[i]) == length && !strncmp(word, others[i], length)) return false;
        }
        word += length;
    }
    return true;
}

static hy_status set_listed(hy_param *out, const hy_param_spec *spec, int32_t index) {
    const char *name = spec->name ? spec->name : "";
    HY_FAIL_IF(!name[0], HY_ERR_INPUT, "parameter number %d has no name", index);
    HY_FAIL_IF(strlen(name) >= HY_PARAM_NAME_MAX, HY_ERR_INPUT,
               "the name of parameter number %d has %zu letters; accepted are up to %d", index,
               strlen(name), HY_PARAM_NAME_MAX - 1);
    HY_FAIL_IF(
        !hy_safetensors_can_name(name), HY_ERR_INPUT,
        "\"%s\" cannot be the name of a parameter: files of tensors have names in UTF-8, and "
        "none is called __metadata__",
        name);
    HY_FAIL_IF(spec->ndim < 0 || spec->ndim > HY_PARAM_DIMS, HY_ERR_INPUT,
               "parameter %s has %d dimensions; accepted are 0 to %d", name, spec->ndim,
               HY_PARAM_DIMS);
    *out = (hy_param){.kind = HY_P_KIND_COUNT,
                      .ndim = spec->ndim,
                      .shape = {1},
                      .count = 1,
                      .is_trainable = true,
                      .has_decay = spec->decay >= 0 || spec->ndim >= 2,
                      .own_decay = spec->decay,
                      .lr_scale = spec->lr_scale,
                      .is_hidden = spec->ndim == 2 && sounds_hidden(name)};
    snprintf(out->name, sizeof out->name, "%s", name);
    for (int32_t i = 0; i < spec->ndim; i++) {
        HY_FAIL_IF(spec->shape[i] < 1, HY_ERR_INPUT,
                   "parameter %s: dimension %d has %lld elements; at least 1 is expected", name, i,
                   (long long)spec->shape[i]);
        bool is_too_large = __builtin_mul_overflow(out->count, spec->shape[i], &out->count) ||
                            out->count > INT64_MAX / 64;
        HY_FAIL_IF(is_too_large, HY_ERR_INPUT, "parameter %s has more elements than can be counted",
                   name);
        out->shape[i] = spec->shape[i];
    }
    out->stored = out->count;
    return HY_OK;
}

int64_t hy_param_whole_count(const hy_param *p) {
    int64_t count = 1;
    for (int32_t i = 0; i < p->ndim && p->part > 0; i++) count *= p->shape[i];
    return p->part > 0 ? count : p->count;
}

static int compare_names(const void *a, const void *b) {
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

static hy_status check_sorted(const char *const *names, int32_t count) {
    static const char scale[] = ".scale"; /* of state in 8 bits, in files */
    for (int32_t i = 0; i < count; i++) {
        char of[HY_PARAM_NAME_MAX];
        const char *key = of;
        HY_FAIL_IF(i > 0 && strcmp(names[i - 1], names[i]) == 0, HY_ERR_INPUT,
                   "two parameters are both called %s", names[i]);
        size_t length = strlen(names[i]), suffix = sizeof scale - 1;
        if (length <= suffix || strcmp(names[i] + length - suffix, scale) != 0) continue;
        snprintf(of, sizeof of, "%.*s", (int)(length - suffix), names[i]);
        HY_FAIL_IF(
            bsearch(&key, names, (size_t)count, sizeof *names, compare_names), HY_ERR_INPUT,
            "there are parameters %s and %s: the latter is what the scales of the former are "
            "called in files",
            of, names[i]);
    }
    return HY_OK;
}

/* No two are alike. */
static hy_status check_names(const hy_param_spec *list, int32_t count) {
    const char **names = malloc((size_t)count * sizeof *names);
    if (!names) return hy_fail(HY_ERR_MEMORY, "no memory to compare %d names", count);
    for (int32_t i = 0; i < count; i++) names[i] = list[i].name;
    qsort(names, (size_t)count, sizeof *names, compare_names);
    hy_status status = check_sorted(names, count);
    free(names);
    return status;
}

/* Into how many parts, and how large: blocks of 8-bit codes do not cross a border. */
static int64_t parts_of(int64_t count, int64_t *part) {
    int64_t parts = (count + UNIT_ELEMENTS - 1) / UNIT_ELEMENTS;
    *part = (count + parts - 1) / parts;
    *part = (*part + HY_QUANT_BLOCK - 1) / HY_QUANT_BLOCK * HY_QUANT_BLOCK;
    return (count + *part - 1) / *part;
}

/* Adds a parameter, in its parts, behind what fills the present unit. */
static void add_listed(hy_params *p, const hy_param *whole, int64_t *in_unit) {
    int64_t part, parts = parts_of(whole->count, &part);
    for (int64_t i = 0; i < parts; i++) {
        hy_param *param = &p->list[p->count++];
        *param = *whole;
        if (parts > 1) {
            param->part = part;
            param->part_at = i * part;
            param->count = whole->count - i * part < part ? whole->count - i * part : part;
            param->stored = param->count;
        }
        bool is_full = *in_unit > 0 && *in_unit + param->count > UNIT_ELEMENTS;
        p->units += is_full;
        *in_unit = (is_full ? 0 : *in_unit) + param->count;
        param->unit = p->units;
        param->first = p->elements;
        p->elements += param->count;
    }
}

static hy_status set_list(hy_params *p, const hy_param_spec *list, int32_t count) {
    int64_t in_unit = 0, entries = 0, part;
    hy_param whole;
    for (int32_t i = 0; i < count; i++) {
        HY_TRY(set_listed(&whole, &list[i], i));
        HY_FAIL_IF(whole.count > INT64_MAX / 64 - p->elements, HY_ERR_INPUT,
                   "parameter %s: all together have more elements than can be counted", whole.name);
        p->elements += whole.count;
        entries += parts_of(whole.count, &part);
    }
    HY_FAIL_IF(entries > INT32_MAX, HY_ERR_INPUT, "these parameters are too large: %lld elements",
               (long long)p->elements);
    HY_TRY(check_names(list, count));
    p->elements = 0;
    p->list = calloc((size_t)entries, sizeof *p->list);
    if (!p->list) return hy_fail(HY_ERR_MEMORY, "no memory for a list of %d parameters", count);
    for (int32_t i = 0; i < count; i++) {
        HY_TRY(set_listed(&whole, &list[i], i));
        whole.whole = i;
        add_listed(p, &whole, &in_unit);
    }
    p->units++;
    return HY_OK;
}

hy_status hy_params_init_list(hy_params *p, const hy_param_spec *list, int32_t count) {
    *p = (hy_params){0};
    HY_FAIL_IF(!list || count < 1, HY_ERR_INPUT,
               "a model needs at least one parameter, %d were given", count);
    hy_status status = set_list(p, list, count);
    if (status != HY_OK) hy_params_fini(p);
    return status;
}

void hy_params_fini(hy_params *p) {
    free(p->list);
    free(p->at);
    *p = (hy_params){0};
}

/* ---- which are meant ---------------------------------------------------------------------------- */

/* When letters do not agree, the last star takes one more: each star is gone back to once, so that no pattern
 * takes long. */
static bool matches(const char *pattern, const char *name) {
    const char *star = NULL, *after_star = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            after_star = name;
        } else if (*pattern && (*pattern == '?' || *pattern == *name)) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star + 1;
            name = ++after_star;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return *pattern == 0;
}

static hy_status fail_no_match(const hy_params *p, const char *entry) {
    const hy_param *last = &p->list[p->count - 1];
    return hy_fail(HY_ERR_INPUT, "\"%s\" matches no parameter; they are called %s, %s, %s%s", entry,
                   p->list[0].name, p->list[p->count / 2].name, last->name,
                   p->count > 3 ? " and so on" : "");
}

/* Adds what one entry of a list means. A guest has no blocks. */
static hy_status match_entry(const hy_params *p, const char *entry, bool *is_chosen) {
    int32_t layers = p->units - 2, found = 0;
    bool is_last = p->at && strncmp(entry, "last:", 5) == 0, is_all = strcmp(entry, "all") == 0;
    char *end;
    long last = is_last ? strtol(entry + 5, &end, 10) : 0;
    HY_FAIL_IF(is_last && (end == entry + 5 || *end || last < 0 || last > layers), HY_ERR_INPUT,
               "%s: accepted are last:0 to last:%d, the number of blocks", entry, layers);
    for (int32_t i = 0; i < p->count; i++) {
        bool is_meant = is_last ? p->list[i].unit > layers - last && p->list[i].unit > 0
                                : is_all || matches(entry, p->list[i].name);
        is_chosen[i] |= is_meant;
        found += is_meant;
    }
    return found ? HY_OK : fail_no_match(p, entry);
}

hy_status hy_params_match(const hy_params *p, const char *names, bool *is_chosen) {
    for (const char *at = names;; at++) {
        const char *end = at + strcspn(at, ",");
        char entry[HY_PARAM_NAME_MAX];
        while (*at == ' ') at++;
        size_t size = at < end ? (size_t)(end - at) : 0;
        while (size > 0 && at[size - 1] == ' ') size--;
        HY_FAIL_IF(size >= sizeof entry, HY_ERR_INPUT,
                   "\"%.40s...\" is %zu bytes long; names of parameters have at most %zu", at, size,
                   sizeof entry - 1);
        memcpy(entry, at, size);
        entry[size] = 0;
        HY_TRY(match_entry(p, entry, is_chosen));
        at = end;
        if (*at == 0) return HY_OK;
    }
}

hy_status hy_params_select(hy_params *p, const char *names) {
    bool *is_chosen = calloc((size_t)p->count, sizeof *is_chosen);
    hy_status status = is_chosen ? HY_OK : hy_fail(HY_ERR_MEMORY, "no memory for %s", names);
    if (status == HY_OK) status = hy_params_match(p, names, is_chosen);
    for (int32_t i = 0; i < p->count && status == HY_OK; i++) {
        p->list[i].is_trainable = is_chosen[i];
    }
    free(is_chosen);
    return status;
}

hy_status hy_params_mark_beside(hy_params *p, const char *names) {
    bool *is_meant = calloc((size_t)p->count, sizeof *is_meant);
    hy_status status = is_meant ? HY_OK : hy_fail(HY_ERR_MEMORY, "no memory for %s", names);
    if (status == HY_OK) status = hy_params_match(p, names, is_meant);
    for (int32_t i = 0; i < p->count && status == HY_OK; i++) {
        p->list[i].is_beside = is_meant[i] && !hy_is_adapter(p->list[i].kind);
    }
    free(is_meant);
    return status;
}

/* ---- layouts ----------------------------------------------------------------------------------- */

int32_t hy_param_block(const hy_param *param, hy_dtype dtype) {
    return param->ndim == 2 ? hy_coded_block(dtype, param->shape[0], param->shape[1]) : 0;
}

hy_dtype hy_params_stored(const hy_params *p, int32_t index, hy_dtype dtype) {
    const hy_param *param = &p->list[index];
    bool is_real = param->is_trainable || param->stays_real;
    if (is_real || !hy_param_block(param, p->frozen_codes)) return dtype;
    switch (param->kind) {
    case HY_P_QKV:
    case HY_P_OUT:
    case HY_P_UP:
    case HY_P_DOWN: return p->frozen_codes;
    case HY_P_TOKENS: /* nf4: as in others' files; fp8 is what matmuls of blocks have */
        if (p->frozen_codes != HY_I8) return dtype;
        return hy_params_find(p, p->units - 1, HY_P_HEAD) != index ? p->frozen_codes : dtype;
    default: return dtype;
    }
}

int32_t hy_param_group(const hy_param *param, hy_dtype dtype) {
    int32_t block = hy_param_block(param, dtype), group = hy_coded_most(dtype);
    for (int32_t i = 0; block && group && i < hy_param_pieces(param); i++) {
        int64_t blocks = hy_param_piece_rows(param, i) * param->shape[1] / block;
        while (blocks % group) group /= 2;
    }
    return block ? group : 0;
}

int32_t hy_params_group(const hy_params *p, int32_t index, hy_dtype dtype) {
    return p->has_plain_scales ? 0 : hy_param_group(&p->list[index], dtype);
}

/* A layout of some parameters: the items have their types; item_of says which parameter each is of. */
static hy_status lay_out(const hy_params *p, const hy_layout_item *items, const int32_t *item_of,
                         int32_t count, hy_layout *out) {
    HY_TRY(hy_layout_init(out, items, count, p->units));
    if (count == p->count) return HY_OK;
    hy_status status = hy_layout_set_items(out, item_of, p->count);
    if (status != HY_OK) hy_layout_fini(out);
    return status;
}

/* Codes with scales for what is large, fp32 for what is small. */
static void code_item(hy_layout_item *item) {
    bool is_small = item->count < SMALL_TENSOR;
    item->dtype = is_small ? HY_F32 : HY_U8;
    item->block = is_small ? 0 : HY_QUANT_BLOCK;
}

/* The item of a parameter in the layout of a set. */
static hy_layout_item item_in(const hy_params *p, int32_t index, hy_param_set set, hy_dtype dtype) {
    const hy_param *param = &p->list[index];
    hy_layout_item item = {.unit = param->unit, .dtype = dtype, .count = param->count};
    if (set != HY_SET_TRAINABLE) item.dtype = hy_params_stored(p, index, dtype);
    item.block = hy_param_block(param, item.dtype);
    item.group = hy_params_group(p, index, item.dtype);
    if (dtype == HY_U8) code_item(&item);
    return item;
}

static hy_layout_item extent_item(const hy_param *param, const hy_param_extent *extent,
                                  hy_dtype dtype) {
    hy_layout_item item = {.unit = param->unit, .dtype = dtype, .count = extent->count};
    if (extent->is_exact) item.dtype = HY_F32;
    if (item.dtype == HY_U8) code_item(&item);
    return item;
}

hy_fp8_use hy_params_fp8_possible(const hy_params *p) {
    hy_fp8_use use = {.is_frozen = p->frozen_codes == HY_E4M3};
    for (int32_t i = 0; i < p->count; i++) {
        const hy_param *param = &p->list[i];
        uint32_t bit = hy_linear_bit(param->kind);
        if (param->is_trainable) use.grads |= bit;
        if (param->is_trainable || use.is_frozen) use.weights |= bit;
    }
    return use;
}

hy_dtype hy_params_fp8_stored(const hy_params *p, int32_t index, const hy_fp8_use *use) {
    const hy_param *param = &p->list[index];
    bool is_block = param->unit > 0 && param->unit < p->units - 1;
    if (!is_block || !param->is_trainable) return HY_DTYPE_COUNT;
    return use->weights & hy_linear_bit(param->kind) ? HY_E4M3 : HY_BF16;
}

/* One scale for all of it. */
static hy_layout_item fp8_item(const hy_param *param, hy_dtype dtype) {
    return (hy_layout_item){.unit = param->unit,
                            .dtype = dtype,
                            .count = param->count,
                            .block = hy_param_block(param, dtype)};
}

/* Which parameters a layout has: those of a set, of the copy in fp8, or those with an extent. */
typedef struct choice {
    hy_param_set set;
    const hy_fp8_use *fp8;
    const hy_param_extent *extents;
} choice;

/* False: the layout does not have it. */
static bool choose_item(const hy_params *p, int32_t index, const choice *c, hy_dtype dtype,
                        hy_layout_item *out) {
    const hy_param *param = &p->list[index];
    if (c->fp8) {
        hy_dtype fp8 = hy_params_fp8_stored(p, index, c->fp8);
        *out = fp8_item(param, fp8);
        return fp8 != HY_DTYPE_COUNT;
    }
    if (c->extents) {
        *out = extent_item(param, &c->extents[index], dtype);
        return out->count > 0;
    }
    *out = item_in(p, index, c->set, dtype);
    return c->set == HY_SET_ALL || param->is_trainable == (c->set == HY_SET_TRAINABLE);
}

static hy_status lay_out_some(const hy_params *p, const choice *c, hy_dtype dtype, hy_layout *out) {
    hy_layout_item *items = calloc((size_t)p->count, sizeof *items);
    int32_t *item_of = malloc((size_t)p->count * sizeof *item_of);
    int32_t count = 0;
    hy_status status = items && item_of ? HY_OK : hy_fail(HY_ERR_MEMORY, "no memory for a layout");
    for (int32_t i = 0; i < p->count && status == HY_OK; i++) {
        item_of[i] = choose_item(p, i, c, dtype, &items[count]) ? count++ : -1;
    }
    if (status == HY_OK) status = lay_out(p, items, item_of, count, out);
    free(items);
    free(item_of);
    return status;
}

hy_status hy_params_layout(const hy_params *p, hy_param_set set, hy_dtype dtype, hy_layout *out) {
    return lay_out_some(p, &(choice){.set = set}, dtype, out);
}

hy_status hy_params_fp8_layout(const hy_params *p, const hy_fp8_use *use, hy_layout *out) {
    return lay_out_some(p, &(choice){.fp8 = use}, HY_BF16, out);
}

hy_status hy_params_extents_layout(const hy_params *p, const hy_param_extent *extents,
                                   hy_dtype dtype, hy_layout *out) {
    return lay_out_some(p, &(choice){.extents = extents}, dtype, out);
}

void hy_param_initial(const hy_param *param, uint64_t seed, int64_t first, int64_t count,
                      float *out) {
    for (int64_t i = 0; i < count; i++) {
        double value = param->init_mean;
        if (param->init_bound > 0) {
            uint64_t index = (uint64_t)(param->first + first + i);
            value = param->init_bound * (2 * hy_rng_uniform(seed, HY_RNG_INIT, index) - 1);
        } else if (param->init_std > 0 && first + i < param->stored) {
            uint64_t index = (uint64_t)(param->first + first + i);
            value += param->init_std * hy_rng_normal(seed, HY_RNG_INIT, index);
        }
        out[i] = (float)value;
    }
}
