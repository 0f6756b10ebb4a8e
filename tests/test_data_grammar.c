/* test_data_grammar.c: the built-in text, its entropy, and the n-gram baseline.
 *
 * The grammar is checked against a reader written by hand below: it knows what a document may look
 * like and what each choice costs, and shares nothing with the table or the code that runs it. */
#include <math.h>

#include "data/grammar.h"
#include "data/grammar_program.h"
#include "data/ngram.h"
#include "harness.h"

/* ---- a reader of documents ------------------------------------------------------------------- */

typedef struct reader {
    const char *at, *end;
    double nats;
    bool is_wrong;
    int deepest;
} reader;

static bool accept(reader *r, const char *text, size_t size) {
    if ((size_t)(r->end - r->at) < size || memcmp(r->at, text, size) != 0) return false;
    r->at += size;
    return true;
}

static void expect(reader *r, const char *text, size_t size) {
    if (!r->is_wrong && !accept(r, text, size)) r->is_wrong = true;
}

static void expect_text(reader *r, const char *text) { expect(r, text, strlen(text)); }

/* One of the words, which are all as likely. */
static int read_word(reader *r, const char *const *words, int count) {
    for (int i = 0; i < count; i++) {
        if (!accept(r, words[i], strlen(words[i]))) continue;
        r->nats += log(count);
        return i;
    }
    r->is_wrong = true;
    return 0;
}

/* One of the letters, which are all as likely. */
static void read_letter(reader *r, const char *letters) {
    if (r->at == r->end || !strchr(letters, *r->at)) {
        r->is_wrong = true;
        return;
    }
    r->at++;
    r->nats += log((double)strlen(letters));
}

static void read_quality(reader *r) {
    static const char *const words[] = {"red",   "big",   "old",   "tiny", "sweet", "cold",
                                        "fresh", "blue",  "warm",  "dry",  "lost",  "kind",
                                        "nice",  "young", "green", "huge"};
    read_word(r, words, 16);
}

static void read_place(reader *r) {
    read_letter(r, "BDFGKLMNPRSTVZ");
    for (int i = 0; i < 3; i++) {
        if (i > 0) read_letter(r, "bdfgklmnprstvz");
        read_letter(r, "aeiou");
    }
}

/* A bracket with a word in it and, with this probability, another bracket. */
static void read_note(reader *r, int depth) {
    static const double goes_deeper[] = {0, 0.5, 0.25, 0};
    static const char *const open[] = {"(", "[", "{"};
    static const char *const close[] = {")", "]", "}"};
    int kind = read_word(r, open, 3);
    read_quality(r);
    if (depth > r->deepest) r->deepest = depth;
    bool is_deeper = !r->is_wrong && depth < 3 && accept(r, " ", 1);
    if (depth < 3) r->nats -= log(is_deeper ? goes_deeper[depth] : 1 - goes_deeper[depth]);
    if (is_deeper) read_note(r, depth + 1);
    expect_text(r, close[kind]);
}

static void read_end(reader *r, const char *name, bool is_she, const char *goods, size_t size) {
    if (accept(r, "loves ", 6)) {
        r->nats -= log(2.0 / 9);
        expect(r, name, 4);
    } else if (accept(r, "hates ", 6)) {
        r->nats -= log(2.0 / 9);
        expect_text(r, is_she ? "her" : "him");
    } else if (accept(r, "is ", 3)) {
        r->nats -= log(2.0 / 9);
        expect_text(r, is_she ? "her home" : "his home");
    } else if (accept(r, "was ", 4)) {
        r->nats -= log(2.0 / 9);
        read_quality(r);
    } else {
        r->nats -= log(1.0 / 9);
        expect_text(r, "has ");
        expect(r, goods, size);
    }
    expect_text(r, ".");
}

static void read_goods(reader *r, const char *name, bool is_she) {
    static const char *const items[] = {"figs",  "nuts", "pears", "eggs",  "beans", "coins",
                                        "hats",  "keys", "lamps", "drums", "vases", "rings",
                                        "bells", "cups", "jars",  "mugs"};
    const char *goods = r->at;
    read_letter(r, "123456789");
    read_letter(r, "0123456789");
    expect_text(r, " ");
    read_word(r, items, 16);
    size_t size = (size_t)(r->at - goods);
    expect_text(r, " ");
    read_note(r, 1);
    expect_text(r, " in ");
    const char *place = r->at;
    read_place(r);
    expect_text(r, ". ");
    expect(r, place, 6);
    expect_text(r, " ");
    read_end(r, name, is_she, goods, size);
}

static void read_cry(reader *r, bool is_she) {
    static const char *const counts[] = {"2", "3", "4"};
    int times = 2 + read_word(r, counts, 3);
    expect_text(r, " times: ");
    const char *place = r->at;
    read_place(r);
    for (int i = 1; i < times; i++) {
        expect_text(r, ", ");
        expect(r, place, 6);
    }
    expect_text(r, is_she ? "! She was " : "! He was ");
    read_note(r, 1);
    expect_text(r, ".");
}

static reader read_document(const char *text, const char *end) {
    static const char *const endings[] = {"ina", "olo", "ela", "aro"};
    static const char *const goods_verbs[] = {" hid ", " put ", " kept ", " left "};
    static const char *const cry_verbs[] = {" sang ", " wept ", " cried ", " yelled "};
    reader r = {.at = text, .end = end};
    read_letter(&r, "BDFGKLMNPRSTVZ");
    bool is_she = read_word(&r, endings, 4) % 2 == 0;
    reader goods = r, cry = r;
    read_word(&goods, goods_verbs, 4);
    read_word(&cry, cry_verbs, 4);
    if (!goods.is_wrong) {
        goods.nats -= log(0.75);
        read_goods(&goods, text, is_she);
        r = goods;
    } else {
        cry.nats -= log(0.25);
        read_cry(&cry, is_she);
        r = cry;
    }
    expect_text(&r, "\n");
    r.is_wrong |= r.at != r.end;
    return r;
}

/* ---- the grammar ----------------------------------------------------------------------------- */

enum { SAMPLE = 2000000 };

typedef struct sample {
    uint8_t *text;
    float *nats;
} sample;

static sample make_sample(uint64_t seed, uint64_t size) {
    sample s = {malloc(size), malloc(size * sizeof(float))};
    ck_assert(s.text && s.nats);
    hy_grammar_generate(seed, s.text, s.nats, size);
    return s;
}

static void free_sample(sample s) {
    free(s.text);
    free(s.nats);
}

START_TEST(every_document_can_be_read_and_costs_what_its_choices_cost) {
    sample s = make_sample(7, SAMPLE);
    int documents = 0, deepest = 0;
    for (const char *at = (char *)s.text, *end = at + SAMPLE; at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline) break; /* the last one is cut */
        reader r = read_document(at, newline + 1);
        ck_assert_msg(!r.is_wrong, "wrong from \"%.20s\" on: %.*s", r.at, (int)(newline - at), at);
        double sum = 0;
        for (const char *p = at; p <= newline; p++) sum += (double)s.nats[p - (char *)s.text];
        ck_assert_double_eq_tol(sum, r.nats, 1e-4);
        if (r.deepest > deepest) deepest = r.deepest;
        documents++;
        at = newline + 1;
    }
    ck_assert_int_gt(documents, SAMPLE / 100);
    ck_assert_int_eq(deepest, 3);
    free_sample(s);
}
END_TEST

START_TEST(the_entropy_agrees_with_a_long_sample) {
    sample s = make_sample(3, SAMPLE);
    double entropy = hy_grammar_entropy();
    /* Per document, cost - entropy x length has the mean 0 if the entropy is right. */
    double sum = 0, squares = 0, here = 0;
    int documents = 0;
    for (int i = 0; i < SAMPLE; i++) {
        here += (double)s.nats[i] - entropy;
        if (s.text[i] != '\n') continue;
        sum += here;
        squares += here * here;
        here = 0;
        documents++;
    }
    double deviation = sqrt(squares / documents), mean = sum / documents;
    ck_assert_double_lt(fabs(mean), 4 * deviation / sqrt(documents));
    ck_assert_double_lt(4 * deviation / sqrt(documents),
                        0.01 * 60 * entropy); /* it says something */
    free_sample(s);
}
END_TEST

START_TEST(the_entropy_is_above_half_a_nat_per_byte) {
    ck_assert_double_gt(hy_grammar_entropy(), 0.5);
    ck_assert_double_lt(hy_grammar_entropy(), 0.7);
}
END_TEST

START_TEST(brackets_close_in_order) {
    sample s = make_sample(11, SAMPLE);
    const char openings[] = "([{", closings[] = ")]}";
    char wanted[3];
    int depth = 0, closed = 0;
    for (int i = 0; i < SAMPLE; i++) {
        const char *opening = strchr(openings, s.text[i]);
        if (opening) {
            ck_assert_int_lt(depth, 3);
            wanted[depth++] = closings[opening - openings];
        } else if (strchr(closings, s.text[i])) {
            ck_assert_int_gt(depth, 0);
            ck_assert_int_eq(s.text[i], wanted[--depth]);
            closed++;
        }
        if (s.text[i] == '\n') ck_assert_int_eq(depth, 0);
    }
    ck_assert_int_gt(closed, 10000);
    free_sample(s);
}
END_TEST

START_TEST(a_text_depends_on_its_seed_alone) {
    sample a = make_sample(1, 100000), b = make_sample(1, 100000), c = make_sample(2, 100000);
    ck_assert_mem_eq(a.text, b.text, 100000);
    ck_assert_mem_eq(a.nats, b.nats, 100000 * sizeof(float));
    ck_assert_mem_ne(a.text, c.text, 100);
    hy_grammar_generate(1, b.text, NULL, 99999);
    ck_assert_mem_eq(a.text, b.text, 99999); /* costs asked for or not, shorter or longer */
    hy_grammar_generate(1, b.text, NULL, 0);
    free_sample(a);
    free_sample(b);
    free_sample(c);
}
END_TEST

/* A changed grammar changes what runs report and are compared with: it happens on purpose only. */
START_TEST(the_text_of_seed_1_is_the_same_for_ever) {
    sample s = make_sample(1, 65536);
    ck_assert_uint_eq(hy_hash_bytes(s.text, 65536, 0), 0xA3ECDC05B65780FBULL);
    ck_assert_double_eq_tol(hy_grammar_entropy(), 0.553906943499, 1e-9); /* also by hand */
    free_sample(s);
}
END_TEST

/* ---- tables ---------------------------------------------------------------------------------- */

static hy_grammar_program program;

#define BUILD(...)                                                                                 \
    hy_grammar_program_build((const hy_grammar_rule[]){__VA_ARGS__},                               \
                             sizeof((hy_grammar_rule[]){__VA_ARGS__}) / sizeof(hy_grammar_rule),   \
                             &program)

START_TEST(choices_that_begin_alike_share_the_cost_byte_by_byte) {
    must(BUILD({"document", "Mira|2~Milo|Bo"}));
    const hy_grammar_choice *mira = &program.choices[0], *milo = mira + 1, *bo = mira + 2;
    const float *costs = program.costs;
    ck_assert_int_eq(mira->cost_count, 3); /* M, i, r: after that nothing is left to learn */
    ck_assert_double_eq_tol((double)costs[mira->first_cost], log(4.0 / 3), 1e-6);
    ck_assert_double_eq_tol((double)costs[mira->first_cost + 1], 0, 1e-6);
    ck_assert_double_eq_tol((double)costs[mira->first_cost + 2], log(3.0), 1e-6);
    ck_assert_double_eq_tol((double)costs[milo->first_cost + 2], log(1.5), 1e-6);
    ck_assert_int_eq(bo->cost_count, 1);
    ck_assert_double_eq_tol((double)costs[bo->first_cost], log(4.0), 1e-6);
}
END_TEST

START_TEST(expected_cost_and_length_follow_from_the_rules) {
    must(BUILD({"document", "a|3~bb<X=word><X><X?-/--->"}, {"word", "0|12"}));
    const hy_grammar_rule_program *document = &program.rules[0];
    double choice = -0.25 * log(0.25) - 0.75 * log(0.75);
    ck_assert_double_eq_tol(document->nats, choice + 0.75 * log(2), 1e-12);
    ck_assert_double_eq_tol(document->bytes, 0.25 + 0.75 * (2 + 1.5 + 1.5 + 2), 1e-12);
    ck_assert_int_eq(document->bytes_max, 2 + 2 + 2 + 3);

    must(BUILD({"document", "<X=word><N=count><X*N>"}, {"word", "0|12"}, {"count", "a|b|c"}));
    ck_assert_double_eq_tol(document->nats, log(2) + log(3), 1e-12);
    ck_assert_double_eq_tol(document->bytes, 1.5 + 1 + 2 * (2 + 1.5), 1e-12);
    ck_assert_int_eq(document->bytes_max, 2 + 1 + 3 * 4);
}
END_TEST

START_TEST(a_table_with_two_readings_is_refused) {
    must_fail(BUILD({"document", "<word>\n"}, {"word", "fig|figs"}), HY_ERR_INTERNAL, "\"word\"");
    must_fail(BUILD({"document", "a|a"}), HY_ERR_INTERNAL, "begins with the complete first text");
    must_fail(BUILD({"document", "|a"}), HY_ERR_INTERNAL, "begins with the complete first text");
    must_fail(BUILD({"document", "<word>|a"}, {"word", "b"}), HY_ERR_INTERNAL,
              "begins with the complete first text");
}
END_TEST

START_TEST(a_table_that_cannot_be_run_is_refused) {
    must_fail(BUILD({"document", "<nobody>"}), HY_ERR_INTERNAL, "no rule \"nobody\"");
    must_fail(BUILD({"document", "a<document>"}), HY_ERR_INTERNAL, "refer to a rule above it");
    must_fail(BUILD({"document", "a<word"}, {"word", "b"}), HY_ERR_INTERNAL, "not closed");
    must_fail(BUILD({"document", "<X#>"}), HY_ERR_INTERNAL, "cannot read \"X#\"");
    must_fail(BUILD({"document", "<X>"}), HY_ERR_INTERNAL, "no rule below fills it");
    must_fail(BUILD({"document", "<X><X=word>"}, {"word", "b"}), HY_ERR_INTERNAL,
              "before a rule fills it");
    must_fail(BUILD({"document", "<a><X>"}, {"a", "b|c<X=word>"}, {"word", "d"}), HY_ERR_INTERNAL,
              "before a rule fills it");
    must_fail(BUILD({"document", "<X=a><X=b>"}, {"a", "1"}, {"b", "2"}), HY_ERR_INTERNAL,
              "the same rule");
    must_fail(BUILD({"document", "<X=a><Y>"}, {"a", "<Y=b>"}, {"b", "2"}), HY_ERR_INTERNAL,
              "uses letters itself");
    must_fail(BUILD({"document", "<X=a><X?one/two>"}, {"a", "p|q|r"}), HY_ERR_INTERNAL,
              "not a multiple");
    must_fail(BUILD({"document", "<X=a><X?one/two>"}, {"a", "pq"}), HY_ERR_INTERNAL,
              "does not end with a choice");
    must_fail(BUILD({"document", "0~a|b"}), HY_ERR_INTERNAL, "bad weight");
    must_fail(BUILD({"document", "60~a|5~b"}), HY_ERR_INTERNAL, "bad weight");
}
END_TEST

START_TEST(a_document_that_would_not_fit_is_refused) {
    char document[64] = "<X=word>"; /* 64 bytes, then 16 times again */
    for (int i = 0; i < 16; i++) strcat(document, "<X>");
    must_fail(BUILD({"document", document},
                    {"word", "0123456789012345678901234567890123456789012345678901234567890123"}),
              HY_ERR_INTERNAL, "1088 bytes");
}
END_TEST

/* ---- n-grams --------------------------------------------------------------------------------- */

/* Witten-Bell by its definition, counting anew for every context: slow and plain. */
static double plain_probability(const uint8_t *train, int size, const uint8_t *at, int longest) {
    double p = 1.0 / 256;
    for (int length = 0; length <= longest; length++) {
        int followed = 0, together = 0, kinds = 0;
        bool seen[256] = {false};
        for (int i = length; i < size; i++) {
            if (memcmp(train + i - length, at - length, (size_t)length) != 0) continue;
            followed++;
            together += train[i] == *at;
            kinds += !seen[train[i]];
            seen[train[i]] = true;
        }
        if (followed) p = (together + kinds * p) / (followed + kinds);
    }
    return p;
}

START_TEST(ngram_losses_equal_the_definition) {
    enum { TRAIN = 1500, HELD_OUT = 200 };
    sample s = make_sample(5, TRAIN + HELD_OUT);
    for (int i = 0; i < 100; i++) s.text[TRAIN + i] = (uint8_t)(i * 37); /* and bytes never seen */
    for (int order = 1; order <= 6; order++) {
        double loss, expected = 0;
        must(hy_ngram_loss(s.text, TRAIN, s.text + TRAIN, HELD_OUT, order, &loss));
        for (int i = 0; i < HELD_OUT; i++) {
            int longest = i < order - 1 ? i : order - 1;
            expected -= log(plain_probability(s.text, TRAIN, s.text + TRAIN + i, longest));
        }
        ck_assert_double_eq_tol(loss, expected / HELD_OUT, 1e-12);
    }
    free_sample(s);
}
END_TEST

START_TEST(what_ends_the_training_text_was_followed_by_nothing) {
    double loss, b_alone = (1 + 2.0 / 256) / 4;
    must(hy_ngram_loss((const uint8_t *)"ab", 2, (const uint8_t *)"bb", 2, 2, &loss));
    ck_assert_double_eq_tol(loss, -log(b_alone), 1e-12); /* "b" as a context tells nothing */
    must(hy_ngram_loss((const uint8_t *)"a", 1, (const uint8_t *)"a", 1, 6, &loss));
    ck_assert_double_eq_tol(loss, -log((1 + 1.0 / 256) / 2), 1e-12);
}
END_TEST

START_TEST(longer_ngrams_lose_less_but_stay_far_from_the_entropy) {
    enum { TRAIN = 1000000, HELD_OUT = 65536 };
    sample s = make_sample(1, TRAIN + HELD_OUT);
    double before = log(256), loss = 0;
    for (int order = 1; order <= 5; order++) {
        must(hy_ngram_loss(s.text, TRAIN, s.text + TRAIN, HELD_OUT, order, &loss));
        ck_assert_double_lt(loss, before);
        before = loss;
    }
    ck_assert_double_gt(loss, hy_grammar_entropy() + 0.3);
    free_sample(s);
}
END_TEST

START_TEST(ngram_refuses_what_it_cannot_count) {
    const uint8_t text[] = "abc";
    double loss;
    must_fail(hy_ngram_loss(text, 3, text, 3, 0, &loss), HY_ERR_INPUT, "order is 0");
    must_fail(hy_ngram_loss(text, 3, text, 3, 7, &loss), HY_ERR_INPUT, "1 to 6");
    must_fail(hy_ngram_loss(text, 0, text, 3, 5, &loss), HY_ERR_INPUT, "training text is empty");
    must_fail(hy_ngram_loss(text, 3, text, 0, 5, &loss), HY_ERR_INPUT, "held-out text is empty");
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("data: grammar and n-grams");
    TCase *grammar = tcase_create("grammar");
    tcase_add_test(grammar, every_document_can_be_read_and_costs_what_its_choices_cost);
    tcase_add_test(grammar, the_entropy_agrees_with_a_long_sample);
    tcase_add_test(grammar, the_entropy_is_above_half_a_nat_per_byte);
    tcase_add_test(grammar, brackets_close_in_order);
    tcase_add_test(grammar, a_text_depends_on_its_seed_alone);
    tcase_add_test(grammar, the_text_of_seed_1_is_the_same_for_ever);
    suite_add_tcase(suite, grammar);
    TCase *tables = tcase_create("tables");
    tcase_add_test(tables, choices_that_begin_alike_share_the_cost_byte_by_byte);
    tcase_add_test(tables, expected_cost_and_length_follow_from_the_rules);
    tcase_add_test(tables, a_table_with_two_readings_is_refused);
    tcase_add_test(tables, a_table_that_cannot_be_run_is_refused);
    tcase_add_test(tables, a_document_that_would_not_fit_is_refused);
    suite_add_tcase(suite, tables);
    TCase *ngrams = tcase_create("n-grams");
    tcase_add_test(ngrams, ngram_losses_equal_the_definition);
    tcase_add_test(ngrams, what_ends_the_training_text_was_followed_by_nothing);
    tcase_add_test(ngrams, longer_ngrams_lose_less_but_stay_far_from_the_entropy);
    tcase_add_test(ngrams, ngram_refuses_what_it_cannot_count);
    suite_add_tcase(suite, ngrams);
    return suite;
}

HY_TEST_MAIN(make_suite)
