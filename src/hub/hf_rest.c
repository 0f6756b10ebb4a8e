/* hf_rest.c: see hf_rest.h. */
#include "hub/hf_rest.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "hub/hf_load.h"

int64_t hy_hf_rest_elements(const hy_safetensors_entry *entry) {
    int64_t elements = 1;
    for (int i = 0; i < entry->ndim; i++) elements *= entry->shape[i];
    return elements;
}

/* Adds the tensors that are neither the text model's nor its head; false: one has a type or a form
 * that is not written. */
static bool list_rest(hy_hf_rest *rest, const char *head) {
    size_t all = hy_hf_tensors_count(rest->tensors);
    for (size_t i = 0; i < all; i++) {
        hy_hf_found found = hy_hf_tensors_at(rest->tensors, i);
        const hy_safetensors_entry *entry = found.entry;
        bool is_text = strncmp(entry->name, rest->prefix, strlen(rest->prefix)) == 0;
        if (is_text || strcmp(entry->name, head) == 0) continue;
        if (entry->ndim == 0 || !hy_is_real(entry->dtype)) return false;
        rest->list[rest->count++] = found;
    }
    return rest->count > 0;
}

hy_status hy_hf_rest_open(const char *folder, const hy_family *family, hy_hf_rest *out) {
    char head[HY_HF_NAME_MAX];
    *out = (hy_hf_rest){0};
    HY_TRY(hy_hf_tensors_open(folder, &out->tensors));
    out->prefix = hy_hf_prefix_in(out->tensors, family);
    out->list = calloc(hy_hf_tensors_count(out->tensors) + 1, sizeof *out->list);
    hy_status status = out->list ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory for a list");
    hy_hf_head_name(family, out->prefix, head);
    bool is_text_alone = !out->prefix[0] || strcmp(out->prefix, family->prefix) == 0;
    if (status != HY_OK || is_text_alone || !list_rest(out, head)) hy_hf_rest_close(out);
    return status;
}

void hy_hf_rest_close(hy_hf_rest *rest) {
    hy_hf_tensors_close(rest->tensors);
    free(rest->list);
    *rest = (hy_hf_rest){0};
}

hy_status hy_hf_rest_copy(hy_hf_found found, void *piece, uint64_t size,
                          hy_safetensors_writer *out) {
    for (uint64_t at = 0, some; at < found.entry->bytes; at += some) {
        some = found.entry->bytes - at < size ? found.entry->bytes - at : size;
        HY_TRY(hy_safetensors_read(found.file, found.entry, at, piece, some));
        HY_TRY(hy_safetensors_put(out, piece, some));
    }
    return HY_OK;
}
