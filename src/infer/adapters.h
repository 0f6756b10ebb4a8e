/* adapters.h: adapters beside one base that is loaded once: inside the infer module only.
 *
 * A used model has room for any of those that were named: the largest rank, the matrices of all, and whatever one of
 * them trains whole. Each is read and checked when the model is loaded and kept in host memory as the model's store
 * has it, narrower ones filled up with zeros; so is what the base has in these places, adapters of zero. To change
 * over is to write one of the copies into the store. */
#pragma once

#include "engine/engine.h"
#include "hub/peft_set.h"

typedef struct hy_adapters {
    hy_peft_set set;
    int32_t *params; /* those that differ, */
    uint64_t *at;    /* and where a copy has their bytes; the last: how many there are */
    int32_t moved;
    char **copies; /* the base's first */
    int32_t used;  /* which of the set; HY_BASE_ALONE */
} hy_adapters;

#define HY_BASE_ALONE (-1)
#define HY_NO_ADAPTER (-2) /* neither that nor one of the set */

/* Before any memory is taken: each is an adapter of this model. The engine has its model; its settings name the
 * adapters. */
hy_status hy_adapters_open(hy_adapters *a, hy_engine *e);
/* After the base's weights were read: copies are made, and the first is used. */
hy_status hy_adapters_load(hy_adapters *a, hy_engine *e);
/* Number i of the set, or HY_BASE_ALONE. What was computed with another one is no longer true. */
hy_status hy_adapters_use(hy_adapters *a, hy_engine *e, int32_t i);
/* The one of this name, or of this folder's; HY_NO_ADAPTER: there is none. */
int32_t hy_adapters_find(const hy_adapters *a, const char *name);
const char *hy_adapters_name(const hy_adapters *a, int32_t i); /* "": of the base alone */
void hy_adapters_close(hy_adapters *a);
