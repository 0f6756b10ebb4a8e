/* outdir.c: the run's folder. See trainer.h.
 *
 * Chosen and checked before anything is written: a folder that holds a run already is an error unless it
 * is resumed or overwritten; the folder that would hold it must be writable. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "formats/checkpoint.h"
#include "trainer/record.h"
#include "trainer/trainer.h"

/* By these a folder is known to hold a run. */
static const char *const run_marks[] = {"metrics.jsonl", "summary.json", "config.cfg"};
/* These a run writes too, but others may have files of such names. */
static const char *const run_extras[] = {"plan.json", "report.html", "tensorboard", "model"};

static bool is_listed(const char *name, const char *const *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, list[i]) == 0) return true;
    }
    return false;
}

#define IS_LISTED(name, list) is_listed(name, list, sizeof(list) / sizeof((list)[0]))

static bool is_checkpoint_name(const char *name) {
    return strncmp(name, "checkpoint-", 11) == 0 || strncmp(name, ".checkpoint-", 12) == 0;
}

static hy_status holds_run(const char *path, bool *out) {
    char **names;
    size_t count;
    *out = false;
    if (!hy_path_is_dir(path)) return HY_OK;
    HY_TRY(hy_dir_list(path, &names, &count));
    for (size_t i = 0; i < count; i++) {
        *out |= is_checkpoint_name(names[i]) || IS_LISTED(names[i], run_marks);
    }
    hy_dir_list_free(names, count);
    return HY_OK;
}

/* The nearest folder above `path` that exists must let us write. */
static hy_status check_writable(const char *path) {
    char at[HY_PATH_MAX];
    snprintf(at, sizeof at, "%s", path);
    while (!hy_path_exists(at)) {
        char *slash = strrchr(at, '/');
        if (!slash) {
            snprintf(at, sizeof at, ".");
            break;
        }
        if (slash == at) slash++;
        *slash = 0;
    }
    if (!hy_path_is_dir(at)) {
        return hy_fail(HY_ERR_INPUT, "the output folder %s cannot be made: %s is not a folder",
                       path, at);
    }
    if (access(at, W_OK | X_OK) != 0) {
        return hy_fail(HY_ERR_INPUT, "the output folder %s cannot be written: %s: %s", path, at,
                       strerror(errno));
    }
    return HY_OK;
}

/* Last part of a model's name: presets are plain, files and folders are paths. */
static void short_model_name(const char *model, char *out, size_t size) {
    size_t end = strlen(model);
    while (end > 1 && model[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && model[begin - 1] != '/') begin--;
    snprintf(out, size, "%.*s", end - begin > 100 ? 100 : (int)(end - begin), model + begin);
    char *dot = strstr(out, ".cfg");
    if (dot) *dot = 0;
}

static void default_folder(const hy_trainer *t, char out[HY_PATH_MAX]) {
    char model[128], stamp[32];
    short_model_name(t->settings.model, model, sizeof model);
    hy_clock_stamp(stamp, sizeof stamp);
    snprintf(out, HY_PATH_MAX, "runs/%s-%s", model, stamp);
    for (int i = 2; hy_path_exists(out) && i < 1000; i++) {
        snprintf(out, HY_PATH_MAX, "runs/%s-%s-%d", model, stamp, i);
    }
}

/* The run's folder, when `from` is that or one of its checkpoints. */
static void run_folder_of(const char *from, char out[HY_PATH_MAX]) {
    snprintf(out, HY_PATH_MAX, "%s", from);
    size_t length = strlen(out);
    while (length > 1 && out[length - 1] == '/') out[--length] = 0;
    char *slash = strrchr(out, '/');
    const char *last = slash ? slash + 1 : out;
    if (strncmp(last, "checkpoint-", 11) != 0) return;
    if (slash) {
        *slash = 0;
    } else {
        snprintf(out, HY_PATH_MAX, ".");
    }
}

/* The newest run below runs/ that has a checkpoint: names end in the date, but models differ, so the
 * date is compared. */
static hy_status newest_run(char out[HY_PATH_MAX]) {
    char **names;
    size_t count;
    char best_stamp[64] = "";
    out[0] = 0;
    if (!hy_path_is_dir("runs")) {
        return hy_fail(HY_ERR_INPUT, "there is no folder runs/ to resume from; name one: "
                                     "--resume DIR");
    }
    HY_TRY(hy_dir_list("runs", &names, &count));
    for (size_t i = 0; i < count; i++) {
        char path[HY_PATH_MAX], checkpoint[HY_PATH_MAX];
        size_t length = strlen(names[i]);
        const char *stamp = length > 15 ? names[i] + length - 15 : names[i];
        snprintf(path, sizeof path, "runs/%s", names[i]);
        int64_t step;
        if (strcmp(stamp, best_stamp) <= 0) continue;
        if (hy_checkpoint_latest(path, checkpoint, sizeof checkpoint, &step, NULL) != HY_OK) {
            continue;
        }
        snprintf(best_stamp, sizeof best_stamp, "%s", stamp);
        snprintf(out, HY_PATH_MAX, "%s", path);
    }
    hy_dir_list_free(names, count);
    if (out[0]) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "no run below runs/ has a checkpoint; name one: --resume DIR");
}

hy_status hy_config_load_run(hy_config *config, const char *folder) {
    char run[HY_PATH_MAX], path[HY_PATH_MAX];
    if (strcmp(folder, "auto") == 0) {
        HY_TRY(newest_run(run));
    } else {
        run_folder_of(folder, run);
    }
    HY_TRY(hy_path_join(path, sizeof path, run, "config.cfg"));
    if (!hy_path_exists(path)) {
        return hy_fail(HY_ERR_INPUT, "%s is not the folder of a run: it has no config.cfg", run);
    }
    return hy_config_load(config, path);
}

hy_status hy_trainer_choose_out(hy_trainer *t) {
    const hy_settings *s = &t->settings;
    bool is_resumed = s->save.resume[0] != 0;
    bool is_auto = strcmp(s->save.resume, "auto") == 0;
    if (strcmp(s->out, "none") == 0) {
        if (is_auto)
            return hy_fail(HY_ERR_INPUT, "resume = auto needs an output folder, out is none");
        t->out[0] = 0;
        return HY_OK;
    }
    if (s->out[0]) {
        snprintf(t->out, sizeof t->out, "%s", s->out);
    } else if (is_auto) {
        HY_TRY(newest_run(t->out));
    } else if (is_resumed) {
        run_folder_of(s->save.resume, t->out); /* it goes on where it was */
    } else {
        default_folder(t, t->out);
    }
    bool has_run;
    HY_TRY(holds_run(t->out, &has_run));
    if (has_run && !is_resumed && !s->save.overwrite && !t->is_out_ours) {
        return hy_fail(HY_ERR_INPUT,
                       "%s holds a run already; add --resume to go on with it, --overwrite to "
                       "begin anew there, or choose another --out",
                       t->out);
    }
    return check_writable(t->out);
}

static hy_status clear_run(const char *path) {
    char **names;
    size_t count;
    HY_TRY(hy_dir_list(path, &names, &count));
    hy_status status = HY_OK;
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        char inside[HY_PATH_MAX];
        if (!is_checkpoint_name(names[i]) && !IS_LISTED(names[i], run_marks) &&
            !IS_LISTED(names[i], run_extras)) {
            continue;
        }
        status = hy_path_join(inside, sizeof inside, path, names[i]);
        if (status == HY_OK && hy_path_is_dir(inside)) {
            status = hy_dir_remove(inside);
        } else if (status == HY_OK && unlink(inside) != 0) {
            status = hy_fail(HY_ERR_IO, "cannot remove %s: %s", inside, strerror(errno));
        }
    }
    hy_dir_list_free(names, count);
    return status;
}

hy_status hy_trainer_make_out(hy_trainer *t) {
    if (!t->out[0]) return HY_OK;
    t->is_out_ours = true;
    HY_TRY(hy_dir_make(t->out));
    bool is_resumed = t->settings.save.resume[0] != 0;
    bool has_run;
    HY_TRY(holds_run(t->out, &has_run));
    if (has_run && !is_resumed && t->settings.save.overwrite) HY_TRY(clear_run(t->out));
    char path[HY_PATH_MAX];
    HY_TRY(hy_path_join(path, sizeof path, t->out, "config.cfg"));
    HY_TRY(hy_file_write_atomic(path, t->config_text, strlen(t->config_text)));
    hy_plan_write(t);
    HY_TRY(hy_metrics_open(t));
    hy_tensorboard_open(t);
    return HY_OK;
}
