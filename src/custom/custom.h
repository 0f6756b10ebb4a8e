/* custom.h: a program's own model or training loop as a provider; inside this module only.
 *
 * A provider sends its program requests (hy_loop_step) for micro-batches by number: for a step, for
 * the guard and paired tests, and held-out ones. Callbacks (model.c) or the program's loop (loop.c)
 * answer: they read weights and write gradients in the program's memory. */
#pragma once

#include "hybrid.h"
#include "trainer/make.h"
#include "trainer/provider.h"
#include "trainer/trainer.h"

typedef struct hy_answer {
    double loss_sum;
    double counted; /* what it is a sum over: targets, or 1 if it is a mean already */
    int64_t tokens; /* trained on or looked at */
    bool is_mean;   /* gradients are of the mean; else of the sum */
} hy_answer;

/* With everything that it points to. */
typedef struct hy_custom_provider {
    hy_provider provider; /* first: operations are given this */
    hy_custom_side side;
    hy_param_spec *specs; /* with names of their own */
    void **weights, **grads;
    void *user;
    /* HY_STOPPED ends the run, which is saved as it was after its last step. Other failures end it
     * too. */
    hy_status (*answer)(void *user, const hy_loop_step *request, hy_answer *answer);
    bool zeroes_grads;   /* before each request for gradients; else the program does it */
    int64_t answered_in; /* optimizer step for which `last` was given; -1: none */
    hy_answer last;
    /* A file of the program's in each checkpoint; either may be NULL. */
    void *file_user;
    hy_status (*save)(void *user, void **bytes, size_t *size); /* freed by the library */
    hy_status (*load)(void *user, const void *bytes, size_t size);
} hy_custom_provider;

extern const hy_provider_ops hy_custom_ops; /* provider.c; without `release` */
/* provider.c: what holds for every custom provider, before anything else is filled in. */
void hy_custom_provider_begin(hy_custom_provider *p, const hy_provider_ops *ops);

/* parameters.c: checked and copied. has_memory: pointers are looked at. HY_ERR_INPUT names what is
 * wrong. */
hy_status hy_custom_provider_init(hy_custom_provider *p, const hy_custom_parameters *parameters,
                                  bool has_memory);
void hy_custom_provider_fini(hy_custom_provider *p);

/* plan_resumed.c. HY_ERR_INPUT: no plan is made for so many ranks. */
hy_status hy_planned_ranks_check(int32_t count);
