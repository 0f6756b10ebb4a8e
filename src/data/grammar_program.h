/* grammar_program.h: a grammar written as a table of rules, made ready to run.
 *
 * A table row is a rule: its name and its alternatives, separated by "|", each of them text with
 * these insertions:
 *     <rule>       what the rule makes
 *     <X=rule>     the same, and remembered under the capital letter X
 *     <X>          the bytes of X once more
 *     <X?one/two>  agreement: the form that belongs to the alternative last chosen inside X; where
 *                  there are more alternatives than forms, the forms are taken in turn
 *     <X*Y>        ", " and the bytes of X, once more than the number (from 0) of the alternative
 *                  last chosen inside Y
 * "3~text" gives an alternative the weight 3; without it the weight is 1. The first rule makes a
 * document.
 *
 * A rule refers only to rules below it, so everything ends. Where there is a choice, the
 * alternatives begin with texts none of which is the beginning of another; so a reader knows after
 * those bytes which one it was, each document has one derivation, and the cost of each byte is
 * exact. */
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
    int slot;             /* EXPAND: where to remember it, or NO_SLOT; others: what they refer to */
    int counter;          /* REPEAT: the slot that says how often */
    int first_form, form_count; /* AGREE: its texts */
} hy_grammar_op;

typedef struct hy_grammar_choice {
    int first_op, op_count;
    int weight;
    int first_cost, cost_count; /* nats of its first bytes; none where the rule leaves no choice */
} hy_grammar_choice;

typedef struct hy_grammar_rule_program {
    int first_choice, choice_count;
    int total_weight;
    uint8_t drawn[HY_GRAMMAR_WEIGHT_MAX]; /* a number below total_weight -> the choice */
    int deciding_rule; /* the one whose choice "last chosen inside" means; -1: varies or none */
    double nats;       /* expected cost of the choices made in it */
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

/* Reads and checks the table, fills in costs and expectations. HY_ERR_INTERNAL names the rule and
 * what is wrong with it. The table must outlive the program. */
hy_status hy_grammar_program_build(const hy_grammar_rule *source, int count,
                                   hy_grammar_program *program);
