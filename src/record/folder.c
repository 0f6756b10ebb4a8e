/* folder.c: chooses the folder of a run. See record.h.
 *
 * The folder is chosen and checked before anything is written. A folder that already holds a run
 * is an error unless it is resumed or overwritten. Its parent folder must be writable. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "formats/branches.h"
#include "formats/checkpoint.h"
#include "hybrid_report.h"
#include "record/record.h"

/* Files that a run writes besides checkpoints. The marked files show that a folder holds a run;
 * the other names may also occur in other folders. */
static const struct {
    const char *name;
    bool is_mark, is_folder;
} run_files[] = {{"metrics.jsonl", true, false},
                 {"summary.json", true, false},
                 {"config.cfg", true, false},
                 {"plan.json", false, false},
                 {"reference.bin", false, false},
                 {"rewards.jsonl", false, false},
                 {"report.html", false, false},
                 {"sample.json", false, false},
                 {"exports.json", false, false},
                 {"standard-input.jsonl", false, false},
                 {"standard-input.csv", false, false},
                 {HY_BRANCHES_FILE, false, false},
                 {"tensorboard", false, true},
                 {"model", false, true},
                 {"adapter", false, true},
                 {HY_ORIGIN_PARTIAL, false, true}};

/* checkpoint-N, .checkpoint-N.partial, checkpoint-N.branch-B; not checkpoint-best,
 * checkpoint-1-notes.txt. */
static bool is_checkpoint(const char *name) {
    name += *name == '.';
    if (strncmp(name, "checkpoint-", 11) != 0) return false;
    const char *number = name + 11;
    size_t digits = strspn(number, "0123456789");
    const char *rest = number + digits;
    bool is_left = strncmp(rest, ".branch-", 8) == 0 && rest[8] &&
                   rest[8 + strspn(rest + 8, "0123456789")] == 0;
    return digits > 0 &&
           (!*rest || is_left || strcmp(rest, ".partial") == 0 || strcmp(rest, ".old") == 0);
}

static bool is_of_run(const char *name, bool marks_alone) {
    bool is_known = is_checkpoint(name);
    for (size_t i = 0; i < sizeof run_files / sizeof run_files[0]; i++) {
        bool counts = run_files[i].is_mark || !marks_alone;
        is_known |= counts && strcmp(name, run_files[i].name) == 0;
    }
    return is_known;
}

/* Folders of the user's that have the name of a file of ours, or are inside a folder of ours, are
 * never removed: a run that is resumed or overwritten there is refused before it begins. */
static hy_status check_folders(const char *path, bool is_cleared) {
    char **names, inside[HY_PATH_MAX];
    size_t count;
    if (!hy_path_is_dir(path)) return HY_OK;
    HY_TRY(hy_dir_list(path, &names, &count));
    hy_status status = HY_OK;
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        bool is_file = false;
        for (size_t k = 0; k < sizeof run_files / sizeof run_files[0]; k++)
            is_file |= !run_files[k].is_folder && strcmp(names[i], run_files[k].name) == 0;
        status = hy_path_join(inside, sizeof inside, path, names[i]);
        bool is_folder = hy_path_is_dir(inside) && !hy_path_is_link(inside);
        if (status != HY_OK || !is_folder) continue;
        if (is_file)
            status = hy_fail(HY_ERR_INPUT,
                             "%s is a folder, but a run writes a file of that name; move it "
                             "elsewhere, or choose another --out",
                             inside);
        else if (is_checkpoint(names[i]) || (is_cleared && (is_of_run(names[i], false) ||
                                                            !strcmp(names[i], HY_ORIGIN_FOLDER))))
            status = hy_dir_check_ours(inside);
    }
    hy_dir_list_free(names, count);
    return status;
}

static hy_status holds_run(const char *path, bool *out) {
    char **names;
    size_t count;
    *out = false;
    if (!hy_path_is_dir(path)) return HY_OK;
    HY_TRY(hy_dir_list(path, &names, &count));
    for (size_t i = 0; i < count; i++) *out |= is_of_run(names[i], true);
    hy_dir_list_free(names, count);
    return HY_OK;
}

/* The nearest existing parent folder of `path` must be writable. */
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
    HY_FAIL_IF(!hy_path_is_dir(at), HY_ERR_INPUT,
               "cannot create the output folder %s: %s is not a folder", path, at);
    HY_FAIL_IF(access(at, W_OK | X_OK) != 0, HY_ERR_INPUT,
               "cannot write to the output folder %s: %s: %s", path, at, strerror(errno));
    return HY_OK;
}

/* The last part of a model's name: presets are plain names, files and folders are paths. */
static void default_folder(const char *name, char out[HY_PATH_MAX]) {
    char last[128], stamp[32];
    size_t end = strlen(name);
    while (end > 1 && name[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && name[begin - 1] != '/') begin--;
    snprintf(last, sizeof last, "%.*s", end - begin > 100 ? 100 : (int)(end - begin), name + begin);
    char *dot = strstr(last, ".cfg");
    if (dot) *dot = 0;
    for (char *c = last; *c; c++) {
        bool is_plain = isalnum((unsigned char)*c) || strchr("._-+=@", *c) || (*c & 0x80);
        if (!is_plain || (c == last && *c == '.')) *c = '-'; /* of a run's name */
    }
    hy_clock_stamp(stamp, sizeof stamp);
    snprintf(out, HY_PATH_MAX, "runs/%s-%s", last, stamp);
    for (int i = 2; hy_path_exists(out) && i < 1000; i++)
        snprintf(out, HY_PATH_MAX, "runs/%s-%s-%d", last, stamp, i);
}

/* The run's folder, if `from` is the folder or one of its checkpoints. */
static void run_folder_of(const char *from, char out[HY_PATH_MAX]) {
    snprintf(out, HY_PATH_MAX, "%s", from);
    size_t length = strlen(out);
    while (length > 1 && out[length - 1] == '/') out[--length] = 0;
    char *slash = strrchr(out, '/');
    const char *last = slash ? slash + 1 : out;
    if (strncmp(last, "checkpoint-", 11) != 0 &&
        !(strcmp(last, HY_BEST) == 0 && hy_path_is_link(out)))
        return;
    if (slash)
        *slash = 0;
    else
        snprintf(out, HY_PATH_MAX, ".");
}

/* The newest run in runs/. It must have a checkpoint: another run is not resumed in its place. */
static hy_status newest_run(char out[HY_PATH_MAX]) {
    char checkpoint[HY_PATH_MAX];
    hy_status status = hy_run_newest("runs", out, HY_PATH_MAX);
    if (status == HY_OK) status = hy_checkpoint_peek(out, checkpoint, sizeof checkpoint);
    return status == HY_OK ? HY_OK : hy_fail_context(status, "cannot resume the newest run");
}

hy_status hy_config_load_run(hy_config *config, const char *folder) {
    char run[HY_PATH_MAX], path[HY_PATH_MAX];
    if (strcmp(folder, "auto") == 0)
        HY_TRY(newest_run(run));
    else
        run_folder_of(folder, run);
    HY_TRY(hy_path_join(path, sizeof path, run, "config.cfg"));
    HY_FAIL_IF(!hy_path_exists(path), HY_ERR_INPUT, "%s is not a run folder: it has no config.cfg",
               run);
    hy_kept_origin kept;
    HY_TRY(hy_origin_read(run, &kept));
    HY_TRY(hy_config_load_kept(config, path, &kept));
    return hy_config_set(config, "out", run, HY_FROM_FILE); /* the folder may have been moved */
}

static hy_status lock_folder(hy_record *r) {
    return r->lock ? HY_OK : hy_lock_take(r->out, &r->lock);
}

/* HY_ERR_INPUT if a folder without a run holds a file that a run would replace. */
static hy_status check_files(const char *path) {
    for (size_t i = 0; i < sizeof run_files / sizeof run_files[0]; i++) {
        char inside[HY_PATH_MAX];
        if (strcmp(run_files[i].name, "tensorboard") == 0) continue; /* files are added there */
        HY_TRY(hy_path_join(inside, sizeof inside, path, run_files[i].name));
        HY_FAIL_IF(hy_path_exists(inside), HY_ERR_INPUT,
                   "%s already exists, and the run would replace it; choose another --out, or add "
                   "--overwrite",
                   inside);
    }
    return HY_OK;
}

static hy_status check_free(const hy_record *r, const hy_settings *s, bool *has_run) {
    HY_TRY(holds_run(r->out, has_run));
    if (s->save.resume[0] || s->save.overwrite || r->is_out_ours) return HY_OK;
    HY_FAIL_IF(*has_run, HY_ERR_INPUT,
               "%s already holds a run; add --resume to continue it, --overwrite to start over, or "
               "choose another --out",
               r->out);
    return check_files(r->out);
}

/* --overwrite must not remove what the new run starts from. */
static hy_status check_sources(const hy_record *r, const hy_settings *s) {
    const struct {
        const char *key, *path;
    } sources[] = {{"model", s->model},
                   {"init_from", s->init_from},
                   {"adapter", s->lora.adapter},
                   {"data", s->data},
                   {"val_data", s->val_data},
                   {"eval_rows", s->eval.eval_rows},
                   {"tokenizer", s->input.tokenizer}};
    char out[PATH_MAX], path[PATH_MAX], name[NAME_MAX + 1];
    if (!realpath(r->out, out)) return HY_OK;
    size_t length = strlen(out);
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        if (!sources[i].path[0] || !realpath(sources[i].path, path)) continue;
        if (strncmp(path, out, length) != 0 || path[length] != '/') continue;
        const char *below = path + length + 1;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(below, "/"), below);
        HY_FAIL_IF(is_of_run(name, false) || strcmp(name, HY_ORIGIN_FOLDER) == 0, HY_ERR_INPUT,
                   "%s = %s is inside %s, which --overwrite would delete; choose another --out",
                   sources[i].key, sources[i].path, r->out);
    }
    return HY_OK;
}

hy_status hy_record_choose_folder(hy_record *r, const hy_settings *s) {
    bool is_resumed = s->save.resume[0] != 0;
    bool is_auto = strcmp(s->save.resume, "auto") == 0;
    if (strcmp(s->out, "none") == 0) {
        HY_FAIL_IF(is_auto, HY_ERR_INPUT, "resume = auto needs an output folder, but out is none");
        r->out[0] = 0;
        return HY_OK;
    }
    if (s->out[0])
        snprintf(r->out, sizeof r->out, "%s", s->out);
    else if (is_auto)
        HY_TRY(newest_run(r->out));
    else if (is_resumed)
        run_folder_of(s->save.resume, r->out); /* continues in the same folder */
    else
        default_folder(s->name[0] ? s->name : s->model, r->out);
    bool has_run;
    HY_TRY(check_free(r, s, &has_run));
    HY_TRY(check_folders(r->out, s->save.overwrite && !r->is_out_ours));
    if (s->save.overwrite && !r->is_out_ours) HY_TRY(check_sources(r, s));
    HY_TRY(check_writable(r->out));
    return has_run ? lock_folder(r) : HY_OK;
}

static hy_status clear_run(const char *path) {
    char **names;
    size_t count;
    HY_TRY(hy_origin_drop(path));
    HY_TRY(hy_dir_list(path, &names, &count));
    hy_status status = HY_OK;
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        char inside[HY_PATH_MAX];
        status = hy_path_join(inside, sizeof inside, path, names[i]);
        bool is_best = strcmp(names[i], HY_BEST) == 0 && hy_path_is_link(inside);
        if (!is_of_run(names[i], false) && !is_best) continue;
        if (status == HY_OK && is_checkpoint(names[i]) && names[i][0] != '.') {
            char manifest[HY_PATH_MAX];
            status = hy_path_join(manifest, sizeof manifest, inside, "manifest.json");
            if (status == HY_OK && !hy_path_exists(manifest)) continue; /* not our checkpoint */
        }
        if (status == HY_OK && hy_path_is_dir(inside) && !is_best)
            status = hy_dir_remove_ours(inside);
        else if (status == HY_OK && unlink(inside) != 0)
            status = hy_fail(HY_ERR_IO, "cannot remove %s: %s", inside, strerror(errno));
    }
    hy_dir_list_free(names, count);
    return status;
}

hy_status hy_record_write(const hy_record *r, const char *name, const char *text) {
    char path[HY_PATH_MAX];
    HY_TRY(hy_path_join(path, sizeof path, r->out, name));
    return hy_file_write_atomic(path, text, strlen(text));
}

hy_status hy_record_make_folder(hy_record *r, const hy_settings *s) {
    bool has_run;
    HY_TRY(hy_dir_make(r->out));
    HY_TRY(lock_folder(r));
    /* again: another run may have started and ended meanwhile */
    HY_TRY(check_free(r, s, &has_run));
    bool is_anew = !r->is_out_ours;
    r->is_out_ours = true;
    bool clears = has_run && is_anew && !s->save.resume[0] && s->save.overwrite;
    if (clears) HY_TRY(clear_run(r->out));
    return hy_record_write(r, "config.cfg", r->config_text);
}
