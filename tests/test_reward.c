/* test_reward.c: the built-in checks, how a list of rewards is read, sums of parts, the hash. */
#include <locale.h>
#include <math.h>

#include "base/clock.h"
#include "harness.h"
#include "reward/reward.h"

static hy_reward_item item_of(const char *answer, const char *expected) {
    return (hy_reward_item){.prompt = "p",
                            .prompt_size = 1,
                            .answer = answer,
                            .answer_size = strlen(answer),
                            .expected = expected,
                            .expected_size = expected ? strlen(expected) : 0,
                            .tokens = 10,
                            .ended = true};
}

static hy_rewards *open_list(const char *const *list, size_t count) {
    hy_rewards *rewards;
    must(hy_rewards_open(list, count, NULL, NULL, &rewards));
    return rewards;
}

static double score_item(const char *reward, const hy_reward_item *item) {
    double score = NAN;
    hy_rewards *rewards = open_list(&reward, 1);
    must(hy_rewards_score(rewards, item, 1, NULL, &score, NULL));
    hy_rewards_close(rewards);
    return score;
}

static double score(const char *reward, const char *answer, const char *expected) {
    hy_reward_item item = item_of(answer, expected);
    return score_item(reward, &item);
}

#define is(reward, answer, expected, value)                                                        \
    ck_assert_msg(score(reward, answer, expected) == (value), "%s of \"%s\" is not %g", reward,    \
                  answer, (double)(value))

/* ---- kinds ----------------------------------------------------------------------------------- */

START_TEST(exact_compares_without_white_space_at_the_ends) {
    is("exact", "Paris", "Paris", 1);
    is("exact", " \n\tParis\r\n", "Paris\v\f ", 1);
    is("exact", "paris", "Paris", 0);
    is("exact", "Paris.", "Paris", 0);
    is("exact", "New  York", "New York", 0);
    is("exact", "", "", 1);
    is("exact", "", "x", 0);
    is("exact:lower", "pARIS", "Paris", 1);
    is("exact:lower", "paris", "London", 0);
    is("exact:lower", "\xC3\x89", "\xC3\xA9", 0);
}
END_TEST

START_TEST(number_compares_the_last_numbers) {
    is("number", "3 and 4 are 7", "they are 3\n#### 7", 1);
    is("number", "7, no, 8", "7", 0);
    is("number", "I do not know", "7", 0);
    is("number", "", "7", 0);
    is("number", "It is 1,234.", "1234", 1);
    is("number", "1,234,567.50", "1234567.5", 1);
    is("number", "1, 2", "2", 1);
    is("number", "1,2", "2", 1);
    is("number", "12,34", "34", 1);
    is("number", "1234,567", "567", 1);
    is("number", "$5.00", "5", 1);
    is("number", "$-5", "-5", 1);
    is("number", "-$5", "-5", 1);
    is("number", "(-5)", "-5", 1);
    is("number", "x=-5", "-5", 1);
    is("number",
       "x = \xE2\x88\x92"
       "5",
       "-5", 1);
    is("number", "5", "-5", 0);
    is("number", "-5", "5", 0);
    is("number", "10-5", "5", 1);
    is("number", "(2)-5", "5", 1);
    is("number", "+5", "5", 1);
    is("number", ".5", "0.50", 1);
    is("number", "-.5", "-0.5", 1);
    is("number", "version 1.2.3", "3", 1);
    is("number", "1e3", "1000", 1);
    is("number", "2E-1", "0.2", 1);
    is("number", "5e", "5", 1);
    is("number", "007", "7", 1);
    is("number", "-0", "0", 1);
    is("number", "50%", "50", 1);
    is("number", "42km", "42", 1);
}
END_TEST

START_TEST(numbers_that_do_not_fit_are_never_equal) {
    char digits[1000];
    double value;
    memset(digits, '9', sizeof digits - 1);
    digits[sizeof digits - 1] = '\0';
    is("number", digits, "9", 0);
    is("number", "1e999", "9", 0);
    const char *list[] = {"number"};
    hy_rewards *rewards = open_list(list, 1);
    hy_reward_item wrong[] = {item_of("9", "nine"), item_of("9", digits), item_of("9", "")};
    for (size_t i = 0; i < 3; i++) {
        must_fail(hy_rewards_score(rewards, &wrong[i], 1, NULL, &value, NULL), HY_ERR_INPUT,
                  "reward number of answer 1: the row's answer \"");
    }
    must_fail(hy_rewards_score(rewards, wrong, 1, NULL, &value, NULL), HY_ERR_INPUT,
              "\"nine\" has no number");
    hy_rewards_close(rewards);
}
END_TEST

START_TEST(contains_looks_for_the_row_s_answer) {
    is("contains", "It is Paris, of course.", " Paris\n", 1);
    is("contains", "It is paris.", "Paris", 0);
    is("contains:lower", "It is PARIS.", "Paris", 1);
    is("contains:lower", "It is Pari", "Paris", 0);
    is("contains", "Par", "Paris", 0);
    const char *list[] = {"contains"};
    hy_rewards *rewards = open_list(list, 1);
    hy_reward_item item = item_of("anything", " ");
    double value;
    must_fail(hy_rewards_score(rewards, &item, 1, NULL, &value, NULL), HY_ERR_INPUT,
              "the row's answer is empty");
    hy_rewards_close(rewards);
}
END_TEST

START_TEST(boxed_compares_the_last_box) {
    is("boxed", "so \\boxed{7}.", "7", 1);
    is("boxed", "\\boxed{6} or \\boxed{ 7 }", " 7 ", 1);
    is("boxed", "\\boxed{7} or \\boxed{6}", "7", 0);
    is("boxed", "7", "7", 0);
    is("boxed", "\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", 1);
    is("boxed", "\\boxed{\\frac{1}{2}}", "it is $\\boxed{\\frac{1}{2}}$", 1);
    is("boxed", "\\boxed{\\left\\{1\\right.}", "\\left\\{1\\right.", 1);
    is("boxed", "\\boxed{7} and \\boxed{7", "7", 0);
    is("boxed", "\\boxed{7\\", "7", 0);
    is("boxed", "\\boxed{}", "", 1);
    is("boxed", "\\boxed", "", 0);
}
END_TEST

START_TEST(regex_is_searched_in_the_answer) {
    is("regex:[0-9]+ apples?", "I have 12 apples.", NULL, 1);
    is("regex:[0-9]+ apples?", "I have some apples.", NULL, 0);
    is("regex:^a", "ba", NULL, 0);
    is("regex:^b", "ba", NULL, 1);
    is("regex:a$", "ba", NULL, 1);
    is("regex:^a$", "b\na\nb", NULL, 0);
    is("regex:b|c", "xc", NULL, 1);
    is("regex:x{2,3}y", "xxxxy", NULL, 1);
    is("regex:a:b*2", "a:bb2", NULL, 1);
    is("regex:a.b", "a\nb", NULL, 1);
    is("regex:[]\\1]", "]", NULL, 1);
    is("regex:[^]\\1]b", "ab", NULL, 1);
    is("regex:[[:digit:]\\1]b", "7b", NULL, 1);
    is("regex:\\\\1", "\\1", NULL, 1);
    is("regex:^c|^b", "bc", NULL, 1);
    is("regex:a\\^b[$]\\$", "a^b$$", NULL, 1);
    is("regex:b$.c", "b\nc", NULL, 0);
    is("regex:b$", "b\n", NULL, 0);
    is("regex:\xC3\xA9+", "caf\xC3\xA9", NULL, 1);
    hy_reward_item zeros = item_of("", NULL);
    zeros.answer = "a\0\nb\xFF\0c";
    zeros.answer_size = 7;
    ck_assert(score_item("regex:c", &zeros) == 1);
    ck_assert(score_item("regex:c$", &zeros) == 1);
    ck_assert(score_item("regex:^b", &zeros) == 0);
}
END_TEST

START_TEST(format_matches_the_whole_answer) {
    is("format:<think>.*</think>.*", " <think>a\nb</think> 7\n", NULL, 1);
    is("format:<think>.*</think>.*", "so <think>a</think> 7", NULL, 0);
    is("format:a|b", "b", NULL, 1);
    is("format:a|b", "ab", NULL, 0);
    is("format:(a|b)+", "ab", NULL, 1);
    is("format:b*", "", NULL, 1);
    is("format:a", "a\nb", NULL, 0);
}
END_TEST

START_TEST(only_the_first_64_kib_are_matched) {
    size_t size = 200000, most = 64 << 10;
    char *text = malloc(size + 1);
    memset(text, 'a', size);
    text[size] = '\0';
    hy_reward_item item = item_of(text, NULL);
    text[most - 1] = 'b';
    ck_assert(score_item("regex:b", &item) == 1);
    text[most - 1] = 'a';
    text[most] = 'b';
    ck_assert(score_item("regex:b", &item) == 0);
    ck_assert(score_item("format:.*", &item) == 0);
    item.answer_size = most;
    ck_assert(score_item("format:.*", &item) == 1);
    /* A search from each start anew would take 2 billion steps. */
    double begin = hy_clock();
    ck_assert(score_item("regex:a*a*a*c", &item) == 0);
    ck_assert(hy_clock() - begin < 2);
    free(text);
}
END_TEST

START_TEST(matching_is_the_same_in_another_locale) {
    if (!setlocale(LC_ALL, "C.UTF-8")) return;
    is("format:..", "\xC3\xA9", NULL, 1);
    is("number", "1.5", "1.5", 1);
    setlocale(LC_ALL, "C");
    is("format:..", "\xC3\xA9", NULL, 1);
}
END_TEST

START_TEST(length_falls_from_n_to_two_n_tokens) {
    static const struct {
        int32_t tokens;
        double score;
    } cases[] = {{0, 1}, {1, 1}, {100, 1}, {150, 0.5}, {175, 0.25}, {200, 0}, {1000, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hy_reward_item item = item_of("x", NULL);
        item.tokens = cases[i].tokens;
        ck_assert(score_item("length:100", &item) == cases[i].score);
    }
    hy_reward_item item = item_of("x", NULL);
    item.tokens = 3000;
    ck_assert(score_item("length:2k", &item) == 0.5);
}
END_TEST

START_TEST(ended_is_whether_the_model_ended_the_answer) {
    hy_reward_item item = item_of("x", NULL);
    ck_assert(score_item("ended", &item) == 1);
    item.ended = false;
    ck_assert(score_item("ended", &item) == 0);
}
END_TEST

/* ---- the list -------------------------------------------------------------------------------- */

START_TEST(wrong_rewards_are_refused_by_name) {
    static const struct {
        const char *reward, *message;
    } cases[] = {
        {"exakt", "there is no kind \"exakt\"; expected exact, number, contains, boxed, regex, "
                  "format, length, ended or program, as KIND[*WEIGHT][:ARGUMENT]; did you mean "
                  "exact?"},
        {"", "there is no kind \"\""},
        {"*2", "there is no kind \"\""},
        {":x", "there is no kind \"\""},
        {"Exact", "there is no kind \"Exact\""},
        {"exact ", "there is no kind \"exact \""},
        {"exact*", "the weight \"\" is not accepted"},
        {"exact*0", "the weight \"0\" is not accepted; expected a number other than 0"},
        {"exact*-0.0", "the weight \"-0.0\""},
        {"exact*x", "the weight \"x\""},
        {"exact*2x", "the weight \"2x\""},
        {"exact*2*3", "the weight \"2*3\""},
        {"exact*nan", "the weight \"nan\""},
        {"exact*1e999", "the weight \"1e999\""},
        {"exact*:lower", "the weight \"\""},
        {"exact:", "there is nothing behind the colon; expected lower"},
        {"exact:upper", "reward \"exact:upper\": \"upper\" is not accepted; expected lower"},
        {"exact:lower*2", "a weight is before the colon"},
        {"contains:x", "expected lower"},
        {"number:5", "number takes no argument"},
        {"boxed:", "boxed takes no argument"},
        {"ended:1", "ended takes no argument"},
        {"program:x", "program takes no argument"},
        {"length", "length needs an argument: length:ARGUMENT, where ARGUMENT is a number of"},
        {"length:", "length needs an argument"},
        {"length:0", "\"0\" is not accepted; expected a number of tokens from 1"},
        {"length:-5", "\"-5\" is not accepted"},
        {"length:1.5", "\"1.5\" is not accepted"},
        {"length:2000000000", "is not accepted"},
        {"length:100*2", "a weight is before the colon"},
        {"regex", "regex needs an argument"},
        {"regex:(a", "\"(a\" is not an extended regular expression: Unmatched ( or \\("},
        {"regex:*", "is not an extended regular expression"},
        {"format:[a", "\"[a\" is not an extended regular expression"},
        {"format:a)", "Unmatched )"},
        {"regex:a{3,1}", "is not an extended regular expression"},
        {"regex:(a)\\1", "has a back-reference"},
        {"format:[a](a)[b]\\1", "has a back-reference"},
        {"format:\\\\\\9", "has a back-reference"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        must_fail(hy_reward_check(cases[i].reward), HY_ERR_INPUT, cases[i].message);
    char many[1100];
    memset(many, 'a', sizeof many);
    memcpy(many, "regex:", 6);
    many[sizeof many - 1] = '\0';
    must_fail(hy_reward_check(many), HY_ERR_INPUT, "at most 1000 are accepted");
}
END_TEST

START_TEST(right_rewards_pass_the_check) {
    static const char *const right[] = {
        "exact",         "exact*2",  "number*-0.5", "exact*1e-3:lower",
        "regex*2:a*b:c", "length:1", "program*3",   "length:1000000000"};
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) must(hy_reward_check(right[i]));
}
END_TEST

START_TEST(lists_are_refused_if_they_are_empty_or_too_long) {
    const char *list[HY_REWARD_PARTS_MOST + 1], *with_program[] = {"program*2", "program"};
    hy_rewards *rewards = (hy_rewards *)list;
    for (size_t i = 0; i <= HY_REWARD_PARTS_MOST; i++) list[i] = "ended";
    must_fail(hy_rewards_open(NULL, 0, NULL, NULL, &rewards), HY_ERR_INPUT, "there are no rewards");
    ck_assert_ptr_null(rewards);
    must_fail(hy_rewards_open(NULL, 0, "", NULL, &rewards), HY_ERR_INPUT, "there are no rewards");
    must_fail(hy_rewards_open(list, HY_REWARD_PARTS_MOST + 1, NULL, NULL, &rewards), HY_ERR_INPUT,
              "33 rewards are too many; at most 32");
    must_fail(hy_rewards_open(list, HY_REWARD_PARTS_MOST, "cat", NULL, &rewards), HY_ERR_INPUT,
              "32 rewards and a program are too many");
    must_fail(hy_rewards_open(with_program, 1, NULL, NULL, &rewards), HY_ERR_INPUT,
              "there is no reward program");
    must_fail(hy_rewards_open(with_program, 2, "cat", NULL, &rewards), HY_ERR_INPUT,
              "the program is in the list already");
    must(hy_rewards_open(list, HY_REWARD_PARTS_MOST, NULL, NULL, &rewards));
    hy_rewards_close(rewards);
    hy_rewards_close(NULL);
}
END_TEST

START_TEST(parts_have_names_weights_and_needs) {
    const char *list[] = {"ended", "length*-0.5:9", "regex:a", "regex*2:b", "regex:c", "number"};
    hy_rewards *rewards = open_list(list, 6);
    const char *const *names;
    ck_assert_uint_eq(hy_rewards_names(rewards, &names), 6);
    ck_assert_str_eq(names[0], "ended");
    ck_assert_str_eq(names[2], "regex");
    ck_assert_str_eq(names[3], "regex_2");
    ck_assert_str_eq(names[4], "regex_3");
    ck_assert(hy_rewards_weights(rewards)[0] == 1);
    ck_assert(hy_rewards_weights(rewards)[1] == -0.5);
    ck_assert(hy_rewards_weights(rewards)[3] == 2);
    ck_assert_str_eq(hy_rewards_needing_answer(rewards), "number");
    hy_rewards_close(rewards);
    rewards = open_list(list, 5);
    ck_assert_ptr_null(hy_rewards_needing_answer(rewards));
    hy_rewards_close(rewards);
}
END_TEST

START_TEST(a_reward_is_the_weighted_sum_of_its_parts) {
    const char *list[] = {"exact*2", "length*-0.5:5", "ended"};
    hy_rewards *rewards = open_list(list, 3);
    hy_reward_item items[] = {item_of("a", "a"), item_of("b", "a")};
    double scores[2], parts[2][3];
    items[0].tokens = 5;
    items[1].tokens = 7;
    items[1].ended = false;
    must(hy_rewards_score(rewards, items, 2, NULL, scores, &parts[0][0]));
    ck_assert(scores[0] == 2 * 1.0 - 0.5 * 1.0 + 1.0);
    ck_assert(scores[1] == -0.5 * (2 - 7 / 5.0));
    ck_assert(parts[0][0] == 1 && parts[0][1] == 1 && parts[0][2] == 1);
    ck_assert(parts[1][0] == 0 && parts[1][1] == 2 - 7 / 5.0 && parts[1][2] == 0);
    items[1].expected = NULL;
    must_fail(hy_rewards_score(rewards, items, 2, NULL, scores, NULL), HY_ERR_INPUT,
              "reward exact of answer 2: the row has no answer of its own");
    must(hy_rewards_score(rewards, items, 0, NULL, scores, NULL));
    hy_rewards_close(rewards);
}
END_TEST

START_TEST(a_sum_that_is_not_finite_is_refused) {
    const char *list[] = {"ended*1e308", "ended*1e308"};
    hy_rewards *rewards = open_list(list, 2);
    hy_reward_item item = item_of("a", NULL);
    double value;
    must_fail(hy_rewards_score(rewards, &item, 1, NULL, &value, NULL), HY_ERR_INPUT,
              "the reward of answer 1 is too large");
    hy_rewards_close(rewards);
}
END_TEST

/* ---- the hash -------------------------------------------------------------------------------- */

static uint64_t hash_of(const char *reward, const char *program, const hy_reward_item *items,
                        size_t count) {
    hy_rewards *rewards;
    must(hy_rewards_open(&reward, 1, program, NULL, &rewards));
    uint64_t hash = hy_rewards_hash(rewards, items, count);
    hy_rewards_close(rewards);
    return hash;
}

START_TEST(the_hash_changes_with_whatever_changes_a_score) {
    hy_reward_item items[2] = {item_of("ab", "c"), item_of("d", NULL)}, changed[7][2];
    uint64_t hashes[12];
    size_t count = 0;
    for (size_t i = 0; i < 7; i++) memcpy(changed[i], items, sizeof items);
    changed[0][0].answer_size = 1;
    changed[1][0].prompt_size = 0;
    changed[2][0].expected = NULL;
    changed[3][1].ended = false;
    changed[4][1].tokens = 11;
    changed[5][1].row_json = "{}";
    changed[5][1].row_size = 2;
    changed[6][1].expected = "";
    hashes[count++] = hash_of("regex:a", NULL, items, 2);
    hashes[count++] = hash_of("regex:b", NULL, items, 2);
    hashes[count++] = hash_of("regex*2:a", NULL, items, 2);
    hashes[count++] = hash_of("format:a", NULL, items, 2);
    hashes[count++] = hash_of("regex:a", "cat", items, 2);
    for (size_t i = 0; i < 7; i++) hashes[count++] = hash_of("regex:a", NULL, changed[i], 2);
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < i; k++) ck_assert_msg(hashes[i] != hashes[k], "%zu and %zu", i, k);
    }
    ck_assert(hashes[0] == hash_of("regex:a", NULL, items, 2));
    ck_assert(hashes[0] != hash_of("regex:a", NULL, items, 1));
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("reward: checks");
    TCase *cases = tcase_create("checks");
    tcase_add_test(cases, exact_compares_without_white_space_at_the_ends);
    tcase_add_test(cases, number_compares_the_last_numbers);
    tcase_add_test(cases, numbers_that_do_not_fit_are_never_equal);
    tcase_add_test(cases, contains_looks_for_the_row_s_answer);
    tcase_add_test(cases, boxed_compares_the_last_box);
    tcase_add_test(cases, regex_is_searched_in_the_answer);
    tcase_add_test(cases, format_matches_the_whole_answer);
    tcase_add_test(cases, only_the_first_64_kib_are_matched);
    tcase_add_test(cases, matching_is_the_same_in_another_locale);
    tcase_add_test(cases, length_falls_from_n_to_two_n_tokens);
    tcase_add_test(cases, ended_is_whether_the_model_ended_the_answer);
    tcase_add_test(cases, wrong_rewards_are_refused_by_name);
    tcase_add_test(cases, right_rewards_pass_the_check);
    tcase_add_test(cases, lists_are_refused_if_they_are_empty_or_too_long);
    tcase_add_test(cases, parts_have_names_weights_and_needs);
    tcase_add_test(cases, a_reward_is_the_weighted_sum_of_its_parts);
    tcase_add_test(cases, a_sum_that_is_not_finite_is_refused);
    tcase_add_test(cases, the_hash_changes_with_whatever_changes_a_score);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
