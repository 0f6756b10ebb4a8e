/* settings.c: the settings of a run, and the differences between runs. See run.h and page.h.
 *
 * config.cfg is read in the format in which it is printed: one key per line, groups in braces. This
 * is enough for a report; other formats are ignored. */
#include <stdio.h>
#include <string.h>

#include "report/page.h"
#include "report/run.h"

typedef struct setting {
    char group[64], key[128]; /* "train." and "train.steps" */
    const char *value;
    size_t size;
} setting;

/* The next line with a value; moves *at behind it. False at the end. */
static bool next_setting(const char **at, setting *out) {
    while (**at) {
        const char *line = *at, *end = line + strcspn(line, "\n");
        *at = *end ? end + 1 : end;
        line += strspn(line, " ");
        size_t name = strspn(line, "abcdefghijklmnopqrstuvwxyz0123456789_");
        const char *rest = line + name;
        if (*line == '}') out->group[0] = 0;
        if (name == 0) continue;
        if (strncmp(rest, ": {", 3) == 0)
            snprintf(out->group, sizeof out->group, "%.*s.", (int)(name < 60 ? name : 60), line);
        if (strncmp(rest, " = ", 3) != 0) continue;
        snprintf(out->key, sizeof out->key, "%s%.*s", out->group, (int)(name < 60 ? name : 60),
                 line);
        out->value = rest + 3;
        bool is_text = *out->value == '"';
        out->value += is_text;
        out->size = 0;
        while (out->value + out->size < end) {
            char c = out->value[out->size];
            if (c == (is_text ? '"' : ';')) break;
            out->size += is_text && c == '\\' && out->value + out->size + 1 < end ? 2 : 1;
        }
        return true;
    }
    return false;
}

static bool find(const hy_run *run, const char *key, setting *out) {
    const char *at = run->config ? run->config : "";
    *out = (setting){0};
    while (next_setting(&at, out))
        if (strcmp(out->key, key) == 0) return true;
    return false;
}

bool hy_run_setting(const hy_run *run, const char *key, char *value, size_t size) {
    setting found;
    value[0] = 0;
    if (!find(run, key, &found)) return false;
    size_t used = 0;
    for (size_t i = 0; i < found.size && used + 1 < size; i++) {
        unsigned c = (unsigned char)found.value[i];
        if (c == '\\' && i + 1 < found.size) {
            c = (unsigned char)found.value[++i];
            if (c == 'x' && i + 2 < found.size && sscanf(found.value + i + 1, "%2x", &c) == 1)
                i += 2;
        }
        value[used++] = (char)c;
    }
    value[used] = 0;
    return true;
}

/* A row if the runs have different values; keys of earlier runs are not repeated. */
static void add_if_other(hy_page *page, int first, const setting *it) {
    setting found;
    bool differs = false;
    for (int r = 0; r < page->count; r++) {
        bool is_there = find(page->runs[r], it->key, &found);
        if (is_there && r < first) return;
        differs |=
            !is_there || found.size != it->size || memcmp(found.value, it->value, it->size) != 0;
    }
    if (!differs) return;
    char value[256];
    hy_html_put(page->html, HY_HTML_ROW, it->key, "");
    for (int r = 0; r < page->count; r++) {
        bool is_there = hy_run_setting(page->runs[r], it->key, value, sizeof value);
        hy_html_put(page->html, "<td>", is_there ? value : "\xE2\x80\x93", "");
    }
    hy_text_add(page->html, "\n");
}

void hy_page_settings(hy_page *page) {
    static const char others[] = " out name resume overwrite ";
    for (int r = 0; r < page->count; r++) {
        const char *at = page->runs[r]->config ? page->runs[r]->config : "";
        setting it = {0};
        while (next_setting(&at, &it)) {
            char word[140];
            snprintf(word, sizeof word, " %s ", it.key);
            if (!strstr(others, word)) add_if_other(page, r, &it);
        }
    }
}
