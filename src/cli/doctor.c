/* doctor.c: what this machine is, and which models it can train, on one screen.
 *
 * Everything measured comes from hy_machine_probe; this file only words it. The table of
 * models is an estimate of the training state alone, and says so. */
#include <stdint.h>
#include <string.h>

#include "cli/figures.h"
#include "cli/inspect.h"
#include "cli/models.h"
#include "cli/table.h"
#include "hybrid.h"

#define CPU_STATE_BYTES 16         /* per parameter: weights, gradients, m and v, fp32 each */
#define GPU_STATE_BYTES 18         /* and weights in 16 bits to compute with */
#define LOW_PIN_LIMIT (8ull << 30) /* below this, little can live beside the card */
#define LOW_DISK (4ull << 30)
#define ROOMY 0.9 /* a state beyond this part of memory leaves little for anything else */

static void say(const hy_cli_terminal *terminal, const char *what, const char *value) {
    fprintf(terminal->out, "  %-10s  %s\n", what, value);
}

static void hint(const hy_cli_terminal *terminal, const char *text) {
    fprintf(terminal->out, "  %-10s  %s%s%s\n", "", hy_cli_colour_code(terminal, HY_CLI_YELLOW),
            text, hy_cli_colour_code(terminal, HY_CLI_PLAIN));
}

static void show_compute(const hy_cli_terminal *terminal, const hy_machine *machine) {
    char line[640];
    const char *cpu = strncmp(machine->cpu, "CPU: ", 5) == 0 ? machine->cpu + 5 : machine->cpu;
    snprintf(line, sizeof line, "%s, %d core%s for this program", cpu, machine->cores,
             machine->cores == 1 ? "" : "s");
    say(terminal, "CPU", line);
    snprintf(line, sizeof line, "%s, %.1f GFLOP/s measured (fp32)", machine->blas,
             machine->sgemm_gflops);
    say(terminal, "matmul", line);
    if (machine->blas_warning[0] != '\0') hint(terminal, machine->blas_warning);
}

static void show_card_speed(const hy_cli_terminal *terminal, const hy_machine *machine) {
    char line[256], peak[64] = "";
    if (machine->gpu_peak_flops > 0)
        snprintf(peak, sizeof peak, " of %.1f by the data sheet", 1e-12 * machine->gpu_peak_flops);
    snprintf(line, sizeof line, "%.1f TFLOP/s measured%s (%s)", 1e-12 * machine->gpu_matmul_flops,
             peak, machine->gpu_capability < 80 ? "fp16" : "bf16");
    say(terminal, "", line);
    if (!(machine->download_bytes_per_second > 0)) return;
    snprintf(line, sizeof line, "its own memory at %.0f GB/s",
             1e-9 * machine->gpu_memory_bytes_per_second);
    say(terminal, "", line);
    snprintf(line, sizeof line,
             "copies at %.1f GB/s up, %.1f GB/s down, %.1f GB/s each way together (pinned memory)",
             1e-9 * machine->upload_bytes_per_second, 1e-9 * machine->download_bytes_per_second,
             1e-9 * machine->both_ways_bytes_per_second);
    say(terminal, "", line);
}

static void show_card(const hy_cli_terminal *terminal, const hy_machine *machine) {
    char line[640];
    if (machine->driver[0] != '\0') say(terminal, "driver", machine->driver);
    say(terminal, "CUDA", machine->cuda);
    if (!machine->has_cuda) {
        hint(terminal, "a GPU needs the NVIDIA driver and libhybrid_cuda.so beside this program");
        if (machine->is_wsl)
            hint(terminal, "under WSL the driver is that of Windows: install none in Linux");
        return;
    }
    snprintf(line, sizeof line, "%s, %s of %s free, %s", machine->gpu,
             hy_cli_bytes(machine->vram_free).text, hy_cli_bytes(machine->vram_total).text,
             machine->gpu_detail);
    say(terminal, "GPU", line);
    show_card_speed(terminal, machine);
}

static void show_memory(const hy_cli_terminal *terminal, const hy_machine *machine) {
    char line[256];
    bool is_unlimited = machine->pin_limit == UINT64_MAX;
    snprintf(line, sizeof line, "%s of %s available, %.1f GB/s (all cores)",
             hy_cli_bytes(machine->ram_available).text, hy_cli_bytes(machine->ram_total).text,
             1e-9 * machine->host_copy_bytes_per_second);
    say(terminal, "memory", line);
    snprintf(line, sizeof line, "%s: %s",
             is_unlimited ? "as much as there is" : hy_cli_bytes(machine->pin_limit).text,
             machine->pin_reason);
    say(terminal, "pinnable", line);
    if (machine->has_cuda && machine->pin_limit < LOW_PIN_LIMIT)
        hint(terminal, "low: state that does not fit the card has little room beside it");
}

static void show_disk(const hy_cli_terminal *terminal, const hy_machine *machine,
                      const char *folder) {
    char line[1200];
    bool is_here = strcmp(folder, ".") == 0;
    if (machine->disk_problem[0] != '\0') {
        say(terminal, "disk", machine->disk_problem);
        return;
    }
    snprintf(line, sizeof line, "%s free %s%.1000s, reads %.2f GB/s, writes %.2f GB/s",
             hy_cli_bytes(machine->disk_free).text, is_here ? "here" : "in ", is_here ? "" : folder,
             1e-9 * machine->disk_read_bytes_per_second,
             1e-9 * machine->disk_write_bytes_per_second);
    say(terminal, "disk", line);
    if (machine->disk_free < LOW_DISK)
        hint(terminal, "little room for checkpoints: give --out a folder on another disk");
}

static void show_surroundings(const hy_cli_terminal *terminal, const hy_machine *machine) {
    if (machine->is_wsl) {
        say(terminal, "system", "WSL: Linux inside Windows");
        hint(terminal, "Windows decides how much may be pinned, often less than shown; more memory "
                       "for WSL: memory= in .wslconfig");
    }
    if (machine->is_container)
        say(terminal, "system", "a container: its limits are the ones shown here");
}

/* Activations and the rest of the system want their part of what is available. */
static const char *fits(uint64_t state, uint64_t available) {
    if (state >= available) return "no";
    return (double)state < ROOMY * (double)available ? "yes" : "barely";
}

static hy_status show_what_fits(const hy_cli_terminal *terminal, const hy_machine *machine) {
    hy_cli_table table;
    hy_cli_model models[HY_CLI_MODELS_MAX];
    size_t count;
    bool is_gpu = machine->has_cuda;
    uint64_t per_parameter = is_gpu ? GPU_STATE_BYTES : CPU_STATE_BYTES;
    hy_status status = hy_cli_models_by_size(models, &count);
    if (status != HY_OK) return status;
    hy_cli_table_begin(&table, "lrrl");
    hy_cli_table_row(&table, "model", "parameters", "state", "fits", NULL);
    for (size_t i = 0; i < count; i++) {
        uint64_t state = (uint64_t)models[i].parameters * per_parameter;
        hy_cli_table_row(&table, models[i].name,
                         hy_cli_short_count((double)models[i].parameters).text,
                         hy_cli_bytes(state).text,
                         fits(state, is_gpu ? machine->vram_free : machine->ram_available), NULL);
    }
    fputc('\n', terminal->out);
    hy_cli_heading(terminal, is_gpu ? "what fits: full-parameter training in 16 bits on this GPU"
                                    : "what fits: full-parameter training in fp32 on this CPU");
    hy_cli_table_print(&table, terminal, true);
    fprintf(
        terminal->out,
        "  An estimate: weights, gradients and the optimizer's m and v (%d bytes per parameter)\n"
        "  against %s memory. Activations come on top and grow with batch and length.\n",
        (int)per_parameter, is_gpu ? "the card's free" : "available");
    return HY_OK;
}

static int failed(void) {
    hy_cli_error("%s", hy_error_message());
    return 1;
}

int hy_cli_doctor(const hy_cli_terminal *terminal, const char *folder) {
    hy_machine machine;
    hy_status status = hy_machine_probe(folder, &machine);
    if (status != HY_OK) return failed();
    hy_cli_heading(terminal, "this machine");
    show_compute(terminal, &machine);
    show_card(terminal, &machine);
    show_memory(terminal, &machine);
    show_disk(terminal, &machine, folder);
    show_surroundings(terminal, &machine);
    status = show_what_fits(terminal, &machine);
    return status == HY_OK ? 0 : failed();
}
