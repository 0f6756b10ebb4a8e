/* chat_template.c: finds the template that a model was trained with, and its special tokens. See
 * chat_template.h.
 *
 * A folder has its template in chat_template.jinja or in tokenizer_config.json ("chat_template": a
 * string, or a list of named templates). */
#include "data/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "formats/checkpoint.h"
#include "tokenizer/tokenizer_vocab_files.h"

#define PATH_BYTES 4096

/* Templates may write today's date (Llama 3.1). In training data the date is always 26 July 2024,
 * the default of these templates, so a run that is resumed tomorrow has the same tokens. */
#define DAY_OF_TRAINING 1721952000

static const char *const names[] = {"auto",    "plain",   "chatml",        "llama2",
                                    "llama3",  "mistral", "alpaca",        "its own",
                                    "unknown", "none",    "conversations", "lines"};

const char *hy_chat_kind_name(hy_chat_kind kind) { return names[kind]; }

hy_status hy_chat_kind_parse(const char *name, hy_chat_kind *out) {
    for (int kind = HY_CHAT_AUTO; kind <= HY_CHAT_LINES; kind++) {
        bool is_choice = kind <= HY_CHAT_ALPACA || kind == HY_CHAT_LINES;
        if (!is_choice || strcmp(name, names[kind]) != 0) continue;
        *out = (hy_chat_kind)kind;
        return HY_OK;
    }
    return hy_fail(HY_ERR_INPUT, "chat template \"%s\" is unknown; expected auto, %s", name,
                   HY_CHAT_NAMES);
}

bool hy_chat_kind_is_plain(hy_chat_kind kind) {
    return kind == HY_CHAT_PLAIN || kind == HY_CHAT_LINES;
}

/* ---- the format of a run --------------------------------------------------------------------- */

bool hy_prompt_format_is_built_in(const hy_prompt_format *format) {
    return format->chat != HY_CHAT_AUTO && format->chat != HY_CHAT_OWN;
}

void hy_prompt_format_join(hy_prompt_format *all, hy_prompt_format more) {
    bool is_other = all->chat != more.chat && more.chat != HY_CHAT_AUTO;
    if (all->chat == HY_CHAT_AUTO)
        *all = more;
    else
        all->is_mixed |= is_other || more.is_mixed;
}

void hy_prompt_format_get(const hy_json_node *object, hy_prompt_format *out) {
    const char *name = names[HY_CHAT_AUTO];
    *out = (hy_prompt_format){0};
    (void)hy_json_as_string(hy_json_get(object, "prompt_format"), &name, NULL);
    if (strcmp(name, names[HY_CHAT_OWN]) == 0)
        out->chat = HY_CHAT_OWN;
    else
        (void)hy_chat_kind_parse(name, &out->chat);
    (void)hy_json_as_bool(hy_json_get(object, "single_turn"), &out->is_single);
    (void)hy_json_as_bool(hy_json_get(object, "mixed_formats"), &out->is_mixed);
}

void hy_prompt_format_put(hy_json_writer *w, hy_prompt_format format) {
    if (format.chat == HY_CHAT_AUTO) return;
    hy_json_put_string(w, "prompt_format", names[format.chat]);
    hy_json_put_bool(w, "single_turn", format.is_single);
    if (format.is_mixed) hy_json_put_bool(w, "mixed_formats", true);
}

hy_status hy_prompt_format_read(const char *folder, hy_prompt_format *out) {
    hy_json *json = NULL;
    *out = (hy_prompt_format){0};
    HY_TRY(hy_tokenizer_read_beside(folder, HY_FORMAT_FILE, &json));
    if (json) hy_prompt_format_get(hy_json_root(json), out);
    hy_json_free(json);
    return HY_OK;
}

hy_status hy_prompt_format_read_run(const char *from, hy_prompt_format *out) {
    char newest[PATH_BYTES];
    hy_json *json = NULL;
    *out = (hy_prompt_format){0};
    HY_TRY(hy_path_join(newest, sizeof newest, from, "manifest.json"));
    bool is_run = !hy_path_exists(newest);
    /* Loading the weights reports a missing checkpoint; an adapter may have none. */
    if (is_run && hy_checkpoint_peek(from, newest, sizeof newest) != HY_OK) return HY_OK;
    HY_TRY(hy_tokenizer_read_beside(is_run ? newest : from, "trainer.json",
                                    &json)); /* absent: weights alone */
    if (json) hy_prompt_format_get(hy_json_get(hy_json_root(json), "data"), out);
    hy_json_free(json);
    return HY_OK;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

#define NEEDS(kind) (1u << HY_CHAT_##kind)

static const struct {
    const char *spelling;
    size_t at;      /* offset in hy_chat_tokens */
    unsigned needs; /* templates that require it */
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

size_t hy_chat_mark_at(const hy_chat_tokens *tokens, const char *text, int32_t *token) {
    hy_chat_tokens copy = *tokens;
    for (size_t i = 0; i < MARKS; i++) {
        size_t length = strlen(marks[i].spelling);
        *token = *token_at(&copy, i);
        if (*token >= 0 && strncmp(text, marks[i].spelling, length) == 0) return length;
    }
    return 0;
}

static hy_status find_tokens(const hy_tokenizer *tokenizer, hy_chat_tokens *t) {
    for (size_t i = 0; i < MARKS; i++) {
        *token_at(t, i) = tokenizer ? hy_tokenizer_find(tokenizer, marks[i].spelling) : -1;
    }
    if (!tokenizer) return HY_OK; /* eos is byte 0 */
    int32_t bos = hy_tokenizer_bos(tokenizer), eos = hy_tokenizer_eos(tokenizer),
            plain_end = t->end;
    if (t->begin < 0) t->begin = bos;
    if (t->end < 0) t->end = eos;
    if (t->text_begin < 0) t->text_begin = bos;
    t->eos = eos;
    if (t->eos < 0) t->eos = hy_tokenizer_find(tokenizer, "<|endoftext|>");
    if (t->eos < 0) t->eos = hy_tokenizer_find(tokenizer, "<|end_of_text|>");
    if (t->eos < 0) t->eos = plain_end;
    /* Find the tokens that the tokenizer puts before a text: encode one letter with and without
     * them. */
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

/* The first token of a template that the tokenizer does not have; NULL: it has all. */
static const char *missing_token(const hy_chat_template *chat, hy_chat_kind kind) {
    hy_chat_tokens tokens = chat->tokens;
    for (size_t i = 0; i < MARKS; i++) {
        bool is_needed = marks[i].needs >> kind & 1;
        if (is_needed && *token_at(&tokens, i) < 0) return marks[i].spelling;
    }
    return NULL;
}

void hy_chat_template_offer(const hy_chat_template *chat, char out[HY_CHAT_NAMES_MAX]) {
    static const hy_chat_kind offered[] = {HY_CHAT_CHATML,  HY_CHAT_LLAMA2, HY_CHAT_LLAMA3,
                                           HY_CHAT_MISTRAL, HY_CHAT_ALPACA, HY_CHAT_LINES,
                                           HY_CHAT_PLAIN};
    int used = 0;
    for (size_t i = 0; i < sizeof offered / sizeof offered[0]; i++) {
        if (missing_token(chat, offered[i])) continue;
        used += snprintf(out + used, (size_t)(HY_CHAT_NAMES_MAX - used), "%s%s", used ? ", " : "",
                         names[offered[i]]);
    }
}

hy_status hy_chat_template_check(const hy_chat_template *chat) {
    char offer[HY_CHAT_NAMES_MAX];
    const char *missing = missing_token(chat, chat->kind);
    hy_chat_template_offer(chat, offer);
    HY_FAIL_IF(chat->kind == HY_CHAT_UNKNOWN, HY_ERR_INPUT,
               "the chat template in the model's folder cannot be rendered: %s; choose one with "
               "--chat-template: %s",
               chat->reason, offer);
    HY_FAIL_IF(chat->kind == HY_CHAT_NONE, HY_ERR_INPUT,
               "this model has no chat template; choose one with --chat-template: %s", offer);
    HY_FAIL_IF(missing, HY_ERR_INPUT,
               "the chat template %s needs the token %s, but the tokenizer does not have it; "
               "choose another --chat-template: %s",
               names[chat->kind], missing, offer);
    return HY_OK;
}

int32_t hy_chat_template_end(const hy_chat_template *chat) {
    switch (chat->kind) {
    case HY_CHAT_CHATML: return chat->tokens.im_end;
    case HY_CHAT_LLAMA3: return chat->tokens.turn_end;
    case HY_CHAT_LLAMA2:
    case HY_CHAT_MISTRAL: return chat->tokens.end;
    case HY_CHAT_OWN: return hy_own_template_end(chat->own);
    default: return chat->tokens.eos;
    }
}

/* ---- the folder's template ------------------------------------------------------------------- */

/* The template with this name in a list; NULL: none. */
static const hy_json_node *template_named(const hy_json_node *list, const char *wanted) {
    const hy_json_node *found = NULL;
    const char *name = NULL;
    for (const hy_json_node *n = hy_json_first(list); n && !found; n = hy_json_next(n)) {
        bool is_it =
            hy_json_as_string(hy_json_get(n, "name"), &name, NULL) && !strcmp(name, wanted);
        if (is_it) found = hy_json_get(n, "template");
    }
    return found;
}

/* The templates of a folder: the main one, and one for conversations with tools. */
typedef struct texts {
    const char *text, *tools;
    size_t size, tools_size;
    char *file, *tools_file; /* contents of the files they were read from; NULL: none */
} texts;

/* Reads "chat_template": a string, or a list with "default" (otherwise the first is used) and
 * "tool_use". */
static void find_in_config(const hy_json *config, texts *t) {
    const hy_json_node *node = config ? hy_json_get(hy_json_root(config), "chat_template") : NULL;
    if (hy_json_as_string(node, &t->text, &t->size) || hy_json_type_of(node) != HY_JSON_ARRAY) {
        return;
    }
    const hy_json_node *usual = template_named(node, "default");
    if (!usual) usual = hy_json_get(hy_json_first(node), "template");
    (void)hy_json_as_string(usual, &t->text, &t->size);
    (void)hy_json_as_string(template_named(node, "tool_use"), &t->tools, &t->tools_size);
}

static hy_status read_file(const char *folder, const char *name, char **out, size_t *size) {
    char path[PATH_BYTES];
    HY_TRY(hy_path_join(path, sizeof path, folder, name));
    return hy_path_exists(path) ? hy_file_read(path, out, size) : HY_OK;
}

/* Templates in separate files override those in the configuration, as in other tools. */
static hy_status find_files(const char *folder, texts *t) {
    HY_TRY(read_file(folder, "chat_template.jinja", &t->file, &t->size));
    if (!t->file) return HY_OK;
    t->text = t->file;
    HY_TRY(read_file(folder, "additional_chat_templates/tool_use.jinja", &t->tools_file,
                     &t->tools_size));
    t->tools = t->tools_file;
    return HY_OK;
}

static hy_status read_tokens(const char *folder, hy_own_tokens *out) {
    HY_TRY(hy_tokenizer_read_beside(folder, "tokenizer_config.json", &out->config));
    const hy_json_node *root = out->config ? hy_json_root(out->config) : NULL;
    /* If "added_tokens_decoder" is present, the configuration has all special tokens. */
    if (hy_json_get(root, "added_tokens_decoder")) return HY_OK;
    return hy_tokenizer_read_beside(folder, "special_tokens_map.json", &out->map);
}

static hy_status read_folder(const char *folder, const hy_tokenizer *tokenizer,
                             hy_chat_template *out) {
    hy_own_tokens tokens = {0};
    texts t = {0};
    hy_prompt_format trained;
    HY_TRY(hy_prompt_format_read(folder, &trained));
    bool is_named = hy_prompt_format_is_built_in(&trained) && !trained.is_mixed &&
                    !missing_token(out, trained.chat);
    out->is_of_folder = is_named;
    if (is_named) out->kind = trained.chat;
    if (is_named) return HY_OK;
    hy_status status = read_tokens(folder, &tokens);
    if (status == HY_OK) {
        find_in_config(tokens.config, &t);
        status = find_files(folder, &t);
    }
    if (status == HY_OK && t.text) {
        hy_own_tokens kept = tokens; /* taken over by the template even if opening it fails */
        tokens = (hy_own_tokens){0};
        status = hy_own_template_open(t.text, t.size, kept, tokenizer, out);
        out->is_of_folder = true;
    }
    if (status == HY_OK && t.tools && out->kind == HY_CHAT_OWN) {
        status = hy_own_template_add_tools(t.tools, t.tools_size, out);
    }
    free(t.file);
    free(t.tools_file);
    hy_own_tokens_free(&tokens);
    return status;
}

hy_status hy_chat_template_open(hy_chat_kind kind, const hy_tokenizer *tokenizer,
                                const char *folder, hy_chat_template *out) {
    bool is_auto = kind == HY_CHAT_AUTO || kind == HY_CHAT_CONVERSATIONS;
    *out = (hy_chat_template){.kind = is_auto ? HY_CHAT_NONE : kind};
    time_t day = DAY_OF_TRAINING;
    gmtime_r(&day, &out->now);
    HY_TRY(find_tokens(tokenizer, &out->tokens));
    if (!is_auto) return hy_chat_template_check(out);
    hy_status status = folder && folder[0] ? read_folder(folder, tokenizer, out) : HY_OK;
    if (status != HY_OK) {
        hy_chat_template_close(out);
        return status;
    }
    /* If the tokenizer has the special tokens of a family, use the family's template. */
    const hy_chat_tokens *t = &out->tokens;
    if (out->kind == HY_CHAT_NONE) {
        if (t->im_start >= 0 && t->im_end >= 0) out->kind = HY_CHAT_CHATML;
        if (t->header_start >= 0 && t->turn_end >= 0) out->kind = HY_CHAT_LLAMA3;
    }
    return HY_OK;
}

void hy_chat_template_close(hy_chat_template *chat) {
    hy_own_template_close(chat->own);
    chat->own = NULL;
}
