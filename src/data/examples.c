/* examples.c: encodes files of rows into one list of examples, with several threads. See
 * examples.h.
 *
 * The file is mapped. A free thread takes the next batch of rows and encodes it; batches are
 * written in order, so examples have the order of their rows. */
#include "data/examples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/in_order.h"
#include "data/csv_rows.h"

/* ---- rows to tokens -------------------------------------------------------------------------- */

/* A row is parsed, read as turns, rendered, encoded, and cut to the length of a sequence. A problem
 * with the row is HY_ERR_INPUT and becomes the reason in a warning. Other failures (out of memory,
 * an id outside the model's vocabulary) end the reading. */

hy_status hy_row_parse(const hy_row *row, hy_json **out) {
    if (row->broken) return hy_fail(HY_ERR_INPUT, "%s", row->broken);
    hy_text text = {0};
    hy_status status = row->csv ? hy_csv_to_json(row, &text) : HY_OK;
    const char *json = row->csv ? text.data : row->data;
    if (status == HY_OK) status = hy_json_parse(json, row->csv ? text.size : row->size, "", out);
    hy_text_free(&text);
    if (status != HY_ERR_INPUT || row->csv) return status;
    /* The parser writes ":LINE:COLUMN: reason", counted from the beginning of the row. */
    unsigned long long line, column;
    int at = 0;
    char message[HY_REASON_MAX];
    snprintf(message, sizeof message, "%s", hy_error_message());
    if (sscanf(message, ":%llu:%llu: %n", &line, &column, &at) != 2 || at == 0) return status;
    if (line == 1) return hy_fail(status, "column %llu: %s", column, message + at);
    return hy_fail(status, "line %llu of the row, column %llu: %s", line, column, message + at);
}

hy_status hy_row_kind_of(const hy_row *row, const hy_columns *columns, hy_row_kind *out) {
    hy_json *json;
    HY_TRY(hy_row_parse(row, &json));
    hy_status status = hy_row_recognise(hy_json_root(json), columns, out);
    hy_json_free(json);
    return status;
}

/* An empty value says nothing, and every row of a CSV file has all columns. */
static bool is_empty(const hy_json_node *value) {
    const char *text;
    size_t size = 1;
    (void)hy_json_as_string(value, &text, &size);
    return hy_json_type_of(value) == HY_JSON_NULL || size == 0;
}

static void count_ignored_of_message(hy_row_losses *ignored, const hy_json_node *message,
                                     const hy_chat_template *chat) {
    for (const hy_json_node *v = hy_json_first(message); v; v = hy_json_next(v)) {
        bool is_read = is_empty(v) || hy_message_uses(message, v, chat);
        if (!is_read) hy_row_losses_add(ignored, hy_json_key(v), 1);
    }
}

/* Counts the keys of a row that are not used: its own, and those of its messages. */
static void count_ignored(hy_row_losses ignored[2], const hy_json_node *row, hy_row_kind kind,
                          const hy_conversation *c, const hy_chat_template *chat) {
    for (const hy_json_node *n = hy_json_first(row); n; n = hy_json_next(n)) {
        bool is_used = hy_row_uses(row, c, kind, n);
        if (!is_used && !is_empty(n)) hy_row_losses_add(&ignored[0], hy_json_key(n), 1);
        if (!is_used || !hy_row_has_turns(kind, n)) continue;
        if (hy_json_type_of(n) == HY_JSON_OBJECT) count_ignored_of_message(&ignored[1], n, chat);
        const hy_json_node *m = hy_json_type_of(n) == HY_JSON_ARRAY ? hy_json_first(n) : NULL;
        for (; m; m = hy_json_next(m)) count_ignored_of_message(&ignored[1], m, chat);
    }
}

/* Encodes a row into b->ids, or, if it has several answers, as examples of the batch. */
static hy_status encode_tree(hy_batch_of_rows *b, const hy_encoding *e,
                             const hy_chat_template *chat, hy_row_kind kind, const hy_row *row,
                             const hy_json_node *root) {
    hy_conversation *c = &b->conversation;
    c->columns = &e->columns;
    c->skips_system = chat->skips_system;
    HY_TRY(hy_conversation_read(root, kind, c));
    count_ignored(b->ignored, root, kind, c, chat);
    if (e->options->prompts) return hy_batch_add_prompt(b, e, chat, row);
    if (hy_row_kind_is_pair(kind)) return hy_batch_add_pair(b, e, chat);
    /* Runs that began before version 0.2 keep such rows. */
    bool keeps = e->options->counts_all || e->options->chat_template == HY_CHAT_CONVERSATIONS;
    HY_FAIL_IF(!keeps && hy_turns_have_empty_answers(c->turns, c->count), HY_ERR_INPUT,
               "the answer is empty");
    if (hy_row_kind_is_scored(kind)) return hy_batch_add_scored(b, e, chat);
    HY_TRY(hy_chat_render(chat, c, false, &b->rendered));
    b->ids.count = b->answers.count = 0;
    HY_TRY(hy_rendered_encode(&b->rendered, e->tokenizer, &b->ids, &b->answers));
    bool has_end = kind == HY_ROWS_TEXT && chat->tokens.eos >= 0;
    return has_end ? hy_ids_append(&b->ids, &chat->tokens.eos, 1) : HY_OK;
}

/* ---- examples -------------------------------------------------------------------------------- */

hy_status hy_batch_add_example(hy_batch_of_rows *b, size_t first, size_t last, bool counts_all) {
    int32_t length = (int32_t)(last - first);
    HY_TRY(hy_ids_append(&b->tokens, b->ids.data + first, last - first));
    int32_t *tokens = b->tokens.data + b->tokens.count - length;
    for (int32_t i = 1; i < length; i++) {
        if (counts_all || b->answers.data[first + (size_t)i]) tokens[i] |= HY_COUNTS;
    }
    return hy_ids_append(&b->lengths, &length, 1);
}

hy_status hy_batch_check_ids(const hy_batch_of_rows *b, const hy_encoding *e) {
    const hy_dataset_options *o = e->options;
    for (size_t i = 0; i < b->ids.count; i++) {
        int32_t id = b->ids.data[i];
        if (id >= 0 && id < o->vocab) continue;
        HY_FAIL_IF(!e->tokenizer, HY_ERR_STATE,
                   "a row has the byte %d, but the model's vocabulary has the ids 0 to %d: there "
                   "is no tokenizer, so the rows are read as bytes; name one with --tokenizer",
                   id, o->vocab - 1);
        return hy_fail(
            HY_ERR_STATE,
            "a row has the token %d, but the model's vocabulary has the ids 0 to %d; check "
            "that the tokenizer belongs to the model",
            id, o->vocab - 1);
    }
    return HY_OK;
}

static hy_status add_row(hy_batch_of_rows *b, const hy_encoding *e, hy_row_kind kind) {
    const hy_dataset_options *o = e->options;
    size_t seq = (size_t)o->seq, most = seq + 1, count = b->ids.count;
    HY_TRY(hy_batch_check_ids(b, e));
    if (count < 2) return hy_fail(HY_ERR_INPUT, "the row has fewer than two tokens");
    if (kind == HY_ROWS_TEXT) {
        for (size_t first = 0; first + 1 < count; first += seq) {
            HY_TRY(
                hy_batch_add_example(b, first, count - first < most ? count : first + most, true));
        }
        return HY_OK;
    }
    bool is_cut = count > most;
    if (is_cut) count = most;
    bool counts_any = o->counts_all;
    for (size_t i = 1; i < count && !counts_any; i++) counts_any = b->answers.data[i];
    b->cut += is_cut && counts_any;
    if (counts_any) return hy_batch_add_example(b, 0, count, o->counts_all);
    b->dropped += is_cut;
    if (is_cut) hy_row_losses_add(&b->losses, "no answer is left after cutting", 1);
    return is_cut ? HY_OK : hy_fail(HY_ERR_INPUT, "the row has no answer to learn from");
}

void hy_row_losses_add(hy_row_losses *losses, const char *reason, uint64_t count) {
    int i = 0;
    while (i < losses->count && strcmp(losses->list[i].reason, reason) != 0) i++;
    if (i == losses->count && i == HY_MOST_REASONS) i--;
    if (i == losses->count) {
        bool is_last = i == HY_MOST_REASONS - 1;
        snprintf(losses->list[i].reason, sizeof losses->list[i].reason, "%.119s",
                 is_last ? "others" : reason);
        losses->count++;
    }
    losses->list[i].count += count;
}

void hy_row_losses_join(hy_row_losses *sum, const hy_row_losses *more) {
    for (int i = 0; i < more->count; i++)
        hy_row_losses_add(sum, more->list[i].reason, more->list[i].count);
}

/* The reason without the position in the row and the value of a key, so that equal reasons are
 * counted together: "answer" is "B", which ... becomes "answer" is ..., which ... */
static void count_reason(hy_row_losses *losses, const char *reason) {
    hy_text text = {0};
    const char *colon = strstr(reason, ": ");
    bool has_column = strncmp(reason, "column ", 7) == 0 || strncmp(reason, "line ", 5) == 0;
    if (has_column && colon) reason = colon + 2;
    const char *is = reason[0] == '"' ? strstr(reason, "\" is ") : NULL, *value = is ? is + 5 : "";
    bool has_value = strspn(value, "\"-0123456789") > 0;
    const char *rest = has_value ? strstr(value, value[0] == '"' ? "\", " : ", ") : NULL;
    if (rest) hy_text_addf(&text, "%.*s...", (int)(value - reason), reason);
    hy_text_add(&text, rest ? rest + (rest[0] == '"') : reason);
    char *expected = text.size > 119 ? strstr(text.data, "; expected ") : NULL;
    if (expected) *expected = 0;
    if (text.size > 119) text.data[119] = 0;
    hy_row_losses_add(losses, hy_text_string(&text), 1);
    hy_text_free(&text);
}

/* Keeps the memory of the results. */
static void clear_batch(hy_batch_of_rows *b) {
    b->tokens.count = b->lengths.count = b->scored.count = b->bad_count = 0;
    b->text_sizes.count = 0;
    hy_text_clear(&b->texts);
    b->cut = b->dropped = 0;
    b->losses = (hy_row_losses){0};
    memset(b->ignored, 0, sizeof b->ignored);
}

/* Encodes rows and records the malformed ones. An error status ends the run; a malformed row does
 * not. */
static hy_status encode_rows(hy_batch_of_rows *b, const hy_encoding *e,
                             const hy_chat_template *chat, hy_row_kind kind) {
    clear_batch(b);
    bool has_examples =
        e->options->prompts || hy_row_kind_is_scored(kind) || hy_row_kind_is_pair(kind);
    for (size_t i = 0; i < b->row_count; i++) {
        hy_json *json;
        hy_status status = hy_row_parse(&b->rows[i], &json);
        if (status == HY_OK) {
            status = encode_tree(b, e, chat, kind, &b->rows[i], hy_json_root(json));
            hy_json_free(json);
        }
        if (status == HY_OK && !has_examples) status = add_row(b, e, kind);
        if (status == HY_ERR_STATE) {
            return hy_fail_context(HY_ERR_INPUT, "line %llu", (unsigned long long)b->rows[i].line);
        }
        if (status != HY_ERR_INPUT) {
            HY_TRY(status);
            continue;
        }
        count_reason(&b->losses, hy_error_message());
        if (b->bad_count < HY_REASONS_KEPT) {
            hy_bad_row *bad = &b->bad[b->bad_count];
            bad->line = b->rows[i].line;
            snprintf(bad->reason, sizeof bad->reason, "%.*s", HY_REASON_MAX - 1,
                     hy_error_message());
        }
        b->bad_count++;
    }
    return HY_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

#define WARNINGS_SHOWN 5
#define ROWS_INSPECTED 1000 /* rows to read at most to find the kind of the rows */
#define BYTES_INSPECTED (16 << 20)

/* Text of a file that is being encoded. */
typedef struct reading {
    hy_examples *examples;
    const hy_encoding *encoding;
    const hy_row_file *file;
    const char *path, *begin;
    hy_row_scan scan;
    bool is_end; /* the text ends where the file ends */
} reading;

/* ---- batches --------------------------------------------------------------------------------- */

static bool next_batch(void *context, void *slot) {
    reading *r = context;
    hy_batch_of_rows *b = slot;
    hy_row row;
    size_t bytes = 0, most = r->encoding->buffer / (size_t)r->encoding->workers;
    b->row_count = 0;
    while (b->row_count < HY_ROWS_OF_BATCH && bytes < most) {
        bool is_over = r->scan.at == r->scan.end && !r->is_end; /* an array may continue */
        if (is_over || !hy_rows_next(&r->scan, &row)) break;
        b->rows[b->row_count++] = row;
        bytes += row.size;
    }
    size_t size = (size_t)(r->scan.end - r->begin);
    b->share = size ? (double)(r->scan.at - r->begin) / (double)size : 1;
    return b->row_count > 0;
}

static hy_status encode_batch(void *context, void *slot) {
    reading *r = context;
    hy_status status = encode_rows(slot, r->encoding, &r->file->chat, r->file->kind);
    return status == HY_OK ? HY_OK : hy_fail_context(status, "%s", r->path);
}

static hy_status report_bad_rows(reading *r, const hy_batch_of_rows *b) {
    hy_examples *x = r->examples;
    const hy_dataset_options *o = r->encoding->options;
    for (size_t i = 0; i < b->bad_count && i < HY_REASONS_KEPT; i++) {
        char text[HY_REASON_MAX + 4200];
        snprintf(text, sizeof text, "%.4000s:%llu: %s", r->path, (unsigned long long)b->bad[i].line,
                 b->bad[i].reason);
        HY_FAIL_IF(o->stops_at_bad_row, HY_ERR_INPUT,
                   "%s (set bad_rows = skip to continue without this row)", text);
        if (!x->first_reason[0]) {
            snprintf(x->first_reason, sizeof x->first_reason, "line %llu: %s",
                     (unsigned long long)b->bad[i].line, b->bad[i].reason);
        }
        bool is_shown = x->bad_rows + i < WARNINGS_SHOWN && o->on_warning;
        if (is_shown) o->on_warning(o->user, text);
    }
    x->bad_rows += b->bad_count;
    return HY_OK;
}

static hy_status write_batch(void *context, void *slot, bool is_caller) {
    reading *r = context;
    hy_batch_of_rows *b = slot;
    hy_examples *x = r->examples;
    const hy_dataset_options *o = r->encoding->options;
    HY_TRY(report_bad_rows(r, b));
    HY_TRY(hy_spool_put(&x->tokens, b->tokens.data, b->tokens.count * sizeof *b->tokens.data));
    for (size_t i = 0; i < b->lengths.count; i++) {
        x->token_count += (uint64_t)b->lengths.data[i];
        HY_TRY(hy_spool_put(&x->ends, &x->token_count, sizeof x->token_count));
    }
    HY_TRY(hy_scored_append(&x->scored, b->scored.data, b->scored.count));
    HY_TRY(hy_examples_put_texts(x, b));
    x->count += b->lengths.count;
    x->rows += b->row_count;
    x->cut += b->cut;
    x->dropped += b->dropped;
    hy_unknown_text_move(&x->unknown, &b->ids.unknown);
    hy_row_losses_join(&x->losses, &b->losses);
    for (int i = 0; i < 2; i++) hy_row_losses_join(&x->ignored[i], &b->ignored[i]);
    if (is_caller && o->on_progress) o->on_progress(o->user, "reading rows", b->share);
    return HY_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

void hy_batch_free(hy_batch_of_rows *b) {
    hy_ids_free(&b->tokens);
    hy_ids_free(&b->lengths);
    free(b->scored.data);
    hy_text_free(&b->texts);
    hy_ids_free(&b->text_sizes);
    hy_conversation_free(&b->conversation);
    hy_rendered_free(&b->rendered);
    hy_ids_free(&b->ids);
    hy_flags_free(&b->answers);
}

static hy_status run_workers(reading *r) {
    int32_t workers = r->encoding->workers;
    hy_batch_of_rows *slots = calloc((size_t)workers, sizeof *slots);
    HY_FAIL_IF(!slots, HY_ERR_MEMORY, "not enough memory to read %s", r->path);
    hy_in_order job = {.context = r,
                       .next = next_batch,
                       .work = encode_batch,
                       .done = write_batch,
                       .slots = slots,
                       .slot_size = sizeof *slots,
                       .workers = workers};
    hy_status status = hy_in_order_run(&job);
    for (hy_batch_of_rows *b = slots; b < slots + workers; b++) hy_batch_free(b);
    free(slots);
    return status;
}

/* Finds the kind of the rows: CSV by its columns, JSON by the first row that can be read. Moves the
 * scan before the first row. */
static hy_status find_kind(hy_row_file *f, const hy_encoding *e, const char *data, size_t size) {
    const char *path = f->file->path;
    hy_row row;
    hy_row_scan scan;
    hy_rows_begin(&f->scan, data, size);
    if (f->file->is_csv) {
        hy_status status = hy_csv_begin(&f->scan, data, size, &e->columns, &f->csv, &f->kind);
        if (status == HY_OK) return HY_OK;
        return hy_fail_context(status,
                               "%s: cannot read the column names in the first line (for plain "
                               "text, use --data-format text)",
                               path);
    }
    scan = f->scan;
    hy_error first = {0}; /* why the first row cannot be used */
    for (int i = 0; i < ROWS_INSPECTED && hy_rows_next(&scan, &row); i++) {
        hy_status status = hy_row_kind_of(&row, &e->columns, &f->kind);
        if (status == HY_OK || status == HY_ERR_MEMORY) return status;
        status = hy_fail_context(status, "%s:%llu", path, (unsigned long long)row.line);
        if (i == 0) hy_error_save(&first, status);
        if (e->options->stops_at_bad_row) break;
    }
    HY_FAIL_IF(first.status == HY_OK, HY_ERR_INPUT, "%s contains no rows", path);
    return hy_error_restore(&first);
}

/* Chooses the template for the rows. Documents have no turns. A prompt and its completion are
 * written with the template of the model's folder; without one they are plain, unless the user
 * chose a template. */
static void choose_template(hy_row_file *f, const hy_encoding *e) {
    hy_chat_kind asked = e->options->chat_template;
    bool is_asked = f->kind == HY_ROWS_PROMPT || f->kind == HY_ROWS_QUESTION ||
                    f->kind == HY_ROWS_PAIR || hy_row_kind_is_scored(f->kind);
    bool is_plain = is_asked && (asked == HY_CHAT_CONVERSATIONS ||
                                 (asked == HY_CHAT_AUTO && !e->chat.is_of_folder));
    f->chat = e->chat;
    if (f->kind == HY_ROWS_TEXT || is_plain) f->chat.kind = HY_CHAT_PLAIN;
    /* Without a template, a question and its answer are on separate lines. */
    if (f->kind == HY_ROWS_QUESTION && f->chat.kind == HY_CHAT_PLAIN) f->chat.kind = HY_CHAT_LINES;
    if (f->kind == HY_ROWS_ALPACA && f->chat.kind >= HY_CHAT_UNKNOWN) f->chat.kind = HY_CHAT_ALPACA;
    f->chat.skips_system = asked == HY_CHAT_CONVERSATIONS || !hy_chat_template_has_system(&f->chat);
}

static void describe_format(const hy_row_file *f, const hy_encoding *e, char *out, size_t size) {
    bool is_plain = f->chat.kind == HY_CHAT_PLAIN, is_own = f->chat.kind == HY_CHAT_OWN;
    is_plain |= f->chat.kind == HY_CHAT_LINES && f->kind == HY_ROWS_QUESTION;
    bool is_scored = hy_row_kind_is_scored(f->kind), is_prompt = e->options->prompts;
    char template[64], name[128];
    snprintf(template, sizeof template, "chat template %s", hy_chat_kind_name(f->chat.kind));
    snprintf(name, sizeof name, "%s%s", is_prompt ? "prompts: " : "",
             is_prompt ? hy_row_question_key(f->kind, &e->columns) : hy_row_kind_name(f->kind));
    snprintf(out, size, "%s; %s; %s", name,
             is_plain ? "no chat template"
             : is_own ? "the chat template of the model folder"
                      : template,
             is_prompt                                           ? "answered by the model"
             : is_scored                                         ? "scored by log-probability"
             : e->options->counts_all || f->kind == HY_ROWS_TEXT ? "loss on all tokens"
             : e->options->pairs == HY_PAIRS_WITH_PROMPTS
                 ? "loss on answers and, for the chosen one, its prompt"
                 : "loss on answers");
    if (is_scored || is_prompt) return;
    hy_text ends = {0};
    hy_chat_template_describe_ends(&f->chat, e->tokenizer, &ends);
    size_t used = strlen(out);
    snprintf(out + used, size - used, "%s", hy_text_string(&ends));
    hy_text_free(&ends);
}

/* Example: "; ignored keys: id, system (57 of 60 rows), name (in 4 messages)". */
void hy_examples_describe(const hy_examples *x, char *out, size_t size) {
    hy_text text = {0};
    hy_text_add(&text, x->format);
    for (int k = 0; k < x->ignored[0].count + x->ignored[1].count; k++) {
        bool is_of_row = k < x->ignored[0].count;
        int i = is_of_row ? k : k - x->ignored[0].count;
        unsigned long long count = x->ignored[!is_of_row].list[i].count;
        const char *head = x->has_prompts ? "; other keys: " : "; ignored keys: ";
        hy_text_addf(&text, "%s%s", k ? ", " : head, x->ignored[!is_of_row].list[i].reason);
        if (!is_of_row)
            hy_text_addf(&text, " (in %llu message%s)", count, count == 1 ? "" : "s");
        else if (count < x->rows)
            hy_text_addf(&text, " (%llu of %llu rows)", count, (unsigned long long)x->rows);
    }
    snprintf(out, size, "%s", hy_text_string(&text));
    if (text.size >= size) memcpy(out + size - sizeof "...", "...", sizeof "...");
    hy_text_free(&text);
}

hy_status hy_row_file_open(const hy_input_file *file, const hy_encoding *e, const char *data,
                           size_t size, hy_row_file *f) {
    *f = (hy_row_file){.file = file};
    HY_TRY(find_kind(f, e, data, size));
    choose_template(f, e);
    hy_status status = hy_chat_template_check(&f->chat);
    return status == HY_OK ? HY_OK : hy_fail_context(status, "%s", file->path);
}

void hy_row_file_close(hy_row_file *f) {
    hy_csv_close(&f->csv);
    *f = (hy_row_file){0};
}

hy_status hy_examples_add(hy_examples *x, const hy_encoding *e, const hy_row_file *f,
                          hy_row_scan scan, bool is_end) {
    reading r = {.examples = x,
                 .encoding = e,
                 .file = f,
                 .path = f->file->path,
                 .begin = scan.at,
                 .scan = scan,
                 .is_end = is_end};
    if (!x->format[0]) describe_format(f, e, x->format, sizeof x->format);
    hy_chat_kind kind = f->chat.kind;
    bool marks_turns = !hy_chat_kind_is_plain(kind) && kind != HY_CHAT_ALPACA;
    if (f->kind != HY_ROWS_TEXT)
        hy_prompt_format_join(
            &x->prompt,
            (hy_prompt_format){kind, .is_single = f->kind < HY_ROWS_SHAREGPT && !marks_turns});
    return run_workers(&r);
}

hy_status hy_examples_fail_unused(const hy_examples *x, const hy_encoding *e, const char *path) {
    HY_FAIL_IF(x->first_reason[0], HY_ERR_INPUT, "no row of %s can be used: %s", path,
               x->first_reason);
    HY_FAIL_IF(x->rows == 0, HY_ERR_INPUT, "%s contains no rows", path);
    HY_FAIL_IF(e->options->prompts, HY_ERR_INPUT,
               "no row of %s can be used: every prompt has more than %d tokens", path,
               hy_prompt_most(e->options));
    return hy_fail(
        HY_ERR_INPUT,
        "no row of %s can be used: the sequence of %d tokens is too short for any answer", path,
        e->options->seq);
}

/* ---- showing rows ---------------------------------------------------------------------------- */

/* How rows are shown, and how many are left. */
typedef struct showing {
    hy_show_row show;
    void *user;
    uint64_t left;
} showing;

/* The batch holds one row. */
static hy_status show_batch(const reading *r, const hy_batch_of_rows *b, const showing *s) {
    static const char *const answers[] = {"chosen", "rejected"};
    bool is_pair = hy_row_kind_is_pair(r->file->kind);
    hy_shown_row row = {.path = r->path,
                        .line = b->rows[0].line,
                        .format = r->examples->format,
                        .dropped = b->bad_count      ? b->bad[0].reason
                                   : b->losses.count ? b->losses.list[0].reason
                                                     : NULL,
                        .is_cut = b->cut > 0,
                        .parts = (uint32_t)b->lengths.count,
                        .expected = hy_batch_expected(b),
                        .tokenizer = r->encoding->tokenizer,
                        .tokens = b->tokens.data};
    if (row.parts == 0) return s->show(s->user, &row);
    for (row.part = 1; row.part <= row.parts; row.part++) {
        if (is_pair) row.answer = answers[row.part - 1];
        if (is_pair) row.is_cut = b->is_cut[row.part - 1];
        row.count = (uint32_t)b->lengths.data[row.part - 1];
        HY_TRY(s->show(s->user, &row));
        row.tokens += row.count;
    }
    return HY_OK;
}

/* Describes the rows, with the keys that are ignored in the first rows and bytes of the file. */
static hy_status inspect(const hy_row_file *f, const hy_encoding *e, hy_examples *x) {
    hy_row_scan scan = f->scan;
    hy_row row;
    hy_json *json;
    while (x->rows < ROWS_INSPECTED && scan.at - f->scan.at < BYTES_INSPECTED &&
           hy_rows_next(&scan, &row)) {
        x->rows++;
        hy_status status = hy_row_parse(&row, &json);
        if (status == HY_OK) {
            hy_conversation c = {.columns = &e->columns, .skips_system = f->chat.skips_system};
            status = hy_conversation_read(hy_json_root(json), f->kind, &c);
            if (status == HY_OK)
                count_ignored(x->ignored, hy_json_root(json), f->kind, &c, &f->chat);
            hy_conversation_free(&c);
            hy_json_free(json);
        }
        if (status != HY_ERR_INPUT) HY_TRY(status); /* the row is reported if it is shown */
    }
    x->has_prompts = e->options->prompts;
    describe_format(f, e, x->format, sizeof x->format);
    hy_examples_describe(x, x->format, sizeof x->format);
    return HY_OK;
}

static hy_status show_rows(const hy_row_file *f, const hy_encoding *e, showing *s) {
    hy_encoding one = *e; /* a row per batch */
    one.buffer = 1;
    one.workers = 1;
    hy_examples x = {0}; /* only its description of the rows is used */
    reading r = {.examples = &x,
                 .encoding = &one,
                 .file = f,
                 .path = f->file->path,
                 .begin = f->scan.at,
                 .scan = f->scan,
                 .is_end = true};
    hy_batch_of_rows *b = calloc(1, sizeof *b);
    HY_FAIL_IF(!b, HY_ERR_MEMORY, "not enough memory to read %s", r.path);
    hy_status status = inspect(f, e, &x);
    for (; s->left > 0 && status == HY_OK && next_batch(&r, b); s->left--) {
        status = encode_batch(&r, b);
        if (status == HY_OK) status = show_batch(&r, b, s);
    }
    hy_batch_free(b);
    free(b);
    return status;
}

/* ---- lists of files -------------------------------------------------------------------------- */

/* show NULL: encodes all rows. */
static hy_status read_file(hy_examples *x, const hy_encoding *e, const hy_input_file *file,
                           showing *show) {
    hy_input input;
    hy_row_file f;
    uint64_t before = x->count;
    HY_TRY(hy_input_open(file, &input));
    x->first_reason[0] = 0;
    hy_status status = hy_row_file_open(file, e, input.data, input.size, &f);
    if (status == HY_OK)
        status = show ? show_rows(&f, e, show) : hy_examples_add(x, e, &f, f.scan, true);
    if (status == HY_OK && !show && x->count == before)
        status = hy_examples_fail_unused(x, e, file->path);
    hy_row_file_close(&f);
    hy_input_close(&input);
    return status;
}

hy_status hy_examples_show(const hy_file_list *files, const hy_encoding *e, uint64_t most,
                           hy_show_row show, void *user) {
    showing s = {show, user, most};
    for (size_t i = 0; s.left > 0 && i < files->count; i++) {
        hy_examples x = {0}; /* only its description of the rows is used */
        HY_TRY(read_file(&x, e, &files->files[i], &s));
    }
    return HY_OK;
}

void hy_row_losses_describe(const hy_row_losses *losses, hy_text *out) {
    for (int i = 0; i < losses->count; i++) {
        hy_text_addf(out, "%s%llu: %s", i ? "; " : "", (unsigned long long)losses->list[i].count,
                     losses->list[i].reason);
    }
}

hy_status hy_examples_check_dropped(const hy_examples *x, const hy_dataset_options *o) {
    uint64_t dropped = x->bad_rows + x->dropped;
    double share = x->rows ? (double)dropped / (double)x->rows : 0;
    if (dropped == 0) return HY_OK;
    hy_text text = {0};
    hy_text_addf(&text, "dropped %llu of %llu rows%s (", (unsigned long long)dropped,
                 (unsigned long long)x->rows, share > 0.1 ? ", more than a tenth" : "");
    hy_row_losses_describe(&x->losses, &text);
    hy_text_add(&text, ")");
    hy_status status = hy_text_status(&text);
    if (status == HY_OK && share > 0.5 && !o->drops_any) {
        status = hy_fail(HY_ERR_INPUT,
                         "%s; check the data, or set bad_rows = skip-any to train on the rest",
                         text.data);
    } else if (status == HY_OK && o->on_warning) {
        o->on_warning(o->user, text.data);
    }
    hy_text_free(&text);
    return status;
}

hy_status hy_examples_report(const hy_examples *x, const hy_dataset_options *o) {
    HY_TRY(hy_examples_check_dropped(x, o));
    char text[256];
    snprintf(text, sizeof text,
             "cut %llu of %llu rows%s because %s longer than the sequence of %d tokens",
             (unsigned long long)x->cut, (unsigned long long)x->rows,
             x->scored.count ? " at the start of the prompt" : "",
             o->pairs ? "their two examples together are" : "they are", o->seq);
    if (x->cut && o->on_warning) o->on_warning(o->user, text);
    uint64_t joined = 0;
    for (size_t i = 0; i < x->scored.count; i++) joined += x->scored.data[i].is_joined;
    snprintf(text, sizeof text,
             "%llu of %llu answers continue the last word of their prompt, because neither has a "
             "blank there; begin answers with a blank if this is not meant",
             (unsigned long long)joined, (unsigned long long)x->scored.count);
    if (joined && o->on_warning) o->on_warning(o->user, text);
    return HY_OK;
}

hy_status hy_examples_begin(hy_examples *x) {
    *x = (hy_examples){.tokens.fd = -1, .ends.fd = -1};
    hy_status status = hy_spool_open(&x->tokens);
    if (status == HY_OK) status = hy_spool_open(&x->ends);
    if (status != HY_OK) hy_examples_close(x);
    return status;
}

hy_status hy_examples_end(hy_examples *x) {
    HY_TRY(hy_spool_map(&x->tokens));
    HY_TRY(hy_spool_map(&x->texts));
    HY_TRY(hy_spool_map(&x->text_ends));
    return hy_spool_map(&x->ends);
}

hy_status hy_examples_open(const hy_file_list *files, const hy_encoding *e, hy_examples *x) {
    HY_TRY(hy_examples_begin(x));
    x->has_prompts = e->options->prompts;
    hy_status status = x->has_prompts ? hy_spool_open(&x->texts) : HY_OK;
    if (status == HY_OK && x->has_prompts) status = hy_spool_open(&x->text_ends);
    for (size_t i = 0; status == HY_OK && i < files->count; i++) {
        status = read_file(x, e, &files->files[i], NULL);
    }
    if (status == HY_OK) status = hy_examples_end(x);
    if (status == HY_OK) status = hy_examples_report(x, e->options);
    if (status != HY_OK) hy_examples_close(x);
    return status;
}

void hy_examples_close(hy_examples *x) {
    hy_spool_close(&x->tokens);
    hy_spool_close(&x->ends);
    hy_spool_close(&x->texts);
    hy_spool_close(&x->text_ends);
    free(x->scored.data);
    *x = (hy_examples){.tokens.fd = -1, .ends.fd = -1};
}

const int32_t *hy_examples_get(const hy_examples *x, uint64_t i, uint32_t *count) {
    const uint64_t *ends = x->ends.data;
    uint64_t begin = i ? ends[i - 1] : 0;
    *count = (uint32_t)(ends[i] - begin);
    return (const int32_t *)x->tokens.data + begin;
}
