/* number.c: doubles as text and back in the "C" locale. See number.h.
 *
 * Most numbers in files are short, and a short one is exact: its digits and a power of ten up to
 * 10^22 both fit a double, so one multiplication or division rounds once and correctly (Clinger,
 * "How to read floating point numbers accurately", 1990). The rest goes to strtod_l. */
#include "base/number.h"

#include <locale.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static const double powers_of_ten[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                       1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                       1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* A number taken apart: digits * 10^exponent. */
typedef struct parts {
    uint64_t digits;
    long exponent;
    int digit_count; /* significant ones */
    bool is_negative;
} parts;

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Adds a run of digits; past 19 of them only the count goes on. Returns where the run ends. */
static const char *take_digits(const char *p, const char *end, parts *number) {
    for (; p < end && is_digit(*p); p++) {
        if (number->digit_count == 0 && *p == '0') continue; /* leading zeros carry nothing */
        if (number->digit_count++ < 19) {
            number->digits = number->digits * 10 + (uint64_t)(*p - '0');
        }
    }
    return p;
}

/* Reads "e+12" after the digits; false when the exponent has no digits. */
static bool take_exponent(const char **p, const char *end, long *exponent) {
    const char *q = *p + 1;
    bool is_negative = q < end && *q == '-';
    if (q < end && (*q == '-' || *q == '+')) q++;
    if (q == end || !is_digit(*q)) return false;
    long value = 0;
    for (; q < end && is_digit(*q); q++) {
        if (value < 100000) value = value * 10 + (*q - '0'); /* larger ones are all the same */
    }
    *exponent += is_negative ? -value : value;
    *p = q;
    return true;
}

static bool take_apart(const char *text, size_t size, parts *number) {
    const char *p = text, *end = text + size;
    if (p < end && (*p == '-' || *p == '+')) number->is_negative = *p++ == '-';
    const char *whole = p;
    p = take_digits(p, end, number);
    bool has_digits = p > whole;
    if (p < end && *p == '.') {
        const char *fraction = ++p;
        p = take_digits(p, end, number);
        number->exponent -= p - fraction;
        has_digits |= p > fraction;
    }
    if (!has_digits) return false;
    if (p < end && (*p == 'e' || *p == 'E') && !take_exponent(&p, end, &number->exponent)) {
        return false;
    }
    return p == end;
}

static bool parse_slowly(const char *text, size_t size, double *out) {
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) return false;
    char *end;
    *out = strtod_l(text, &end, plain);
    freelocale(plain);
    return end == text + size && isfinite(*out);
}

bool hy_number_parse(const char *text, size_t size, double *out) {
    parts number = {0};
    if (!take_apart(text, size, &number)) return false;
    bool is_short = number.digit_count <= 15 && number.exponent >= -22 && number.exponent <= 22;
    if (!is_short) return parse_slowly(text, size, out);
    double value = (double)number.digits;
    value = number.exponent < 0 ? value / powers_of_ten[-number.exponent]
                                : value * powers_of_ten[number.exponent];
    *out = number.is_negative ? -value : value;
    return true;
}

char *hy_number_format(double value, char buffer[HY_NUMBER_MAX]) {
    if (!isfinite(value)) {
        snprintf(buffer, HY_NUMBER_MAX, "%s", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return buffer;
    }
    static const int digits[] = {9, 15, 16, 17};
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t before = plain ? uselocale(plain) : (locale_t)0;
    for (size_t i = 0; i < sizeof digits / sizeof digits[0]; i++) {
        snprintf(buffer, HY_NUMBER_MAX, "%.*g", digits[i], value);
        if (strtod(buffer, NULL) == value) break;
    }
    if (plain) {
        uselocale(before);
        freelocale(plain);
    }
    return buffer;
}
