/* adapter_modules.c: modules that are trained whole beside adapters. See adapter.h.
 *
 * A module of other people's files is a weight and, where it has one, its bias. Which parameters of ours that is, the
 * table says; q, k and v are one matrix here, gate and up another. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "model/adapter.h"

#define MODULE_MAX 128 /* letters of a module's path */

static const struct {
    const char *module, *before, *behind; /* between the two comes the layer */
} known[] = {{"embed", "embed.tokens.weight", NULL},
             {"embed_tokens", "embed.tokens.weight", NULL},
             {"wte", "embed.tokens.weight", NULL},
             {"wpe", "embed.positions.weight", NULL},
             {"head", "head.weight", NULL},
             {"lm_head", "head.weight", NULL},
             {"norm", "final_norm.*", NULL},
             {"ln_f", "final_norm.*", NULL},
             {"input_layernorm", "blocks.", ".norm1.*"},
             {"post_attention_layernorm", "blocks.", ".norm2.*"},
             {"ln_1", "blocks.", ".norm1.*"},
             {"ln_2", "blocks.", ".norm2.*"},
             {"q_norm", "blocks.", ".attn.q_norm.weight"},
             {"k_norm", "blocks.", ".attn.k_norm.weight"},
             {"q_proj", "blocks.", ".attn.qkv.*"},
             {"k_proj", "blocks.", ".attn.qkv.*"},
             {"v_proj", "blocks.", ".attn.qkv.*"},
             {"o_proj", "blocks.", ".attn.out.*"},
             {"gate_proj", "blocks.", ".mlp.gate_up.*"},
             {"up_proj", "blocks.", ".mlp.gate_up.*"},
             {"down_proj", "blocks.", ".mlp.down.*"},
             {"c_attn", "blocks.", ".attn.qkv.*"},
             {"attn.c_proj", "blocks.", ".attn.out.*"},
             {"c_fc", "blocks.", ".mlp.up.*"},
             {"mlp.c_proj", "blocks.", ".mlp.down.*"}};

/* Modules that are one matrix here. */
static const char *const together[][4] = {{"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj"}};

/* ---- names ------------------------------------------------------------------------------------------- */

/* Is it the end of a module's path? */
static bool is_end(const char *module, size_t length, const char *name) {
    size_t size = strlen(name);
    if (size > length || strncmp(module + length - size, name, size) != 0) return false;
    return size == length || module[length - size - 1] == '.';
}

/* The number between points is the layer; its digits, 0: there is none. */
static size_t find_layer(const char *module, size_t length, const char **digits) {
    for (size_t i = 1; i < length; i++) {
        size_t run = strspn(module + i, "0123456789");
        bool is_layer =
            run > 0 && i + run < length && module[i - 1] == '.' && module[i + run] == '.';
        *digits = module + i;
        if (is_layer) return run;
    }
    return 0;
}

bool hy_adapter_module_params(const char *module, size_t length, char *out, size_t size) {
    const char *digits;
    size_t layer = find_layer(module, length, &digits), k = 0;
    while (k < sizeof known / sizeof known[0] && !is_end(module, length, known[k].module)) k++;
    if (k == sizeof known / sizeof known[0]) return false;
    if (!known[k].behind)
        snprintf(out, size, "%s", known[k].before);
    else
        snprintf(out, size, "%s%.*s%s", known[k].before, layer ? (int)layer : 1,
                 layer ? digits : "*", known[k].behind);
    return true;
}

/* ---- lists ------------------------------------------------------------------------------------------- */

/* An entry of a list with commas between, without the spaces around it; what follows it, NULL: it was the last. */
static const char *next_entry(const char *at, const char **entry, size_t *length) {
    at += strspn(at, " ");
    size_t all = strcspn(at, ",");
    *entry = at;
    *length = all;
    while (*length > 0 && at[*length - 1] == ' ') --*length;
    return at[all] == ',' ? at + all + 1 : NULL;
}

static bool has_entry(const char *names, const char *wanted) {
    const char *entry;
    size_t length;
    for (const char *at = names; at;) {
        at = next_entry(at, &entry, &length);
        if (length == strlen(wanted) && strncmp(entry, wanted, length) == 0) return true;
    }
    return false;
}

static hy_status check_entry(const char *names, const char *entry, size_t length) {
    for (size_t set = 0; set < sizeof together / sizeof together[0]; set++) {
        const char *const *name = together[set];
        while (*name && !is_end(entry, length, *name)) name++;
        if (!*name) continue;
        for (const char *const *other = together[set]; *other; other++) {
            char wanted[MODULE_MAX];
            snprintf(wanted, sizeof wanted, "%.*s%s", (int)(length - strlen(*name)), entry, *other);
            HY_FAIL_IF(!has_entry(names, wanted), HY_ERR_INPUT,
                       "%.*s without %s: they are one matrix here and trained whole together",
                       (int)length, entry, wanted);
        }
    }
    return HY_OK;
}

hy_status hy_adapter_check_modules(const char *names) {
    const char *entry;
    size_t length;
    for (const char *at = names; at;) {
        at = next_entry(at, &entry, &length);
        if (length < MODULE_MAX / 2) HY_TRY(check_entry(names, entry, length));
    }
    return HY_OK;
}

/* ---- parameters -------------------------------------------------------------------------------------- */

/* The weight of the module that a parameter is of: its own kind, or of a bias the one before it. */
static hy_param_kind weight_of(hy_param_kind kind) {
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

static const hy_param *at(const hy_params *params, int32_t unit, hy_param_kind kind) {
    int32_t index = hy_params_find(params, unit, kind);
    return index < 0 ? NULL : &params->list[index];
}

/* A list matches by patterns, so that more may be meant than was thought of. */
static hy_status check_param(const hy_params *params, const hy_param *param) {
    hy_param_kind kind = weight_of(param->kind), bias = (hy_param_kind)(kind + 1);
    bool has_adapter = hy_linear_bit(kind) && at(params, param->unit, hy_adapter_kind(kind));
    HY_FAIL_IF(has_adapter, HY_ERR_INPUT,
               "%s has an adapter, and PEFT's files keep a module whole or with an adapter; "
               "accepted are embed, head, norms (norm, *.norm1.*, *.norm2.*) and modules that "
               "lora_targets leaves out",
               param->name);
    const hy_param *weight = at(params, param->unit, kind);
    const hy_param *other = param != weight           ? weight
                            : weight_of(bias) == kind ? at(params, param->unit, bias)
                                                      : NULL;
    HY_FAIL_IF(other && !other->is_beside, HY_ERR_INPUT,
               "%s is trained whole and %s is not, and PEFT's files keep modules: name both, or "
               "neither",
               param->name, other->name);
    return HY_OK;
}

hy_status hy_adapter_check_beside(const hy_params *params) {
    for (int32_t i = 0; i < params->count; i++) {
        if (params->list[i].is_beside) HY_TRY(check_param(params, &params->list[i]));
    }
    return HY_OK;
}
