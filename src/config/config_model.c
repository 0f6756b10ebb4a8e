/* config_model.c: a shape as settings: the way back from hy_shape_from_settings. See config_model.h. */
#include "config/config_model.h"

#include <stdio.h>

#include "base/error.h"
#include "base/number.h"
#include "hub/hf_load.h"

/* Where most fine-tuning begins: a tenth of what training from scratch takes, or less. */
#define TUNING_LR "2e-5"
#define TUNING_WARMUP "20"
#define USUAL_SEQUENCE 1024

typedef struct sender {
    hy_config_sink sink;
    void *user;
    hy_status status; /* the first failure */
} sender;

static void send_text(sender *s, const char *key, const char *text) {
    if (s->status == HY_OK) s->status = s->sink(s->user, key, text, 0);
}

static void send_int(sender *s, const char *key, int64_t value) {
    char text[HY_NUMBER_MAX];
    snprintf(text, sizeof text, "%lld", (long long)value);
    send_text(s, key, text);
}

static void send_number(sender *s, const char *key, double value) {
    char text[HY_NUMBER_MAX];
    send_text(s, key, hy_number_format(value, text));
}

static void send_switch(sender *s, const char *key, bool value) {
    send_text(s, key, value ? "true" : "false");
}

static void send_sizes(sender *s, const hy_shape *shape) {
    send_int(s, "shape.layers", shape->layers);
    send_int(s, "shape.width", shape->width);
    send_int(s, "shape.heads", shape->heads);
    send_int(s, "shape.kv_heads", shape->kv_heads);
    send_int(s, "shape.head_size", shape->head_size);
    send_int(s, "shape.mlp_width", shape->mlp_width);
    send_int(s, "shape.vocab", shape->vocab);
    send_int(s, "shape.context", shape->context);
    send_int(s, "shape.sliding_window", shape->sliding_window);
    send_number(s, "shape.norm_eps", shape->norm_eps);
    send_number(s, "shape.init_std", shape->init_std);
}

static void send_choices(sender *s, const hy_shape *shape) {
    send_text(s, "shape.norm", shape->is_rms ? "rmsnorm" : "layernorm");
    send_text(s, "shape.positions", shape->has_rope ? "rope" : "learned");
    send_text(s, "shape.activation", shape->is_gated ? "swiglu" : "gelu");
    send_switch(s, "shape.qkv_bias", shape->has_qkv_bias);
    send_switch(s, "shape.proj_bias", shape->has_proj_bias);
    send_text(s, "shape.proj_bias_in",
              shape->lacks_out_bias   ? "mlp"
              : shape->lacks_mlp_bias ? "attention"
                                      : "all");
    send_switch(s, "shape.qk_norm", shape->has_qk_norm);
    send_switch(s, "shape.tied_head", shape->has_tied_head);
}

static void send_rope(sender *s, const hy_shape *shape) {
    if (shape->has_rope) send_number(s, "shape.rope_theta", shape->rope_theta);
    send_text(s, "shape.rope_scaling", shape->has_llama3_rope ? "llama3" : "none");
    if (!shape->has_llama3_rope) return;
    send_number(s, "shape.rope_factor", shape->rope_factor);
    send_number(s, "shape.rope_low_freq", shape->rope_low_freq);
    send_number(s, "shape.rope_high_freq", shape->rope_high_freq);
    send_int(s, "shape.rope_original_context", shape->rope_original_context);
}

hy_status hy_config_model_read(hy_model_files kind, const char *path, hy_config_sink sink,
                               void *user) {
    hy_shape shape;
    sender s = {.sink = sink, .user = user};
    HY_TRY(hy_model_files_shape(kind, path, &shape));
    send_sizes(&s, &shape);
    send_choices(&s, &shape);
    send_rope(&s, &shape);
    send_int(&s, "train.seq_len", shape.context < USUAL_SEQUENCE ? shape.context : USUAL_SEQUENCE);
    send_text(&s, "optimizer.lr", TUNING_LR);
    send_text(&s, "optimizer.lr_warmup_steps", TUNING_WARMUP);
    return s.status;
}
