/* chat_template.c: which template a model was trained with, and its tokens. See chat_template.h.
 *
 * A folder says it in tokenizer_config.json ("chat_template", a text or a list of named ones) or in
 * chat_template.jinja. These are programs; they are not run but recognised by marks that only one family
 * has. What a family writes by itself (a default system turn, the dates of Llama 3.1) is looked for in the
 * same text. */
#include "data/chat_template.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

#define PATH_BYTES 4096

static const char *const names[] = {"auto",    "plain",  "chatml",  "llama2", "llama3",
                                    "mistral", "alpaca", "unknown", "none"};

const char *hy_chat_kind_name(hy_chat_kind kind) { return names[kind]; }

hy_status hy_chat_kind_parse(const char *name, hy_chat_kind *out) {
    for (int kind = HY_CHAT_AUTO; kind <= HY_CHAT_ALPACA; kind++) {
        if (strcmp(name, names[kind]) != 0) continue;
        *out = (hy_chat_kind)kind;
        return HY_OK;
    }
    return hy_fail(HY_ERR_INPUT, "chat template \"%s\"; expected auto, %s", name, HY_CHAT_NAMES);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

#define NEEDS(kind) (1u << HY_CHAT_##kind)

static const struct {
    const char *spelling;
    size_t at;      /* in hy_chat_tokens */
    unsigned needs; /* templates that cannot do without it */
} marks[] = {
    {"<s>", offsetof(hy_chat_tokens, begin), NEEDS(LLAMA2) | NEEDS(MISTRAL)},
    {"</s>", offsetof(hy_chat_tokens, end), NEEDS(LLAMA2) | NEEDS(MISTRAL)},
    {"<|begin_of_text|>", offsetof(hy_chat_tokens, text_begin), NEEDS(LLAMA3)},
    {"<|im_start|>", offsetof(hy_chat_tokens, im_start), NEEDS(CHATML)},
    {"<|im_end|>", offsetof(hy_chat_tokens, im_end), NEEDS(CHATML)},
    {"<|start_header_id|>", offsetof(hy_chat_tokens, header_start), NEEDS(LLAMA3)},
    {"<|end_header_id|>", offsetof(hy_chat_tokens, header_end), NEEDS(LLAMA3)},
    {"<|eot_id|>", offsetof(hy_chat_tokens, turn_end), NEEDS(LLAMA3)},
    {"[INST]", offsetof(hy_chat_tokens, inst), 0},
    {"[/INST]", offsetof(hy_chat_tokens, inst_end), 0},
};
enum { MARKS = sizeof marks / sizeof marks[0] };

static int32_t *token_at(hy_chat_tokens *t, size_t mark) {
    return (int32_t *)(void *)((char *)t + marks[mark].at);
}

static hy_status find_tokens(const hy_tokenizer *tokenizer, hy_chat_tokens *t) {
    for (size_t i = 0; i < MARKS; i++) {
        *token_at(t, i) = tokenizer ? hy_tokenizer_find(tokenizer, marks[i].spelling) : -1;
    }
    if (!tokenizer) return HY_OK; /* eos is the byte 0 */
    int32_t bos = hy_tokenizer_bos(tokenizer), eos = hy_tokenizer_eos(tokenizer),
            plain_end = t->end;
    if (t->begin < 0) t->begin = bos;
    if (t->end < 0) t->end = eos;
    if (t->text_begin < 0) t->text_begin = bos;
    t->eos = eos;
    if (t->eos < 0) t->eos = hy_tokenizer_find(tokenizer, "<|endoftext|>");
    if (t->eos < 0) t->eos = hy_tokenizer_find(tokenizer, "<|end_of_text|>");
    if (t->eos < 0) t->eos = plain_end;
    /* What the tokenizer puts in front of a text: seen by encoding one letter with and without it. */
    hy_ids with = {0}, without = {0};
    hy_status status = hy_tokenizer_encode(tokenizer, "a", 1, HY_TOKENS_SPECIAL, &with);
    if (status == HY_OK) status = hy_tokenizer_encode(tokenizer, "a", 1, 0, &without);
    size_t most = sizeof t->opening / sizeof t->opening[0];
    for (size_t i = 0; status == HY_OK && i <= most && i + without.count <= with.count; i++) {
        size_t bytes = without.count * sizeof *without.data;
        if (bytes == 0 || memcmp(with.data + i, without.data, bytes) != 0) continue;
        t->opening_count = (int32_t)i;
        if (i > 0) memcpy(t->opening, with.data, i * sizeof *with.data);
        break;
    }
    hy_ids_free(&with);
    hy_ids_free(&without);
    return status;
}

hy_status hy_chat_template_check(const hy_chat_template *chat) {
    hy_chat_tokens tokens = chat->tokens;
    HY_FAIL_IF(chat->kind == HY_CHAT_UNKNOWN, HY_ERR_INPUT,
               "the chat template in the model's folder is none of those known here; say "
               "chat_template: %s",
               HY_CHAT_NAMES);
    HY_FAIL_IF(chat->kind == HY_CHAT_NONE, HY_ERR_INPUT,
               "nothing says how conversations are written for this model; say "
               "chat_template: %s",
               HY_CHAT_NAMES);
    for (size_t i = 0; i < MARKS; i++) {
        HY_FAIL_IF((marks[i].needs >> chat->kind & 1) && *token_at(&tokens, i) < 0, HY_ERR_INPUT,
                   "the chat template %s needs the token %s, which the tokenizer does not have; "
                   "chat_template can be %s",
                   names[chat->kind], marks[i].spelling, HY_CHAT_NAMES);
    }
    return HY_OK;
}

int32_t hy_chat_template_end(const hy_chat_template *chat) {
    switch (chat->kind) {
    case HY_CHAT_CHATML: return chat->tokens.im_end;
    case HY_CHAT_LLAMA3: return chat->tokens.turn_end;
    case HY_CHAT_LLAMA2:
    case HY_CHAT_MISTRAL: return chat->tokens.end;
    default: return chat->tokens.eos;
    }
}

/* ---- recognising ----------------------------------------------------------------------------- */

/* A system turn whose text stands in the template itself: Qwen's "You are ..." */
static void find_default_system(const char *text, hy_chat_template *out) {
    static const char mark[] = "<|im_start|>system";
    out->default_system[0] = '\0';
    for (const char *at = text; (at = strstr(at, mark)) != NULL;) {
        at += sizeof mark - 1; /* a line end follows, itself or as \n in the template's source */
        if (at[0] != '\n' && strncmp(at, "\\n", 2) != 0) return;
        at += at[0] == '\n' ? 1 : 2;
        const char *end = strstr(at, "<|im_end|>");
        if (!end) return;
        size_t size = (size_t)(end - at);
        bool is_literal = strcspn(at, "'\"{\\") >= size;
        if (!is_literal || size == 0 || size >= sizeof out->default_system) continue;
        memcpy(out->default_system, at, size);
        out->default_system[size] = '\0';
        return;
    }
}

hy_chat_kind hy_chat_template_recognise(const char *text, hy_chat_template *out) {
    out->kind = HY_CHAT_UNKNOWN;
    if (strstr(text, "<|im_start|>") && strstr(text, "<|im_end|>")) {
        out->kind = HY_CHAT_CHATML;
        find_default_system(text, out);
        /* Qwen3 writes thoughts behind the last query; models that only think begin every answer for them. */
        out->has_thinking = strstr(text, "<think>") && strstr(text, "last_query_index");
        out->opens_thinking =
            strstr(text, "assistant\\n<think>\\n' }}") || strstr(text, "assistant\n<think>\n' }}");
    } else if (strstr(text, "<|start_header_id|>") && strstr(text, "<|eot_id|>")) {
        out->kind = HY_CHAT_LLAMA3;
        out->has_dates = strstr(text, "Cutting Knowledge Date: December 2023") != NULL;
    } else if (strstr(text, "[INST]") && strstr(text, "[/INST]")) {
        out->kind = strstr(text, "<<SYS>>") ? HY_CHAT_LLAMA2 : HY_CHAT_MISTRAL;
    } else if (strstr(text, "### Instruction:") && strstr(text, "### Response:")) {
        out->kind = HY_CHAT_ALPACA;
    }
    return out->kind;
}

/* The text under "chat_template": itself, or of a list the one called "default", else the first. */
static const char *template_text(const hy_json_node *node) {
    const char *text = NULL, *name = NULL;
    if (hy_json_as_string(node, &text, NULL) || hy_json_type_of(node) != HY_JSON_ARRAY) return text;
    for (const hy_json_node *n = hy_json_first(node); n; n = hy_json_next(n)) {
        const char *here = NULL;
        (void)hy_json_as_string(hy_json_get(n, "template"), &here, NULL);
        bool is_default =
            hy_json_as_string(hy_json_get(n, "name"), &name, NULL) && strcmp(name, "default") == 0;
        if (here && (is_default || !text)) text = here;
    }
    return text;
}

static hy_status read_config(const char *path, hy_chat_template *out) {
    hy_json *json;
    HY_TRY(hy_json_read_file(path, &json));
    const char *text = template_text(hy_json_get(hy_json_root(json), "chat_template"));
    if (text) hy_chat_template_recognise(text, out);
    hy_json_free(json);
    return HY_OK;
}

/* A template in a file of its own wins over the one in the configuration, as in other tools. */
static hy_status read_folder(const char *folder, hy_chat_template *out) {
    char path[PATH_BYTES], *text;
    size_t size;
    HY_TRY(hy_path_join(path, sizeof path, folder, "chat_template.jinja"));
    if (hy_path_exists(path)) {
        HY_TRY(hy_file_read(path, &text, &size));
        hy_chat_template_recognise(text, out);
        free(text);
        return HY_OK;
    }
    HY_TRY(hy_path_join(path, sizeof path, folder, "tokenizer_config.json"));
    return hy_path_exists(path) ? read_config(path, out) : HY_OK;
}

hy_status hy_chat_template_open(hy_chat_kind kind, const hy_tokenizer *tokenizer,
                                const char *folder, hy_chat_template *out) {
    *out = (hy_chat_template){.kind = HY_CHAT_NONE};
    HY_TRY(find_tokens(tokenizer, &out->tokens));
    if (folder && folder[0]) HY_TRY(read_folder(folder, out));
    if (kind == HY_CHAT_AUTO) {
        /* A tokenizer that has a family's tokens was made for its template. */
        const hy_chat_tokens *t = &out->tokens;
        if (out->kind == HY_CHAT_NONE) {
            if (t->im_start >= 0 && t->im_end >= 0) out->kind = HY_CHAT_CHATML;
            if (t->header_start >= 0 && t->turn_end >= 0) out->kind = HY_CHAT_LLAMA3;
        }
        return HY_OK;
    }
    if (out->kind != kind) *out = (hy_chat_template){.tokens = out->tokens, .kind = kind};
    return hy_chat_template_check(out);
}
