/* fuzz_config.c: a configuration file of any bytes, as libconfig and as YAML.
 *
 * It is loaded or refused with a message; what was loaded can be printed, and what is printed loads
 * again. Whatever settings it makes are checked as a run would. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hybrid.h"
#include "scratch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[128], path[200], yaml[200], again[200];

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_config: %s: %s\n", what, hy_error_message());
    abort();
}

static void remove_folder(void) {
    unlink(path);
    unlink(yaml);
    unlink(again);
    rmdir(folder);
}

static void make_folder(void) {
    make_scratch(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/a.cfg", folder);
    snprintf(yaml, sizeof yaml, "%s/a.yaml", folder);
    snprintf(again, sizeof again, "%s/b.cfg", folder);
    atexit(remove_folder);
}

static void load_again(const hy_config *config) {
    hy_config *other;
    char *text = NULL, *second = NULL;
    require(hy_config_print(config, &text) == HY_OK, "it cannot be printed");
    put_scratch(again, text, strlen(text));
    require(hy_config_create(&other) == HY_OK, "no memory");
    require(hy_config_load(other, again) == HY_OK, "what was printed is refused");
    require(hy_config_print(other, &second) == HY_OK, "it cannot be printed again");
    hy_free(text);
    hy_free(second);
    hy_config_destroy(other);
}

static void load(const char *file, const uint8_t *data, size_t size) {
    hy_config *config;
    put_scratch(file, data, size);
    require(hy_config_create(&config) == HY_OK, "no memory");
    if (hy_config_load(config, file) == HY_OK) {
        load_again(config);
    } else {
        require(hy_error_message()[0] != 0, "a refusal without a word");
    }
    hy_config_destroy(config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!folder[0]) make_folder();
    load(path, data, size);
    load(yaml, data, size);
    return 0;
}
