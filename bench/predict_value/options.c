/* options.c: the command line and the table of sizes. See options.h. */
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/number.h"

/* Prediction is forced on: this measures its value, not whether it would be chosen. */
#define FORCED_ON "confidence_threshold", "0", "fork_budget", "0", "cooldown_steps", "1"
#define PLAIN                                                                                      \
    "profile", "balanced", "grad_accum_steps", "1", "precision_correct", "same",                   \
        "offload_strategy", "none", "sample_tokens", "0", "schedule", "cosine", "min_lr_ratio",    \
        "0.1"
/* The lab model: a GPT with 6 blocks of width 384; with a byte vocabulary 10.7M parameters. */
#define LAB                                                                                        \
    "layers", "6", "width", "384", "heads", "6", "mlp_width", "1536", "activation", "gelu",        \
        "init_std", "0.02", "context", "512", "seq_len", "512", "batch_size", "64",                \
        "lr_warmup_steps", "100", "eval_batches", "40", "full_steps", "15", "correct_steps", "5",  \
        "predict_from", "0.1", "predict_until", "0.75", "max_predict_steps", "1000",               \
        "correction_interval", "10", "tail_share", "0.05"

static const char *const smoke_pairs[] = {PLAIN,
                                          FORCED_ON,
                                          "layers",
                                          "2",
                                          "width",
                                          "32",
                                          "heads",
                                          "2",
                                          "mlp_width",
                                          "80",
                                          "seq_len",
                                          "32",
                                          "batch_size",
                                          "64",
                                          "lr_warmup_steps",
                                          "20",
                                          "builtin_bytes",
                                          "1500000",
                                          "eval_batches",
                                          "8",
                                          "full_steps",
                                          "8",
                                          "correct_steps",
                                          "2",
                                          "predict_from",
                                          "0.3",
                                          "predict_until",
                                          "0.75",
                                          "outer_mu",
                                          "0.5",
                                          "outer_eta",
                                          "0.7",
                                          "guard_share",
                                          "0.0625",
                                          "max_predict_steps",
                                          "50",
                                          "correction_interval",
                                          "10",
                                          "tail_share",
                                          "0.1",
                                          NULL};
static const char *const cpu_pairs[] = {PLAIN,
                                        FORCED_ON,
                                        "seq_len",
                                        "128",
                                        "batch_size",
                                        "32",
                                        "lr_warmup_steps",
                                        "75",
                                        "builtin_bytes",
                                        "8000000",
                                        "eval_batches",
                                        "16",
                                        "full_steps",
                                        "15",
                                        "correct_steps",
                                        "5",
                                        "predict_from",
                                        "0.1",
                                        "predict_until",
                                        "0.75",
                                        "guard_share",
                                        "0.125",
                                        "max_predict_steps",
                                        "1000",
                                        "correction_interval",
                                        "10",
                                        "tail_share",
                                        "0.05",
                                        NULL};
/* The shape comes from the model folder of --model. */
static const char *const tune_pairs[] = {PLAIN,
                                         FORCED_ON,
                                         "seq_len",
                                         "32",
                                         "batch_size",
                                         "32",
                                         "lr_warmup_steps",
                                         "10",
                                         "eval_batches",
                                         "12",
                                         "full_steps",
                                         "8",
                                         "correct_steps",
                                         "2",
                                         "predict_from",
                                         "0.1",
                                         "predict_until",
                                         "0.75",
                                         "guard_share",
                                         "0.125",
                                         "max_predict_steps",
                                         "50",
                                         "correction_interval",
                                         "10",
                                         "tail_share",
                                         "0.1",
                                         NULL};
static const char *const lab_pairs[] = {PLAIN, FORCED_ON, LAB, NULL};

static const pv_size sizes[] = {
    {"smoke", "minutes on two CPU cores: tests the benchmark itself", 400, "4e-3,8e-3,1.6e-2",
     "1,2", "0.8,0.9,1.1,1.2", "builtin", smoke_pairs},
    {"cpu", "hours on a CPU: the model nano on 6M bytes", 1500, "2e-3,4e-3,8e-3", "1,2,3",
     "0.8,0.9,1.1,1.2,1.4", "builtin", cpu_pairs},
    {"tune", "minutes on a CPU: fine-tunes the model folder of --model", 120, "2e-3,4e-3,8e-3",
     "1,2,3", "0.8,0.9,1.1,1.2", "tinyshakespeare.txt", tune_pairs},
    {"lab", "a GPU: 6 blocks of width 384, 32,768 tokens per step, books", 2000, "1e-3,2e-3,4e-3",
     "1,2,3,4", "0.9,1.1,1.2,1.4", "books_train.txt", lab_pairs},
    {"long", "a GPU: the same with 5,000 units", 5000, "1e-3,2e-3,4e-3", "1,2,3", "0.9,1.1,1.2,1.4",
     "books_train.txt", lab_pairs},
};

#define SIZE_COUNT (sizeof sizes / sizeof sizes[0])

static const char *const help_text[] = {
    "predict_value: what prediction saves at equal compute\n\n"
    "Trains the same model in several arms with the same compute budget: a full step costs 1, a\n"
    "forward-only pass over as many tokens 1/3. Compares held-out losses at the end, and computes "
    "how\n"
    "many steps the baseline needs for the same loss. That number over ours is the compute "
    "factor.\n\n"
    "  build/bench/predict_value                      smoke size: minutes on two CPU cores\n"
    "  build/bench/predict_value --verify             the same, and repeats a run of each arm\n"
    "  build/bench/predict_value --arms outer,outer:outer_mu=0.7:outer_eta=0.7\n"
    "  build/bench/predict_value --baseline plain:optimizer=sgd --arms adamw,outer:optimizer=sgd\n"
    "  build/bench/predict_value --size lab --data books.txt --out lab --seeds 1,2,3,4\n\n",
    "Ctrl-C stops after the current step; the same command continues. Each finished run is a line "
    "of\n"
    "OUT/runs.jsonl and is not repeated while all its settings are the same.\n\n"
    "  --size NAME      see below; smoke\n"
    "  --out DIR        runs.jsonl, results.json, curves.svg; runs/predict_value-SIZE\n"
    "  --baseline ARM   the arm that others are compared with; always included; adamw\n"
    "  --arms LIST      of adamw, plain, outer, line, paid;\n"
    "                   ARM:key=value:... is a variant with its own settings;\n"
    "                   outer,paid\n"
    "  --lrs LIST       learning rates to try with every arm\n"
    "  --seeds LIST     a seed gives every arm the same weights and the same data order\n"
    "  --steps N        the budget, in full steps\n"
    "  --budgets LIST   further baseline runs at its best learning rate, in units of --steps\n"
    "  --data FILE      text, folder or token shards; builtin\n"
    "  --model NAME     preset, .cfg file, or a model folder to fine-tune; nano\n"
    "  --threads N      CPU threads; all cores\n"
    "  --set KEY=VALUE  any setting of hybrid-train, for all arms\n"
    "  --verify         repeats one run of each arm and requires equal bits\n\n",
    "Arms: adamw and plain do not predict; plain is for other optimizers (plain:optimizer=sgd). "
    "outer\n"
    "jumps ahead; line extends the direction of a window. paid is the\n"
    "control: it pays for the guard of outer, but never changes the weights.\n\n"
    "Exit code: 0 all checks passed, 1 a check or a run failed, 2 wrong usage, 75 stopped.\n\n"
    "Sizes:\n"};

void pv_help(void) {
    for (size_t i = 0; i < sizeof help_text / sizeof help_text[0]; i++) fputs(help_text[i], stdout);
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        printf("  %-6s %s; %lld units, lrs %s, seeds %s\n", sizes[i].name, sizes[i].help,
               (long long)sizes[i].steps, sizes[i].lrs, sizes[i].seeds);
    }
}

/* ---- lists ----------------------------------------------------------------------------------- */

static bool wrong(const char *what, const char *value, const char *expected) {
    fprintf(stderr, "predict_value: %s \"%s\": expected %s\n", what, value, expected);
    return false;
}

static bool parse_number(const char *text, double *out) {
    return hy_number_parse(text, strlen(text), out);
}

static bool parse_whole(const char *text, int64_t *out) {
    double value;
    if (!parse_number(text, &value) || value < 0 || value > 1e9) return false;
    *out = (int64_t)value;
    return (double)*out == value;
}

/* Takes the next word from a comma-separated list; false at its end. */
static bool next_word(const char **list, char word[2 * PV_WORD_MAX], char separator) {
    const char *end = strchr(*list, separator);
    size_t size = end ? (size_t)(end - *list) : strlen(*list);
    if (**list == '\0' || size >= 2 * PV_WORD_MAX) return false;
    memcpy(word, *list, size);
    word[size] = '\0';
    *list += size + (end != NULL);
    return true;
}

static bool parse_numbers(const char *name, const char *list, double *values, int *count) {
    char word[2 * PV_WORD_MAX];
    const char *rest = list;
    *count = 0;
    while (next_word(&rest, word, ',')) {
        double value;
        if (*count == PV_LIST_MAX || !parse_number(word, &value) || !(value > 0)) {
            return wrong(name, list, "up to 16 positive numbers, comma-separated");
        }
        for (int i = 0; i < *count; i++) {
            if (values[i] == value) return wrong(name, list, "each number once");
        }
        values[(*count)++] = value;
    }
    return *count > 0 || wrong(name, list, "at least one number");
}

static bool parse_seeds(const char *list, pv_options *o) {
    double values[PV_LIST_MAX];
    if (!parse_numbers("--seeds", list, values, &o->seed_count)) return false;
    for (int i = 0; i < o->seed_count; i++) {
        o->seeds[i] = (int64_t)values[i];
        if ((double)o->seeds[i] != values[i]) return wrong("--seeds", list, "whole numbers");
    }
    return true;
}

static bool parse_pair(const char *text, pv_pair *out) {
    const char *equals = strchr(text, '=');
    if (!equals || equals == text || (size_t)(equals - text) >= sizeof out->key ||
        strlen(equals + 1) >= sizeof out->value) {
        return wrong("setting", text, "KEY=VALUE");
    }
    snprintf(out->key, sizeof out->key, "%.*s", (int)(equals - text), text);
    snprintf(out->value, sizeof out->value, "%s", equals + 1);
    return true;
}

static bool parse_pairs(const char *list, pv_arm *arm) {
    char word[2 * PV_WORD_MAX];
    while (next_word(&list, word, ':')) {
        if (arm->pair_count == PV_ARM_PAIRS) {
            return wrong("--arms", arm->label, "fewer settings in an arm");
        }
        if (!parse_pair(word, &arm->pairs[arm->pair_count++])) return false;
    }
    return true;
}

static bool parse_arm(const char *flag, const char *text, pv_arm *arm) {
    static const struct {
        const char *name, *predictor, *settings;
    } known[] = {
        {"adamw", "none", ""},
        {"plain", "none", ""},
        {"outer", "outer", ""},
        {"line", "line", ""},
        /* then phi + eta (mu b + D) is exactly theta */
        {"paid", "outer", "outer_mu=0:outer_eta=1"},
    };
    char word[2 * PV_WORD_MAX];
    const char *rest = text;
    *arm = (pv_arm){.pair_count = 0};
    bool fits = strlen(text) < sizeof arm->label && !strpbrk(text, "<>&\"");
    if (!fits || !next_word(&rest, word, ':')) {
        return wrong(flag, text, "the name of an arm");
    }
    strcpy(arm->label, text);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(word, known[i].name) != 0) continue;
        strcpy(arm->predictor, known[i].predictor);
        return parse_pairs(known[i].settings, arm) && parse_pairs(rest, arm);
    }
    return wrong(flag, text, "adamw, plain, outer, line, paid");
}

/* The baseline is always first: every other arm is compared with it. */
static bool parse_arms(const char *list, pv_options *o) {
    char word[2 * PV_WORD_MAX];
    const char *rest = list;
    o->arm_count = 1;
    while (next_word(&rest, word, ',')) {
        if (strcmp(word, o->arms[0].label) == 0) continue;
        if (o->arm_count == PV_LIST_MAX) return wrong("--arms", list, "at most 16 arms");
        if (!parse_arm("--arms", word, &o->arms[o->arm_count++])) return false;
    }
    return true;
}

/* ---- the command line ------------------------------------------------------------------------ */

static bool find_size(const char *name, const pv_size **out) {
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        if (strcmp(sizes[i].name, name) != 0) continue;
        *out = &sizes[i];
        return true;
    }
    return wrong("--size", name, "smoke, cpu, tune, lab or long");
}

/* A file that a size needs: in $HYBRID_DATA, then next to the checkout. */
static bool find_data(pv_options *o) {
    const char *folders[] = {getenv("HYBRID_DATA"), "../shared/data"};
    if (o->data[0]) return true;
    if (strcmp(o->size->data, "builtin") == 0) {
        strcpy(o->data, "builtin");
        return true;
    }
    for (int i = 0; i < 2; i++) {
        if (!folders[i]) continue;
        snprintf(o->data, sizeof o->data, "%s/%s", folders[i], o->size->data);
        if (access(o->data, R_OK) == 0) return true;
    }
    fprintf(stderr,
            "predict_value: size %s trains on %s, which is not in $HYBRID_DATA; use --data FILE "
            "(unpack a compressed file first: xz -dk %s.xz)\n",
            o->size->name, o->size->data, o->size->data);
    return false;
}

static bool take_size(const char *name, pv_options *o) {
    if (!find_size(name, &o->size)) return false;
    o->steps = o->size->steps;
    snprintf(o->out, sizeof o->out, "runs/predict_value-%s", name);
    return parse_numbers("--lrs", o->size->lrs, o->lrs, &o->lr_count) &&
           parse_seeds(o->size->seeds, o) &&
           parse_numbers("--budgets", o->size->budgets, o->budgets, &o->budget_count);
}

static bool take_text(const char *flag, const char *value, char *target, size_t size) {
    if (strlen(value) >= size) return wrong(flag, value, "a shorter text");
    strcpy(target, value);
    return true;
}

static bool take_flag(const char *flag, const char *value, pv_options *o) {
    if (strcmp(flag, "--size") == 0 || strcmp(flag, "--baseline") == 0) {
        return true; /* read before the others */
    }
    if (strcmp(flag, "--out") == 0) return take_text(flag, value, o->out, sizeof o->out);
    if (strcmp(flag, "--data") == 0) return take_text(flag, value, o->data, sizeof o->data);
    if (strcmp(flag, "--model") == 0) return take_text(flag, value, o->model, sizeof o->model);
    if (strcmp(flag, "--threads") == 0)
        return take_text(flag, value, o->threads, sizeof o->threads);
    if (strcmp(flag, "--arms") == 0) return parse_arms(value, o);
    if (strcmp(flag, "--seeds") == 0) return parse_seeds(value, o);
    if (strcmp(flag, "--lrs") == 0) return parse_numbers(flag, value, o->lrs, &o->lr_count);
    if (strcmp(flag, "--budgets") == 0) {
        return parse_numbers(flag, value, o->budgets, &o->budget_count);
    }
    if (strcmp(flag, "--steps") == 0) {
        if (parse_whole(value, &o->steps) && o->steps >= 10) return true;
        return wrong(flag, value, "a whole number from 10 on");
    }
    if (strcmp(flag, "--set") == 0) {
        if (o->set_count == PV_SETS_MAX) return wrong(flag, value, "at most 64 settings");
        return parse_pair(value, &o->sets[o->set_count++]);
    }
    return wrong("option", flag, "an option that --help lists");
}

bool pv_options_parse(int argc, char **argv, pv_options *out) {
    const char *size = "smoke", *baseline = "adamw";
    *out = (pv_options){.steps = 0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) out->wants_help = true;
        if (strcmp(argv[i], "--size") == 0 && i + 1 < argc) size = argv[i + 1];
        if (strcmp(argv[i], "--baseline") == 0 && i + 1 < argc) baseline = argv[i + 1];
    }
    if (out->wants_help) return true;
    if (!take_size(size, out) || !parse_arm("--baseline", baseline, &out->arms[0]) ||
        !parse_arms("outer,paid", out)) {
        return false;
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--verify") == 0) {
            out->verifies = true;
        } else if (i + 1 == argc) {
            return wrong("option", argv[i], "a value after it; --help lists the options");
        } else {
            if (!take_flag(argv[i], argv[i + 1], out)) return false;
            i++;
        }
    }
    return find_data(out);
}
