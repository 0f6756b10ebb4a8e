/* grammar_program.c: compiles a table of rules into a program. See grammar_program.h for the
 * notation.
 *
 * Texts stay in the table; the program points to them. Rules are read in order. Their costs are
 * then computed from the last rule to the first (below), because a rule refers only to rules below
 * it. */
#include "data/grammar_program.h"

#include <math.h>
#include <string.h>

#include "base/error.h"

/* ---- the cost of choices, per byte and on average -------------------------------------------- */

/* A choice of weight w out of W costs ln(W / w) nats. Read from left to right, each byte at the
 * beginning of its text excludes some alternatives: byte k costs ln(W(k) / W(k + 1)), where W(k) is
 * the weight of all alternatives with the same first k bytes. These costs add up to the cost of the
 * choice, because in the end only one alternative is left.
 *
 * Expectations are computed from the last rule to the first. They are exact, because the value
 * stored in a letter is independent of every choice made outside of it. So the mean length of a
 * copy is that of its rule, and the mean length of an agreeing form follows from the weights of the
 * deciding rule. */

static hy_status refuse(const hy_grammar_program *program, int rule, const char *what) {
    return hy_fail(HY_ERR_INTERNAL, "grammar rule \"%s\": %s", program->source[rule].name, what);
}

/* The text at the beginning of a choice: empty if the choice begins with an insertion. */
static hy_grammar_text opening(const hy_grammar_program *program, const hy_grammar_choice *choice) {
    const hy_grammar_op *op = &program->ops[choice->first_op];
    if (choice->op_count == 0 || op->kind != HY_GRAMMAR_TEXT) return (hy_grammar_text){"", 0};
    return op->text;
}

/* The weight of the rule's alternatives that share the first `size` bytes of `text`. */
static int weight_agreeing(const hy_grammar_program *program, const hy_grammar_rule_program *rule,
                           hy_grammar_text text, int size) {
    int weight = 0;
    for (int i = 0; i < rule->choice_count; i++) {
        const hy_grammar_choice *other = &program->choices[rule->first_choice + i];
        hy_grammar_text its = opening(program, other);
        bool agrees = its.size >= size && memcmp(its.data, text.data, (size_t)size) == 0;
        if (agrees) weight += other->weight;
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
        if (program->cost_count == HY_GRAMMAR_COSTS_MAX) return refuse(program, at, "no room");
        program->costs[program->cost_count++] = (float)log((double)weight / left);
        choice->cost_count++;
        weight = left;
    }
    if (weight > choice->weight) {
        return refuse(program, at,
                      "one alternative begins with the complete first text of another");
    }
    return HY_OK;
}

/* The rule that makes the last choice whenever rule `at` is expanded. */
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

typedef struct expectation {
    double nats, bytes;
    int bytes_max;
} expectation;

/* Finds the rule that decides an agreeing form or a repetition, by its letter. */
static hy_status expect_decided(const hy_grammar_program *program, int at, const hy_grammar_op *op,
                                expectation *sum) {
    bool agrees = op->kind == HY_GRAMMAR_AGREE;
    int decider = program->rules[program->slot_rule[agrees ? op->slot : op->counter]].deciding_rule;
    if (decider < 0) {
        return refuse(
            program, at,
            agrees ? "agrees with a letter, but the rule of the letter does not end with a choice"
                   : "counts by a letter, but the rule of the letter does not end with a choice");
    }
    const hy_grammar_rule_program *rule = &program->rules[decider];
    const hy_grammar_rule_program *repeated = &program->rules[program->slot_rule[op->slot]];
    if (agrees && rule->choice_count % op->form_count != 0) {
        return refuse(program, at,
                      "the number of alternatives is not a multiple of the number of forms");
    }
    int longest = 0;
    double mean = 0; /* mean bytes of a form, or mean repetitions */
    for (int i = 0; i < rule->choice_count; i++) {
        int size = agrees ? program->forms[op->first_form + i % op->form_count].size : i + 1;
        mean += (double)program->choices[rule->first_choice + i].weight * size / rule->total_weight;
        if (size > longest) longest = size;
    }
    sum->bytes += agrees ? mean : mean * (2 + repeated->bytes);
    sum->bytes_max += agrees ? longest : longest * (2 + repeated->bytes_max);
    return HY_OK;
}

static hy_status expect_op(const hy_grammar_program *program, int at, const hy_grammar_op *op,
                           expectation *sum) {
    if (op->kind == HY_GRAMMAR_AGREE || op->kind == HY_GRAMMAR_REPEAT) {
        return expect_decided(program, at, op, sum);
    }
    if (op->kind == HY_GRAMMAR_TEXT) {
        sum->bytes += op->text.size;
        sum->bytes_max += op->text.size;
        return HY_OK;
    }
    bool expands = op->kind == HY_GRAMMAR_EXPAND; /* otherwise it copies */
    const hy_grammar_rule_program *used =
        &program->rules[expands ? op->rule : program->slot_rule[op->slot]];
    if (expands) sum->nats += used->nats;
    sum->bytes += used->bytes;
    sum->bytes_max += used->bytes_max;
    return HY_OK;
}

/* The letters of a rule: those it needs from outside, those it always fills, those it may fill. */
typedef struct letters {
    uint32_t needs, fills, touches;
} letters;

static hy_status letters_of_rule(const hy_grammar_program *program, int at, letters *of_rule) {
    const hy_grammar_rule_program *rule = &program->rules[at];
    letters all = {.fills = UINT32_MAX};
    for (int i = 0; i < rule->choice_count; i++) {
        const hy_grammar_choice *choice = &program->choices[rule->first_choice + i];
        uint32_t filled = 0;
        for (int k = 0; k < choice->op_count; k++) {
            const hy_grammar_op *op = &program->ops[choice->first_op + k];
            uint32_t needs = op->kind == HY_GRAMMAR_TEXT     ? 0
                             : op->kind == HY_GRAMMAR_EXPAND ? of_rule[op->rule].needs
                                                             : 1u << op->slot;
            if (op->kind == HY_GRAMMAR_REPEAT) needs |= 1u << op->counter;
            all.needs |= needs & ~filled;
            if (op->kind != HY_GRAMMAR_EXPAND) continue;
            filled |= of_rule[op->rule].fills;
            all.touches |= of_rule[op->rule].touches;
            if (op->slot == HY_GRAMMAR_NO_SLOT) continue;
            /* This keeps the values of two letters independent of each other. */
            if (of_rule[op->rule].touches | of_rule[op->rule].needs) {
                return refuse(program, at,
                              "stores a rule in a letter, but that rule uses letters itself");
            }
            filled |= 1u << op->slot;
            all.touches |= 1u << op->slot;
        }
        all.fills &= filled;
    }
    of_rule[at] = all;
    return HY_OK;
}

/* ---- rules to a program ---------------------------------------------------------------------- */

/* The rule that is being read: for messages, and to check that references point down the table. */
typedef struct reader {
    hy_grammar_program *program;
    int rule;
} reader;

static hy_status complain(const reader *r, const char *what, const char *text, int size) {
    return hy_fail(HY_ERR_INTERNAL, "grammar rule \"%s\": %s \"%.*s\"",
                   r->program->source[r->rule].name, what, size, text);
}

static bool is_slot(char c) { return c >= 'A' && c <= 'Z'; }

static hy_status add_op(const reader *r, hy_grammar_op op) {
    if (r->program->op_count == HY_GRAMMAR_OPS_MAX) return complain(r, "no room for", "", 0);
    r->program->ops[r->program->op_count++] = op;
    return HY_OK;
}

/* Reads <rule> and <X=rule>; `slot` is NO_SLOT for the first form. */
static hy_status read_expand(const reader *r, const char *name, int size, int slot) {
    int rule = r->program->rule_count - 1;
    for (; rule >= 0; rule--) {
        const char *known = r->program->source[rule].name;
        if ((int)strlen(known) == size && memcmp(known, name, (size_t)size) == 0) break;
    }
    if (rule < 0) return complain(r, "there is no rule", name, size);
    if (rule <= r->rule) return complain(r, "must not refer to a rule above it:", name, size);
    if (slot != HY_GRAMMAR_NO_SLOT) {
        int *filled_by = &r->program->slot_rule[slot];
        if (*filled_by >= 0 && *filled_by != rule) {
            return complain(r, "a letter must always store the same rule; another one is", name,
                            size);
        }
        *filled_by = rule;
    }
    return add_op(r, (hy_grammar_op){.kind = HY_GRAMMAR_EXPAND, .rule = rule, .slot = slot});
}

/* Reads the texts of <X?one/two>. */
static hy_status read_agree(const reader *r, const char *forms, int size, int slot) {
    hy_grammar_program *program = r->program;
    hy_grammar_op op = {.kind = HY_GRAMMAR_AGREE, .slot = slot, .first_form = program->form_count};
    const char *end = forms + size;
    for (const char *at = forms; at <= end;) {
        const char *slash = memchr(at, '/', (size_t)(end - at));
        const char *stop = slash ? slash : end;
        if (program->form_count == HY_GRAMMAR_FORMS_MAX)
            return complain(r, "too many forms", at, 0);
        program->forms[program->form_count++] = (hy_grammar_text){at, (int)(stop - at)};
        op.form_count++;
        at = stop + 1;
    }
    return add_op(r, op);
}

/* Reads the text between < and >. */
static hy_status read_insertion(const reader *r, const char *text, int size) {
    if (size == 0 || !is_slot(text[0])) return read_expand(r, text, size, HY_GRAMMAR_NO_SLOT);
    int slot = text[0] - 'A';
    if (size == 1) return add_op(r, (hy_grammar_op){.kind = HY_GRAMMAR_COPY, .slot = slot});
    if (text[1] == '=') return read_expand(r, text + 2, size - 2, slot);
    if (text[1] == '?') return read_agree(r, text + 2, size - 2, slot);
    if (text[1] == '*' && size == 3 && is_slot(text[2])) {
        hy_grammar_op op = {.kind = HY_GRAMMAR_REPEAT, .slot = slot, .counter = text[2] - 'A'};
        return add_op(r, op);
    }
    return complain(r, "cannot read", text, size);
}

/* Reads "3~" before an alternative: returns the weight and moves past it. */
static int read_weight(const char **text, const char *end) {
    int weight = 0;
    const char *at = *text;
    while (at < end && *at >= '0' && *at <= '9' && weight < 1000)
        weight = 10 * weight + *at++ - '0';
    if (at == *text || at == end || *at != '~') return 1;
    *text = at + 1;
    return weight;
}

static hy_status read_alternative(const reader *r, const char *text, const char *end) {
    hy_grammar_program *program = r->program;
    hy_grammar_rule_program *rule = &program->rules[r->rule];
    if (program->choice_count == HY_GRAMMAR_CHOICES_MAX) return complain(r, "no room for", text, 0);
    hy_grammar_choice *choice = &program->choices[program->choice_count++];
    choice->weight = read_weight(&text, end);
    if (choice->weight < 1 || rule->total_weight + choice->weight > HY_GRAMMAR_WEIGHT_MAX) {
        return complain(r, "bad weight at", text, (int)(end - text));
    }
    for (int i = 0; i < choice->weight; i++) {
        rule->drawn[rule->total_weight++] = (uint8_t)rule->choice_count;
    }
    rule->choice_count++;
    choice->first_op = program->op_count;
    while (text < end) {
        if (*text == '<') {
            const char *close = memchr(text, '>', (size_t)(end - text));
            if (!close) return complain(r, "not closed:", text, (int)(end - text));
            HY_TRY(read_insertion(r, text + 1, (int)(close - text) - 1));
            text = close + 1;
            continue;
        }
        const char *open = memchr(text, '<', (size_t)(end - text));
        const char *stop = open ? open : end;
        hy_grammar_text piece = {text, (int)(stop - text)};
        HY_TRY(add_op(r, (hy_grammar_op){.kind = HY_GRAMMAR_TEXT, .text = piece}));
        text = stop;
    }
    choice->op_count = program->op_count - choice->first_op;
    return HY_OK;
}

static hy_status read_rule(const reader *r) {
    const char *text = r->program->source[r->rule].alternatives;
    r->program->rules[r->rule].first_choice = r->program->choice_count;
    for (;;) {
        const char *bar = strchr(text, '|');
        HY_TRY(read_alternative(r, text, bar ? bar : text + strlen(text)));
        if (!bar) return HY_OK;
        text = bar + 1;
    }
}

hy_status hy_grammar_program_build(const hy_grammar_rule *source, int count,
                                   hy_grammar_program *program) {
    memset(program, 0, sizeof *program);
    program->source = source;
    program->rule_count = count;
    for (int i = 0; i < HY_GRAMMAR_SLOTS; i++) program->slot_rule[i] = -1;
    HY_FAIL_IF(count < 1 || count > HY_GRAMMAR_RULES_MAX, HY_ERR_INTERNAL,
               "the grammar has %d rules; expected 1 to %d", count, HY_GRAMMAR_RULES_MAX);
    for (int i = 0; i < count; i++) HY_TRY(read_rule(&(reader){program, i}));
    /* Letters must be filled before they are used, by rules further down than their users. */
    letters of_rule[HY_GRAMMAR_RULES_MAX] = {{0}};
    for (int at = program->rule_count - 1; at >= 0; at--) {
        HY_TRY(letters_of_rule(program, at, of_rule));
        for (int slot = 0; slot < HY_GRAMMAR_SLOTS; slot++) {
            bool is_needed = of_rule[at].needs >> slot & 1;
            if (is_needed && program->slot_rule[slot] <= at) {
                return refuse(program, at, "uses a letter, but no rule below fills it");
            }
        }
    }
    if (of_rule[0].needs) return refuse(program, 0, "uses a letter before a rule fills it");
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
               "a document of the grammar can have %d bytes; expected at most %d",
               program->rules[0].bytes_max, HY_GRAMMAR_DOCUMENT_MAX);
    return HY_OK;
}
