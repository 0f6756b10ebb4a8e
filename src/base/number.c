/* number.c: converts doubles to text and back in the "C" locale. See number.h. */
#include "base/number.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* strtod accepts everything these characters can spell; with others it would also accept
 * hexadecimals, words and blanks. */
bool hy_number_parse(const char *text, size_t size, double *out) {
    if (size == 0 || strspn(text, "0123456789+-.eE") < size) return false;
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) return false;
    char *end;
    *out = strtod_l(text, &end, plain);
    freelocale(plain);
    return end == text + size && isfinite(*out);
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
