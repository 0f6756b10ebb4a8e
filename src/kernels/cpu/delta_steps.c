/* delta_steps.c: the steps of delta_steps.h, written once with vector types and compiled for each
 * vector width of the machine.
 *
 * A sum over rows has its order by the width alone. Loops keep eight sums in registers, which hides
 * the time of a multiply-add. */
#include "kernels/cpu/delta_steps.h"

#include <stdbool.h>

#include "kernels/cpu/lanes.h"

/* Whether a token applies its decay as s + change s. */
static inline bool keeps_state(const hy_delta_token *t) { return t->decay > 0.5f; }

#define INLINE static inline __attribute__((always_inline))

/* TALL: vectors of a column that a loop over columns keeps in registers. */
enum { COLS = HY_DELTA_COLS, BACK = HY_DELTA_BACK_COLS, SUMS = 8, TALL = 4 };

#define DEFINE_STEPS(NAME, TARGET, LANES)                                                          \
    typedef float NAME##_vector __attribute__((vector_size(4 * (LANES)), aligned(4)));             \
    typedef int32_t NAME##_index __attribute__((vector_size(4 * (LANES))));                        \
    enum { NAME##_wide = COLS / (LANES), NAME##_rows = SUMS / NAME##_wide };                       \
                                                                                                   \
    TARGET INLINE void NAME##_forward_as(bool keeps, const hy_delta_token *t, int64_t rows,        \
                                         float *state, float *out) {                               \
        NAME##_vector sum[NAME##_rows][NAME##_wide], write[NAME##_wide];                           \
        const NAME##_vector *v = (const NAME##_vector *)t->v;                                      \
        const float *q = t->q, *k = t->k, factor = keeps ? t->change : t->decay;                   \
        HY_UNROLLED for (int c = 0; c < NAME##_wide; c++) {                                        \
            HY_UNROLLED for (int a = 0; a < NAME##_rows; a++) sum[a][c] = (NAME##_vector){0};      \
        }                                                                                          \
        for (int64_t r = 0; r < rows; r += NAME##_rows) {                                          \
            HY_UNROLLED for (int a = 0; a < NAME##_rows; a++) {                                    \
                const NAME##_vector *s = (const NAME##_vector *)(state + (r + a) * COLS);          \
                HY_UNROLLED for (int c = 0; c < NAME##_wide; c++) sum[a][c] += k[r + a] * s[c];    \
            }                                                                                      \
        }                                                                                          \
        HY_UNROLLED for (int c = 0; c < NAME##_wide; c++) {                                        \
            HY_UNROLLED for (int a = 1; a < NAME##_rows; a++) sum[0][c] += sum[a][c];              \
            if (keeps)                                                                             \
                sum[0][c] += factor * sum[0][c];                                                   \
            else                                                                                   \
                sum[0][c] *= factor;                                                               \
            write[c] = t->strength * (v[c] - sum[0][c]);                                           \
            HY_UNROLLED for (int a = 0; a < NAME##_rows; a++) sum[a][c] = (NAME##_vector){0};      \
        }                                                                                          \
        for (int64_t r = 0; r < rows; r += NAME##_rows) {                                          \
            HY_UNROLLED for (int a = 0; a < NAME##_rows; a++) {                                    \
                NAME##_vector *s = (NAME##_vector *)(state + (r + a) * COLS);                      \
                HY_UNROLLED for (int c = 0; c < NAME##_wide; c++) {                                \
                    NAME##_vector x = k[r + a] * write[c];                                         \
                    if (keeps) x += s[c];                                                          \
                    x += factor * s[c];                                                            \
                    sum[a][c] += q[r + a] * x;                                                     \
                    s[c] = x;                                                                      \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        HY_UNROLLED for (int c = 0; c < NAME##_wide; c++) {                                        \
            HY_UNROLLED for (int a = 1; a < NAME##_rows; a++) sum[0][c] += sum[a][c];              \
            ((NAME##_vector *)out)[c] = sum[0][c];                                                 \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    TARGET static void NAME##_forward(const hy_delta_token *t, int64_t rows, float *state,         \
                                      float *out) {                                                \
        if (keeps_state(t))                                                                        \
            NAME##_forward_as(true, t, rows, state, out);                                          \
        else                                                                                       \
            NAME##_forward_as(false, t, rows, state, out);                                         \
    }                                                                                              \
                                                                                                   \
    /* Adds the lanes of BACK vectors; the sums become the first BACK floats. */                   \
    TARGET static void NAME##_add_lanes(NAME##_vector *v) {                                        \
        HY_UNROLLED for (int n = BACK; n > BACK / (LANES); n /= 2) {                               \
            HY_UNROLLED for (int i = 0; 2 * i < n; i++) {                                          \
                NAME##_vector x = v[2 * i], y = v[2 * i + 1];                                      \
                v[i] = HY_ADD_NEIGHBOURS(NAME##_index, x, y, LANES);                               \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* Adds k' s for each column, in lanes: rows [row, row + tall LANES). */                       \
    TARGET INLINE void NAME##_known(const float *k, const float *state, int64_t rows, int64_t row, \
                                    int tall, NAME##_vector *sums) {                               \
        NAME##_vector of_k[TALL];                                                                  \
        HY_UNROLLED for (int i = 0; i < tall; i++) {                                               \
            of_k[i] = ((const NAME##_vector *)(k + row))[i];                                       \
        }                                                                                          \
        for (int c = 0; c < BACK; c++) {                                                           \
            const NAME##_vector *s = (const NAME##_vector *)(state + c * rows + row);              \
            HY_UNROLLED for (int i = 0; i < tall; i++) sums[c] += of_k[i] * s[i];                  \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    TARGET INLINE void NAME##_advance_as(bool keeps, const hy_delta_token *t, int64_t rows,        \
                                         const float *before, float *after, float *error) {        \
        NAME##_vector sums[BACK], *missing = (NAME##_vector *)error;                               \
        const NAME##_vector *v = (const NAME##_vector *)t->v;                                      \
        const float factor = keeps ? t->change : t->decay;                                         \
        int64_t r = 0;                                                                             \
        for (int c = 0; c < BACK; c++) sums[c] = (NAME##_vector){0};                               \
        for (; r + TALL * (LANES) <= rows; r += TALL * (LANES)) {                                  \
            NAME##_known(t->k, before, rows, r, TALL, sums);                                       \
        }                                                                                          \
        for (; r < rows; r += (LANES)) NAME##_known(t->k, before, rows, r, 1, sums);               \
        NAME##_add_lanes(sums);                                                                    \
        for (int c = 0; c < BACK / (LANES); c++) {                                                 \
            missing[c] = v[c] - factor * sums[c];                                                  \
            if (keeps) missing[c] -= sums[c];                                                      \
        }                                                                                          \
        for (int c = 0; c < BACK; c++) {                                                           \
            const float *s = before + c * rows, write = t->strength * error[c];                    \
            float *to = after + c * rows;                                                          \
            for (r = 0; r < rows; r += (LANES)) {                                                  \
                NAME##_vector x = write * *(const NAME##_vector *)(t->k + r);                      \
                if (keeps) x += *(const NAME##_vector *)(s + r);                                   \
                *(NAME##_vector *)(to + r) = x + factor * *(const NAME##_vector *)(s + r);         \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    TARGET static void NAME##_advance(const hy_delta_token *t, int64_t rows, const float *before,  \
                                      float *after, float *error) {                                \
        if (keeps_state(t))                                                                        \
            NAME##_advance_as(true, t, rows, before, after, error);                                \
        else                                                                                       \
            NAME##_advance_as(false, t, rows, before, after, error);                               \
    }                                                                                              \
                                                                                                   \
    /* G += q dout', dq += S dout, and G' k in lanes. */                                           \
    TARGET INLINE void NAME##_read_back(const hy_delta_back *b, int64_t rows, int64_t row,         \
                                        int tall, NAME##_vector *du) {                             \
        NAME##_vector q[TALL], k[TALL], dq[TALL];                                                  \
        HY_UNROLLED for (int i = 0; i < tall; i++) {                                               \
            q[i] = ((const NAME##_vector *)(b->token.q + row))[i];                                 \
            k[i] = ((const NAME##_vector *)(b->token.k + row))[i];                                 \
            dq[i] = ((const NAME##_vector *)(b->dq + row))[i];                                     \
        }                                                                                          \
        for (int c = 0; c < BACK; c++) {                                                           \
            const NAME##_vector *s = (const NAME##_vector *)(b->after + c * rows + row);           \
            NAME##_vector *g = (NAME##_vector *)(b->gradient + c * rows + row);                    \
            float dout = b->dout[c];                                                               \
            HY_UNROLLED for (int i = 0; i < tall; i++) {                                           \
                NAME##_vector x = g[i] + dout * q[i];                                              \
                dq[i] += dout * s[i];                                                              \
                du[c] += k[i] * x;                                                                 \
                g[i] = x;                                                                          \
            }                                                                                      \
        }                                                                                          \
        HY_UNROLLED for (int i = 0; i < tall; i++)((NAME##_vector *)(b->dq + row))[i] = dq[i];     \
    }                                                                                              \
                                                                                                   \
    /* dk += G u - S' dv, G -= k dv', <G, S'> in lanes, G = decay G; for S' = decay S. */          \
    TARGET INLINE void NAME##_write_back(bool keeps, const hy_delta_back *b, int64_t rows,         \
                                         int64_t row, int tall, NAME##_vector *dlog) {             \
        NAME##_vector k[TALL], dk[TALL], along[TALL];                                              \
        float decay = b->token.decay, factor = keeps ? b->token.change : decay;                    \
        HY_UNROLLED for (int i = 0; i < tall; i++) {                                               \
            k[i] = ((const NAME##_vector *)(b->token.k + row))[i];                                 \
            dk[i] = ((const NAME##_vector *)(b->dk + row))[i];                                     \
            along[i] = (NAME##_vector){0};                                                         \
        }                                                                                          \
        for (int c = 0; c < BACK; c++) {                                                           \
            const NAME##_vector *s = (const NAME##_vector *)(b->before + c * rows + row);          \
            NAME##_vector *g = (NAME##_vector *)(b->gradient + c * rows + row);                    \
            float u = b->token.strength * b->error[c], dv = b->dv[c], of_s = decay * dv;           \
            HY_UNROLLED for (int i = 0; i < tall; i++) {                                           \
                NAME##_vector x = g[i] - dv * k[i];                                                \
                dk[i] += u * g[i];                                                                 \
                dk[i] -= of_s * s[i];                                                              \
                along[i] += x * s[i];                                                              \
                g[i] = keeps ? x + factor * x : factor * x;                                        \
            }                                                                                      \
        }                                                                                          \
        HY_UNROLLED for (int i = 0; i < tall; i++) {                                               \
            ((NAME##_vector *)(b->dk + row))[i] = dk[i];                                           \
            *dlog += along[i];                                                                     \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    TARGET INLINE void NAME##_back_as(bool keeps, hy_delta_back *b, int64_t rows) {                \
        NAME##_vector du[BACK], dlog = {0};                                                        \
        const float *of_u = (const float *)du;                                                     \
        float dstrength = 0, sum = 0;                                                              \
        int64_t r = 0;                                                                             \
        for (int c = 0; c < BACK; c++) du[c] = (NAME##_vector){0};                                 \
        for (; r + TALL * (LANES) <= rows; r += TALL * (LANES)) {                                  \
            NAME##_read_back(b, rows, r, TALL, du);                                                \
        }                                                                                          \
        for (; r < rows; r += (LANES)) NAME##_read_back(b, rows, r, 1, du);                        \
        NAME##_add_lanes(du);                                                                      \
        for (int c = 0; c < BACK; c++) {                                                           \
            b->dv[c] = b->token.strength * of_u[c];                                                \
            dstrength += of_u[c] * b->error[c];                                                    \
        }                                                                                          \
        for (r = 0; r + TALL * (LANES) <= rows; r += TALL * (LANES)) {                             \
            NAME##_write_back(keeps, b, rows, r, TALL, &dlog);                                     \
        }                                                                                          \
        for (; r < rows; r += (LANES)) NAME##_write_back(keeps, b, rows, r, 1, &dlog);             \
        for (int i = 0; i < (LANES); i++) sum += dlog[i];                                          \
        b->dstrength = dstrength;                                                                  \
        b->dlog = b->token.decay * sum;                                                            \
    }                                                                                              \
                                                                                                   \
    TARGET static void NAME##_back(hy_delta_back *b, int64_t rows) {                               \
        if (keeps_state(&b->token))                                                                \
            NAME##_back_as(true, b, rows);                                                         \
        else                                                                                       \
            NAME##_back_as(false, b, rows);                                                        \
    }                                                                                              \
                                                                                                   \
    static const hy_delta_steps NAME = {NAME##_forward, NAME##_advance, NAME##_back};

#if defined(__x86_64__)
DEFINE_STEPS(steps_sse, , 4)
DEFINE_STEPS(steps_avx2, __attribute__((target("avx2,fma"))), 8)
DEFINE_STEPS(steps_avx512, __attribute__((target("avx512f,fma"))), 16)

const hy_delta_steps *hy_delta_steps_get(void) {
    if (__builtin_cpu_supports("avx512f")) return &steps_avx512;
    bool has_fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return has_fma ? &steps_avx2 : &steps_sse;
}
#else
DEFINE_STEPS(steps_128, , 4)

const hy_delta_steps *hy_delta_steps_get(void) { return &steps_128; }
#endif
