/* links.c: the speed of sockets between ranks of this machine, compared with memcpy.
 *
 * Every rank sends its part to each other rank and receives theirs at the same time, as in
 * gathering weights. Then each rank sends numbers that are added, as in reducing gradients. Figures
 * are bytes per second that a rank sends, the median of several rounds; the last column is a call
 * of the control channel. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/link.h"
#include "comm/net.h"

#define BYTES ((uint64_t)32 << 20) /* bytes that a rank sends in an exchange */
#define ROUNDS 7
#define MOST_RANKS 4

static void must(hy_status status) {
    if (status == HY_OK) return;
    fprintf(stderr, "links: %s\n", hy_error_message());
    _exit(1);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, ROUNDS, sizeof *values, by_size);
    return values[ROUNDS / 2];
}

static double memcpy_rate(char *to, const char *from) {
    double seconds[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        double began = hy_clock();
        memcpy(to, from, BYTES);
        seconds[i] = hy_clock() - began;
    }
    return (double)BYTES / median(seconds);
}

/* Rank r owns bytes[r] to bytes[r + 1] of the whole. */
typedef struct parts {
    uint64_t bytes[MOST_RANKS + 1];
    char *whole, *scratch;
    uint64_t whole_bytes;
} parts;

static parts make_parts(int count) {
    parts p = {.whole_bytes = BYTES / (uint64_t)(count - 1) * (uint64_t)count};
    for (int r = 0; r <= count; r++) {
        p.bytes[r] = p.whole_bytes / (uint64_t)count * (uint64_t)r / 4 * 4;
    }
    p.whole = calloc(1, p.whole_bytes + 64);
    p.scratch = calloc(1, p.whole_bytes + 64);
    return p;
}

static uint64_t part_bytes(const parts *p, int r) { return p->bytes[r + 1] - p->bytes[r]; }

/* Sends the own part to all ranks. */
static void gather(hy_link *link, const parts *p) {
    int rank = hy_link_rank(link), n = hy_link_count(link);
    hy_transfer sends[MOST_RANKS], receives[MOST_RANKS];
    for (int i = 1; i < n; i++) {
        int to = (rank + i) % n, from = (rank + n - i) % n;
        sends[i - 1] = (hy_transfer){to, p->whole + p->bytes[rank], part_bytes(p, rank)};
        receives[i - 1] = (hy_transfer){from, p->whole + p->bytes[from], part_bytes(p, from)};
    }
    must(hy_link_exchange(link, sends, n - 1, receives, n - 1));
}

/* Sends each rank its part, and adds the received parts to the own part. */
static void sum_parts(hy_link *link, const parts *p) {
    int rank = hy_link_rank(link), n = hy_link_count(link);
    uint64_t bytes = part_bytes(p, rank);
    hy_transfer sends[MOST_RANKS], receives[MOST_RANKS];
    for (int i = 1; i < n; i++) {
        int to = (rank + i) % n, from = (rank + n - i) % n;
        sends[i - 1] = (hy_transfer){to, p->whole + p->bytes[to], part_bytes(p, to)};
        receives[i - 1] = (hy_transfer){from, p->scratch + (uint64_t)(i - 1) * bytes, bytes};
    }
    must(hy_link_exchange(link, sends, n - 1, receives, n - 1));
    float *sum = (float *)(void *)(p->whole + p->bytes[rank]);
    for (int i = 0; i < n - 1; i++) {
        const float *part = receives[i].data;
        for (uint64_t k = 0; k < bytes / sizeof *sum; k++) sum[k] += part[k];
    }
}

static double seconds_of(hy_control *c, hy_link *link, const parts *p,
                         void (*work)(hy_link *, const parts *)) {
    double seconds[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        must(hy_control_barrier(c));
        double began = hy_clock();
        work(link, p);
        seconds[i] = hy_clock() - began;
    }
    return median(seconds);
}

static double seconds_of_call(hy_control *c) {
    double number = 1, all[MOST_RANKS], began = hy_clock();
    for (int i = 0; i < 200; i++) must(hy_control_gather(c, &number, 1, all));
    return (hy_clock() - began) / 200;
}

static void run_rank(hy_ranks ranks, bool is_tcp) {
    hy_control *c;
    hy_link *link;
    must(hy_control_open(&ranks, NULL, &c));
    must(hy_link_open_sockets(c, &(hy_link_options){.is_tcp = is_tcp}, &link));
    parts p = make_parts(ranks.count);
    double gathered = seconds_of(c, link, &p, gather), summed = seconds_of(c, link, &p, sum_parts);
    double call = seconds_of_call(c);
    if (ranks.rank == 0) {
        double sent = (double)(p.bytes[1] * (uint64_t)(ranks.count - 1));
        printf("%5d  %-7s  %10.2f  %14.2f  %10.0f\n", ranks.count, is_tcp ? "TCP" : "Unix",
               1e-9 * sent / gathered, 1e-9 * sent / summed, 1e6 * call);
        fflush(stdout);
    }
    must(hy_control_barrier(c));
    hy_link_destroy(link);
    hy_control_close(c);
    free(p.whole);
    free(p.scratch);
}

static void run_ranks(int count, bool is_tcp, uint64_t job) {
    hy_ranks ranks = {.count = count, .local_count = count, .address = "127.0.0.1", .job = job};
    int fd, status;
    bool is_taken;
    must(hy_net_listen("127.0.0.1", 0, &fd, &is_taken));
    ranks.port = hy_net_port(fd);
    hy_net_close(&fd);
    fflush(stdout);
    for (int r = 0; r < count; r++) {
        ranks.rank = r;
        if (fork() > 0) continue;
        run_rank(ranks, is_tcp);
        _exit(0);
    }
    while (wait(&status) > 0) continue;
}

int main(void) {
    char *from = calloc(1, BYTES), *to = calloc(1, BYTES);
    printf("memcpy, one thread: %.2f GB/s\n\n", 1e-9 * memcpy_rate(to, from));
    printf("ranks  sockets  gather GB/s  reduce fp32 GB/s  call us\n");
    free(from);
    free(to);
    for (int count = 2; count <= MOST_RANKS; count += 2) {
        run_ranks(count, false, (uint64_t)getpid() * 16 + (uint64_t)count);
        run_ranks(count, true, (uint64_t)getpid() * 16 + (uint64_t)count + 1);
    }
    return 0;
}
