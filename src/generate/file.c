/* file.c: answers a file of prompts. See hybrid_generate.h and file.h.
 *
 * A thread reads rows and adds requests; the caller's thread generates. Rows end in any order and
 * are written in theirs: a finished row waits in a window for those before it. The reader waits if
 * the window is full, or if enough requests are there to keep the device busy. `lock` protects all
 * that both threads use. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/number.h"
#include "base/sized.h"
#include "base/thread.h"
#include "generate/file.h"

enum { WINDOW = 4096 };
#define SHOW_SECONDS 0.1

typedef struct answer {
    hy_text text, scores; /* scores: the elements of a JSON array */
    hy_end end;
} answer;

/* A row between the reader and the file. */
typedef struct waiting_row {
    struct file_job *job;
    int64_t id;   /* of its request */
    hy_text head; /* as in hy_asked_row */
    const char *key;
    answer *answers; /* NULL: none is being generated */
    int32_t left;    /* answers that have not ended */
    bool is_stopped; /* one of them ended before its end */
    uint64_t line_number;
    hy_text line; /* what is written; empty: not finished */
} waiting_row;

typedef struct file_job {
    hy_generator *generator;
    hy_generate_file_options options;
    hy_asking how;
    hy_row_source source;
    hy_file_part part;
    atomic_bool is_stopping;
    double began, shown;
    hy_generator_state before; /* what the generator had done before the first row */

    pthread_mutex_t lock;
    pthread_cond_t has_changed;
    waiting_row *rows;     /* (WINDOW) row i is at i % WINDOW */
    int64_t read, written; /* rows; those between are in the window */
    int32_t asked, most;   /* requests that have not ended; as many as there may be */
    bool has_read_all;
    bool is_referenced; /* by requests that the generator could not end */
    hy_error failure;
    hy_generate_file_state state;
} file_job;

const char *hy_end_name(hy_end end) {
    static const char *const names[] = {
        [HY_END_MODEL] = "model",         [HY_END_MAX_TOKENS] = "max_tokens",
        [HY_END_CONTEXT] = "context",     [HY_END_STOPPED] = "stopped",
        [HY_END_STOP_TEXT] = "stop_text", [HY_END_NOT_FINITE] = "not_finite"};
    return (size_t)end < sizeof names / sizeof names[0] ? names[end] : "?";
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* One answer is a value, several are a list. */
static void put_answers(hy_json_writer *w, const waiting_row *r) {
    int32_t count = r->job->how.answers;
    bool is_list = count > 1;
    const answer *all = r->answers;
    if (is_list) hy_json_open_array(w, r->key);
    for (const answer *a = all; a < all + count; a++)
        hy_json_put_bytes(w, is_list ? NULL : r->key, hy_text_string(&a->text), a->text.size);
    if (is_list) hy_json_close_array(w);
    if (is_list) hy_json_open_array(w, "ends");
    for (const answer *a = all; a < all + count; a++)
        hy_json_put_string(w, is_list ? NULL : "end", hy_end_name(a->end));
    if (is_list) hy_json_close_array(w);
    if (!r->job->how.each.wants_logprobs) return;
    if (is_list) hy_json_open_array(w, "logprobs");
    for (const answer *a = all; a < all + count; a++) {
        hy_json_open_array(w, is_list ? NULL : "logprobs");
        hy_text_add_bytes(w->text, a->scores.data, a->scores.size);
        hy_json_close_array(w);
    }
    if (is_list) hy_json_close_array(w);
}

/* The head, and the members of one more object. error: why the row has no answer, or NULL. Not
 * r->line itself: the other thread writes that to the file as soon as it is not empty. */
static hy_status make_line(waiting_row *r, const char *error, hy_text *line) {
    hy_text members = {0};
    hy_json_writer w;
    hy_json_begin(&w, &members, false);
    hy_json_open_object(&w, NULL);
    if (error)
        hy_json_put_string(&w, "error", error);
    else
        put_answers(&w, r);
    hy_json_close_object(&w);
    hy_text_add(&members, "\n");
    hy_text_add_bytes(line, r->head.data, r->head.size);
    if (r->head.size > 1) hy_text_add(line, ",");
    hy_text_add(line, hy_text_string(&members) + 1);
    hy_status status = hy_text_status(&members);
    if (status == HY_OK) status = hy_text_status(line);
    hy_text_free(&members);
    hy_text_free(&r->head);
    return status;
}

/* As many digits as a float has. */
static void put_score(hy_json_writer *w, const hy_token_score *score) {
    char digits[HY_NUMBER_MAX];
    snprintf(digits, sizeof digits, "%.9g", (double)score->logprob);
    hy_json_put_int(w, "token", score->token);
    hy_json_put_double(w, "logprob", strtod(digits, NULL));
}

static void add_scores(answer *a, const hy_piece *piece) {
    for (int32_t i = 0; i < piece->token_count; i++) {
        const hy_scored_token *token = &piece->tokens[i];
        hy_json_writer w;
        if (a->scores.size > 0) hy_text_add(&a->scores, ",");
        hy_json_begin(&w, &a->scores, false);
        hy_json_open_object(&w, NULL);
        put_score(&w, &token->chosen);
        if (token->top_count > 0) hy_json_open_array(&w, "top");
        for (int32_t t = 0; t < token->top_count; t++) {
            hy_json_open_object(&w, NULL);
            put_score(&w, &token->top[t]);
            hy_json_close_object(&w);
        }
        if (token->top_count > 0) hy_json_close_array(&w);
        hy_json_close_object(&w);
    }
}

static void free_answers(waiting_row *r) {
    for (int32_t i = 0; r->answers && i < r->job->how.answers; i++) {
        hy_text_free(&r->answers[i].text);
        hy_text_free(&r->answers[i].scores);
    }
    free(r->answers);
    r->answers = NULL;
}

/* ---- progress and failures; the lock is held ------------------------------------------------- */

/* Remembers the first failure of the thread that calls. */
static void keep_failure(file_job *job, hy_status status) {
    if (status != HY_OK && job->failure.status == HY_OK) hy_error_save(&job->failure, status);
}

/* Nothing more can be written. */
static void break_off(file_job *job, hy_status status) {
    keep_failure(job, status);
    hy_generator_request_stop(job->generator);
}

static bool is_over(const file_job *job) { return job->has_read_all && job->asked == 0; }

static void write_finished(file_job *job) {
    while (job->written < job->read && !atomic_load(&job->is_stopping)) {
        waiting_row *r = &job->rows[job->written % WINDOW];
        if (r->line.size == 0) return;
        hy_status status = hy_file_part_put(&job->part, r->line.data, r->line.size);
        if (status != HY_OK) {
            break_off(job, status);
            return;
        }
        hy_text_free(&r->line);
        job->written++;
        job->state.done++;
    }
}

/* After every change that the other thread may wait for. */
static void have_changed(file_job *job) {
    write_finished(job);
    bool is_done = is_over(job) && !atomic_load(&job->is_stopping);
    if (is_done) hy_generator_request_stop(job->generator);
    pthread_cond_broadcast(&job->has_changed);
}

/* What the generator has done since the first row; without the lock. */
static void count(file_job *job) {
    hy_generator_state now;
    hy_generator_now(job->generator, &now);
    pthread_mutex_lock(&job->lock);
    job->state.seconds = hy_clock() - job->began;
    job->state.prompt_tokens = now.prompt_tokens - job->before.prompt_tokens;
    job->state.answer_tokens = now.tokens - job->before.tokens;
    job->state.running = now.running;
    job->state.waiting = now.waiting;
    pthread_mutex_unlock(&job->lock);
}

static void show(file_job *job) {
    const hy_generate_file_options *o = &job->options;
    if (!o->on_progress || hy_clock() - job->shown < SHOW_SECONDS) return;
    count(job);
    job->shown = hy_clock();
    pthread_mutex_lock(&job->lock);
    hy_generate_file_state state = job->state;
    pthread_mutex_unlock(&job->lock);
    o->on_progress(o->user, &state);
}

/* ---- the thread that generates --------------------------------------------------------------- */

/* All answers of the row have ended. A row that was stopped is asked again by the next call. */
static void finish_row(waiting_row *r) {
    file_job *job = r->job;
    hy_text line = {0};
    hy_status status = HY_OK;
    bool is_bad = false;
    for (int32_t i = 0; i < job->how.answers && !r->is_stopped; i++)
        is_bad |= r->answers[i].end == HY_END_NOT_FINITE;
    if (is_bad)
        status = hy_fail(HY_ERR_NUMERIC, "%s:%llu: the model's logits are not finite",
                         job->how.data, (unsigned long long)r->line_number);
    if (r->is_stopped && !atomic_load(&job->is_stopping))
        status = hy_fail(HY_STOPPED, "%s:%llu: the request was cancelled", job->how.data,
                         (unsigned long long)r->line_number);
    bool is_skipped = is_bad && job->options.skips_bad;
    if (!r->is_stopped && (!is_bad || is_skipped))
        status = make_line(r, is_skipped ? hy_error_message() : NULL, &line);
    free_answers(r);
    pthread_mutex_lock(&job->lock);
    if (status == HY_OK)
        r->line = line;
    else
        hy_text_free(&line);
    if (status != HY_OK) break_off(job, status);
    job->state.bad += is_skipped;
    job->asked--;
    have_changed(job);
    pthread_mutex_unlock(&job->lock);
}

static void end_answer(waiting_row *r, const hy_piece *piece) {
    file_job *job = r->job;
    bool is_cut = piece->end == HY_END_MAX_TOKENS || piece->end == HY_END_CONTEXT;
    r->answers[piece->answer].end = piece->end;
    r->is_stopped |= piece->end == HY_END_STOPPED;
    pthread_mutex_lock(&job->lock);
    job->state.answers += piece->end != HY_END_STOPPED;
    job->state.cut += is_cut;
    r->left--;
    pthread_mutex_unlock(&job->lock);
    if (r->left == 0) finish_row(r);
}

static void on_piece(void *user, const hy_piece *piece) {
    waiting_row *r = user;
    answer *a = &r->answers[piece->answer];
    file_job *job = r->job;
    if (piece->is_prompt) return;
    hy_text_add_bytes(&a->text, piece->text, piece->text_size);
    if (job->how.each.wants_logprobs) add_scores(a, piece);
    if (piece->is_last) end_answer(r, piece);
    show(job);
}

/* ---- the thread that reads ------------------------------------------------------------------- */

/* The place of the next row, when there is room; NULL: the job is stopping. */
static waiting_row *next_place(file_job *job, const hy_row *row) {
    pthread_mutex_lock(&job->lock);
    while (!atomic_load(&job->is_stopping) &&
           (job->asked >= job->most || job->read - job->written >= WINDOW))
        pthread_cond_wait(&job->has_changed, &job->lock);
    waiting_row *r = &job->rows[job->read % WINDOW];
    pthread_mutex_unlock(&job->lock);
    if (atomic_load(&job->is_stopping)) return NULL;
    *r = (waiting_row){.job = job, .line_number = row->line};
    return r;
}

static hy_status add_request(file_job *job, waiting_row *r, hy_asked_row *asked) {
    r->answers = calloc((size_t)job->how.answers, sizeof *r->answers);
    HY_FAIL_IF(!r->answers, HY_ERR_MEMORY, "not enough memory for answers");
    r->left = job->how.answers;
    asked->request.on_piece = on_piece;
    asked->request.user = r;
    return hy_generator_add(job->generator, &asked->request, &r->id);
}

/* A bad row that is skipped is finished at once. */
static hy_status ask_row(file_job *job, hy_asked_row *asked, const hy_row *row) {
    waiting_row *r = next_place(job, row);
    if (!r) return HY_OK;
    hy_status status = hy_asked_row_read(asked, &job->how, row, job->read);
    r->head = asked->head;
    r->key = asked->key;
    asked->head = (hy_text){0};
    pthread_mutex_lock(&job->lock); /* its answers wait until it is counted */
    if (status == HY_OK) status = add_request(job, r, asked);
    bool is_asked = status == HY_OK, is_bad = status == HY_ERR_INPUT && job->options.skips_bad;
    if (is_bad) status = make_line(r, hy_error_message(), &r->line);
    if (!is_asked) free_answers(r);
    if (status != HY_OK) hy_text_free(&r->head);
    job->asked += is_asked;
    job->state.bad += is_bad;
    job->read += status == HY_OK;
    have_changed(job);
    pthread_mutex_unlock(&job->lock);
    return status;
}

static hy_status ask_rows(file_job *job, hy_asked_row *asked) {
    hy_row row;
    bool has_row = true;
    for (int64_t i = 0; i < job->part.rows && has_row; i++) /* they are written already */
        HY_TRY(hy_row_source_next(&job->source, &job->is_stopping, &row, &has_row));
    while (has_row && !atomic_load(&job->is_stopping)) {
        HY_TRY(hy_row_source_next(&job->source, &job->is_stopping, &row, &has_row));
        if (has_row) HY_TRY(ask_row(job, asked, &row));
    }
    return HY_OK;
}

/* After a bad row of standard input, those before it are still answered. */
static void *read_rows(void *argument) {
    file_job *job = argument;
    hy_asked_row asked = {0};
    hy_status status = ask_rows(job, &asked);
    hy_asked_row_free(&asked);
    pthread_mutex_lock(&job->lock);
    if (status != HY_STOPPED) keep_failure(job, status);
    job->has_read_all = !atomic_load(&job->is_stopping);
    have_changed(job);
    pthread_mutex_unlock(&job->lock);
    return NULL;
}

/* ---- a file ---------------------------------------------------------------------------------- */

/* Ends the requests that are left, so that the generator forgets them. Those of others stay. It
 * cannot end them without a device; then they end later, when nobody waits for them. */
static void cancel_rows(file_job *job) {
    if (job->asked == 0) return;
    for (int64_t i = job->written; i < job->read; i++) {
        const waiting_row *r = &job->rows[i % WINDOW];
        if (r->answers) (void)hy_generator_cancel(job->generator, r->id);
    }
    (void)hy_generator_round(job->generator); /* the job has failed already */
    job->is_referenced = job->asked > 0;
    if (job->is_referenced) job->options.on_progress = NULL;
}

/* Only this thread generates until the end. */
static hy_status generate_begun(file_job *job) {
    pthread_t reader;
    job->began = hy_clock();
    hy_generator_now(job->generator, &job->before);
    int error = hy_thread_start(&reader, "hybrid-rows", read_rows, job);
    HY_FAIL_IF(error, HY_ERR_MEMORY, "cannot start the thread that reads rows: %s",
               strerror(error));
    hy_status status = hy_generator_serve_begun(job->generator);
    pthread_mutex_lock(&job->lock);
    if (status != HY_STOPPED)
        hy_error_save(&job->failure, status); /* requests have ended for this reason */
    else if (!is_over(job))
        keep_failure(job, hy_fail(HY_STOPPED, "%s was interrupted", job->how.data));
    atomic_store(&job->is_stopping, true);
    pthread_cond_broadcast(&job->has_changed);
    pthread_mutex_unlock(&job->lock);
    pthread_join(reader, NULL);
    atomic_store(hy_generator_look_inside(job->generator).stop_requested, false);
    count(job);
    cancel_rows(job);
    return hy_error_restore(&job->failure);
}

static hy_status generate(file_job *job) {
    HY_TRY(hy_generator_begin(job->generator));
    hy_status status = generate_begun(job);
    hy_generator_end(job->generator);
    return status;
}

/* An earlier call has checked the rows. */
static hy_status continue_file(file_job *job, const hy_text *settings) {
    HY_TRY(hy_file_settings_compare(job->part.settings, settings, &job->state.rows));
    HY_TRY(hy_file_part_recover(&job->part));
    job->read = job->written = job->state.done = job->state.resumed = job->part.rows;
    job->state.bad = job->part.bad;
    return HY_OK;
}

static hy_status begin_file(file_job *job, const hy_text *settings) {
    hy_file_check check = {.how = &job->how,
                           .generator = job->generator,
                           .options = &job->options,
                           .state = &job->state};
    if (!job->source.is_input) HY_TRY(hy_file_check_rows(&check, &job->source));
    HY_TRY(hy_file_part_empty(&job->part));
    bool is_resumable = !job->source.is_input && !job->part.is_output;
    return is_resumable ? hy_file_settings_store(job->part.settings, settings, job->state.rows)
                        : HY_OK;
}

/* The prompts may not be one of the files that are written. */
static hy_status check_names(const file_job *job) {
    static const char *const ends[] = {"", ".part", ".part.json"};
    const hy_generate_file_options *o = &job->options;
    struct stat data, other;
    char path[HY_PATH_MAX];
    if (job->source.is_input || stat(o->data, &data) != 0) return HY_OK;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        int size = snprintf(path, sizeof path, "%s%s", o->out, ends[i]);
        bool is_same = (size_t)size < sizeof path && stat(path, &other) == 0 &&
                       data.st_dev == other.st_dev && data.st_ino == other.st_ino;
        HY_FAIL_IF(is_same, HY_ERR_INPUT,
                   "%s has the prompts, and answers to %s are written to the same file", o->data,
                   o->out);
    }
    return HY_OK;
}

static hy_status open_part(file_job *job) {
    hy_text settings = {0};
    const hy_file_part *part = &job->part;
    bool starts_over = job->options.starts_over;
    HY_TRY(hy_file_part_open(&job->part, job->options.out, starts_over));
    bool continues = part->has_rows && !starts_over;
    HY_FAIL_IF(continues && (job->source.is_input || !hy_path_exists(part->settings)), HY_ERR_INPUT,
               "%s has rows of another call, which cannot be continued; --overwrite starts over",
               part->path);
    hy_status status = HY_OK;
    if (!part->is_output && !job->source.is_input)
        status = hy_file_settings_write(job->generator, &job->how, job->options.skips_bad,
                                        &job->source, &settings);
    if (status == HY_OK)
        status = continues ? continue_file(job, &settings) : begin_file(job, &settings);
    hy_text_free(&settings);
    return status;
}

/* The values that all rows have are checked once, without a row to blame. */
static hy_status describe_rows(file_job *job, const hy_request *each) {
    const hy_generate_file_options *o = &job->options;
    hy_generator_parts parts = hy_generator_look_inside(job->generator);
    hy_ids one = {0};
    hy_task *task;
    HY_FAIL_IF(!o->data || !o->out, HY_ERR_INPUT,
               "a file of prompts and one of answers are needed");
    HY_FAIL_IF(each->text || each->tokens || each->messages, HY_ERR_INPUT,
               "the prompts are in %s; text, tokens and messages must be absent here", o->data);
    job->how = (hy_asking){.codec = parts.codec,
                           .limits = parts.limits,
                           .each = *each,
                           .system = o->system,
                           .answers = each->answers > 1 ? each->answers : 1};
    job->how.each.wants_logprobs |= each->top_logprobs > 0;
    job->how.each.wants_prompt_logprobs = false;
    HY_TRY(hy_ids_append(&one, &(int32_t){0}, 1));
    HY_TRY(hy_task_create(&job->how.each, &parts.limits, &one, &task));
    hy_task_destroy(task);
    HY_TRY(hy_columns_parse(o->columns, &job->how.columns));
    job->how.columns.asks = true;
    HY_TRY(hy_row_source_open(o->data, &job->how.columns, &job->source));
    job->how.data = job->source.name;
    return HY_OK;
}

static hy_status answer_file(file_job *job, const hy_request *each) {
    hy_generator_facts facts;
    HY_TRY(describe_rows(job, each));
    HY_TRY(check_names(job));
    HY_TRY(open_part(job));
    job->rows = calloc(WINDOW, sizeof *job->rows);
    HY_FAIL_IF(!job->rows, HY_ERR_MEMORY, "not enough memory for rows");
    hy_generator_describe(job->generator, &facts);
    int32_t waiting = hy_generator_look_inside(job->generator).waiting;
    job->most = waiting > 0 && waiting < 2 * facts.streams ? waiting : 2 * facts.streams;
    HY_TRY(generate(job));
    return hy_file_part_finish(&job->part);
}

/* The job stays if the generator may still call it, after a failure of the device. */
static void close_job(file_job *job) {
    hy_file_part_close(&job->part);
    hy_row_source_close(&job->source);
    if (job->is_referenced) return;
    for (waiting_row *r = job->rows; r && r < job->rows + WINDOW; r++) {
        free_answers(r);
        hy_text_free(&r->head);
        hy_text_free(&r->line);
    }
    free(job->rows);
    pthread_cond_destroy(&job->has_changed);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

hy_status hy_generate_file_sized(hy_generator *generator, const hy_request *each, size_t each_size,
                                 const hy_generate_file_options *options, size_t options_size,
                                 hy_generate_file_state *state, size_t state_size) {
    hy_request request = {0};
    hy_error error;
    file_job *job = calloc(1, sizeof *job);
    HY_FAIL_IF(!job, HY_ERR_MEMORY, "not enough memory for a file of prompts");
    hy_copy_sized(&request, sizeof request, each, each_size);
    hy_copy_sized(&job->options, sizeof job->options, options, options_size);
    job->generator = generator;
    job->part.fd = -1;
    job->state = (hy_generate_file_state){.size = sizeof job->state, .rows = -1};
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->has_changed, NULL);
    hy_status status = answer_file(job, &request);
    hy_error_save(&error, status);
    if (status == HY_OK) job->state.rows = job->state.done;
    hy_copy_sized(state, state_size, &job->state, sizeof job->state);
    close_job(job);
    return hy_error_restore(&error);
}
