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

static int32_t first_of(int32_t a, int32_t b) { return a >= 0 ? a : b; }

static hy_status find_tokens(const hy_tokenizer *tokenizer, hy_chat_tokens *t) {
    *t = (hy_chat_tokens){.eos = 0,
                          .begin = -1,
                          .end = -1,
                          .text_begin = -1,
                          .im_start = -1,
                          .im_end = -1,
                          .header_start = -1,
                          .header_end = -1,
                          .turn_end = -1,
                          .inst = -1,
                          .inst_end = -1};
    if (!tokenizer) return HY_OK;
    int32_t bos = hy_tokenizer_bos(tokenizer), eos = hy_tokenizer_eos(tokenizer);
    t->begin = first_of(hy_tokenizer_find(tokenizer, "<s>"), bos);
    t->end = first_of(hy_tokenizer_find(tokenizer, "</s>"), eos);
    t->text_begin = first_of(hy_tokenizer_find(tokenizer, "<|begin_of_text|>"), bos);
    t->eos = first_of(eos, hy_tokenizer_find(tokenizer, "<|endoftext|>"));
    t->eos = first_of(t->eos, hy_tokenizer_find(tokenizer, "<|end_of_text|>"));
    t->eos = first_of(t->eos, hy_tokenizer_find(tokenizer, "</s>"));
    t->im_start = hy_tokenizer_find(tokenizer, "<|im_start|>");
    t->im_end = hy_tokenizer_find(tokenizer, "<|im_end|>");
    t->header_start = hy_tokenizer_find(tokenizer, "<|start_header_id|>");
    t->header_end = hy_tokenizer_find(tokenizer, "<|end_header_id|>");
    t->turn_end = hy_tokenizer_find(tokenizer, "<|eot_id|>");
    t->inst = hy_tokenizer_find(tokenizer, "[INST]");
    t->inst_end = hy_tokenizer_find(tokenizer, "[/INST]");
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

static hy_status need(const hy_chat_template *chat, int32_t token, const char *spelling) {
    if (token >= 0) return HY_OK;
    return hy_fail(HY_ERR_INPUT,
                   "the chat template %s needs the token %s, which the tokenizer does not have; "
                   "chat_template can be %s",
                   names[chat->kind], spelling, HY_CHAT_NAMES);
}

hy_status hy_chat_template_check(const hy_chat_template *chat) {
    const hy_chat_tokens *t = &chat->tokens;
    switch (chat->kind) {
    case HY_CHAT_CHATML:
        HY_TRY(need(chat, t->im_start, "<|im_start|>"));
        return need(chat, t->im_end, "<|im_end|>");
    case HY_CHAT_LLAMA3:
        HY_TRY(need(chat, t->text_begin, "<|begin_of_text|>"));
        HY_TRY(need(chat, t->header_start, "<|start_header_id|>"));
        HY_TRY(need(chat, t->header_end, "<|end_header_id|>"));
        return need(chat, t->turn_end, "<|eot_id|>");
    case HY_CHAT_LLAMA2:
    case HY_CHAT_MISTRAL: HY_TRY(need(chat, t->begin, "<s>")); return need(chat, t->end, "</s>");
    case HY_CHAT_UNKNOWN:
        return hy_fail(HY_ERR_INPUT,
                       "the chat template in the model's folder is none of those known here; say "
                       "chat_template: %s",
                       HY_CHAT_NAMES);
    case HY_CHAT_NONE:
        return hy_fail(HY_ERR_INPUT,
                       "nothing says how conversations are written for this model; say "
                       "chat_template: %s",
                       HY_CHAT_NAMES);
    default: return HY_OK;
    }
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

/* Past a line end that stands right here, itself or as \n in the template's source; NULL: neither. */
static const char *skip_newline(const char *at) {
    if (at[0] == '\n') return at + 1;
    return at[0] == '\\' && at[1] == 'n' ? at + 2 : NULL;
}

/* A system turn whose text stands in the template itself: Qwen's "You are ..." */
static void find_default_system(const char *text, hy_chat_template *out) {
    static const char mark[] = "<|im_start|>system";
    out->default_system[0] = '\0';
    for (const char *at = text; (at = strstr(at, mark)) != NULL;) {
        at = skip_newline(at + sizeof mark - 1);
        if (!at) return;
        const char *end = strstr(at, "<|im_end|>");
        if (!end) return;
        size_t size = (size_t)(end - at);
        bool is_literal = size > 0 && size < sizeof out->default_system &&
                          !memchr(at, '\'', size) && !memchr(at, '"', size) &&
                          !memchr(at, '{', size) && !memchr(at, '\\', size);
        if (!is_literal) continue;
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
        static const char *const openings[] = {"assistant\\n<think>\\n' }}",
                                               "assistant\n<think>\n' }}"};
        out->has_thinking = strstr(text, "<think>") && strstr(text, "last_query_index");
        out->opens_thinking = false;
        for (int i = 0; i < 2; i++) out->opens_thinking |= strstr(text, openings[i]) != NULL;
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
    if (!node || hy_json_as_string(node, &text, NULL)) return text;
    if (hy_json_type_of(node) != HY_JSON_ARRAY) return NULL;
    for (const hy_json_node *n = hy_json_first(node); n; n = hy_json_next(n)) {
        if (hy_json_type_of(n) != HY_JSON_OBJECT) continue;
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
    const hy_json_node *root = hy_json_root(json);
    const char *text = hy_json_type_of(root) == HY_JSON_OBJECT
                           ? template_text(hy_json_get(root, "chat_template"))
                           : NULL;
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
