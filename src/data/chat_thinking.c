/* chat_thinking.c: what an answer was thought from, apart from the answer. See chat_template.h.
 *
 * Data has it under a key of its own, or in the answer's text between <think> and </think>, as a model
 * writes it. The border is the last </think>: what stands before the first is the thought, and line ends
 * around both are no part of them. */
#include <string.h>

#include "data/chat_template.h"

#define OPEN "<think>"
#define CLOSE "</think>"

/* The last place of `mark` in the text, NULL: none. */
static const char *find_last(const char *text, size_t size, const char *mark) {
    size_t length = strlen(mark);
    const char *found = NULL, *at = text, *end = text + size;
    while (at && (at = memmem(at, (size_t)(end - at), mark, length)) != NULL) {
        found = at;
        at += length;
    }
    return found;
}

hy_slice hy_slice_from_text(hy_slice s) {
    while (s.size > 0 && s.text[0] == '\n') s.text++, s.size--;
    return s;
}

static hy_slice without_last_lines(hy_slice s) {
    while (s.size > 0 && s.text[s.size - 1] == '\n') s.size--;
    return s;
}

void hy_turn_split_thought(const hy_turn *turn, hy_slice *thought, hy_slice *answer) {
    *answer = (hy_slice){turn->text, turn->size};
    *thought = (hy_slice){turn->thought, turn->thought_size};
    if (turn->thought) {
        *thought = hy_slice_from_text(without_last_lines(*thought));
        return;
    }
    const char *first = turn->size ? memmem(turn->text, turn->size, CLOSE, strlen(CLOSE)) : NULL;
    if (!first) return;
    const char *behind = find_last(turn->text, turn->size, CLOSE) + strlen(CLOSE);
    hy_slice s = without_last_lines((hy_slice){turn->text, (size_t)(first - turn->text)});
    const char *open = find_last(s.text, s.size, OPEN);
    if (open) {
        s.size -= (size_t)(open - s.text) + strlen(OPEN);
        s.text = open + strlen(OPEN);
    }
    *thought = hy_slice_from_text(s);
    *answer = hy_slice_from_text((hy_slice){behind, turn->size - (size_t)(behind - turn->text)});
}
