/* program.c: see program.h.
 *
 * All three pipes are served by one poll loop, so that neither side can wait for the other: the
 * program may answer while it is still being sent answers, and write to stderr at any time. */
#include "reward/program.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/number.h"
#include "reward/process.h"
#include "reward/program_errors.h"
#include "reward/spans.h"

#define CHUNK ((size_t)64 << 10)     /* bytes that are read or made at a time */
#define LINE_MOST ((size_t)64 << 10) /* bytes of a line of the program */
#define NAP 50                       /* milliseconds between looks at *stop and the clock */
#define CLOSING_NAP 10
#define CLOSING_SECONDS 1.0
#define DYING_SECONDS 0.2 /* between the end of its output and its own end */
#define SHOWN 60          /* bytes of a wrong line in a message */

struct hy_reward_program {
    char *command;
    double seconds;
    hy_observer observer;
    hy_process process;
    hy_program_errors errors;
    hy_text output; /* read, and not yet a whole line */
    hy_text input;  /* not yet written: from `written` on */
    size_t written;
    char *chunk; /* (CHUNK) */
};

typedef struct batch {
    const hy_reward_item *items;
    size_t count, sent, answered; /* items; `sent` were written or are in `input` */
    double *scores;
    const atomic_bool *stop;
    double begin;
} batch;

/* ---- sending --------------------------------------------------------------------------------- */

static void put_text(hy_json_writer *w, const char *key, const char *text, size_t size) {
    if (text)
        hy_json_put_bytes(w, key, text, size);
    else
        hy_json_put_null(w, key);
}

/* The row is JSON already, so it is added as it is. A line end in it is white space of JSON. */
static void put_row(hy_json_writer *w, const char *row, size_t size) {
    static const char null[] = "null";
    hy_text *text = w->text;
    hy_json_put_null(w, "row");
    if (!row || text->has_failed) return;
    text->size -= sizeof null - 1;
    size_t begin = text->size;
    hy_text_add_bytes(text, row, size);
    for (size_t i = begin; i < text->size; i++) {
        if (text->data[i] == '\n' || text->data[i] == '\r') text->data[i] = ' ';
    }
}

static void put_item(hy_text *text, const hy_reward_item *item) {
    hy_json_writer w;
    hy_json_begin(&w, text, false);
    hy_json_open_object(&w, NULL);
    put_text(&w, "prompt", item->prompt ? item->prompt : "", item->prompt_size);
    put_text(&w, "answer", item->answer ? item->answer : "", item->answer_size);
    put_text(&w, "expected", item->expected, item->expected_size);
    put_row(&w, item->row_json, item->row_size);
    hy_json_put_int(&w, "tokens", item->tokens);
    hy_json_put_bool(&w, "ended", item->ended);
    hy_json_close_object(&w);
    hy_text_add(text, "\n");
}

/* Makes the next lines when all others are written, so that a batch is never in memory twice. */
static hy_status send(hy_reward_program *p, batch *b) {
    hy_text *input = &p->input;
    if (p->written == input->size) {
        hy_text_clear(input);
        p->written = 0;
        while (b->sent < b->count && input->size < CHUNK && !input->has_failed)
            put_item(input, &b->items[b->sent++]);
        HY_TRY(hy_text_status(input));
    }
    p->written += hy_process_write(&p->process, input->data + p->written, input->size - p->written);
    return HY_OK;
}

static bool has_more_to_send(const hy_reward_program *p, const batch *b) {
    return p->written < p->input.size || b->sent < b->count;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* A line for a message: cut, and without bytes that a terminal would obey. */
typedef struct shown_line {
    char text[SHOWN + 4];
} shown_line;

static shown_line show(hy_span line) {
    shown_line shown;
    size_t size = line.size > SHOWN ? SHOWN : line.size;
    for (size_t i = 0; i < size; i++)
        shown.text[i] = line.data[i] < ' ' || line.data[i] > '~' ? '?' : line.data[i];
    strcpy(shown.text + size, line.size > SHOWN ? "..." : "");
    return shown;
}

/* A finite number, or an object with one as "reward". The byte behind the line is no digit. */
static hy_status read_score(hy_span line, double *score, bool *is_score) {
    hy_json *json;
    *is_score = hy_number_parse(line.data, line.size, score);
    if (*is_score || line.size == 0 || line.data[0] != '{') return HY_OK;
    hy_status status = hy_json_parse(line.data, line.size, "the reward program", &json);
    if (status != HY_OK) return status == HY_ERR_INPUT ? HY_OK : status;
    const hy_json_node *root = hy_json_root(json);
    *is_score = hy_json_as_double(hy_json_get(root, "reward"), score);
    hy_json_free(json);
    return HY_OK;
}

static hy_status take_line(batch *b, hy_span line) {
    size_t number = b->answered + 1;
    bool is_score;
    line = hy_span_trim(line);
    HY_FAIL_IF(number > b->sent, HY_ERR_INPUT,
               "the reward program wrote line %zu, \"%s\", but it was sent %zu answers; expected "
               "one line for each answer, in their order, and nothing else on stdout",
               number, show(line).text, b->sent);
    HY_TRY(read_score(line, &b->scores[b->answered], &is_score));
    HY_FAIL_IF(!is_score, HY_ERR_INPUT,
               "the reward program's line %zu of this batch is \"%s\"; expected a finite number, "
               "or an object such as {\"reward\": 0.5}",
               number, show(line).text);
    b->answered++;
    return HY_OK;
}

/* Takes the whole lines in p->output; is_over: also the rest, because no more will come. */
static hy_status take_lines(hy_reward_program *p, batch *b, bool is_over) {
    hy_text *text = &p->output;
    const char *at = hy_text_string(text), *end = at + text->size;
    hy_status status = hy_text_status(text);
    while (status == HY_OK && at < end) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        if (!line_end && !is_over) break;
        if (!line_end) line_end = end;
        status = take_line(b, (hy_span){at, (size_t)(line_end - at)});
        at = line_end < end ? line_end + 1 : end;
    }
    size_t left = (size_t)(end - at);
    if (status == HY_OK && left > LINE_MOST)
        status = hy_fail(HY_ERR_INPUT,
                         "the reward program's line %zu of this batch, \"%s\", has more than %zu "
                         "bytes; expected a number",
                         b->answered + 1, show((hy_span){at, left}).text, LINE_MOST);
    if (text->size > 0) {
        memmove(text->data, at, left);
        text->data[text->size = left] = '\0';
    }
    return status;
}

/* Reads what is there, once. */
static hy_status receive(hy_reward_program *p, batch *b, size_t *got) {
    bool was_open = p->process.output >= 0;
    *got = hy_process_read(&p->process.output, p->chunk, CHUNK);
    hy_text_add_bytes(&p->output, p->chunk, *got);
    return take_lines(p, b, was_open && p->process.output < 0);
}

static size_t receive_errors(hy_reward_program *p) {
    size_t got = hy_process_read(&p->process.errors, p->chunk, CHUNK);
    hy_program_errors_add(&p->errors, &p->observer, p->chunk, got);
    return got;
}

/* ---- a batch --------------------------------------------------------------------------------- */

/* Waits until a pipe is ready, at most for `milliseconds`. */
static void wait_for_pipes(const hy_reward_program *p, bool is_sending, int milliseconds) {
    const hy_process *process = &p->process;
    struct pollfd polled[] = {
        {.fd = is_sending ? process->input : -1, .events = POLLOUT},
        {.fd = process->output, .events = POLLIN},
        {.fd = process->errors, .events = POLLIN},
    };
    poll(polled, sizeof polled / sizeof polled[0], milliseconds);
}

/* Says why the program will not answer any more. */
static hy_status fail_lost(hy_reward_program *p, const batch *b, const char *what) {
    enum { READS_MOST = 64 };
    for (int i = 0; i < READS_MOST && receive_errors(p) > 0; i++) {}
    hy_program_errors_end_line(&p->errors, &p->observer);
    return hy_fail(HY_ERR_IO, "the reward program %s; it gave %zu of %zu answers in %.1f s%s%s%s",
                   what, b->answered, b->count, hy_clock() - b->begin,
                   p->errors.last[0] ? "; its last line on stderr is \"" : "", p->errors.last,
                   p->errors.last[0] ? "\"" : "");
}

static hy_status fail_ended(hy_reward_program *p, const batch *b) {
    hy_process_end end;
    bool has_ended = hy_process_has_ended(&p->process, &end);
    for (double begin = hy_clock(); !has_ended && hy_clock() < begin + DYING_SECONDS;) {
        poll(NULL, 0, 1);
        has_ended = hy_process_has_ended(&p->process, &end);
    }
    return fail_lost(p, b, has_ended ? end.text : "closed its standard output");
}

static hy_status fail_slow(hy_reward_program *p, const batch *b) {
    hy_text what = {0};
    hy_text_addf(&what, "was not ready after %.6g s, the time limit", p->seconds);
    hy_status status = fail_lost(p, b, hy_text_string(&what));
    hy_text_free(&what);
    return status;
}

/* Sends the batch and reads the answers. HY_ERR_IO: the program is lost, and may be started
 * again. */
static hy_status exchange(hy_reward_program *p, batch *b) {
    size_t got;
    b->begin = hy_clock();
    b->sent = b->answered = 0;
    hy_text_clear(&p->input);
    p->written = 0;
    p->errors.last[0] = '\0';
    HY_TRY(receive(p, b, &got)); /* a line that is there already answers nothing */
    while (b->answered < b->count) {
        HY_FAIL_IF(b->stop && atomic_load(b->stop), HY_STOPPED,
                   "stopped while the reward program worked");
        bool has_ended = hy_process_has_ended(&p->process, NULL);
        HY_TRY(send(p, b));
        wait_for_pipes(p, has_more_to_send(p, b), has_ended ? 0 : NAP);
        receive_errors(p);
        HY_TRY(receive(p, b, &got));
        bool is_complete = b->answered == b->count;
        if (!is_complete && (p->process.output < 0 || (has_ended && got == 0)))
            return fail_ended(p, b);
        if (!is_complete && hy_clock() > b->begin + p->seconds) return fail_slow(p, b);
    }
    HY_TRY(receive(p, b, &got));
    receive_errors(p);
    hy_span rest = {hy_text_string(&p->output), p->output.size};
    return hy_span_trim(rest).size > 0 ? take_line(b, rest) : HY_OK;
}

static void stop_program(hy_reward_program *p) {
    hy_process_stop(&p->process);
    hy_program_errors_end_line(&p->errors, &p->observer);
    hy_text_clear(&p->output);
}

static hy_status try_once(hy_reward_program *p, batch *b) {
    if (p->process.pid == 0) HY_TRY(hy_process_start(p->command, &p->process));
    hy_status status = exchange(p, b);
    if (status != HY_OK) stop_program(p);
    return status;
}

hy_status hy_reward_program_score(hy_reward_program *p, const hy_reward_item *items, size_t count,
                                  const atomic_bool *stop, double *scores) {
    batch b = {.items = items, .count = count, .scores = scores, .stop = stop};
    if (count == 0) return HY_OK;
    hy_status status = try_once(p, &b);
    if (status == HY_ERR_IO) {
        hy_say_to(&p->observer, HY_WARNING, "%s; it is started again and gets the same answers",
                  hy_error_message());
        status = try_once(p, &b);
        if (status == HY_ERR_IO) hy_fail_hint(status, "it failed twice");
    }
    hy_program_errors_end_batch(&p->errors, &p->observer);
    return status;
}

/* ---- opening and closing --------------------------------------------------------------------- */

hy_status hy_reward_program_open(const char *command, double seconds, const hy_observer *observer,
                                 hy_reward_program **out) {
    hy_reward_program *p = *out = calloc(1, sizeof *p);
    HY_FAIL_IF(!p, HY_ERR_MEMORY, "not enough memory for a reward program");
    p->process = HY_NO_PROCESS;
    p->command = strdup(command);
    p->seconds = seconds;
    if (observer) p->observer = *observer;
    p->chunk = malloc(CHUNK);
    hy_status status = p->command && p->chunk
                           ? hy_process_start(command, &p->process)
                           : hy_fail(HY_ERR_MEMORY, "not enough memory for a reward program");
    if (status == HY_OK) return HY_OK;
    hy_reward_program_close(p);
    *out = NULL;
    return status;
}

/* Lets the program end by itself; it may still write, which nobody needs. */
static void wait_for_end(hy_reward_program *p) {
    double deadline = hy_clock() + CLOSING_SECONDS;
    hy_process_close_input(&p->process);
    while (!hy_process_has_ended(&p->process, NULL) && hy_clock() < deadline) {
        wait_for_pipes(p, false, CLOSING_NAP);
        hy_process_read(&p->process.output, p->chunk, CHUNK);
        receive_errors(p);
    }
    receive_errors(p);
}

void hy_reward_program_close(hy_reward_program *p) {
    if (!p) return;
    if (p->process.pid) wait_for_end(p);
    stop_program(p);
    hy_program_errors_end_batch(&p->errors, &p->observer);
    hy_text_free(&p->errors.line);
    hy_text_free(&p->input);
    hy_text_free(&p->output);
    free(p->command);
    free(p->chunk);
    free(p);
}
