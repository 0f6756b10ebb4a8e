/* phase_rules.h: what the settings say about phases, for the built-in trainer and for own loops. */
#pragma once

#include "config/settings.h"
#include "phases/divergence.h"
#include "phases/machine.h"
#include "phases/predictor.h"

/* `warmup` is the length of Warmup in steps. */
hy_status hy_rules_from_settings(const hy_settings *settings, int64_t warmup,
                                 hy_predictor *predictor, hy_phase_rules *rules,
                                 hy_divergence_limits *limits);
