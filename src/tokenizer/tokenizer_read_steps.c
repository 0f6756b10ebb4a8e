/* tokenizer_read_steps.c: reads the normaliser, pre-tokeniser and decoder of a tokenizer.json.
 *
 * Each is a single item or a Sequence of items, and becomes a list of steps. An unknown item, or an
 * order that would have another meaning, is an error that names the item. */
#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"

/* The index of the text in names; `count`: not found. */
static int find_name(const char *const *names, int count, const char *text) {
    int i = 0;
    while (i < count && strcmp(text, names[i]) != 0) i++;
    return i;
}

static const char *type_of(const hy_json_node *node) {
    const char *type = "";
    hy_json_as_string(hy_json_get(node, "type"), &type, NULL);
    return type;
}

static hy_status refuse(const hy_tokenizer *t, const char *part, const char *type,
                        const char *known) {
    return hy_fail(HY_ERR_INPUT, "%s: %s \"%.60s\" is not supported; supported are %s", t->name,
                   part, type, known);
}

static hy_status copy_text(const hy_tokenizer *t, const char *part, const hy_json_node *node,
                           const char *key, char **out, size_t *size) {
    const char *text;
    *size = 0;
    HY_FAIL_IF(!hy_json_as_string(hy_json_get(node, key), &text, size), HY_ERR_INPUT,
               "%s: %s %s needs the string \"%s\"", t->name, part, type_of(node), key);
    *out = malloc(*size + 1);
    if (!*out) return hy_fail(HY_ERR_MEMORY, "not enough memory for the %s", part);
    memcpy(*out, text, *size + 1);
    return HY_OK;
}

/* Checks that there is room for an entry of the file, which becomes at most two steps. */
static hy_status check_room(const hy_tokenizer *t, const hy_steps *steps, const char *part) {
    if (steps->count + 2 <= HY_STEPS_MAX) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "%s: %s has more than %d steps", t->name, part, HY_STEPS_MAX - 1);
}

/* Adds a step, for which there must be room; freeing the steps also frees what it owns. */
static hy_step *add_step(hy_steps *steps, hy_step_kind kind) {
    hy_step *step = &steps->step[steps->count++];
    *step = (hy_step){.kind = kind};
    return step;
}

/* Reads {"String": ...} of a pattern, which must not be empty. */
static hy_status read_literal(const hy_tokenizer *t, const char *part, const hy_json_node *node,
                              char **out, size_t *size) {
    const hy_json_node *pattern = hy_json_get(node, "pattern");
    HY_FAIL_IF(hy_json_get(pattern, "Regex"), HY_ERR_INPUT,
               "%s: %s %s has a Regex; only a String is supported", t->name, part, type_of(node));
    HY_TRY(copy_text(t, part, pattern, "String", out, size));
    if (*size > 0) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "%s: %s %s has an empty pattern", t->name, part, type_of(node));
}

/* ---- normaliser ------------------------------------------------------------------------------ */

static hy_status add_normalizer(hy_tokenizer *t, const hy_json_node *node, int depth);

static hy_status add_each(hy_tokenizer *t, const hy_json_node *list, int depth,
                          hy_status (*add)(hy_tokenizer *, const hy_json_node *, int)) {
    HY_FAIL_IF(hy_json_type_of(list) != HY_JSON_ARRAY || depth > 4, HY_ERR_INPUT,
               "%s: a Sequence must contain an array, nested at most four deep", t->name);
    for (list = hy_json_first(list); list; list = hy_json_next(list)) {
        HY_TRY(add(t, list, depth + 1));
    }
    return HY_OK;
}

static hy_status add_normalizer(hy_tokenizer *t, const hy_json_node *node, int depth) {
    static const char part[] = "normalizer";
    static const char *const types[] = {[HY_STEP_PREPEND] = "Prepend",
                                        [HY_STEP_REPLACE] = "Replace",
                                        [HY_STEP_NFC] = "NFC",
                                        [HY_STEP_LOWER] = "Lowercase",
                                        [HY_STEP_CHARSMAP] = "SentencePiece"};
    const char *type = type_of(node);
    if (strcmp(type, "Sequence") == 0) {
        return add_each(t, hy_json_get(node, "normalizers"), depth, add_normalizer);
    }
    int kind = find_name(types, HY_STEP_SPLIT, type);
    if (kind == HY_STEP_SPLIT) {
        return refuse(t, part, type, "Sequence, NFC, Lowercase, Prepend and Replace");
    }
    HY_TRY(check_room(t, &t->normalizer, part));
    hy_step *step = add_step(&t->normalizer, (hy_step_kind)kind);
    if (kind == HY_STEP_CHARSMAP) return hy_charsmap_read(t, node, &step->map);
    if (kind == HY_STEP_NFC || kind == HY_STEP_LOWER) return HY_OK;
    if (kind == HY_STEP_REPLACE) {
        HY_TRY(read_literal(t, part, node, &step->text.from, &step->text.from_size));
    }
    const char *key = kind == HY_STEP_REPLACE ? "content" : "prepend";
    return copy_text(t, part, node, key, &step->text.to, &step->text.to_size);
}

/* ---- pre-tokeniser --------------------------------------------------------------------------- */

static const char pre[] = "pre_tokenizer";

static hy_status read_pattern(hy_tokenizer *t, const hy_json_node *node, hy_step *step) {
    const char *text;
    size_t size;
    if (!hy_json_as_string(hy_json_get(hy_json_get(node, "pattern"), "Regex"), &text, &size)) {
        return read_literal(t, pre, node, &step->text.from, &step->text.from_size);
    }
    HY_FAIL_IF(memchr(text, 0, size), HY_ERR_INPUT,
               "%s: the pattern of %s Split contains a zero byte", t->name, pre);
    step->splitter = hy_splitter_of(text);
    return step->splitter ? HY_OK : hy_pattern_compile(text, t->name, &step->pattern);
}

static hy_status add_split(hy_tokenizer *t, const hy_json_node *node) {
    static const char *const behaviors[] = {
        [HY_REMOVED] = "Removed",
        [HY_ISOLATED] = "Isolated",
        [HY_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [HY_MERGED_WITH_NEXT] = "MergedWithNext",
        [HY_CONTIGUOUS] = "Contiguous",
    };
    const char *text = "";
    hy_step *step = add_step(&t->splitting, HY_STEP_SPLIT);
    HY_TRY(read_pattern(t, node, step));
    hy_json_as_string(hy_json_get(node, "behavior"), &text, NULL);
    int i = find_name(behaviors, HY_CONTIGUOUS + 1, text);
    if (i > HY_CONTIGUOUS) {
        return refuse(t, "pre_tokenizer Split: behavior", text,
                      "Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous");
    }
    step->behavior = (hy_behavior)i;
    return hy_tokenizer_read_bool(t, node, "invert", false, &step->is_inverted);
}

static hy_status add_byte_level(hy_tokenizer *t, const hy_json_node *node) {
    bool adds_space = true, splits = true;
    hy_step *step;
    HY_TRY(hy_tokenizer_read_bool(t, node, "add_prefix_space", true, &adds_space));
    HY_TRY(hy_tokenizer_read_bool(t, node, "use_regex", true, &splits));
    t->is_byte_level = true;
    if (adds_space) add_step(&t->splitting, HY_STEP_PREFIX_SPACE);
    if (!splits) return HY_OK;
    step = add_step(&t->splitting, HY_STEP_SPLIT);
    step->splitter = hy_splitter_of(hy_pattern_gpt2);
    step->behavior = HY_ISOLATED;
    return HY_OK;
}

static hy_status add_digits(hy_tokenizer *t, const hy_json_node *node) {
    bool is_single = false;
    hy_step *step = add_step(&t->splitting, HY_STEP_DIGITS);
    HY_TRY(hy_tokenizer_read_bool(t, node, "individual_digits", false, &is_single));
    step->behavior = is_single ? HY_ISOLATED : HY_CONTIGUOUS;
    return HY_OK;
}

/* Reads "prepend_scheme"; old files have "add_prefix_space" instead. */
static hy_status read_scheme(const hy_tokenizer *t, const hy_json_node *node, hy_prepend *out) {
    static const char *const names[] = {
        [HY_PREPEND_ALWAYS] = "always", [HY_PREPEND_FIRST] = "first", [HY_PREPEND_NEVER] = "never"};
    const char *scheme = NULL;
    bool adds_space = true;
    HY_TRY(hy_tokenizer_read_bool(t, node, "add_prefix_space", true, &adds_space));
    *out = adds_space ? HY_PREPEND_ALWAYS : HY_PREPEND_NEVER;
    if (!hy_json_as_string(hy_json_get(node, "prepend_scheme"), &scheme, NULL)) return HY_OK;
    int i = find_name(names, HY_PREPEND_NEVER + 1, scheme);
    *out = (hy_prepend)i;
    if (i <= HY_PREPEND_NEVER) return HY_OK;
    return refuse(t, "Metaspace: prepend_scheme", scheme, "always, first and never");
}

static hy_status add_metaspace(hy_tokenizer *t, const hy_json_node *node) {
    hy_step *step = add_step(&t->splitting, HY_STEP_METASPACE);
    HY_TRY(copy_text(t, pre, node, "replacement", &step->text.to, &step->text.to_size));
    HY_TRY(copy_text(t, pre, node, "replacement", &step->text.from, &step->text.from_size));
    HY_TRY(read_scheme(t, node, &step->prepend));
    HY_FAIL_IF(step->text.to_size == 0, HY_ERR_INPUT,
               "%s: the replacement of %s Metaspace is empty", t->name, pre);
    return hy_tokenizer_read_bool(t, node, "split", true, &step->splits);
}

static hy_status add_pre_tokenizer(hy_tokenizer *t, const hy_json_node *node, int depth) {
    const char *type = type_of(node);
    HY_FAIL_IF(t->is_byte_level, HY_ERR_INPUT,
               "%s: %s \"%.60s\" comes after ByteLevel; ByteLevel must be the last", t->name, pre,
               type);
    if (strcmp(type, "Sequence") == 0) {
        return add_each(t, hy_json_get(node, "pretokenizers"), depth, add_pre_tokenizer);
    }
    HY_TRY(check_room(t, &t->splitting, pre));
    if (strcmp(type, "ByteLevel") == 0) return add_byte_level(t, node);
    if (strcmp(type, "Split") == 0) return add_split(t, node);
    if (strcmp(type, "Digits") == 0) return add_digits(t, node);
    if (strcmp(type, "Metaspace") == 0) return add_metaspace(t, node);
    return refuse(t, pre, type, "Sequence, ByteLevel, Split, Digits and Metaspace");
}

/* ---- decoder --------------------------------------------------------------------------------- */

static const char decoder[] = "decoder";

/* Reads Strip: blanks to remove at the beginning of the whole text. */
static hy_status read_strip(hy_tokenizer *t, const hy_json_node *node) {
    const char *content = "";
    int64_t start = 0, stop = 0;
    hy_json_as_string(hy_json_get(node, "content"), &content, NULL);
    hy_json_as_int(hy_json_get(node, "start"), &start);
    hy_json_as_int(hy_json_get(node, "stop"), &stop);
    HY_FAIL_IF(strcmp(content, " ") != 0 || stop != 0 || start < 0 || start > 1024, HY_ERR_INPUT,
               "%s: decoder Strip supports only content \" \" and stop 0", t->name);
    t->decoder.strip_start = (int)start;
    return HY_OK;
}

static hy_status read_metaspace_decoder(hy_tokenizer *t, const hy_json_node *node) {
    hy_decoder *d = &t->decoder;
    hy_prepend prepend = HY_PREPEND_ALWAYS;
    HY_TRY(read_scheme(t, node, &prepend));
    d->strips_first = prepend != HY_PREPEND_NEVER;
    HY_TRY(copy_text(t, decoder, node, "replacement", &d->text.from, &d->text.from_size));
    HY_FAIL_IF(d->text.from_size == 0, HY_ERR_INPUT,
               "%s: the replacement of decoder Metaspace is empty", t->name);
    d->text.to = strdup(" ");
    d->text.to_size = 1;
    return d->text.to ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory for the decoder");
}

/* Adds a decoder. Decoding supports one order: Replace, ByteFallback, Fuse, Strip. `rank` is the
 * position reached in it. */
static hy_status add_decoder(hy_tokenizer *t, const hy_json_node *node, int *rank) {
    static const char *const order[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
    const char *type = type_of(node);
    hy_decoder *d = &t->decoder;
    int place = find_name(order, 4, type);
    bool is_alone = strcmp(type, "ByteLevel") == 0 || strcmp(type, "Metaspace") == 0;
    if (place == 4 && !is_alone) {
        return refuse(t, decoder, type,
                      "Sequence, ByteLevel, Metaspace, Replace, ByteFallback, Fuse and Strip");
    }
    bool is_early = place < *rank, is_unfused = place == 3 && *rank < 3;
    HY_FAIL_IF((is_alone && *rank > 0) || is_early || is_unfused, HY_ERR_INPUT,
               "%s: decoder %s is not supported in this position; supported are Replace, "
               "ByteFallback, Fuse and Strip in this order, or only ByteLevel, or only Metaspace",
               t->name, type);
    *rank = is_alone ? 5 : place + 1;
    if (strcmp(type, "ByteLevel") == 0) d->is_byte_level = true;
    if (strcmp(type, "Metaspace") == 0) return read_metaspace_decoder(t, node);
    if (place == 1) d->has_byte_fallback = true;
    if (place == 3) return read_strip(t, node);
    if (place != 0) return HY_OK;
    HY_TRY(read_literal(t, decoder, node, &d->text.from, &d->text.from_size));
    return copy_text(t, decoder, node, "content", &d->text.to, &d->text.to_size);
}

hy_status hy_tokenizer_read_steps(hy_tokenizer *t, const hy_json_node *root) {
    const hy_json_node *normalizer = hy_json_get(root, "normalizer");
    const hy_json_node *splitting = hy_json_get(root, "pre_tokenizer");
    if (hy_json_type_of(normalizer) != HY_JSON_NULL) HY_TRY(add_normalizer(t, normalizer, 0));
    if (hy_json_type_of(splitting) != HY_JSON_NULL) HY_TRY(add_pre_tokenizer(t, splitting, 0));
    const hy_json_node *decoding = hy_json_get(root, "decoder");
    int rank = 0;
    t->decoder.joins_with_blanks = hy_json_type_of(decoding) == HY_JSON_NULL;
    if (t->decoder.joins_with_blanks) return HY_OK;
    if (strcmp(type_of(decoding), "Sequence") != 0) return add_decoder(t, decoding, &rank);
    const hy_json_node *list = hy_json_get(decoding, "decoders");
    HY_FAIL_IF(hy_json_type_of(list) != HY_JSON_ARRAY, HY_ERR_INPUT,
               "%s: decoder Sequence needs the array \"decoders\"", t->name);
    for (list = hy_json_first(list); list; list = hy_json_next(list)) {
        HY_TRY(add_decoder(t, list, &rank));
    }
    return HY_OK;
}
