/* tokenizer_parts.h: the parts of a tokenizer in memory; used only by tokenizer_*.c.
 *
 * Stages of encoding: non-normalised added tokens are extracted; the text between them is
 * normalised; normalised added tokens are extracted; a list of splitters splits the rest into
 * words; BPE converts each word to ids. A tokenizer is read-only after opening. Encoding writes
 * only to workspaces, and a workspace is lent to one call at a time. */
#pragma once

#include <pthread.h>
#include <string.h>

#include "base/json.h"
#include "tokenizer/tokenizer.h"

/* ---- tokens by text (tokenizer_merges.c) ----------------------------------------------------- */

typedef struct hy_token_place {
    uint32_t start; /* offset of its text; UINT32_MAX: no token has this id */
    uint32_t size;
} hy_token_place;

typedef struct hy_vocab {
    char *bytes;            /* all texts, each zero-terminated */
    hy_token_place *places; /* (ids) */
    int32_t ids;            /* ids are below this */
    uint64_t *slots;        /* upper half of the hash, and id + 1; 0: empty */
    uint32_t mask;          /* slots - 1 */
    size_t used;            /* bytes used */
} hy_vocab;

static inline uint64_t hy_vocab_mix(uint64_t a, uint64_t b) {
    __uint128_t product = (__uint128_t)(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xD6E8FEB86659FD93u);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* A hash for short texts; its quality affects only the speed. */
static inline uint64_t hy_vocab_hash(const char *text, size_t size) {
    uint64_t h = size, a, b;
    while (size > 16) {
        memcpy(&a, text, 8);
        memcpy(&b, text + 8, 8);
        h = hy_vocab_mix(a ^ h, b);
        text += 16;
        size -= 16;
    }
    a = b = 0;
    if (size >= 8) {
        memcpy(&a, text, 8);
        memcpy(&b, text + size - 8, 8);
    } else if (size >= 4) {
        uint32_t low, high;
        memcpy(&low, text, 4);
        memcpy(&high, text + size - 4, 4);
        a = low;
        b = high;
    } else if (size > 0) {
        a = (uint64_t)(uint8_t)text[0] << 16 | (uint64_t)(uint8_t)text[size / 2] << 8 |
            (uint8_t)text[size - 1];
    }
    return hy_vocab_mix(a ^ h, b);
}

/* Makes room for `ids` ids, `tokens` tokens and `bytes` bytes of text. */
hy_status hy_vocab_init(hy_vocab *vocab, int32_t ids, size_t tokens, size_t bytes);
void hy_vocab_fini(hy_vocab *vocab);
/* Adds a token; false if the text or the id is already in use. */
bool hy_vocab_add(hy_vocab *vocab, const char *text, size_t size, int32_t id);
int32_t hy_vocab_find(const hy_vocab *vocab, const char *text, size_t size); /* -1: none */
/* ---- byte-pair merges (tokenizer_merges.c) --------------------------------------------------- */

#define HY_NO_RANK UINT32_MAX

typedef struct hy_merge {
    int32_t left, right; /* left -1: empty slot */
    uint32_t rank;       /* lower ranks merge first */
    int32_t id;          /* the merged token */
} hy_merge;

typedef struct hy_merges {
    hy_merge *slots;
    uint32_t mask;
} hy_merges;

hy_status hy_merges_init(hy_merges *merges, size_t count);
void hy_merges_fini(hy_merges *merges);
/* If the pair already exists, it gets the new rank. */
void hy_merges_put(hy_merges *merges, int32_t left, int32_t right, uint32_t rank, int32_t id);
static inline uint32_t hy_merges_slot(const hy_merges *merges, int32_t left, int32_t right) {
    return (uint32_t)hy_vocab_mix((uint32_t)left, (uint32_t)right) & merges->mask;
}
/* The merge of a pair; NULL: none. */
static inline const hy_merge *hy_merges_find(const hy_merges *merges, int32_t left, int32_t right) {
    for (uint32_t i = hy_merges_slot(merges, left, right);; i = (i + 1) & merges->mask) {
        const hy_merge *m = &merges->slots[i];
        if (m->left == left && m->right == right) return m;
        if (m->left < 0) return NULL;
    }
}

/* Merges symbols in place until no pair can merge; returns how many remain. `memory` is for long
 * words and is reused between calls. */
typedef struct hy_merge_memory {
    void *data;
    size_t room; /* symbols */
} hy_merge_memory;
hy_status hy_merges_apply(const hy_merges *merges, int32_t *ids, size_t *count,
                          hy_merge_memory *memory);

/* ---- added tokens (tokenizer_added.c) -------------------------------------------------------- */

typedef struct hy_added {
    char *text; /* the text to find; normalised if the token is */
    size_t size;
    int32_t id;
    bool is_special, is_normalized, is_single_word, strips_left, strips_right;
} hy_added;

/* A state of the automaton that reads a text backwards: the last bytes read are the end of some
 * tokens. */
typedef struct hy_added_node {
    uint32_t low, high; /* its children, sorted by byte */
    uint32_t fallback;  /* state of the longest shorter suffix that also matches */
    uint32_t longest;   /* number of the longest token that begins here, plus 1; 0: none */
    uint8_t byte;       /* the byte that leads here */
} hy_added_node;
/* The state after one more byte; 0: no token continues so. */
static inline uint32_t hy_added_follow(const hy_added_node *nodes, uint32_t at, uint8_t byte) {
    uint32_t low = nodes[at].low, high = nodes[at].high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (nodes[middle].byte < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < nodes[at].high && nodes[low].byte == byte ? low : 0;
}

/* Tokens that are searched for together. */
typedef struct hy_added_set {
    hy_added *tokens;
    size_t count;
    hy_added_node *nodes; /* the first is the start state */
    size_t longest;       /* bytes of the longest token */
    bool begins[256];     /* whether some token begins with this byte */
} hy_added_set;

/* Sets of added tokens: searched in the raw text, in the normalised text, or by templates. */
typedef enum hy_added_kind { HY_ADDED_RAW, HY_ADDED_NORMALIZED, HY_ADDED_SPECIAL } hy_added_kind;
hy_status hy_added_set_init(hy_added_set *set, const hy_added *tokens, size_t count,
                            hy_added_kind kind);
void hy_added_set_fini(hy_added_set *set);

/* The tokens that begin at positions begin .. end - 1 of a text. For a new text, everything except
 * its memory is zeroed. */
typedef struct hy_added_search {
    uint32_t *longest; /* as in a node */
    size_t room, begin, end;
} hy_added_search;

typedef struct hy_added_match {
    size_t begin, end;     /* including the blanks it strips */
    const hy_added *token; /* NULL: no match */
} hy_added_match;
/* Finds the first token at or after `from`; blanks before `from` are not stripped. */
hy_status hy_added_find(const hy_added_set *set, hy_added_search *search, const char *text,
                        size_t size, size_t from, bool without_special, hy_added_match *match);

/* ---- tokens with scores (tokenizer_scores.c) ------------------------------------------------- */

/* The tokens of a Unigram model: the path through a text with the largest sum of scores wins. */
typedef struct hy_unigram {
    float *scores;       /* (ids) NaN: not a part of a path; NULL: another model */
    hy_added_set pieces; /* spelled backwards, so that its states read texts forwards */
} hy_unigram;

/* ---- splitting (tokenizer_split.c, tokenizer_pattern.c) -------------------------------------- */

/* Returns the length of the first word in bytes; size is at least 1. Every character belongs to a
 * word. */
typedef size_t (*hy_splitter)(const char *text, size_t size);
/* The hand-written splitter of a pattern; NULL: none. */
hy_splitter hy_splitter_of(const char *pattern);
extern const char hy_pattern_gpt2[];

typedef struct hy_pattern hy_pattern; /* any other pattern, with PCRE2 */
hy_status hy_pattern_compile(const char *pattern, const char *name, hy_pattern **out);
void hy_pattern_free(hy_pattern *pattern);
void *hy_pattern_state(const hy_pattern *pattern); /* for one thread; NULL: not enough memory */
void hy_pattern_state_free(void *state);
/* Finds the first match at or after `from`, possibly empty; *found false: none. A difficult search
 * consumes *steps and fails when none are left. */
hy_status hy_pattern_find(const hy_pattern *pattern, void *state, const char *text, size_t size,
                          size_t from, uint64_t *steps, bool *found, size_t *begin, size_t *end);

typedef enum hy_behavior {
    HY_REMOVED,
    HY_ISOLATED,
    HY_MERGED_WITH_PREVIOUS,
    HY_MERGED_WITH_NEXT,
    HY_CONTIGUOUS
} hy_behavior;

/* ---- steps (tokenizer_steps.c) --------------------------------------------------------------- */

#define HY_STEPS_MAX 16

typedef enum hy_step_kind {
    HY_STEP_PREPEND, /* normalisers: prepend to a text that is not empty */
    HY_STEP_REPLACE, /* from -> to */
    HY_STEP_NFC,
    HY_STEP_LOWER,
    HY_STEP_CHARSMAP,    /* the normaliser of SentencePiece */
    HY_STEP_SPLIT,       /* pre-tokenisers: by splitter, by pattern, or by the text `from` */
    HY_STEP_DIGITS,      /* between digits and other characters */
    HY_STEP_METASPACE,   /* blanks become `to`; one is prepended; split before each */
    HY_STEP_PREFIX_SPACE /* a blank before a word that does not begin with one */
} hy_step_kind;

typedef enum hy_prepend { HY_PREPEND_ALWAYS, HY_PREPEND_FIRST, HY_PREPEND_NEVER } hy_prepend;

/* Replaces each occurrence of `from` by `to`. */
typedef struct hy_replacement {
    char *from, *to; /* owned */
    size_t from_size, to_size;
} hy_replacement;

/* The normaliser of SentencePiece (tokenizer_charsmap.c): characters become others by a trie, and
 * blanks become U+2581. */
typedef struct hy_charsmap {
    uint32_t *units; /* a double array of Darts */
    size_t count;
    char *texts; /* what characters become, each zero-terminated */
    size_t texts_size;
    bool has_prefix, collapses; /* one blank before the text; runs of blanks become one */
    const hy_added_set *kept;   /* tokens that stay as they are; not owned */
} hy_charsmap;
/* Reads the fields, with the trie and the texts as hexadecimal digits. */
hy_status hy_charsmap_read(hy_tokenizer *tokenizer, const hy_json_node *node, hy_charsmap **out);
void hy_charsmap_free(hy_charsmap *map); /* NULL is allowed */

typedef struct hy_step {
    hy_step_kind kind;
    hy_charsmap *map;    /* owned */
    hy_replacement text; /* METASPACE: both are what a blank becomes */
    hy_splitter splitter;
    hy_pattern *pattern;
    hy_behavior behavior;
    bool is_inverted;
    hy_prepend prepend;
    bool splits; /* for METASPACE */
} hy_step;

typedef struct hy_steps {
    hy_step step[HY_STEPS_MAX];
    int count;
} hy_steps;

void hy_steps_fini(hy_steps *steps);
/* Adds a text with replacements; stops early, soon after `out` exceeds `most` bytes. */
void hy_add_replaced(hy_text *out, const char *text, size_t size, const hy_replacement *by,
                     size_t most);

/* ---- decoding -------------------------------------------------------------------------------- */

typedef struct hy_decoder {
    bool is_byte_level;     /* tokens spell bytes in the printable alphabet */
    bool joins_with_blanks; /* the file has no decoder */
    hy_replacement text;    /* in each token; from NULL: nothing is replaced */
    bool has_byte_fallback;
    int strip_start;   /* blanks removed from the beginning of the whole text */
    bool strips_first; /* Metaspace: `from` is dropped in the first token */
} hy_decoder;

/* ---- the whole tokenizer --------------------------------------------------------------------- */

#define HY_WORD_KEY 22 /* longest word in the table, in bytes */
#define HY_WORD_IDS 10 /* most ids of a word in the table */
#define HY_WORD_SLOTS 32768

/* Limits for an untrusted tokenizer, so that time and memory stay bounded: the bytes that all steps
 * may write, and the steps of difficult pattern searches. Both depend only on the size of the
 * text. */
typedef struct hy_allowance {
    const char *name; /* of the tokenizer */
    size_t text;      /* bytes of the text */
    size_t bytes;
    uint64_t steps;
} hy_allowance;
hy_allowance hy_allowance_of(const char *name, size_t text_size);
/* Subtracts bytes that a step has written; an error if there are too many. */
hy_status hy_allowance_take(hy_allowance *left, size_t bytes);
/* Subtracts steps of a search; an error if there are too many. */
hy_status hy_allowance_walk(hy_allowance *left, uint64_t steps);

/* A word seen before: 64 bytes. */
typedef struct hy_word {
    uint8_t size, count; /* size 0: empty */
    char key[HY_WORD_KEY];
    int32_t ids[HY_WORD_IDS];
} hy_word;

typedef struct hy_workspace {
    struct hy_workspace *next;
    hy_word *words;
    hy_text normal[2];          /* two buffers for normalisation, used alternately */
    hy_text step[HY_STEPS_MAX]; /* output of each splitting step */
    void *state[HY_STEPS_MAX];  /* PCRE2 state of each step's pattern */
    hy_text spelled;            /* a word in the printable alphabet */
    hy_ids symbols;             /* a word being merged */
    hy_merge_memory merge_memory;
    hy_added_search search[2]; /* for raw and for normalised tokens */
    hy_allowance left;         /* for the text that is being encoded */
} hy_workspace;

typedef struct hy_workspaces {
    pthread_mutex_t lock;
    hy_workspace *idle;
} hy_workspaces;

struct hy_tokenizer {
    char *name;          /* name of the file, for errors */
    const hy_json *json; /* the file's content while it is being read */
    hy_vocab vocab;
    hy_merges merges;
    hy_unigram unigram;
    bool is_byte_level;   /* words spell bytes in the printable alphabet */
    int32_t byte_id[256]; /* byte-level: id of a byte; otherwise of <0xNN>; -1: none */
    bool has_byte_fallback, fuses_unknown, ignores_merges;
    int32_t unknown;  /* -1: none */
    bool cuts_blanks; /* no token has U+2581 after another character: words may be cut there */
    bool *is_special; /* (ids) */
    hy_added_set raw, normalized, special;
    hy_steps normalizer, splitting;
    hy_ids before, after; /* tokens that the template adds around a text */
    hy_decoder decoder;
    int32_t bos, eos;
    const char *guess; /* see hy_tokenizer_guess */
    hy_workspaces *workspaces;
};

/* Fills an empty tokenizer from the parsed file (tokenizer_read.c). */
hy_status hy_tokenizer_fill(hy_tokenizer *tokenizer, const hy_json *json);
/* Read parts of the file (tokenizer_read_model.c, tokenizer_read_steps.c). `where` names the part
 * in errors. */
hy_status hy_tokenizer_read_model(hy_tokenizer *tokenizer, const hy_json_node *model,
                                  const hy_json_node *added);
/* Reads a boolean of `object`; absent or null: the fallback. */
hy_status hy_tokenizer_read_bool(const hy_tokenizer *tokenizer, const hy_json_node *object,
                                 const char *key, bool fallback, bool *out);
/* Reads the normaliser, the pre-tokeniser and the decoder. */
hy_status hy_tokenizer_read_steps(hy_tokenizer *tokenizer, const hy_json_node *root);

/* Reads "scores" of a model (tokenizer_scores.c): makes the merges, or the Unigram model. */
hy_status hy_tokenizer_read_scores(hy_tokenizer *tokenizer, const hy_json_node *model);
void hy_unigram_fini(hy_unigram *unigram);
/* Appends the ids of a text by the Unigram model. */
hy_status hy_unigram_encode(const hy_tokenizer *tokenizer, hy_workspace *space, const char *text,
                            size_t size, hy_ids *out);

/* Finds an example of text that has no token. */
hy_status hy_tokenizer_find_unknown(const hy_tokenizer *tokenizer, const char *text, size_t size,
                                    hy_unknown_text *out);

/* Whether U+2581 follows another character in the text. */
bool hy_crosses_blank(const char *text, size_t size);

/* Normalises a text into `to`, by a map of SentencePiece. */
hy_status hy_charsmap_apply(const hy_charsmap *map, hy_workspace *space, const char *text,
                            size_t size, hy_text *to);

/* Normalises a text. *out points to the text itself if nothing changes, otherwise into the
 * workspace. */
hy_status hy_steps_normalize(const hy_steps *steps, hy_workspace *space, const char *text,
                             size_t size, const char **out, size_t *out_size);

/* Splits a text into words and passes each to `take`. is_first: the text begins the whole input. */
typedef hy_status (*hy_word_taker)(void *context, const char *word, size_t size);
hy_status hy_steps_split(const hy_steps *steps, hy_workspace *space, const char *text, size_t size,
                         bool is_first, hy_word_taker take, void *context);
