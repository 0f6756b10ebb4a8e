/* algorithms.c: all ranks use the same algorithms for their matmuls. See engine.h.
 *
 * Another algorithm means other bits. Algorithms are timed when a matmul is prepared, and times
 * differ from rank to rank: so rank 0 prepares first, and the others use its table. The backend
 * skips lines of another card; a rank that has another card times its own matmuls. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/engine.h"

/* The table of rank 0 on every rank; allocated. */
static hy_status share_table(hy_engine *e, char **text) {
    hy_control *control = e->team->control;
    bool is_own = e->team->who.rank == 0;
    uint64_t size = is_own && *text ? strlen(*text) : 0;
    HY_TRY(hy_control_share(control, &size, sizeof size, 0));
    if (!is_own) *text = calloc(1, (size_t)size + 1);
    HY_FAIL_IF(!is_own && !*text, HY_ERR_MEMORY, "no memory for a table of algorithms");
    return size > 0 ? hy_control_share(control, *text, (size_t)size, 0) : HY_OK;
}

hy_status hy_engine_share_algorithms(hy_engine *e) {
    hy_backend *b = e->device.backend;
    bool leads = e->team && e->team->who.rank == 0;
    char *text = NULL;
    if (!e->team) return HY_OK;
    if (leads && b->matmul_table) HY_TRY(b->matmul_table(b, &text));
    hy_status status = share_table(e, &text);
    if (status == HY_OK && !leads && b->load_matmul_table) status = b->load_matmul_table(b, text);
    free(text);
    return status;
}

hy_status hy_engine_prepare_first(hy_engine *e) {
    return e->team && e->team->who.rank == 0 ? hy_work_prepare(e) : HY_OK;
}
