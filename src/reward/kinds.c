/* kinds.c: the built-in checks. See kinds.h. */
#include "reward/kinds.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "base/text.h"
#include "reward/pattern.h"
#include "reward/spans.h"

#define TOKENS_MOST 1000000000

static hy_span answer_of(const hy_reward_item *item) {
    return (hy_span){item->answer, item->answer_size};
}

static hy_span expected_of(const hy_reward_item *item) {
    return (hy_span){item->expected, item->expected_size};
}

/* How many bytes of a text a message shows: an argument of "%.*s". */
static int shown(size_t size) { return size > 80 ? 80 : (int)size; }

/* ---- arguments ------------------------------------------------------------------------------- */

static hy_status read_case(hy_reward_part *part) {
    part->ignores_case = part->argument != NULL;
    if (!part->argument || strcmp(part->argument, "lower") == 0) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "\"%s\" is not accepted", part->argument);
}

static hy_status read_tokens(hy_reward_part *part) {
    bool is_number = hy_parse_count(part->argument, &part->tokens);
    if (is_number && part->tokens >= 1 && part->tokens <= TOKENS_MOST) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "\"%s\" is not accepted", part->argument);
}

static hy_status read_expression(hy_reward_part *part) { return hy_pattern_check(part->argument); }

/* ---- answers of rows ------------------------------------------------------------------------- */

static hy_status check_text(const hy_reward_item *item) {
    HY_FAIL_IF(hy_span_trim(expected_of(item)).size == 0, HY_ERR_INPUT,
               "the row's answer is empty; expected some text");
    return HY_OK;
}

static hy_status check_number(const hy_reward_item *item) {
    double unused;
    HY_FAIL_IF(!hy_last_number(expected_of(item), &unused), HY_ERR_INPUT,
               "the row's answer \"%.*s\" has no number that can be compared",
               shown(item->expected_size), item->expected);
    return HY_OK;
}

/* ---- scores ---------------------------------------------------------------------------------- */

static hy_status score_exact(const hy_reward_part *part, const hy_reward_item *item,
                             double *score) {
    *score = hy_span_is_equal(hy_span_trim(answer_of(item)), hy_span_trim(expected_of(item)),
                              part->ignores_case);
    return HY_OK;
}

static hy_status score_contains(const hy_reward_part *part, const hy_reward_item *item,
                                double *score) {
    *score = hy_span_contains(answer_of(item), hy_span_trim(expected_of(item)), part->ignores_case);
    return HY_OK;
}

static hy_status score_number(const hy_reward_part *part, const hy_reward_item *item,
                              double *score) {
    double answer, wanted;
    (void)part;
    *score = hy_last_number(answer_of(item), &answer) &&
             hy_last_number(expected_of(item), &wanted) && answer == wanted;
    return HY_OK;
}

static hy_status score_boxed(const hy_reward_part *part, const hy_reward_item *item,
                             double *score) {
    hy_span content, wanted;
    (void)part;
    if (!hy_last_boxed(expected_of(item), &wanted)) wanted = hy_span_trim(expected_of(item));
    *score = hy_last_boxed(answer_of(item), &content) && hy_span_is_equal(content, wanted, false);
    return HY_OK;
}

static hy_status score_regex(const hy_reward_part *part, const hy_reward_item *item,
                             double *score) {
    bool matches;
    HY_TRY(hy_pattern_match(part->argument, false, answer_of(item), &matches));
    *score = matches;
    return HY_OK;
}

static hy_status score_format(const hy_reward_part *part, const hy_reward_item *item,
                              double *score) {
    bool matches;
    HY_TRY(hy_pattern_match(part->argument, true, hy_span_trim(answer_of(item)), &matches));
    *score = matches;
    return HY_OK;
}

/* 1 up to N tokens, 0 from 2N on, linear between them. */
static hy_status score_length(const hy_reward_part *part, const hy_reward_item *item,
                              double *score) {
    double share = (double)item->tokens / (double)part->tokens;
    *score = share <= 1 ? 1 : share >= 2 ? 0 : 2 - share;
    return HY_OK;
}

static hy_status score_ended(const hy_reward_part *part, const hy_reward_item *item,
                             double *score) {
    (void)part;
    *score = item->ended;
    return HY_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

#define EXPRESSION "an extended regular expression, as for grep -E"

static const hy_reward_kind kinds[] = {
    {"exact", true, HY_OPTIONAL_ARGUMENT, "lower, which ignores case", read_case, NULL,
     score_exact},
    {"number", true, HY_NO_ARGUMENT, NULL, NULL, check_number, score_number},
    {"contains", true, HY_OPTIONAL_ARGUMENT, "lower, which ignores case", read_case, check_text,
     score_contains},
    {"boxed", true, HY_NO_ARGUMENT, NULL, NULL, NULL, score_boxed},
    {"regex", false, HY_ARGUMENT, EXPRESSION, read_expression, NULL, score_regex},
    {"format", false, HY_ARGUMENT, EXPRESSION, read_expression, NULL, score_format},
    {"length", false, HY_ARGUMENT, "a number of tokens from 1 to 1000000000", read_tokens, NULL,
     score_length},
    {"ended", false, HY_NO_ARGUMENT, NULL, NULL, NULL, score_ended},
    {HY_REWARD_PROGRAM, false, HY_NO_ARGUMENT, NULL, NULL, NULL, NULL},
};

enum { KINDS = sizeof kinds / sizeof kinds[0] };

static hy_status fail_unknown(const char *reward, size_t size) {
    const char *names[KINDS];
    char word[64] = "", list[256] = "";
    for (size_t i = 0; i < KINDS; i++) {
        names[i] = kinds[i].name;
        strcat(strcat(list, i == 0 ? "" : i + 1 < KINDS ? ", " : " or "), kinds[i].name);
    }
    if (size < sizeof word) memcpy(word, reward, size);
    return hy_fail(HY_ERR_INPUT,
                   "reward \"%.200s\": there is no kind \"%.*s\"; expected %s, as "
                   "KIND[*WEIGHT][:ARGUMENT]%s",
                   reward, shown(size), reward, list,
                   hy_did_you_mean(hy_nearest_word(word, names, KINDS)).text);
}

static hy_status find_kind(const char *reward, size_t size, hy_reward_part *part) {
    for (size_t i = 0; i < KINDS && !part->kind; i++) {
        bool is_it = strlen(kinds[i].name) == size && memcmp(kinds[i].name, reward, size) == 0;
        if (is_it) part->kind = &kinds[i];
    }
    return part->kind ? HY_OK : fail_unknown(reward, size);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Reads "*WEIGHT", which ends at `end`. */
static hy_status read_weight(const char *reward, const char *at, const char *end, double *weight) {
    *weight = 1;
    if (at == end) return HY_OK;
    at++;
    bool is_number = hy_number_parse(at, (size_t)(end - at), weight);
    HY_FAIL_IF(!is_number || *weight == 0, HY_ERR_INPUT,
               "reward \"%.200s\": the weight \"%.*s\" is not accepted; expected a number other "
               "than 0, such as 0.5",
               reward, shown((size_t)(end - at)), at);
    return HY_OK;
}

static hy_status read_argument(const char *reward, const char *colon, hy_reward_part *part) {
    const hy_reward_kind *kind = part->kind;
    bool is_given = colon && colon[1];
    HY_FAIL_IF(colon && kind->argument == HY_NO_ARGUMENT, HY_ERR_INPUT,
               "reward \"%.200s\": %s takes no argument, so nothing may follow it but *WEIGHT",
               reward, kind->name);
    HY_FAIL_IF(!is_given && kind->argument == HY_ARGUMENT, HY_ERR_INPUT,
               "reward \"%.200s\": %s needs an argument: %s:ARGUMENT, where ARGUMENT is %s", reward,
               kind->name, kind->name, kind->expected);
    HY_FAIL_IF(colon && !is_given, HY_ERR_INPUT,
               "reward \"%.200s\": there is nothing behind the colon; expected %s", reward,
               kind->expected);
    if (is_given && !(part->argument = strdup(colon + 1)))
        return hy_fail(HY_ERR_MEMORY, "not enough memory for reward \"%.200s\"", reward);
    hy_status status = kind->read ? kind->read(part) : HY_OK;
    if (status != HY_ERR_INPUT) return status;
    hy_fail_context(status, "reward \"%.200s\"", reward);
    return hy_fail_hint(status, "expected %s%s", kind->expected,
                        strchr(part->argument, '*') && kind->read != read_expression
                            ? " (a weight is before the colon)"
                            : "");
}

hy_status hy_reward_part_read(const char *reward, hy_reward_part *part) {
    *part = (hy_reward_part){0};
    size_t size = strcspn(reward, "*:");
    const char *colon = strchr(reward + size, ':');
    const char *end = colon ? colon : reward + strlen(reward);
    HY_TRY(find_kind(reward, size, part));
    HY_TRY(read_weight(reward, reward + size, end, &part->weight));
    hy_status status = read_argument(reward, colon, part);
    if (status != HY_OK) hy_reward_part_fini(part);
    return status;
}

void hy_reward_part_fini(hy_reward_part *part) {
    free(part->argument);
    *part = (hy_reward_part){0};
}

bool hy_reward_part_is_program(const hy_reward_part *part) { return !part->kind->score; }

hy_reward_part hy_reward_part_program(void) {
    return (hy_reward_part){.kind = &kinds[KINDS - 1], .weight = 1};
}

hy_status hy_reward_check(const char *reward) {
    hy_reward_part part;
    HY_TRY(hy_reward_part_read(reward, &part));
    hy_reward_part_fini(&part);
    return HY_OK;
}
