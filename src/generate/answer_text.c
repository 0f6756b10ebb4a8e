/* answer_text.c: text of tokens, whole characters, stop texts. See answer_text.h. */
#include "generate/answer_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"

#define KNOWN_MOST 64 /* tokens that are kept although they are not needed */

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Ids without a text: the model may have more than its tokenizer. */
static bool has_text(const hy_codec *codec, int32_t token) { return token < codec->vocab; }

hy_status hy_answer_text_init(hy_answer_text *t, const hy_codec *codec, const hy_task *task) {
    const int32_t *last = &task->prompt.data[task->prompt.count - 1];
    *t = (hy_answer_text){.codec = codec, .task = task};
    if (task->wants_logprobs) t->tokens.top_count = task->top_logprobs;
    if (!has_text(codec, *last)) return HY_OK;
    HY_TRY(hy_ids_append(&t->known, last, 1));
    t->window.next = 1;
    return HY_OK;
}

void hy_answer_text_fini(hy_answer_text *t) {
    hy_ids_free(&t->known);
    hy_text_free(&t->text);
    hy_scores_free(&t->tokens);
    free(t->begins);
    *t = (hy_answer_text){0};
}

/* Forgets tokens before the window. */
static void forget_known(hy_answer_text *t) {
    size_t first = t->window.first;
    if (first < KNOWN_MOST) return;
    memmove(t->known.data, t->known.data + first, (t->known.count - first) * sizeof(int32_t));
    t->known.count -= first;
    t->window.next -= first;
    t->window.first = 0;
}

hy_status hy_answer_text_add(hy_answer_text *t, hy_token_score chosen, const hy_token_score *top) {
    HY_TRY(hy_array_reserve(&t->begins, &t->begins_room, t->tokens.count + 1, sizeof *t->begins,
                            "tokens of an answer"));
    t->begins[t->tokens.count] = t->text.size;
    HY_TRY(hy_scores_add(&t->tokens, chosen, top));
    if (!has_text(t->codec, chosen.token)) return HY_OK;
    HY_TRY(hy_ids_append(&t->known, &chosen.token, 1));
    forget_known(t);
    return hy_decode_more(t->codec->tokenizer, &t->known, &t->window, &t->text);
}

/* ---- stop texts ------------------------------------------------------------------------------ */

/* The length of the longest end of `text` that a stop text may go on from. */
static size_t begun_stop(const hy_stop_text *stop, const char *text, size_t size) {
    size_t length = stop->size - 1 < size ? stop->size - 1 : size;
    while (length > 0 && memcmp(text + size - length, stop->text, length) != 0) length--;
    return length;
}

static size_t find_stop(const hy_stop_text *stop, const char *text, size_t size) {
    const char *at = memmem(text, size, stop->text, stop->size);
    return at ? (size_t)(at - text) : size;
}

/* The bytes before a stop text, or before what may become one. */
static size_t before_stop(const hy_answer_text *t, bool is_last, bool *is_stopped) {
    const char *text = hy_text_string(&t->text);
    size_t size = t->text.size, bytes = size, held = 0;
    for (size_t i = 0; i < t->task->stop_count; i++) {
        const hy_stop_text *stop = &t->task->stops[i];
        size_t found = find_stop(stop, text, size), begun = begun_stop(stop, text, size);
        if (found < bytes) bytes = found;
        if (begun > held) held = begun;
    }
    *is_stopped = bytes < size;
    return *is_stopped || is_last ? bytes : size - held;
}

/* ---- what is shown --------------------------------------------------------------------------- */

static size_t count_tokens(const hy_answer_text *t, size_t bytes) {
    size_t count = 0;
    while (count < t->tokens.count && t->begins[count] < bytes) count++;
    /* Tokens without text, which end where the text does. */
    for (size_t end; count < t->tokens.count && t->begins[count] == bytes; count++) {
        end = count + 1 < t->tokens.count ? t->begins[count + 1] : t->text.size;
        if (end != bytes) break;
    }
    return count;
}

hy_ready_text hy_answer_text_shown(const hy_answer_text *t, bool is_last) {
    hy_ready_text shown = {0};
    shown.bytes = before_stop(t, is_last, &shown.is_stopped);
    if (!is_last && !shown.is_stopped) {
        shown.bytes -= hy_incomplete_bytes(hy_text_string(&t->text), shown.bytes);
    }
    shown.tokens = count_tokens(t, shown.bytes);
    return shown;
}

void hy_answer_text_drop(hy_answer_text *t, const hy_ready_text *shown) {
    size_t left = t->tokens.count - shown->tokens;
    if (shown->bytes > 0) {
        t->text.size -= shown->bytes;
        memmove(t->text.data, t->text.data + shown->bytes, t->text.size + 1);
    }
    for (size_t i = 0; i < left; i++) {
        size_t begin = t->begins[shown->tokens + i];
        t->begins[i] = begin > shown->bytes ? begin - shown->bytes : 0;
    }
    hy_scores_drop(&t->tokens, shown->tokens);
}
