/* end_tokens.h: the end tokens of a model, from its folder.
 *
 * generation_config.json lists them under "eos_token_id", as one id or a list; otherwise
 * config.json may. If neither does, or the model has no folder, only the end tokens of the
 * tokenizer and of the chat template count. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_MOST_END_TOKENS 32

typedef struct hy_end_tokens {
    int32_t ids[HY_MOST_END_TOKENS];
    int32_t count;
} hy_end_tokens;

/* folder "": none. HY_ERR_INPUT names the file and the error. */
hy_status hy_end_tokens_read(const char *folder, hy_end_tokens *out);
bool hy_end_tokens_has(const hy_end_tokens *tokens, int32_t id);
