/* conversation.h: a row of a JSON file as turns.
 *
 * The supported kinds of rows, by their keys:
 *     text                     {"text"}: a document; every token counts in the loss
 *     prompt, completion       a question and its answer; also question, answer (on separate
 *                              lines); or two lists of messages (TRL), of which only the second
 *                              counts in the loss
 *     instruction, output      Alpaca, with or without "input" and "system"
 *     conversations            ShareGPT: a list of {"from", "value"}
 *     messages                 a list of {"role", "content"} and other keys that the template
 *                              reads ("tool_calls", "reasoning_content"); "tools" next to the list
 * and, only for evaluation (hy_columns.scores):
 *     prompt, choices, answer  the right choice is "answer": its text, or its number from 0
 *     prompt, answer           the prompt may be a list of messages, as in the rows above
 * and, only for preferences (hy_columns.pairs):
 *     prompt, chosen, rejected a prompt and two answers, texts, messages or lists of them; the
 *                              prompt may be called "messages" or "conversations"; without one,
 *                              the common beginning of the answers is the prompt
 * and, only for prompts that the model answers (hy_columns.prompts):
 *     the rows above without an answer or with one, which is not part of the prompt; it may be
 *                              called "answer", "ground_truth", "solution" or "target"
 * Turns of either list may use the keys of the other. Content is a string or a list of parts
 * {"type": "text", "text"}. "weight": 0 (OpenAI) or "train": false (Axolotl) in a turn keeps an
 * answer out of the loss. The first row of a file with known keys decides the kind; a row without
 * those keys is malformed. Turns point into the parsed row and live as long as it does. */
#pragma once

#include "base/json.h"
#include "data/chat_template.h"

/* In ascending order: a row that has the keys of several kinds is of the last of them. */
typedef enum hy_row_kind {
    HY_ROWS_ANSWER,
    HY_ROWS_CHOICES,
    HY_ROWS_TEXT,
    HY_ROWS_QUESTION,
    HY_ROWS_PROMPT,
    HY_ROWS_PAIR,
    HY_ROWS_ALPACA,
    HY_ROWS_SHAREGPT,
    HY_ROWS_MESSAGES,
    HY_ROWS_PAIR_TURNS, /* prompt, chosen or rejected has messages */
    HY_ROWS_TURNS
} hy_row_kind;

const char *hy_row_kind_name(hy_row_kind kind); /* "question and answer" */
bool hy_row_kind_is_scored(hy_row_kind kind);   /* a kind that is only for evaluation */
bool hy_row_kind_is_pair(hy_row_kind kind);     /* a kind that is only for preferences */
/* The name in the data of the key that has the question, of a kind that can be prompts. */
const char *hy_row_question_key(hy_row_kind kind, const hy_columns *columns);

/* Reads "prompt=question,completion=answer"; "" maps nothing. HY_ERR_INPUT names a key that no kind
 * of row has, and the keys that there are. */
hy_status hy_columns_parse(const char *text, hy_columns *out);

/* columns: NULL if rows have the usual keys. With columns, a row is of a kind that uses one of
 * them. HY_ERR_INPUT names the keys of the row and the supported keys. */
hy_status hy_row_recognise(const hy_json_node *row, const hy_columns *columns, hy_row_kind *out);

/* Whether the row, which was read as this conversation, uses this value. */
bool hy_row_uses(const hy_json_node *row, const hy_conversation *conversation, hy_row_kind kind,
                 const hy_json_node *value);
/* Whether a row of this kind has a list of turns under this value; in a pair, it may be one turn
 * alone. */
bool hy_row_has_turns(hy_row_kind kind, const hy_json_node *value);
/* Whether this value of a message is used: by us, or by the template. */
bool hy_message_uses(const hy_json_node *message, const hy_json_node *value,
                     const hy_chat_template *chat);

/* Reads a row, with the keys of out->columns. HY_ERR_INPUT says what is wrong with it, without file
 * and line. */
hy_status hy_conversation_read(const hy_json_node *row, hy_row_kind kind, hy_conversation *out);
/* Reads only a list of messages. */
hy_status hy_conversation_read_messages(const hy_json_node *list, hy_conversation *out);
void hy_conversation_free(hy_conversation *conversation);
/* Make the common beginning of both answers of a pair the prompt (shared_prompt.c): the turns
 * before the first that differs, or the text up to its last blank, for which an empty turn is
 * there. HY_ERR_INPUT: the answers do not begin alike. */
hy_status hy_pair_share_turns(hy_conversation *pair);
hy_status hy_pair_share_text(hy_conversation *pair);
/* Drops the beginning of an answer that repeats the whole prompt, with or without the prompt's
 * system turn. */
void hy_pair_drop_prompt(hy_conversation *pair);
/* Whether the turns have answers, but none of them says anything: the model would learn to end at
 * once. */
bool hy_turns_have_empty_answers(const hy_turn *turns, size_t count);
