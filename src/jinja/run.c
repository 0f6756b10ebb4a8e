/* run.c: executes statements, and a whole rendering. See parts.h.
 *
 * hy_jinja_render is the entry: it catches the jump of a failure and frees all memory. A scope is
 * closed by the function that opened it, and `leaves` is CONST outside of loops. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "jinja/parts.h"

#define OUTPUT_MOST ((size_t)8 << 20)

typedef hy_jinja_node node;

static void execute(hy_jinja_run *run, const node *first);

/* ---- scopes ---------------------------------------------------------------------------------- */

void hy_jinja_set_name(hy_jinja_run *run, const char *name, value v) {
    hy_jinja_scope *s = run->scope;
    hy_jinja_spend(run, s->count / 32);
    for (size_t i = 0; i < s->count; i++) {
        if (s->items[i].name != name) continue;
        s->items[i].is = v;
        return;
    }
    if (s->count == s->room) {
        s->room = 2 * s->room + 4;
        s->items = hy_jinja_grow(run, s->items, s->count, s->room, sizeof *s->items);
    }
    s->items[s->count].name = name;
    s->items[s->count++].is = v;
}

void hy_jinja_define(hy_jinja_run *run, const char *name, value v) {
    const hy_jinja *t = run->template;
    for (size_t i = 0; i < t->name_count; i++) { /* other names are not used by the template */
        if (strcmp(t->names[i], name) == 0) hy_jinja_set_name(run, t->names[i], v);
    }
}

static void open_scope(hy_jinja_run *run) {
    hy_jinja_scope *inner = hy_jinja_take(run, sizeof *inner);
    inner->parent = run->scope;
    run->scope = inner;
}

static void close_scope(hy_jinja_run *run) { run->scope = run->scope->parent; }

static void assign(hy_jinja_run *run, const node *target, value v) {
    if (target->kind == HY_NODE_NAME) {
        hy_jinja_set_name(run, target->name, v);
        return;
    }
    if (target->kind == HY_NODE_ATTRIBUTE) {
        value of = hy_jinja_evaluate(run, target->a);
        if (of.type != HY_JINJA_NAMESPACE) {
            hy_jinja_fail(run, "only attributes of a namespace can be set, but this is %s",
                          hy_jinja_type_name(of));
        }
        value key = hy_jinja_string_of(run, target->name);
        hy_jinja_insert(run, of.as.dict, key, v);
        return;
    }
    const hy_jinja_list *items = hy_jinja_iterate(run, v);
    size_t i = 0;
    for (const node *t = target->a; t; t = t->next, i++) {
        if (i >= items->count) break;
        assign(run, t, items->items[i]);
        if (!t->next && i + 1 == items->count) return;
    }
    hy_jinja_fail(run, "%zu values do not match the number of names", items->count);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void write_value(hy_jinja_run *run, value v) {
    hy_jinja_builder *out = run->out;
    size_t before = out->size;
    hy_jinja_print(out, v);
    for (size_t i = before; run->generation && i < out->size; i++) {
        out->marks[i] |= HY_JINJA_GENERATED;
    }
    if (out->size > OUTPUT_MOST) {
        hy_jinja_fail(run, "the template writes more than %zu MiB", OUTPUT_MOST >> 20);
    }
}

/* Renders statements to a string in their own scope. */
static value text_of(hy_jinja_run *run, const node *body) {
    hy_jinja_builder b = {.run = run}, *outer = run->out;
    run->out = &b;
    open_scope(run);
    execute(run, body);
    close_scope(run);
    run->out = outer;
    return hy_jinja_built(&b);
}

static value filtered(hy_jinja_run *run, const node *n) {
    value outer = run->block;
    value text = text_of(run, n->b);
    run->block = text;
    value out = hy_jinja_evaluate(run, n->c);
    run->block = outer;
    return out;
}

/* Called in the scope of the macro, where its names are bound. */
value hy_jinja_call_macro(hy_jinja_run *run, const hy_jinja_macro *macro) {
    uint16_t generation = run->generation;
    hy_jinja_enter(run);
    run->generation = 0; /* the place where the macro's text is written decides */
    value out = text_of(run, macro->node->b);
    run->generation = generation;
    run->depth--;
    return out;
}

/* ---- statements ------------------------------------------------------------------------------ */

static void loop(hy_jinja_run *run, const node *n) {
    const hy_jinja_list *items = hy_jinja_iterate(run, hy_jinja_evaluate(run, n->b));
    if (n->e) {
        value kept = hy_jinja_new_list(run, HY_JINJA_LIST, 0);
        for (size_t i = 0; i < items->count; i++) {
            open_scope(run);
            assign(run, n->a, items->items[i]);
            bool is_kept = hy_jinja_is_true(hy_jinja_evaluate(run, n->e));
            close_scope(run);
            if (is_kept) hy_jinja_append(run, kept, items->items[i]);
        }
        items = kept.as.list;
    }
    hy_jinja_loop *state = hy_jinja_take(run, sizeof *state);
    state->items = items;
    size_t count = items->count;
    for (size_t i = 0; i < count && run->leaves != HY_NODE_BREAK; i++) {
        hy_jinja_spend(run, 1);
        state->at = i;
        open_scope(run);
        hy_jinja_set_name(run, n->name, (value){HY_JINJA_LOOP, {.loop = state}});
        assign(run, n->a, items->items[i]);
        execute(run, n->c);
        close_scope(run);
        if (run->leaves == HY_NODE_CONTINUE) run->leaves = HY_NODE_CONST;
    }
    run->leaves = HY_NODE_CONST;
    if (count > 0) return;
    open_scope(run);
    execute(run, n->d);
    close_scope(run);
}

static void generation(hy_jinja_run *run, const node *n) {
    uint16_t outer = run->generation;
    run->generation = HY_JINJA_GENERATED;
    open_scope(run);
    execute(run, n->b);
    close_scope(run);
    run->generation = outer;
}

static void with(hy_jinja_run *run, const node *n) {
    hy_jinja_scope *outer = run->scope;
    hy_jinja_scope *inner = hy_jinja_take(run, sizeof *inner);
    inner->parent = outer;
    for (const node *set = n->a; set; set = set->next) {
        value v = hy_jinja_evaluate(run, set->b); /* does not see the new names */
        run->scope = inner;
        assign(run, set->a, v);
        run->scope = outer;
    }
    run->scope = inner;
    execute(run, n->b);
    run->scope = outer;
}

static void execute_one(hy_jinja_run *run, const node *n) {
    hy_jinja_macro *macro;
    switch (n->kind) {
    case HY_NODE_TEXT: write_value(run, n->constant); break;
    case HY_NODE_PRINT: write_value(run, hy_jinja_evaluate(run, n->a)); break;
    case HY_NODE_IF:
        execute(run, hy_jinja_is_true(hy_jinja_evaluate(run, n->a)) ? n->b : n->c);
        break;
    case HY_NODE_FOR: loop(run, n); break;
    case HY_NODE_SET: assign(run, n->a, hy_jinja_evaluate(run, n->b)); break;
    case HY_NODE_SET_BLOCK: assign(run, n->a, filtered(run, n)); break;
    case HY_NODE_FILTERED: write_value(run, filtered(run, n)); break;
    case HY_NODE_WITH: with(run, n); break;
    case HY_NODE_MACRO:
        macro = hy_jinja_take(run, sizeof *macro);
        *macro = (hy_jinja_macro){n, run->scope};
        hy_jinja_set_name(run, n->name, (value){HY_JINJA_MACRO, {.macro = macro}});
        break;
    case HY_NODE_GENERATION: generation(run, n); break;
    default: run->leaves = n->kind; break; /* break, continue */
    }
}

static void execute(hy_jinja_run *run, const node *first) {
    hy_jinja_enter(run);
    for (const node *n = first; n && run->leaves == HY_NODE_CONST; n = n->next) {
        run->line = n->line;
        hy_jinja_spend(run, 1);
        execute_one(run, n);
    }
    run->depth--;
}

/* ---- a rendering ----------------------------------------------------------------------------- */

void hy_jinja_output_free(hy_jinja_output *out) {
    hy_text_free(&out->text);
    free(out->marks);
    *out = (hy_jinja_output){0};
}

static hy_status hand_over(const hy_jinja_builder *b, hy_jinja_output *out) {
    hy_text_clear(&out->text);
    HY_TRY(hy_array_reserve(&out->marks, &out->room, b->size + 1, sizeof *out->marks, "a chat"));
    if (b->size) memcpy(out->marks, b->marks, b->size * sizeof *b->marks);
    hy_text_add_bytes(&out->text, b->data ? b->data : "", b->size);
    return hy_text_status(&out->text);
}

hy_status hy_jinja_render(const hy_jinja *template, void (*fill)(hy_jinja_run *run, void *user),
                          void *user, const struct tm *now, hy_jinja_output *out) {
    hy_jinja_run *run = calloc(1, sizeof *run);
    if (!run) return hy_fail(HY_ERR_MEMORY, "not enough memory for %s", template->run.name);
    run->name = template->run.name;
    run->template = template;
    run->now = now;
    if (!setjmp(run->failed)) {
        hy_jinja_builder b = {.run = run};
        run->out = &b;
        open_scope(run);
        fill(run, user);
        run->steps = 0;
        open_scope(run);
        execute(run, template->body);
        run->status = hand_over(&b, out);
    }
    hy_status status = run->status;
    hy_jinja_release(run);
    free(run);
    return status;
}
