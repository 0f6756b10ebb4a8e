/* test_data_pairs.c: rows with a chosen and a rejected answer: their forms, what is cut and
 * dropped, packing, numbers of pairs, mixtures and streams. */
#include "base/hash.h"
#include "base/rng.h"
#include "data/csv_rows.h"
#include "data/dataset.h"
#include "data_rig.h"
#include "harness.h"

#define GOLDEN HY_SOURCE_DIR "/tests/golden/rows/"
#define CHATML                                                                                     \
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"   \
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define GENERATION                                                                                 \
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}"   \
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}"                  \
    "{{ m.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
#define TOOLS                                                                                      \
    "{{ tools | tojson if tools else '' }}{% for m in messages %}{{ '<|im_start|>' + m.role + "    \
    "(m.content or '') + (m.tool_calls | tojson if m.tool_calls else '') + '<|im_end|>' }}"        \
    "{% endfor %}"

enum { SEQ = 512 };

static char folder[256];
static char last_warning[1024];

static void make_folder(void) {
    temp_folder(folder);
    last_warning[0] = '\0';
}
static void drop_folder(void) { remove_folder(folder); }

static const char *path_of(const char *name) {
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static const char *write_file(const char *name, const char *text) {
    const char *path = path_of(name);
    must(hy_file_write_atomic(path, text, strlen(text)));
    return path;
}

static void keep_warning(void *user, const char *text) {
    (void)user;
    snprintf(last_warning, sizeof last_warning, "%s", text);
}

/* Bytes as tokens, no template, and the data is also the held-out data. */
static hy_dataset_options options_of(const char *path, int32_t seq) {
    return (hy_dataset_options){.path = path,
                                .val_path = path,
                                .seq = seq,
                                .vocab = 256,
                                .seed = 7,
                                .pairs = HY_PAIRS,
                                .workers = 2,
                                .on_warning = keep_warning};
}

/* ---- forms of rows --------------------------------------------------------------------------- */

typedef struct filled {
    int32_t tokens[SEQ], targets[SEQ], starts[SEQ];
    int64_t counted;
} filled;

static filled fill(const hy_dataset *data, hy_split split, uint64_t p) {
    filled f;
    f.counted = hy_dataset_fill(data, split, p, f.tokens, f.targets, f.starts);
    ck_assert_msg(f.counted >= 0, "%s", hy_error_message());
    return f;
}

/* The number of positions that hold tokens of examples: the last document is the rest. */
static int used(const filled *f, int32_t seq) { return f->starts[seq - 1]; }

#define MESSAGE(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define ASKS(text) MESSAGE("user", text)
#define SAYS(text) MESSAGE("assistant", text)

typedef struct row_form {
    const char *pair, *rows[2]; /* a pair, and the rows of a prompt and its completion */
} row_form;

static const row_form texts[] = {
    {"{\"prompt\": \"Q\", \"chosen\": \" A\", \"rejected\": \" B b\"}",
     {"{\"prompt\": \"Q\", \"completion\": \" A\"}",
      "{\"prompt\": \"Q\", \"completion\": \" B b\"}"}},
    {"{\"Rejected\": 3, \"Chosen\": true, \"Prompt\": \"Q\", \"score\": 1, \"system\": \"S\"}",
     {"{\"system\": \"S\", \"prompt\": \"Q\", \"completion\": \"true\"}",
      "{\"system\": \"S\", \"prompt\": \"Q\", \"completion\": \"3\"}"}},
    /* the common beginning up to its last blank */
    {"{\"chosen\": \"Human: Hi\\n\\nAssistant: Hello\", "
     "\"rejected\": \"Human: Hi\\n\\nAssistant: Help\"}",
     {"{\"prompt\": \"Human: Hi\\n\\nAssistant:\", \"completion\": \" Hello\"}",
      "{\"prompt\": \"Human: Hi\\n\\nAssistant:\", \"completion\": \" Help\"}"}},
    {"{\"prompt\": \"\", \"chosen\": \"Hi\\na\\u00e4b c\", \"rejected\": \"Hi\\na\\u00f6b\"}",
     {"{\"prompt\": \"Hi\\n\", \"completion\": \"a\\u00e4b c\"}",
      "{\"prompt\": \"Hi\\n\", \"completion\": \"a\\u00f6b\"}"}},
};

#define PAIR(chosen, rejected) "\"chosen\": [" chosen "], \"rejected\": [" rejected "]}"
#define ROW(prompt, completion) "\"prompt\": [" prompt "], \"completion\": [" completion "]}"
#define HUMAN(text) "{\"from\": \"human\", \"value\": \"" text "\"}"
#define GPT(text) "{\"from\": \"gpt\", \"value\": \"" text "\"}"
#define TURNS(id) ASKS("Q") ", {" id "\"role\": \"assistant\", \"content\": \"R\"}," ASKS("S")

static const row_form lists[] = {
    {"{\"prompt\": [" ASKS("Q") "]," PAIR(SAYS("A"), SAYS("B")),
     {"{" ROW(ASKS("Q"), SAYS("A")), "{" ROW(ASKS("Q"), SAYS("B"))}},
    /* the prompt is a text, and the answers are messages; and the other way round */
    {"{\"prompt\": \"Q\"," PAIR(SAYS("A"), SAYS("B")),
     {"{" ROW(ASKS("Q"), SAYS("A")), "{" ROW(ASKS("Q"), SAYS("B"))}},
    {"{\"prompt\": [" TURNS("") "], \"chosen\": \"A\", \"rejected\": \"B\"}",
     {"{" ROW(TURNS(""), SAYS("A")), "{" ROW(TURNS(""), SAYS("B"))}},
    /* whole conversations, with and without a prompt beside them; ids of messages may differ */
    {"{\"prompt\": \"S\"," PAIR(MESSAGE("system", "Y") "," TURNS("") "," SAYS("A"),
                                MESSAGE("system", "Y") "," TURNS("\"id\": 7,") "," SAYS("B")),
     {"{" ROW(MESSAGE("system", "Y") "," TURNS(""), SAYS("A")),
      "{" ROW(MESSAGE("system", "Y") "," TURNS(""), SAYS("B"))}},
    {"{\"system\": \"Y\"," PAIR(ASKS("Q") "," SAYS("A"),
                                ASKS("Q") "," SAYS("B") "," ASKS("R") "," SAYS("C")),
     {"{\"system\": \"Y\"," ROW(ASKS("Q"), SAYS("A")),
      "{\"system\": \"Y\"," ROW(ASKS("Q"), SAYS("B") "," ASKS("R") "," SAYS("C"))}},
    /* a list of turns under another key is the prompt; an answer is one message */
    {"{\"conversations\": [" HUMAN("Q") "], \"chosen\": \"I am A\", \"rejected\": \"I am B\"}",
     {"{" ROW(ASKS("Q"), SAYS("I am A")), "{" ROW(ASKS("Q"), SAYS("I am B"))}},
    {"{\"conversations\": [" HUMAN("Q") "," GPT("R") "," HUMAN(
         "S") "], \"system\": \"Y\","
              "\"chosen\": " GPT("A") ", \"rejected\": " GPT("B") "}",
     {"{\"system\": \"Y\"," ROW(TURNS(""), SAYS("A")),
      "{\"system\": \"Y\"," ROW(TURNS(""), SAYS("B"))}},
    {"{\"prompt\": null, \"messages\": [" TURNS("") "], \"chosen\": " SAYS("A") ", \"rejected\": "
                                                                                "[" SAYS("B") "]}",
     {"{" ROW(TURNS(""), SAYS("A")), "{" ROW(TURNS(""), SAYS("B"))}},
    {"{\"prompt\": \"Q\", \"chosen\": " GPT("A") ", \"rejected\": " GPT("B") "}",
     {"{" ROW(ASKS("Q"), SAYS("A")), "{" ROW(ASKS("Q"), SAYS("B"))}},
    /* unless a prompt is there, or it is a whole conversation as the answers are */
    {"{\"messages\": [" ASKS("R") "], \"prompt\": \"Q\", \"chosen\": \"A\", \"rejected\": \"B\"}",
     {"{\"prompt\": \"Q\", \"completion\": \"A\"}", "{\"prompt\": \"Q\", \"completion\": \"B\"}"}},
    {"{\"messages\": [" ASKS("Q") "," SAYS("A") "]," PAIR(ASKS("Q") "," SAYS("A"),
                                                          ASKS("Q") "," SAYS("B")),
     {"{" ROW(ASKS("Q"), SAYS("A")), "{" ROW(ASKS("Q"), SAYS("B"))}},
    /* a list as the prompt, which the answers repeat, maybe without its system turn */
    {"{\"prompt\": [" TURNS("") "]," PAIR(TURNS("\"id\": 7,") "," SAYS("A"),
                                          TURNS("") "," SAYS("B")),
     {"{" ROW(TURNS(""), SAYS("A")), "{" ROW(TURNS(""), SAYS("B"))}},
    {"{\"messages\": [" TURNS("") "]," PAIR(TURNS("") "," SAYS("A"), SAYS("B")),
     {"{" ROW(TURNS(""), SAYS("A")), "{" ROW(TURNS(""), SAYS("B"))}},
    {"{\"prompt\": [" MESSAGE("system", "Y") "," ASKS("Q") "]," PAIR(
         ASKS("Q") "," SAYS("A"), MESSAGE("system", "Y") "," ASKS("Q") "," SAYS("B")),
     {"{" ROW(MESSAGE("system", "Y") "," ASKS("Q"), SAYS("A")),
      "{" ROW(MESSAGE("system", "Y") "," ASKS("Q"), SAYS("B"))}},
    {"{\"system\": \"Y\", \"prompt\": [" ASKS("Q") "]," PAIR(
         ASKS("Q") "," SAYS("A"), ASKS("Q") "," SAYS("B") "," ASKS("Q") "," SAYS("C")),
     {"{\"system\": \"Y\"," ROW(ASKS("Q"), SAYS("A")),
      "{\"system\": \"Y\"," ROW(ASKS("Q"), SAYS("B") "," ASKS("Q") "," SAYS("C"))}},
    /* what does not repeat the prompt follows it */
    {"{\"prompt\": [" ASKS("Q") "," SAYS("R") "]," PAIR(ASKS("S") "," SAYS("A"),
                                                        ASKS("S") "," SAYS("B")),
     {"{" ROW(ASKS("Q") "," SAYS("R"), ASKS("S") "," SAYS("A")),
      "{" ROW(ASKS("Q") "," SAYS("R"), ASKS("S") "," SAYS("B"))}},
};

/* Keys with other names. The input of an instruction belongs to the prompt. */
static const char *const other_names[] = {"prompt=Instruction", "prompt=instruction",
                                          "prompt=ask,input=about", "input=about",
                                          "conversations=asked"};
static const row_form renamed[] = {
    {"{\"instruction\": \"Add\", \"input\": \"1 2\", \"chosen\": \"3\", \"rejected\": \"4\"}",
     {"{\"instruction\": \"Add\", \"input\": \"1 2\", \"output\": \"3\"}",
      "{\"instruction\": \"Add\", \"input\": \"1 2\", \"output\": \"4\"}"}},
    {"{\"instruction\": \"Add\", \"input\": \"\", \"chosen\": \"3\", \"rejected\": \"4\"}",
     {"{\"instruction\": \"Add\", \"output\": \"3\"}",
      "{\"instruction\": \"Add\", \"output\": \"4\"}"}},
    {"{\"ask\": \"Add\", \"about\": \"1 2\", \"chosen\": \"3\", \"rejected\": \"4\"}",
     {"{\"instruction\": \"Add\", \"input\": \"1 2\", \"output\": \"3\"}",
      "{\"instruction\": \"Add\", \"input\": \"1 2\", \"output\": \"4\"}"}},
    {"{\"prompt\": \"Add\", \"about\": \"1 2\", \"chosen\": \"3\", \"rejected\": \"4\"}",
     {"{\"instruction\": \"Add\", \"input\": \"1 2\", \"output\": \"3\"}",
      "{\"instruction\": \"Add\", \"input\": \"1 2\", \"output\": \"4\"}"}},
    {"{\"asked\": [" HUMAN("Q") "], \"chosen\": \"A\", \"rejected\": \"B\"}",
     {"{" ROW(ASKS("Q"), SAYS("A")), "{" ROW(ASKS("Q"), SAYS("B"))}},
};

/* The sequence of a pair is that of its two rows, one after the other. Columns are those of the
 * pair. */
static void check_form(const row_form *form, hy_dataset_options options) {
    char rows[1200];
    options.path = options.val_path = write_file("pairs.jsonl", form->pair);
    options.seq = SEQ;
    hy_dataset *pairs = open_data(options);
    options.columns = NULL;
    snprintf(rows, sizeof rows, "%s\n%s\n", form->rows[0], form->rows[1]);
    options.path = options.val_path = write_file("rows.jsonl", rows);
    options.pairs = HY_NO_PAIRS;
    options.packs = true; /* for the beginnings of documents */
    options.seq = SEQ;
    hy_dataset *both = open_data(options);
    filled pair = fill(pairs, HY_TRAIN, 0), row = fill(both, HY_TRAIN, 0);
    ck_assert_int_eq(pair.counted, 1);
    ck_assert(hy_dataset_describe(pairs)->has_doc_starts);
    ck_assert_uint_eq(hy_dataset_describe(pairs)->targets[HY_TRAIN], 1);
    ck_assert_int_gt(used(&row, SEQ), 0);
    ck_assert_msg(memcmp(pair.tokens, row.tokens, sizeof row.tokens) == 0, "%s", form->pair);
    ck_assert_msg(memcmp(pair.targets, row.targets, sizeof row.targets) == 0, "%s", form->pair);
    ck_assert_msg(memcmp(pair.starts, row.starts, sizeof row.starts) == 0, "%s", form->pair);
    hy_dataset_close(both);
    hy_dataset_close(pairs);
}

static void check_renamed(hy_dataset_options options) {
    for (size_t i = 0; i < sizeof renamed / sizeof renamed[0]; i++) {
        options.columns = other_names[i];
        check_form(&renamed[i], options);
    }
}

START_TEST(a_pair_is_two_rows_of_the_prompt_with_each_answer) {
    static const char *const templates[] = {CHATML, GENERATION};
    hy_dataset_options options = options_of("", SEQ);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) check_form(&texts[i], options);
    options.chat_template = HY_CHAT_ALPACA;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) check_form(&lists[i], options);
    check_renamed(options);
    options.chat_template = HY_CHAT_PLAIN;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) check_form(&lists[i], options);
    check_renamed(options);
    options.chat_template = HY_CHAT_AUTO;
    options.tokenizer = GOLDEN "tokenizer.json";
    options.vocab = 1000;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) check_form(&texts[i], options);
    options.model_folder = folder;
    for (int k = 0; k < 2; k++) {
        write_file("chat_template.jinja", templates[k]);
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) check_form(&texts[i], options);
        for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) check_form(&lists[i], options);
        check_renamed(options);
    }
}
END_TEST

#define CALL(name)                                                                                 \
    "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": "     \
    "\"" name "\", \"arguments\": {\"x\": 1, \"y\": [true, \"z\"]}}}]}," MESSAGE("tool", "1")

START_TEST(tools_and_calls_are_those_of_other_rows) {
    static const row_form forms[] = {
        {"{\"tools\": [{\"name\": \"f\"}]," PAIR(ASKS("Q") "," CALL("f") "," SAYS("A"),
                                                 ASKS("Q") "," CALL("g") "," SAYS("A")),
         {"{\"tools\": [{\"name\": \"f\"}]," ROW(ASKS("Q"), CALL("f") "," SAYS("A")),
          "{\"tools\": [{\"name\": \"f\"}]," ROW(ASKS("Q"), CALL("g") "," SAYS("A"))}},
        {"{" PAIR(ASKS("Q") "," CALL("f") "," SAYS("A"), ASKS("Q") "," CALL("f") "," SAYS("B")),
         {"{" ROW(ASKS("Q") "," CALL("f"), SAYS("A")),
          "{" ROW(ASKS("Q") "," CALL("f"), SAYS("B"))}}};
    hy_dataset_options options = options_of("", SEQ);
    write_file("chat_template.jinja", TOOLS);
    options.tokenizer = GOLDEN "tokenizer.json";
    options.vocab = 1000;
    options.model_folder = folder;
    for (int i = 0; i < 2; i++) check_form(&forms[i], options);
}
END_TEST

static hy_dataset_options two_pairs(const char *name, const char *rows, const char *columns) {
    hy_dataset_options options = options_of(write_file(name, rows), 32);
    options.columns = columns;
    return options;
}

START_TEST(pairs_have_other_names_or_are_columns_of_csv) {
    hy_dataset *data[3] = {
        open_data(two_pairs("a.jsonl",
                            "{\"prompt\": \"Q\", \"chosen\": \"a, b\", \"rejected\": \"c\"}\n"
                            "{\"prompt\": \"R\", \"chosen\": \"d\", \"rejected\": \"e\"}\n",
                            NULL)),
        open_data(two_pairs("b.jsonl",
                            "{\"ask\": \"Q\", \"good\": \"a, b\", \"bad\": \"c\"}\n"
                            "{\"ask\": \"R\", \"good\": \"d\", \"bad\": \"e\"}\n",
                            "prompt=ask,chosen=good,rejected=bad")),
        open_data(two_pairs("c.csv", "prompt,chosen,rejected\nQ,\"a, b\",c\nR,d,e\n", NULL))};
    for (uint64_t p = 0; p < 2; p++) {
        filled first = fill(data[0], HY_TRAIN, p);
        for (int i = 1; i < 3; i++) {
            filled other = fill(data[i], HY_TRAIN, p);
            ck_assert_mem_eq(first.tokens, other.tokens, 32 * sizeof(int32_t));
            ck_assert_mem_eq(first.targets, other.targets, 32 * sizeof(int32_t));
        }
    }
    for (int i = 0; i < 3; i++) hy_dataset_close(data[i]);
    static const char header[] = "prompt,chosen,rejected\n1,2,3\n", other[] = "a,b,c\n1,2,3\n";
    ck_assert(hy_csv_is_header(header, strlen(header)));
    ck_assert(!hy_csv_is_header(other, strlen(other)));
}
END_TEST

START_TEST(the_format_of_pairs_is_described) {
    hy_dataset_options options = options_of(
        write_file("a.jsonl", "{\"prompt\": \"Q\", \"chosen\": \"A\", \"rejected\": \"B\"}"), 64);
    hy_dataset *data = open_data(options);
    ck_assert_str_eq(hy_dataset_describe(data)->row_format,
                     "pairs of chosen and rejected answers; no chat template; loss on answers");
    ck_assert(hy_dataset_describe(data)->prompt.is_single);
    hy_dataset_close(data);
    write_file("chat_template.jinja", CHATML);
    options.tokenizer = GOLDEN "tokenizer.json";
    options.vocab = 1000;
    options.model_folder = folder;
    options.path = options.val_path = write_file("b.jsonl", lists[3].pair);
    data = open_data(options);
    ck_assert_str_eq(hy_dataset_describe(data)->row_format,
                     "pairs of chosen and rejected answers as messages; the chat template of the "
                     "model folder; loss on answers; ignored keys: prompt, id (in 1 message)");
    ck_assert(!hy_dataset_describe(data)->prompt.is_single);
    hy_dataset_close(data);
}
END_TEST

#define FORMAT "pairs of chosen and rejected answers as messages; no chat template; loss on answers"

START_TEST(keys_that_are_not_used_are_listed) {
    static const struct {
        const char *row, *ignored, *columns;
    } rows[] = {
        {"{\"conversations\": [" HUMAN("Q") "], \"input\": \"x\", \"chosen\": {\"from\": \"gpt\", "
                                            "\"id\": 1, \"value\": \"A\"}, \"rejected\": " GPT(
                                                "B") "}",
         "; ignored keys: input, id (in 1 message)", NULL},
        {"{\"messages\": [" ASKS("Q") "," SAYS("A") "], \"question\": \"Q\"," PAIR(
             ASKS("Q") "," SAYS("A"), ASKS("Q") "," SAYS("B")),
         "; ignored keys: messages, question", NULL},
        {"{\"instruction\": \"Q\", \"input\": \"R\"," PAIR(SAYS("A"), SAYS("B")), "",
         "prompt=instruction"},
        {"{\"instruction\": \"R\", \"input\": \"Q\"," PAIR(SAYS("A"), SAYS("B")),
         "; ignored keys: instruction", "prompt=input"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        hy_dataset_options options = options_of(write_file("a.jsonl", rows[i].row), SEQ);
        char expected[200];
        options.chat_template = HY_CHAT_PLAIN;
        options.columns = rows[i].columns;
        hy_dataset *data = open_data(options);
        snprintf(expected, sizeof expected, FORMAT "%s", rows[i].ignored);
        ck_assert_str_eq(hy_dataset_describe(data)->row_format, expected);
        hy_dataset_close(data);
    }
}
END_TEST

START_TEST(targets_may_show_the_tokens_of_prompts) {
    hy_dataset_options options = options_of(
        write_file("a.jsonl", "{\"prompt\": \"pq\", \"chosen\": \"a\", \"rejected\": \"bc\"}"), 10);
    static const int32_t targets[2][10] = {{-1, 'a', 0, -1, 'b', 'c', 0, -1, -1, -1},
                                           {-2 - 'q', 'a', 0, -2 - 'q', 'b', 'c', 0, -1, -1, -1}};
    static const int32_t tokens[10] = {'p', 'q', 'a', 'p', 'q', 'b', 'c'};
    static const int32_t starts[10] = {0, 0, 0, 3, 3, 3, 3, 7, 7, 7};
    for (int i = 0; i < 2; i++) {
        options.pairs = i ? HY_PAIRS_WITH_PROMPTS : HY_PAIRS;
        hy_dataset *data = open_data(options);
        ck_assert_str_eq(hy_dataset_describe(data)->row_format,
                         i ? "pairs of chosen and rejected answers; no chat template; loss on "
                             "answers and, for the chosen one, its prompt"
                           : "pairs of chosen and rejected answers; no chat template; loss on "
                             "answers");
        for (int split = 0; split < 2; split++) {
            filled f = fill(data, (hy_split)split, 0);
            ck_assert_int_eq(f.counted, 1);
            ck_assert_mem_eq(f.tokens, tokens, sizeof tokens);
            ck_assert_mem_eq(f.targets, targets[i], sizeof targets[i]);
            ck_assert_mem_eq(f.starts, starts, sizeof starts);
        }
        hy_dataset_close(data);
    }
}
END_TEST

/* ---- cutting --------------------------------------------------------------------------------- */

/* Positions of both examples, after cutting a pair whose texts have these bytes. */
static void check_cut(int32_t seq, int prompt, int chosen, int rejected, int kept_chosen,
                      int kept_rejected) {
    char row[400];
    snprintf(row, sizeof row,
             "{\"prompt\": \"%.*s\", \"chosen\": \"%.*s\", \"rejected\": \"%.*s\"}", prompt,
             "pppppppppppppppp", chosen, "cccccccccccccccccccccc", rejected,
             "rrrrrrrrrrrrrrrrrrrrrr");
    hy_dataset *data = open_data(options_of(write_file("a.jsonl", row), seq));
    filled f = fill(data, HY_TRAIN, 0);
    bool is_cut = kept_chosen < prompt + chosen || kept_rejected < prompt + rejected;
    int both = kept_chosen + kept_rejected;
    ck_assert_int_eq(f.starts[kept_chosen - 1], 0);
    ck_assert_int_eq(f.starts[both - 1], kept_chosen);
    if (both < seq) ck_assert_int_eq(f.starts[both], both);
    ck_assert_int_eq(f.targets[prompt - 1], 'c');
    ck_assert_int_eq(f.targets[kept_chosen + prompt - 1], 'r');
    ck_assert_uint_eq(hy_dataset_describe(data)->cut_rows, is_cut);
    ck_assert_uint_eq(hy_dataset_describe(data)->dropped_rows, 0);
    if (is_cut)
        ck_assert_ptr_nonnull(strstr(last_warning, "cut 1 of 1 rows because their two examples "
                                                   "together are longer than the sequence of"));
    hy_dataset_close(data);
}

START_TEST(answers_are_cut_to_half_a_sequence_or_to_what_is_left) {
    /* An example has as many positions as its prompt and answer have bytes: the end is a target. */
    check_cut(20, 4, 6, 6, 10, 10);
    check_cut(20, 4, 7, 5, 11, 9);
    check_cut(20, 4, 7, 6, 10, 10);
    check_cut(20, 4, 20, 20, 10, 10);
    check_cut(20, 4, 2, 20, 6, 14);
    check_cut(20, 4, 20, 3, 13, 7);
    check_cut(21, 4, 20, 20, 10, 10);
    check_cut(21, 4, 20, 7, 10, 10);
    check_cut(21, 4, 6, 20, 10, 11);
    check_cut(20, 10, 1, 5, 10, 10);
}
END_TEST

/* ---- rows that are dropped ------------------------------------------------------------------- */

static const struct {
    const char *row, *why;
    bool is_malformed;
} lost[] = {
    {"{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"a\"}",
     "chosen and rejected are the same", true},
    {"{\"chosen\": \"p q\", \"rejected\": \"p q\"}", "chosen and rejected are the same", true},
    {"{\"prompt\": \"p\", \"chosen\": \"aaaaaaaaaaaaaaab\", \"rejected\": \"aaaaaaaaaaaaaaac\"}",
     "chosen and rejected are the same after cutting", false},
    {"{\"prompt\": \"p\", \"chosen\": \"\", \"rejected\": \"a\"}", "the chosen answer is empty",
     true},
    {"{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"\"}", "the rejected answer is empty",
     true},
    {"{\"prompt\": \"ppppppppppppppp\", \"chosen\": \"a\", \"rejected\": \"b\"}",
     "the prompt leaves no room for both answers", false},
    {"{\"prompt\": \"p\", \"chosen\": \"a\"}", "\"rejected\" is missing", true},
    {"{\"prompt\": \"p\", \"rejected\": \"a\"}", "\"chosen\" is missing", true},
    {"{\"prompt\": \"p\", \"chosen\": {}, \"rejected\": \"b\"}",
     "\"chosen\" is not a text, a number or a boolean", true},
    {"{\"prompt\": [], \"chosen\": \"a\", \"rejected\": \"b\"}",
     "there is no \"prompt\", and \"chosen\" and \"rejected\" do not begin with the same words",
     true},
    {"{\"chosen\": \" a b\", \"rejected\": \" c d\"}",
     "there is no \"prompt\", and \"chosen\" and \"rejected\" do not begin with the same words",
     true},
    {"{\"question\": \"p\", \"chosen\": \"a b\", \"rejected\": \"a c\"}",
     "there is no \"prompt\", but \"question\"; --columns prompt=question makes it the prompt",
     true},
    {"{\"instruction\": \"p\", \"question\": \"\", \"chosen\": \"a b\", \"rejected\": \"a c\"}",
     "there is no \"prompt\", but \"instruction\"; --columns prompt=instruction makes it the",
     true},
    {"{\"input\": \"p\", \"chosen\": \"a b\", \"rejected\": \"a c\"}",
     "there is no \"prompt\", but \"input\"; --columns prompt=input makes it the prompt", true},
    {"{\"messages\": \"p\", \"chosen\": \"a b\", \"rejected\": \"a c\"}",
     "there is no \"prompt\", but \"messages\"; --columns prompt=messages makes it the prompt",
     true},
    {"{\"conversations\": [" HUMAN("p") "], \"chosen\": \"a b\", \"rejected\": \"a c\"}",
     "\"conversations\" is not a text, a number or a boolean", true},
    {"{\"prompt\": \"p\", \"chosen\": [], \"rejected\": \"b\"}", "the chosen answer is empty",
     true},
    {"{\"prompt\": \"p\", \"chosen\": [" SAYS("a") "], \"rejected\": \"b\"}",
     "one of \"chosen\" and \"rejected\" has messages, the other has none", true},
    {"{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": " GPT("b") "}",
     "one of \"chosen\" and \"rejected\" has messages, the other has none", true},
    {"{\"prompt\": \"p\", \"completion\": \"a\"}", "\"chosen\" is missing", true},
};

START_TEST(rows_without_a_pair_are_dropped_with_their_reason) {
    for (size_t i = 0; i < sizeof lost / sizeof lost[0]; i++) {
        char rows[512], expected[400];
        snprintf(rows, sizeof rows,
                 "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}\n%s\n"
                 "{\"prompt\": \"p\", \"chosen\": \"c\", \"rejected\": \"d\"}\n",
                 lost[i].row);
        hy_dataset_options options = options_of(write_file("m.jsonl", rows), 20);
        hy_dataset *data = open_data(options);
        snprintf(expected, sizeof expected, "1 of 3 rows dropped (1: %s", lost[i].why);
        ck_assert_msg(!strncmp(hy_dataset_describe(data)->row_losses, expected, strlen(expected)),
                      "%s: %s", lost[i].row, hy_dataset_describe(data)->row_losses);
        ck_assert_uint_eq(hy_dataset_describe(data)->bad_rows, lost[i].is_malformed);
        ck_assert_uint_eq(hy_dataset_describe(data)->cut_rows, 0);
        ck_assert_uint_eq(hy_dataset_describe(data)->pair_count, 2);
        hy_dataset_close(data);
        options.stops_at_bad_row = true;
        if (lost[i].is_malformed) {
            must_refuse(options, "m.jsonl:2: ");
            must_refuse(options, lost[i].why);
        }
    }
}
END_TEST

START_TEST(lists_of_messages_without_a_pair_are_dropped) {
    static const char *const rows[][2] = {
        {"{\"chosen\": [" ASKS("q") "," SAYS("a") "], \"rejected\": [" ASKS("q") "," SAYS("a") "]}",
         "chosen and rejected are the same"},
        {"{\"chosen\": [" ASKS("q") "," SAYS("a") "], \"rejected\": [" ASKS("r") "," SAYS("b") "]}",
         "there is no \"prompt\", and \"chosen\" and \"rejected\" begin with different messages"},
        {"{\"chosen\": [" SAYS("a") "], \"rejected\": [" SAYS("b") "]}",
         "there is no \"prompt\", and \"chosen\" and \"rejected\" begin with different messages"},
        {"{\"chosen\": [" ASKS("q") "," SAYS("a") "], \"rejected\": [" ASKS("q") "]}",
         "the last message of \"rejected\" is not an assistant's"},
        {"{\"chosen\": [" ASKS("q") "," SAYS("") "], \"rejected\": [" ASKS("q") "," SAYS("b") "]}",
         "the chosen answer is empty"},
        {"{\"prompt\": \"p\", \"chosen\": [" SAYS("a") "], \"rejected\": [{\"role\": \"assistant\","
                                                       " \"content\": \"b\", \"weight\": 0}]}",
         "the rejected answer has no token to learn from"},
        {"{\"prompt\": \"p\", \"chosen\": [], \"rejected\": [" SAYS("b") "]}",
         "the chosen answer is empty"},
        {"{\"prompt\": \"p\", \"chosen\": [" SAYS("a") "], \"rejected\": []}",
         "the rejected answer is empty"},
        {"{\"question\": \"p\", \"chosen\": " SAYS("a") ", \"rejected\": " SAYS("b") "}",
         "there is no \"prompt\", but \"question\"; --columns prompt=question makes it the prompt"},
        {"{\"messages\": [" ASKS("q") "," SAYS("r") "], \"chosen\": \"a\", \"rejected\": \"b\"}",
         "\"messages\" ends with an answer, so it is not the prompt of \"chosen\" and "
         "\"rejected\""},
        {"{\"prompt\": [" ASKS("q") "], \"chosen\": [" MESSAGE("system", "s") "," ASKS(
             "q") "," SAYS("a") "], \"rejected\": [" SAYS("b") "]}",
         "\"chosen\" begins with a system message that the prompt does not have"},
        {"{\"prompt\": \"p\", \"chosen\": " ASKS("a") ", \"rejected\": " SAYS("b") "}",
         "the last message of \"chosen\" is not an assistant's"},
    };
    hy_dataset_options options = options_of("", SEQ);
    options.chat_template = HY_CHAT_ALPACA;
    options.stops_at_bad_row = true;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        options.path = options.val_path = write_file("a.jsonl", rows[i][0]);
        must_refuse(options, rows[i][1]);
    }
}
END_TEST

START_TEST(other_data_is_refused) {
    must_refuse(options_of(write_file("a.jsonl", "{\"prompt\": \"p\", \"completion\": \"c\"}"), 32),
                "a.jsonl:1: the row has the keys (prompt, completion), but the task learns from "
                "pairs of answers; expected prompt, chosen and rejected");
    must_refuse(options_of(write_file("b.csv", "question,answer\na,b\n"), 32),
                "b.csv: cannot read the column names in the first line (for plain text, use "
                "--data-format text): the row has the keys (question, answer), but the task");
    must_refuse(options_of(write_file("c.txt", "only a text\n"), 32),
                "c.txt is text, but the task learns from pairs of answers; expected rows of JSON "
                "or CSV with prompt, chosen and rejected");
    must_refuse(options_of("builtin", 32), "the built-in text has no pairs of answers");
    const char *pairs =
        write_file("d.jsonl", "{\"prompt\": \"p\", \"chosen\": \"long\", \"rejected\": \"short\"}");
    hy_dataset_options options = options_of(pairs, 32);
    options.counts_all = true;
    must_refuse(options, "loss_on is all, but the loss of a pair is that of its answers; expected "
                         "answers");
    must_refuse(options_of(pairs, 1), "the sequence of 1 tokens is too short for any answer");
    options = options_of(pairs, 32);
    options.val_path = NULL;
    options.val_fraction = 0.1;
    must_refuse(options, "d.jsonl has only one pair of answers; training and held-out data need");
    options = options_of(pairs, 32);
    options.pairs = HY_NO_PAIRS;
    must_refuse(options, "d.jsonl:1: the row has the keys (prompt, chosen, rejected): --task dpo, "
                         "ipo, orpo or simpo learns from rows with chosen and rejected answers");
}
END_TEST

/* ---- packing and numbers --------------------------------------------------------------------- */

enum { COUNT = 120 };

static void add_pair(hy_text *out, int i) {
    int chosen = 1 + (int)hy_rng_below(3, HY_RNG_TEST, (uint64_t)(2 * i), 12);
    int rejected = 1 + (int)hy_rng_below(3, HY_RNG_TEST, (uint64_t)(2 * i + 1), 12);
    hy_text_addf(out, "{\"prompt\": \"<%d>\", \"chosen\": \"+%.*s\", \"rejected\": \"-%.*s\"}\n", i,
                 chosen, "abcdefghijkl", rejected, "mnopqrstuvwx");
}

/* Pairs [first, first + count), each with its number in its prompt. */
static const char *write_pairs(const char *name, int first, int count) {
    hy_text text = {0};
    for (int i = first; i < first + count; i++) add_pair(&text, i);
    const char *path = write_file(name, hy_text_string(&text));
    hy_text_free(&text);
    return path;
}

/* Checks that a sequence is pairs, and lists the numbers in their prompts. */
static int pairs_of(const filled *f, int32_t seq, int numbers[]) {
    int count = 0;
    for (int at = 0; at < used(f, seq); count++) {
        int number[2] = {-1, -1};
        for (int i = 0; i < 2; i++) {
            char text[SEQ + 1] = "", sign = 0;
            int size = 0;
            ck_assert_int_eq(f->starts[at], at);
            for (; at + size < seq && f->starts[at + size] == at; size++)
                text[size] = (char)f->tokens[at + size];
            ck_assert_int_eq(sscanf(text, "<%d>%c", &number[i], &sign), 2);
            ck_assert_int_eq(sign, i == 0 ? '+' : '-');
            ck_assert_int_eq(f->targets[at + size - 1], 0);
            at += size;
        }
        ck_assert_int_eq(number[0], number[1]);
        numbers[count] = number[0];
    }
    return count;
}

/* How often each pair is in sequences [0, count) of a split. The numbers in the prompts are those
 * of hy_dataset_pairs_in. */
static void count_seen(const hy_dataset *data, hy_split split, uint64_t count, int seen[]) {
    int32_t seq = hy_dataset_describe(data)->seq, listed;
    for (uint64_t p = 0; p < count; p++) {
        uint64_t numbers[SEQ / 2];
        int found[SEQ / 2];
        filled f = fill(data, split, p);
        int pairs = pairs_of(&f, seq, found);
        ck_assert_int_eq(f.counted, pairs);
        must(hy_dataset_pairs_in(data, split, p, numbers, &listed));
        ck_assert_int_eq(listed, pairs);
        for (int i = 0; i < pairs; i++) {
            ck_assert_uint_eq(numbers[i], (uint64_t)found[i]);
            ck_assert_uint_lt(numbers[i], hy_dataset_describe(data)->pair_count);
            seen[found[i]]++;
        }
    }
}

static void check_seen(const hy_dataset_options *options) {
    hy_dataset *data = open_data(*options);
    const hy_dataset_facts *facts = hy_dataset_describe(data);
    int seen[2][COUNT] = {{0}};
    ck_assert_uint_eq(facts->pair_count, COUNT);
    for (int s = 0; s < 2; s++) count_seen(data, (hy_split)s, facts->sequences[s], seen[s]);
    for (int i = 0; i < COUNT; i++) ck_assert_int_eq(seen[0][i] + seen[1][i], 1);
    for (int i = 0; i < COUNT; i++) ck_assert_int_eq(seen[1][i], i >= COUNT - 12);
    ck_assert_uint_eq(facts->targets[HY_TRAIN], COUNT - 12);
    ck_assert_uint_eq(facts->targets[HY_VAL], 12);
    if (!options->packs) ck_assert_uint_eq(facts->sequences[HY_TRAIN], COUNT - 12);
    if (options->packs) ck_assert_uint_lt(facts->sequences[HY_TRAIN], COUNT / 2);
    hy_dataset_close(data);
}

START_TEST(a_pair_is_never_divided_and_keeps_its_number) {
    hy_dataset_options options = options_of(write_pairs("x.jsonl", 0, COUNT), 96);
    options.val_path = NULL;
    options.val_fraction = 0.1;
    for (int i = 0; i < 8; i++) {
        options.packs = i & 1;
        options.shuffle = i & 2;
        options.seed = i & 4 ? 8 : 7;
        check_seen(&options);
    }
}
END_TEST

static uint64_t digest(hy_dataset_options options, uint64_t first, uint64_t count) {
    hy_dataset *data = open_data(options);
    hy_hash hash;
    hy_hash_init(&hash, 0);
    for (uint64_t p = first; p < first + count; p++) {
        filled f = fill(data, HY_TRAIN, p);
        size_t size = (size_t)options.seq * sizeof(int32_t);
        hy_hash_add(&hash, f.tokens, size);
        hy_hash_add(&hash, f.targets, size);
        hy_hash_add(&hash, f.starts, size);
    }
    hy_dataset_close(data);
    return hy_hash_value(&hash);
}

START_TEST(the_order_depends_on_the_seed_alone) {
    hy_dataset_options options = options_of(write_pairs("x.jsonl", 0, COUNT), 96), other = options;
    options.packs = options.shuffle = true;
    other = options;
    other.workers = 1;
    other.buffer_bytes = 200;
    ck_assert_uint_eq(digest(options, 0, 200), digest(other, 0, 200));
    ck_assert_uint_eq(digest(options, 100, 20), digest(other, 100, 20)); /* resumed there */
    other.seed = 8;
    ck_assert_uint_ne(digest(options, 0, 20), digest(other, 0, 20));
}
END_TEST

START_TEST(a_row_in_both_splits_has_one_number) {
    hy_dataset_options options = options_of(write_pairs("x.jsonl", 0, COUNT), 96);
    options.packs = options.shuffle = true;
    hy_dataset *data = open_data(options);
    int seen[2][COUNT] = {{0}};
    ck_assert_uint_eq(hy_dataset_describe(data)->pair_count, COUNT);
    for (int s = 0; s < 2; s++) {
        count_seen(data, (hy_split)s, hy_dataset_describe(data)->sequences[s], seen[s]);
        for (int i = 0; i < COUNT; i++) ck_assert_int_eq(seen[s][i], 1);
    }
    hy_dataset_close(data);
}
END_TEST

START_TEST(the_parts_of_a_mixture_are_numbered_one_after_the_other) {
    char path[1200];
    hy_dataset_options options = options_of(path, 96);
    write_pairs("a.jsonl", 0, 40);
    write_pairs("b.jsonl", 40, 50);
    options.val_path = write_pairs("c.jsonl", 90, 30);
    options.packs = options.shuffle = true;
    for (int has_weights = 0; has_weights < 2; has_weights++) {
        int seen[2][COUNT] = {{0}};
        snprintf(path, sizeof path, "%s%s,%s", path_of("a.jsonl"), has_weights ? ":3" : "",
                 path_of("b.jsonl"));
        hy_dataset *data = open_data(options);
        const hy_dataset_facts *facts = hy_dataset_describe(data);
        ck_assert_uint_eq(facts->pair_count, COUNT);
        ck_assert_uint_eq(facts->targets[HY_TRAIN], 90);
        uint64_t epochs = has_weights ? 4 : 1;
        count_seen(data, HY_TRAIN, epochs * facts->sequences[HY_TRAIN], seen[HY_TRAIN]);
        count_seen(data, HY_VAL, facts->sequences[HY_VAL], seen[HY_VAL]);
        for (int i = 0; i < COUNT; i++) {
            ck_assert_int_eq(seen[HY_TRAIN][i] > 0, i < 90);
            ck_assert_int_eq(seen[HY_VAL][i], i >= 90);
            if (!has_weights) ck_assert_int_le(seen[HY_TRAIN][i], 1);
        }
        hy_dataset_close(data);
    }
    write_file("b.jsonl", "{\"prompt\": \"p\", \"completion\": \"c\"}\n");
    must_refuse(options, "b.jsonl:1: the row has the keys (prompt, completion), but the task");
}
END_TEST

START_TEST(dropped_rows_have_no_numbers) {
    char rows[400];
    snprintf(rows, sizeof rows,
             "{\"prompt\": \"<0>\", \"chosen\": \"+\", \"rejected\": \"-\"}\n"
             "{\"prompt\": \"<5>\", \"chosen\": \"+\", \"rejected\": \"+\"}\n"
             "{\"prompt\": \"<1>\", \"chosen\": \"+\", \"rejected\": \"-\"}\n");
    hy_dataset *data = open_data(options_of(write_file("a.jsonl", rows), 16));
    int seen[6] = {0};
    count_seen(data, HY_TRAIN, hy_dataset_describe(data)->sequences[HY_TRAIN], seen);
    ck_assert(seen[0] == 1 && seen[1] == 1 && seen[5] == 0);
    hy_dataset_close(data);
}
END_TEST

/* ---- streams --------------------------------------------------------------------------------- */

START_TEST(streamed_pairs_are_trained_once_in_each_epoch) {
    hy_dataset_options options = options_of(write_pairs("x.jsonl", 0, COUNT), 96);
    options.val_path = NULL;
    options.val_fraction = 0.05;
    options.packs = options.shuffle = true;
    options.streams = HY_STREAM_ON;
    options.stream_window = 2000;
    hy_dataset *data = open_data(options);
    int seen[COUNT] = {0}, held_out[COUNT] = {0}, numbers[SEQ / 2], total = 0;
    for (uint64_t p = 0; p < hy_dataset_describe(data)->sequences[HY_VAL]; p++) {
        filled f = fill(data, HY_VAL, p);
        for (int i = pairs_of(&f, 96, numbers) - 1; i >= 0; i--, total++) held_out[numbers[i]]++;
    }
    for (uint64_t p = 0; total < COUNT; p++) {
        filled f = fill(data, HY_TRAIN, p);
        int pairs = pairs_of(&f, 96, numbers);
        ck_assert_int_eq(f.counted, pairs);
        for (int i = 0; i < pairs; i++) seen[numbers[i]]++;
        total += pairs;
    }
    for (int i = 0; i < COUNT; i++) ck_assert_int_eq(seen[i] + held_out[i], 1);
    uint64_t none[SEQ / 2];
    int32_t count;
    ck_assert_uint_eq(hy_dataset_describe(data)->pair_count, 0);
    must_fail(hy_dataset_pairs_in(data, HY_TRAIN, 0, none, &count), HY_ERR_INPUT,
              "the pairs of streamed rows have no numbers; --stream-rows off reads all rows");
    hy_dataset_close(data);
    options.stream_window = 1 << 20; /* one window has the order of data that is read whole */
    uint64_t streamed = digest(options, 0, 200);
    options.streams = HY_STREAM_OFF;
    ck_assert_uint_eq(digest(options, 0, 200), streamed);
}
END_TEST

START_TEST(rows_of_other_data_have_no_numbers) {
    hy_dataset_options options =
        options_of(write_file("a.jsonl", "{\"prompt\": \"p\", \"completion\": \"c\"}\n"), 32);
    uint64_t numbers[16];
    int32_t count;
    options.pairs = HY_NO_PAIRS;
    hy_dataset *data = open_data(options);
    ck_assert(!hy_dataset_describe(data)->has_doc_starts);
    must_fail(hy_dataset_pairs_in(data, HY_TRAIN, 0, numbers, &count), HY_ERR_INPUT,
              "the rows are not pairs of answers");
    hy_dataset_close(data);
}
END_TEST

/* ---- looking at rows ------------------------------------------------------------------------- */

static hy_status keep_row(void *user, const hy_shown_row *row) {
    hy_text *out = user;
    hy_text_addf(out, "%d: %s: %u of %u: %s%s: ", (int)row->line, row->format, row->part,
                 row->parts, row->answer ? row->answer : "no answer", row->is_cut ? ", cut" : "");
    if (row->dropped) hy_text_addf(out, "dropped: %s", row->dropped);
    for (uint32_t i = 0; i < row->count; i++) {
        int32_t id = row->tokens[i] & ~HY_COUNTS;
        hy_text_addf(out, row->tokens[i] < 0 ? "[%c]" : "%c", id ? id : '.');
    }
    hy_text_add(out, "\n");
    return HY_OK;
}

START_TEST(a_pair_is_shown_as_two_rows) {
    hy_text text = {0};
    hy_dataset_options options =
        options_of(write_file("a.jsonl", "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": "
                                         "\"b\"}\n{\"prompt\": \"p\", \"chosen\": \"a\", "
                                         "\"rejected\": \"a\"}\n{\"prompt\": \"p\", \"chosen\": "
                                         "\"abcdef\", \"rejected\": \"g\"}\n{}\n"),
                   6);
    must(hy_dataset_show_rows(&options, 3, keep_row, &text));
#define PAIRS "pairs of chosen and rejected answers; no chat template; loss on answers: "
    ck_assert_str_eq(hy_text_string(&text),
                     "1: " PAIRS "1 of 2: chosen: p[a][.]\n"
                     "1: " PAIRS "2 of 2: rejected: p[b][.]\n"
                     "2: " PAIRS "0 of 0: no answer: dropped: chosen and rejected are the same\n"
                     "3: " PAIRS "1 of 2: chosen, cut: p[a][b][c][d]\n"
                     "3: " PAIRS "2 of 2: rejected: p[g][.]\n");
    hy_text_free(&text);
}
END_TEST

START_TEST(the_held_out_row_is_the_chosen_answer) {
    hy_ids question = {0}, answer = {0};
    hy_dataset *data = open_data(options_of(
        write_file("a.jsonl", "{\"prompt\": \"pq\", \"chosen\": \"a\", \"rejected\": \"b\"}\n"),
        32));
    must(hy_dataset_held_out_row(data, &question, &answer));
    ck_assert(question.count == 2 && question.data[0] == 'p' && question.data[1] == 'q');
    ck_assert(answer.count == 2 && answer.data[0] == 'a' && answer.data[1] == 0);
    hy_ids_free(&question);
    hy_ids_free(&answer);
    hy_dataset_close(data);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("data: pairs of answers");
    TCase *cases = tcase_create("pairs");
    tcase_add_checked_fixture(cases, make_folder, drop_folder);
    tcase_add_test(cases, a_pair_is_two_rows_of_the_prompt_with_each_answer);
    tcase_add_test(cases, tools_and_calls_are_those_of_other_rows);
    tcase_add_test(cases, pairs_have_other_names_or_are_columns_of_csv);
    tcase_add_test(cases, the_format_of_pairs_is_described);
    tcase_add_test(cases, keys_that_are_not_used_are_listed);
    tcase_add_test(cases, targets_may_show_the_tokens_of_prompts);
    tcase_add_test(cases, answers_are_cut_to_half_a_sequence_or_to_what_is_left);
    tcase_add_test(cases, rows_without_a_pair_are_dropped_with_their_reason);
    tcase_add_test(cases, lists_of_messages_without_a_pair_are_dropped);
    tcase_add_test(cases, other_data_is_refused);
    tcase_add_test(cases, a_pair_is_never_divided_and_keeps_its_number);
    tcase_add_test(cases, the_order_depends_on_the_seed_alone);
    tcase_add_test(cases, a_row_in_both_splits_has_one_number);
    tcase_add_test(cases, the_parts_of_a_mixture_are_numbered_one_after_the_other);
    tcase_add_test(cases, dropped_rows_have_no_numbers);
    tcase_add_test(cases, streamed_pairs_are_trained_once_in_each_epoch);
    tcase_add_test(cases, rows_of_other_data_have_no_numbers);
    tcase_add_test(cases, a_pair_is_shown_as_two_rows);
    tcase_add_test(cases, the_held_out_row_is_the_chosen_answer);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
