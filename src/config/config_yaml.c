/* config_yaml.c: rewrites a configuration in YAML or JSON as libconfig text. See config_file.h.
 *
 * Every key stays on its line, so config_file.c reads all formats alike and reports the same errors
 * with the same lines. A list of words becomes one text with commas; a key without a value is left
 * out. Anchors, aliases and further documents are refused: nothing is expanded. JSON is YAML. */
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "base/error.h"
#include "config/config_file.h"

enum { DEPTH_MAX = 8, KEY_MAX = 128 };

typedef struct rewriter {
    const char *name; /* of the file */
    hy_text *out;
    size_t line; /* of `out`, from 0 */
    int depth;   /* of open mappings */
    int skipped; /* depth of what an unknown key holds */
    size_t key_line;
    bool in_list;      /* a list of words is open */
    bool has_words;    /* ... and not empty */
    char key[KEY_MAX]; /* waits for its value; "": the next scalar is a key */
} rewriter;

static hy_status refuse(const rewriter *r, size_t line, const char *why) {
    return hy_fail(HY_ERR_INPUT, "%s:%zu: %s", r->name, line + 1, why);
}

static void go_to_line(rewriter *r, size_t line) {
    for (; r->line < line; r->line++) hy_text_add(r->out, "\n");
}

/* The text of a string in quotes. */
static void add_quoted(rewriter *r, const unsigned char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) {
        char one[2] = {(char)bytes[i], 0};
        if (bytes[i] == '"' || bytes[i] == '\\')
            hy_text_addf(r->out, "\\%s", one);
        else if (bytes[i] < ' ')
            hy_text_addf(r->out, "\\x%02x", bytes[i]);
        else
            hy_text_add(r->out, one);
    }
}

static hy_status take_key(rewriter *r, const yaml_event_t *e) {
    const char *key = (const char *)e->data.scalar.value;
    const hy_setting *setting = hy_setting_find(key, NULL);
    if (setting && r->depth == 1 && strchr(key, '.')) key = hy_setting_leaf(setting);
    size_t plain = strspn(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    bool is_name = *key && !key[plain] && !strchr("-_0123456789", *key) && plain < KEY_MAX;
    HY_FAIL_IF(!is_name, HY_ERR_INPUT, "%s:%zu: \"%.60s\" is not the name of a key", r->name,
               e->start_mark.line + 1, key);
    snprintf(r->key, sizeof r->key, "%s", key);
    r->key_line = e->start_mark.line;
    return HY_OK;
}

static bool is_null(const yaml_event_t *e) {
    const char *text = (const char *)e->data.scalar.value;
    return e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (!*text || !strcmp(text, "~") || !strcmp(text, "null"));
}

static hy_status take_scalar(rewriter *r, const yaml_event_t *e) {
    if (r->depth == 0) return refuse(r, e->start_mark.line, "expected KEY: VALUE");
    if (e->data.scalar.anchor) return refuse(r, e->start_mark.line, "anchors are not accepted");
    if (!r->key[0]) return take_key(r, e);
    if (memchr(e->data.scalar.value, 0, e->data.scalar.length))
        return refuse(r, e->start_mark.line, "a string contains a zero byte");
    if (r->in_list) {
        if (r->has_words) hy_text_add(r->out, ",");
        r->has_words = true;
    } else if (is_null(e)) {
        r->key[0] = 0;
        return HY_OK;
    } else {
        go_to_line(r, e->start_mark.line);
        hy_text_addf(r->out, "%s = \"", r->key);
    }
    add_quoted(r, e->data.scalar.value, e->data.scalar.length);
    if (!r->in_list) hy_text_add(r->out, "\"; ");
    if (!r->in_list) r->key[0] = 0;
    return HY_OK;
}

/* Whether the open key is unknown, so that nothing but the key itself is of interest. */
static bool is_unknown(const rewriter *r) {
    bool is_group = false;
    const char *name;
    for (size_t i = 0; (name = hy_setting_group_at(i)); i++) is_group |= !strcmp(name, r->key);
    return r->depth == 1 && r->key[0] && !is_group && !hy_setting_find(r->key, NULL);
}

/* Writes an unknown key without what it holds: the reader reports it at its line. */
static hy_status begin_skipping(rewriter *r, bool is_group) {
    go_to_line(r, r->key_line);
    hy_text_addf(r->out, is_group ? "%s: { }; " : "%s = \"\"; ", r->key);
    r->key[0] = 0;
    r->skipped = 1;
    return HY_OK;
}

static hy_status take_mapping(rewriter *r, const yaml_event_t *e) {
    if (is_unknown(r)) return begin_skipping(r, true);
    if (e->data.mapping_start.anchor)
        return refuse(r, e->start_mark.line, "anchors are not accepted");
    if (r->depth > 0 && (!r->key[0] || r->in_list))
        return refuse(r, e->start_mark.line, "expected KEY: VALUE, not a group");
    if (++r->depth > DEPTH_MAX)
        return refuse(r, e->start_mark.line, "groups are nested more than 8 levels deep");
    if (r->depth > 1) go_to_line(r, e->start_mark.line);
    if (r->depth > 1) hy_text_addf(r->out, "%s: { ", r->key);
    r->key[0] = 0;
    return HY_OK;
}

static hy_status take_list(rewriter *r, const yaml_event_t *e) {
    if (is_unknown(r)) return begin_skipping(r, false);
    if (e->data.sequence_start.anchor)
        return refuse(r, e->start_mark.line, "anchors are not accepted");
    if (!r->key[0] || r->in_list)
        return refuse(r, e->start_mark.line, "expected KEY: VALUE, not a list");
    go_to_line(r, e->start_mark.line);
    hy_text_addf(r->out, "%s = \"", r->key);
    r->in_list = true;
    r->has_words = false;
    return HY_OK;
}

static hy_status take_event(rewriter *r, const yaml_event_t *e, int *documents) {
    if (r->skipped && e->type != YAML_STREAM_END_EVENT) {
        r->skipped += e->type == YAML_MAPPING_START_EVENT || e->type == YAML_SEQUENCE_START_EVENT;
        r->skipped -= e->type == YAML_MAPPING_END_EVENT || e->type == YAML_SEQUENCE_END_EVENT;
        return HY_OK;
    }
    switch (e->type) {
    case YAML_DOCUMENT_START_EVENT:
        return ++*documents == 1 ? HY_OK
                                 : refuse(r, e->start_mark.line, "expected only one document");
    case YAML_ALIAS_EVENT: return refuse(r, e->start_mark.line, "aliases are not accepted");
    case YAML_SCALAR_EVENT:
        return *documents == 1 && r->depth == 0 && is_null(e) ? HY_OK : take_scalar(r, e);
    case YAML_MAPPING_START_EVENT: return take_mapping(r, e);
    case YAML_SEQUENCE_START_EVENT: return take_list(r, e);
    case YAML_MAPPING_END_EVENT:
        if (--r->depth > 0) hy_text_add(r->out, "}; ");
        return HY_OK;
    case YAML_SEQUENCE_END_EVENT:
        hy_text_add(r->out, "\"; ");
        r->in_list = false;
        r->key[0] = 0;
        return HY_OK;
    default: return HY_OK;
    }
}

static hy_status describe_problem(const rewriter *r, const yaml_parser_t *parser) {
    if (parser->error == YAML_MEMORY_ERROR)
        return hy_fail(HY_ERR_MEMORY, "%s: no memory to parse the configuration", r->name);
    size_t line = parser->error == YAML_READER_ERROR ? 0 : parser->problem_mark.line;
    return refuse(r, line, parser->problem ? parser->problem : "syntax error");
}

hy_status hy_config_from_yaml(const char *text, size_t size, const char *name, hy_text *out) {
    yaml_parser_t parser;
    rewriter r = {.name = name, .out = out};
    int documents = 0;
    bool is_end = false;
    if (!yaml_parser_initialize(&parser))
        return hy_fail(HY_ERR_MEMORY, "%s: no memory to parse the configuration", name);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    hy_status status = HY_OK;
    while (status == HY_OK && !is_end) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            status = describe_problem(&r, &parser);
            break;
        }
        is_end = event.type == YAML_STREAM_END_EVENT;
        status = take_event(&r, &event, &documents);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    hy_text_add(out, "\n");
    return status == HY_OK ? hy_text_status(out) : status;
}
