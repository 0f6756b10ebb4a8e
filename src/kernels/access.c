/* access.c: one letter per tensor position of each op. See access.h.
 *
 * r: read, w: written, b: both. A gradient that may be added to counts as written: the sum
 * belongs to whoever asked for it. */
#include "kernels/access.h"

#include <assert.h>
#include <string.h>

static const char *const access_letters[HY_OP_COUNT] = {
    [HY_OP_MATMUL] = "rrwrrwr",
    [HY_OP_BIAS_GRAD] = "rw",
    [HY_OP_NORM] = "rrrwww",
    [HY_OP_NORM_BWD] = "rrrrrrwww",
    [HY_OP_HEAD_NORM] = "rrrww",
    [HY_OP_HEAD_NORM_BWD] = "rrrrrwww",
    [HY_OP_ROPE] = "br",
    [HY_OP_ATTENTION] = "rrww",
    [HY_OP_ATTENTION_BWD] = "rrrrrw",
    [HY_OP_ATTENTION_CACHED] = "rbw",
    [HY_OP_GELU] = "rw",
    [HY_OP_GELU_BWD] = "rrw",
    [HY_OP_SWIGLU] = "rw",
    [HY_OP_SWIGLU_BWD] = "rrww",
    [HY_OP_EMBED] = "rrrwr",
    [HY_OP_EMBED_BWD] = "rrwwr",
    [HY_OP_CROSS_ENTROPY] = "brw",
    [HY_OP_SUM] = "rw",
    [HY_OP_SQ_NORM] = "rw",
    [HY_OP_CLIP] = "rw",
    [HY_OP_ADAMW] = "brbbrb",
    [HY_OP_SGD] = "brbrb",
    [HY_OP_CAST] = "rw",
    [HY_OP_FILL] = "w",
    [HY_OP_COMBINE] = "wrrr",
    [HY_OP_DIFF_DOT] = "rrrrw",
    [HY_OP_QUANTIZE] = "rww",
    [HY_OP_DEQUANTIZE] = "rrw",
};

int hy_op_access(hy_op_kind kind, int position) {
    assert((size_t)kind < HY_OP_COUNT && position >= 0);
    const char *letters = access_letters[kind];
    if ((size_t)position >= strlen(letters)) return HY_ACCESS_NONE;
    switch (letters[position]) {
    case 'r': return HY_ACCESS_READ;
    case 'w': return HY_ACCESS_WRITE;
    default: return HY_ACCESS_BOTH;
    }
}
