/* results_json.c: OUT/results.json: settings, every run, the rows and the checks. See results.h. */
#include "base/error.h"
#include "base/file.h"
#include "results.h"
#include "save_text.h"

static void put_numbers(hy_json_writer *w, const char *key, const double *values, int count) {
    hy_json_open_array(w, key);
    for (int i = 0; i < count; i++) hy_json_put_double(w, NULL, values[i]);
    hy_json_close_array(w);
}

static void put_spread(hy_json_writer *w, const char *key, const pv_spread *s) {
    hy_json_open_object(w, key);
    hy_json_put_double(w, "min", s->min);
    hy_json_put_double(w, "mean", s->mean);
    hy_json_put_double(w, "max", s->max);
    hy_json_put_double(w, "deviation", s->deviation);
    hy_json_close_object(w);
}

static void put_outcome(hy_json_writer *w, const char *key, const pv_outcome *x, int seeds) {
    hy_json_open_object(w, key);
    put_numbers(w, "losses", x->losses, seeds);
    put_numbers(w, "gains_on_baseline", x->gains, seeds);
    put_numbers(w, "compute_factors", x->factors, seeds);
    hy_json_open_array(w, "compute_factor_bounds"); /* -1: at most, 1: at least, 0: measured */
    for (int s = 0; s < seeds; s++) hy_json_put_int(w, NULL, x->bounds[s]);
    hy_json_close_array(w);
    put_spread(w, "loss", &x->loss);
    put_spread(w, "gain_on_baseline", &x->gain);
    put_spread(w, "compute_factor", &x->factor);
    hy_json_close_object(w);
}

static void put_row(hy_json_writer *w, const pv_row *row, const pv_options *o, int arm) {
    hy_json_open_object(w, NULL);
    hy_json_put_string(w, "arm", o->arms[arm].label);
    put_numbers(w, "mean_loss_by_lr", row->grid, o->lr_count);
    if (row->best >= 0) {
        hy_json_put_double(w, "lr", o->lrs[row->best]);
        hy_json_put_bool(w, "lr_is_at_edge", row->is_at_edge);
        hy_json_put_double(w, "spent", row->spent);
        hy_json_put_double(w, "seconds", row->seconds);
        hy_json_put_double(w, "true_steps", row->true_steps);
        hy_json_put_double(w, "moves", row->moves);
        hy_json_put_double(w, "rejected_moves", row->rejected_moves);
        hy_json_put_double(w, "predicted_steps", row->predicted_steps);
        put_outcome(w, "last_weights", &row->last, o->seed_count);
        put_outcome(w, "tail_average", &row->average, o->seed_count);
    }
    hy_json_close_object(w);
}

static void put_options(hy_json_writer *w, const pv_options *o) {
    hy_json_put_string(w, "version", HYBRID_VERSION);
    hy_json_put_string(w, "size", o->size->name);
    hy_json_put_string(w, "data", o->data);
    hy_json_put_string(w, "model", o->model[0] ? o->model : "nano");
    hy_json_put_int(w, "budget", o->steps);
    put_numbers(w, "lrs", o->lrs, o->lr_count);
    put_numbers(w, "budgets", o->budgets, o->budget_count);
    hy_json_open_array(w, "seeds");
    for (int s = 0; s < o->seed_count; s++) hy_json_put_int(w, NULL, o->seeds[s]);
    hy_json_close_array(w);
    hy_json_open_object(w, "settings");
    for (int i = 0; o->size->pairs[i]; i += 2) {
        hy_json_put_string(w, o->size->pairs[i], o->size->pairs[i + 1]);
    }
    hy_json_close_object(w);
    hy_json_open_array(w, "set");
    for (int i = 0; i < o->set_count; i++) {
        hy_json_open_array(w, NULL);
        hy_json_put_string(w, NULL, o->sets[i].key);
        hy_json_put_string(w, NULL, o->sets[i].value);
        hy_json_close_array(w);
    }
    hy_json_close_array(w);
}

static void put_checks(hy_json_writer *w, const pv_results *r) {
    static const char *const words[] = {"skipped", "passed", "failed"};
    hy_json_open_array(w, "checks");
    for (int i = 0; i < PV_CHECK_COUNT; i++) {
        hy_json_open_object(w, NULL);
        hy_json_put_string(w, "name", r->checks[i].name);
        hy_json_put_string(w, "verdict", words[r->checks[i].verdict]);
        hy_json_put_string(w, "detail", r->checks[i].detail);
        hy_json_close_object(w);
    }
    hy_json_close_array(w);
}

hy_status pv_results_write(const pv_results *r, const pv_runs *runs, const pv_options *o) {
    char path[1024];
    hy_text text = {0};
    hy_json_writer w;
    HY_TRY(hy_path_join(path, sizeof path, o->out, "results.json"));
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    put_options(&w, o);
    hy_json_open_array(&w, "arms");
    for (int a = 0; a < o->arm_count; a++) put_row(&w, &r->rows[a], o, a);
    hy_json_close_array(&w);
    put_checks(&w, r);
    hy_json_open_array(&w, "runs");
    for (int i = 0; i < runs->count; i++) pv_run_put_json(&w, &runs->list[i], o);
    hy_json_close_array(&w);
    hy_json_close_object(&w);
    hy_text_add(&text, "\n");
    return save_text(path, &text);
}
