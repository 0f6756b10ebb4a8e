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

/* Is it a tensor of the text model, or its head? */
static bool is_of_text(const hy_hf_rest *rest, const hy_family *family, bool is_text_alone,
                       const char *name) {
    char head[HY_HF_NAME_MAX];
    if (is_text_alone) return !hy_hf_is_apart(family, name);
    hy_hf_head_name(family, rest->prefix, head);
    return strncmp(name, rest->prefix, strlen(rest->prefix)) == 0 || strcmp(name, head) == 0;
}

static hy_status list_rest(hy_hf_rest *rest, const char *folder, const hy_family *family) {
    bool is_text_alone = !rest->prefix[0] || strcmp(rest->prefix, family->prefix) == 0;
    size_t all = hy_hf_tensors_count(rest->tensors);
    rest->list = calloc(all + 1, sizeof *rest->list);
    HY_FAIL_IF(!rest->list, HY_ERR_MEMORY, "not enough memory for a list of %zu tensors", all);
    for (size_t i = 0; i < all; i++) {
        hy_hf_found found = hy_hf_tensors_at(rest->tensors, i);
        const hy_safetensors_entry *entry = found.entry;
        if (is_of_text(rest, family, is_text_alone, entry->name)) continue;
        rest->is_any = true;
        HY_FAIL_IF(entry->ndim == 0 || !hy_is_real(entry->dtype), HY_ERR_INPUT,
                   "%s: tensor \"%.200s\" is %s%s and cannot be copied; accepted: fp32, bf16 and "
                   "fp16 with at least one dimension",
                   folder, entry->name, hy_safetensors_type(entry),
                   entry->ndim == 0 ? " without dimensions" : "");
        rest->list[rest->count++] = found;
    }
    return HY_OK;
}

hy_status hy_hf_rest_open(const char *folder, const hy_family *family, hy_hf_rest *out) {
    *out = (hy_hf_rest){0};
    HY_TRY(hy_hf_tensors_open(folder, &out->tensors));
    out->prefix = hy_hf_prefix_in(out->tensors, family);
    hy_status status = list_rest(out, folder, family);
    if (status == HY_OK && out->count > 0) return HY_OK;
    bool is_any = out->is_any;
    hy_hf_rest_close(out);
    out->is_any = is_any;
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
