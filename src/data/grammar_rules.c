/* grammar_rules.c: the built-in grammar, in the notation of grammar_program.h.
 *
 * A document is one line of about 60 bytes. Some of it cannot be predicted from the last four
 * bytes, but a model with a longer memory can: an invented place is repeated (always eight bytes
 * after its first mention, which a young model learns first); names, numbers and goods return
 * later; pronouns follow the ending of a name; a cry is repeated as often as announced; brackets of
 * three kinds close in order. The choices, mostly letters and digits, make up the entropy. */
#include "data/grammar_program.h"

const hy_grammar_rule hy_grammar_rules[] = {
    {"document", "<N=name> <deed>\n"},
    {"deed", "3~hid <goods>|3~put <goods>|3~kept <goods>|3~left <goods>|"
             "sang <cry>|wept <cry>|cried <cry>|yelled <cry>"},
    {"goods", "<Q=number> <I=item> <note> in <P=place>. <P> <end>"},
    {"end", "2~loves <N>.|2~hates <N?her/him>.|2~is <N?her/his> home.|2~was <quality>.|"
            "has <Q> <I>."},
    {"cry", "<K=count> times: <P=place><P*K>! <N?She/He> was <note>."},

    /* Brackets, at most three deep. Each level ends or contains one more. */
    {"note", "(<quality><after_round>|[<quality><after_square>|{<quality><after_curly>"},
    {"after_round", ")| <inner>)"},
    {"after_square", "]| <inner>]"},
    {"after_curly", "}| <inner>}"},
    {"inner", "(<quality><inner_round>|[<quality><inner_square>|{<quality><inner_curly>"},
    {"inner_round", "3~)| <core>)"},
    {"inner_square", "3~]| <core>]"},
    {"inner_curly", "3~}| <core>}"},
    {"core", "(<quality>)|[<quality>]|{<quality>}"},

    {"quality", "red|big|old|tiny|sweet|cold|fresh|blue|warm|dry|lost|kind|nice|young|green|huge"},
    {"item", "figs|nuts|pears|eggs|beans|coins|hats|keys|lamps|drums|vases|rings|bells|cups|jars|"
             "mugs"},
    {"place", "<initial><vowel><consonant><vowel><consonant><vowel>"},
    {"name", "<initial><ending>"},
    {"initial", "B|D|F|G|K|L|M|N|P|R|S|T|V|Z"},
    {"ending", "ina|olo|ela|aro"}, /* hers, his, hers, his */
    {"consonant", "b|d|f|g|k|l|m|n|p|r|s|t|v|z"},
    {"vowel", "a|e|i|o|u"},
    {"number", "<first><digit>"},
    {"first", "1|2|3|4|5|6|7|8|9"},
    {"digit", "0|1|2|3|4|5|6|7|8|9"},
    {"count", "2|3|4"},
};
const int hy_grammar_rule_count = sizeof hy_grammar_rules / sizeof *hy_grammar_rules;
