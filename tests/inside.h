/* inside.h: what a few tests do inside a run, because no call of hybrid.h and no machine that a
 * test can make up does it at a given moment. inside.c is the only file of the tests that knows the
 * trainer's and the engine's headers: when these change, it changes. */
#ifndef HY_TESTS_INSIDE_H
#define HY_TESTS_INSIDE_H

#include "hybrid.h"

/* Between steps: other micro-batches; the fastest plan within so many bytes of the device (0: as
 * before). They return what steering would see: HY_ERR_INPUT where there is none, HY_ERR_MEMORY
 * where nothing can be taken. */
hy_status inside_resize(hy_trainer *t, int64_t batch_size);
hy_status inside_replan(hy_trainer *t, uint64_t device_bytes);
/* What the device would hold with micro-batches of this size. */
hy_status inside_device_at(const hy_trainer *t, int64_t batch_size, uint64_t *bytes);
/* Sets a key of a run that continues; what is planned next follows it. */
void inside_set(hy_trainer *t, const char *key, const char *value);
/* What a run does with such a failure: it is saved where it can be, and the error says so. */
hy_status inside_give_up(hy_trainer *t, hy_status status);
/* Between steps: enters a phase by its row, and gives memory that rows lend meanwhile; NULL returns
 * to Full. The placement table gets the row's column. */
struct hy_phase_row;
hy_status inside_enter(hy_trainer *t, const struct hy_phase_row *row, void **lent, uint64_t *bytes);
/* Device bytes that were live at most in a phase, and that its column plans. */
void inside_phase_bytes(const hy_trainer *t, int phase, uint64_t *peak, uint64_t *planned);
/* Bytes that this rank has sent to others so far, all that was begun included. */
hy_status inside_bytes_sent(hy_trainer *t, uint64_t *bytes);

#endif
