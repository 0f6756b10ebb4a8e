/* grammar_program.c: reads a table of rules into a program. See grammar_program.h for the
 * notation.
 *
 * Texts stay where they are, in the table; the program points at them. Rules are read in order,
 * then costed from the last to the first (grammar_costs.c), since a rule refers only to those
 * below it. */
#include "data/grammar_program.h"

#include <string.h>

#include "base/error.h"
#include "data/grammar_costs.h"

/* What is being read: for messages, and for the check that references point down the table. */
typedef struct reader {
    hy_grammar_program *program;
    int rule;
} reader;

static hy_status complain(const reader *r, const char *what, const char *text, int size) {
    return hy_fail(HY_ERR_INTERNAL, "grammar rule \"%s\": %s \"%.*s\"",
                   r->program->source[r->rule].name, what, size, text);
}

static bool is_slot(char c) { return c >= 'A' && c <= 'Z'; }

static int find_rule(const hy_grammar_program *program, const char *name, int size) {
    for (int i = 0; i < program->rule_count; i++) {
        const char *known = program->source[i].name;
        if ((int)strlen(known) == size && memcmp(known, name, (size_t)size) == 0) return i;
    }
    return -1;
}

static hy_status add_op(const reader *r, hy_grammar_op op) {
    if (r->program->op_count == HY_GRAMMAR_OPS_MAX) return complain(r, "no room for", "", 0);
    r->program->ops[r->program->op_count++] = op;
    return HY_OK;
}

/* <rule> and <X=rule>; `slot` is NO_SLOT for the former. */
static hy_status read_expand(const reader *r, const char *name, int size, int slot) {
    int rule = find_rule(r->program, name, size);
    if (rule < 0) return complain(r, "there is no rule", name, size);
    if (rule <= r->rule) return complain(r, "may not refer up the table to", name, size);
    if (slot != HY_GRAMMAR_NO_SLOT) {
        int *filled_by = &r->program->slot_rule[slot];
        if (*filled_by >= 0 && *filled_by != rule) {
            return complain(r, "a letter stands for one rule only; another is", name, size);
        }
        *filled_by = rule;
    }
    return add_op(r, (hy_grammar_op){.kind = HY_GRAMMAR_EXPAND, .rule = rule, .slot = slot});
}

/* The texts of <X?one/two>. */
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

/* What stands between < and >. */
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

/* "3~" in front of an alternative: returns the weight and moves past it. */
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
               "a grammar of %d rules; expected 1 to %d", count, HY_GRAMMAR_RULES_MAX);
    for (int i = 0; i < count; i++) HY_TRY(read_rule(&(reader){program, i}));
    return hy_grammar_costs_fill(program);
}
