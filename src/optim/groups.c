/* groups.c: reads groups of parameters and applies their settings. See groups.h. */
#include "optim/groups.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "optim/optimizer.h"

#define LR_SCALE_MOST 1000
#define DECAY_MOST 10 /* as for weight_decay */
#define SHOWN 48      /* letters of a wrong word that a message shows */

static const char accepted[] = "lr_scale X, decay X, optimizer NAME, frozen";

/* ---- words ----------------------------------------------------------------------------------- */

/* A part of the text, without blanks around it. */
typedef struct piece {
    const char *at;
    size_t size;
} piece;

static piece trimmed(const char *begin, const char *end) {
    while (begin < end && isspace((unsigned char)*begin)) begin++;
    while (end > begin && isspace((unsigned char)end[-1])) end--;
    return (piece){begin, (size_t)(end - begin)};
}

static bool is_word(piece p, const char *word) {
    return p.size == strlen(word) && memcmp(p.at, word, p.size) == 0;
}

static int shown(piece p) { return p.size < SHOWN ? (int)p.size : SHOWN; }

/* ---- one setting ----------------------------------------------------------------------------- */

/* A setting of an entry, split in two: "decay 0", "decay=0" or "frozen". */
typedef struct said {
    const hy_group *group;
    piece word, value;
} said;

static hy_status read_number(const said *s, double most, double *out) {
    char text[SHOWN];
    snprintf(text, sizeof text, "%.*s", (int)s->value.size, s->value.at);
    bool is_number = s->value.size < sizeof text && hy_number_parse(text, strlen(text), out);
    HY_FAIL_IF(!is_number || !(*out >= 0) || *out > most, HY_ERR_INPUT,
               "group %d: %.*s \"%.*s\" is not accepted; accepted: a number, 0 to %g",
               s->group->number, shown(s->word), s->word.at, shown(s->value), s->value.at, most);
    if (*out == 0) *out = 0; /* avoids "-0" */
    return HY_OK;
}

static hy_status read_optimizer(const said *s, int32_t *out) {
    char names[256] = "";
    for (int id = 0; id < HY_OPTIMIZER_COUNT; id++) {
        const char *name = hy_optimizer_kind_of((hy_optimizer_id)id)->name;
        size_t length = strlen(names);
        *out = id;
        if (is_word(s->value, name)) return HY_OK;
        snprintf(names + length, sizeof names - length, "%s%s", length ? ", " : "", name);
    }
    return hy_fail(HY_ERR_INPUT,
                   "group %d: optimizer \"%.*s\" is not accepted; accepted: %s; optim_dtype "
                   "and optim_place of the run apply to its state",
                   s->group->number, shown(s->value), s->value.at, names);
}

static hy_status read_frozen(const said *s, bool *out) {
    *out = s->value.size == 0 || is_word(s->value, "true");
    HY_FAIL_IF(!*out && !is_word(s->value, "false"), HY_ERR_INPUT,
               "group %d: frozen \"%.*s\" is not accepted; accepted: true, false, or no value",
               s->group->number, shown(s->value), s->value.at);
    return HY_OK;
}

static hy_status read_said(const said *s, hy_group *g) {
    bool is_twice = false;
    hy_status status = HY_OK;
    if (is_word(s->word, "lr_scale")) {
        is_twice = g->has_lr_scale;
        g->has_lr_scale = true;
        status = read_number(s, LR_SCALE_MOST, &g->lr_scale);
    } else if (is_word(s->word, "decay") || is_word(s->word, "weight_decay")) {
        is_twice = g->has_decay;
        g->has_decay = true;
        status = read_number(s, DECAY_MOST, &g->decay);
    } else if (is_word(s->word, "optimizer")) {
        is_twice = g->has_optimizer;
        g->has_optimizer = true;
        status = read_optimizer(s, &g->optimizer);
    } else if (is_word(s->word, "frozen")) {
        is_twice = g->has_frozen;
        g->has_frozen = true;
        status = read_frozen(s, &g->is_frozen);
    } else {
        return hy_fail(HY_ERR_INPUT, "group %d: \"%.*s\" is unknown; accepted: %s", g->number,
                       shown(s->word), s->word.at, accepted);
    }
    HY_FAIL_IF(is_twice, HY_ERR_INPUT, "group %d sets %.*s twice", g->number, shown(s->word),
               s->word.at);
    return status;
}

/* ---- one entry ------------------------------------------------------------------------------- */

static hy_status read_settings(piece all, hy_group *g) {
    const char *end = all.at + all.size;
    HY_FAIL_IF(all.size == 0, HY_ERR_INPUT,
               "group %d (%.*s) has no settings after the colon; accepted: %s", g->number, SHOWN,
               g->names, accepted);
    for (const char *at = all.at; at <= end; at++) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        piece one = trimmed(at, comma ? comma : end);
        size_t word = 0;
        while (word < one.size && !isspace((unsigned char)one.at[word]) && one.at[word] != '=') {
            word++;
        }
        piece value = trimmed(one.at + word, one.at + one.size);
        if (value.size > 0 && *value.at == '=') {
            value = trimmed(value.at + 1, value.at + value.size);
        }
        said s = {.group = g, .word = {one.at, word}, .value = value};
        HY_TRY(read_said(&s, g));
        at = comma ? comma : end;
    }
    return HY_OK;
}

static hy_status read_entry(piece entry, hy_group *g) {
    HY_FAIL_IF(entry.size == 0, HY_ERR_INPUT, "group %d is empty; expected: NAMES: %s", g->number,
               accepted);
    const char *end = entry.at + entry.size, *colon = end;
    while (colon > entry.at && colon[-1] != ':') colon--;
    HY_FAIL_IF(colon == entry.at, HY_ERR_INPUT, "group %d (%.*s) has no colon; expected: NAMES: %s",
               g->number, shown(entry), entry.at, accepted);
    piece names = trimmed(entry.at, colon - 1);
    HY_FAIL_IF(names.size == 0, HY_ERR_INPUT,
               "group %d names no parameters before its colon; expected: NAMES: %s", g->number,
               accepted);
    HY_FAIL_IF(names.size >= sizeof g->names, HY_ERR_INPUT,
               "the names of group %d have %zu bytes; the limit is %zu", g->number, names.size,
               sizeof g->names - 1);
    memcpy(g->names, names.at, names.size);
    g->names[names.size] = 0;
    return read_settings(trimmed(colon, end), g);
}

hy_status hy_groups_next(const char **at, hy_group *out, bool *is_there) {
    const char *end = *at + strcspn(*at, ";");
    piece entry = trimmed(*at, end);
    *out = (hy_group){.number = out->number + 1};
    *is_there = entry.size > 0 || *end != 0; /* a semicolon may end the last entry */
    *at = end + (*end != 0);
    return *is_there ? read_entry(entry, out) : HY_OK;
}

hy_status hy_groups_check(const char *text) {
    hy_group group = {0};
    bool is_there = true;
    while (is_there) HY_TRY(hy_groups_next(&text, &group, &is_there));
    return HY_OK;
}

/* ---- parameters ------------------------------------------------------------------------------ */

static hy_status match(const hy_group *g, const hy_params *params, bool **out) {
    *out = calloc((size_t)params->count + 1, sizeof **out);
    if (!*out)
        return hy_fail(HY_ERR_MEMORY, "not enough memory for groups of %d parameters",
                       params->count);
    hy_status status = hy_params_match(params, g->names, *out);
    if (status == HY_OK) return HY_OK;
    free(*out);
    *out = NULL;
    return hy_fail_context(status, "group %d", g->number);
}

static hy_status apply_one(const hy_group *g, hy_params *params, bool *is_frozen) {
    bool *is_meant, is_custom = !params->at;
    HY_FAIL_IF(is_custom && g->has_frozen && g->is_frozen, HY_ERR_INPUT,
               "group %d: frozen is not accepted for a custom model, because all of its parameters "
               "are trained; use lr_scale 0 to keep them unchanged",
               g->number);
    HY_TRY(match(g, params, &is_meant));
    for (int32_t i = 0; i < params->count; i++) {
        hy_param *p = &params->list[i];
        if (!is_meant[i]) continue;
        if (g->has_lr_scale) p->lr_scale = g->lr_scale;
        if (g->has_decay) p->own_decay = g->decay;
        if (g->has_optimizer) p->own_optimizer = 1 + g->optimizer;
        if (g->has_frozen) is_frozen[i] = g->is_frozen;
    }
    free(is_meant);
    return HY_OK;
}

static hy_status freeze(hy_params *params, const bool *is_frozen) {
    bool is_any_trained = false;
    for (int32_t i = 0; i < params->count; i++) {
        if (is_frozen[i]) params->list[i].is_trainable = false;
        is_any_trained |= params->list[i].is_trainable;
    }
    HY_FAIL_IF(!is_any_trained, HY_ERR_INPUT,
               "all parameters are frozen; at least one must be trained");
    return HY_OK;
}

hy_status hy_groups_apply(const char *text, hy_params *params) {
    hy_group group = {0};
    bool is_there = true, *is_frozen = calloc((size_t)params->count + 1, sizeof *is_frozen);
    hy_status status = is_frozen ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory for groups");
    while (status == HY_OK && is_there) {
        status = hy_groups_next(&text, &group, &is_there);
        if (status == HY_OK && is_there) status = apply_one(&group, params, is_frozen);
    }
    if (status == HY_OK) status = freeze(params, is_frozen);
    free(is_frozen);
    return status;
}

/* ---- describing groups ----------------------------------------------------------------------- */

void hy_group_describe(const hy_group *g, hy_text *out) {
    const char *between = "";
    if (g->has_lr_scale) hy_text_addf(out, "lr_scale %g", g->lr_scale), between = ", ";
    if (g->has_decay) hy_text_addf(out, "%sdecay %g", between, g->decay), between = ", ";
    if (g->has_optimizer) {
        const char *name = hy_optimizer_kind_of((hy_optimizer_id)g->optimizer)->name;
        hy_text_addf(out, "%soptimizer %s", between, name);
        between = ", ";
    }
    if (g->has_frozen) hy_text_addf(out, "%sfrozen%s", between, g->is_frozen ? "" : " false");
}

hy_status hy_group_count(const hy_group *g, const hy_params *params, int64_t *parameters,
                         int64_t *elements) {
    bool *is_meant;
    *parameters = *elements = 0;
    HY_TRY(match(g, params, &is_meant));
    for (int32_t i = 0; i < params->count; i++) {
        if (!is_meant[i]) continue;
        /* count a parameter that is cut into parts once */
        *parameters += params->list[i].part_at == 0;
        *elements += params->list[i].stored;
    }
    free(is_meant);
    return HY_OK;
}
