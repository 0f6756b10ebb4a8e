/* fuzz_ranks.c: Slurm's lists of nodes and tasks, addresses, and messages of the control channel,
 * of any bytes.
 *
 * The first byte says what the rest is. A host that is found has no bracket, comma or blank; a
 * message that is found lies within the bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/ranks.h"
#include "comm/slurm.h"
#include "comm/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_ranks: %s\n", what);
    abort();
}

static void read_texts(const char *text, char kind) {
    char host[HY_ADDRESS_MAX];
    int64_t tasks = 0;
    uint16_t port = 0;
    if (kind == 'n' && hy_slurm_first_host(text, host, strlen(text) % 2 ? 16 : sizeof host))
        require(host[0] && !strpbrk(host, "[], \n"), "no host");
    if (kind == 't' && hy_slurm_tasks_of_node(text, 3, &tasks)) require(tasks > 0, "no tasks");
    if (kind == 'a' && hy_address_parse("ADDRESS", text, host, &port) == HY_OK)
        require(host[0] && port > 0, "no address");
}

/* Bytes come in pieces, as from a socket. */
static void read_messages(const uint8_t *data, size_t size) {
    hy_wire_buffer in = {0};
    hy_wire_message m;
    hy_wire_found found = HY_WIRE_NONE;
    uint64_t sum = 0;
    for (size_t at = 0; at < size && found != HY_WIRE_NONSENSE;) {
        size_t piece = size - at < 29 ? size - at : 29;
        if (!hy_wire_reserve(&in, piece)) break;
        memcpy(in.data + in.end, data + at, piece);
        in.end += piece;
        at += piece;
        while ((found = hy_wire_take(&in, &m)) == HY_WIRE_ONE) {
            require(m.head.size <= size, "a message larger than its bytes");
            for (uint32_t i = 0; i < m.head.size; i++) sum += m.data[i];
        }
    }
    require(sum <= 255 * (uint64_t)size, "bytes from nowhere");
    hy_wire_free(&in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    char *text = malloc(size);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    if (data[0] == 'w')
        read_messages(data + 1, size - 1);
    else
        read_texts(text, (char)data[0]);
    free(text);
    return 0;
}
