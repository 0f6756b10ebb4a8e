/* llama2c.h: the llama2.c v0 format, a Llama in one file.
 *
 *   int32 x 7: width, mlp width, layers, heads, kv heads, vocabulary (negative: own head), context
 *   fp32, kind by kind, each for all layers: token table, norm1, wq, wk, wv, wo, norm2, w1 (gate),
 *   w2 (down), w3 (up), final norm, cosines and sines (context, D/2 each), and its own head if any
 *
 * Rows of wq and wk are rotated in neighbouring pairs (2i, 2i+1), ours in halves (i, i + D/2):
 * readers reorder the rows. There is no magic number: a file is accepted if its sizes are those of
 * a model and its length is exactly what these sizes need. */
#pragma once

#include "base/file.h"

typedef enum hy_llama2c_kind {
    HY_L2C_TOKENS,
    HY_L2C_NORM1,
    HY_L2C_WQ,
    HY_L2C_WK,
    HY_L2C_WV,
    HY_L2C_WO,
    HY_L2C_NORM2,
    HY_L2C_GATE,
    HY_L2C_DOWN,
    HY_L2C_UP,
    HY_L2C_FINAL_NORM,
    HY_L2C_COS,
    HY_L2C_SIN,
    HY_L2C_HEAD,
    HY_L2C_KINDS
} hy_llama2c_kind;

typedef struct hy_llama2c {
    hy_reader *reader;
    int32_t width, mlp_width, layers, heads, kv_heads, vocab, context;
    bool has_own_head;
    uint64_t offset[HY_L2C_KINDS]; /* where the tensor of the first layer begins, in bytes */
    uint64_t layer[HY_L2C_KINDS];  /* bytes of the tensor of one layer */
} hy_llama2c;

bool hy_llama2c_is_file(const char *path); /* leaves no message */
/* HY_ERR_INPUT names what is wrong with sizes or length. */
hy_status hy_llama2c_open(const char *path, hy_llama2c *out);
void hy_llama2c_close(hy_llama2c *file);
