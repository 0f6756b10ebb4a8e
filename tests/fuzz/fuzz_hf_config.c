/* fuzz_hf_config.c: config.json of any bytes.
 *
 * Parsing gives a named error or a shape that is a model's; what is then written from the shape
 * reads back to the same one, and so does the source with another dtype. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "hub/hf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_hf_config: %s: %s\n", what, hy_error_message());
    abort();
}

static void reads_back(const hy_text *text, const hy_hf_config *config) {
    hy_hf_config again;
    require(hy_hf_config_parse(text->data, text->size, "written", &again) == HY_OK,
            "a written config is refused");
    require(again.shape.arch == config->shape.arch && again.has_dtype && again.dtype == HY_F16,
            "architecture or dtype changed on the way");
    hy_text one = {0}, other = {0};
    require(hy_hf_config_write(&config->shape, HY_F16, NULL, NULL, &one) == HY_OK &&
                hy_hf_config_write(&again.shape, HY_F16, NULL, NULL, &other) == HY_OK &&
                strcmp(one.data, other.data) == 0,
            "the shape changed on the way");
    hy_text_free(&one);
    hy_text_free(&other);
    hy_hf_config_free(&again);
}

static void write_again(const char *text, size_t size, const hy_hf_config *config) {
    hy_json *json;
    hy_text out = {0};
    require(hy_json_parse(text, size, "source", &json) == HY_OK, "it was JSON a moment ago");
    require(hy_hf_config_copy(hy_json_root(json), HY_F16, NULL, &out) == HY_OK,
            "it cannot be copied");
    reads_back(&out, config);
    hy_text_clear(&out);
    require(hy_hf_config_write(&config->shape, HY_F16, NULL, NULL, &out) == HY_OK,
            "it cannot be written");
    reads_back(&out, config);
    hy_text_free(&out);
    hy_json_free(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hy_hf_config config;
    char *text = malloc(size + 1); /* ends where the input does: one byte more is seen */
    require(text != NULL, "no memory");
    memcpy(text, data, size);
    if (hy_hf_config_parse(text, size, "config.json", &config) == HY_OK) {
        write_again(text, size, &config);
        hy_hf_config_free(&config);
    } else {
        require(hy_error_message()[0] != 0, "a refusal without a word");
    }
    free(text);
    return 0;
}
