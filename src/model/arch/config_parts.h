/* config_parts.h: what the files that read and write config.json share. See config.h. */
#pragma once

#include "model/arch/config.h"

typedef struct hy_config_reader {
    const char *name;         /* of the file */
    const hy_json_node *node; /* the object that is read */
    const char *within;       /* "" at the top, "rope_scaling." inside */
    const hy_family *family;
    hy_shape *shape;
    bool is_options; /* only options are read, not a whole config.json */
} hy_config_reader;

typedef struct hy_config_writer {
    const hy_shape *shape;
    const hy_family *family;
    hy_json_writer *json;
    bool is_options; /* only options are written */
} hy_config_writer;

/* What a kind of field does. NULL: nothing. */
typedef struct hy_config_rules {
    size_t size; /* of the member in a shape; 0: it has none, or several */
    hy_status (*read)(hy_config_reader *r, const hy_config_field *f);
    void (*write)(const hy_config_writer *w, const hy_config_field *f);
} hy_config_rules;

/* Sets the options that the family's config.json has to zero. */
void hy_config_clear_options(const hy_family *family, hy_shape *s);

/* ---- config_fields.c ------------------------------------------------------------------------- */

extern const hy_config_rules hy_config_kinds[]; /* by hy_config_kind */

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
void hy_config_write_rope(const hy_config_writer *w, const hy_config_field *f);
/* rope_scaling or rope_parameters alone. */
void hy_config_write_scaling(const hy_config_writer *w);
/* Does rope have values that are only in hy_shape.more and in no field of their own? */
bool hy_config_has_rope_options(const hy_shape *s, const hy_family *family);
void hy_config_clear_rope(hy_shape *s); /* sets these to zero */
hy_status hy_config_read_positions(hy_config_reader *r, const hy_config_field *f);
void hy_config_write_positions(const hy_config_writer *w, const hy_config_field *f);
hy_status hy_config_read_rope_layers(hy_config_reader *r, const hy_config_field *f);
void hy_config_write_rope_layers(const hy_config_writer *w, const hy_config_field *f);

/* ---- config_window.c ------------------------------------------------------------------------- */

hy_status hy_config_read_window(hy_config_reader *r, const hy_config_field *f);
void hy_config_write_window(const hy_config_writer *w, const hy_config_field *f);
hy_status hy_config_read_attentions(hy_config_reader *r, const hy_config_field *f);
void hy_config_write_attentions(const hy_config_writer *w, const hy_config_field *f);
hy_status hy_config_read_interval(hy_config_reader *r, const hy_config_field *f);
void hy_config_write_interval(const hy_config_writer *w, const hy_config_field *f);
hy_status hy_config_read_linears(hy_config_reader *r, const hy_config_field *f);
void hy_config_write_linears(const hy_config_writer *w, const hy_config_field *f);
/* Copies the shortest pattern that the letters of all layers repeat; false: it does not fit. */
bool hy_config_pattern(const char *letters, int32_t layers, char *out, size_t size);
