/* render.c: what the library makes of conversations with a folder's own chat template, for
 * compare.py.
 *
 *   render FOLDER SECONDS < CASES      FOLDER has tokenizer.json and a chat template
 *
 * A case is a line {"messages": [...], "tools": [...], "asks": bool, "thinks": bool}; all but
 * messages may be absent. The program prints one line for each case: {"text", "ids", "answers"},
 * with an answer flag for each id; {"text", "ids", "error"} if the answers cannot be located; or
 * {"error"}. SECONDS since 1970 are the current time for the template. The first line says whether
 * the template can be rendered at all. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/error.h"
#include "base/json.h"
#include "data/conversation.h"

static hy_tokenizer *tokenizer;
static hy_chat_template chat;

static void put_line(hy_text *line) {
    puts(hy_text_string(line));
    hy_text_free(line);
}

static void put_error(void) {
    hy_text line = {0};
    hy_json_writer w;
    hy_json_begin(&w, &line, false);
    hy_json_open_object(&w, NULL);
    hy_json_put_string(&w, "error", hy_error_message());
    hy_json_close_object(&w);
    put_line(&line);
}

/* `without`: why there are no answers; NULL: there are. */
static hy_status write_case(const hy_rendered *r, const char *without) {
    hy_ids ids = {0};
    hy_flags answers = {0};
    hy_text line = {0};
    hy_json_writer w;
    HY_TRY(hy_rendered_encode(r, tokenizer, &ids, &answers));
    hy_json_begin(&w, &line, false);
    hy_json_open_object(&w, NULL);
    hy_json_put_string(&w, "text", hy_text_string(&r->whole.text));
    hy_json_open_array(&w, "ids");
    for (size_t i = 0; i < ids.count; i++) hy_json_put_int(&w, NULL, ids.data[i]);
    hy_json_close_array(&w);
    if (without) {
        hy_json_put_string(&w, "error", without);
    } else {
        hy_json_open_array(&w, "answers");
        for (size_t i = 0; i < answers.count; i++) hy_json_put_int(&w, NULL, answers.data[i]);
        hy_json_close_array(&w);
    }
    hy_json_close_object(&w);
    put_line(&line);
    hy_ids_free(&ids);
    hy_flags_free(&answers);
    return HY_OK;
}

static hy_status render(const hy_conversation *c, bool asks) {
    static hy_rendered rendered;
    char reason[512];
    chat.ignores_answers = false;
    if (hy_chat_render(&chat, c, asks, &rendered) == HY_OK) return write_case(&rendered, NULL);
    snprintf(reason, sizeof reason, "%s", hy_error_message());
    chat.ignores_answers = true;
    HY_TRY(hy_chat_render(&chat, c, asks, &rendered));
    return write_case(&rendered, reason);
}

static hy_status do_case(const char *text, size_t size) {
    static hy_conversation conversation;
    hy_json *json;
    bool asks = false, thinks = true;
    HY_TRY(hy_json_parse(text, size, "case", &json));
    (void)hy_json_as_bool(hy_json_get(hy_json_root(json), "asks"), &asks);
    (void)hy_json_as_bool(hy_json_get(hy_json_root(json), "thinks"), &thinks);
    chat.skips_thinking = !thinks;
    hy_status status = hy_conversation_read(hy_json_root(json), HY_ROWS_MESSAGES, &conversation);
    if (status == HY_OK) status = render(&conversation, asks);
    hy_json_free(json);
    return status;
}

int main(int argc, char **argv) {
    char *line = NULL;
    size_t room = 0;
    if (argc != 3) return 2;
    time_t now = (time_t)atoll(argv[2]);
    hy_status status = hy_tokenizer_open(argv[1], &tokenizer);
    if (status == HY_OK) status = hy_chat_template_open(HY_CHAT_AUTO, tokenizer, argv[1], &chat);
    if (status == HY_OK) status = hy_chat_template_check(&chat);
    if (status != HY_OK) {
        put_error();
        return 1;
    }
    gmtime_r(&now, &chat.now);
    puts("{}");
    for (ssize_t size; (size = getline(&line, &room, stdin)) > 0;) {
        if (do_case(line, (size_t)size) != HY_OK) put_error();
    }
    free(line);
    hy_chat_template_close(&chat);
    hy_tokenizer_close(tokenizer);
    return 0;
}
