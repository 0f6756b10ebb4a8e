/* grammar_program.h: compiles a grammar from a table of rules.
 *
 * A row of the table is a rule: its name and its alternatives, separated by "|". An alternative is
 * text with these insertions:
 *     <rule>       the output of the rule
 *     <X=rule>     as above, and stored under the capital letter X
 *     <X>          the stored bytes of X again
 *     <X?one/two>  agreement: the form that belongs to the alternative last chosen inside X; if
 *                  there are more alternatives than forms, the forms are used in turn
 *     <X*Y>        ", " and the bytes of X, repeated once more than the number (from 0) of the
 *                  alternative last chosen inside Y
 * "3~text" gives an alternative the weight 3; the default weight is 1. The first rule produces a
 * document.
 *
 * A rule refers only to rules below it, so every expansion ends. In a rule with several
 * alternatives, none begins with the complete first text of another. So after those bytes a reader
 * knows which alternative was chosen, each document has one derivation, and the cost of each byte
 * is exact. */
#pragma once

#include "hybrid_types.h"
#include <stdbool.h>

typedef struct hy_grammar_rule {
    const char *name, *alternatives;
} hy_grammar_rule;

/* The built-in grammar (grammar_rules.c). */
extern const hy_grammar_rule hy_grammar_rules[];
extern const int hy_grammar_rule_count;

enum {
    HY_GRAMMAR_RULES_MAX = 64,
    HY_GRAMMAR_CHOICES_MAX = 384,
    HY_GRAMMAR_OPS_MAX = 768,
    HY_GRAMMAR_FORMS_MAX = 64,
    HY_GRAMMAR_COSTS_MAX = 2048,
    HY_GRAMMAR_WEIGHT_MAX = 64, /* sum of the weights of a rule */
    HY_GRAMMAR_SLOTS = 26,      /* A to Z */
    HY_GRAMMAR_NO_SLOT = HY_GRAMMAR_SLOTS,
    HY_GRAMMAR_DOCUMENT_MAX = 1024 /* bytes */
};

typedef struct hy_grammar_text {
    const char *data; /* in the table */
    int size;
} hy_grammar_text;

typedef enum hy_grammar_op_kind {
    HY_GRAMMAR_TEXT,
    HY_GRAMMAR_EXPAND,
    HY_GRAMMAR_COPY,
    HY_GRAMMAR_AGREE,
    HY_GRAMMAR_REPEAT
} hy_grammar_op_kind;

typedef struct hy_grammar_op {
    hy_grammar_op_kind kind;
    hy_grammar_text text; /* TEXT */
    int rule;             /* EXPAND */
    int slot;    /* EXPAND: where to store the output, or NO_SLOT; others: the slot they read */
    int counter; /* REPEAT: the slot that decides how often */
    int first_form, form_count; /* AGREE: its forms */
} hy_grammar_op;

typedef struct hy_grammar_choice {
    int first_op, op_count;
    int weight;
    int first_cost, cost_count; /* nats of its first bytes; none if the rule has a single choice */
} hy_grammar_choice;

typedef struct hy_grammar_rule_program {
    int first_choice, choice_count;
    int total_weight;
    uint8_t drawn[HY_GRAMMAR_WEIGHT_MAX]; /* a number below total_weight -> the choice */
    int deciding_rule; /* the rule that makes the last choice; -1: varies or none */
    double nats;       /* expected cost of all choices in it */
    double bytes;      /* expected length */
    int bytes_max;
} hy_grammar_rule_program;

typedef struct hy_grammar_program {
    const hy_grammar_rule *source;
    int rule_count, choice_count, op_count, form_count, cost_count;
    int slot_rule[HY_GRAMMAR_SLOTS]; /* the rule that fills a slot; -1: unused */
    hy_grammar_rule_program rules[HY_GRAMMAR_RULES_MAX];
    hy_grammar_choice choices[HY_GRAMMAR_CHOICES_MAX];
    hy_grammar_op ops[HY_GRAMMAR_OPS_MAX];
    hy_grammar_text forms[HY_GRAMMAR_FORMS_MAX];
    float costs[HY_GRAMMAR_COSTS_MAX];
} hy_grammar_program;

/* Reads and checks the table, computes costs and expectations. HY_ERR_INTERNAL names the rule and
 * the problem. The table must outlive the program. */
hy_status hy_grammar_program_build(const hy_grammar_rule *source, int count,
                                   hy_grammar_program *program);
