/* fake_card.h: a card without a card: the CPU backend behind a device memory that the host cannot
 * touch.
 *
 * A device pointer lies in pages that nobody may read or write; ops and copies are handed over with
 * the address of the true bytes. Whoever follows a device pointer on the host dies on the spot, as
 * with a real card. A test program that includes this is linked with this hy_cuda_backend_create
 * instead of the library's. */
#ifndef HY_TESTS_FAKE_CARD_H
#define HY_TESTS_FAKE_CARD_H

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "harness.h"
#include "kernels/kernels.h"

#define CARD_BYTES ((size_t)1 << 30)
#define CARD_TABLE "one line of a fake card\n"

static struct {
    hy_backend cpu;      /* its functions, as they were */
    char *shown, *truth; /* device addresses, and where the bytes are */
    size_t used, live;   /* addresses given out; bytes that are not given back */
    /* what a test may choose and see */
    size_t others;                   /* bytes that other programs hold */
    size_t hidden;                   /* bytes that cannot be had, which nobody tells */
    int refused_launches;            /* the next so many */
    int64_t takings, refused_taking; /* allocations so far, and the one that is refused; 0: none */
    int capability;
    size_t memory_free;
    hy_cuda_options options;
    double fp8_seconds; /* that a matmul in fp8 takes where others take 1; 0: nothing is timed */
    char name[64];      /* "": that of a H200 */
    char table[64];     /* what was chosen here; "": CARD_TABLE */
    char loaded[256];   /* text of the last load_matmul_table */
    int64_t prepared_before_load;
    /* Where weights in fp32 live on the card: what the first norm of all read, and the last one. */
    float *norm_weight, *last_norm_weight;
} card = {.capability = 90, .memory_free = CARD_BYTES};

static void *card_true(const void *p) {
    const char *at = p;
    bool is_ours = at >= card.shown && at < card.shown + CARD_BYTES;
    return is_ours ? card.truth + (at - card.shown) : (void *)p;
}

static hy_status card_alloc(hy_backend *b, hy_place place, size_t bytes, void **out) {
    if (++card.takings == card.refused_taking) {
        return hy_fail(HY_ERR_MEMORY, "allocation %lld is refused", (long long)card.takings);
    }
    if (place != HY_DEVICE) return card.cpu.alloc(b, place, bytes, out);
    bytes = (bytes + 255) / 256 * 256;
    size_t taken = card.live + card.others + card.hidden;
    if (bytes > CARD_BYTES - card.used || taken + bytes > card.memory_free) {
        return hy_fail(HY_ERR_MEMORY, "%zu bytes of device memory could not be allocated", bytes);
    }
    *out = card.shown + card.used;
    card.used += bytes;
    card.live += bytes;
    return HY_OK;
}

static void card_release(hy_backend *b, hy_place place, void *data, size_t bytes) {
    if (place != HY_DEVICE) {
        card.cpu.release(b, place, data, bytes);
    } else {
        card.live -= (bytes + 255) / 256 * 256;
    }
}

static hy_status card_memory_now(hy_backend *b, size_t *free_bytes, size_t *total) {
    (void)b;
    size_t taken = card.live + card.others;
    *free_bytes = taken < card.memory_free ? card.memory_free - taken : 0;
    *total = CARD_BYTES;
    return HY_OK;
}

static hy_status card_copy(hy_stream *s, void *dst, const void *src, size_t bytes) {
    return card.cpu.copy(s, card_true(dst), card_true(src), bytes);
}

static hy_status card_enqueue(hy_stream *s, const hy_op_call *call) {
    hy_op_call true_call = *call;
    if (card.refused_launches > 0) {
        card.refused_launches--;
        return hy_fail(HY_ERR_MEMORY, "the launch failed");
    }
    if (call->kind == HY_OP_NORM) {
        card.last_norm_weight = card_true(call->t[HY_NORM_WEIGHT].data);
        if (!card.norm_weight) card.norm_weight = card.last_norm_weight;
    }
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        true_call.t[i].data = card_true(call->t[i].data);
        true_call.t[i].quant.scale = card_true(call->t[i].quant.scale);
    }
    true_call.workspace.data = card_true(call->workspace.data);
    return card.cpu.enqueue(s, &true_call);
}

static hy_status card_prepare(hy_backend *b, hy_op_call *call) {
    if (!card.loaded[0]) card.prepared_before_load++;
    return card.cpu.prepare(b, call);
}

static double card_op_seconds(hy_backend *b, const hy_op_call *call) {
    (void)b;
    if (call->kind != HY_OP_MATMUL) return 0.01;
    return hy_is_fp8(call->t[HY_MATMUL_A].dtype) ? card.fp8_seconds : 1;
}

static hy_status card_table(hy_backend *b, char **text) {
    (void)b;
    *text = strdup(card.table[0] ? card.table : CARD_TABLE);
    return HY_OK;
}

static hy_status card_load_table(hy_backend *b, const char *text) {
    (void)b;
    snprintf(card.loaded, sizeof card.loaded, "%s", text);
    return HY_OK;
}

static void card_destroy(hy_backend *b) {
    card.cpu.destroy(b);
    munmap(card.shown, CARD_BYTES);
    munmap(card.truth, CARD_BYTES);
    free(b);
}

static char *card_map(int protection) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *data = mmap(NULL, CARD_BYTES, protection, flags, -1, 0);
    ck_assert_ptr_ne(data, MAP_FAILED);
    return data;
}

static void card_describe(hy_device_facts *facts) {
    snprintf(facts->name, sizeof facts->name, "%s", card.name[0] ? card.name : "NVIDIA H200");
    facts->is_gpu = true;
    facts->capability = card.capability;
    facts->memory_total = CARD_BYTES;
    facts->memory_free = card.memory_free - card.others;
    facts->matmul_flops = 1e12;
    facts->warning[0] = 0;
}

hy_status hy_cuda_backend_create(const hy_cuda_options *options, hy_backend **out) {
    hy_backend *cpu, *b = malloc(sizeof *b);
    *out = NULL;
    card.options = *options;
    if (options->device > 0) {
        free(b);
        return hy_fail(HY_ERR_DEVICE, "there is no CUDA device %d; accepted is 0", options->device);
    }
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 2}, &cpu));
    card.cpu = *b = *cpu;
    card.used = card.live = card.prepared_before_load = 0;
    card.loaded[0] = 0;
    card.norm_weight = card.last_norm_weight = NULL;
    card.shown = card_map(PROT_NONE);
    card.truth = card_map(PROT_READ | PROT_WRITE);
    card_describe(&b->facts);
    b->alloc = card_alloc;
    b->release = card_release;
    b->memory_now = card_memory_now;
    b->copy = card_copy;
    b->enqueue = card_enqueue;
    b->prepare = card_prepare;
    if (card.fp8_seconds > 0) b->op_seconds = card_op_seconds;
    b->matmul_table = card_table;
    b->load_matmul_table = card_load_table;
    b->destroy = card_destroy;
    *out = b;
    return HY_OK;
}

#endif
