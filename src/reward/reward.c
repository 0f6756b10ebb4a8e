/* reward.c: a list of parts, and their weighted sum. See reward.h. */
#include "reward/reward.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "reward/kinds.h"
#include "reward/program.h"

#define NAME_ROOM 24

struct hy_rewards {
    size_t count;
    hy_reward_part parts[HY_REWARD_PARTS_MOST];
    double weights[HY_REWARD_PARTS_MOST];
    char names[HY_REWARD_PARTS_MOST][NAME_ROOM];
    const char *name_list[HY_REWARD_PARTS_MOST];
    char *command;              /* of the program; NULL: there is none */
    hy_reward_program *program; /* NULL: there is none */
    double *column;             /* (column_room): the program's scores */
    size_t column_room;
};

/* ---- lists ----------------------------------------------------------------------------------- */

hy_status hy_rewards_split(const char *text, char **copy, const char *list[], size_t *count) {
    char *at = *copy = strdup(text);
    *count = 0;
    HY_FAIL_IF(!at, HY_ERR_MEMORY, "not enough memory for rewards");
    while (*at) {
        char *end = strpbrk(at, ";\n");
        while (end && *end == ';' && end[1] && end[1] != ' ') end = strpbrk(end + 1, ";\n");
        char *next = end ? end + 1 : at + strlen(at);
        if (end) *end = 0;
        at += strspn(at, " ");
        for (size_t size = strlen(at); size > 0 && at[size - 1] == ' ';) at[--size] = 0;
        HY_FAIL_IF(*count == HY_REWARD_PARTS_MOST, HY_ERR_INPUT, "there are more than %d rewards",
                   HY_REWARD_PARTS_MOST);
        if (*at) list[(*count)++] = at;
        at = next;
    }
    return HY_OK;
}

hy_status hy_reward_needs_read(const char *text, hy_reward_needs *out) {
    const char *list[HY_REWARD_PARTS_MOST];
    char *copy;
    size_t count;
    hy_status status = hy_rewards_split(text, &copy, list, &count);
    out->count = 0;
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        hy_reward_part part;
        status = hy_reward_part_read(list[i], &part);
        if (status != HY_OK) break;
        if (part.kind->needs_answer) out->kinds[out->count++] = part.kind;
        hy_reward_part_fini(&part);
    }
    free(copy);
    return status;
}

hy_status hy_reward_needs_check(const hy_reward_needs *needs, const char *expected, size_t size) {
    const hy_reward_item item = {.expected = expected, .expected_size = size};
    for (size_t i = 0; i < needs->count; i++) {
        const hy_reward_kind *kind = needs->kinds[i];
        HY_FAIL_IF(!expected, HY_ERR_INPUT, "the row has no answer, which reward %s compares with",
                   kind->name);
        hy_status status = kind->check ? kind->check(&item) : HY_OK;
        if (status != HY_OK) return hy_fail_context(status, "reward %s", kind->name);
    }
    return HY_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static size_t count_kind(const hy_rewards *r, const hy_reward_kind *kind) {
    size_t count = 0;
    for (size_t i = 0; i < r->count; i++) count += r->parts[i].kind == kind;
    return count;
}

/* Takes over the part. */
static void add_part(hy_rewards *r, const hy_reward_part *part) {
    size_t before = count_kind(r, part->kind), i = r->count++;
    r->parts[i] = *part;
    r->weights[i] = part->weight;
    if (before == 0)
        snprintf(r->names[i], NAME_ROOM, "%s", part->kind->name);
    else
        snprintf(r->names[i], NAME_ROOM, "%s_%zu", part->kind->name, before + 1);
    r->name_list[i] = r->names[i];
}

static bool has_program_part(const hy_rewards *r) {
    bool has = false;
    for (size_t i = 0; i < r->count; i++) has |= hy_reward_part_is_program(&r->parts[i]);
    return has;
}

static hy_status read_list(hy_rewards *r, const char *const *list, size_t count, bool has_program) {
    for (size_t i = 0; i < count; i++) {
        hy_reward_part part;
        HY_FAIL_IF(r->count == HY_REWARD_PARTS_MOST, HY_ERR_INPUT,
                   "%zu rewards are too many; at most %d are accepted", count,
                   HY_REWARD_PARTS_MOST);
        HY_TRY(hy_reward_part_read(list[i], &part));
        bool is_program = hy_reward_part_is_program(&part);
        HY_FAIL_IF(is_program && !has_program, HY_ERR_INPUT,
                   "reward \"%.200s\": there is no reward program that it could be the weight of",
                   list[i]);
        HY_FAIL_IF(is_program && has_program_part(r), HY_ERR_INPUT,
                   "reward \"%.200s\": the program is in the list already", list[i]);
        add_part(r, &part);
    }
    if (!has_program || has_program_part(r)) return HY_OK;
    HY_FAIL_IF(r->count == HY_REWARD_PARTS_MOST, HY_ERR_INPUT,
               "%zu rewards and a program are too many; at most %d are accepted", count,
               HY_REWARD_PARTS_MOST);
    hy_reward_part program = hy_reward_part_program();
    add_part(r, &program);
    return HY_OK;
}

static hy_status open_parts(hy_rewards *r, const char *const *list, size_t count,
                            const char *program, const hy_reward_options *options) {
    bool has_program = program && *program;
    HY_TRY(read_list(r, list, count, has_program));
    HY_FAIL_IF(r->count == 0, HY_ERR_INPUT,
               "there are no rewards; expected at least one check, such as exact, or a program");
    if (!has_program) return HY_OK;
    double seconds = options->seconds > 0 ? options->seconds : HY_REWARD_SECONDS;
    r->command = strdup(program);
    HY_FAIL_IF(!r->command, HY_ERR_MEMORY, "not enough memory for rewards");
    return hy_reward_program_open(program, seconds, options->observer, &r->program);
}

hy_status hy_rewards_open(const char *const *list, size_t count, const char *program,
                          const hy_reward_options *options, hy_rewards **out) {
    const hy_reward_options defaults = {0};
    hy_rewards *r = calloc(1, sizeof *r);
    *out = NULL;
    HY_FAIL_IF(!r, HY_ERR_MEMORY, "not enough memory for rewards");
    hy_status status = open_parts(r, list, count, program, options ? options : &defaults);
    if (status == HY_OK)
        *out = r;
    else
        hy_rewards_close(r);
    return status;
}

void hy_rewards_close(hy_rewards *r) {
    if (!r) return;
    hy_reward_program_close(r->program);
    for (size_t i = 0; i < r->count; i++) hy_reward_part_fini(&r->parts[i]);
    free(r->command);
    free(r->column);
    free(r);
}

/* ---- description ----------------------------------------------------------------------------- */

size_t hy_rewards_names(const hy_rewards *r, const char *const **names) {
    *names = r->name_list;
    return r->count;
}

const double *hy_rewards_weights(const hy_rewards *r) { return r->weights; }

const char *hy_rewards_needing_answer(const hy_rewards *r) {
    for (size_t i = 0; i < r->count; i++) {
        if (r->parts[i].kind->needs_answer) return r->names[i];
    }
    return NULL;
}

static void hash_bytes(hy_hash *h, const char *data, size_t size) {
    uint64_t length = data ? size : UINT64_MAX; /* tells apart what follows each other */
    hy_hash_add(h, &length, sizeof length);
    if (data && size) hy_hash_add(h, data, size);
}

static void hash_string(hy_hash *h, const char *text) {
    hash_bytes(h, text, text ? strlen(text) : 0);
}

uint64_t hy_rewards_hash(const hy_rewards *r, const hy_reward_item *items, size_t count) {
    hy_hash h;
    hy_hash_init(&h, 0);
    for (size_t i = 0; i < r->count; i++) {
        hash_string(&h, r->parts[i].kind->name);
        hash_string(&h, r->parts[i].argument);
        hy_hash_add(&h, &r->weights[i], sizeof r->weights[i]);
    }
    hash_string(&h, r->command);
    for (size_t i = 0; i < count; i++) {
        const hy_reward_item *item = &items[i];
        int32_t facts[] = {item->tokens, item->ended};
        hash_bytes(&h, item->prompt ? item->prompt : "", item->prompt_size);
        hash_bytes(&h, item->answer ? item->answer : "", item->answer_size);
        hash_bytes(&h, item->expected, item->expected_size);
        hash_bytes(&h, item->row_json, item->row_size);
        hy_hash_add(&h, facts, sizeof facts);
    }
    return hy_hash_value(&h);
}

/* ---- scoring --------------------------------------------------------------------------------- */

/* Sets part `at` of every item: parts (count, r->count). */
static hy_status score_check(const hy_rewards *r, size_t at, const hy_reward_item *items,
                             size_t count, double *scores, double *parts) {
    const hy_reward_part *part = &r->parts[at];
    for (size_t i = 0; i < count; i++) {
        double score;
        HY_FAIL_IF(part->kind->needs_answer && !items[i].expected, HY_ERR_INPUT,
                   "reward %s of answer %zu: the row has no answer of its own to compare with",
                   r->names[at], i + 1);
        hy_status status = part->kind->check ? part->kind->check(&items[i]) : HY_OK;
        if (status == HY_OK) status = part->kind->score(part, &items[i], &score);
        if (status != HY_OK)
            return hy_fail_context(status, "reward %s of answer %zu", r->names[at], i + 1);
        scores[i] += part->weight * score;
        if (parts) parts[i * r->count + at] = score;
    }
    return HY_OK;
}

static hy_status score_program(hy_rewards *r, size_t at, const hy_reward_item *items, size_t count,
                               const atomic_bool *stop, double *scores, double *parts) {
    if (count > r->column_room) {
        free(r->column);
        r->column = calloc(count, sizeof *r->column);
        r->column_room = r->column ? count : 0;
        HY_FAIL_IF(!r->column, HY_ERR_MEMORY, "not enough memory for %zu rewards", count);
    }
    HY_TRY(hy_reward_program_score(r->program, items, count, stop, r->column));
    for (size_t i = 0; i < count; i++) {
        scores[i] += r->parts[at].weight * r->column[i];
        if (parts) parts[i * r->count + at] = r->column[i];
    }
    return HY_OK;
}

/* The checks come first, because they are quick and may fail. So the order of a sum is that of the
 * list, with the program at its end. */
hy_status hy_rewards_score(hy_rewards *r, const hy_reward_item *items, size_t count,
                           const atomic_bool *stop, double *scores, double *parts) {
    for (size_t i = 0; i < count; i++) scores[i] = 0;
    for (size_t at = 0; at < r->count; at++) {
        if (hy_reward_part_is_program(&r->parts[at])) continue;
        HY_TRY(score_check(r, at, items, count, scores, parts));
    }
    for (size_t at = 0; at < r->count; at++) {
        if (!hy_reward_part_is_program(&r->parts[at])) continue;
        HY_TRY(score_program(r, at, items, count, stop, scores, parts));
    }
    for (size_t i = 0; i < count; i++) {
        HY_FAIL_IF(!isfinite(scores[i]), HY_ERR_INPUT,
                   "the reward of answer %zu is too large for a number; use smaller weights",
                   i + 1);
    }
    return HY_OK;
}
