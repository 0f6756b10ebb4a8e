/* exports.c: remembers measured exports in the folder of their run. See export.h.
 *
 * RUN/exports.json is a list with one line for each export, the newest last. The report shows it. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "record/export.h"
#include "record/state_files.h"

#define END "\n]\n"

static void put_entry(const hy_export_options *o, const char *checkpoint, const hy_evaluation *list,
                      int32_t count, hy_text *out) {
    hy_json_writer w;
    char file[PATH_MAX];
    const char *asked = o->gguf ? o->gguf : o->out;
    /* The loss of the weights that the file is made of. */
    bool is_onto_folder = o->onto && strcmp(o->onto, "folder") == 0 && list[1].bytes == 0;
    double before = list[is_onto_folder].loss;
    hy_json_begin(&w, out, false);
    hy_json_open_object(&w, NULL);
    hy_json_put_int(&w, "time", (int64_t)hy_clock_unix());
    hy_json_put_string(&w, "checkpoint", checkpoint);
    hy_json_put_string(&w, "file", realpath(asked, file) ? file : asked);
    hy_json_put_string(&w, "type", o->type ? o->type : "auto");
    hy_json_put_string(&w, "calibrated_on", o->calibrate);
    hy_json_put_string(&w, "data", list[0].data);
    hy_json_put_int(&w, "tokens", list[0].tokens);
    hy_json_open_array(&w, "results");
    for (int32_t i = 0; i < count; i++) {
        hy_json_open_object(&w, NULL);
        hy_json_put_string(&w, "rounding", i > 0 ? list[i].rounding : "before");
        if (list[i].bytes > 0) hy_json_put_int(&w, "bytes", (int64_t)list[i].bytes);
        hy_json_put_double(&w, "loss", list[i].loss);
        hy_json_put_double(&w, "increase", list[i].loss - before);
        hy_json_put_bool(&w, "written", list[i].is_written);
        hy_json_close_object(&w);
    }
    hy_json_close_array(&w);
    hy_json_close_object(&w);
}

/* The list in the file, without its end; "[" if there is no file. */
static hy_status read_list(const char *path, hy_text *out) {
    char *text;
    size_t size;
    if (!hy_path_exists(path)) {
        hy_text_add(out, "[\n");
        return HY_OK;
    }
    HY_TRY(hy_file_read(path, &text, &size));
    bool is_list = size > strlen(END) && text[0] == '[' && hy_has_ending(text, END);
    if (is_list) hy_text_add_bytes(out, text, size - strlen(END));
    free(text);
    HY_FAIL_IF(!is_list, HY_ERR_INPUT, "%s is not a list of exports; remove it", path);
    hy_text_add(out, ",\n");
    return HY_OK;
}

hy_status hy_exports_add(const char *checkpoint, const hy_export_options *options,
                         const hy_evaluation *list, int32_t count, char run[HY_PATH_MAX]) {
    char path[HY_PATH_MAX];
    hy_text text = {0};
    HY_TRY(hy_path_parent(run, HY_PATH_MAX, checkpoint));
    HY_TRY(hy_path_join(path, sizeof path, run, "config.cfg"));
    if (!hy_path_exists(path)) run[0] = 0; /* the checkpoint was copied out of its run */
    if (!run[0]) return HY_OK;
    HY_TRY(hy_path_join(path, sizeof path, run, "exports.json"));
    hy_status status = read_list(path, &text);
    if (status == HY_OK) {
        put_entry(options, checkpoint, list, count, &text);
        hy_text_add(&text, END);
        status = text.has_failed ? hy_fail(HY_ERR_MEMORY, "not enough memory for %s", path)
                                 : hy_file_write_atomic(path, text.data, text.size);
    }
    hy_text_free(&text);
    return status;
}
