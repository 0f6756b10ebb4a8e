/* pattern.h: POSIX extended regular expressions over answers, with bounded cost.
 *
 * An expression is used as bytes in the "C" locale, so that it matches the same everywhere. It has
 * no back-references, for which matching can take exponential time; without them, and anchored as
 * it is here, glibc matches in one pass. Only the first HY_PATTERN_BYTES of a text are looked at.
 * The expression is compiled for each text, because glibc never frees the states that a compiled
 * one collects while it is used. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"
#include "reward/spans.h"

#define HY_PATTERN_BYTES ((size_t)64 << 10)
#define HY_PATTERN_MOST 1000 /* bytes of an expression */

/* HY_ERR_INPUT says what is wrong with an expression. */
hy_status hy_pattern_check(const char *expression);
/* Whether an expression, which has been checked, occurs in the text; is_whole: whether it matches
 * all of it. A text that is longer than HY_PATTERN_BYTES never matches as a whole. */
hy_status hy_pattern_match(const char *expression, bool is_whole, hy_span text, bool *matches);
