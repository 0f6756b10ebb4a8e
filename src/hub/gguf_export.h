/* gguf_export.h: writes a model, or its adapters, as one file for llama.cpp. */
#pragma once

#include "hub/hf_export.h"

/* HY_ERR_INPUT names an unknown type and the accepted ones. */
hy_status hy_gguf_check_type(const char *type, bool is_adapter);

/* Are numbers of this type stored as they are, without blocks? */
bool hy_gguf_is_plain(const char *type);

/* Writes the file writing->folder, with numbers of writing->type (NULL: as writing->dtype). It
 * appears under its name when it is complete. Several threads encode; the weights are read and
 * written in order, a piece at a time. The observer gets progress, warnings and a summary.
 * HY_ERR_INPUT: llama.cpp cannot run the model (gguf_names.h), or cannot compute its tokens
 * (gguf_tokenizer.h). */
hy_status hy_gguf_write(const hy_hf_writing *writing);
