/* number.h: doubles as text and back, the same in every locale.
 *
 * printf and strtod use the decimal point of the user's language; files must not. What is written
 * here reads back to the same bits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define HY_NUMBER_MAX 32 /* room that any written double fits into, its zero included */

/* The shortest of 9, 15, 16 or 17 significant digits that read back to the same double; "nan",
 * "inf" and "-inf" for those. Returns the buffer. */
char *hy_number_format(double value, char buffer[HY_NUMBER_MAX]);

/* Reads the number that makes up text[0 .. size): decimal, with optional sign, fraction and
 * exponent. False when it is anything else or too large for a double. The text must be
 * zero-terminated somewhere, and text[size] must not be a byte that could go on a number. */
bool hy_number_parse(const char *text, size_t size, double *out);
