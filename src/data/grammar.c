/* grammar.c: generates the built-in text and computes its entropy.
 *
 * The program made from the table (grammar_program.h) runs once per document. Random numbers come
 * from a counter, so the text depends only on the seed. Each call builds the program again, in a
 * fraction of a millisecond, so there is no state between calls. */
#include "data/grammar.h"

#include <assert.h>
#include <string.h>

#include "base/rng.h"
#include "data/grammar_program.h"

typedef struct remembered {
    int begin, size;
    int choice; /* the last choice made inside it */
} remembered;

/* The document that is being written. */
typedef struct writer {
    const hy_grammar_program *program;
    uint64_t seed, drawn; /* seed; random numbers drawn so far for the whole text */
    uint32_t words[4];
    bool wants_nats;
    int size;
    int last_choice;
    /* the last slot is for values that are never used again */
    remembered slots[HY_GRAMMAR_SLOTS + 1];
    uint8_t text[HY_GRAMMAR_DOCUMENT_MAX];
    float nats[HY_GRAMMAR_DOCUMENT_MAX];
} writer;

static uint32_t draw(writer *w, uint32_t below) {
    unsigned lane = w->drawn % 4;
    if (lane == 0) hy_philox(w->seed, HY_RNG_GRAMMAR, w->drawn / 4, w->words);
    w->drawn++;
    return (uint32_t)((uint64_t)w->words[lane] * below >> 32); /* bias below 64 / 2^32 */
}

static void put(writer *w, const void *bytes, int size) {
    memcpy(w->text + w->size, bytes, (size_t)size);
    w->size += size;
}

static void expand(writer *w, int rule_number);

static void run_op(writer *w, const hy_grammar_op *op) {
    remembered *slot = &w->slots[op->slot];
    switch (op->kind) {
    case HY_GRAMMAR_TEXT: put(w, op->text.data, op->text.size); break;
    case HY_GRAMMAR_COPY: put(w, w->text + slot->begin, slot->size); break;
    case HY_GRAMMAR_REPEAT:
        for (int i = 0; i <= w->slots[op->counter].choice; i++) {
            put(w, ", ", 2);
            put(w, w->text + slot->begin, slot->size);
        }
        break;
    case HY_GRAMMAR_AGREE: {
        int form = op->first_form + slot->choice % op->form_count;
        put(w, w->program->forms[form].data, w->program->forms[form].size);
        break;
    }
    case HY_GRAMMAR_EXPAND: {
        int begin = w->size;
        expand(w, op->rule);
        *slot = (remembered){begin, w->size - begin, w->last_choice};
        break;
    }
    }
}

static void expand(writer *w, int rule_number) {
    const hy_grammar_rule_program *rule = &w->program->rules[rule_number];
    const hy_grammar_choice *choice = &w->program->choices[rule->first_choice];
    if (rule->choice_count > 1) {
        w->last_choice = rule->drawn[draw(w, (uint32_t)rule->total_weight)];
        choice += w->last_choice;
        if (w->wants_nats) {
            memcpy(w->nats + w->size, w->program->costs + choice->first_cost,
                   (size_t)choice->cost_count * sizeof(float));
        }
    }
    const hy_grammar_op *ops = &w->program->ops[choice->first_op];
    for (int i = 0; i < choice->op_count; i++) run_op(w, &ops[i]);
}

static void build(hy_grammar_program *program) {
    hy_status status = hy_grammar_program_build(hy_grammar_rules, hy_grammar_rule_count, program);
    assert(status == HY_OK); /* cannot fail: the table is part of the program and tested */
    (void)status;
}

double hy_grammar_entropy(void) {
    hy_grammar_program program;
    build(&program);
    return program.rules[0].nats / program.rules[0].bytes;
}

void hy_grammar_generate(uint64_t seed, uint8_t *text, float *nats, uint64_t size) {
    hy_grammar_program program;
    build(&program);
    writer w = {.program = &program, .seed = seed, .wants_nats = nats != NULL};
    for (uint64_t done = 0; done < size;) {
        if (w.wants_nats) memset(w.nats, 0, sizeof w.nats);
        w.size = 0;
        expand(&w, 0);
        uint64_t count = size - done < (uint64_t)w.size ? size - done : (uint64_t)w.size;
        memcpy(text + done, w.text, count);
        if (nats) memcpy(nats + done, w.nats, count * sizeof *nats);
        done += count;
    }
}
