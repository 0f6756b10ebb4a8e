/* own.h: a caller's parameters, made into a guest of the trainer: inside this module only. */
#pragma once

#include "hybrid.h"
#include "trainer/make.h"
#include "trainer/trainer.h"

/* A guest with all that it points to. */
typedef struct hy_own_guest {
    hy_guest guest;
    hy_param_spec *specs; /* with names of their own */
    void **weights, **grads;
} hy_own_guest;

/* has_memory: pointers are looked at. HY_ERR_INPUT names what is wrong. */
hy_status hy_own_guest_init(hy_own_guest *own, const hy_own_parameters *parameters,
                            bool has_memory);
void hy_own_guest_fini(hy_own_guest *own);
