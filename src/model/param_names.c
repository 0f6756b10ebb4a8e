/* param_names.c: names of parameters, and the parameters that a list of names means. See
 * param_names.h. */
#include "model/param_names.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"

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
    [HY_P_NORM1_AFTER] = "norm1_after.weight",
    [HY_P_NORM1_AFTER_BIAS] = "norm1_after.bias",
    [HY_P_NORM2_AFTER] = "norm2_after.weight",
    [HY_P_NORM2_AFTER_BIAS] = "norm2_after.bias",
    [HY_P_SINKS] = "attn.sinks",
    [HY_P_LINEAR_QKV] = "linear.qkv.weight",
    [HY_P_LINEAR_Z] = "linear.z.weight",
    [HY_P_LINEAR_BA] = "linear.ba.weight",
    [HY_P_CONV] = "linear.conv.weight",
    [HY_P_A_LOG] = "linear.a_log",
    [HY_P_DT_BIAS] = "linear.dt_bias",
    [HY_P_LINEAR_NORM] = "linear.norm.weight",
    [HY_P_LINEAR_OUT] = "linear.out.weight",
    [HY_P_QKV_A] = "attn.qkv.lora_a",
    [HY_P_QKV_B] = "attn.qkv.lora_b",
    [HY_P_OUT_A] = "attn.out.lora_a",
    [HY_P_OUT_B] = "attn.out.lora_b",
    [HY_P_UP_A] = "mlp.up.lora_a",
    [HY_P_UP_B] = "mlp.up.lora_b",
    [HY_P_DOWN_A] = "mlp.down.lora_a",
    [HY_P_DOWN_B] = "mlp.down.lora_b",
    [HY_P_LINEAR_QKV_A] = "linear.qkv.lora_a",
    [HY_P_LINEAR_QKV_B] = "linear.qkv.lora_b",
    [HY_P_LINEAR_Z_A] = "linear.z.lora_a",
    [HY_P_LINEAR_Z_B] = "linear.z.lora_b",
    [HY_P_LINEAR_BA_A] = "linear.ba.lora_a",
    [HY_P_LINEAR_BA_B] = "linear.ba.lora_b",
    [HY_P_LINEAR_OUT_A] = "linear.out.lora_a",
    [HY_P_LINEAR_OUT_B] = "linear.out.lora_b",
};

const char *hy_param_kind_name(hy_param_kind kind, bool is_gated) {
    static const char *const gated[HY_P_KIND_COUNT] = {[HY_P_UP] = "mlp.gate_up.weight",
                                                       [HY_P_UP_A] = "mlp.gate_up.lora_a",
                                                       [HY_P_UP_B] = "mlp.gate_up.lora_b"};
    return is_gated && gated[kind] ? gated[kind] : kind_names[kind];
}

hy_param_kind hy_param_weight_of(hy_param_kind kind) {
    bool is_bias = kind < HY_P_KIND_COUNT && strstr(kind_names[kind], ".bias");
    return is_bias ? (hy_param_kind)(kind - 1) : kind;
}

/* ---- lists of names -------------------------------------------------------------------------- */

/* A range of numbers in a pattern, "2-5", and a number in a name: moves both on if it is in the
 * range. */
static bool matches_range(const char **pattern, const char **name) {
    char *dash, *end, *after;
    if (!isdigit((unsigned char)**pattern) || !isdigit((unsigned char)**name)) return false;
    unsigned long first = strtoul(*pattern, &dash, 10), number = strtoul(*name, &after, 10);
    if (*dash != '-' || !isdigit((unsigned char)dash[1]) || *after == '-') return false;
    unsigned long last = strtoul(dash + 1, &end, 10);
    if (number < first || number > last) return false;
    *pattern = end;
    *name = after;
    return true;
}

/* On a mismatch the last star matches one more letter. Only the last star is retried, so no
 * pattern is slow. */
static bool matches(const char *pattern, const char *name) {
    const char *star = NULL, *after_star = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            after_star = name;
        } else if (matches_range(&pattern, &name)) {
            continue;
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

/* Adds the parameters that one entry of a list means. A custom model has no blocks. */
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
    HY_FAIL_IF(found == 0, HY_ERR_INPUT, "\"%s\" matches no parameter; the names are %s, %s, %s%s",
               entry, p->list[0].name, p->list[p->count / 2].name, p->list[p->count - 1].name,
               p->count > 3 ? " and so on" : "");
    return HY_OK;
}

hy_status hy_params_match(const hy_params *p, const char *names, bool *is_chosen) {
    for (const char *at = names, *name; at;) {
        char entry[HY_PARAM_NAME_MAX];
        size_t size;
        at = hy_next_entry(at, &name, &size);
        HY_FAIL_IF(size >= sizeof entry, HY_ERR_INPUT,
                   "\"%.40s...\" is %zu bytes long; names of parameters have at most %zu", name,
                   size, sizeof entry - 1);
        memcpy(entry, name, size);
        entry[size] = 0;
        HY_TRY(match_entry(p, entry, is_chosen));
    }
    return HY_OK;
}

/* Sets is_beside of the parameters that `names` means, or is_trainable, and clears it for the
 * others. */
static hy_status mark(hy_params *p, const char *names, bool marks_beside) {
    bool *is_meant = calloc((size_t)p->count, sizeof *is_meant);
    HY_FAIL_IF(!is_meant, HY_ERR_MEMORY, "not enough memory for %s", names);
    hy_status status = hy_params_match(p, names, is_meant);
    for (int32_t i = 0; i < p->count && status == HY_OK; i++) {
        hy_param *param = &p->list[i];
        if (marks_beside)
            param->is_beside = is_meant[i] && !hy_is_adapter(param->kind);
        else
            param->is_trainable = is_meant[i];
    }
    free(is_meant);
    return status;
}

hy_status hy_params_select(hy_params *p, const char *names) { return mark(p, names, false); }
hy_status hy_params_mark_beside(hy_params *p, const char *names) { return mark(p, names, true); }
