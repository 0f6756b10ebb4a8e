/* grammar_costs.c: what a grammar's choices cost, byte by byte and on average.
 *
 * A choice of weight w out of W costs ln(W / w) nats. Read from left to right, each byte of the
 * text it begins with narrows the alternatives down: byte k costs ln(W(k) / W(k + 1)), where W(k)
 * is the weight of all alternatives that agree with it in their first k bytes. These sum to the
 * choice's cost because in the end it stands alone.
 *
 * Expectations go from the last rule to the first. They are exact, because what a letter remembers
 * is independent of every choice made outside of it: the mean length of a copy is that of its
 * rule, and that of an agreeing form follows from the weights of the rule that decides. */
#include "data/grammar_costs.h"

#include <math.h>
#include <string.h>

#include "base/error.h"

static hy_status complain(const hy_grammar_program *program, int rule, const char *what) {
    return hy_fail(HY_ERR_INTERNAL, "grammar rule \"%s\": %s", program->source[rule].name, what);
}

/* The text a choice begins with: empty when it begins with an insertion. */
static hy_grammar_text opening(const hy_grammar_program *program, const hy_grammar_choice *choice) {
    const hy_grammar_op *op = &program->ops[choice->first_op];
    if (choice->op_count == 0 || op->kind != HY_GRAMMAR_TEXT) return (hy_grammar_text){"", 0};
    return op->text;
}

static bool begins_with(hy_grammar_text text, hy_grammar_text beginning, int size) {
    return text.size >= size && memcmp(text.data, beginning.data, (size_t)size) == 0;
}

/* Weight of the rule's alternatives that agree with `text` in the first `size` bytes. */
static int weight_agreeing(const hy_grammar_program *program, const hy_grammar_rule_program *rule,
                           hy_grammar_text text, int size) {
    int weight = 0;
    for (int i = 0; i < rule->choice_count; i++) {
        const hy_grammar_choice *other = &program->choices[rule->first_choice + i];
        if (begins_with(opening(program, other), text, size)) weight += other->weight;
    }
    return weight;
}

static hy_status fill_choice_costs(hy_grammar_program *program, int at, hy_grammar_choice *choice) {
    const hy_grammar_rule_program *rule = &program->rules[at];
    hy_grammar_text text = opening(program, choice);
    choice->first_cost = program->cost_count;
    int weight = rule->total_weight;
    for (int k = 0; k < text.size && weight > choice->weight; k++) {
        int left = weight_agreeing(program, rule, text, k + 1);
        if (program->cost_count == HY_GRAMMAR_COSTS_MAX) return complain(program, at, "no room");
        program->costs[program->cost_count++] = (float)log((double)weight / left);
        choice->cost_count++;
        weight = left;
    }
    if (weight > choice->weight) {
        return complain(program, at, "one alternative begins like the whole opening of another");
    }
    return HY_OK;
}

/* Which rule's choice comes last whenever this one is expanded. */
static int deciding_rule(const hy_grammar_program *program, int at) {
    const hy_grammar_rule_program *rule = &program->rules[at];
    const hy_grammar_choice *choice = &program->choices[rule->first_choice];
    if (rule->choice_count == 1) {
        const hy_grammar_op *last = &program->ops[choice->first_op + choice->op_count - 1];
        bool ends_in_rule = choice->op_count > 0 && last->kind == HY_GRAMMAR_EXPAND;
        return ends_in_rule ? program->rules[last->rule].deciding_rule : -1;
    }
    for (int i = 0; i < rule->choice_count; i++) {
        if (choice[i].op_count != 1 || program->ops[choice[i].first_op].kind != HY_GRAMMAR_TEXT) {
            return -1;
        }
    }
    return at;
}

/* The rule that decides what agrees with a slot, or -1. */
static int slot_decider(const hy_grammar_program *program, int slot) {
    return program->rules[program->slot_rule[slot]].deciding_rule;
}

typedef struct expectation {
    double nats, bytes;
    int bytes_max;
} expectation;

static hy_status expect_agree(const hy_grammar_program *program, int at, const hy_grammar_op *op,
                              expectation *sum) {
    int decider = slot_decider(program, op->slot);
    if (decider < 0) return complain(program, at, "agrees with a letter that no choice ends");
    const hy_grammar_rule_program *rule = &program->rules[decider];
    if (rule->choice_count % op->form_count != 0) {
        return complain(program, at,
                        "has forms that do not divide the alternatives they agree with");
    }
    int longest = 0;
    for (int i = 0; i < rule->choice_count; i++) {
        int size = program->forms[op->first_form + i % op->form_count].size;
        sum->bytes +=
            (double)program->choices[rule->first_choice + i].weight * size / rule->total_weight;
        if (size > longest) longest = size;
    }
    sum->bytes_max += longest;
    return HY_OK;
}

static hy_status expect_repeat(const hy_grammar_program *program, int at, const hy_grammar_op *op,
                               expectation *sum) {
    int decider = slot_decider(program, op->counter);
    if (decider < 0) return complain(program, at, "counts by a letter that no choice ends");
    const hy_grammar_rule_program *rule = &program->rules[decider];
    const hy_grammar_rule_program *repeated = &program->rules[program->slot_rule[op->slot]];
    double times = 0;
    for (int i = 0; i < rule->choice_count; i++) {
        times +=
            (double)program->choices[rule->first_choice + i].weight * (i + 1) / rule->total_weight;
    }
    sum->bytes += times * (2 + repeated->bytes);
    sum->bytes_max += rule->choice_count * (2 + repeated->bytes_max);
    return HY_OK;
}

static hy_status expect_op(const hy_grammar_program *program, int at, const hy_grammar_op *op,
                           expectation *sum) {
    const hy_grammar_rule_program *used = NULL;
    switch (op->kind) {
    case HY_GRAMMAR_TEXT:
        sum->bytes += op->text.size;
        sum->bytes_max += op->text.size;
        return HY_OK;
    case HY_GRAMMAR_EXPAND:
        used = &program->rules[op->rule];
        sum->nats += used->nats;
        break;
    case HY_GRAMMAR_COPY: used = &program->rules[program->slot_rule[op->slot]]; break;
    case HY_GRAMMAR_AGREE: return expect_agree(program, at, op, sum);
    case HY_GRAMMAR_REPEAT: return expect_repeat(program, at, op, sum);
    }
    sum->bytes += used->bytes;
    sum->bytes_max += used->bytes_max;
    return HY_OK;
}

/* The letters of a rule: those it needs from outside, fills for sure, and fills at all. */
typedef struct letters {
    uint32_t needs, fills, touches;
} letters;

static uint32_t op_needs(const hy_grammar_op *op, const letters *of_rule) {
    switch (op->kind) {
    case HY_GRAMMAR_TEXT: return 0;
    case HY_GRAMMAR_EXPAND: return of_rule[op->rule].needs;
    case HY_GRAMMAR_REPEAT: return 1u << op->slot | 1u << op->counter;
    default: return 1u << op->slot;
    }
}

static hy_status letters_of_rule(const hy_grammar_program *program, int at, letters *of_rule) {
    const hy_grammar_rule_program *rule = &program->rules[at];
    letters all = {.fills = UINT32_MAX};
    for (int i = 0; i < rule->choice_count; i++) {
        const hy_grammar_choice *choice = &program->choices[rule->first_choice + i];
        uint32_t filled = 0;
        for (int k = 0; k < choice->op_count; k++) {
            const hy_grammar_op *op = &program->ops[choice->first_op + k];
            all.needs |= op_needs(op, of_rule) & ~filled;
            if (op->kind != HY_GRAMMAR_EXPAND) continue;
            filled |= of_rule[op->rule].fills;
            all.touches |= of_rule[op->rule].touches;
            if (op->slot == HY_GRAMMAR_NO_SLOT) continue;
            /* This keeps what two letters remember independent of each other. */
            if (of_rule[op->rule].touches | of_rule[op->rule].needs) {
                return complain(program, at, "remembers a rule that uses letters itself");
            }
            filled |= 1u << op->slot;
            all.touches |= 1u << op->slot;
        }
        all.fills &= filled;
    }
    of_rule[at] = all;
    return HY_OK;
}

hy_status hy_grammar_costs_fill(hy_grammar_program *program) {
    /* Letters are filled before they are used, by rules further down than their users. */
    letters of_rule[HY_GRAMMAR_RULES_MAX] = {{0}};
    for (int at = program->rule_count - 1; at >= 0; at--) {
        HY_TRY(letters_of_rule(program, at, of_rule));
        for (int slot = 0; slot < HY_GRAMMAR_SLOTS; slot++) {
            bool is_needed = of_rule[at].needs >> slot & 1;
            if (is_needed && program->slot_rule[slot] <= at) {
                return complain(program, at, "uses a letter that no rule below it fills");
            }
        }
    }
    if (of_rule[0].needs) return complain(program, 0, "uses a letter before it is filled");
    for (int at = program->rule_count - 1; at >= 0; at--) {
        hy_grammar_rule_program *rule = &program->rules[at];
        for (int i = 0; i < rule->choice_count; i++) {
            hy_grammar_choice *choice = &program->choices[rule->first_choice + i];
            HY_TRY(fill_choice_costs(program, at, choice));
            expectation sum = {0};
            for (int k = 0; k < choice->op_count; k++) {
                HY_TRY(expect_op(program, at, &program->ops[choice->first_op + k], &sum));
            }
            double p = (double)choice->weight / rule->total_weight;
            rule->nats += p * (sum.nats - log(p));
            rule->bytes += p * sum.bytes;
            if (sum.bytes_max > rule->bytes_max) rule->bytes_max = sum.bytes_max;
        }
        rule->deciding_rule = deciding_rule(program, at);
    }
    HY_FAIL_IF(program->rules[0].bytes_max > HY_GRAMMAR_DOCUMENT_MAX, HY_ERR_INTERNAL,
               "a document of the grammar may have %d bytes; expected %d",
               program->rules[0].bytes_max, HY_GRAMMAR_DOCUMENT_MAX);
    return HY_OK;
}
