/* examples_batch.h: a batch of rows on its way to tokens; one thread has it at a time.
 *
 * Inside the room only. All that encoding needs is kept from batch to batch, so it soon allocates
 * nothing but the rows' own trees. */
#ifndef HY_DATA_EXAMPLES_BATCH_H
#define HY_DATA_EXAMPLES_BATCH_H

#include "data/conversation.h"
#include "data/encoding.h"
#include "data/json_rows.h"

#define HY_ROWS_OF_BATCH 512
#define HY_REASONS_KEPT 8
#define HY_REASON_MAX 256

typedef struct hy_bad_row {
    uint64_t line;
    char reason[HY_REASON_MAX];
} hy_bad_row;

typedef struct hy_batch_of_rows {
    hy_row rows[HY_ROWS_OF_BATCH];
    size_t row_count;
    double share; /* of the file, up to its end */

    hy_ids tokens;  /* of all examples, with HY_COUNTS */
    hy_ids lengths; /* of each */
    hy_bad_row bad[HY_REASONS_KEPT];
    size_t bad_count;
    uint64_t cut, dropped;

    hy_conversation conversation;
    hy_rendered rendered;
    hy_ids ids;
    hy_flags answers;
} hy_batch_of_rows;

hy_batch_of_rows *hy_batch_of_rows_create(void); /* NULL: no memory */
void hy_batch_of_rows_destroy(hy_batch_of_rows *batch);

/* Encodes rows; malformed ones are noted. A failure is one of the run, not of a row. */
hy_status hy_batch_encode(hy_batch_of_rows *batch, const hy_encoding *encoding,
                          const hy_chat_template *chat, hy_row_kind kind);

/* The tree of a row; HY_ERR_INPUT says why it is none, with the column. */
hy_status hy_row_parse(const hy_row *row, hy_json **out);

#endif
