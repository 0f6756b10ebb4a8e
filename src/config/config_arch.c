/* config_arch.c: options of an architecture that follow from the shape. See config_arch.h. */
#include "config/config_arch.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "config/builtin.h"
#include "config/config_values.h"
#include "model/arch/arch.h"

static const hy_family *family_of(const hy_config *config) {
    int arch = HY_ARCH_NONE;
    hy_choice_value("shape.architecture", hy_config_raw(config, "shape.architecture"), &arch);
    return hy_family_of((hy_arch)arch);
}

static long number_of(const hy_config *config, const char *key) {
    return strtol(hy_config_raw(config, key), NULL, 10);
}

/* Weights keep the model that they were trained as. A file of a run sets init_from, too; older
 * programs wrote it without options. */
static bool has_weights(const hy_config *config) {
    return hy_config_raw(config, "init_from")[0] ||
           hy_config_raw_rank(config, "init_from") == HY_FROM_FILE;
}

/* Does a file or flag set the architecture, or the size of heads, of a model without weights? */
static bool is_described(const hy_config *config) {
    static const char *const keys[] = {"shape.architecture", "shape.head_size", "shape.heads",
                                       "shape.width"};
    const char *model = hy_config_raw(config, "model");
    bool is_preset = hy_builtin_text("model", model) || hy_has_ending(model, ".cfg");
    if (!is_preset || has_weights(config)) return false;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (hy_config_raw_rank(config, keys[i]) >= HY_FROM_FILE) return true;
    return false;
}

/* Adds a number to a JSON object that does not have the key. */
static void add_number(const char *key, double number, char json[HY_VALUE_MAX]) {
    char all[HY_VALUE_MAX], name[80];
    snprintf(name, sizeof name, "\"%s\"", key);
    const char *rest = json[0] ? json + 1 : "}";
    if ((json[0] && json[0] != '{') || strstr(json, name)) return;
    bool is_alone = rest[strspn(rest, " \t\n")] == '}';
    int size =
        snprintf(all, sizeof all, "{%s: %.15g%s%s", name, number, is_alone ? "" : ", ", rest);
    if (size < (int)sizeof all) memcpy(json, all, sizeof all);
}

void hy_config_arch_options(const hy_config *config, char out[HY_VALUE_MAX]) {
    static const char *const keys[] = {"query_pre_attn_scalar", "attention_multiplier"};
    const hy_family *family = family_of(config);
    const char *given = hy_config_raw(config, "shape.arch_options");
    bool is_none = !given[0] && hy_config_raw_rank(config, "shape.arch_options") >= HY_FROM_FILE;
    long head = number_of(config, "shape.head_size"), heads = number_of(config, "shape.heads");
    out[0] = 0;
    if (head == 0 && heads > 0) head = number_of(config, "shape.width") / heads;
    if (!family || is_none || head < 1 || !is_described(config)) return;
    snprintf(out, HY_VALUE_MAX, "%s", given);
    for (int i = 0; i < 2; i++) { /* Gemma divides scores by sqrt(head), Granite by head */
        const hy_config_field *f = hy_family_field(family, keys[i]);
        double value = i == 0 ? (double)head : 1.0 / (double)head;
        if (f && f->fallback != value) add_number(keys[i], value, out);
    }
    if (strcmp(out, given) == 0) out[0] = 0;
}

const char *hy_config_arch_windows(const hy_config *config) {
    static const char longest[] = "sssssssf";
    const hy_family *family = family_of(config);
    size_t period = family ? (size_t)family->window_period : 0;
    bool is_used = !has_weights(config) && period > 0 && period < sizeof longest &&
                   (size_t)number_of(config, "shape.layers") >= period &&
                   number_of(config, "shape.sliding_window") > 0;
    return is_used ? longest + sizeof longest - 1 - period : NULL;
}
