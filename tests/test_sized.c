/* test_sized.c: structs that the library fills for programs which know shorter or longer ones.
 *
 * A program's own definition of a struct is simulated by its size. tests/package/run.sh compiles
 * programs with older and newer headers. */
#include <stddef.h>

#include "hybrid_report.h"
#include "hybrid_tools.h"
#include "small_run.h"

#define BEYOND 64   /* bytes behind a struct */
#define CANARY 0xA5 /* what they hold before the call */

/* Room for any public struct and more; `bytes` begins with the caller's struct. */
static union {
    size_t size;
    max_align_t alignment;
    unsigned char bytes[32768];
} room;

static void clear_room(void) { memset(room.bytes, CANARY, sizeof room.bytes); }

static bool is_untouched(size_t from) {
    for (size_t i = from; i < from + BEYOND; i++)
        if (room.bytes[i] != CANARY) return false;
    return true;
}

static bool is_zero(size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        if (room.bytes[i]) return false;
    return true;
}

/* ---- functions that fill a struct ------------------------------------------------------------ */

static hy_trainer *trainer;

static void fill_summary(size_t size) { hy_trainer_summary_sized(trainer, (void *)&room, size); }
static void fill_facts(size_t size) { hy_trainer_plan_facts_sized(trainer, (void *)&room, size); }
static void fill_memory(size_t size) {
    must(hy_trainer_memory_sized(trainer, (void *)&room, size));
}
static void fill_savings(size_t size) {
    must(hy_trainer_savings_sized(trainer, (void *)&room, size));
}
static void fill_step(size_t size) { must(hy_trainer_step_sized(trainer, (void *)&room, size)); }
static void fill_eval(size_t size) {
    must(hy_trainer_evaluate_sized(trainer, (void *)&room, size));
}
static void fill_group(size_t size) {
    ck_assert(hy_trainer_group_sized(trainer, 0, (void *)&room, size));
}
static void fill_ranks(size_t size) {
    ck_assert(!hy_trainer_ranks_sized(trainer, (void *)&room, size));
}
static void fill_rank(size_t size) { must(hy_find_rank_sized((void *)&room, size)); }

static const struct {
    const char *name;
    void (*fill)(size_t size);
    size_t size;     /* the library's */
    size_t shortest; /* that a program may know: its first member ends there */
    bool is_stable;  /* a second call gives the same bytes */
} structs[] = {
    {"hy_summary", fill_summary, sizeof(hy_summary), offsetof(hy_summary, device), true},
    {"hy_plan_facts", fill_facts, sizeof(hy_plan_facts), offsetof(hy_plan_facts, problem), true},
    {"hy_memory_state", fill_memory, sizeof(hy_memory_state), offsetof(hy_memory_state, phase),
     false},
    {"hy_savings", fill_savings, sizeof(hy_savings), offsetof(hy_savings, list), true},
    {"hy_step_info", fill_step, sizeof(hy_step_info), offsetof(hy_step_info, steps_total), false},
    {"hy_eval_info", fill_eval, sizeof(hy_eval_info), offsetof(hy_eval_info, loss), false},
    {"hy_group_info", fill_group, sizeof(hy_group_info), offsetof(hy_group_info, changes), true},
    {"hy_ranks_info", fill_ranks, sizeof(hy_ranks_info), offsetof(hy_ranks_info, rank), true},
    {"hy_rank_info", fill_rank, sizeof(hy_rank_info), offsetof(hy_rank_info, count), true},
};
#define STRUCTS ((int)(sizeof structs / sizeof structs[0]))

static void make_run(void) {
    trainer = small_trainer(SMALL_RUN, "none", NULL, PAIRS("groups", "blocks.0.*: lr_scale 0.5"));
}

static void drop_run(void) { hy_trainer_destroy(trainer); }

START_TEST(a_program_with_a_shorter_struct_gets_its_members_and_no_byte_more) {
    static unsigned char whole[sizeof room.bytes];
    size_t full = structs[_i].size, less = structs[_i].shortest;
    clear_room();
    structs[_i].fill(full);
    ck_assert_uint_eq(room.size, full);
    ck_assert(is_untouched(full));
    memcpy(whole, room.bytes, full);
    clear_room();
    structs[_i].fill(less);
    ck_assert_uint_eq(room.size, less);
    ck_assert_msg(is_untouched(less), "%s: bytes behind the struct were written", structs[_i].name);
    if (!structs[_i].is_stable) return;
    ck_assert_mem_eq(room.bytes + sizeof(size_t), whole + sizeof(size_t), less - sizeof(size_t));
}
END_TEST

START_TEST(a_program_with_a_longer_struct_gets_zeros_for_what_the_library_does_not_know) {
    size_t full = structs[_i].size, more = full + 48;
    clear_room();
    structs[_i].fill(more);
    ck_assert_msg(room.size == full, "%s: size is %zu", structs[_i].name, room.size);
    ck_assert(is_zero(full, more));
    ck_assert(is_untouched(more));
}
END_TEST

/* ---- lists ----------------------------------------------------------------------------------- */

START_TEST(entries_of_a_list_are_as_far_apart_as_the_program_has_them) {
    size_t size = sizeof(hy_activation_estimate), sizes[] = {size - 8, size, size + 16};
    hy_activation_estimate all[HY_RECOMPUTE_LEVELS];
    must(hy_trainer_estimate_activations(trainer, 0, 0, all));
    for (int k = 0; k < 3; k++) {
        clear_room();
        must(hy_trainer_estimate_activations_sized(trainer, 0, 0, (void *)&room, sizes[k]));
        for (size_t i = 0; i < HY_RECOMPUTE_LEVELS; i++) {
            hy_activation_estimate one = {0};
            size_t known = sizes[k] < size ? sizes[k] : size;
            memcpy(&one, room.bytes + i * sizes[k], known);
            ck_assert_uint_eq(one.size, known);
            ck_assert_str_eq(one.recompute, all[i].recompute);
            ck_assert_uint_eq(one.offloaded, all[i].offloaded);
            ck_assert_uint_eq(one.offload_device, k ? all[i].offload_device : 0);
        }
        ck_assert(is_untouched(HY_RECOMPUTE_LEVELS * sizes[k]));
    }
}
END_TEST

START_TEST(json_of_a_shorter_struct_has_the_members_that_it_has) {
    hy_evaluation list[2] = {{.loss = 1.5, .tokens = 7, .device = "CPU"}, {.loss = 2.5}};
    size_t less =
        offsetof(hy_evaluation, device); /* device, adapter and frozen_dtype are missing */
    unsigned char shorter[2 * sizeof(hy_evaluation)];
    char *text;
    for (size_t i = 0; i < 2; i++) memcpy(shorter + i * less, &list[i], less);
    memset(shorter + 2 * less, CANARY, sizeof shorter - 2 * less);
    must(hy_evaluations_json_sized((const void *)shorter, 2, less, &text));
    ck_assert_ptr_nonnull(strstr(text, "1.5"));
    ck_assert_ptr_nonnull(strstr(text, "2.5"));
    ck_assert_ptr_null(strstr(text, "CPU"));
    hy_free(text);
    must(hy_evaluation_json(&list[0], &text));
    ck_assert_ptr_nonnull(strstr(text, "CPU"));
    hy_free(text);
}
END_TEST

/* ---- callbacks, and structs that are only pointed to ----------------------------------------- */

static struct { size_t step, eval; } carried;

static void evaluate_longer(const char *model) {
    hy_config *config;
    hy_evaluation *list;
    size_t count, more = sizeof *list + 32;
    must(hy_config_create(&config));
    must(hy_config_use_model(config, model));
    must(hy_evaluate_each_sized(config, NULL, &list, &count, more));
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(list[0].size, sizeof list[0]);
    ck_assert(list[0].loss > 0);
    memcpy(room.bytes, list, more);
    ck_assert(is_zero(sizeof list[0], more));
    hy_free(list);
    hy_config_destroy(config);
}

static void note_step(void *user, const hy_step_info *info) {
    (void)user;
    carried.step = info->size;
    ck_assert(HY_HAS_MEMBER(info, gpu));
}
static void note_eval(void *user, const hy_eval_info *info) {
    (void)user;
    carried.eval = info->size;
}

START_TEST(callbacks_get_structs_that_carry_their_size) {
    char out[256];
    hy_trainer *other;
    hy_run *run;
    hy_observer observer = {.on_step = note_step, .on_eval = note_eval};
    temp_folder(out);
    hy_config *mine = small_run(SMALL_RUN, out, PAIRS("steps", "4", "overwrite", "on"));
    must(hy_trainer_create(mine, &observer, &other));
    must(hy_trainer_run(other));
    ck_assert_uint_eq(carried.step, sizeof(hy_step_info));
    ck_assert_uint_eq(carried.eval, sizeof(hy_eval_info));
    hy_trainer_destroy(other);
    hy_config_destroy(mine);
    must(hy_run_open(out, &run));
    ck_assert_uint_eq(hy_run_describe(run)->size, sizeof(hy_run_facts));
    ck_assert_uint_gt(hy_run_points(run), 0);
    ck_assert_uint_eq(hy_run_point_at(run, 0)->size, sizeof(hy_run_point));
    ck_assert_uint_gt(hy_run_events(run), 0);
    ck_assert_uint_eq(hy_run_event_at(run, 0)->size, sizeof(hy_run_event));
    hy_run_close(run);
    evaluate_longer(out);
    remove_folder(out);
    ck_assert_uint_eq(hy_run_describe(NULL)->size, sizeof(hy_run_facts));
}
END_TEST

START_TEST(a_member_is_known_when_all_of_it_was_filled) {
    hy_eval_info info = {.size = offsetof(hy_eval_info, seconds) + sizeof info.seconds};
    ck_assert(HY_HAS_MEMBER(&info, step));
    ck_assert(HY_HAS_MEMBER(&info, seconds));
    ck_assert(!HY_HAS_MEMBER(&info, is_final));
    info.size--;
    ck_assert(!HY_HAS_MEMBER(&info, seconds));
}
END_TEST

/* Programs of today: no size is set, and no info is wanted. */
START_TEST(programs_need_not_set_sizes) {
    hy_summary summary;
    hy_step_info info;
    hy_rank_cost cost;
    memset(&summary, CANARY, sizeof summary);
    must(hy_trainer_step(trainer, NULL));
    must(hy_trainer_step(trainer, &info));
    must(hy_trainer_evaluate(trainer, NULL));
    hy_trainer_summary(trainer, &summary);
    ck_assert_int_eq(summary.steps, 2);
    ck_assert_int_eq(info.step, 2);
    ck_assert_uint_eq(summary.size, sizeof summary);
    ck_assert(!hy_trainer_rank(trainer, 0, &cost));
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("sized");
    TCase *run = tcase_create("structs of a run");
    tcase_add_checked_fixture(run, make_run, drop_run);
    tcase_add_loop_test(run, a_program_with_a_shorter_struct_gets_its_members_and_no_byte_more, 0,
                        STRUCTS);
    tcase_add_loop_test(
        run, a_program_with_a_longer_struct_gets_zeros_for_what_the_library_does_not_know, 0,
        STRUCTS);
    tcase_add_test(run, entries_of_a_list_are_as_far_apart_as_the_program_has_them);
    tcase_add_test(run, programs_need_not_set_sizes);
    suite_add_tcase(suite, run);
    TCase *alone = tcase_create("without a run");
    tcase_add_test(alone, json_of_a_shorter_struct_has_the_members_that_it_has);
    tcase_add_test(alone, callbacks_get_structs_that_carry_their_size);
    tcase_add_test(alone, a_member_is_known_when_all_of_it_was_filled);
    suite_add_tcase(suite, alone);
    return suite;
}

HY_TEST_MAIN(make_suite)
