#!/usr/bin/env python3
"""Writes tests/golden/jinja.jsonl: small templates, values for them, and what jinja2 makes of both.

The environment is set up as transformers sets it up for chat templates. A case whose output is null is one
that jinja2 refuses. Every construct that our renderer knows has its cases here (tests/test_jinja.c).

    python3 tests/golden/make_jinja.py
"""
import datetime
import json
import os

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))

VALUES = {
    "name": "World", "blank": "  a b \n", "empty": "", "yes": True, "no": False, "nil": None,
    "one": 1, "two": 2, "neg": -7, "pi": 3.14, "small": 1e-7, "whole": 2.0,
    "items": ["a", "b", "c"], "numbers": [3, 1, 2], "mixed": [1, "x", None, True, 2.5, ["y"], {"k": "v"}],
    "nothing": [], "table": {"a": 1, "b": "two", "items": "own", "c": [1, 2]},
    "people": [{"name": "Zoe", "age": 3, "in": {"city": "Oslo"}}, {"name": "adam", "age": 40},
               {"name": "Bob", "age": 3, "in": {"city": "Rome"}}],
    "uni": "naïve 日本語 😀 ß", "quotes": "it's \"so\" \\ \t\n\r\u0007 \u00a0\u200b é", "html": "<b>&'\"",
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": " Q "},
                 {"role": "assistant", "content": "A", "tool_calls": []}],
}

EXPRESSIONS = """
name
name + '!' ~ one ~ pi ~ nil ~ yes
missing
missing ~ 'x'
[missing, 1]
'a' 'b' "c"
'\\n\\t\\\\\\'\\x41\\u00e9\\U0001F600\\101\\q'
1 + 2 * 3 - 4
7 // 2, -7 // 2, 7 % 3, neg % 3, 7 / 2, 2 ** 10, 2 ** -1
7.5 // 2, 7.5 % 2, -7.5 % 2, 1.5 + 1, 2 * 1.5
1_000 + 2e3
-one, +two, - - 3
'ab' * 3, [1, 2] * 2, 3 * 'x', 'ab' * -1
[1] + [2], (1,) + (2,)
one < two, one <= 1, two > 3, two >= 2, one == 1.0, yes == 1, 'a' < 'b', [1, 2] < [1, 3]
1 < 2 < 3, 1 < 2 > 3, one != two
'a' in items, 'z' not in items, 'or' in name, 'a' in table, 3 in numbers, not 'a' in items
yes and no, yes or no, not yes, nil or 'x', 'x' and 'y', '' or nothing or 'last'
'a' if yes else 'b', 'a' if no else 'b', ('a' if no), 'a' if no else 'b' if no else 'c'
items[0], items[-1], items[5], items[1:], items[:-1], items[::-1], items[::2], items[-2:], items[5:]
name[0], name[-1], name[1:3], name[::-1], name[10], uni[0], uni[6:9], uni[::-1], uni[10:11]
items[2:0:-1], items[:0:-1], numbers[-10:10], name[-100:2], items[1:1], name[::-2]
table.a, table['b'], table.missing, table['missing'], table['items'], table.get('a'), table.get('x'), table.get('x', 5)
table.items() | list, table.keys() | list, table.values() | list
table.items is defined, table.items is callable, messages[0].role, messages[-1]['content'], messages.0.role
nil.x, nil['x'], one.x, name.foo, items.foo
(), (1,), (1, 2), [], {}, {'a': 1, 2: 'b', none: no}
mixed, quotes, [quotes], {'q': quotes}, [uni, 'a\\'b', "a'\\"b"]
pi, 1e20, small, whole, 0.1, 1e16, 1e15, 123456789.125, 1.0, -0.5, 1e-4, 1e-5, 100000.0 * 3
[true, false, none, True, False, None]
blank.strip(), blank.lstrip(), blank.rstrip(), 'xxaxx'.strip('x'), 'xyax'.rstrip('yx'), uni.strip('nß')
'a,b,,c'.split(','), ' a  b '.split(), 'a b c d'.split(' ', 2), ' a b  c '.split(none, 1), 'abc'.split('x')
'a,b,c'.rsplit(',', 1), 'a,b,c'.rsplit(','), 'abc'.rsplit(',', 1)
name.startswith('Wo'), name.endswith('ld'), name.startswith(('x', 'W')), name.endswith('x')
name.replace('o', '0'), 'aaa'.replace('a', 'b', 2), name.upper(), name.lower(), 'hello wORLD x1y'.title()
'hello World'.capitalize(), name.find('r'), name.find('z'), 'abab'.rfind('b'), 'abab'.count('ab'), uni.find('本')
'prefix-x'.removeprefix('prefix-'), 'x.txt'.removesuffix('.txt'), 'x'.removeprefix('y')
'12'.isdigit(), '1a'.isdigit(), ''.isdigit(), 'ab'.isalpha(), ' \\t'.isspace()
', '.join(items), '{} {1} {x} {{}}'.format('a', 'b', x=3) if false else '{} {}'.format(1, 'b')
'{0}-{n}'.format('a', n=2), '%s is %d%%' % ('x', 5), '%s' % name, '%s' | format(name)
uni.lower(), 'ÄÖÜ'.lower(), 'ABC' | lower, 'abc' | upper, 'ab-cd (ef) gh' | title, 'hELLO' | capitalize
blank | trim, 'xax' | trim('x'), 5 | trim, nil | trim, missing | trim
items | length, name | length, table | length, uni | length, missing | length, (1, 2) | count
items | first, items | last, nothing | first, name | first, table | first, items | list, name | list
items | join, items | join(', '), [1, none, 'x'] | join('-'), people | join(',', attribute='name'), 'abc' | join('.')
items | reverse | list, name | reverse, numbers | sort, numbers | sort(reverse=true), people | sort(attribute='name') | map(attribute='name') | list
['b', 'A', 'c'] | sort, ['b', 'A', 'c'] | sort(case_sensitive=true), people | sort(attribute='age') | map(attribute='name') | list
people | map(attribute='name') | list, people | map(attribute='in.city', default='?') | list
items | map('upper') | list, items | map('replace', 'a', 'z') | list, nothing | map('upper') | list
people | selectattr('age', 'equalto', 3) | map(attribute='name') | list, people | selectattr('in') | list | length
people | rejectattr('age', '==', 3) | map(attribute='name') | list, people | selectattr('in', 'defined') | list | length
mixed | select('string') | list, mixed | reject('string') | list, [0, 1, ''] | select | list, numbers | select('>', 1) | list
nil | selectattr('x') | list, '' | map('upper') | list
table | items | list, table | dictsort, {'b': 1, 'A': 2} | dictsort(true), {'b': 1, 'a': 2} | dictsort(by='value'), {'b': 1, 'a': 2} | dictsort(reverse=true)
['a', 'A', 'b', 'a'] | unique | list, ['a', 'A'] | unique(true) | list, [2, 1, 2] | unique | list
numbers | min, numbers | max, ['b', 'A'] | min, nothing | max
missing | default('d'), '' | default('d'), '' | default('d', true), nil | default('d', boolean=true), missing | d, nil | d('x')
'5' | int, ' 7 ' | int, '5.9' | int, 'x' | int, 'x' | int(3), 5.9 | int, -5.9 | int, yes | int, nil | int
'2.5' | float, 'x' | float, 1 | float, 'x' | float(1.5)
5 | string ~ '!', nil | string, [1] | string, name | safe, ('<' | safe) + html, html + ('<' | safe), ('<' | safe) ~ html
'a\\nb\\n\\nc' | indent, 'a\\nb' | indent(2), 'a\\nb\\n' | indent(2, true), 'a\\n\\nb' | indent(1, blank=true), 'a\\nb' | indent('> ')
mixed | tojson, table | tojson, quotes | tojson, uni | tojson, uni | tojson(ensure_ascii=true), html | tojson, [] | tojson, {} | tojson
[1, {'a': [], 'b': {}}] | tojson(indent=2), table | tojson(indent=4), [1, 2] | tojson(separators=(',', ':')), {'b': 1, 'a': 2} | tojson(sort_keys=true)
{1: 2, none: 3, true: 4, 1.5: 5} | tojson, [1e20, small, pi, 1e16] | tojson, '\\x7f\\x01' | tojson
name | replace('o', '0'), 'aaa' | replace('a', 'b', 2), 5 | replace('5', 'x')
name is defined, missing is defined, missing is not defined, missing is undefined, nil is none, nil is not none
yes is true, no is false, one is true, yes is boolean, one is integer, yes is integer, pi is float, pi is number, yes is number
name is string, one is string, table is mapping, items is mapping, items is iterable, name is iterable, one is iterable, table is iterable
items is sequence, table is sequence, name is sequence, one is sequence, missing is iterable, table.items() is sequence, table.items() is iterable
3 is odd, 4 is even, 9 is divisibleby 3, 9 is divisibleby(2), 'a' is in items, 'z' is not in items
1 is eq 1, 1 is ne 2, 1 is lt 2, 2 is le 2, 3 is gt 2, 3 is ge 4, 1 is equalto(1)
range(3) | list, range(1, 4) | list, range(5, 0, -2) | list, range(0) | list
namespace(a=1).a, namespace(a=1).b, dict(a=1, b=2), namespace({'x': 5}).x
strftime_now('%Y-%m-%d'), strftime_now('%d %b %Y'), strftime_now('%A')
(items | map('upper')) is sequence, (nothing | map('upper')) and 'true', (items | reverse) is iterable
loop is defined, caller is defined, raise_exception is defined, raise_exception is callable
'日本語 😀 abc' | upper, 'абв ß' | lower
missing.x
missing['x']
missing + 1
1 + 'a'
'a' + 1
'a' + nil
1 < 'a'
nil < 1
1 // 0
5 % 0
one()
missing()
items | length()
nil | length
5 | list
5 | join
raise_exception('told')
{} | dictsort, 5 | items | list
'a'.split('')
'%d' % 'x'
'%s %s' % 'x'
{[1]: 2}
items.append(1)
table.update({'x': 1})
[].pop()
[missing] | tojson
(items | map('upper')) | length
1[0], (1)[0]
1 in 5
'a' in nil
5 in 'a'
range(1000001) | length
[1, 'a'] | sort
'abc'.index('z')
'\\x7f ~ é' | tojson(ensure_ascii=true)
'a\\r\\nb\\rc\\x0bd\\u2028e\\n' | indent(2), 'a\\r\\n\\r\\nb' | indent(1, true, true), '' | indent(2, true), '\\n' | indent(2)
'a\\r\\nb\\n\\nc'.splitlines(), 'a\\u2028b\\x85c\\x1ed\\x0ce\\n'.splitlines(), ''.splitlines(), 'a\\n'.splitlines(true)
range(3) is sequence, range(3) is iterable, range(9)[2], range(9)[-1], range(9)[9] is defined, range(9)[2:5] | list, range(3) | length, range(3) | last, 2 in range(3), range(3) == range(3), range(3) == [0, 1, 2], range(0) or 'none'
range(3) + [1]
range(3) | tojson
'9007199254740993' | int, '-12' | int, '1_000' | int, '0x10' | int, 'inf' | int, 'nan' | int(7), '1e3' | int, ' 2.5 ' | float, '0x10' | float, 'inf' | float, '-Infinity' | float, '1_0.5' | float, '' | float(3), '1.5.2' | float, '+3' | int, '12abc' | int
-7.5 % 2, 7.5 % -2, -7.5 // 2, 1.1 % 0.1, 5.5 // 0.1, 6.0 % 3, -6.0 % 3, 1e300 * 10
0 ** -1
0.0 ** -1
10.0 ** 400
'\\x1c\\u2003'.isspace(), '日本'.isalpha(), 'a1'.isalpha()
yes is sameas true, no is sameas false, nil is sameas none, one is sameas true, nil is sameas false
missing is callable, missing is sequence, missing is mapping, missing is string, nil is callable
strftime_now('%Y') ~ strftime_now('%B %-d, %H:%M:%S %p %j %%')
'日a b日c'.title(), "it's a 2nd x-y_z".title()
1 is odd if yes else 2
(1 is odd) if yes else 2
nil[0:1]
table[:1]
(items | map('upper'))[0:1]
5 | trim(3)
missing | dictsort
missing | int
missing | float
{} | float(none), 'x' | int(none), table[items], (yes | safe) | list, true * [1], (nothing | select | reverse) or 'empty'
numbers | sort(reverse='x')
'\\xZZ'
'\\u12'
name.startswith((('W',),))
'a' ~ self.x ~ 'b'
[1.0, -0.0, 1e22, 123456789012345680.0, 5e-324, 1.7976931348623157e308]
'a b' is in ['a b'], none in [none], missing in [missing], missing == nil, [missing] == [missing]
""".strip("\n").split("\n")

TEMPLATES = [
    # spaces around tags
    "a\n{% if yes %}\nb\n{% endif %}\nc\n", "a\n  {% if yes %}\n  b\n  {% endif %}\nc", "a {% if yes %} b {% endif %} c",
    "a\n  {%- if yes -%}\n  b\n  {%- endif -%}\n  c", "a\n  {%+ if yes +%}\n  b\n  {%+ endif +%}\n  c",
    "x {{- name -}} y", "x\n  {{ name }}\n  y", "x\n  {{- name }}\n\n{{ name -}}  \n y", "{# c #}a{#- c -#} b \n{# c #}\n d",
    "a\n  {# c #}\n  b", "  {% set x = 1 %}  {{ x }}", "{% if yes %}\n\n\na{% endif %}\n\n", "a\r\nb\rc\n", "\n\n{{ name }}\n\n",
    "{% if yes %}{% if yes %}\n  a\n  {% endif %}\n{% endif %}b", "\t{% if yes %}\tx{% endif %}\t\n", "a {%- if yes %} b{% endif %}",
    "{% raw %}{{ x }} {% y %}{% endraw %}", "a\n  {%- raw -%}\n {{ x }}\n {%- endraw -%}\n b", "{% raw %}\n a\n {% endraw %}\n b",
    "{{ '%}' }}{{ '}}' }}{{ {'a': {'b': 1}} }}{{ {'a': {}}.a }}", "{% set x = '{{ no }}' %}{{ x }}", "{ {", "{{ 1 }}}", "{{name}}{{name}}",
    "a {# b\nc #} d\n{# x -#}\n\n e {#+ y +#} \n f", "{{ name\n}}", "\u00a0{%- if yes %}x{% endif %}",
    "{#-#}\ta{#+#}\n b{#--#}  c",
    # set and scopes
    "{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}", "{% set x = 1 %}{% for i in items %}{% set x = i %}{% endfor %}{{ x }}",
    "{% set x = 0 %}{% for i in numbers %}{{ x }}{% set x = i %}{{ x }} {% endfor %}",
    "{% set ns = namespace(n=0, s='') %}{% for i in numbers %}{% set ns.n = ns.n + i %}{% set ns.s = ns.s ~ i %}{% endfor %}{{ ns.n }} {{ ns.s }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c }}{{ d }}", "{% set x %} a {{ name }} {% endset %}[{{ x }}]",
    "{% set x | upper | trim %} a {{ name }} {% endset %}[{{ x }}]", "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}",
    "{% set t = 1, 2 %}{{ t }}", "{% with a = 1, b = 2 %}{{ a + b }}{% set z = 1 %}{% endwith %}{{ a is defined }}{{ z is defined }}",
    "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}", "{% filter upper %}a {{ name }}{% endfilter %}!",
    "{% filter trim | upper %} a {% endfilter %}!", "{% set a = 1 %}{% set ns = {} %}{% set ns.x = 1 %}", "{% set a, b = 1, 2, 3 %}", "{% set a, b = 5 %}",
    # if
    "{% if no %}a{% elif yes %}b{% else %}c{% endif %}{% if no %}a{% elif no %}b{% else %}c{% endif %}{% if no %}x{% endif %}",
    "{% if missing %}a{% else %}b{% endif %}{% if nothing %}a{% else %}b{% endif %}{% if '0' %}a{% endif %}{% if 0.0 %}b{% endif %}{% if table %}c{% endif %}",
    # for
    "{% for i in items %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }} {% endfor %}",
    "{% for i in items %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {{ loop.previtem is defined }}{% endfor %}",
    "{% for i in nothing %}x{% else %}nothing{% endfor %}{% for i in items %}x{% else %}nothing{% endfor %}",
    "{% for k, v in table.items() %}{{ k }}={{ v }};{% endfor %}{% for k in table %}{{ k }}{% endfor %}{% for c in name %}{{ c }}.{% endfor %}",
    "{% for i in numbers if i > 1 %}{{ loop.index }}:{{ i }}:{{ loop.length }}:{{ loop.last }} {% else %}none{% endfor %}",
    "{% for i in numbers if i > 9 %}x{% else %}none{% endfor %}", "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in items %}{% for j in numbers %}{{ loop.index }}{{ loop.depth }}{% if j == 1 %}{% break %}{% endif %}{% endfor %}{{ loop.index }}{{ loop.depth0 }};{% endfor %}",
    "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for i in nil %}{% endfor %}", "{% for i in missing %}x{% else %}e{% endfor %}",
    "{% set g = items | map('upper') %}{% for i in g %}{{ i }}{% endfor %}{% for i in g %}{{ i }}{% endfor %}", "{% for i in 1, 2 %}{{ i }}{% endfor %}",
    "{% for a, b in [1] %}{% endfor %}", "{% for x in items %}{% set last = x %}{% endfor %}{{ last is defined }}", "{% for i in items %}{{ i }}{% endfor %}{{ i is defined }}{{ loop is defined }}",
    "{% for i in nothing %}{% else %}{% set inner = 1 %}{% endfor %}{{ inner is defined }}", "{% for i in items %}{{ loop is iterable }}{{ loop is callable }}{{ loop is sequence }}{% endfor %}",
    "{% set g = items | map('upper') %}{{ g | first }}{{ g | first }}{{ g | list }}", "{% set g = items | map('upper') %}{{ 'A' in g }}{{ g | list }}{{ 'C' in g }}",
    "{% for i in range(3) %}{{ i }}{{ loop.nextitem }}{% endfor %}", "{% if range(2) | length == 2 %}x{% endif %}",
    # macros
    "{% macro m(a, b='d', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}{{ m(b=1, a=2) }}{{ m() }}",
    "{% macro m(a) %}{{ a }}{{ name }}{% set name = 'in' %}{{ name }}{% endmacro %}{{ m('x') }}{{ name }}",
    "{% macro r(n) %}{{ n }}{% if n > 0 %}{{ r(n - 1) }}{% endif %}{% endmacro %}{{ r(3) }}", "{% macro m(a) -%}\n  {{ a }}\n{%- endmacro %}{{ m(1) ~ '!' }}",
    "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(x=2) }}",
    "{% macro f() %}{% for i in items %}{{ i }}{{ loop.index }}{% endfor %}{% endmacro %}{% set t = f() %}{{ t | length }}{{ t }}{{ f is callable }}",
    "{% set v = 1 %}{% macro m() %}{{ v }}{% endmacro %}{% set v = 2 %}{{ m() }}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    # generation
    "q {% generation %}a {{ name }}{% endgeneration %} end", "{% for i in items %}{{ i }}{% generation %}<{{ i }}>{% endgeneration %}\n{% endfor %}",
    "{% macro m(x) %}({{ x }}){% endmacro %}{% generation %}{{ m(1) }}{% set y = 1 %}{% endgeneration %}{{ y is defined }}",
    # refused
    "{% if yes %}", "{% endif %}", "{{ name", "{% for %}", "{{ }}", "{% raw %}x", "{# x", "{{ 'x }}", "{{ (1 }}", "{{ 1 } }}", "{% if %}{% endif %}", "{% set %}", "{% bogus %}",
    "{{ name | bogus }}", "{{ name is bogus }}", "{{ 1 2 }}", "{% macro %}{% endmacro %}", "{{ raise_exception('it is ' ~ name) }}", "{% break %}", "{{ $ }}",
    "{% if no %}{{ name | bogus }}{% endif %}ok", "{% if yes %}{{ name | bogus }}{% endif %}ok", "{% set x = missing.y.z %}", "{{ '\\\\' }}{{ 'a\\\nb' }}",
    "{% for i in items %}{% endif %}{% endfor %}",
]


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_keep"), [], [], body).set_lineno(line)

    def _keep(self, caller):
        return "\x02" + caller() + "\x03"


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime(2024, 7, 26).strftime(f)
    return env


def main():
    env, lines = environment(), []
    templates = ["{%% set v = %s %%}{{ v }}" % e if e.startswith("(") else "{{ %s }}" % e for e in EXPRESSIONS]
    for template in templates + TEMPLATES:
        try:
            output = env.from_string(template).render(**VALUES)
        except Exception:
            output = None
        lines.append({"template": template, "output": output})
    with open(os.path.join(HERE, "jinja.jsonl"), "w", encoding="utf-8") as f:
        f.write(json.dumps({"values": VALUES}, ensure_ascii=False) + "\n")
        for line in lines:
            f.write(json.dumps(line, ensure_ascii=False) + "\n")
    print("%d cases, %d refused" % (len(lines), sum(line["output"] is None for line in lines)))


if __name__ == "__main__":
    main()
