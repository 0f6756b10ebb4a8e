/* test_jinja.c: templates against jinja2, and the bounds.
 *
 * tests/golden/jinja.jsonl was made by make_jinja.py: a line of values, then templates with what
 * jinja2 made of them; null where it refuses. What stands in {% generation %} has \2 and \3 around
 * it there. */
#include "harness.h"
#include "jinja/jinja.h"

#define GOLDEN HY_SOURCE_DIR "/tests/golden/jinja.jsonl"

static struct tm day(void) {
    struct tm out;
    time_t at = 1721952000;
    gmtime_r(&at, &out);
    return out;
}

static void fill(hy_jinja_run *run, void *user) {
    for (const hy_json_node *n = hy_json_first(user); n; n = hy_json_next(n)) {
        hy_jinja_define(run, hy_json_key(n), hy_jinja_json(run, n, 1));
    }
}

static hy_status render(const char *text, size_t size, const hy_json_node *values,
                        hy_jinja_output *out) {
    hy_jinja *template;
    struct tm now = day();
    HY_TRY(hy_jinja_parse(text, size, "test", &template));
    hy_status status = hy_jinja_render(template, fill, (void *)values, &now, out);
    hy_jinja_free(template);
    return status;
}

/* ---- against jinja2 -------------------------------------------------------------------------- */

/* The text with its generated parts in \2 and \3. */
static void add_signs(const hy_jinja_output *out, hy_text *text) {
    bool was = false;
    for (size_t i = 0; i < out->text.size; i++) {
        bool is = out->marks[i] & HY_JINJA_GENERATED;
        if (is != was) hy_text_add(text, is ? "\2" : "\3");
        hy_text_add_bytes(text, out->text.data + i, 1);
        was = is;
    }
    if (was) hy_text_add(text, "\3");
}

START_TEST(every_construct_gives_what_jinja2_gives) {
    char *text;
    size_t size, cases = 0;
    hy_json *values = NULL;
    hy_jinja_output out = {0};
    must(hy_file_read(GOLDEN, &text, &size));
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        hy_json *json;
        const char *template, *wanted = NULL;
        size_t template_size;
        must(hy_json_parse(line, (size_t)(end - line), GOLDEN, &json));
        if (!values) {
            values = json;
            continue;
        }
        const hy_json_node *root = hy_json_root(json);
        ck_assert(hy_json_as_string(hy_json_get(root, "template"), &template, &template_size));
        (void)hy_json_as_string(hy_json_get(root, "output"), &wanted, NULL);
        hy_status status =
            render(template, template_size, hy_json_get(hy_json_root(values), "values"), &out);
        hy_text found = {0};
        if (status == HY_OK) add_signs(&out, &found);
        const char *ours = status == HY_OK ? hy_text_string(&found) : hy_error_message();
        ck_assert_msg((status == HY_OK) == (wanted != NULL), "%s: %s, expected %s", template, ours,
                      wanted ? wanted : "a refusal");
        if (wanted)
            ck_assert_msg(strcmp(ours, wanted) == 0, "%s:\n%s\nexpected\n%s", template, ours,
                          wanted);
        hy_text_free(&found);
        hy_json_free(json);
        cases++;
    }
    ck_assert_uint_gt(cases, 200);
    hy_jinja_output_free(&out);
    hy_json_free(values);
    free(text);
}
END_TEST

/* ---- messages -------------------------------------------------------------------------------- */

static void refuse(const char *template, const char *message) {
    hy_jinja_output out = {0};
    must_fail(render(template, strlen(template), NULL, &out), HY_ERR_INPUT, message);
    hy_jinja_output_free(&out);
}

START_TEST(what_is_unknown_is_named_with_its_line) {
    refuse("a\n\n{% include 'x' %}", "test, line 3: {% include %} is not supported");
    refuse("{% import 'x' as y %}", "{% import %} is not supported");
    refuse("{% call m() %}{% endcall %}", "{% call %} is not supported");
    refuse("\n{{ x | urlize }}", "test, line 2: the filter \"urlize\" is not supported");
    refuse("{{ x is escaped }}", "the test \"escaped\" is not supported");
    refuse("{% for x in [] recursive %}{% endfor %}", "a recursive loop is not supported");
    refuse("a\n{{ 'x'.zfill(3) }}", "test, line 2: the method zfill of a string is not supported");
    refuse("{{ f(**x) }}", "** in a call is not supported");
    refuse("{{ 'ä' | upper }}", "upper case outside ASCII is not supported");
    refuse("{{ 5 | tojson(default=1) }}", "tojson has an argument that is not supported");
    refuse("{% macro m() %}{{ varargs }}{% endmacro %}", "varargs in a macro is not supported");
    refuse("{{ '\u0663'.isdigit() }}", "digits outside ASCII are not supported");
    refuse("{{ 1 is sameas 1 }}", "the test \"sameas\" with an integer is not supported");
    refuse("{{ strftime_now('%H %Z') }}", "%Z in a date is not supported");
    refuse("{{ range(3) }}", "a range cannot be written as text");
    refuse("{{ '99999999999999999999' | int }}", "the number 99999999999999999999 is too large");
}
END_TEST

START_TEST(errors_name_the_thing) {
    refuse("{{ raise_exception('Roles must alternate!') }}",
           "test, line 1: the template raised an exception: Roles must alternate!");
    refuse("a\nb {{ x.y }}", "test, line 2: \"x\" is undefined");
    refuse("{{ 'a' + 1 }}", "a string + an integer cannot be computed");
    refuse("a\n{% if x %}\n b", "test, line 3: a block has no end: expected elif else endif");
    refuse("{{ 'x' }", "\"}\" has no opening bracket");
    refuse("{{ 'x' ", "{{ has no end");
    refuse("\xff", "not valid UTF-8");
}
END_TEST

/* ---- bounds ---------------------------------------------------------------------------------- */

START_TEST(templates_that_run_away_are_stopped) {
    refuse("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
           "more than");
    refuse("{% set r = range(99999) %}{% for a in range(99) %}{{ -1 in r }}{% endfor %}", "steps");
    refuse("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested more than");
    refuse("{% set ns = namespace(s='0123456789') %}{% for i in range(60) %}"
           "{% set ns.s = ns.s + ns.s %}{% endfor %}",
           "memory");
    refuse("{{ 'x' * 9999999999 }}", "more than");
    refuse("{{ '' ~ [[]] * 9999999999 }}", "more than");
    refuse("{{ range(999999) }}", "more than 100000 numbers");
    refuse("{{ strftime_now('%A' * 1000) }}", "a date has more than 255 bytes");
    refuse("{% set x = 'x' * 1000000 %}{% for i in range(99) %}{{ x }}{% endfor %}",
           "the template writes more");
    refuse("{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}"
           "{% endfor %}{{ ns.l }}",
           "nested more than");
    hy_text deep = {0};
    for (int i = 0; i < 60; i++) hy_text_add(&deep, "{% if (((((((((1))))))))) %}");
    for (int i = 0; i < 300; i++) hy_text_add(&deep, "{% if 1 %}");
    refuse(hy_text_string(&deep), "nested more than");
    hy_text_clear(&deep);
    hy_text_add(&deep, "{{ ");
    for (int i = 0; i < 5000; i++) hy_text_add(&deep, "- ");
    hy_text_add(&deep, "1 }}");
    refuse(hy_text_string(&deep), "nested more than");
    hy_text_free(&deep);
}
END_TEST

/* What looks at much and writes nothing is counted, too: each of these would take minutes or
 * hours. */
START_TEST(templates_that_look_at_too_much_are_stopped) {
    static const char *const looks[] = {"x | length",
                                        "x.startswith(x)",
                                        "x.rfind('xy' ~ x[:999999])",
                                        "x.strip('y' * 999999 ~ 'x')",
                                        "r | max",
                                        "r | select('eq', -1) | list",
                                        "d.z",
                                        "x.splitlines()"};
    hy_text template = {0};
    for (size_t i = 0; i < sizeof looks / sizeof looks[0]; i++) {
        hy_text_clear(&template);
        hy_text_add(&template, "{% set x = 'x' * 2000000 %}{% set r = range(90000) %}{% set d = {");
        for (int k = 0; k < 500; k++) hy_text_addf(&template, "'%d': 0,", k);
        hy_text_addf(&template,
                     "} %%}{%% for i in r %%}{%% for k in r[:9] %%}{%% set y = %s %%}"
                     "{%% endfor %%}{%% endfor %%}",
                     looks[i]);
        refuse(hy_text_string(&template), "steps");
    }
    hy_text_clear(&template);
    for (int i = 0; i < 60000; i++) hy_text_addf(&template, "{%% set n%d = 1 %%}", i);
    refuse(hy_text_string(&template), "steps");
    hy_text_free(&template);
}
END_TEST

/* ---- marks ----------------------------------------------------------------------------------- */

/* Which bytes came from the values: shown as x, the template's own as '.' */
static void check_marks(const char *template, const char *marks) {
    static const char values[] =
        "{\"a\": \"one two\", \"l\": [\"p\", \"q\"], \"d\": {\"k\": \"v\"}}";
    hy_jinja_output out = {0};
    hy_json *json;
    must(hy_json_parse(values, sizeof values - 1, "values", &json));
    must(render(template, strlen(template), hy_json_root(json), &out));
    ck_assert_uint_eq(strlen(marks), out.text.size);
    for (size_t i = 0; i < out.text.size; i++) {
        ck_assert_msg((out.marks[i] == 1) == (marks[i] == 'x'), "%s: byte %zu of %s", template, i,
                      out.text.data);
    }
    hy_jinja_output_free(&out);
    hy_json_free(json);
}

START_TEST(bytes_know_where_they_came_from) {
    check_marks("<{{ a }}>", ".xxxxxxx.");
    check_marks("{{ a[1:3] + '-' ~ a[-1] }}", "xx.x");
    check_marks("{{ a.split(' ') | join('+') }}{{ l | join(',') }}", "xxx.xxxx.x");
    check_marks("{{ a.replace('one', 'ONE') }}|{{ a | replace('n', l[0]) }}", "...xxxx.xxxxxxx");
    check_marks("{{ ('  ' ~ a ~ '  ') | trim | upper }}", "xxxxxxx");
    check_marks("{{ d | tojson }}{{ d }}", "..x....x....x....x..");
    check_marks(
        "{% macro m(x) %}({{ x }}){% endmacro %}{% set y %}[{{ m(a[0]) }}]{% endset %}{{ y }}",
        "..x..");
    check_marks("{{ a | title }}{{ '%s!' % l[0] }}{{ '{}?'.format(l[1]) }}", "xxxxxxxx.x.");
    check_marks("{{ a | indent(1, true) }}{{ l | reverse | first }}{{ a[::-1] }}",
                ".xxxxxxxxxxxxxxx");
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("jinja");
    TCase *cases = tcase_create("jinja");
    tcase_add_test(cases, every_construct_gives_what_jinja2_gives);
    tcase_add_test(cases, what_is_unknown_is_named_with_its_line);
    tcase_add_test(cases, errors_name_the_thing);
    tcase_add_test(cases, templates_that_run_away_are_stopped);
    tcase_add_test(cases, templates_that_look_at_too_much_are_stopped);
    tcase_add_test(cases, bytes_know_where_they_came_from);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
