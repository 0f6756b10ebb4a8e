/* spans.h: finds what checks compare in answers: the last number, the content of \boxed{}.
 *
 * A span is a part of a text and owns nothing. Functions take time linear in the text, except that
 * finding a part without case takes its length times that. White space and letters are those of
 * ASCII, in every locale. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct hy_span {
    const char *data;
    size_t size;
} hy_span;

hy_span hy_span_trim(hy_span text); /* without white space at both ends */
bool hy_span_is_equal(hy_span a, hy_span b, bool ignores_case);
/* Whether `part` occurs in `text`; an empty part does. */
bool hy_span_contains(hy_span text, hy_span part, bool ignores_case);

/* The last number in a text: digits with an optional sign, commas between groups of three digits, a
 * fraction and an exponent. A minus behind a letter, a digit or a closing bracket is an operator
 * ("7-5" ends with 5); "-$5" is -5. False: there is none, or it is too large for a double. */
bool hy_last_number(hy_span text, double *out);

/* The trimmed content of the last \boxed{...}, with balanced braces; \{ and \} do not count. False:
 * there is none, or the last one has no end. */
bool hy_last_boxed(hy_span text, hy_span *content);
