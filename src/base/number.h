/* number.h: converts doubles to text and back, the same in every locale.
 *
 * printf and strtod use the decimal point of the user's language; files must not. A written number
 * reads back to the same bits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define HY_NUMBER_MAX 32 /* room for any written double, including its zero */

/* Writes the shortest of 9, 15, 16 or 17 significant digits that read back to the same double, or
 * "nan", "inf" or "-inf". Returns the buffer. */
char *hy_number_format(double value, char buffer[HY_NUMBER_MAX]);

/* Reads a number that makes up all of text[0 .. size): decimal, with optional sign, fraction and
 * exponent. False for anything else, or if it is too large for a double. The text must be
 * zero-terminated, and text[size] must not be a character that could continue the number. */
bool hy_number_parse(const char *text, size_t size, double *out);
