/* peft_set.h: adapters that are named together, to be used beside one base.
 *
 * Each is a folder as PEFT saves it. They may differ in rank, alpha and modules: a model that holds
 * any of them has the largest rank and the modules of all, and an adapter that is narrower is
 * filled up with zeros. */
#pragma once

#include "hub/peft.h"

typedef struct hy_peft_member {
    char *folder;     /* as it is from any folder */
    char *called;     /* the same; of RUN/adapter the run's */
    const char *name; /* the end of `called` that no other one has: "mine", or "monday/mine" */
    hy_peft_config config;
} hy_peft_member;

typedef struct hy_peft_set {
    hy_peft_member *list;
    int32_t count;
} hy_peft_set;

/* How many adapters a value of lora.adapter names, commas between them; a folder whose own name has
 * a comma is one. "" names none. */
int32_t hy_peft_count(const char *names);
/* Makes folders of what was typed, in place: without spaces around the commas, and of a run that
 * left an adapter, that. What is not there stays as it is, and so does what has no room. */
void hy_peft_find_folders(char *names, size_t size);
/* Reads their configs. HY_ERR_INPUT names a folder that is none, or is there twice. */
hy_status hy_peft_set_read(const char *names, hy_peft_set *out);
void hy_peft_set_free(hy_peft_set *set); /* {0} too */

/* What a model has to be that holds any of them: the config of one alone; of several the largest
 * rank, all modules, and the first one's scale. */
hy_status hy_peft_set_union(const hy_peft_set *set, hy_peft_config *out);
