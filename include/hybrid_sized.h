/* hybrid_sized.h: functions of hybrid.h that pass the size of your struct to the library. Part of
 * hybrid.h.
 *
 * Each function of hybrid.h that fills a struct has two forms. The inline form takes the size from
 * your definition of the struct; C and C++ programs use it. The form in the library, with _sized at
 * the end of its name, is for programs in other languages. See "How structs grow" in
 * hybrid_types.h. */
#ifndef HYBRID_SIZED_H
#define HYBRID_SIZED_H

#ifndef HYBRID_H
#error "include hybrid.h"
#endif

/* ---- 3. Trainer ------------------------------------------------------------------------------ */

void hy_trainer_plan_facts_sized(const hy_trainer *trainer, hy_plan_facts *out, size_t size);
static inline void hy_trainer_plan_facts(const hy_trainer *trainer, hy_plan_facts *out) {
    hy_trainer_plan_facts_sized(trainer, out, sizeof *out);
}

bool hy_trainer_group_sized(const hy_trainer *trainer, int32_t i, hy_group_info *out, size_t size);
static inline bool hy_trainer_group(const hy_trainer *trainer, int32_t i, hy_group_info *out) {
    return hy_trainer_group_sized(trainer, i, out, sizeof *out);
}

hy_status hy_trainer_step_sized(hy_trainer *trainer, hy_step_info *info, size_t size);
static inline hy_status hy_trainer_step(hy_trainer *trainer, hy_step_info *info) {
    return hy_trainer_step_sized(trainer, info, sizeof *info);
}

hy_status hy_trainer_evaluate_sized(hy_trainer *trainer, hy_eval_info *info, size_t size);
static inline hy_status hy_trainer_evaluate(hy_trainer *trainer, hy_eval_info *info) {
    return hy_trainer_evaluate_sized(trainer, info, sizeof *info);
}

hy_status hy_trainer_answer_sized(hy_trainer *trainer, const hy_sample_options *options,
                                  hy_row_answer *out, size_t size);
static inline hy_status hy_trainer_answer(hy_trainer *trainer, const hy_sample_options *options,
                                          hy_row_answer *out) {
    return hy_trainer_answer_sized(trainer, options, out, sizeof *out);
}

/* ---- 4. Using a model ------------------------------------------------------------------------ */

void hy_inference_describe_sized(const hy_inference *model, hy_inference_facts *out, size_t size);
static inline void hy_inference_describe(const hy_inference *model, hy_inference_facts *out) {
    hy_inference_describe_sized(model, out, sizeof *out);
}

hy_status hy_inference_complete_sized(hy_inference *model, const char *prompt,
                                      const hy_generate_options *options, hy_text_callback on_text,
                                      void *user, hy_generated *info, size_t size);
static inline hy_status hy_inference_complete(hy_inference *model, const char *prompt,
                                              const hy_generate_options *options,
                                              hy_text_callback on_text, void *user,
                                              hy_generated *info) {
    return hy_inference_complete_sized(model, prompt, options, on_text, user, info, sizeof *info);
}

hy_status hy_inference_say_sized(hy_inference *model, const char *message,
                                 const hy_generate_options *options, hy_text_callback on_text,
                                 void *user, hy_generated *info, size_t size);
static inline hy_status hy_inference_say(hy_inference *model, const char *message,
                                         const hy_generate_options *options,
                                         hy_text_callback on_text, void *user, hy_generated *info) {
    return hy_inference_say_sized(model, message, options, on_text, user, info, sizeof *info);
}

hy_status hy_evaluate_sized(const hy_config *config, const hy_observer *observer,
                            hy_evaluation *out, size_t size);
static inline hy_status hy_evaluate(const hy_config *config, const hy_observer *observer,
                                    hy_evaluation *out) {
    return hy_evaluate_sized(config, observer, out, sizeof *out);
}

/* `size` is also the distance from one entry of the list to the next. */
hy_status hy_evaluate_each_sized(const hy_config *config, const hy_observer *observer,
                                 hy_evaluation **out, size_t *count, size_t size);
static inline hy_status hy_evaluate_each(const hy_config *config, const hy_observer *observer,
                                         hy_evaluation **out, size_t *count) {
    return hy_evaluate_each_sized(config, observer, out, count, sizeof **out);
}

hy_status hy_export_evaluate_sized(const char *checkpoint, const hy_export_options *options,
                                   const hy_merge_options *losses, const hy_observer *observer,
                                   hy_evaluation **out, size_t *count, size_t size);
static inline hy_status hy_export_evaluate(const char *checkpoint, const hy_export_options *options,
                                           const hy_merge_options *losses,
                                           const hy_observer *observer, hy_evaluation **out,
                                           size_t *count) {
    return hy_export_evaluate_sized(checkpoint, options, losses, observer, out, count,
                                    sizeof **out);
}

hy_status hy_evaluation_json_sized(const hy_evaluation *evaluation, size_t size, char **out);
static inline hy_status hy_evaluation_json(const hy_evaluation *evaluation, char **out) {
    return hy_evaluation_json_sized(evaluation, sizeof *evaluation, out);
}

hy_status hy_evaluations_json_sized(const hy_evaluation *list, size_t count, size_t size,
                                    char **out);
static inline hy_status hy_evaluations_json(const hy_evaluation *list, size_t count, char **out) {
    return hy_evaluations_json_sized(list, count, sizeof *list, out);
}

hy_status hy_merge_evaluate_sized(const char *checkpoint, const hy_merge_options *options,
                                  const hy_observer *observer, hy_evaluation *trained,
                                  hy_evaluation *folder, bool *has_folder, size_t size);
static inline hy_status hy_merge_evaluate(const char *checkpoint, const hy_merge_options *options,
                                          const hy_observer *observer, hy_merge_losses *out) {
    return hy_merge_evaluate_sized(checkpoint, options, observer, &out->trained, &out->folder,
                                   &out->has_folder, sizeof out->trained);
}

hy_status hy_download_sized(const char *name, const char *folder, const hy_observer *observer,
                            hy_downloaded *out, size_t size);
static inline hy_status hy_download(const char *name, const char *folder,
                                    const hy_observer *observer, hy_downloaded *out) {
    return hy_download_sized(name, folder, observer, out, sizeof *out);
}

hy_status hy_downloaded_json_sized(const hy_downloaded *downloaded, size_t size, char **out);
static inline hy_status hy_downloaded_json(const hy_downloaded *downloaded, char **out) {
    return hy_downloaded_json_sized(downloaded, sizeof *downloaded, out);
}

/* ---- 5. Summary and memory ------------------------------------------------------------------- */

void hy_trainer_summary_sized(const hy_trainer *trainer, hy_summary *out, size_t size);
static inline void hy_trainer_summary(const hy_trainer *trainer, hy_summary *out) {
    hy_trainer_summary_sized(trainer, out, sizeof *out);
}

bool hy_trainer_ranks_sized(const hy_trainer *trainer, hy_ranks_info *out, size_t size);
static inline bool hy_trainer_ranks(const hy_trainer *trainer, hy_ranks_info *out) {
    return hy_trainer_ranks_sized(trainer, out, sizeof *out);
}

bool hy_trainer_rank_sized(const hy_trainer *trainer, int32_t rank, hy_rank_cost *out, size_t size);
static inline bool hy_trainer_rank(const hy_trainer *trainer, int32_t rank, hy_rank_cost *out) {
    return hy_trainer_rank_sized(trainer, rank, out, sizeof *out);
}

hy_status hy_trainer_memory_sized(const hy_trainer *trainer, hy_memory_state *out, size_t size);
static inline hy_status hy_trainer_memory(const hy_trainer *trainer, hy_memory_state *out) {
    return hy_trainer_memory_sized(trainer, out, sizeof *out);
}

/* ---- 6. Custom models and loops -------------------------------------------------------------- */

hy_status hy_loop_next_sized(hy_loop *loop, hy_loop_step *out, size_t size);
static inline hy_status hy_loop_next(hy_loop *loop, hy_loop_step *out) {
    return hy_loop_next_sized(loop, out, sizeof *out);
}

hy_status hy_loop_exchange_sized(hy_loop *loop, void *const *grads, double loss, int64_t tokens,
                                 hy_loop_step *next, size_t next_size, hy_step_info *last,
                                 size_t last_size);
static inline hy_status hy_loop_exchange(hy_loop *loop, void *const *grads, double loss,
                                         int64_t tokens, hy_loop_step *next, hy_step_info *last) {
    return hy_loop_exchange_sized(loop, grads, loss, tokens, next, sizeof *next, last,
                                  sizeof *last);
}

bool hy_loop_last_sized(hy_loop *loop, hy_step_info *out, size_t size);
static inline bool hy_loop_last(hy_loop *loop, hy_step_info *out) {
    return hy_loop_last_sized(loop, out, sizeof *out);
}

hy_status hy_loop_state_sized(hy_loop *loop, int32_t parameter, int32_t index, hy_state_array *out,
                              size_t size);
static inline hy_status hy_loop_state(hy_loop *loop, int32_t parameter, int32_t index,
                                      hy_state_array *out) {
    return hy_loop_state_sized(loop, parameter, index, out, sizeof *out);
}

/* ---- 7. Ranks -------------------------------------------------------------------------------- */

hy_status hy_find_rank_sized(hy_rank_info *out, size_t size);
static inline hy_status hy_find_rank(hy_rank_info *out) {
    return hy_find_rank_sized(out, sizeof *out);
}

#endif
