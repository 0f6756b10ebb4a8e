/* data_rig.h: opens datasets in tests, and checks refusals. */
#ifndef HY_TESTS_DATA_RIG_H
#define HY_TESTS_DATA_RIG_H

#include "data/dataset.h"
#include "harness.h"

static inline hy_dataset *open_data(hy_dataset_options options) {
    hy_dataset *data;
    must(hy_dataset_open(&options, &data));
    return data;
}

#define must_refuse(options, fragment)                                                             \
    do {                                                                                           \
        hy_dataset_options refused_ = (options);                                                   \
        hy_dataset *none_;                                                                         \
        must_fail(hy_dataset_open(&refused_, &none_), HY_ERR_INPUT, fragment);                     \
        ck_assert_ptr_null(none_);                                                                 \
    } while (0)

#endif
