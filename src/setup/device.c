/* device.c: chooses the device of a run and opens it. See setup.h.
 *
 * auto takes CUDA card 0 if it is usable, and otherwise the CPU; it gives the reason only if
 * there is a driver, because then the user probably expects a card. A named card that is not
 * usable is an input error with the reason. A plan may be for a card that is not in this
 * machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/say.h"
#include "config/derived.h"
#include "kernels/card_backend.h"
#include "kernels/card_list.h"
#include "setup/setup.h"

#define CACHE_FILE "matmul-algorithms"

/* ---- the file of tuned matmul algorithms ----------------------------------------------------- */

/* The path of the cache file: as set by the user, or for "auto" below $XDG_CACHE_HOME or ~/.cache.
 * "": there is none. */
static void choose_cache(const char *asked, char out[HY_PATH_MAX]) {
    const char *cache = getenv("XDG_CACHE_HOME"), *below = "";
    bool is_auto = strcmp(asked, "auto") == 0;
    out[0] = 0;
    if (!is_auto && strcmp(asked, "none") != 0) snprintf(out, HY_PATH_MAX, "%s", asked);
    if (!is_auto) return;
    if (!cache || cache[0] != '/') {
        cache = getenv("HOME");
        below = "/.cache";
    }
    if (!cache || cache[0] != '/') return;
    int length = snprintf(out, HY_PATH_MAX, "%s%s/hybrid-train/" CACHE_FILE, cache, below);
    if (length >= HY_PATH_MAX) out[0] = 0;
}

/* ---- opening --------------------------------------------------------------------------------- */

static void on_tuning(void *user, const char *what, int done, int total) {
    const hy_engine *e = user;
    (void)what;
    if (!e->observer->on_progress || total < 1) return;
    e->observer->on_progress(e->observer->user, "timing matmuls", (double)done / total);
}

static hy_status open_card(hy_engine *e) {
    const hy_settings *s = e->request.settings;
    /* With precision fp32, matmuls use true fp32. If Full computes in 16 bits, fp32 phases
     * (Correct, in some profiles) only need a higher precision than that, and tf32 has it: 10 bits
     * of mantissa instead of 7, without losing the speed of 16 bits. */
    bool is_low = hy_settings_precision(s, HY_FULL) != HY_DTYPE_F32;
    int card = hy_device_card(s->device);
    char folder[HY_PATH_MAX];
    choose_cache(s->tune_cache, e->tune_cache);
    hy_cuda_options options = {.device = card < 0 ? 0 : card,
                               .tune =
                                   e->request.is_plan ? HY_TUNE_OFF : s->tune, /* no matmul runs */
                               .allow_tf32 = s->tf32 == HY_AUTO ? is_low : s->tf32 == HY_ON,
                               .attention = s->attention,
                               .cache = e->tune_cache,
                               .is_measuring = true,
                               .on_tuning = on_tuning,
                               .user = e};
    HY_TRY(hy_cuda_backend_create(&options, &e->device.backend));
    e->device.backend->facts.peak_flops = hy_card_peak(e->device.backend->facts.name);
    e->nvml = hy_nvml_watch_create(e->device.backend->facts.name, options.device);
    /* If the cache's folder cannot be created, the next run times its matmuls again. */
    if (!e->tune_cache[0]) return HY_OK;
    if (hy_path_parent(folder, sizeof folder, e->tune_cache) == HY_OK) (void)hy_dir_make(folder);
    return HY_OK;
}

static hy_status open_backend(hy_engine *e) {
    const hy_settings *s = e->request.settings;
    bool is_named = hy_device_card(s->device) >= 0;
    HY_FAIL_IF(s->card[0] && !e->request.is_plan, HY_ERR_INPUT,
               "card = \"%s\" is only for plans (--plan): a run uses the card that device selects",
               s->card);
    if (s->card[0]) return hy_card_backend_create(s->card, &e->device.backend);
    if (is_named || (s->device != HY_USE_CPU && hy_cuda_has_driver())) {
        hy_status status = open_card(e);
        if (status == HY_OK || (is_named && status != HY_ERR_DEVICE)) return status;
        if (is_named) {
            char asked[HY_VALUE_MAX];
            hy_setting_format(hy_setting_find("device", NULL), s, asked);
            return hy_fail_context(HY_ERR_INPUT, "device is %s, but CUDA is not available", asked);
        }
        hy_say_to(e->observer, HY_NOTE, "computing on the CPU, because CUDA is not available: %s",
                  hy_error_message());
    }
    return hy_cpu_backend_create(&(hy_cpu_options){.threads = (int)s->threads}, &e->device.backend);
}

void hy_engine_tell_warning(hy_engine *e) {
    char *warning = e->device.backend->facts.warning;
    if (warning[0]) hy_say_to(e->observer, HY_WARNING, "%s", warning);
    warning[0] = 0;
}

hy_status hy_engine_open_device(hy_engine *e) {
    const hy_settings *s = e->request.settings;
    hy_device *d = &e->device;
    HY_TRY(open_backend(e));
    hy_engine_tell_warning(e);
    HY_TRY(d->backend->stream_create(d->backend, "compute", &d->compute));
    HY_TRY(d->backend->stream_create(d->backend, "copies", &d->copies));
    HY_TRY(d->backend->stream_create(d->backend, "returns", &d->returns));
    HY_TRY(d->backend->stream_create(d->backend, "moves", &d->moves));
    e->retries.most = s->memory.recovery_tries;
    e->state->device = d;
    e->state->observer = e->observer;
    e->state->folder = s->memory.offload_folder;
    e->state->offload.lookahead = s->memory.async_restore ? s->memory.lookahead : 0;
    HY_TRY(d->backend->event_create(d->backend, &e->state->offload.is_back));
    return e->custom && !e->request.is_plan ? hy_custom_open(e) : HY_OK;
}
