/* show_rows.c: rows of the data as they are trained: tokens, their texts, and which of them count
 * in the loss. See hybrid_tools.h.
 *
 * Only tokenizer, chat template and the shape of the model are opened; no weights are read. The
 * text of a token is found by decoding it together with the token before it, because it can depend
 * on that one. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/json.h"
#include "data/dataset.h"
#include "hybrid_tools.h"
#include "infer/inference.h"
#include "setup/setup.h"

typedef struct shower {
    hy_row_callback on_row;
    void *user;
    bool has_prompts;
    hy_text texts;       /* of all tokens, each with a zero byte */
    hy_text alone, pair; /* scratch memory */
    hy_row_token *tokens;
    size_t room;
} shower;

/* Appends the text of token number i and a zero byte. */
static hy_status add_text(shower *s, const hy_shown_row *row, uint32_t i) {
    const hy_tokenizer *tokenizer = row->tokenizer;
    int32_t ids[2] = {i ? row->tokens[i - 1] & ~HY_COUNTS : 0, row->tokens[i] & ~HY_COUNTS};
    hy_text_clear(&s->alone);
    hy_text_clear(&s->pair);
    if (i > 0) HY_TRY(hy_decode_text(tokenizer, ids, 1, 0, &s->alone));
    if (i > 0) HY_TRY(hy_decode_text(tokenizer, ids, 2, 0, &s->pair));
    size_t before = s->alone.size;
    bool follows = i > 0 && s->pair.size >= before &&
                   memcmp(hy_text_string(&s->pair), hy_text_string(&s->alone), before) == 0;
    if (!follows) HY_TRY(hy_decode_text(tokenizer, ids + 1, 1, 0, &s->texts));
    if (follows)
        hy_text_add_bytes(&s->texts, hy_text_string(&s->pair) + before, s->pair.size - before);
    hy_text_add_bytes(&s->texts, "", 1);
    return hy_text_status(&s->texts);
}

static hy_status show(void *user, const hy_shown_row *row) {
    shower *s = user;
    hy_text_clear(&s->texts);
    HY_TRY(hy_array_reserve(&s->tokens, &s->room, row->count, sizeof *s->tokens, "tokens"));
    for (uint32_t i = 0; i < row->count; i++) {
        size_t begin = s->texts.size;
        HY_TRY(add_text(s, row, i));
        s->tokens[i] = (hy_row_token){.id = row->tokens[i] & ~HY_COUNTS,
                                      .counts = row->tokens[i] < 0,
                                      .text_size = s->texts.size - begin - 1};
    }
    const char *text = hy_text_string(&s->texts); /* it has moved while it grew */
    for (uint32_t i = 0; i < row->count; text += s->tokens[i++].text_size + 1)
        s->tokens[i].text = text;
    hy_row_view view = {.size = sizeof view,
                        .file = row->path,
                        .line = (int64_t)row->line,
                        .format = row->format,
                        .dropped = row->dropped ? row->dropped : "",
                        .is_cut = row->is_cut,
                        .part = (int32_t)row->part,
                        .parts = (int32_t)row->parts,
                        .tokens = s->tokens,
                        .token_count = row->count,
                        .answer = row->answer ? row->answer : "",
                        .is_prompt = s->has_prompts,
                        .expected = row->expected ? row->expected : ""};
    s->on_row(s->user, &view);
    return HY_OK;
}

static hy_status open_and_show(hy_engine *e, int64_t most, shower *s) {
    hy_shape shape;
    hy_data_request request;
    HY_TRY(hy_shape_from_settings(e->request.settings, &shape));
    HY_TRY(hy_model_create(&shape, &e->model));
    HY_TRY(hy_engine_data_request(e, false, &request));
    const char *asked = e->request.settings->input.tokenizer;
    hy_tokenizer *used = NULL;
    if (request.tokenizer[0]) HY_TRY(hy_tokenizer_open(request.tokenizer, &used));
    hy_status status = hy_model_compare_tokenizer(e, asked, request.folder, used);
    hy_tokenizer_close(used);
    HY_TRY(status);
    s->has_prompts = request.options.prompts;
    return hy_dataset_show_rows(&request.options, (uint64_t)most, show, s);
}

hy_status hy_show_rows(const hy_config *config, const hy_observer *observer, int64_t most,
                       hy_row_callback on_row, void *user) {
    static const hy_observer nobody = {0};
    hy_engine *e;
    shower s = {.on_row = on_row, .user = user};
    HY_FAIL_IF(most < 1, HY_ERR_INPUT, "%lld rows were requested; expected 1 or more",
               (long long)most);
    HY_TRY(hy_engine_create(&e));
    e->request.settings = hy_config_settings(config);
    e->observer = observer ? observer : &nobody;
    hy_status status = open_and_show(e, most, &s);
    hy_engine_destroy(e);
    hy_text_free(&s.texts);
    hy_text_free(&s.alone);
    hy_text_free(&s.pair);
    free(s.tokens);
    return status;
}

hy_status hy_row_view_json(const hy_row_view *row, char **out) {
    hy_text text = {0};
    hy_json_writer w;
    hy_json_begin(&w, &text, false);
    hy_json_open_object(&w, NULL);
    hy_json_put_string(&w, "file", row->file);
    hy_json_put_int(&w, "line", row->line);
    hy_json_put_string(&w, "format", row->format);
    if (row->dropped[0]) hy_json_put_string(&w, "dropped", row->dropped);
    hy_json_put_bool(&w, "cut", row->is_cut);
    if (row->parts > 1) hy_json_put_int(&w, "part", row->part);
    if (HY_HAS_MEMBER(row, answer) && row->answer[0]) hy_json_put_string(&w, "answer", row->answer);
    if (HY_HAS_MEMBER(row, expected) && row->expected[0])
        hy_json_put_string(&w, "expected", row->expected);
    hy_json_open_array(&w, "tokens");
    for (size_t i = 0; i < row->token_count; i++) {
        hy_json_open_object(&w, NULL);
        hy_json_put_int(&w, "id", row->tokens[i].id);
        hy_json_put_string(&w, "text", row->tokens[i].text);
        hy_json_put_bool(&w, "counts", row->tokens[i].counts);
        hy_json_close_object(&w);
    }
    hy_json_close_array(&w);
    hy_json_close_object(&w);
    hy_text_add(&text, "\n");
    return hy_text_take(&text, out);
}
