/* tokenizer_encode.c: converts text to ids.
 *
 * The workspace has a table of words seen before, so most text is encoded as fast as it can be
 * split. A workspace is lent to one call at a time, so threads wait for each other only while
 * borrowing one. */
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

static const char metaspace[] = HY_BLANK;
#define METASPACE_SIZE 3
#define TEXT_MAX ((size_t)INT32_MAX)

void hy_ids_free(hy_ids *ids) {
    free(ids->data);
    *ids = (hy_ids){0};
}

hy_status hy_ids_reserve(hy_ids *ids, size_t more) {
    if (ids->room - ids->count >= more) return HY_OK;
    return hy_array_reserve(&ids->data, &ids->room, ids->count + more, sizeof *ids->data,
                            "token ids");
}

hy_status hy_ids_append(hy_ids *ids, const int32_t *more, size_t count) {
    if (count == 0) return HY_OK;
    HY_TRY(hy_ids_reserve(ids, count));
    memcpy(ids->data + ids->count, more, count * sizeof *more);
    ids->count += count;
    return HY_OK;
}

/* ---- workspaces ------------------------------------------------------------------------------ */

/* NULL: not enough memory. */
static hy_workspace *borrow(const hy_tokenizer *t) {
    pthread_mutex_lock(&t->workspaces->lock);
    hy_workspace *space = t->workspaces->idle;
    if (space) t->workspaces->idle = space->next;
    pthread_mutex_unlock(&t->workspaces->lock);
    if (space) return space;
    space = calloc(1, sizeof *space);
    if (!space) return NULL;
    space->words = calloc(HY_WORD_SLOTS, sizeof *space->words);
    if (space->words) return space;
    free(space);
    return NULL;
}

/* ---- a word ---------------------------------------------------------------------------------- */

typedef struct encode_call {
    const hy_tokenizer *tokenizer;
    hy_workspace *space;
    hy_ids *ids;
    bool without_special;
    size_t spelled_unknown; /* unknown tokens that the text itself spells */
} encode_call;

/* The symbols of a word, and unknown ones that are not written yet. */
typedef struct symbols {
    int32_t *ids;
    size_t count;
    bool has_unknown;
} symbols;

/* Adds the bytes of a character as separate tokens; false if one of them is missing. */
static bool put_bytes(const hy_tokenizer *t, symbols *s, const char *text, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (t->byte_id[(uint8_t)text[i]] < 0) return false;
    }
    for (size_t i = 0; i < size; i++) s->ids[s->count++] = t->byte_id[(uint8_t)text[i]];
    return true;
}

static void symbols_of(const hy_tokenizer *t, const char *word, size_t size, symbols *s) {
    for (size_t i = 0, length; i < size; i += length) {
        uint32_t code;
        length = t->is_byte_level ? 1 : hy_unicode_next(word + i, size - i, &code);
        int32_t id = t->is_byte_level ? t->byte_id[(uint8_t)word[i]]
                                      : hy_vocab_find(&t->vocab, word + i, length);
        if (id >= 0) {
            if (s->has_unknown) s->ids[s->count++] = t->unknown;
            s->has_unknown = false;
            s->ids[s->count++] = id;
        } else if (!t->has_byte_fallback || t->is_byte_level ||
                   !put_bytes(t, s, word + i, length)) {
            /* otherwise unknown characters are dropped */
            if (t->unknown >= 0) {
                if (s->has_unknown && !t->fuses_unknown) s->ids[s->count++] = t->unknown;
                s->has_unknown = true;
            }
        }
    }
    if (s->has_unknown) s->ids[s->count++] = t->unknown;
}

/* The token of the vocabulary that is the whole word; -1: none. */
static int32_t whole_word(const encode_call *call, const char *word, size_t size) {
    const hy_tokenizer *t = call->tokenizer;
    if (!t->is_byte_level) return hy_vocab_find(&t->vocab, word, size);
    hy_text *spelled = &call->space->spelled;
    hy_text_clear(spelled);
    for (size_t i = 0; i < size; i++) {
        char bytes[4];
        int length = hy_utf8_encode(hy_byte_spelling((uint8_t)word[i]), bytes);
        hy_text_add_bytes(spelled, bytes, (size_t)length);
    }
    return hy_vocab_find(&t->vocab, hy_text_string(spelled), spelled->size);
}

static hy_status work_out(const encode_call *call, const char *word, size_t size, symbols *s) {
    const hy_tokenizer *t = call->tokenizer;
    HY_FAIL_IF(size > TEXT_MAX, HY_ERR_INPUT,
               "cannot encode a word of %zu bytes; the limit is 2 GiB", size);
    HY_TRY(hy_ids_reserve(&call->space->symbols, size + 1));
    *s = (symbols){.ids = call->space->symbols.data};
    int32_t id = t->ignores_merges ? whole_word(call, word, size) : -1;
    HY_TRY(hy_text_status(&call->space->spelled));
    if (id >= 0) {
        s->ids[s->count++] = id;
        return HY_OK;
    }
    symbols_of(t, word, size, s);
    return hy_merges_apply(&t->merges, s->ids, &s->count, &call->space->merge_memory);
}

static inline bool is_word(const hy_word *slot, const char *word, size_t size) {
    return slot->size == size && memcmp(slot->key, word, size) == 0;
}

static hy_status take_word(void *context, const char *word, size_t size) {
    const encode_call *call = context;
    symbols s;
    if (size > HY_WORD_KEY) {
        HY_TRY(work_out(call, word, size, &s));
        return hy_ids_append(call->ids, s.ids, s.count);
    }
    /* A word has two possible slots. The first word keeps the first slot, since frequent words come
     * early. */
    size_t place = hy_vocab_hash(word, size) & (HY_WORD_SLOTS - 1);
    hy_word *slot = &call->space->words[place];
    if (!is_word(slot, word, size) && slot->size != 0) slot = &call->space->words[place ^ 1];
    if (is_word(slot, word, size)) {
        HY_TRY(hy_ids_reserve(call->ids, HY_WORD_IDS));
        memcpy(call->ids->data + call->ids->count, slot->ids, sizeof slot->ids);
        call->ids->count += slot->count;
        return HY_OK;
    }
    HY_TRY(work_out(call, word, size, &s));
    if (s.count <= HY_WORD_IDS) {
        slot->size = (uint8_t)size;
        slot->count = (uint8_t)s.count;
        memcpy(slot->key, word, size);
        if (s.count) memcpy(slot->ids, s.ids, s.count * sizeof *s.ids);
    }
    return hy_ids_append(call->ids, s.ids, s.count);
}

/* Cuts before each U+2581 that follows another character. No merge crosses such a position, so the
 * ids stay the same, and the pieces are words that occur again. */
static hy_status take_cut(void *context, const char *text, size_t size) {
    size_t begin = 0;
    for (size_t i = 1; i + METASPACE_SIZE <= size; i++) {
        bool is_cut = text[i] == metaspace[0] && memcmp(text + i, metaspace, METASPACE_SIZE) == 0 &&
                      !(i - begin >= METASPACE_SIZE &&
                        memcmp(text + i - METASPACE_SIZE, metaspace, METASPACE_SIZE) == 0);
        if (!is_cut) continue;
        HY_TRY(take_word(context, text + begin, i - begin));
        begin = i;
    }
    return take_word(context, text + begin, size - begin);
}

/* ---- a text ---------------------------------------------------------------------------------- */

/* Extracts added tokens as spelled in the text. Normalises the text between them and extracts
 * normalised added tokens. Splits the rest into words. */
typedef enum stage { RAW, NORMALIZED, PLAIN } stage;

static hy_status encode_text(encode_call *call, stage at, const char *text, size_t size,
                             bool is_first) {
    const hy_tokenizer *t = call->tokenizer;
    hy_added_match match;
    size_t from = 0;
    if (size == 0) return HY_OK;
    if (at == PLAIN && t->unigram.scores) {
        return hy_unigram_encode(t, call->space, text, size, call->ids);
    }
    if (at == PLAIN) {
        hy_word_taker take = t->cuts_blanks ? take_cut : take_word;
        return hy_steps_split(&t->splitting, call->space, text, size, is_first, take, call);
    }
    const hy_added_set *set = at == RAW ? &t->raw : &t->normalized;
    if (at == NORMALIZED) {
        HY_TRY(hy_steps_normalize(&t->normalizer, call->space, text, size, &text, &size));
        /* the tokens of a Unigram model compete by their scores */
        if (t->unigram.scores) return encode_text(call, PLAIN, text, size, is_first);
    }
    hy_added_search *search = &call->space->search[at];
    search->begin = search->end = 0;
    for (;;) {
        HY_TRY(hy_added_find(set, search, text, size, from, call->without_special, &match));
        size_t end = match.token ? match.begin : size;
        HY_TRY(encode_text(call, at + 1, text + from, end - from, is_first && from == 0));
        if (!match.token) return HY_OK;
        HY_TRY(hy_ids_append(call->ids, &match.token->id, 1));
        call->spelled_unknown += match.token->id == t->unknown;
        from = match.end;
    }
}

hy_status hy_tokenizer_encode(const hy_tokenizer *t, const char *text, size_t size, int flags,
                              hy_ids *out) {
    encode_call call = {.tokenizer = t, .ids = out, .without_special = flags & HY_TOKENS_PLAIN};
    bool has_template = flags & HY_TOKENS_SPECIAL;
    size_t before = out->count;
    call.space = borrow(t);
    if (!call.space) return hy_fail(HY_ERR_MEMORY, "not enough memory to encode text");
    call.space->left = hy_allowance_of(t->name, size);
    hy_status status = HY_OK;
    if (has_template) status = hy_ids_append(out, t->before.data, t->before.count);
    bool is_first = !(flags & HY_TOKENS_INSIDE);
    size_t begin = out->count; /* of the text */
    if (status == HY_OK) status = encode_text(&call, RAW, text, size, is_first);
    size_t end = out->count;
    if (status == HY_OK && has_template) status = hy_ids_append(out, t->after.data, t->after.count);
    pthread_mutex_lock(&t->workspaces->lock);
    call.space->next = t->workspaces->idle;
    t->workspaces->idle = call.space;
    pthread_mutex_unlock(&t->workspaces->lock);
    HY_TRY(status);
    out->unknown.tokens += out->count - before;
    size_t unknown = 0;
    for (size_t i = begin; i < end && t->unknown >= 0; i++) {
        unknown += out->data[i] == t->unknown;
    }
    out->unknown.count += unknown - call.spelled_unknown;
    bool needs_example = unknown > call.spelled_unknown && !out->unknown.example[0];
    return needs_example ? hy_tokenizer_find_unknown(t, text, size, &out->unknown) : HY_OK;
}

hy_status hy_tokenizer_find_specials(const hy_tokenizer *t, const char *text, size_t size,
                                     hy_specials *out) {
    hy_added_search search = {0};
    hy_added_match match = {0};
    hy_status status = HY_OK;
    out->count = 0;
    for (size_t from = 0; status == HY_OK; from = match.end) {
        status = hy_added_find(&t->special, &search, text, size, from, false, &match);
        if (status != HY_OK || !match.token) break;
        status = hy_array_reserve(&out->items, &out->room, out->count + 1, sizeof *out->items,
                                  "special tokens");
        if (status != HY_OK) break;
        size_t at = match.begin; /* start of the spelling, after the blanks that belong to it */
        while (memcmp(text + at, match.token->text, match.token->size) != 0) at++;
        out->items[out->count++] =
            (hy_special){match.begin, match.end, at, match.token->size, match.token->id};
    }
    free(search.longest);
    return status;
}

/* ---- where a long text may be cut without changing its ids ----------------------------------- */

/* Such positions are known for the hand-written splitters: a line that ends with a character other
 * than a blank, followed by an ASCII letter. No word, merge or normalisation crosses it, unless an
 * added token contains a newline or strips blanks. Other tokenizers have no such position. */

static bool is_letter(char c) { return (unsigned)((c | 32) - 'a') < 26; }

static bool leaves_lines_alone(const hy_added_set *set) {
    for (size_t i = 0; i < set->count; i++) {
        const hy_added *token = &set->tokens[i];
        if (token->strips_left || token->strips_right || token->is_single_word) return false;
        if (memchr(token->text, '\n', token->size)) return false;
    }
    return true;
}

static bool has_places(const hy_tokenizer *t) {
    const hy_step *step = &t->splitting.step[0];
    bool splits_lines = t->splitting.count > 0 && step->kind == HY_STEP_SPLIT && step->splitter &&
                        !step->is_inverted && step->behavior == HY_ISOLATED;
    for (int i = 0; i < t->normalizer.count; i++) {
        if (t->normalizer.step[i].kind != HY_STEP_NFC) return false;
    }
    for (int i = 1; i < t->splitting.count; i++) {
        hy_step_kind kind = t->splitting.step[i].kind;
        if (kind != HY_STEP_SPLIT && kind != HY_STEP_DIGITS) return false;
    }
    return splits_lines && leaves_lines_alone(&t->raw) && leaves_lines_alone(&t->normalized);
}

size_t hy_tokenizer_cut(const hy_tokenizer *t, const char *text, size_t size, size_t from) {
    if (!has_places(t)) return size;
    for (size_t i = from < 2 ? 2 : from; i < size; i++) {
        const char *line = memchr(text + i - 1, '\n', size - i);
        if (!line) return size;
        i = (size_t)(line - text) + 1;
        unsigned char before = (unsigned char)line[-1];
        if (before > ' ' && before < 0x7F && is_letter(line[1])) return i;
    }
    return size;
}
