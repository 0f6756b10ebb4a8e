/* fuzz_quant_state.c: the JSON that bitsandbytes keeps beside a matrix, of any bytes.
 *
 * Parsing gives a named error or a state whose numbers can be computed with: sizes whose products
 * fit, blocks that are whole ones of ours, an offset that is finite. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "hub/bnb.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_quant_state: %s: %s\n", what, hy_error_message());
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hy_bnb_state s;
    char *text = malloc(size ? size : 1); /* ends where the input does: one byte more is seen */
    require(text != NULL, "no memory");
    if (size) memcpy(text, data, size);
    if (hy_bnb_state_parse(text, size, "state", &s) == HY_OK) {
        require(s.rows > 0 && s.cols > 0 && s.rows <= INT64_MAX / s.cols, "sizes");
        require(s.repeat >= 1 && s.repeat <= 64, "blocks");
        require(isfinite(s.offset), "offset");
        require(s.dtype == HY_F32 || s.dtype == HY_BF16 || s.dtype == HY_F16, "type");
    } else {
        require(hy_error_message()[0] != 0, "a refusal without a word");
    }
    free(text);
    return 0;
}
