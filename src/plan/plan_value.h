/* plan_value.h: the decisions of a plan as a value: written, read, compared, printed, and agreed on
 * by ranks.
 *
 * One table (plan_value.c) lists every decision with its key. plan.json, trainer.json, the
 * comparison of plans and the messages between ranks follow from it. */
#pragma once

#include "base/json.h"
#include "base/text.h"
#include "comm/team.h"
#include "plan/request.h"

/* In plan.json: the object "choices", with the keys of the settings. */
void hy_plan_write_choices(const hy_plan_choice *choice, hy_json_writer *w);

/* In trainer.json: what a resumed run keeps, as "split" and "kept". first_batch: the micro-batch
 * at the start of the run. */
void hy_plan_write_kept(const hy_plan_request *request, const hy_plan *plan, int64_t first_batch,
                        hy_json_writer *w);
/* Reads it into `fixed` and `chunk_budget`. A checkpoint without the keys was saved before there
 * was a choice: everything is fp32. The split is ignored if a step now has another number of
 * sequences. */
hy_status hy_plan_read_kept(const hy_json *json, const char *path, hy_plan_request *request,
                            int64_t *first_batch);
/* A number type by its name in a file. */
hy_status hy_dtype_read(const hy_json *json, const hy_json_node *node, const char *key,
                        const char *path, hy_dtype *out);

/* One sentence: types, places, split and speed. */
void hy_plan_describe(const hy_plan_request *request, const hy_plan *plan, hy_text *out);

/* All ranks take rank 0's plan; each derives the plan of its own shard and memory from it. */
hy_status hy_plan_share(hy_team *team, const hy_plan_request *request, hy_plan *plan);
/* All ranks take the plan of the first rank that fits on every rank, or else rank 0's. chosen:
 * that rank. */
hy_status hy_plan_agree(hy_team *team, const hy_plan_request *request, hy_plan *plan,
                        int32_t *chosen);
