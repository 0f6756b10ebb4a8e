/* calibrate.h: runs a model on calibration text and measures the inputs of its matrices; only
 * inside the infer module.
 *
 * All calibration text passes through one unit before the next unit begins, so only the moments of
 * one unit are in memory. They are asked for in the order of units, as an export asks. */
#pragma once

#include "hub/rounding.h"
#include "infer/inference.h"

typedef struct hy_calibration hy_calibration;

/* The settings name the model and, as their data, the text; about `tokens` of it are used. */
hy_status hy_calibration_open(const hy_config *config, const hy_observer *observer, int64_t tokens,
                              hy_calibration **out);
void hy_calibration_close(hy_calibration *calibration); /* NULL is allowed */

/* What measures the moments of this model's matrices; parameters outside of blocks have none. */
hy_moments_source hy_calibration_source(hy_calibration *calibration);
