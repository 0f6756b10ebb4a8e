/* save_text.h: writes a complete text to the path of a measurement's file. */
#ifndef BENCH_SAVE_TEXT_H
#define BENCH_SAVE_TEXT_H

#include "base/file.h"
#include "base/text.h"

/* Always frees the text. */
static inline hy_status save_text(const char *path, hy_text *text) {
    hy_status status = hy_text_status(text);
    if (status == HY_OK) status = hy_file_write_atomic(path, text->data, text->size);
    hy_text_free(text);
    return status;
}

#endif
