/* conversation.h: a row of a JSON file as turns.
 *
 * The supported kinds of rows, by their keys:
 *     text                     {"text"}: a document; every token counts in the loss
 *     prompt, completion       a question and its answer; also question, answer (on separate lines)
 *     instruction, output      Alpaca, with or without "input" and "system"
 *     conversations            ShareGPT: a list of {"from", "value"}
 *     messages                 a list of {"role", "content"} and other keys that the template
 *                              reads ("tool_calls", "reasoning_content"); "tools" next to the list
 * Content is a string or a list of parts {"type": "text", "text"}. The first row of a file decides
 * the kind; a later row without those keys is malformed. Turns point into the parsed row and live
 * as long as it does. */
#pragma once

#include "base/json.h"
#include "data/chat_template.h"

/* In ascending order: a row that has the keys of several kinds is of the last of them. */
typedef enum hy_row_kind {
    HY_ROWS_TEXT,
    HY_ROWS_QUESTION,
    HY_ROWS_PROMPT,
    HY_ROWS_ALPACA,
    HY_ROWS_SHAREGPT,
    HY_ROWS_MESSAGES
} hy_row_kind;

/* HY_ERR_INPUT names the keys of the row and the supported keys. */
hy_status hy_row_recognise(const hy_json_node *row, hy_row_kind *out);

/* Reads a row. HY_ERR_INPUT says what is wrong with it, without file and line. */
hy_status hy_conversation_read(const hy_json_node *row, hy_row_kind kind, hy_conversation *out);
/* Reads only a list of messages. */
hy_status hy_conversation_read_messages(const hy_json_node *list, hy_conversation *out);
void hy_conversation_free(hy_conversation *conversation);
