/* plan_list.c: plans every built-in model in every way of training, and shows what fits. See
 * plan_list.h.
 *
 * The card of this machine is opened once for its name and free memory. The models are then planned
 * with its data sheet, because opening the card for each of them would take seconds. */
#include "cli/plan_list.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/summary.h"
#include "cli/table.h"

static const struct {
    const char *name;  /* in flags and JSON */
    const char *words; /* for people */
    const char *title; /* heading of its first column */
} ways[HY_CLI_WAYS] = {[HY_CLI_FULL] = {"full", "full-parameter", "full tok/s"},
                       [HY_CLI_LORA] = {"lora", "LoRA", "LoRA tok/s"},
                       [HY_CLI_QLORA] = {"qlora", "QLoRA", "QLoRA tok/s"}};

const char *hy_cli_way_name(hy_cli_way way) { return ways[way].name; }

/* ---- one model, one way ---------------------------------------------------------------------- */

/* The places of the state: "on the device", or the classes that are elsewhere. */
static void describe_state(const hy_summary *summary, char state[HY_CLI_STATE_TEXT]) {
    static const hy_class classes[] = {HY_WEIGHTS, HY_MASTER, HY_GRADS, HY_OPTIM};
    char away[HY_CLI_STATE_TEXT - 16] = "";
    bool is_any_here = false;
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        const hy_memory_cell *cell = &summary->phases[HY_FULL].memory[classes[i]];
        size_t length = strlen(away);
        if (cell->planned_bytes == 0) continue;
        if (cell->place == HY_DEVICE)
            is_any_here = true;
        else
            snprintf(away + length, sizeof away - length, "%s%s", length > 0 ? ", " : "",
                     hy_class_name(classes[i]));
    }
    if (away[0] == '\0')
        snprintf(state, HY_CLI_STATE_TEXT, "on the device");
    else
        snprintf(state, HY_CLI_STATE_TEXT, "%s%son the host", is_any_here ? away : "",
                 is_any_here ? " " : "");
}

static void read_plan(const hy_trainer *trainer, hy_cli_planned *out, hy_summary *summary) {
    hy_plan_facts facts;
    hy_trainer_summary(trainer, summary);
    hy_trainer_plan_facts(trainer, &facts);
    const hy_memory_cell *cell = summary->phases[HY_FULL].memory;
    const hy_memory_cell *updated = &cell[cell[HY_MASTER].planned_bytes ? HY_MASTER : HY_WEIGHTS];
    hy_dtype optim = cell[HY_OPTIM].dtype;
    *out = (hy_cli_planned){.is_planned = true,
                            .fits = facts.fits,
                            .tokens_per_second = facts.tokens_per_second,
                            .device_bytes = facts.vram_bytes,
                            .pinned_bytes = facts.host_pinned_bytes,
                            .disk_bytes = facts.disk_bytes,
                            .host_limit = facts.host_limit,
                            .predicts =
                                summary->phases[HY_PREDICT].memory[HY_PREDICTOR].planned_bytes > 0};
    if (summary->is_gpu)
        snprintf(out->device, sizeof out->device, "%.80s, %.100s", summary->device,
                 summary->matmul);
    else
        snprintf(out->device, sizeof out->device,
                 "this machine's %.100s; --card NAME plans for a card", summary->device);
    describe_state(summary, out->state);
    snprintf(out->types, sizeof out->types, "%s / %s / %s", hy_dtype_name(updated->dtype),
             hy_dtype_name(cell[HY_GRADS].dtype), optim == HY_U8 ? "8bit" : hy_dtype_name(optim));
    for (int32_t i = 0; i < facts.change_count && !facts.fits && out->change[0] == '\0'; i++) {
        /* the list plans LoRA and QLoRA as ways of their own */
        if (!facts.change_costs[i].is_adapter)
            snprintf(out->change, sizeof out->change, "%s", facts.changes[i]);
    }
}

/* A model that the settings do not suit (a sequence longer than its context, a matrix it does not
 * have) is skipped; `refused` is then the status. */
static hy_status plan_model(hy_config *config, const hy_cli_model *model, hy_cli_planned *out,
                            hy_summary *summary, hy_status *refused) {
    hy_trainer *trainer = NULL;
    *out = (hy_cli_planned){0};
    hy_status status = hy_config_set(config, "model", model->name, HY_FROM_CALLER);
    if (status == HY_OK) status = hy_trainer_plan(config, NULL, &trainer);
    if (status == HY_OK) read_plan(trainer, out, summary);
    hy_trainer_destroy(trainer);
    if (status != HY_ERR_INPUT) return status;
    *refused = status;
    return HY_OK;
}

/* ---- all models ------------------------------------------------------------------------------ */

static hy_status set_card(hy_config *config, const char *name, const char *memory) {
    hy_status status = hy_config_set(config, "card", name, HY_FROM_CALLER);
    return status != HY_OK ? status : hy_config_set(config, "max_gpu_mem", memory, HY_FROM_CALLER);
}

/* Plans with the data sheet of the card that would be used. A card without a data sheet is opened
 * for each model instead. */
static hy_status use_data_sheet(hy_config *config, const hy_machine *machine,
                                const hy_cli_plans *plans) {
    hy_cli_planned plan = {0};
    hy_summary unused;
    hy_status refused = HY_OK;
    char limit[32], memory[32], name[sizeof machine->gpu + 16];
    if (strcmp(hy_cli_value(config, "device"), "cpu") == 0 || hy_cli_value(config, "card")[0])
        return HY_OK;
    if (!machine->has_cuda) return HY_OK;
    snprintf(limit, sizeof limit, "%s", hy_cli_value(config, "max_gpu_mem")); /* "8GiB", "0" */
    snprintf(memory, sizeof memory, "%" PRIu64, machine->vram_free);
    bool is_free = strcmp(limit, "0") == 0;
    /* the driver's name of a card that was sold with two sizes does not have the size */
    snprintf(name, sizeof name, "%s %.0fGB", machine->gpu, (double)machine->vram_total * 0x1p-30);
    hy_status status = set_card(config, name, is_free ? memory : limit);
    for (size_t i = 0; i < plans->count && status == HY_OK && !plan.is_planned; i++)
        status = plan_model(config, &plans->models[i], &plan, &unused, &refused);
    return status == HY_OK && plan.is_planned ? HY_OK : set_card(config, "", limit);
}

/* All three ways, unless the settings fix one: adapters, no adapters, or a part of the model. */
static void choose_ways(const hy_config *config, bool has_way[HY_CLI_WAYS]) {
    bool is_set = hy_cli_is_set(config, "lora") || hy_cli_is_set(config, "qlora") ||
                  hy_cli_is_set(config, "train.train");
    bool is_qlora = strcmp(hy_cli_value(config, "qlora"), "true") == 0;
    bool is_lora = strcmp(hy_cli_value(config, "lora"), "true") == 0;
    int only = is_qlora ? HY_CLI_QLORA : is_lora ? HY_CLI_LORA : HY_CLI_FULL;
    for (int w = 0; w < HY_CLI_WAYS; w++) has_way[w] = !is_set || w == only;
}

/* Set by a flag, a file or --set. Values of presets change from model to model. */
static bool is_set_by_user(const hy_config *config, const char *key) {
    return hy_config_origin(config, key) >= HY_FROM_FILE;
}

static hy_status plan_way(hy_config *config, hy_cli_way way, hy_cli_plans *out,
                          hy_status *refused) {
    hy_summary summary = {0};
    const char *lora = way == HY_CLI_LORA ? "true" : "false";
    const char *qlora = way == HY_CLI_QLORA ? "true" : "false";
    hy_status status = hy_config_set(config, "lora", lora, HY_FROM_CALLER);
    if (status == HY_OK) status = hy_config_set(config, "qlora", qlora, HY_FROM_CALLER);
    for (size_t i = 0; i < out->count && status == HY_OK; i++)
        status = plan_model(config, &out->models[i], &out->plans[i][way], &summary, refused);
    const char *stored = hy_cli_value(config, "frozen_dtype");
    out->base[way] = strncmp(stored, "nf4", 3) == 0 ? HY_NF4
                     : strcmp(stored, "int8") == 0  ? HY_I8
                     : strcmp(stored, "fp8") == 0
                         ? HY_E4M3
                         : summary.phases[HY_FULL].memory[HY_WEIGHTS].dtype;
    out->is_gpu = summary.is_gpu;
    return status;
}

/* Leaves out presets that name an architecture: the list is about sizes, and has to fit on a
 * screen. */
static hy_status leave_out_families(hy_cli_plans *plans) {
    size_t all = plans->count;
    hy_config *config = NULL;
    hy_status status = hy_config_create(&config);
    plans->count = 0;
    plans->presets = all;
    for (size_t i = 0; i < all && status == HY_OK; i++) {
        status = hy_config_set(config, "model", plans->models[i].name, HY_FROM_CALLER);
        bool is_named = status == HY_OK && strcmp(hy_cli_value(config, "architecture"), "auto");
        if (!is_named) plans->models[plans->count++] = plans->models[i];
    }
    hy_config_destroy(config);
    return status;
}

hy_status hy_cli_plans_make(hy_config *config, const hy_machine *machine, hy_cli_plans *out) {
    hy_status refused = HY_OK;
    bool is_any = false;
    *out = (hy_cli_plans){0};
    choose_ways(config, out->has_way);
    hy_status status = hy_cli_models_by_size(out->models, &out->count);
    if (status == HY_OK) status = leave_out_families(out);
    /* Each plan generates the built-in text, but does not depend on its length. This length is
     * enough for the sequences of every preset. */
    bool is_fixed = is_set_by_user(config, "builtin_bytes") || is_set_by_user(config, "seq_len");
    if (status == HY_OK && !is_fixed)
        status = hy_config_set(config, "builtin_bytes", "100000", HY_FROM_CALLER);
    if (status == HY_OK) status = use_data_sheet(config, machine, out);
    for (int w = 0; w < HY_CLI_WAYS && status == HY_OK; w++) {
        if (out->has_way[w]) status = plan_way(config, (hy_cli_way)w, out, &refused);
        for (size_t i = 0; i < out->count; i++) is_any |= out->plans[i][w].is_planned;
        /* if no model could be planned, the settings are wrong, and the other ways would fail
         * too */
        if (status == HY_OK && !is_any) status = refused;
    }
    return status;
}

const hy_cli_model *hy_cli_plans_largest(const hy_cli_plans *plans, hy_cli_way way) {
    for (size_t i = plans->count; i > 0; i--)
        if (plans->plans[i - 1][way].fits) return &plans->models[i - 1];
    return NULL;
}

/* ---- showing: what fits ---------------------------------------------------------------------- */

static hy_cli_figure gibibytes(uint64_t bytes) {
    hy_cli_figure figure;
    snprintf(figure.text, sizeof figure.text, "%.1f", (double)bytes * 0x1p-30);
    return figure;
}

static void add_cells(hy_cli_table *table, const hy_cli_planned *plan) {
    const char *refused = plan->is_planned ? "no" : "-"; /* `fits` is false if not planned */
    hy_cli_table_add(table,
                     plan->fits ? hy_cli_count((int64_t)plan->tokens_per_second).text : refused);
    hy_cli_table_add(table, plan->fits ? gibibytes(plan->device_bytes).text : "");
    hy_cli_table_add(table, plan->fits ? gibibytes(plan->pinned_bytes).text : "");
}

/* The device and the memory that the plans are for. */
static void show_machine(const hy_cli_terminal *terminal, const hy_config *config,
                         const hy_cli_plans *plans) {
    const hy_cli_planned *first = NULL;
    char host[HY_PLAN_TEXT];
    for (size_t i = 0; i < plans->count * HY_CLI_WAYS && !first; i++) {
        const hy_cli_planned *plan = &plans->plans[i / HY_CLI_WAYS][i % HY_CLI_WAYS];
        if (plan->is_planned) first = plan;
    }
    if (!first) return;
    if (!hy_cli_host_of_plan(config, first->host_limit, host, sizeof host))
        snprintf(host, sizeof host, "%s of memory", hy_cli_bytes(first->host_limit).text);
    hy_cli_printf(terminal->out, "  for %s\n  the host has %s\n", first->device, host);
}

static void show_models(const hy_cli_terminal *terminal, const hy_cli_plans *plans) {
    hy_cli_table table;
    hy_cli_table_begin(&table, "lrrrrrrrrrr");
    hy_cli_table_row(&table, "model", "size", NULL);
    for (int w = 0; w < HY_CLI_WAYS; w++) {
        if (!plans->has_way[w]) continue;
        hy_cli_table_add(&table, ways[w].title);
        hy_cli_table_add(&table, plans->is_gpu ? "card" : "RAM");
        hy_cli_table_add(&table, "host");
    }
    for (size_t i = 0; i < plans->count; i++) {
        const hy_cli_model *model = &plans->models[i];
        hy_cli_table_row(&table, model->name, hy_cli_short_count((double)model->parameters).text,
                         NULL);
        for (int w = 0; w < HY_CLI_WAYS; w++)
            if (plans->has_way[w]) add_cells(&table, &plans->plans[i][w]);
    }
    hy_cli_table_print(&table, terminal, true);
    fputs(plans->is_gpu
              ? "  Planned values, in GiB. card: memory of the card; host: pinned host memory.\n"
              : "  Planned values, in GiB. RAM: memory of the run; host: additional memory, for "
                "state that is copied in parts.\n",
          terminal->out);
}

/* With --verbose: types, places, and a change that would make a model fit. */
static void show_details(const hy_cli_terminal *terminal, const hy_cli_plans *plans,
                         hy_cli_way way) {
    hy_cli_table table;
    char heading[64];
    hy_cli_table_begin(&table, "lrrlll");
    hy_cli_table_row(&table, "model", "device", "pinned", "weights / grads / optim", "predicts",
                     "state", NULL);
    for (size_t i = 0; i < plans->count; i++) {
        const hy_cli_planned *plan = &plans->plans[i][way];
        char with[HY_PLAN_TEXT + 8] = "";
        if (plan->change[0] != '\0') snprintf(with, sizeof with, "with %s", plan->change);
        if (plan->fits)
            hy_cli_table_row(&table, plans->models[i].name, hy_cli_bytes(plan->device_bytes).text,
                             hy_cli_bytes(plan->pinned_bytes).text, plan->types,
                             plan->predicts ? "yes" : "no", plan->state, NULL);
        else
            hy_cli_table_row(&table, plans->models[i].name, plan->is_planned ? "no" : "-", "", "",
                             "", with, NULL);
    }
    snprintf(heading, sizeof heading, "%s: details", ways[way].words);
    hy_cli_section(terminal, heading);
    hy_cli_table_print(&table, terminal, true);
}

/* ---- showing: the largest model and its command ---------------------------------------------- */

#define WORDS_MAX 64
#define FLAG_MAX 80

static const char *without_group(const char *key) {
    const char *dot = strrchr(key, '.');
    return dot != NULL ? dot + 1 : key;
}

typedef struct command_words {
    char *words[WORDS_MAX];
    int count;
    char flags[WORDS_MAX][FLAG_MAX];
} command_words;

static void add_word(command_words *c, const char *word) {
    if (c->count < WORDS_MAX) c->words[c->count++] = (char *)word; /* the word is not changed */
}

static void add_setting(command_words *c, const hy_cli_setting *setting) {
    /* settings for model, data or card: the printed command has its own, or needs none */
    static const char replaced[] = " model data card out lora qlora builtin_bytes ";
    hy_cli_flag flag;
    if (setting->key == NULL) {
        add_word(c, setting->meaning == HY_CLI_IS_CONFIG ? "--config" : "--set");
        add_word(c, setting->value);
        return;
    }
    const char *key = without_group(setting->key);
    char word[FLAG_MAX];
    snprintf(word, sizeof word, " %s ", key);
    if (strstr(replaced, word) != NULL || c->count == WORDS_MAX) return;
    for (size_t i = 0; hy_cli_flag_at(i, &flag); i++) {
        if (flag.meaning != HY_CLI_IS_KEY || strcmp(without_group(flag.key), key) != 0) continue;
        bool is_switch = strcmp(flag.type, "switch") == 0;
        bool is_off = is_switch && strcmp(setting->value, "true") != 0;
        snprintf(c->flags[c->count], FLAG_MAX, "--%s%s", is_off ? "no-" : "", flag.flag + 2);
        add_word(c, c->flags[c->count]);
        if (!is_switch) add_word(c, setting->value);
        return;
    }
}

/* The command that trains a model folder in this way with the settings of this command line. NULL:
 * no memory. */
static char *training_command(const hy_cli_options *options, const hy_config *config,
                              hy_cli_way way) {
    command_words c = {.count = 0};
    const char *const begin[] = {"hybrid-train", "--model", "FOLDER", "--data", "ROWS"};
    bool has_profile = false;
    for (size_t i = 0; i < sizeof begin / sizeof begin[0]; i++) add_word(&c, begin[i]);
    if (way != HY_CLI_FULL) add_word(&c, way == HY_CLI_LORA ? "--lora" : "--qlora");
    for (size_t i = 0; i < options->setting_count; i++) {
        const char *key = options->settings[i].key;
        has_profile |= key != NULL && strcmp(key, "profile") == 0;
        add_setting(&c, &options->settings[i]);
    }
    const char *origin = "";
    (void)hy_config_get(config, "profile", NULL, &origin);
    if (!has_profile && strcmp(origin, "caller") == 0) { /* --doctor has set it */
        add_word(&c, "--profile");
        add_word(&c, hy_cli_value(config, "profile"));
    }
    return hy_cli_command_line(c.count, c.words);
}

/* Prints "LoRA            up to qwen3-8b, 8.19B; qwen2.5-32b with --offload-folder FOLDER" and the
 * command. */
static void show_way(const hy_cli_terminal *terminal, const hy_cli_plans *plans, hy_cli_way way,
                     const char *command) {
    const hy_cli_model *model = hy_cli_plans_largest(plans, way);
    size_t next = 0; /* the smallest model that does not fit, but would with another setting */
    while (next < plans->count &&
           (plans->plans[next][way].fits || plans->plans[next][way].change[0] == '\0'))
        next++;
    fprintf(terminal->out, "  %-14s  ", ways[way].words);
    if (model != NULL)
        fprintf(terminal->out, "up to %s, %s", model->name,
                hy_cli_short_count((double)model->parameters).text);
    else
        fputs("none", terminal->out);
    if (next < plans->count)
        hy_cli_printf(terminal->out, "; %s fits with %s", plans->models[next].name,
                      plans->plans[next][way].change);
    fputc('\n', terminal->out);
    if (model != NULL && command != NULL) hy_cli_printf(terminal->out, "      %s\n", command);
}

static void show_largest(const hy_cli_terminal *terminal, const hy_cli_options *options,
                         const hy_config *config, const hy_cli_plans *plans) {
    hy_cli_section(terminal,
                   "largest model that fits, and the command to train a model folder of that size");
    for (int w = 0; w < HY_CLI_WAYS; w++) {
        if (!plans->has_way[w]) continue;
        char *command = training_command(options, config, (hy_cli_way)w);
        show_way(terminal, plans, (hy_cli_way)w, command);
        free(command);
    }
    fprintf(
        terminal->out,
        "  This is a selection, %zu of %zu presets (--list-models). \"--plan --model NAME\" gives "
        "reasons.\n",
        plans->count, plans->presets);
}

hy_status hy_cli_plan_list(const hy_cli_terminal *terminal, const hy_cli_options *options,
                           hy_config *config, const hy_machine *machine) {
    hy_cli_plans plans;
    char heading[128];
    hy_status status = hy_cli_plans_make(config, machine, &plans);
    if (status != HY_OK) return status;
    const char *trained = hy_cli_value(config, "train.train");
    bool is_part = is_set_by_user(config, "train.train");
    snprintf(heading, sizeof heading, "what fits, profile %.30s%s%.60s",
             hy_cli_value(config, "profile"), is_part ? ", training " : "", is_part ? trained : "");
    hy_cli_section(terminal, heading);
    /* --doctor has named them */
    if (options->action != HY_CLI_IS_DOCTOR) show_machine(terminal, config, &plans);
    show_models(terminal, &plans);
    for (int w = HY_CLI_LORA; w < HY_CLI_WAYS; w++) {
        hy_dtype base = plans.base[w];
        if (!plans.has_way[w]) continue;
        fprintf(terminal->out, "  %s: adapters of rank %s, frozen model in %s.\n", ways[w].words,
                hy_cli_value(config, "lora_rank"),
                base == HY_NF4    ? "NF4"
                : base == HY_E4M3 ? "fp8"
                                  : hy_dtype_name(base));
    }
    for (int w = 0; w < HY_CLI_WAYS; w++)
        if (options->is_verbose && plans.has_way[w]) show_details(terminal, &plans, (hy_cli_way)w);
    show_largest(terminal, options, config, &plans);
    return HY_OK;
}
