/* answers.c: answers that a run with rewards generated: the best and the worst to one prompt, of some
 * rollouts from the first to the last. They are in rewards.jsonl. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "report/page.h"
#include "report/run.h"

#define SHOWN 5

/* The line that begins at `at` without its end; *next is where the next one begins. */
static size_t line_size(const char *text, size_t size, size_t at, size_t *next) {
    const char *end = memchr(text + at, '\n', size - at);
    size_t length = end ? (size_t)(end - text) - at : size - at;
    *next = at + length + (end ? 1 : 0);
    return length;
}

static size_t count_lines(const char *text, size_t size) {
    size_t count = 0;
    for (size_t at = 0, next; at < size; at = next, count++) line_size(text, size, at, &next);
    return count;
}

static void add_answer(hy_text *html, const hy_json_node *of) {
    const char *text = "";
    double reward = 0;
    hy_json_as_double(hy_json_get(of, "reward"), &reward);
    hy_json_as_string(hy_json_get(of, "answer"), &text, NULL);
    hy_html_cell(html, HY_FIGURE_NUMBER, reward);
    hy_html_put(html, "<td class=\"text long\">", text, "\n");
}

static void add_line(hy_text *html, const char *line, size_t size) {
    hy_json *json;
    const char *prompt;
    double rollout = 0;
    if (hy_json_parse(line, size, "rewards.jsonl", &json) != HY_OK) return;
    const hy_json_node *root = hy_json_root(json), *example = hy_json_get(root, "example");
    if (hy_json_as_string(hy_json_get(example, "prompt"), &prompt, NULL)) {
        hy_json_as_double(hy_json_get(root, "rollout"), &rollout);
        hy_text_add(html, HY_HTML_ROW);
        hy_html_figure(html, HY_FIGURE_COUNT, rollout + 1);
        hy_html_put(html, "<td class=\"text long\">", prompt, "");
        add_answer(html, hy_json_get(example, "best"));
        add_answer(html, hy_json_get(example, "worst"));
    }
    hy_json_free(json);
}

static void add_lines(hy_text *html, const char *text, size_t size) {
    size_t count = count_lines(text, size), shown = count < SHOWN ? count : SHOWN, k = 0;
    for (size_t at = 0, next, i = 0; k < shown; at = next, i++) {
        size_t length = line_size(text, size, at, &next);
        size_t wanted = shown < 2 ? 0 : k * (count - 1) / (shown - 1);
        if (i != wanted) continue;
        add_line(html, text + at, length);
        k++;
    }
}

void hy_page_answers(hy_page *page, int r) {
    static const char *const columns[] = {"rollout", "prompt",       "reward", "best answer",
                                          "reward",  "worst answer", NULL};
    char path[4096], *text;
    size_t size;
    if (hy_path_join(path, sizeof path, page->runs[r]->folder, "rewards.jsonl") != HY_OK) return;
    if (!hy_path_exists(path) || hy_file_read(path, &text, &size) != HY_OK) return;
    hy_text_clear(&page->scratch);
    add_lines(&page->scratch, text, size); /* nothing for a file of an older version */
    if (page->scratch.size > 0) {
        hy_html_open_table(page->html, "Answers", columns, 6);
        hy_text_add(page->html, hy_text_string(&page->scratch));
        hy_html_close_table(page->html);
    }
    free(text);
}
