/* inspect_json.c: --doctor, --plan without a model, --list-models and --print-config as JSON. See
 * inspect.h.
 *
 * Each prints one line of JSON to standard output. Numbers are bytes, bytes per second and
 * operations per second; unknown values are null. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/inspect.h"
#include "cli/options.h"
#include "cli/plan_list.h"
#include "cli/program.h"
#include "hybrid_tools.h"

/* ---- writing --------------------------------------------------------------------------------- */

static void put_text(const char *text) {
    putchar('"');
    for (const char *p = text; *p != '\0'; p++) {
        unsigned char c = (unsigned char)*p;
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void put_key(const char *key, const char *before) {
    fputs(before, stdout);
    put_text(key);
    putchar(':');
}

static void put_texts(const char *key, const char *value, const char *before) {
    put_key(key, before);
    put_text(value);
}

static void put_count(const char *key, uint64_t value) {
    put_key(key, ",");
    if (value == UINT64_MAX)
        fputs("null", stdout);
    else
        printf("%" PRIu64, value);
}

static void put_number(const char *key, double value) {
    put_key(key, ",");
    if (isfinite(value) && value > 0)
        printf("%.6g", value);
    else
        fputs("null", stdout);
}

static void put_switch(const char *key, bool value) {
    put_key(key, ",");
    fputs(value ? "true" : "false", stdout);
}

static int end(void) {
    fputs("}\n", stdout);
    return fflush(stdout) == 0 ? HY_EXIT_DONE : HY_EXIT_FAILED;
}

/* ---- what fits ------------------------------------------------------------------------------- */

/* null: not planned, because these settings do not suit the model */
static void put_planned(const hy_cli_planned *plan) {
    if (!plan->is_planned) {
        fputs("null", stdout);
        return;
    }
    put_key("fits", "{");
    fputs(plan->fits ? "true" : "false", stdout);
    put_number("tokens_per_second", plan->tokens_per_second);
    put_count("device_bytes", plan->device_bytes);
    put_count("host_pinned_bytes", plan->pinned_bytes);
    put_count("disk_bytes", plan->disk_bytes);
    put_texts("types", plan->types, ",");
    put_switch("predicts", plan->predicts);
    put_texts("state", plan->state, ",");
    if (plan->change[0] != '\0') put_texts("would_fit_with", plan->change, ",");
    putchar('}');
}

/* ,"models":[{"model":...,"full":{...},"lora":{...},"qlora":{...}},...],"largest":{"full":...} */
static void put_plans(const hy_cli_plans *plans) {
    put_key("models", ",");
    for (size_t i = 0; i < plans->count; i++) {
        put_texts("model", plans->models[i].name, i == 0 ? "[{" : ",{");
        put_count("parameters", (uint64_t)plans->models[i].parameters);
        for (int w = 0; w < HY_CLI_WAYS; w++) {
            if (!plans->has_way[w]) continue;
            put_key(hy_cli_way_name((hy_cli_way)w), ",");
            put_planned(&plans->plans[i][w]);
        }
        putchar('}');
    }
    fputs(plans->count > 0 ? "]" : "[]", stdout);
    put_key("largest", ",");
    const char *before = "{";
    for (int w = 0; w < HY_CLI_WAYS; w++) {
        const hy_cli_model *model = hy_cli_plans_largest(plans, (hy_cli_way)w);
        if (!plans->has_way[w]) continue;
        put_key(hy_cli_way_name((hy_cli_way)w), before);
        before = ",";
        if (model != NULL)
            put_text(model->name);
        else
            fputs("null", stdout);
    }
    putchar('}');
}

hy_status hy_cli_plan_list_json(hy_config *config, const hy_machine *machine) {
    hy_cli_plans plans;
    hy_trainer *trainer = NULL;
    char *text = NULL;
    /* read first, because the list changes it */
    hy_status status = hy_trainer_plan(config, NULL, &trainer);
    if (status == HY_OK) status = hy_trainer_plan_json(trainer, &text);
    hy_trainer_destroy(trainer);
    if (status == HY_OK) status = hy_cli_plans_make(config, machine, &plans);
    char *last = status == HY_OK ? strrchr(text, '}') : NULL;
    if (last != NULL) {
        printf("%.*s", (int)(last - text), text); /* leaves the object open for more keys */
        put_plans(&plans);
        (void)end();
    }
    hy_free(text);
    return status;
}

/* ---- the actions ----------------------------------------------------------------------------- */

int hy_cli_doctor_json(hy_config *config) {
    hy_machine m;
    hy_cli_plans plans;
    char folder[512];
    hy_status status = hy_cli_doctor_begin(config, &m, folder);
    if (status == HY_OK) status = hy_cli_plans_make(config, &m, &plans);
    if (status != HY_OK) return hy_cli_fail(status);
    put_texts("cpu", hy_cli_cpu_name(&m), "{");
    put_count("cores", (uint64_t)m.cores);
    put_texts("matmul", m.blas, ",");
    put_texts("matmul_warning", m.blas_warning, ",");
    put_number("matmul_flops", 1e9 * m.sgemm_gflops);
    put_count("ram_bytes", m.ram_total);
    put_count("ram_available_bytes", m.ram_available);
    put_number("host_copy_bytes_per_second", m.host_copy_bytes_per_second);
    put_count("pinnable_bytes", m.pin_limit); /* null: no limit */
    put_texts("pinnable_reason", m.pin_reason, ",");
    put_count("disk_free_bytes", m.disk_free);
    put_number("disk_read_bytes_per_second", m.disk_read_bytes_per_second);
    put_number("disk_write_bytes_per_second", m.disk_write_bytes_per_second);
    put_texts("disk_problem", m.disk_problem, ",");
    put_switch("wsl", m.is_wsl);
    put_switch("container", m.is_container);
    put_switch("has_cuda", m.has_cuda);
    put_texts("cuda", m.cuda, ",");
    put_texts("driver", m.driver, ",");
    put_texts("cuda_backend", m.cuda_backend, ",");
    put_texts("cublas", m.cublas, ",");
    if (m.has_cuda) {
        put_texts("gpu", m.gpu, ",");
        put_count("gpu_capability", (uint64_t)m.gpu_capability);
        put_count("vram_bytes", m.vram_total);
        put_count("vram_free_bytes", m.vram_free);
        put_number("gpu_peak_flops", m.gpu_peak_flops);
        put_number("gpu_matmul_flops", m.gpu_matmul_flops);
        put_number("gpu_memory_bytes_per_second", m.gpu_memory_bytes_per_second);
        put_number("upload_bytes_per_second", m.upload_bytes_per_second);
        put_number("download_bytes_per_second", m.download_bytes_per_second);
        put_number("both_ways_bytes_per_second", m.both_ways_bytes_per_second);
    }
    put_plans(&plans);
    return end();
}

int hy_cli_list_models_json(void) {
    static const char *const keys[] = {"layers", "width", "heads", "kv_heads", "vocab", "context"};
    hy_cli_model models[HY_CLI_MODELS_MAX];
    size_t count = 0;
    hy_status status = hy_cli_models_by_size(models, &count);
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        hy_config *config = NULL;
        status = hy_config_create(&config);
        if (status == HY_OK)
            status = hy_config_set(config, "model", models[i].name, HY_FROM_CALLER);
        if (status == HY_OK) {
            put_texts("model", models[i].name, i == 0 ? "{\"models\":[{" : ",{");
            put_count("parameters", (uint64_t)models[i].parameters);
            for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
                const char *value = hy_cli_value(config, keys[k]);
                bool is_heads = strcmp(keys[k], "kv_heads") == 0 && strcmp(value, "0") == 0;
                put_key(keys[k], ",");
                fputs(is_heads ? hy_cli_value(config, "heads") : value, stdout);
            }
            putchar('}');
        }
        hy_config_destroy(config);
    }
    if (status != HY_OK) return hy_cli_fail(status);
    putchar(']');
    return end();
}

int hy_cli_config_json(const hy_config *config) {
    const hy_config_key_info *info;
    const char *value, *origin;
    for (size_t i = 0; (info = hy_config_key(i)) != NULL; i++) {
        hy_status status = hy_config_get(config, info->key, &value, &origin);
        if (status != HY_OK) return hy_cli_fail(status);
        /* Sizes have units, as the configuration prints them. */
        char *end_of_number;
        (void)strtod(value, &end_of_number);
        bool is_switch = strcmp(info->type, "switch") == 0;
        bool is_name = strcmp(info->type, "text") == 0 || strcmp(info->type, "choice") == 0;
        bool is_text = is_name || (!is_switch && (*end_of_number != '\0' || *value == '\0'));
        put_key(info->key, i == 0 ? "{" : ",");
        put_key("value", "{");
        if (is_text)
            put_text(value);
        else
            fputs(value, stdout);
        put_texts("origin", origin, ",");
        putchar('}');
    }
    return end();
}
