/* grammar_costs.h: the second half of building a grammar's program (grammar_program.h). */
#ifndef HY_DATA_GRAMMAR_COSTS_H
#define HY_DATA_GRAMMAR_COSTS_H

#include "data/grammar_program.h"

/* Checks that choices can be told apart and that letters are filled before use; fills in the cost
 * of each choice's first bytes and each rule's expected cost and length. */
hy_status hy_grammar_costs_fill(hy_grammar_program *program);

#endif
