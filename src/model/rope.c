/* rope.c: frequencies of rotary positions, as transformers computes them. See shape.h. */
#include <math.h>
#include <string.h>

#include "model/shape.h"

hy_rope_table hy_shape_rope(const hy_shape *s, int32_t layer) {
    const char *letters = s->more.rope.layers;
    size_t count = strlen(letters);
    if (!s->has_rope || (count > 0 && letters[(size_t)layer % count] == 'n')) return HY_ROPE_ABSENT;
    bool differs = s->more.rope.local_theta > 0 || s->more.rope.scales_full_only;
    return differs && hy_shape_window(s, layer) ? HY_ROPE_LOCAL : HY_ROPE_FULL;
}

int32_t hy_shape_rotary(const hy_shape *s) {
    double share = s->more.rope.share;
    return share > 0 ? (int32_t)(share * s->head_size) : s->head_size;
}

int hy_shape_rope_count(const hy_shape *s) {
    return s->more.rope.local_theta > 0 || s->more.rope.scales_full_only ? 2 : 1;
}

int64_t hy_shape_rope_floats(const hy_shape *s, int32_t seq) {
    if (!s->has_rope) return 0;
    int64_t floats = (int64_t)hy_shape_rope_count(s) * hy_shape_rotary(s);
    return (floats + (s->more.rope.query_beta > 0)) * seq;
}

/* ---- scaled frequencies ----------------------------------------------------------------------- */

/* Unchanged above high_freq turns per original context, divided by the factor below low_freq turns,
 * blended between. */
static double scale_llama3(const hy_shape *s, double frequency) {
    double turns = s->rope_original_context * frequency / (2 * M_PI);
    if (turns > s->rope_high_freq) return frequency;
    if (turns < s->rope_low_freq) return frequency / s->rope_factor;
    double blend = (turns - s->rope_low_freq) / (s->rope_high_freq - s->rope_low_freq);
    return (1 - blend) * frequency / s->rope_factor + blend * frequency;
}

/* The pair that makes this many turns in the original context. */
static double pair_with(const hy_shape *s, double turns, double theta) {
    double rotary = hy_shape_rotary(s);
    return rotary * log(s->rope_original_context / (turns * 2 * M_PI)) / (2 * log(theta));
}

/* Unchanged up to the pair with beta_fast turns, divided by the factor from the one with beta_slow
 * turns on, blended between. */
static double scale_yarn(const hy_shape *s, int32_t pair, double theta, double frequency) {
    const hy_rope_options *o = &s->more.rope;
    double low = pair_with(s, o->beta_fast > 0 ? o->beta_fast : 32, theta);
    double high = pair_with(s, o->beta_slow > 0 ? o->beta_slow : 1, theta);
    if (!o->is_untruncated) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, hy_shape_rotary(s) - 1);
    if (low == high) high += 0.001;
    double ramp = fmin(fmax((pair - low) / (high - low), 0), 1);
    return ramp * frequency / s->rope_factor + (1 - ramp) * frequency;
}

static double yarn_mscale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

double hy_shape_rope_attention(const hy_shape *s) {
    const hy_rope_options *o = &s->more.rope;
    if (o->attention_factor > 0) return o->attention_factor;
    if (s->rope_scaling == HY_ROPE_SCALED_LONGROPE) {
        return s->rope_factor <= 1 ? 1
                                   : sqrt(1 + log(s->rope_factor) / log(s->rope_original_context));
    }
    if (s->rope_scaling != HY_ROPE_SCALED_YARN) return 1;
    if (o->mscale > 0 && o->mscale_all_dim > 0) {
        return yarn_mscale(s->rope_factor, o->mscale) /
               yarn_mscale(s->rope_factor, o->mscale_all_dim);
    }
    return yarn_mscale(s->rope_factor, 1);
}

/* Beyond the original context, the base grows with the length. */
static double dynamic_theta(const hy_shape *s, int32_t seq, double theta) {
    double rotary = hy_shape_rotary(s), original = s->rope_original_context;
    double length = fmax(seq, original);
    double growth = s->rope_factor * length / original - (s->rope_factor - 1);
    return theta * pow(growth, rotary / (rotary - 2));
}

static double frequency_of(const hy_shape *s, int32_t seq, int32_t pair, double theta,
                           bool is_scaled) {
    hy_rope_scaling scaling = is_scaled ? s->rope_scaling : HY_ROPE_UNSCALED;
    if (scaling == HY_ROPE_SCALED_DYNAMIC) theta = dynamic_theta(s, seq, theta);
    double plain = pow(theta, -2.0 * pair / hy_shape_rotary(s));
    const hy_rope_options *o = &s->more.rope;
    bool is_long = seq > s->rope_original_context;
    switch (scaling) {
    case HY_ROPE_SCALED_LLAMA3: return scale_llama3(s, plain);
    case HY_ROPE_SCALED_LINEAR: return plain / s->rope_factor;
    case HY_ROPE_SCALED_YARN: return scale_yarn(s, pair, theta, plain);
    case HY_ROPE_SCALED_LONGROPE:
        return plain / (is_long ? o->long_factors[pair] : o->short_factors[pair]);
    case HY_ROPE_UNSCALED:
    case HY_ROPE_SCALED_DYNAMIC: break;
    }
    return plain;
}

double hy_shape_rope_divisor(const hy_shape *s, int32_t seq, int32_t pair) {
    return frequency_of(s, seq, pair, s->rope_theta, false) /
           frequency_of(s, seq, pair, s->rope_theta, true);
}

/* ---- tables ----------------------------------------------------------------------------------- */

static void fill_table(const hy_shape *s, int32_t seq, double theta, bool is_scaled, float *table) {
    int32_t half = hy_shape_rotary(s) / 2;
    double factor = is_scaled ? hy_shape_rope_attention(s) : 1;
    for (int32_t i = 0; i < half; i++) {
        double frequency = frequency_of(s, seq, i, theta, is_scaled);
        for (int32_t t = 0; t < seq; t++) {
            table[((int64_t)t * half + i) * 2] = (float)(factor * cos(t * frequency));
            table[((int64_t)t * half + i) * 2 + 1] = (float)(factor * sin(t * frequency));
        }
    }
}

void hy_shape_rope_tables(const hy_shape *s, int32_t seq, float *tables) {
    const hy_rope_options *o = &s->more.rope;
    int64_t floats = (int64_t)seq * hy_shape_rotary(s);
    fill_table(s, seq, s->rope_theta, true, tables);
    tables += floats;
    if (hy_shape_rope_count(s) == 2) {
        double theta = o->local_theta > 0 ? o->local_theta : s->rope_theta;
        fill_table(s, seq, theta, !o->scales_full_only, tables);
        tables += floats;
    }
    for (int32_t t = 0; t < seq && o->query_beta > 0; t++) {
        tables[t] = (float)(1 + o->query_beta * log(1 + (double)(t / s->rope_original_context)));
    }
}
