/* hf_shape.c: reads the shape from a model's files, in any format. See hf_load.h. */
#include "base/error.h"
#include "hub/hf_load.h"

/* Values that the format lacks are those that llama2.c uses. */
static hy_status llama2c_shape(const char *path, hy_shape *out) {
    hy_llama2c file;
    HY_TRY(hy_llama2c_open(path, &file));
    *out = (hy_shape){.layers = file.layers,
                      .width = file.width,
                      .heads = file.heads,
                      .kv_heads = file.kv_heads,
                      .mlp_width = file.mlp_width,
                      .vocab = file.vocab,
                      .context = file.context,
                      .is_rms = true,
                      .has_rope = true,
                      .is_gated = true,
                      .has_tied_head = !file.has_own_head,
                      .norm_eps = 1e-5,
                      .rope_theta = 10000,
                      .init_std = 0.02};
    hy_llama2c_close(&file);
    return hy_shape_complete(out);
}

hy_status hy_model_files_shape(hy_model_files kind, const char *path, hy_shape *out) {
    hy_hf_config config;
    if (kind == HY_FILES_LLAMA2C) return llama2c_shape(path, out);
    HY_TRY(hy_hf_config_look(path, &config));
    *out = config.shape;
    return HY_OK;
}

hy_status hy_model_files_quant(hy_model_files kind, const char *path, hy_hf_quant *out) {
    hy_hf_config config;
    *out = HY_HF_PLAIN;
    if (kind != HY_FILES_HF) return HY_OK;
    HY_TRY(hy_hf_config_look(path, &config));
    *out = config.quant;
    return HY_OK;
}
