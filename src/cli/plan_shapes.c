/* plan_shapes.c: plans a custom model from a list of its shapes. See inspect.h.
 *
 * Each line of the file has the name of a parameter and its dimensions, separated by blanks:
 * "wte.weight 50257 768". Empty lines are skipped, and # begins a comment. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/inspect.h"
#include "cli/options.h"

typedef struct shapes {
    hy_parameter *list;
    int32_t count, room;
} shapes;

static hy_status add_name(shapes *s, const char *name) {
    char *copy = strdup(name);
    if (copy && s->count == s->room) {
        hy_parameter *more = realloc(s->list, (2 * (size_t)s->room + 64) * sizeof *more);
        if (more) s->list = more;
        if (more) s->room = 2 * s->room + 64;
    }
    if (!copy || s->count == s->room) {
        free(copy);
        return hy_cli_refuse(HY_ERR_MEMORY, "no memory for a list of shapes");
    }
    s->list[s->count++] = (hy_parameter){.name = copy};
    return HY_OK;
}

static hy_status add_line(shapes *s, char *line, const char *path, long number) {
    char *rest = NULL, *end;
    line[strcspn(line, "#")] = '\0';
    const char *blanks = " \t\r\n";
    char *word = strtok_r(line, blanks, &rest);
    if (!word) return HY_OK;
    hy_status status = add_name(s, word);
    if (status != HY_OK) return status;
    hy_parameter *p = &s->list[s->count - 1];
    while ((word = strtok_r(NULL, blanks, &rest)) != NULL) {
        errno = 0;
        long long size = strtoll(word, &end, 10);
        if (*end != '\0' || errno != 0 || size < 1 || p->ndim == HY_PARAMETER_DIMS)
            return hy_cli_refuse(
                HY_ERR_INPUT,
                "%s:%ld: %s: \"%s\" is not a dimension; expected a name and up to %d "
                "integers above 0",
                path, number, p->name, word, HY_PARAMETER_DIMS);
        p->shape[p->ndim++] = size;
    }
    return HY_OK;
}

static hy_status read_shapes(const char *path, shapes *s) {
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    char *line = NULL;
    size_t size = 0;
    hy_status status = HY_OK;
    if (!file) return hy_cli_refuse(HY_ERR_INPUT, "%s: %s", path, strerror(errno));
    for (long number = 1; status == HY_OK && getline(&line, &size, file) >= 0; number++)
        status = add_line(s, line, path, number);
    bool is_broken = ferror(file); /* such as a folder */
    int why = errno;
    free(line);
    if (file != stdin) fclose(file);
    if (status == HY_OK && is_broken) {
        hy_cli_error("%s cannot be read: %s", path, strerror(why));
        status = HY_ERR_INPUT;
    } else if (status == HY_OK && s->count == 0) {
        hy_cli_error("%s has no shapes; expected a name and its dimensions in each line", path);
        status = HY_ERR_INPUT;
    }
    return status;
}

hy_status hy_cli_plan_shapes(hy_config *config, const char *path, hy_trainer **out) {
    shapes s = {0};
    hy_status status = read_shapes(path, &s);
    /* The default length replaces that of the preset, which is for another model. */
    if (status == HY_OK)
        status = hy_cli_checked(hy_config_set(config, "steps", "1000", HY_FROM_DEFAULT));
    if (status == HY_OK) status = hy_cli_checked(hy_config_use_custom(config));
    if (status == HY_OK) {
        const char *precision = hy_cli_value(config, "precision");
        bool is_bf16 = strcmp(precision, "bf16") == 0, is_fp16 = strcmp(precision, "fp16") == 0;
        hy_dtype dtype = is_bf16 ? HY_BF16 : is_fp16 ? HY_F16 : HY_F32;
        hy_custom_parameters custom = {s.list, s.count, .dtype = dtype, .grad_dtype = dtype};
        status = hy_cli_checked(hy_trainer_plan_custom(config, &custom, NULL, out));
    }
    for (int32_t i = 0; i < s.count; i++) free((char *)s.list[i].name);
    free(s.list);
    return status;
}
