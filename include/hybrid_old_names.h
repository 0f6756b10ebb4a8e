/* hybrid_old_names.h: old names of renamed functions, types and constants. Part of hybrid.h until
 * version 0.3.
 *
 * hybrid.h includes this file unless a program defines HYBRID_NO_OLD_NAMES. With that definition
 * the compiler reports every old name that the program still uses. */
#ifndef HYBRID_OLD_NAMES_H
#define HYBRID_OLD_NAMES_H

#define hy_config_use_own hy_config_use_custom
#define hy_own_parameters hy_custom_parameters
#define hy_own_model hy_custom_model
#define hy_trainer_create_own hy_trainer_create_custom
#define hy_trainer_plan_own hy_trainer_plan_custom
#define hy_trainer_plan_own_ranks hy_trainer_plan_custom_ranks
#define HY_CHECK_TOLD HY_CHECK_REPORTED

#endif
