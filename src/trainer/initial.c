/* initial.c: new weights, made on the host by several threads and sent to the device. See trainer.h.
 *
 * Each number is a pure function of the seed and its place, so neither the number of threads nor the
 * pieces they take change a bit. */
#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"
#include "kernels/cpu/machine.h"
#include "trainer/trainer.h"

#define PIECE (4 << 20)    /* elements made and sent at a time */
#define MOST_THREADS 16    /* more than this many only wait for memory */
#define SLOW_ELEMENTS 50e6 /* from here on it takes long enough to be told of */

typedef struct share {
    const hy_param *param;
    uint64_t seed;
    int64_t first, count;
    float *out;
} share;

static void *make_share(void *argument) {
    const share *s = argument;
    hy_param_initial(s->param, s->seed, s->first, s->count, s->out);
    return NULL;
}

/* Elements [first, first + count) of a parameter into `out`. A thread that cannot be had does not
 * matter: the caller makes its share. */
static void make_piece(const share *whole, int threads) {
    pthread_t thread[MOST_THREADS];
    share part[MOST_THREADS];
    bool runs[MOST_THREADS] = {false};
    for (int i = 0; i < threads; i++) {
        int64_t begin = whole->count * i / threads, end = whole->count * (i + 1) / threads;
        part[i] = *whole;
        part[i].first += begin;
        part[i].count = end - begin;
        part[i].out += begin;
        if (i > 0) runs[i] = pthread_create(&thread[i], NULL, make_share, &part[i]) == 0;
    }
    for (int i = 0; i < threads; i++) {
        if (!runs[i]) make_share(&part[i]);
    }
    for (int i = 0; i < threads; i++) {
        if (runs[i]) pthread_join(thread[i], NULL);
    }
}

static int thread_count(const hy_trainer *t) {
    int64_t asked = t->settings.threads ? t->settings.threads : hy_machine_threads();
    return asked > MOST_THREADS ? MOST_THREADS : (int)asked;
}

static void tell(const hy_trainer *t, int64_t done) {
    double elements = (double)t->model->params.elements;
    if (!t->observer.on_progress || elements < SLOW_ELEMENTS) return;
    t->observer.on_progress(t->observer.user, "initialising weights", (double)done / elements);
}

static hy_status initialise(hy_trainer *t, int32_t item, float *staging) {
    const hy_param *param = &t->model->params.list[item];
    char *home = hy_store_home(&t->weights, item);
    for (int64_t first = 0; first < param->count; first += PIECE) {
        int64_t count = param->count - first < PIECE ? param->count - first : PIECE;
        share whole = {param, (uint64_t)t->settings.seed, first, count, staging};
        make_piece(&whole, count < PIECE / 16 ? 1 : thread_count(t));
        HY_TRY(t->backend->copy(t->compute, home + (size_t)first * sizeof *staging, staging,
                                (size_t)count * sizeof *staging));
        HY_TRY(t->backend->stream_sync(t->compute));
        tell(t, param->first + first + count);
    }
    return HY_OK;
}

hy_status hy_trainer_initialise_weights(hy_trainer *t) {
    float *staging = malloc(PIECE * sizeof *staging);
    if (!staging) return hy_fail(HY_ERR_MEMORY, "no memory for initial weights");
    hy_status status = HY_OK;
    for (int32_t i = 0; i < t->model->params.count && status == HY_OK; i++) {
        status = initialise(t, i, staging);
    }
    free(staging);
    return status;
}
