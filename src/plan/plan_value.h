/* plan_value.h: the decisions of a plan as a value: written, read, compared, printed, and agreed on
 * by ranks.
 *
 * One table (plan_value.c) lists the decisions that ranks exchange, with their keys. plan.json,
 * trainer.json and the comparison of plans follow from it. The object `split` and the fp8 matmuls
 * are written by hand; zero_stage is never written. */
#pragma once

#include "base/json.h"
#include "base/text.h"
#include "comm/team.h"
#include "plan/request.h"

/* The choice with the numbers of chunks that passes have. In a plan these are as asked for, because
 * the batch size may change. */
hy_plan_choice hy_choice_as_run(const hy_plan_choice *choice, int64_t seq);

/* Writes the object "choices" of plan.json, with the keys of the settings. */
void hy_plan_write_choices(const hy_plan_choice *choice, hy_json_writer *w);

/* Writes what a resumed run keeps to trainer.json: the objects "split" and "kept". first_batch: the
 * micro-batch at the start of the run. */
void hy_plan_write_kept(const hy_plan_request *request, const hy_plan *plan, int64_t first_batch,
                        hy_json_writer *w);
/* Reads both into `fixed` and `chunk_budget` of a request. An old checkpoint without the object
 * `kept` used fp32 for everything; one missing key is an error. The split is ignored if a step now
 * has another number of sequences. */
hy_status hy_plan_read_kept(const hy_json *json, const char *path, hy_plan_request *request,
                            int64_t *first_batch);
/* Reads a number type by its name. */
hy_status hy_dtype_read(const hy_json *json, const hy_json_node *node, const char *key,
                        const char *path, hy_dtype *out);

/* Describes a plan in one sentence: types, places, split and speed. */
void hy_plan_describe(const hy_plan_request *request, const hy_plan *plan, hy_text *out);

/* All ranks take the decisions of rank 0's plan; each evaluates them for its own shard and
 * memory. */
hy_status hy_plan_share(hy_team *team, const hy_plan_request *request, hy_plan *plan);
/* All ranks take the decisions of one rank: the first whose plan fits on every rank, or else rank
 * 0. chosen: that rank. */
hy_status hy_plan_share_fitting(hy_team *team, const hy_plan_request *request, hy_plan *plan,
                                int32_t *chosen);
