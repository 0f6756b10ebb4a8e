/* peft_set.h: several adapters for one base.
 *
 * Each is a folder saved by PEFT. They may differ in rank, alpha and modules: a model that can
 * hold any of them has the largest rank and all modules, and smaller adapters are padded with
 * zeros. */
#pragma once

#include "data/chat_template.h"
#include "hub/peft.h"

typedef struct hy_peft_member {
    char *folder;     /* absolute path */
    char *called;     /* the same path; for RUN/adapter, RUN */
    const char *name; /* the end of `called` that is unique: "mine", or "monday/mine" */
    hy_peft_config config;
    hy_prompt_format format; /* of the rows that it was trained on */
} hy_peft_member;

typedef struct hy_peft_set {
    hy_peft_member *list;
    int32_t count;
} hy_peft_set;

/* How many adapters a value of lora.adapter lists, separated by commas; a folder with a comma in
 * its name counts as one. "" lists none. */
int32_t hy_peft_count(const char *names);
/* Replaces the typed names by folders, in place: without spaces around commas, and a run folder
 * becomes its adapter folder. Names that do not exist or do not fit stay unchanged. */
void hy_peft_find_folders(char *names, size_t size);
/* Reads their configs. HY_ERR_INPUT names a folder that is not an adapter, or is listed twice. */
hy_status hy_peft_set_read(const char *names, hy_peft_set *out);
void hy_peft_set_free(hy_peft_set *set); /* accepts {0} */

/* The config of a model that can hold any of them. A single adapter: its own config. Several: the
 * largest rank, all modules, and the scale of the first one. */
hy_status hy_peft_set_union(const hy_peft_set *set, hy_peft_config *out);
