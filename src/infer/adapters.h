/* adapters.h: several adapters for one base that is loaded once; used only inside the infer module.
 *
 * A loaded model has room for every adapter that was named: the largest rank, all their
 * matrices, and every parameter that one of them trains whole. Each adapter is read and checked
 * when the model is loaded, and kept in host memory in the layout of the model's store, padded
 * with zeros; so are the base's own values there (adapters of zero). Switching adapters copies
 * one of these into the store. */
#pragma once

#include "engine/engine.h"
#include "hub/peft_set.h"

typedef struct hy_adapters {
    hy_peft_set set;
    int32_t *params; /* (moved) parameters that differ between adapters */
    uint64_t *at;    /* (moved + 1) their offsets in a copy; the last one is its size */
    int32_t moved;
    char **copies; /* (set.count + 1) the base's copy is the first */
    int32_t used;  /* index in the set, HY_BASE_ALONE or HY_NO_ADAPTER */
} hy_adapters;

#define HY_BASE_ALONE (-1)
#define HY_NO_ADAPTER (-2) /* neither the base nor an adapter of the set */

/* Before memory is allocated: checks that each adapter fits this model. The engine has its
 * model; its settings name the adapters. */
hy_status hy_adapters_open(hy_adapters *a, hy_engine *e);
/* After the base's weights are read: makes the copies and selects the first adapter. */
hy_status hy_adapters_load(hy_adapters *a, hy_engine *e);
/* Selects number i of the set, or HY_BASE_ALONE. Everything computed with another adapter
 * becomes invalid. */
hy_status hy_adapters_use(hy_adapters *a, hy_engine *e, int32_t i);
/* The adapter with this name or folder name; HY_NO_ADAPTER: there is none. */
int32_t hy_adapters_find(const hy_adapters *a, const char *name);
const char *hy_adapters_name(const hy_adapters *a, int32_t i); /* "" for HY_BASE_ALONE */
void hy_adapters_close(hy_adapters *a);
