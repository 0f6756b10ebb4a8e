/* chat_own.c: renders conversations with the template in the model's folder. See chat_template.h.
 *
 * The template produces one text. Every byte of it carries a mark: the number of the turn it came
 * from, or 0 for text of the template itself. The marks decide two things.
 *
 * Special tokens: only those that the template itself writes become tokens. If the text of a turn
 * spells a special token, it stays text. (transformers would make it a token.)
 *
 * Answers: if the template uses {% generation %}, that marks the answers. Otherwise an answer
 * consists of the bytes of its turn, from the first to the last, plus the text of the template that
 * the model has to write itself. Before the turn, that is the text after the generation prompt; the
 * prompt is found by rendering the turns before it with add_generation_prompt. After the turn, it
 * is the text that the template writes whether or not other turns follow, up to the special token
 * that ends the turn. A token that opens a turn never ends one: a template may write the header of
 * the next answer after the last turn even if nobody asks for it (Llama 3). Both are compared with
 * the real text of every row, so a template may change other turns (Qwen3 drops earlier thoughts,
 * Mistral moves the system text). If they differ, the answer is only the bytes of the turn. A row
 * is rejected if the template mixes the bytes of several turns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "data/chat_template.h"

#define NO_TURN HY_JINJA_MARKS /* mark of bytes that belong to no turn: tools */
#define MOST_OPENERS 16

typedef struct hy_own_template {
    hy_jinja *jinja;
    char *text;                    /* its source */
    hy_own_tokens tokens;          /* owned by the main template of the folder */
    const hy_tokenizer *tokenizer; /* or NULL */
    bool needs_parts, takes_parts; /* content as a list of parts: is required; is possible */
    bool takes_system;             /* a system turn before the first question */
    bool prints_none;              /* it writes the content null as the word None */
    int32_t end;                   /* the token that ends an answer; -1: none */
    int32_t openers[MOST_OPENERS]; /* special tokens that open a turn */
    int opener_count;
    /* The second template of the folder, for conversations with tools; NULL: there is none. It
     * shares the tokens. If it cannot be rendered, its jinja is NULL and `reason` says why. */
    struct hy_own_template *with_tools;
    char reason[512];
} own_template;

/* ---- the values a template receives ---------------------------------------------------------- */

typedef struct rendering {
    const hy_chat_template *chat;
    const hy_conversation *conversation;
    size_t count; /* number of turns to render */
    bool asks;
} rendering;

static hy_jinja_value content_of(hy_jinja_run *run, const own_template *own, const hy_turn *turn,
                                 unsigned mark) {
    const hy_json_node *node = hy_json_get(turn->message, "content");
    if (turn->has_parts && own->takes_parts && node) return hy_jinja_json(run, node, mark);
    bool is_null = turn->message && hy_json_type_of(node) == HY_JSON_NULL;
    if (is_null && !own->prints_none) return hy_jinja_none();
    hy_jinja_value text = hy_jinja_text(run, turn->text, turn->size, mark);
    if (!own->needs_parts) return text;
    hy_jinja_value list = hy_jinja_list_new(run), part = hy_jinja_dict_new(run);
    hy_jinja_put(run, part, "type", hy_jinja_text(run, "text", 4, 0));
    hy_jinja_put(run, part, "text", text);
    hy_jinja_append(run, list, part);
    return list;
}

/* Data sets use several names for the reasoning of a turn, and templates read one of them. */
static const char *const thoughts[] = {"reasoning_content", "thinking", "reasoning"};
enum { THOUGHTS = sizeof thoughts / sizeof thoughts[0] };

static const hy_json_node *thought_of(const hy_json_node *message) {
    const hy_json_node *found = NULL;
    for (size_t i = 0; i < THOUGHTS && hy_json_type_of(found) == HY_JSON_NULL; i++) {
        found = hy_json_get(message, thoughts[i]);
    }
    return hy_json_type_of(found) == HY_JSON_NULL ? NULL : found;
}

static hy_jinja_value message_of(hy_jinja_run *run, const own_template *own, const hy_turn *turn,
                                 unsigned mark) {
    hy_jinja_value out = hy_jinja_dict_new(run), content = content_of(run, own, turn, mark);
    const char *role = turn->name ? turn->name : hy_role_name(turn->role);
    hy_jinja_value role_text = hy_jinja_text(run, role, strlen(role), 0);
    const hy_json_node *thought = thought_of(turn->message);
    if (thought) hy_jinja_put(run, out, "thinking", hy_jinja_json(run, thought, mark));
    for (const hy_json_node *n = hy_json_first(turn->message); n; n = hy_json_next(n)) {
        const char *key = hy_json_key(n);
        hy_jinja_put(run, out, key,
                     strcmp(key, "role") == 0      ? role_text
                     : strcmp(key, "content") == 0 ? content
                                                   : hy_jinja_json(run, n, mark));
    }
    if (!turn->message) {
        hy_jinja_put(run, out, "role", role_text);
        hy_jinja_put(run, out, "content", content);
    }
    if (thought) hy_jinja_put(run, out, "reasoning_content", hy_jinja_json(run, thought, mark));
    return out;
}

/* Defines bos_token and the other special tokens. Each is a string or {"content": string}. */
static void define_tokens(hy_jinja_run *run, const hy_json *file) {
    const hy_json_node *root = file ? hy_json_root(file) : NULL;
    for (const hy_json_node *n = hy_json_first(root); n; n = hy_json_next(n)) {
        const char *text;
        size_t size;
        bool is_text = hy_json_as_string(n, &text, &size) ||
                       hy_json_as_string(hy_json_get(n, "content"), &text, &size);
        if (is_text && hy_has_ending(hy_json_key(n), "_token")) {
            hy_jinja_define(run, hy_json_key(n), hy_jinja_text(run, text, size, 0));
        }
    }
}

static void fill(hy_jinja_run *run, void *user) {
    const rendering *r = user;
    const own_template *own = r->chat->own;
    const hy_turn *turns = r->conversation->turns;
    const hy_json_node *tools = r->conversation->tools;
    hy_jinja_value messages = hy_jinja_list_new(run);
    for (size_t i = 0; i < r->count; i++) {
        hy_jinja_value message = message_of(run, own, &turns[i], (unsigned)i + 1);
        if (i + 1 < r->count && turns[i + 1].role == HY_ROLE_INPUT) {
            /* the input follows on its own line */
            hy_jinja_value text = hy_jinja_text(run, turns[i].text, turns[i].size, (unsigned)i + 1);
            i++;
            text = hy_jinja_joined(run, text, hy_jinja_text(run, "\n", 1, (unsigned)i + 1));
            hy_jinja_value input =
                hy_jinja_text(run, turns[i].text, turns[i].size, (unsigned)i + 1);
            hy_jinja_put(run, message, "content", hy_jinja_joined(run, text, input));
        }
        hy_jinja_append(run, messages, message);
    }
    define_tokens(run, own->tokens.config);
    define_tokens(run, own->tokens.map);
    hy_jinja_define(run, "messages", messages);
    hy_jinja_define(run, "tools", tools ? hy_jinja_json(run, tools, NO_TURN) : hy_jinja_none());
    hy_jinja_define(run, "documents", hy_jinja_none());
    hy_jinja_define(run, "add_generation_prompt", hy_jinja_bool(r->asks));
    if (!r->chat->skips_thinking) return;
    hy_jinja_define(run, "enable_thinking", hy_jinja_bool(false));
    hy_jinja_define(run, "thinking", hy_jinja_bool(false));
}

static hy_status render(const hy_chat_template *chat, const hy_conversation *conversation,
                        size_t count, bool asks, hy_jinja_output *out) {
    rendering r = {chat, conversation, count, asks};
    return hy_jinja_render(chat->own->jinja, fill, &r, &chat->now, out);
}

/* ---- locating answers ------------------------------------------------------------------------ */

static unsigned mark_of(const hy_jinja_output *text, size_t at) {
    return text->marks[at] & HY_JINJA_MARKS;
}

/* The position after the last byte before `end` that belongs to a turn. */
static size_t end_of_turns(const hy_jinja_output *text, size_t end) {
    while (end > 0 && mark_of(text, end - 1) == 0) end--;
    return end;
}

static size_t shared(const char *a, size_t a_size, const char *b, size_t b_size) {
    size_t size = 0;
    while (size < a_size && size < b_size && a[size] == b[size]) size++;
    return size;
}

/* Whether the template's text [from, size) contains special tokens. */
static hy_status has_specials(const own_template *own, const char *text, size_t from, size_t size,
                              bool *out) {
    hy_specials found = {0};
    *out = false;
    if (!own->tokenizer) return HY_OK;
    hy_status status = hy_tokenizer_find_specials(own->tokenizer, text, size, &found);
    for (size_t i = 0; i < found.count; i++) *out |= found.items[i].at + found.items[i].size > from;
    free(found.items);
    return status;
}

/* Finds where the answer begins if its own bytes begin at `at`: after the generation prompt, if the
 * prompt can be identified. */
static hy_status find_begin(const hy_chat_template *chat, const hy_conversation *c, size_t turn,
                            size_t at, hy_rendered *r, size_t *out) {
    const hy_jinja_output *whole = &r->whole, *prompt = &r->part;
    *out = at;
    hy_status status = render(chat, c, turn, true, &r->part);
    if (status == HY_ERR_INPUT) return HY_OK; /* the template cannot render this prompt */
    HY_TRY(status);
    size_t size = prompt->text.size, before = end_of_turns(whole, at);
    size_t asked = end_of_turns(prompt, size); /* the text after this is the generation prompt */
    bool is_after_same = before == 0 || asked == 0
                             ? before == asked
                             : mark_of(whole, before - 1) == mark_of(prompt, asked - 1);
    if (!is_after_same) return HY_OK;
    const char *asks = hy_text_string(&prompt->text) + asked;
    size_t same = shared(asks, size - asked, hy_text_string(&whole->text) + before, at - before);
    /* If prompt and text differ at some point, the head of the turn must be before that point.
     * After the head, a prompt may continue (with <think>) although this answer does not. */
    bool has_head = same == 0;
    if (same < at - before && same < size - asked && same > 0) {
        HY_TRY(has_specials(chat->own, asks, same, size - asked, &has_head));
    }
    if (!has_head || same == size - asked) *out = before + same;
    return HY_OK;
}

static bool opens_turn(const own_template *own, int32_t id) {
    for (int i = 0; i < own->opener_count; i++) {
        if (own->openers[i] == id) return true;
    }
    return false;
}

/* Finds where the answer ends if its own bytes end at `at`: after the special tokens that end
 * it. */
static hy_status find_end(const hy_chat_template *chat, const hy_conversation *c, size_t turn,
                          size_t at, hy_rendered *r, size_t *out) {
    const hy_jinja_output *whole = &r->whole, *here = whole;
    size_t stop = at;
    *out = at;
    while (stop < whole->text.size && mark_of(whole, stop) == 0) stop++;
    size_t from = at;
    if (turn + 1 < c->count) { /* render the text without the turns that follow */
        here = &r->part;
        hy_status status = render(chat, c, turn + 1, false, &r->part);
        if (status == HY_ERR_INPUT) return HY_OK;
        HY_TRY(status);
        from = end_of_turns(here, here->text.size);
        if (from == 0 || mark_of(here, from - 1) != turn + 1) return HY_OK;
    }
    size_t same = shared(hy_text_string(&here->text) + from, here->text.size - from,
                         hy_text_string(&whole->text) + at, stop - at);
    for (size_t i = 0; i < r->specials.count; i++) {
        const hy_special *s = &r->specials.items[i];
        if (s->at < at) continue;
        /* the first token, and those directly after it */
        bool follows = *out == at || s->at == *out;
        if (!follows || s->at + s->size > at + same || opens_turn(chat->own, s->id)) break;
        *out = s->at + s->size;
    }
    return HY_OK;
}

/* Finds the first and the last byte of a turn, and checks that no other turn is between them. */
static hy_status find_turn(const hy_jinja_output *text, size_t turn, size_t *begin, size_t *end) {
    *begin = *end = 0;
    for (size_t i = 0; i < text->text.size; i++) {
        if (mark_of(text, i) != turn + 1) continue;
        if (*end == 0) *begin = i;
        *end = i + 1;
    }
    for (size_t i = *begin; i < *end; i++) {
        HY_FAIL_IF(mark_of(text, i) != 0 && mark_of(text, i) != turn + 1, HY_ERR_INPUT,
                   "the chat template mixes turn %zu with other turns", turn + 1);
    }
    return HY_OK;
}

/* Removes the marks of {% generation %} from a turn that does not count. */
static hy_status unmark(const hy_jinja_output *text, size_t turn, uint8_t *answers) {
    size_t begin, end;
    HY_TRY(find_turn(text, turn, &begin, &end));
    while (begin > 0 && answers[begin - 1] && mark_of(text, begin - 1) == 0) begin--;
    while (end < text->text.size && answers[end] && mark_of(text, end) == 0) end++;
    memset(answers + begin, 0, end - begin);
    return HY_OK;
}

static hy_status mark_answers(const hy_chat_template *chat, const hy_conversation *c,
                              hy_rendered *r) {
    size_t size = r->whole.text.size, done = 0;
    if (hy_jinja_has_generation(chat->own->jinja)) {
        for (size_t i = 0; i < size; i++) {
            r->answers[i] = (r->whole.marks[i] & HY_JINJA_GENERATED) != 0;
        }
        for (size_t i = 0; i < c->count; i++) {
            if (c->turns[i].is_masked) HY_TRY(unmark(&r->whole, i, r->answers));
        }
        return HY_OK;
    }
    for (size_t i = 0; i < c->count; i++) {
        size_t first, last, begin, end;
        if (c->turns[i].role != HY_ROLE_ASSISTANT) continue;
        HY_TRY(find_turn(&r->whole, i, &first, &last));
        if (first == last) continue; /* an empty turn, or one that the template omits */
        HY_TRY(find_begin(chat, c, i, first, r, &begin));
        HY_TRY(find_end(chat, c, i, last, r, &end));
        HY_FAIL_IF(begin < done, HY_ERR_INPUT,
                   "the chat template writes turn %zu before the answer that precedes it", i + 1);
        if (!c->turns[i].is_masked) memset(r->answers + begin, 1, end - begin);
        done = end;
    }
    return HY_OK;
}

/* ---- text to pieces -------------------------------------------------------------------------- */

/* Adds the text [begin, end) as pieces, each an answer or not. */
static void add_text(hy_rendered *r, size_t begin, size_t end) {
    while (begin < end) {
        size_t to = begin + 1;
        while (to < end && r->answers[to] == r->answers[begin]) to++;
        hy_rendered_add_text(r, hy_text_string(&r->whole.text) + begin, to - begin,
                             r->answers[begin]);
        begin = to;
    }
}

/* Finds the special tokens that the template itself wrote. Those in the text of a turn are
 * dropped. */
static hy_status find_written(const own_template *own, hy_rendered *r) {
    size_t kept = 0;
    r->specials.count = 0;
    if (!own->tokenizer) return HY_OK;
    HY_TRY(hy_tokenizer_find_specials(own->tokenizer, hy_text_string(&r->whole.text),
                                      r->whole.text.size, &r->specials));
    for (size_t i = 0; i < r->specials.count; i++) {
        const hy_special *s = &r->specials.items[i];
        bool is_written = true;
        for (size_t k = 0; k < s->size; k++) is_written &= mark_of(&r->whole, s->at + k) == 0;
        if (is_written) r->specials.items[kept++] = *s;
    }
    r->specials.count = kept;
    return HY_OK;
}

static hy_status render_all(const hy_chat_template *chat, const hy_conversation *c, bool asks,
                            hy_rendered *r) {
    HY_TRY(render(chat, c, c->count, asks, &r->whole));
    size_t size = r->whole.text.size, from = 0;
    HY_TRY(find_written(chat->own, r));
    HY_TRY(hy_array_reserve(&r->answers, &r->answers_room, size + 1, 1, "a chat"));
    memset(r->answers, 0, size + 1);
    if (!asks && !chat->ignores_answers) HY_TRY(mark_answers(chat, c, r));
    for (size_t i = 0; i < r->specials.count; i++) {
        const hy_special *s = &r->specials.items[i];
        if (s->begin > from) add_text(r, from, s->begin);
        hy_rendered_add_token(r, s->id, r->answers[s->at]);
        from = s->end;
    }
    add_text(r, from, size);
    HY_FAIL_IF(r->has_failed, HY_ERR_MEMORY, "not enough memory for a conversation");
    return hy_text_status(&r->text);
}

hy_status hy_own_render(const hy_chat_template *chat, const hy_conversation *conversation,
                        bool asks_for_answer, hy_rendered *out) {
    const own_template *other = conversation->tools ? chat->own->with_tools : NULL;
    if (!other) return render_all(chat, conversation, asks_for_answer, out);
    HY_FAIL_IF(!other->jinja, HY_ERR_INPUT, "the chat template for tools cannot be rendered: %s",
               other->reason);
    hy_chat_template chosen = *chat;
    chosen.own = chat->own->with_tools;
    return render_all(&chosen, conversation, asks_for_answer, out);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Whether the template writes the text of a question, passed this way, and nothing else of it. */
static hy_status writes_text(hy_chat_template *chat, bool in_parts, bool *out) {
    static const char word[] = "question";
    hy_turn turn = {.role = HY_ROLE_USER, .text = word, .size = sizeof word - 1};
    hy_conversation c = {.turns = &turn, .count = 1};
    hy_jinja_output text = {0};
    hy_text found = {0};
    chat->own->needs_parts = in_parts;
    hy_status status = render(chat, &c, 1, false, &text);
    for (size_t i = 0; status == HY_OK && i < text.text.size; i++) {
        if (mark_of(&text, i)) hy_text_add_bytes(&found, text.text.data + i, 1);
    }
    /* A template that prints the list itself shows the keys of the parts. */
    *out = status == HY_OK && strcmp(hy_text_string(&found), word) == 0 &&
           !strstr(hy_text_string(&text.text), "'type'");
    if (status == HY_OK) status = hy_text_status(&found);
    hy_text_free(&found);
    hy_jinja_output_free(&text);
    chat->own->needs_parts = false;
    return status == HY_ERR_INPUT ? HY_OK : status;
}

/* Finds out how the template expects content: as a string or as a list of parts. */
static hy_status find_parts(hy_chat_template *chat) {
    bool takes_text = true, takes_parts = false;
    HY_TRY(writes_text(chat, false, &takes_text));
    HY_TRY(writes_text(chat, true, &takes_parts));
    chat->own->takes_parts = takes_parts;
    chat->own->needs_parts = takes_parts && !takes_text;
    return HY_OK;
}

/* Finds out whether the template writes a system turn. */
static hy_status find_system(hy_chat_template *chat) {
    hy_turn turns[] = {{.role = HY_ROLE_SYSTEM, .text = "system-text", .size = 11},
                       {.role = HY_ROLE_USER, .text = "question", .size = 8}};
    hy_conversation c = {.turns = turns, .count = 2};
    hy_jinja_output out = {0};
    hy_status status = render(chat, &c, 2, false, &out);
    chat->own->takes_system =
        status == HY_OK && strstr(hy_text_string(&out.text), "system-text") != NULL;
    hy_jinja_output_free(&out);
    return status == HY_ERR_INPUT ? HY_OK : status;
}

bool hy_chat_template_has_system(const hy_chat_template *chat) {
    return chat->kind == HY_CHAT_OWN ? chat->own->takes_system : !hy_chat_kind_is_plain(chat->kind);
}

/* Finds out whether the template prints a null content, as Python prints it. Such a turn then has
 * empty content, which is what the data means. */
static hy_status find_none(hy_chat_template *chat) {
    static const char text[] =
        "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"callabcde\", "
        "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {}}}]}";
    hy_json *message;
    HY_TRY(hy_json_parse(text, sizeof text - 1, "a message", &message));
    hy_turn turns[] = {{.role = HY_ROLE_USER, .text = "question", .size = 8},
                       {.role = HY_ROLE_ASSISTANT, .text = "", .message = hy_json_root(message)}};
    hy_conversation c = {.turns = turns, .count = 2};
    hy_jinja_output out = {0};
    hy_status status = render(chat, &c, 2, false, &out);
    bool is_refused = status == HY_ERR_INPUT;
    chat->own->prints_none = is_refused || strstr(hy_text_string(&out.text), "None");
    hy_jinja_output_free(&out);
    hy_json_free(message);
    return is_refused ? HY_OK : status;
}

/* Whether one of the special tokens between these bytes is `id`. */
static bool has_between(const hy_specials *specials, size_t begin, size_t end, int32_t id) {
    for (size_t i = 0; i < specials->count; i++) {
        const hy_special *s = &specials->items[i];
        if (s->id == id && s->at >= begin && s->at < end) return true;
    }
    return false;
}

/* Keeps the tokens that open turns, given a rendered question, its answer and another question:
 * those before the first question, and those that are written before the answer but not after it.
 * The first token after the answer ends it, even if the same token also opens turns. */
static hy_status keep_openers(own_template *own, int32_t eos, const hy_rendered *r) {
    size_t begin[3], end[3];
    int32_t first = -1;
    for (size_t i = 0; i < 3; i++) HY_TRY(find_turn(&r->whole, i, &begin[i], &end[i]));
    if (end[0] == 0 || begin[1] < end[0] || begin[2] < end[1]) return HY_OK;
    for (size_t i = 0; i < r->specials.count; i++) {
        const hy_special *s = &r->specials.items[i];
        if (first < 0 && s->at >= end[1] && s->at < begin[2]) first = s->id;
    }
    for (size_t i = 0; i < r->specials.count && own->opener_count < MOST_OPENERS; i++) {
        const hy_special *s = &r->specials.items[i];
        bool is_head = s->at >= end[0] && s->at < begin[1] &&
                       !has_between(&r->specials, end[1], begin[2], s->id);
        bool opens = (s->at < begin[0] || is_head) && s->id != eos && s->id != first;
        if (opens && !opens_turn(own, s->id)) own->openers[own->opener_count++] = s->id;
    }
    return HY_OK;
}

static hy_status find_openers(hy_chat_template *chat) {
    hy_turn turns[] = {{.role = HY_ROLE_USER, .text = "question", .size = 8},
                       {.role = HY_ROLE_ASSISTANT, .text = "answer", .size = 6},
                       {.role = HY_ROLE_USER, .text = "another", .size = 7}};
    hy_conversation c = {.turns = turns, .count = 3};
    hy_rendered r = {0};
    hy_status status = render(chat, &c, 3, false, &r.whole);
    if (status == HY_OK) status = find_written(chat->own, &r);
    if (status == HY_OK) status = keep_openers(chat->own, chat->tokens.eos, &r);
    hy_rendered_free(&r);
    return status == HY_ERR_INPUT ? HY_OK : status;
}

/* Finds the token that ends an answer by rendering one. */
static hy_status find_end_token(hy_chat_template *chat) {
    hy_turn turns[] = {{.role = HY_ROLE_USER, .text = "question", .size = 8},
                       {.role = HY_ROLE_ASSISTANT, .text = "answer", .size = 6}};
    hy_conversation c = {.turns = turns, .count = 2};
    hy_rendered r = {0};
    hy_status status = hy_own_render(chat, &c, false, &r);
    for (size_t i = 0; status == HY_OK && i < r.count; i++) {
        if (r.pieces[i].is_answer && r.pieces[i].token >= 0) chat->own->end = r.pieces[i].token;
    }
    hy_rendered_free(&r);
    return status == HY_ERR_INPUT ? HY_OK : status;
}

void hy_own_tokens_free(hy_own_tokens *tokens) {
    hy_json_free(tokens->config);
    hy_json_free(tokens->map);
    *tokens = (hy_own_tokens){0};
}

/* Parses a template. HY_OK with own->jinja NULL: it cannot be rendered, and `reason` says why. */
static hy_status parse(const char *text, size_t size, const char *name, own_template *own) {
    hy_status status = hy_jinja_parse(text, size, name, &own->jinja);
    if (status != HY_OK && status != HY_ERR_INPUT) return status;
    if (status != HY_OK) snprintf(own->reason, sizeof own->reason, "%.500s", hy_error_message());
    own->text = strndup(text, size);
    return own->text ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory for a chat template");
}

hy_status hy_own_template_open(const char *text, size_t size, hy_own_tokens tokens,
                               const hy_tokenizer *tokenizer, hy_chat_template *out) {
    own_template *own = calloc(1, sizeof *own);
    if (!own) {
        hy_own_tokens_free(&tokens);
        return hy_fail(HY_ERR_MEMORY, "not enough memory for a chat template");
    }
    own->tokens = tokens;
    own->tokenizer = tokenizer;
    own->end = out->tokens.eos;
    hy_status status = parse(text, size, "the chat template", own);
    if (!own->jinja) {
        if (status == HY_OK) out->kind = HY_CHAT_UNKNOWN;
        snprintf(out->reason, sizeof out->reason, "%s", own->reason);
        hy_own_template_close(own);
        return status;
    }
    out->own = own;
    out->kind = HY_CHAT_OWN;
    HY_TRY(find_parts(out));
    HY_TRY(find_system(out));
    HY_TRY(find_none(out));
    HY_TRY(find_openers(out));
    return find_end_token(out);
}

hy_status hy_own_template_add_tools(const char *text, size_t size, hy_chat_template *chat) {
    own_template *own = calloc(1, sizeof *own);
    HY_FAIL_IF(!own, HY_ERR_MEMORY, "not enough memory for a chat template");
    chat->own->with_tools = own;
    HY_TRY(parse(text, size, "the chat template for tools", own));
    if (!own->jinja) return HY_OK;
    own->tokens = chat->own->tokens;
    own->tokenizer = chat->own->tokenizer;
    hy_chat_template other = *chat;
    other.own = own;
    HY_TRY(find_parts(&other));
    HY_TRY(find_none(&other));
    return find_openers(&other);
}

void hy_own_template_close(own_template *own) {
    if (!own) return;
    /* the caller still owns them */
    if (own->with_tools) own->with_tools->tokens = (hy_own_tokens){0};
    hy_own_template_close(own->with_tools);
    hy_jinja_free(own->jinja);
    free(own->text);
    hy_own_tokens_free(&own->tokens);
    free(own);
}

int32_t hy_own_template_end(const own_template *own) { return own->end; }

bool hy_chat_template_reads(const hy_chat_template *chat, const char *key) {
    const own_template *own = chat->kind == HY_CHAT_OWN ? chat->own : NULL;
    const own_template *other = own ? own->with_tools : NULL;
    bool is_thought = false;
    for (size_t i = 0; i < THOUGHTS; i++) is_thought |= strcmp(key, thoughts[i]) == 0;
    for (size_t i = 0; own && is_thought && i < THOUGHTS; i++) {
        if (strstr(own->text, thoughts[i])) return true;
    }
    return own && (strstr(own->text, key) || (other && strstr(other->text, key)));
}
