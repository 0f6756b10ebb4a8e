/* shared_prompt.c: pairs of answers that hold the whole conversation. See conversation.h.
 *
 * Without a prompt beside them, what they begin with alike is the prompt. So an answer that begins
 * with the same words or turns as the other has its beginning in the prompt. A prompt beside them
 * is dropped from the answers that repeat it. */
#include <string.h>

#include "base/error.h"
#include "data/conversation.h"

/* ---- turns ----------------------------------------------------------------------------------- */

static bool is_same_value(const hy_json_node *a, const hy_json_node *b);

/* Whether two lists or objects have the same members. */
static bool has_same_members(const hy_json_node *a, const hy_json_node *b) {
    const hy_json_node *n = hy_json_first(b);
    bool is_object = hy_json_type_of(a) == HY_JSON_OBJECT;
    if (hy_json_size(a) != hy_json_size(b)) return false;
    for (a = hy_json_first(a); a; a = hy_json_next(a), n = hy_json_next(n)) {
        const hy_json_node *other = is_object ? hy_json_get(b, hy_json_key(a)) : n;
        /* a value may be missing, because it has another key in this object */
        if (!other || !is_same_value(a, other)) return false;
    }
    return true;
}

static bool is_same_value(const hy_json_node *a, const hy_json_node *b) {
    const char *text[2];
    size_t size[2];
    double number[2];
    bool truth[2];
    if (hy_json_type_of(a) != hy_json_type_of(b)) return false;
    if (hy_json_as_string(a, &text[0], &size[0]) && hy_json_as_string(b, &text[1], &size[1]))
        return size[0] == size[1] && memcmp(text[0], text[1], size[0]) == 0;
    if (hy_json_as_double(a, &number[0]) && hy_json_as_double(b, &number[1]))
        return number[0] == number[1];
    if (hy_json_as_bool(a, &truth[0]) && hy_json_as_bool(b, &truth[1])) return truth[0] == truth[1];
    return has_same_members(a, b);
}

/* Whether two turns say the same. Other keys, such as ids and times, may differ. */
static bool is_same_turn(const hy_turn *a, const hy_turn *b) {
    static const char *const keys[] = {"tool_calls", "reasoning_content", "thinking", "reasoning"};
    bool is_same =
        a->role == b->role && a->size == b->size && memcmp(a->text, b->text, a->size) == 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && is_same; i++)
        is_same = is_same_value(hy_json_get(a->message, keys[i]), hy_json_get(b->message, keys[i]));
    return is_same;
}

hy_status hy_pair_share_turns(hy_conversation *c) {
    hy_turn *chosen = c->turns + c->choices, *rejected = c->turns + c->rejected;
    size_t chosen_count = c->rejected - c->choices, rejected_count = c->count - c->rejected;
    size_t most = (chosen_count < rejected_count ? chosen_count : rejected_count) - 1, same = 0;
    while (same < most && is_same_turn(&chosen[same], &rejected[same])) same++;
    HY_FAIL_IF(same == 0, HY_ERR_INPUT,
               "there is no \"prompt\", and \"chosen\" and \"rejected\" begin with different "
               "messages");
    memmove(rejected, rejected + same, (rejected_count - same) * sizeof *rejected);
    c->choices += same;
    c->count -= same;
    return HY_OK;
}

/* Drops the first turns of the answer in turns [begin, end) if they are turns [first, choices), the
 * prompt. An answer keeps its last turn. Returns how many were dropped. */
static size_t drop_repeated(hy_conversation *c, size_t begin, size_t end, size_t first) {
    size_t size = c->choices - first, same = 0;
    if (end - begin <= size) return 0;
    while (same < size && is_same_turn(&c->turns[first + same], &c->turns[begin + same])) same++;
    if (same < size) return 0;
    memmove(c->turns + begin, c->turns + begin + size,
            (c->count - begin - size) * sizeof *c->turns);
    c->count -= size;
    return size;
}

/* The answer may lack the system turn of the prompt. */
static size_t drop_prompt(hy_conversation *c, size_t begin, size_t end) {
    size_t dropped = drop_repeated(c, begin, end, 0);
    for (size_t i = 0; dropped == 0 && i + 1 < c->choices; i++) {
        if (c->turns[i].role != HY_ROLE_SYSTEM) break;
        dropped = drop_repeated(c, begin, end, i + 1);
    }
    return dropped;
}

void hy_pair_drop_prompt(hy_conversation *c) {
    c->rejected -= drop_prompt(c, c->choices, c->rejected);
    (void)drop_prompt(c, c->rejected, c->count);
}

/* ---- text ------------------------------------------------------------------------------------ */

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static void drop_beginning(hy_turn *turn, size_t size) {
    turn->text += size;
    turn->size -= size;
}

/* A word is not divided, and the space before it belongs to it. */
hy_status hy_pair_share_text(hy_conversation *c) {
    hy_turn *chosen = c->turns + c->choices, *rejected = c->turns + c->rejected;
    const char *text = chosen->text;
    size_t most = chosen->size < rejected->size ? chosen->size : rejected->size;
    size_t size = 0, blanks = 0;
    while (size < most && text[size] == rejected->text[size]) size++;
    while (size > 0 && !is_blank(text[size - 1])) size--;
    if (size > 0 && text[size - 1] == ' ') size--;
    while (blanks < size && is_blank(text[blanks])) blanks++;
    HY_FAIL_IF(blanks == size, HY_ERR_INPUT,
               "there is no \"prompt\", and \"chosen\" and \"rejected\" do not begin with the same "
               "words (--columns prompt=NAME maps another key)");
    c->turns[c->choices - 1] = (hy_turn){.role = HY_ROLE_USER, .text = text, .size = size};
    drop_beginning(chosen, size);
    drop_beginning(rejected, size);
    return HY_OK;
}
