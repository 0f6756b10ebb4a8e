/* sample.h: between steps, a model in training continues a text. */
#pragma once

#include "base/text.h"
#include "data/dataset.h"
#include "engine/engine.h"
#include "tokenizer/tokenizer.h"

/* Tokens are those of the run's data: its tokenizer's, or bytes (NULL). */
hy_status hy_engine_sample(hy_engine *e, const hy_tokenizer *tokenizer,
                           const hy_sample_options *options, hy_text *out);
/* Answers the prompt, or the question of a held-out row, see hy_trainer_answer. On an error, the
 * strings of `out` that are not NULL still belong to the caller. */
hy_status hy_engine_answer(hy_engine *e, const hy_dataset *data, const hy_sample_options *options,
                           hy_row_answer *out);
