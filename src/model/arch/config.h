/* config.h: the fields of config.json that describe a shape, read and written by the tables of the
 * families (arch.h).
 *
 * Every value is used or rejected by name: nothing is approximated. Defaults are those of the
 * transformers classes. */
#pragma once

#include "base/json.h"
#include "model/arch/arch.h"

/* Reads the fields of shape->arch into the shape and completes it. Errors call the file `name`. */
hy_status hy_arch_read(const hy_json_node *config, const char *name, hy_shape *shape);
/* Writes these fields into the open object, readable by transformers 4 and 5. */
void hy_arch_write(const hy_shape *shape, hy_json_writer *out);

/* The options of a shape (hy_shape.more) alone, as an object with the fields of config.json that
 * differ from their defaults. Writes nothing if none differs. */
void hy_arch_write_options(const hy_shape *shape, hy_text *out);
/* Reads such an object into a shape with an architecture; "": all options have their defaults.
 * HY_ERR_INPUT names an unknown key and the accepted ones. */
hy_status hy_arch_read_options(const char *options, hy_shape *shape);
