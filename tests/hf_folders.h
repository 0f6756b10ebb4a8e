/* hf_folders.h: model folders compared, and shapes by the config.json that is written for them. */
#ifndef HY_TESTS_HF_FOLDERS_H
#define HY_TESTS_HF_FOLDERS_H

#include "harness.h"
#include "hub/hf_config.h"
#include "hub/hf_tensors.h"

/* Names, types, shapes and bytes of all tensors. */
static inline void models_are_the_same(const char *folder, const char *other) {
    hy_hf_tensors *a, *b;
    must(hy_hf_tensors_open(folder, &a));
    must(hy_hf_tensors_open(other, &b));
    ck_assert_uint_eq(hy_hf_tensors_count(a), hy_hf_tensors_count(b));
    for (size_t i = 0; i < hy_hf_tensors_count(a); i++) {
        hy_hf_found x = hy_hf_tensors_at(a, i), y = hy_hf_tensors_at(b, i);
        ck_assert_str_eq(x.entry->name, y.entry->name);
        ck_assert_int_eq(x.entry->dtype, y.entry->dtype);
        ck_assert_int_eq(x.entry->ndim, y.entry->ndim);
        ck_assert_mem_eq(x.entry->shape, y.entry->shape, sizeof x.entry->shape);
        char *mine = malloc(x.entry->bytes), *theirs = malloc(x.entry->bytes);
        must(hy_safetensors_read(x.file, x.entry, 0, mine, x.entry->bytes));
        must(hy_safetensors_read(y.file, y.entry, 0, theirs, x.entry->bytes));
        ck_assert_msg(memcmp(mine, theirs, x.entry->bytes) == 0, "%s differs", x.entry->name);
        free(mine);
        free(theirs);
    }
    hy_hf_tensors_close(a);
    hy_hf_tensors_close(b);
}

/* Checked by the files that are written. */
static inline void shapes_are_the_same(const hy_shape *a, const hy_shape *b) {
    hy_text one = {0}, other = {0};
    must(hy_hf_config_write(a, HY_F32, NULL, NULL, &one));
    must(hy_hf_config_write(b, HY_F32, NULL, NULL, &other));
    ck_assert_str_eq(one.data, other.data);
    hy_text_free(&one);
    hy_text_free(&other);
}

#endif
