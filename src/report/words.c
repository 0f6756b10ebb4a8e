/* words.c: the strings of a run, held in one list. See run.h. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "report/run.h"

#define SHARED_MAX 64 /* reasons come from a short table; more of them are somebody else's text */

const char *hy_words_keep(hy_run_words *words, const char *text) {
    if (hy_array_reserve(&words->word, &words->capacity, words->count + 1, sizeof *words->word,
                         "words of a run") != HY_OK) {
        return NULL;
    }
    char *copy = strdup(text);
    if (copy) words->word[words->count++] = copy;
    return copy;
}

const char *hy_words_share(hy_run_words *words, const char *text) {
    for (size_t i = 0; i < words->count; i++) {
        if (strcmp(words->word[i], text) == 0) return words->word[i];
    }
    return words->count < SHARED_MAX ? hy_words_keep(words, text) : "";
}

void hy_words_free(hy_run_words *words) {
    for (size_t i = 0; i < words->count; i++) free(words->word[i]);
    free(words->word);
    *words = (hy_run_words){0};
}
