/* custom.h: a program's own model or training loop as a provider; inside this module only.
 *
 * A provider sends requests (hy_loop_step) to its program: gradients of micro-batches by number,
 * their losses for the guard and paired tests, and the held-out loss. Callbacks (model.c) or the
 * program's loop (loop.c) answer: they read weights and write gradients in the program's memory. */
#pragma once

#include "hybrid.h"
#include "trainer/make.h"
#include "trainer/provider.h"
#include "trainer/trainer.h"

typedef struct hy_program_answer {
    double loss_sum;
    double counted; /* number of targets in the sum */
    int64_t tokens; /* tokens of the passes */
    bool is_mean;   /* gradients are of the mean loss; else of the sum */
} hy_program_answer;

/* A custom provider and everything that it points to. */
typedef struct hy_custom_provider {
    hy_provider provider; /* first member: operations get a pointer to it */
    hy_custom_side side;
    hy_param_spec *specs; /* names and shapes are copies */
    void **weights, **grads;
    int32_t *unit_of; /* NULL: weights are in the caller's memory */
    bool has_written; /* the program wrote weights of units during a request */
    void *user;
    /* Answers a request. HY_STOPPED ends the run and saves its state after the last step; other
     * failures end it too. */
    hy_status (*answer)(void *user, const hy_loop_step *request, hy_program_answer *answer);
    bool zeroes_grads; /* gradients are set to zero before each request; else the program does it */
    int64_t answered_in; /* optimizer step for which `last` was given; -1: none */
    hy_program_answer last;
    /* The program's own file in each checkpoint; either may be NULL. */
    void *file_user;
    hy_status (*save)(void *user, void **bytes, size_t *size); /* the library frees `bytes` */
    hy_status (*load)(void *user, const void *bytes, size_t size);
} hy_custom_provider;

extern const hy_provider_ops hy_custom_ops; /* provider.c: the operations, without `release` */
/* provider.c: the defaults of every custom provider. */
void hy_custom_provider_begin(hy_custom_provider *p, const hy_provider_ops *ops);

/* parameters.c: checks and copies the list. has_memory: pointers to weights are checked too.
 * unit_of: the unit of each parameter, with weights that we keep; NULL: the caller's memory.
 * HY_ERR_INPUT names the parameter. */
hy_status hy_custom_provider_init(hy_custom_provider *p, const hy_custom_parameters *parameters,
                                  const int32_t *unit_of, bool has_memory);
/* As above, for a loop: also what else its options say. */
hy_status hy_custom_provider_of_loop(hy_custom_provider *p, const hy_loop_options *options,
                                     bool has_memory);
void hy_custom_provider_fini(hy_custom_provider *p);

/* trainer_plan.c: HY_ERR_INPUT if a plan cannot have so many ranks. */
hy_status hy_planned_ranks_check(int32_t count);
