/* nvml.c: queries the driver's management library, which is opened at run time. See nvml.h.
 *
 * Except for the memory of a process, only functions that every version since 2013 has are used,
 * with the few declarations below. The library may number cards differently
 * from CUDA, so the card is found by its name; among several with one name, by CUDA_VISIBLE_DEVICES
 * and the number. */
#include "kernels/nvml.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/thread.h"

#define PERIOD_SECONDS 1
#define NAME_BYTES 96
#define SUCCESS 0
#define TEMPERATURE_OF_GPU 0
#define CLOCK_OF_SM 1
#define MOST_PROCESSES 64

typedef void *card_handle;
typedef struct utilization {
    unsigned gpu, memory; /* per cent */
} utilization;

typedef struct memory_info {
    unsigned long long total, free, used; /* bytes */
} memory_info;

typedef struct process_info {
    unsigned pid;
    unsigned long long memory; /* all bits set: not reported */
    unsigned gpu_instance, compute_instance;
} process_info;

/* The library's functions; all except the last are required. */
typedef struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*driver_version)(char *out, unsigned size);
    int (*count)(unsigned *out);
    int (*card)(unsigned index, card_handle *out);
    int (*name)(card_handle card, char *out, unsigned size);
    int (*power)(card_handle card, unsigned *milliwatts);
    int (*temperature)(card_handle card, int sensor, unsigned *degrees);
    int (*clock)(card_handle card, int domain, unsigned *megahertz);
    int (*load)(card_handle card, utilization *out);
    int (*memory)(card_handle card, memory_info *out);
    int (*processes)(card_handle card, unsigned *count, process_info *out); /* or NULL */
} nvml;

struct hy_nvml_watch {
    nvml api;
    card_handle card;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t is_changed;
    bool is_stopping;
    hy_nvml_sample latest;
};

/* ---- the library ----------------------------------------------------------------------------- */

static bool open_library(nvml *api) {
    *api = (nvml){.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    const struct {
        const char *name;
        void *slot;
    } wanted[] = {{"nvmlInit_v2", &api->init},
                  {"nvmlShutdown", &api->shutdown},
                  {"nvmlSystemGetDriverVersion", &api->driver_version},
                  {"nvmlDeviceGetCount_v2", &api->count},
                  {"nvmlDeviceGetHandleByIndex_v2", &api->card},
                  {"nvmlDeviceGetName", &api->name},
                  {"nvmlDeviceGetPowerUsage", &api->power},
                  {"nvmlDeviceGetTemperature", &api->temperature},
                  {"nvmlDeviceGetClockInfo", &api->clock},
                  {"nvmlDeviceGetUtilizationRates", &api->load},
                  {"nvmlDeviceGetMemoryInfo", &api->memory},
                  {"nvmlDeviceGetComputeRunningProcesses_v3", &api->processes}};
    if (!api->library) return false;
    bool has_all = true;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *found = dlsym(api->library, wanted[i].name);
        memcpy(wanted[i].slot, &found, sizeof found);
        has_all = has_all && (found || wanted[i].slot == (void *)&api->processes);
    }
    if (has_all && api->init() == SUCCESS) return true;
    dlclose(api->library);
    return false;
}

static void close_library(nvml *api) {
    api->shutdown();
    dlclose(api->library);
}

bool hy_nvml_driver_version(char *out, size_t size) {
    nvml api;
    if (!open_library(&api)) return false;
    bool is_known = api.driver_version(out, (unsigned)size) == SUCCESS;
    close_library(&api);
    return is_known;
}

/* ---- the card -------------------------------------------------------------------------------- */

/* The driver's number of CUDA device `device`: the device-th number in CUDA_VISIBLE_DEVICES. */
static unsigned physical_number(int device) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; list && *list; i++) {
        char *end;
        long number = strtol(list, &end, 10);
        if (end == list || number < 0) break; /* a list of ids instead of numbers */
        if (i == device) return (unsigned)number;
        list = *end == ',' ? end + 1 : end;
    }
    return (unsigned)device;
}

static bool is_named(const nvml *api, unsigned index, const char *name, card_handle *card) {
    char theirs[NAME_BYTES];
    return api->card(index, card) == SUCCESS &&
           api->name(*card, theirs, sizeof theirs) == SUCCESS && strcmp(theirs, name) == 0;
}

static bool find_card(const nvml *api, const char *name, int device, card_handle *out) {
    unsigned count = 0;
    if (api->count(&count) != SUCCESS) return false;
    bool is_found = is_named(api, physical_number(device), name, out);
    for (unsigned i = 0; i < count && !is_found; i++) is_found = is_named(api, i, name, out);
    return is_found;
}

static double reported(int status, double value) { return status == SUCCESS ? value : NAN; }

/* The driver numbers processes as outside of containers. */
static uint64_t own_memory(const nvml *api, card_handle card) {
    process_info list[MOST_PROCESSES];
    unsigned count = MOST_PROCESSES;
    if (!api->processes || api->processes(card, &count, list) != SUCCESS) return 0;
    for (unsigned i = 0; i < count && i < MOST_PROCESSES; i++) {
        bool is_ours = list[i].pid == (unsigned)getpid();
        if (is_ours && list[i].memory != ~0ULL) return list[i].memory;
    }
    return 0;
}

static hy_nvml_sample ask(const nvml *api, card_handle card) {
    unsigned milliwatts = 0, degrees = 0, megahertz = 0;
    utilization load = {0};
    memory_info memory = {0};
    if (api->memory(card, &memory) != SUCCESS) memory = (memory_info){0};
    int has_power = api->power(card, &milliwatts);
    int has_temperature = api->temperature(card, TEMPERATURE_OF_GPU, &degrees);
    int has_clock = api->clock(card, CLOCK_OF_SM, &megahertz);
    int has_load = api->load(card, &load);
    return (hy_nvml_sample){.is_known = true,
                            .power_watts = reported(has_power, 1e-3 * milliwatts),
                            .temperature_c = reported(has_temperature, degrees),
                            .sm_clock_mhz = reported(has_clock, megahertz),
                            .utilization = reported(has_load, 0.01 * load.gpu),
                            .memory_total = memory.total,
                            .memory_free = memory.free,
                            .memory_used = memory.used,
                            .process_memory = own_memory(api, card)};
}

/* ---- the watch ------------------------------------------------------------------------------- */

static void *run(void *argument) {
    hy_nvml_watch *w = argument;
    pthread_mutex_lock(&w->lock);
    while (!w->is_stopping) {
        struct timespec until;
        pthread_mutex_unlock(&w->lock);
        hy_nvml_sample sample = ask(&w->api, w->card);
        pthread_mutex_lock(&w->lock);
        w->latest = sample;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += PERIOD_SECONDS;
        if (!w->is_stopping) pthread_cond_timedwait(&w->is_changed, &w->lock, &until);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void free_watch(hy_nvml_watch *w) {
    close_library(&w->api);
    pthread_cond_destroy(&w->is_changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

hy_nvml_watch *hy_nvml_watch_create(const char *name, int device) {
    hy_nvml_watch *w = calloc(1, sizeof *w);
    if (!w || !open_library(&w->api)) {
        free(w);
        return NULL;
    }
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->is_changed, NULL);
    if (!find_card(&w->api, name, device, &w->card) ||
        hy_thread_start(&w->thread, NULL, run, w) != 0) {
        free_watch(w);
        return NULL;
    }
    return w;
}

void hy_nvml_watch_destroy(hy_nvml_watch *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->is_stopping = true;
    pthread_cond_signal(&w->is_changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    free_watch(w);
}

hy_nvml_sample hy_nvml_ask(hy_nvml_watch *w) {
    if (!w) return (hy_nvml_sample){0};
    hy_nvml_sample sample = ask(&w->api, w->card);
    pthread_mutex_lock(&w->lock);
    w->latest = sample;
    pthread_mutex_unlock(&w->lock);
    return sample;
}

hy_nvml_sample hy_nvml_latest(hy_nvml_watch *w) {
    if (!w) return (hy_nvml_sample){0};
    pthread_mutex_lock(&w->lock);
    hy_nvml_sample sample = w->latest;
    pthread_mutex_unlock(&w->lock);
    return sample;
}
