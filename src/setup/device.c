/* device.c: chooses the device of a run and opens it. See setup.h.
 *
 * auto takes the first usable CUDA card, and otherwise the CPU; it gives the reason only if
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

/* ---- names ----------------------------------------------------------------------------------- */

/* If the user sets fp32, it is fp32. If Full computes in 16 bits, fp32 phases (Correct, in some
 * profiles) only need a higher precision than that, and tf32 has it: 10 bits of mantissa instead
 * of 7, without losing the speed of 16 bits. */
static bool allows_tf32(const hy_settings *s) {
    if (s->tf32 == HY_AUTO) return hy_settings_precision(s, HY_FULL) != HY_DTYPE_F32;
    return s->tf32 == HY_ON;
}

/* ---- the file of tuned algorithms ------------------------------------------------------------ */

/* $XDG_CACHE_HOME/hybrid-train/..., or below ~/.cache; "": neither is known. */
static void default_cache(char out[HY_PATH_MAX]) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool has_cache = cache && cache[0] == '/';
    int length = 0;
    out[0] = 0;
    if (!has_cache && !(home && home[0] == '/')) return;
    length = snprintf(out, HY_PATH_MAX, "%s%s/hybrid-train/" CACHE_FILE, has_cache ? cache : home,
                      has_cache ? "" : "/.cache");
    if (length >= HY_PATH_MAX) out[0] = 0;
}

static void choose_cache(hy_engine *e) {
    const char *asked = e->settings->tune_cache;
    e->tune_cache[0] = 0;
    if (strcmp(asked, "auto") == 0) {
        default_cache(e->tune_cache);
    } else if (strcmp(asked, "none") != 0) {
        snprintf(e->tune_cache, sizeof e->tune_cache, "%s", asked);
    }
}

/* If the folder cannot be created, the next run times its matmuls again. */
static void make_cache_folder(const hy_engine *e) {
    char folder[HY_PATH_MAX];
    if (!e->tune_cache[0]) return;
    if (hy_path_parent(folder, sizeof folder, e->tune_cache) == HY_OK) (void)hy_dir_make(folder);
}

/* ---- opening --------------------------------------------------------------------------------- */

static void on_tuning(void *user, const char *what, int done, int total) {
    const hy_engine *e = user;
    (void)what;
    if (!e->observer->on_progress || total < 1) return;
    e->observer->on_progress(e->observer->user, "timing matmuls", (double)done / total);
}

static hy_status open_card(hy_engine *e) {
    const hy_settings *s = e->settings;
    choose_cache(e);
    int card = hy_device_card(s->device);
    hy_cuda_options options = {.device = card < 0 ? 0 : card,
                               .tune =
                                   e->request.is_plan ? HY_TUNE_OFF : s->tune, /* no matmul runs */
                               .allow_tf32 = allows_tf32(s),
                               .attention = s->attention,
                               .cache = e->tune_cache,
                               .is_measuring = true,
                               .on_tuning = on_tuning,
                               .user = e};
    HY_TRY(hy_cuda_backend_create(&options, &e->device.backend));
    e->device.backend->facts.peak_flops = hy_card_peak(e->device.backend->facts.name);
    e->nvml = hy_nvml_watch_create(e->device.backend->facts.name, options.device);
    make_cache_folder(e);
    return HY_OK;
}

static hy_status open_cpu(hy_engine *e) {
    hy_cpu_options options = {.threads = (int)e->settings->threads};
    return hy_cpu_backend_create(&options, &e->device.backend);
}

static hy_status open_asked_card(hy_engine *e) {
    char asked[HY_TEXT_MAX];
    hy_status status = open_card(e);
    if (status != HY_ERR_DEVICE) return status;
    hy_setting_format(hy_setting_find("device", NULL), e->settings, asked);
    return hy_fail_context(HY_ERR_INPUT, "device is %s, but CUDA is not available", asked);
}

static hy_status open_any(hy_engine *e) {
    if (!hy_cuda_has_driver()) return open_cpu(e);
    if (open_card(e) == HY_OK) return HY_OK;
    hy_say_to(e->observer, HY_NOTE, "computing on the CPU, because CUDA is not available: %s",
              hy_error_message());
    return open_cpu(e);
}

/* A plan may name a card, which replaces the real one. */
static hy_status open_named_card(hy_engine *e) {
    if (e->request.is_plan) return hy_card_backend_create(e->settings->card, &e->device.backend);
    return hy_fail(
        HY_ERR_INPUT,
        "card = \"%s\" is only for plans (--plan): a run uses the card that device selects",
        e->settings->card);
}

static hy_status open_backend(hy_engine *e) {
    if (e->settings->card[0]) return open_named_card(e);
    if (e->settings->device == HY_USE_CPU) return open_cpu(e);
    return hy_device_card(e->settings->device) >= 0 ? open_asked_card(e) : open_any(e);
}

void hy_engine_tell_warning(hy_engine *e) {
    char *warning = e->device.backend->facts.warning;
    if (warning[0]) hy_say_to(e->observer, HY_WARNING, "%s", warning);
    warning[0] = 0;
}

static hy_status open_streams(hy_device *d) {
    hy_backend *b = d->backend;
    HY_TRY(b->stream_create(b, "compute", &d->compute));
    HY_TRY(b->stream_create(b, "copies", &d->copies));
    HY_TRY(b->stream_create(b, "returns", &d->returns));
    return b->stream_create(b, "moves", &d->moves);
}

static hy_status open_state(hy_engine *e) {
    const hy_settings *s = e->settings;
    e->state->device = &e->device;
    e->state->observer = e->observer;
    e->state->folder = s->memory.offload_folder;
    e->state->offload.lookahead = s->memory.async_restore ? s->memory.lookahead : 0;
    return e->device.backend->event_create(e->device.backend, &e->state->offload.is_back);
}

hy_status hy_engine_open_device(hy_engine *e) {
    HY_TRY(open_backend(e));
    hy_engine_tell_warning(e);
    HY_TRY(open_streams(&e->device));
    HY_TRY(open_state(e));
    return e->custom && !e->request.is_plan ? hy_custom_open(e) : HY_OK;
}
