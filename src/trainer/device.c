/* device.c: which device a run computes on, and opening it. See trainer.h.
 *
 * auto takes the first CUDA card that can be used and the CPU otherwise; it says why only where there is
 * a driver, because then a card was probably meant. A card that was asked for by name and cannot be had
 * is wrong input: the message says what is missing. A plan may be for a card that is not here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/card_backend.h"
#include "kernels/card_peaks.h"
#include "trainer/trainer.h"

#define CACHE_FILE "matmul-algorithms"

/* ---- names ------------------------------------------------------------------------------------- */

/* Whoever asks for fp32 gets fp32. Where Full computes in 16 bits, fp32 is there to be finer than that
 * (Correct, in some profiles), and tf32 is: 10 bits of mantissa against 7, at a speed that does not undo
 * what 16 bits gained. */
static bool allows_tf32(const hy_settings *s) {
    if (s->tf32 == HY_AUTO) return hy_settings_precision(s, HY_FULL) != HY_DTYPE_F32;
    return s->tf32 == HY_ON;
}

/* ---- the file of tuned algorithms -------------------------------------------------------------- */

/* $XDG_CACHE_HOME/hybrid-train/..., or below ~/.cache; "" where neither is known. */
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

static void choose_cache(hy_trainer *t) {
    const char *asked = t->settings.tune_cache;
    t->tune_cache[0] = 0;
    if (strcmp(asked, "auto") == 0) {
        default_cache(t->tune_cache);
    } else if (strcmp(asked, "none") != 0) {
        snprintf(t->tune_cache, sizeof t->tune_cache, "%s", asked);
    }
}

/* A folder that cannot be made only means that the next run times its matmuls again. */
static void make_cache_folder(const hy_trainer *t) {
    char folder[HY_PATH_MAX];
    if (!t->tune_cache[0]) return;
    if (hy_path_parent(folder, sizeof folder, t->tune_cache) == HY_OK) (void)hy_dir_make(folder);
}

/* ---- opening ----------------------------------------------------------------------------------- */

static void on_tuning(void *user, const char *what, int done, int total) {
    const hy_trainer *t = user;
    (void)what;
    if (!t->observer.on_progress || total < 1) return;
    t->observer.on_progress(t->observer.user, "timing matmuls", (double)done / total);
}

static hy_status open_card(hy_trainer *t) {
    const hy_settings *s = &t->settings;
    choose_cache(t);
    int card = hy_device_card(s->device);
    hy_cuda_options options = {.device = card < 0 ? 0 : card,
                               .tune = t->life.is_plan ? HY_TUNE_OFF : s->tune, /* no matmul runs */
                               .allow_tf32 = allows_tf32(s),
                               .use_cudnn = s->attention == HY_ATTENTION_CUDNN,
                               .cache = t->tune_cache,
                               .is_measuring = true,
                               .on_tuning = on_tuning,
                               .user = t};
    HY_TRY(hy_cuda_backend_create(&options, &t->engine.backend));
    t->engine.backend->facts.peak_flops = hy_card_peak(t->engine.backend->facts.name);
    t->engine.nvml = hy_nvml_watch_create(t->engine.backend->facts.name, options.device);
    make_cache_folder(t);
    return HY_OK;
}

static hy_status open_cpu(hy_trainer *t) {
    hy_cpu_options options = {.threads = (int)t->settings.threads};
    return hy_cpu_backend_create(&options, &t->engine.backend);
}

static hy_status open_asked_card(hy_trainer *t) {
    char why[HY_ERROR_MESSAGE_MAX], asked[HY_TEXT_MAX];
    hy_status status = open_card(t);
    if (status != HY_ERR_DEVICE) return status;
    snprintf(why, sizeof why, "%s", hy_error_message());
    hy_setting_format(hy_setting_find("device", NULL), &t->settings, asked);
    return hy_fail(HY_ERR_INPUT, "device %s was asked for, but CUDA cannot be used: %s", asked,
                   why);
}

static hy_status open_any(hy_trainer *t) {
    if (!hy_cuda_has_driver()) return open_cpu(t);
    if (open_card(t) == HY_OK) return HY_OK;
    hy_say(t, HY_NOTE, "computing on the CPU, because CUDA cannot be used: %s", hy_error_message());
    return open_cpu(t);
}

/* A card by name stands in for the one that a plan is for. */
static hy_status open_named_card(hy_trainer *t) {
    if (t->life.is_plan) return hy_card_backend_create(t->settings.card, &t->engine.backend);
    return hy_fail(HY_ERR_INPUT,
                   "card = \"%s\" is for plans (--plan): a run takes the card that is here, by "
                   "device",
                   t->settings.card);
}

static hy_status open_backend(hy_trainer *t) {
    if (t->settings.card[0]) return open_named_card(t);
    if (t->settings.device == HY_USE_CPU) return open_cpu(t);
    return hy_device_card(t->settings.device) >= 0 ? open_asked_card(t) : open_any(t);
}

void hy_trainer_tell_warning(hy_trainer *t) {
    char *warning = t->engine.backend->facts.warning;
    if (warning[0]) hy_say(t, HY_WARNING, "%s", warning);
    warning[0] = 0;
}

hy_status hy_trainer_open_device(hy_trainer *t) {
    HY_TRY(open_backend(t));
    hy_trainer_tell_warning(t);
    HY_TRY(t->engine.backend->stream_create(t->engine.backend, "compute", &t->engine.compute));
    HY_TRY(t->engine.backend->stream_create(t->engine.backend, "copies", &t->engine.copies));
    HY_TRY(t->engine.backend->stream_create(t->engine.backend, "returns", &t->engine.returns));
    return t->engine.backend->event_create(t->engine.backend, &t->engine.optim.is_back);
}
