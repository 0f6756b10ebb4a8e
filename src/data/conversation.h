/* conversation.h: a row of a JSON file as turns.
 *
 * The kinds of rows that are known, by their keys:
 *   text                     {"text"}: a document; all of it counts
 *   prompt, completion       a question and its answer; also question, answer (a line end between them)
 *   instruction, output      Alpaca, with or without "input" and "system"
 *   conversations            ShareGPT: a list of {"from", "value"}
 *   messages                 a list of {"role", "content"} and whatever the folder's template reads of a
 *                            message ("tool_calls", "reasoning_content"); "tools" beside the list
 * Content is a text or a list of parts {"type": "text", "text"}.
 * The first row of a file says its kind; a later row without those keys is malformed. Turns point into
 * the parsed row and live as long as it does. */
#pragma once

#include "base/json.h"
#include "data/chat_template.h"

/* A row may carry the keys of several kinds: the richest wins, which stand last. */
typedef enum hy_row_kind {
    HY_ROWS_TEXT,
    HY_ROWS_QUESTION,
    HY_ROWS_PROMPT,
    HY_ROWS_ALPACA,
    HY_ROWS_SHAREGPT,
    HY_ROWS_MESSAGES
} hy_row_kind;

/* HY_ERR_INPUT naming the keys that are there and those that would do. */
hy_status hy_row_recognise(const hy_json_node *row, hy_row_kind *out);

/* Reads a row. HY_ERR_INPUT says what is wrong with it, without file and line. */
hy_status hy_conversation_read(const hy_json_node *row, hy_row_kind kind, hy_conversation *out);
/* The messages of a list and no more. */
hy_status hy_conversation_read_messages(const hy_json_node *list, hy_conversation *out);
void hy_conversation_free(hy_conversation *conversation);
