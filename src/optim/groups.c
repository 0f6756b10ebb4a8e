/* groups.c: reads groups of parameters and applies their settings. See groups.h. */
#include "optim/groups.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "model/param_layout.h"
#include "optim/optimizer.h"

#define LR_SCALE_MOST 1000
#define DECAY_MOST 10 /* as for weight_decay */
#define SHOWN 48      /* letters of a wrong word that a message shows */

static const char accepted[] = "lr_scale X, decay X, optimizer NAME, frozen, place P, "
                               "weights_place P, master_place P, grads_place P, optim_place P, "
                               "optim_dtype T, frozen_dtype T, precision T";

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

/* ---- places and types ------------------------------------------------------------------------ */

typedef struct choice {
    const char *name;
    int32_t value;
} choice;

static const choice places[] = {{"device", HY_DEVICE}, {"pinned", HY_PINNED}, {"disk", HY_DISK},
                                {"gpu", HY_DEVICE},    {"cpu", HY_PINNED},    {NULL, 0}};

/* A word with one of several values; the first name of a value is the one that is shown. */
typedef struct choice_word {
    const char *word;
    const choice *choices;
    int32_t cls, type; /* hy_class or HY_GROUP_*; -1: not a place of one class, not a type */
} choice_word;

static const choice_word choice_words[] = {
    {"place", places, -1, -1},
    {"weights_place", places, HY_WEIGHTS, -1},
    {"master_place", places, HY_MASTER, -1},
    {"grads_place", places, HY_GRADS, -1},
    {"optim_place", places, HY_OPTIM, -1},
    {"optim_dtype",
     (const choice[]){{"fp32", 1 + HY_F32}, {"bf16", 1 + HY_BF16}, {"8bit", 1 + HY_U8}, {NULL, 0}},
     -1, HY_GROUP_OPTIM},
    {"frozen_dtype",
     (const choice[]){{"auto", 1 + HY_F32}, {"int8", 1 + HY_I8}, {"nf4", 1 + HY_NF4}, {NULL, 0}},
     -1, HY_GROUP_FROZEN},
    {"precision", (const choice[]){{"bf16", 1 + HY_BF16}, {"fp8", 1 + HY_E4M3}, {NULL, 0}}, -1,
     HY_GROUP_PRECISION},
};
#define CHOICE_WORDS (sizeof choice_words / sizeof choice_words[0])

static int32_t chosen(const hy_group *g, const choice_word *w) {
    if (w->type >= 0) return g->types[w->type];
    return (int32_t)(w->cls >= 0 ? g->places[w->cls] : g->place);
}

static const char *name_of(const choice_word *w, int32_t value) {
    const choice *c = w->choices;
    while (c->name && c->value != value) c++;
    return c->name ? c->name : "";
}

static hy_status read_choice(const said *s, const choice_word *w, hy_group *g) {
    char names[128] = "";
    const choice *c = w->choices;
    for (; c->name && !is_word(s->value, c->name); c++) {
        size_t length = strlen(names);
        snprintf(names + length, sizeof names - length, "%s%s", length ? ", " : "", c->name);
    }
    HY_FAIL_IF(!c->name, HY_ERR_INPUT, "group %d: %s \"%.*s\" is not accepted; accepted: %s",
               g->number, w->word, shown(s->value), s->value.at, names);
    if (w->type >= 0)
        g->types[w->type] = c->value;
    else
        *(w->cls >= 0 ? &g->places[w->cls] : &g->place) = (hy_place)c->value;
    return HY_OK;
}

static hy_status read_said(const said *s, hy_group *g) {
    const choice_word *w = choice_words;
    while (w < choice_words + CHOICE_WORDS && !is_word(s->word, w->word)) w++;
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
    } else if (w < choice_words + CHOICE_WORDS) {
        is_twice = chosen(g, w) != 0;
        status = read_choice(s, w, g);
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

static void set_own(const hy_group *g, hy_param_own *own) {
    int32_t *types[HY_GROUP_TYPES] = {&own->optim, &own->frozen, &own->precision};
    for (size_t i = 0; i < CHOICE_WORDS; i++) {
        if (chosen(g, &choice_words[i])) own->group = g->number;
    }
    for (int i = 0; i < HY_GROUP_TYPES; i++) {
        if (g->types[i]) *types[i] = g->types[i];
    }
    for (int i = 0; i < HY_PARAM_PLACES; i++) {
        hy_place place = g->places[i] ? g->places[i] : g->place;
        if (place) own->place[i] = place;
    }
}

static hy_status refuse_custom(const hy_group *g) {
    for (size_t i = 0; i < CHOICE_WORDS; i++) {
        const choice_word *w = &choice_words[i];
        bool is_set = chosen(g, w) != 0 && w->type != HY_GROUP_OPTIM;
        HY_FAIL_IF(is_set, HY_ERR_INPUT,
                   "group %d: %s is not accepted for a custom model, because the library does not "
                   "know its layers and passes; accepted: lr_scale, decay, optimizer, optim_dtype",
                   g->number, w->word);
    }
    return HY_OK;
}

/* Can it have a type of its own? Vectors, adapters and kinds that stay real keep theirs. */
static bool is_typed(const hy_param *p) {
    return p->ndim > 1 && !hy_is_adapter(p->kind) && !hy_kind_stays_real(p->kind);
}

/* A type for nothing but parameters that keep theirs is a mistake. */
static hy_status check_use(const hy_group *g, const hy_params *params, const bool *is_meant) {
    int32_t frozen = g->types[HY_GROUP_FROZEN], precision = g->types[HY_GROUP_PRECISION];
    bool is_coded = frozen && hy_is_coded((hy_dtype)(frozen - 1));
    const hy_param *real = NULL;
    if (!is_coded && precision != 1 + HY_E4M3) return HY_OK;
    for (const hy_param *p = params->list; p < params->list + params->count; p++) {
        if (!is_meant[p - params->list]) continue;
        if (is_typed(p)) return HY_OK;
        if (!real && hy_kind_stays_real(p->kind)) real = p;
    }
    HY_FAIL_IF(real, HY_ERR_INPUT,
               "group %d: %s is not possible for %s, which is neither quantised nor in fp8; "
               "accepted: %s, and names of other matrices",
               g->number, is_coded ? "frozen_dtype" : "precision fp8", real->name,
               is_coded ? "frozen_dtype auto" : "precision bf16");
    return HY_OK;
}

static hy_status apply_one(const hy_group *g, hy_params *params, bool *is_frozen) {
    bool *is_meant, is_custom = !params->at;
    if (is_custom) HY_TRY(refuse_custom(g));
    HY_FAIL_IF(
        is_custom && g->has_frozen && g->is_frozen, HY_ERR_INPUT,
        "group %d: frozen is not accepted for a custom model; set is_frozen of parameters in "
        "a loop with units (unit_of), or use lr_scale 0 to keep them unchanged",
        g->number);
    HY_TRY(match(g, params, &is_meant));
    hy_status status = check_use(g, params, is_meant);
    for (int32_t i = 0; i < params->count && status == HY_OK; i++) {
        hy_param *p = &params->list[i];
        if (!is_meant[i]) continue;
        if (g->has_lr_scale) p->lr_scale = g->lr_scale;
        if (g->has_decay) p->own_decay = g->decay;
        if (g->has_optimizer) p->own_optimizer = 1 + g->optimizer;
        if (g->has_frozen) is_frozen[i] = g->is_frozen;
        set_own(g, &p->own);
    }
    free(is_meant);
    return status;
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

/* ---- what is possible ------------------------------------------------------------------------ */

/* A matrix that a group names must be able to have the type. */
static hy_status check_types(const hy_params *params, int32_t i) {
    const hy_param *p = &params->list[i];
    hy_dtype asked = p->own.frozen ? (hy_dtype)(p->own.frozen - 1) : HY_F32;
    bool is_matrix = is_typed(p);
    HY_FAIL_IF(p->own.frozen && is_matrix && p->is_trainable, HY_ERR_INPUT,
               "group %d: frozen_dtype is for frozen weights, but %s is trained; accepted: names "
               "of frozen matrices",
               p->own.group, p->name);
    HY_FAIL_IF(is_matrix && hy_is_coded(asked) && hy_params_stored(params, i, HY_F32) != asked,
               HY_ERR_INPUT,
               "group %d: frozen_dtype %s is not possible for %s; accepted: int8 for the matrices "
               "of blocks and an embedding that the head does not share, nf4 for matrices of "
               "blocks with rows of a multiple of 64 numbers, auto for all",
               p->own.group, hy_dtype_name(asked), p->name);
    bool is_fp8 = p->own.precision == 1 + HY_E4M3;
    HY_FAIL_IF(is_fp8 && is_matrix && !hy_linear_bit(p->kind), HY_ERR_INPUT,
               "group %d: precision fp8 is not possible for %s: only matrices of blocks have fp8 "
               "matmuls; accepted: bf16",
               p->own.group, p->name);
    return HY_OK;
}

/* The first matrix of the unit that has state of this class, or its first vector if it has only
 * vectors. Its place is that of the unit. */
static const hy_param *first_of(const hy_params *params, int32_t unit, int cls) {
    const hy_param *first = NULL;
    for (int32_t i = params->count - 1; i >= 0; i--) {
        const hy_param *p = &params->list[i];
        if (p->unit != unit || (cls != HY_WEIGHTS && !p->is_trainable)) continue;
        if (!first || first->ndim < 2 || p->ndim > 1) first = p;
    }
    return first;
}

/* A unit moves as one piece: its matrices have one place, and vectors go with them. A class has one
 * place off the device. */
static hy_status check_places(hy_params *params, int cls) {
    const hy_param *away = NULL;
    for (int32_t i = 0; i < params->count; i++) {
        hy_param *p = &params->list[i];
        const hy_param *first = first_of(params, p->unit, cls);
        hy_place *own = &p->own.place[cls];
        if (cls != HY_WEIGHTS && !p->is_trainable) continue;
        if (p->ndim < 2 && *own == HY_NOWHERE) *own = first->own.place[cls];
        const hy_param *named = *own ? p : first, *other = *own ? first : p;
        HY_FAIL_IF(*own != first->own.place[cls], HY_ERR_INPUT,
                   "group %d: %s_place of %s is %s, but that of %s in the same layer is %s, and a "
                   "layer moves as one piece; accepted: names of whole layers, such as blocks.0.*, "
                   "blocks.0-3.*, embed.*",
                   named->own.group, hy_class_name((hy_class)cls), named->name,
                   hy_place_name(named->own.place[cls]), other->name,
                   other->own.place[cls] ? hy_place_name(other->own.place[cls]) : "not set");
        if (*own != HY_PINNED && *own != HY_DISK) continue;
        HY_FAIL_IF(
            away && away->own.place[cls] != *own, HY_ERR_INPUT,
            "group %d: %s_place of %s is %s, but group %d sets %s for %s, and only one place "
            "besides the device is possible; accepted: pinned in all groups, or disk in all",
            p->own.group, hy_class_name((hy_class)cls), p->name, hy_place_name(*own),
            away->own.group, hy_place_name(away->own.place[cls]), away->name);
        away = p;
    }
    return HY_OK;
}

static hy_status check(hy_params *params) {
    for (int32_t i = 0; params->at && i < params->count; i++) HY_TRY(check_types(params, i));
    for (int cls = 0; params->at && cls < HY_PARAM_PLACES; cls++) {
        HY_TRY(check_places(params, cls));
    }
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
    if (status == HY_OK) status = check(params);
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
    if (g->has_frozen) {
        hy_text_addf(out, "%sfrozen%s", between, g->is_frozen ? "" : " false");
        between = ", ";
    }
    for (size_t i = 0; i < CHOICE_WORDS; i++) {
        const choice_word *w = &choice_words[i];
        if (!chosen(g, w)) continue;
        hy_text_addf(out, "%s%s %s", between, w->word, name_of(w, chosen(g, w)));
        between = ", ";
    }
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
