/* chat_render.c: renders conversations with the built-in templates. See chat_template.h.
 *
 * A template is a row of texts around the turns. They are exactly those that the models were
 * trained with, spaces included, and come from the templates published with the models. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "data/chat_template.h"

void hy_rendered_free(hy_rendered *r) {
    hy_text_free(&r->text);
    free(r->pieces);
    hy_jinja_output_free(&r->whole);
    hy_jinja_output_free(&r->part);
    free(r->specials.items);
    free(r->answers);
    *r = (hy_rendered){0};
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static void add_piece(hy_rendered *r, hy_rendered_piece piece) {
    if (hy_array_reserve(&r->pieces, &r->room, r->count + 1, sizeof piece, "a chat") == HY_OK) {
        r->pieces[r->count++] = piece;
    } else {
        r->has_failed = true;
    }
}

void hy_rendered_add_token(hy_rendered *r, int32_t token, bool is_answer) {
    if (token >= 0) add_piece(r, (hy_rendered_piece){.token = token, .is_answer = is_answer});
}

void hy_rendered_add_text(hy_rendered *r, const char *text, size_t size, bool is_answer) {
    if (size == 0) return;
    add_piece(r, (hy_rendered_piece){
                     .token = -1, .begin = r->text.size, .size = size, .is_answer = is_answer});
    hy_text_add_bytes(&r->text, text, size);
}

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

const char *hy_role_name(hy_role role) {
    static const char *const names[] = {[HY_ROLE_SYSTEM] = "system",
                                        [HY_ROLE_USER] = "user",
                                        [HY_ROLE_INPUT] = "user",
                                        [HY_ROLE_ASSISTANT] = "assistant",
                                        [HY_ROLE_TOOL] = "tool"};
    return names[role];
}

/* ---- templates ------------------------------------------------------------------------------- */

/* The texts of a template. ROLE stands for the name of the turn's role, <eos> for the end token of
 * the tokenizer; other special tokens are spelled. NULL is "". */
typedef struct format {
    const char *begin;                               /* before the first turn */
    const char *system[2], *question[2], *answer[2]; /* before and after the text of such a turn */
    const char *input;                               /* between a question and its input */
    bool has_opening;  /* begins with the tokens that the tokenizer puts before a text */
    bool trims;        /* strips blanks around texts */
    bool joins_system; /* the system turn is the beginning of the first question */
} format;

#define CHATML                                                                                     \
    { "<|im_start|>ROLE\n", "<|im_end|>\n" }
#define LLAMA3                                                                                     \
    { "<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>" }

static const format formats[] = {
    [HY_CHAT_PLAIN] = {.answer = {"", "<eos>"}, .input = "\n", .has_opening = true},
    [HY_CHAT_LINES] = {.system = {"", "\n"},
                       .question = {"", "\n"},
                       .answer = {"", "<eos>"},
                       .input = "\n",
                       .has_opening = true},
    [HY_CHAT_CHATML] = {.system = CHATML, .question = CHATML, .answer = CHATML, .input = "\n"},
    [HY_CHAT_LLAMA3] = {.begin = "<|begin_of_text|>",
                        .system = LLAMA3,
                        .question = LLAMA3,
                        .answer = LLAMA3,
                        .input = "\n",
                        .trims = true},
    [HY_CHAT_LLAMA2] = {.system = {"<s>[INST] <<SYS>>\n", "\n<</SYS>>\n\n"},
                        .question = {"<s>[INST] ", " [/INST]"},
                        .answer = {" ", " </s>"},
                        .input = "\n",
                        .trims = true,
                        .joins_system = true},
    [HY_CHAT_MISTRAL] = {.begin = "<s>",
                         .system = {"[INST] ", "\n\n"},
                         .question = {"[INST] ", " [/INST]"},
                         .answer = {" ", "</s>"},
                         .input = "\n",
                         .joins_system = true},
    [HY_CHAT_ALPACA] = {.system = {"", "\n\n"},
                        .question = {"### Instruction:\n", "\n\n### Response:\n"},
                        .answer = {"", "<eos>"},
                        .input = "\n\n### Input:\n",
                        .has_opening = true},
};

void hy_chat_template_describe_ends(const hy_chat_template *chat, const hy_tokenizer *tokenizer,
                                    hy_text *out) {
    const hy_chat_tokens *t = &chat->tokens;
    bool is_template = chat->kind >= sizeof formats / sizeof formats[0];
    if (!tokenizer || is_template || !formats[chat->kind].has_opening) return;
    hy_text_add(out, "; begins with");
    for (int32_t i = 0; i < t->opening_count; i++)
        hy_text_addf(out, " %s", hy_tokenizer_token(tokenizer, t->opening[i], NULL));
    const char *bos = hy_tokenizer_token(tokenizer, hy_tokenizer_bos(tokenizer), NULL);
    if (t->opening_count == 0) hy_text_add(out, " no special token");
    const char *guess = hy_tokenizer_guess(tokenizer);
    if (t->opening_count == 0 && bos && guess)
        hy_text_addf(out,
                     " (tokenizer read as by %s; \"add_bos_token\": true in "
                     "tokenizer_config.json adds %s)",
                     guess, bos);
    if (t->eos >= 0)
        hy_text_addf(out, ", ends with %s", hy_tokenizer_token(tokenizer, t->eos, NULL));
}

/* Instead of a system turn. */
static const char alpaca_plain[] =
    "Below is an instruction that describes a task. Write a response that appropriately "
    "completes the request.\n\n";
static const char alpaca_input[] =
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n";

/* Adds a text of a template. is_answer: up to and including its first special token, it is part of
 * the answer. */
static void add_format(hy_rendered *r, const hy_chat_tokens *tokens, const char *text, hy_role role,
                       bool is_answer) {
    while (text && *text) {
        int32_t token = tokens->eos;
        bool is_role = strncmp(text, "ROLE", 4) == 0;
        size_t size = strncmp(text, "<eos>", 5) == 0 ? 5 : hy_chat_mark_at(tokens, text, &token);
        if (size > 0) {
            hy_rendered_add_token(r, token, is_answer);
            is_answer = false;
        } else if (is_role) {
            size = 4;
            hy_rendered_add_text(r, hy_role_name(role), strlen(hy_role_name(role)), false);
        } else {
            size = 1 + strcspn(text + 1, "<[R");
            hy_rendered_add_text(r, text, size, is_answer);
        }
        text += size;
    }
}

static void add_turn(hy_rendered *r, hy_turn turn, bool trims, bool is_answer) {
    while (trims && turn.size > 0 && is_space(turn.text[turn.size - 1])) turn.size--;
    while (trims && turn.size > 0 && is_space(turn.text[0])) turn.text++, turn.size--;
    hy_rendered_add_text(r, turn.text, turn.size, is_answer);
}

static void render(const hy_chat_template *chat, const hy_turn *turns, size_t count,
                   hy_rendered *r) {
    const format *f = &formats[chat->kind];
    hy_chat_tokens t = chat->tokens;
    bool is_mistral = chat->kind == HY_CHAT_MISTRAL;
    /* Since version 3 of Mistral's tokenizer, [INST] and [/INST] are single tokens. */
    bool has_tokens = is_mistral && t.inst >= 0 && t.inst_end >= 0;
    if (!has_tokens) t.inst = t.inst_end = -1;
    const char *begin = f->begin;
    if (chat->kind == HY_CHAT_ALPACA && (count == 0 || turns[0].role != HY_ROLE_SYSTEM)) {
        begin = count > 1 && turns[1].role == HY_ROLE_INPUT ? alpaca_input : alpaca_plain;
    }
    for (int32_t i = 0; f->has_opening && i < t.opening_count; i++) {
        hy_rendered_add_token(r, t.opening[i], false);
    }
    r->opening = r->count;
    add_format(r, &t, begin, HY_ROLE_USER, false);
    for (size_t i = 0; i < count; i++) {
        hy_role role = turns[i].role;
        bool is_answer = role == HY_ROLE_ASSISTANT, is_system = role == HY_ROLE_SYSTEM;
        const char *const *around = is_answer ? f->answer : is_system ? f->system : f->question;
        is_answer &= !turns[i].is_masked;
        bool is_joined = f->joins_system && i > 0 && turns[i - 1].role == HY_ROLE_SYSTEM;
        bool trims = f->trims && !(is_system && f->joins_system);
        if (!is_joined) add_format(r, &t, around[0], role, false);
        add_turn(r, turns[i], trims, is_answer);
        if (i + 1 < count && turns[i + 1].role == HY_ROLE_INPUT) {
            add_format(r, &t, f->input, role, false);
            add_turn(r, turns[++i], trims, false);
        }
        bool drops_space = has_tokens && around == f->question;
        add_format(r, &t, around[1] ? around[1] + drops_space : NULL, role, is_answer);
    }
}

hy_status hy_chat_render(const hy_chat_template *chat, const hy_conversation *conversation,
                         bool asks_for_answer, hy_rendered *r) {
    const hy_turn *turns = conversation->turns;
    size_t count = conversation->count;
    hy_text_clear(&r->text);
    r->count = r->opening = 0;
    r->spells_specials = hy_chat_kind_is_plain(chat->kind);
    r->has_failed = false;
    bool marks_turns = chat->kind == HY_CHAT_CHATML || chat->kind == HY_CHAT_LLAMA3;
    HY_TRY(hy_chat_template_check(chat));
    if (chat->kind == HY_CHAT_OWN) return hy_own_render(chat, conversation, asks_for_answer, r);
    for (size_t i = 0; i < count; i++) {
        HY_FAIL_IF(turns[i].calls_tools, HY_ERR_INPUT,
                   "turn %zu calls tools, but the chat template %s does not support tools", i + 1,
                   hy_chat_kind_name(chat->kind));
    }
    /* Turns must be: an optional system turn, then questions and answers alternately. */
    if (!marks_turns) {
        hy_role expected = HY_ROLE_USER;
        for (size_t i = count > 0 && turns[0].role == HY_ROLE_SYSTEM; i < count; i++) {
            if (turns[i].role == HY_ROLE_INPUT) continue;
            HY_FAIL_IF(turns[i].role != expected, HY_ERR_INPUT,
                       "turn %zu is %s, but the chat template %s expects %s", i + 1,
                       hy_role_name(turns[i].role), hy_chat_kind_name(chat->kind),
                       hy_role_name(expected));
            expected = expected == HY_ROLE_USER ? HY_ROLE_ASSISTANT : HY_ROLE_USER;
        }
    }
    render(chat, turns, count, r);
    if (marks_turns && asks_for_answer) {
        add_format(r, &chat->tokens, formats[chat->kind].answer[0], HY_ROLE_ASSISTANT, false);
    }
    if (r->has_failed) return hy_fail(HY_ERR_MEMORY, "not enough memory for a conversation");
    return hy_text_status(&r->text);
}

/* ---- as Jinja -------------------------------------------------------------------------------- */

static void add_escaped(hy_text *out, const char *text, size_t size) {
    for (const char *c = text; c < text + size; c++) {
        if (*c == '\'' || *c == '\\') hy_text_add(out, "\\");
        if (*c == '\n')
            hy_text_add(out, "\\n");
        else
            hy_text_add_bytes(out, c, 1);
    }
}

/* Adds a text of a template as a string of Jinja, with `before` and `after` if it is not empty. */
static void add_string(hy_text *out, const char *before, const char *text, const char *after,
                       const char *eos) {
    if (!text || !*text) return;
    hy_text_addf(out, "%s'", before);
    for (const char *c = text; *c; c++) {
        bool is_role = strncmp(c, "ROLE", 4) == 0, is_eos = strncmp(c, "<eos>", 5) == 0;
        if (is_role) hy_text_add(out, "' + m['role'] + '");
        if (is_eos) add_escaped(out, eos, strlen(eos));
        if (!is_role && !is_eos) add_escaped(out, c, 1);
        c += is_role ? 3 : is_eos ? 4 : 0;
    }
    hy_text_addf(out, "'%s", after);
}

static void add_message(hy_text *out, const format *f, const char *const around[2],
                        const char *eos) {
    hy_text_add(out, "{{ ");
    add_string(out, "", around[0], " + ", eos);
    hy_text_add(out, f->trims ? "m['content'] | trim" : "m['content']");
    add_string(out, " + ", around[1], "", eos);
    hy_text_add(out, " }}");
}

hy_status hy_chat_template_jinja(const hy_chat_template *chat, const hy_tokenizer *tokenizer,
                                 hy_text *out) {
    const format *f = &formats[chat->kind];
    const hy_chat_tokens *t = &chat->tokens;
    hy_text eos = {0}, opening = {0};
    if (f->joins_system) return HY_OK;
    hy_status status = t->eos >= 0 ? hy_tokenizer_decode(tokenizer, &t->eos, 1, 0, &eos) : HY_OK;
    if (status == HY_OK && f->has_opening)
        status = hy_tokenizer_decode(tokenizer, t->opening, (size_t)t->opening_count, 0, &opening);
    const char *end = hy_text_string(&eos);
    hy_text_add(out, hy_text_string(&opening));
    if (chat->kind == HY_CHAT_ALPACA)
        add_string(out, "{% if messages[0]['role'] != 'system' %}{{ ", alpaca_plain,
                   " }}{% endif %}", end);
    add_string(out, "{{ ", f->begin, " }}", end);
    hy_text_add(out, "{% for m in messages %}{% if m['role'] == 'assistant' %}");
    add_message(out, f, f->answer, end);
    hy_text_add(out, "{% elif m['role'] == 'system' %}");
    add_message(out, f, f->system, end);
    hy_text_add(out, "{% else %}");
    add_message(out, f, f->question, end);
    hy_text_add(out, "{% endif %}{% endfor %}");
    add_string(out, "{% if add_generation_prompt %}{% set m = {'role': 'assistant'} %}{{ ",
               f->answer[0], " }}{% endif %}", end);
    hy_text_free(&eos);
    hy_text_free(&opening);
    return status == HY_OK ? hy_text_status(out) : status;
}

/* ---- pieces of a conversation as tokens, and which of them are answers ----------------------- */

/* Text between two special tokens is encoded in one piece, as it was when the model was trained: a
 * cut inside it would change the merges. The token at which an answer begins is found by the byte
 * lengths of the tokens. If the tokenizer changes the text (a blank before it, NFC), the border
 * lies in the changed text: where the text up to the border ends if it is encoded alone. */

void hy_flags_free(hy_flags *flags) {
    free(flags->data);
    *flags = (hy_flags){0};
}

static hy_status push_flags(hy_flags *flags, size_t count, bool value) {
    if (count == 0) return HY_OK;
    HY_TRY(hy_array_reserve(&flags->data, &flags->room, flags->count + count, 1, "tokens"));
    memset(flags->data + flags->count, value, count);
    flags->count += count;
    return HY_OK;
}

hy_status hy_encode_text(const hy_tokenizer *tokenizer, const char *text, size_t size, int flags,
                         hy_ids *ids) {
    if (tokenizer) return hy_tokenizer_encode(tokenizer, text, size, flags, ids);
    HY_TRY(hy_ids_reserve(ids, size));
    for (size_t i = 0; i < size; i++) ids->data[ids->count++] = (uint8_t)text[i];
    return HY_OK;
}

/* Appends the text of the tokens; sizes gets the bytes of each (NULL: not needed). in_pairs: each
 * token is decoded behind another, because some decoders drop the blank of the first token. */
static hy_status spell(const hy_tokenizer *tokenizer, const int32_t *ids, size_t count,
                       bool in_pairs, uint32_t *sizes, hy_text *out) {
    hy_text pair = {0};
    hy_status status = HY_OK;
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        const int32_t both[2] = {ids[i ? i - 1 : 0], ids[i]};
        size_t before = 0;
        hy_text_clear(&pair);
        if (in_pairs) status = hy_tokenizer_decode(tokenizer, both, 1, 0, &pair);
        before = pair.size;
        hy_text_clear(&pair);
        if (status == HY_OK)
            status = hy_tokenizer_decode(tokenizer, both + !in_pairs, 1 + in_pairs, 0, &pair);
        if (before > pair.size) before = pair.size;
        hy_text_add_bytes(out, hy_text_string(&pair) + before, pair.size - before);
        if (sizes) sizes[i] = (uint32_t)(pair.size - before);
    }
    hy_text_free(&pair);
    return status == HY_OK ? hy_text_status(out) : status;
}

/* The byte length of each token; *is_text: the lengths add up to the text itself. */
static hy_status sizes_of(const hy_tokenizer *tokenizer, const char *text, size_t size,
                          const int32_t *ids, size_t count, uint32_t *sizes, bool *is_text) {
    hy_text spelled = {0};
    hy_status status = spell(tokenizer, ids, count, false, sizes, &spelled);
    *is_text = status == HY_OK && spelled.size == size &&
               memcmp(hy_text_string(&spelled), text, size) == 0;
    if (status == HY_OK && !*is_text) {
        hy_text_clear(&spelled);
        status = spell(tokenizer, ids, count, true, sizes, &spelled);
    }
    hy_text_free(&spelled);
    return status;
}

/* The length of a text as its tokens spell it. */
static hy_status spelled_size(const hy_tokenizer *tokenizer, const char *text, size_t size,
                              int flags, size_t *out) {
    hy_ids ids = {0};
    hy_text spelled = {0};
    hy_status status = hy_tokenizer_encode(tokenizer, text, size, flags, &ids);
    if (status == HY_OK) status = spell(tokenizer, ids.data, ids.count, true, NULL, &spelled);
    *out = spelled.size;
    hy_text_free(&spelled);
    hy_ids_free(&ids);
    return status;
}

/* Pieces [first, last) are text that was encoded in one piece, into `count` tokens of these sizes.
 * is_text: the tokens spell the text itself. */
static hy_status flag_run(const hy_rendered *r, size_t first, size_t last,
                          const hy_tokenizer *tokenizer, int flags, size_t count,
                          const uint32_t *sizes, bool is_text, hy_flags *answers) {
    const hy_rendered_piece *p = r->pieces;
    const char *text = hy_text_string(&r->text) + p[first].begin;
    size_t done = 0, bytes = 0;
    for (size_t i = first + 1; i < last; i++) {
        if (p[i].is_answer == p[i - 1].is_answer) continue;
        size_t at = p[i].begin - p[first].begin, border = done;
        if (!tokenizer) {
            border = at;
        } else {
            if (!is_text) HY_TRY(spelled_size(tokenizer, text, at, flags, &at));
            /* a token that crosses the border belongs to the answer */
            while (border < count && (p[i].is_answer ? bytes + sizes[border] <= at : bytes < at)) {
                bytes += sizes[border++];
            }
        }
        if (border < done) border = done;
        HY_TRY(push_flags(answers, border - done, p[i - 1].is_answer));
        done = border;
    }
    return push_flags(answers, count - done, p[last - 1].is_answer);
}

static hy_status encode_run(const hy_rendered *r, size_t first, size_t last,
                            const hy_tokenizer *tokenizer, hy_ids *ids, hy_flags *answers) {
    const hy_rendered_piece *p = r->pieces;
    const char *text = hy_text_string(&r->text) + p[first].begin;
    size_t size = p[last - 1].begin + p[last - 1].size - p[first].begin, before = ids->count;
    int flags =
        (r->spells_specials ? 0 : HY_TOKENS_PLAIN) | (first > r->opening ? HY_TOKENS_INSIDE : 0);
    uint32_t *sizes = NULL;
    hy_status status = HY_OK;
    HY_TRY(hy_encode_text(tokenizer, text, size, flags, ids));
    size_t count = ids->count - before;
    const int32_t *run = count ? ids->data + before : NULL; /* a text may have no tokens at all */
    bool has_border = false, is_text = true;
    for (size_t i = first + 1; i < last; i++) has_border |= p[i].is_answer != p[i - 1].is_answer;
    if (has_border && tokenizer) {
        sizes = malloc((count + 1) * sizeof *sizes);
        HY_FAIL_IF(!sizes, HY_ERR_MEMORY, "not enough memory for %zu tokens", count);
        status = sizes_of(tokenizer, text, size, run, count, sizes, &is_text);
    }
    if (status == HY_OK)
        status = flag_run(r, first, last, tokenizer, flags, count, sizes, is_text, answers);
    free(sizes);
    return status;
}

hy_status hy_rendered_encode(const hy_rendered *r, const hy_tokenizer *tokenizer, hy_ids *ids,
                             hy_flags *answers) {
    for (size_t i = 0; i < r->count;) {
        size_t last = i;
        while (last < r->count && r->pieces[last].token < 0) last++;
        if (last > i) {
            HY_TRY(encode_run(r, i, last, tokenizer, ids, answers));
        } else {
            HY_TRY(hy_ids_append(ids, &r->pieces[i].token, 1));
            HY_TRY(push_flags(answers, 1, r->pieces[i].is_answer));
            last++;
        }
        i = last;
    }
    return HY_OK;
}
