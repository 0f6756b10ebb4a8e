/* builtin.c: lookup in the embedded configuration files. See builtin.h.
 *
 * The files are few, so each lookup goes through all of them. */
#include "config/builtin.h"

#include <string.h>

enum { MAX_NAMES = 256 };

const char *hy_builtin_name(const char *kind, size_t i) {
    if (!kind) return NULL;
    for (const hy_builtin_file *f = hy_builtin_files; f->kind; f++)
        if (!strcmp(f->kind, kind) && i-- == 0) return f->name;
    return NULL;
}

const char *hy_builtin_text(const char *kind, const char *name) {
    if (!kind || !name) return NULL;
    for (const hy_builtin_file *f = hy_builtin_files; f->kind; f++)
        if (!strcmp(f->kind, kind) && !strcmp(f->name, name)) return f->text;
    return NULL;
}

void hy_builtin_list(const char *kind, hy_text *out) {
    const char *name;
    for (size_t i = 0; (name = hy_builtin_name(kind, i)) != NULL; i++)
        hy_text_addf(out, "%s%s", i ? ", " : "", name);
}

const char *hy_builtin_nearest(const char *kind, const char *name) {
    const char *names[MAX_NAMES];
    size_t count = 0;
    while (count < MAX_NAMES && (names[count] = hy_builtin_name(kind, count)) != NULL) count++;
    return hy_nearest_word(name, names, count);
}
