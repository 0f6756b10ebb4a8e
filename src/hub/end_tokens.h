/* end_tokens.h: the tokens with which a model ends what it writes, as its folder says.
 *
 * generation_config.json names them under "eos_token_id", one or a list; where it does not,
 * config.json may. A folder without either, or a model without a folder, names none: then the
 * tokenizer's end token and the chat template's are all there is. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_MOST_END_TOKENS 32

typedef struct hy_end_tokens {
    int32_t ids[HY_MOST_END_TOKENS];
    int32_t count;
} hy_end_tokens;

/* folder may be "": none. HY_ERR_INPUT names the file and what is wrong in it. */
hy_status hy_end_tokens_read(const char *folder, hy_end_tokens *out);
bool hy_end_tokens_has(const hy_end_tokens *tokens, int32_t id);
