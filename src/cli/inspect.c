/* inspect.c: shows models and this machine: --list-models, --doctor, --complete.
 *
 * hy_machine_probe measures; this file only prints. */
#include "cli/inspect.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"
#include "cli/plan_list.h"
#include "cli/program.h"
#include "cli/table.h"
#include "hybrid.h"
#include "hybrid_tools.h"

/* ---- models ---------------------------------------------------------------------------------- */

static int compare_sizes(const void *a, const void *b) {
    const hy_cli_model *x = a, *y = b;
    if (x->parameters != y->parameters) return x->parameters < y->parameters ? -1 : 1;
    return strcmp(x->name, y->name);
}

hy_status hy_cli_models_by_size(hy_cli_model models[HY_CLI_MODELS_MAX], size_t *count) {
    size_t i = 0;
    const char *name;
    for (; i < HY_CLI_MODELS_MAX && (name = hy_builtin_name("model", i)) != NULL; i++) {
        models[i].name = name;
        hy_status status = hy_model_parameters(name, &models[i].parameters);
        if (status != HY_OK) return status;
    }
    qsort(models, i, sizeof models[0], compare_sizes);
    *count = i;
    return HY_OK;
}

static hy_status add_model(hy_cli_table *table, const hy_cli_model *model) {
    hy_config *config = NULL;
    hy_status status = hy_config_create(&config);
    if (status == HY_OK) status = hy_config_set(config, "model", model->name, HY_FROM_CALLER);
    if (status == HY_OK) {
        const char *heads = hy_cli_value(config, "heads");
        const char *kv_heads = hy_cli_value(config, "kv_heads"); /* 0: same as heads */
        hy_cli_table_row(table, model->name, hy_cli_count(model->parameters).text,
                         hy_cli_value(config, "layers"), hy_cli_value(config, "width"), heads,
                         strcmp(kv_heads, "0") == 0 ? heads : kv_heads,
                         hy_cli_value(config, "vocab"), hy_cli_value(config, "context"), NULL);
    }
    hy_config_destroy(config);
    return status;
}

int hy_cli_list_models(const hy_cli_terminal *terminal) {
    hy_cli_table table;
    hy_cli_model models[HY_CLI_MODELS_MAX];
    size_t count = 0;
    hy_status status = hy_cli_models_by_size(models, &count);
    hy_cli_table_begin(&table, "lrrrrrrr");
    hy_cli_table_row(&table, "model", "parameters", "layers", "width", "heads", "kv heads", "vocab",
                     "context", NULL);
    for (size_t i = 0; i < count && status == HY_OK; i++) status = add_model(&table, &models[i]);
    if (status != HY_OK) return hy_cli_fail(status);
    hy_cli_table_print(&table, terminal, true);
    return HY_EXIT_DONE;
}

/* ---- this machine ---------------------------------------------------------------------------- */

#define LOW_PIN_LIMIT (8ull << 30) /* less host memory than this is reported as low */
#define LOW_DISK (4ull << 30)

void hy_cli_field(const hy_cli_terminal *terminal, const char *what, const char *format, ...) {
    va_list arguments;
    fprintf(terminal->out, "  %-10s  ", what);
    va_start(arguments, format);
    vfprintf(terminal->out, format, arguments);
    va_end(arguments);
    fputc('\n', terminal->out);
}

static void hint(const hy_cli_terminal *terminal, const char *text) {
    fprintf(terminal->out, "  %-10s  %s%s%s\n", "", hy_cli_colour_code(terminal, HY_CLI_YELLOW),
            text, hy_cli_colour_code(terminal, HY_CLI_PLAIN));
}

static void show_card(const hy_cli_terminal *terminal, const hy_machine *machine) {
    if (machine->driver[0] != '\0') hy_cli_field(terminal, "driver", "%s", machine->driver);
    hy_cli_field(terminal, "CUDA", "%s", machine->cuda);
    bool has_backend = machine->cuda_backend[0] != '\0';
    if (has_backend) hy_cli_field(terminal, "backend", "%s", machine->cuda_backend);
    /* `CUDA` already says what is wrong with it, unless the driver is missing, too. */
    if (machine->cublas[0] != '\0' && strstr(machine->cuda, machine->cublas) == NULL)
        hy_cli_field(terminal, "cuBLAS", "%s", machine->cublas);
    if (!machine->has_cuda) {
        if (!has_backend)
            hint(terminal, "using a GPU needs the NVIDIA driver, and libhybrid_cuda.so in the "
                           "folder of this program or in lib/ beside that folder");
        if (machine->is_wsl)
            hint(terminal, "WSL uses the NVIDIA driver of Windows; do not install one in Linux");
        return;
    }
    hy_cli_field(terminal, "GPU", "%s, %s of %s free, %s", machine->gpu,
                 hy_cli_bytes(machine->vram_free).text, hy_cli_bytes(machine->vram_total).text,
                 machine->gpu_detail);
    char peak[64] = "";
    if (machine->gpu_peak_flops > 0)
        snprintf(peak, sizeof peak, " of %.1f in the data sheet", 1e-12 * machine->gpu_peak_flops);
    hy_cli_field(terminal, "", "%.1f TFLOP/s measured%s (%s)", 1e-12 * machine->gpu_matmul_flops,
                 peak, machine->gpu_capability < 80 ? "fp16" : "bf16");
    if (!(machine->download_bytes_per_second > 0)) return;
    hy_cli_field(terminal, "", "device memory at %.0f GB/s",
                 1e-9 * machine->gpu_memory_bytes_per_second);
    hy_cli_field(
        terminal, "",
        "copies at %.1f GB/s to the device, %.1f GB/s to the host, %.1f GB/s each way in parallel "
        "(pinned memory)",
        1e-9 * machine->upload_bytes_per_second, 1e-9 * machine->download_bytes_per_second,
        1e-9 * machine->both_ways_bytes_per_second);
}

const char *hy_cli_cpu_name(const hy_machine *machine) {
    return strncmp(machine->cpu, "CPU: ", 5) == 0 ? machine->cpu + 5 : machine->cpu;
}

static void show_disk(const hy_cli_terminal *terminal, const hy_machine *machine,
                      const char *folder) {
    bool is_here = strcmp(folder, ".") == 0, is_known = machine->disk_problem[0] == '\0';
    if (!is_known) hy_cli_field(terminal, "disk", "%s", machine->disk_problem);
    if (is_known)
        hy_cli_field(terminal, "disk", "%s free %s%.1000s, reads %.2f GB/s, writes %.2f GB/s",
                     hy_cli_bytes(machine->disk_free).text, is_here ? "here" : "in ",
                     is_here ? "" : folder, 1e-9 * machine->disk_read_bytes_per_second,
                     1e-9 * machine->disk_write_bytes_per_second);
    if (is_known && machine->disk_free < LOW_DISK)
        hint(terminal, "little space for checkpoints: choose an --out folder on another disk");
}

hy_status hy_cli_doctor_begin(hy_config *config, hy_machine *machine, char folder[512]) {
    const char *named = hy_cli_value(config, "memory.offload_folder");
    snprintf(folder, 512, "%s", named[0] ? named : ".");
    hy_status status = hy_machine_probe(folder, machine);
    if (status != HY_OK || hy_cli_is_set(config, "profile")) return status;
    return hy_config_set(config, "profile", "aggressive", HY_FROM_CALLER);
}

int hy_cli_doctor(const hy_cli_terminal *terminal, const hy_cli_options *options,
                  hy_config *config) {
    char folder[512];
    hy_machine machine;
    hy_status status = hy_cli_doctor_begin(config, &machine, folder);
    if (status != HY_OK) return hy_cli_fail(status);
    hy_cli_heading(terminal, "this machine");
    hy_cli_field(terminal, "CPU", "%s, %d core%s available to this program",
                 hy_cli_cpu_name(&machine), machine.cores, machine.cores == 1 ? "" : "s");
    hy_cli_field(terminal, "matmul", "%s, %.1f GFLOP/s measured (fp32)", machine.blas,
                 machine.sgemm_gflops);
    if (machine.blas_warning[0] != '\0') hint(terminal, machine.blas_warning);
    show_card(terminal, &machine);
    bool is_unlimited = machine.pin_limit == UINT64_MAX;
    hy_cli_field(terminal, "memory", "%s of %s available, %.1f GB/s (all cores)",
                 hy_cli_bytes(machine.ram_available).text, hy_cli_bytes(machine.ram_total).text,
                 1e-9 * machine.host_copy_bytes_per_second);
    hy_cli_field(terminal, "pinnable", "%s: %s",
                 is_unlimited ? "no limit" : hy_cli_bytes(machine.pin_limit).text,
                 machine.pin_reason);
    if (machine.has_cuda && machine.pin_limit < LOW_PIN_LIMIT)
        hint(terminal, "low: little room for state that does not fit on the card");
    show_disk(terminal, &machine, folder);
    if (machine.is_wsl) {
        hy_cli_field(terminal, "system", "WSL: Linux inside Windows");
        hint(terminal, "Windows limits pinned memory, often to less than shown; to give WSL more "
                       "memory, set memory= in .wslconfig");
    }
    if (machine.is_container)
        hy_cli_field(terminal, "system", "container: the limits shown are those of the container");
    status = hy_cli_plan_list(terminal, options, config, &machine);
    return status == HY_OK ? HY_EXIT_DONE : hy_cli_fail(status);
}

/* ---- completion ------------------------------------------------------------------------------ */

/* The completion scripts ask the program for this list each time, so they never become outdated.
 * One line per flag, in the format of program.c. */

int hy_cli_complete(FILE *out) {
    hy_cli_flag flag;
    const char *name;
    for (size_t i = 0; hy_cli_flag_at(i, &flag); i++) {
        if (flag.is_hidden) continue;
        fprintf(out, "%s\t%s\t", flag.flag, flag.type);
        for (size_t k = 0; flag.builtin && (name = hy_builtin_name(flag.builtin, k)) != NULL; k++)
            fprintf(out, "%s%s", k > 0 ? ", " : "", name);
        /* A choice like cuda:N is a pattern, not a value to offer; it is always the last choice. */
        const char *accepted = flag.builtin || !flag.accepted ? "" : flag.accepted;
        size_t length = strlen(accepted);
        bool has_pattern = strstr(accepted, ":N") != NULL;
        while (has_pattern && length > 0 && accepted[length] != ',') length--;
        fprintf(out, "%.*s\t%s\n", (int)length, accepted, flag.help);
        if (strcmp(flag.type, "switch") == 0)
            fprintf(out, "--no-%s\tswitch\t\tTurn off: %s\n", flag.flag + 2, flag.help);
    }
    return 0;
}
