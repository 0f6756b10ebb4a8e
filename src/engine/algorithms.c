/* algorithms.c: all ranks use the same algorithms for their matmuls. See engine.h.
 *
 * Another algorithm means other bits. Algorithms are timed when a matmul is prepared, and times
 * differ from rank to rank: so rank 0 prepares first, and the others use its table. The backend
 * skips lines of another card; a rank that has another card times its own matmuls. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/engine.h"

hy_status hy_engine_share_algorithms(hy_engine *e) {
    hy_backend *b = e->device.backend;
    char *text = NULL;
    if (!e->team) return HY_OK;
    hy_control *control = e->team->control;
    bool leads = e->team->who.rank == 0;
    if (leads && b->matmul_table) HY_TRY(b->matmul_table(b, &text));
    uint64_t size = text ? strlen(text) : 0;
    hy_status status = hy_control_share(control, &size, sizeof size, 0);
    if (status == HY_OK && !leads) {
        text = calloc(1, (size_t)size + 1);
        if (!text) status = hy_fail(HY_ERR_MEMORY, "not enough memory for a table of algorithms");
    }
    if (status == HY_OK && size > 0) status = hy_control_share(control, text, (size_t)size, 0);
    if (status == HY_OK && !leads && b->load_matmul_table) status = b->load_matmul_table(b, text);
    free(text);
    return status;
}

hy_status hy_engine_prepare_first(hy_engine *e) {
    return e->team && e->team->who.rank == 0 ? hy_work_prepare(e) : HY_OK;
}
