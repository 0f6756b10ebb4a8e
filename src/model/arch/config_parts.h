/* config_parts.h: what the files that read and write config.json share. See config.h. */
#pragma once

#include "model/arch/config.h"

typedef struct hy_config_reader {
    const char *name;         /* of the file */
    const hy_json_node *node; /* the object that is read */
    const char *within;       /* "" at the top, "rope_scaling." inside */
    const hy_family *family;
    hy_shape *shape;
    bool has_out_bias, has_mlp_bias; /* of the attention output, of the mlp */
} hy_config_reader;

/* The value of a key; NULL: it is absent or null. */
const hy_json_node *hy_config_value(const hy_config_reader *r, const char *key);
/* HY_ERR_INPUT: the value is missing, or is not `expected`. */
hy_status hy_config_refuse(const hy_config_reader *r, const char *key, const char *expected);
hy_status hy_config_size(const hy_config_reader *r, const char *key, double fallback, int32_t *out);
hy_status hy_config_number(const hy_config_reader *r, const char *key, double fallback,
                           double *out);
hy_status hy_config_switch(const hy_config_reader *r, const char *key, bool fallback, bool *out);
hy_status hy_config_word(const hy_config_reader *r, const char *key, const char *fallback,
                         const char **out);

/* ---- config_rope.c --------------------------------------------------------------------------- */

hy_status hy_config_read_rope(hy_config_reader *r, const hy_config_field *f);
void hy_config_write_rope(const hy_shape *s, const hy_family *family, hy_json_writer *w);
/* Does rope have values that are only in hy_shape.more and in no field of their own? */
bool hy_config_has_rope_options(const hy_shape *s, const hy_family *family);
hy_status hy_config_read_positions(hy_config_reader *r, const hy_config_field *f);
hy_status hy_config_read_rope_layers(hy_config_reader *r, const hy_config_field *f);
void hy_config_write_rope_layers(const hy_shape *s, const hy_config_field *f, hy_json_writer *w);

/* ---- config_window.c ------------------------------------------------------------------------- */

hy_status hy_config_read_window(hy_config_reader *r, const hy_config_field *f);
void hy_config_write_window(const hy_shape *s, const hy_family *family, hy_json_writer *w);
hy_status hy_config_read_attentions(hy_config_reader *r, const hy_config_field *f);
/* Copies the shortest pattern that the letters of all layers repeat; false: it does not fit. */
bool hy_config_pattern(const char *letters, int32_t layers, char *out, size_t size);
