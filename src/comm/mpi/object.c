/* object.c: libhybrid_mpi.so: exchanges over MPI. See mpi_seam.h.
 *
 * Messages use our own communicator, so they cannot mix with others. No call waits inside MPI:
 * requests are tested in a loop that also checks the control channel, so a dead peer ends the
 * wait. Pieces of more than a gigabyte are sent as several messages, because MPI counts with an
 * int. */
#include <mpi.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/mpi_seam.h"

#define MOST_AT_ONCE ((uint64_t)1 << 30)
#define TAG 7
#define SPINS 200 /* tests before naps begin */
#define NAP_NANOSECONDS 20000

static hy_mpi_host host;
static MPI_Comm comm = MPI_COMM_NULL;

/* Requests of one exchange, and the transfer of each. */
typedef struct message {
    int32_t peer;
    int bytes;
    bool is_receive;
} message;

static MPI_Request *requests;
static MPI_Status *statuses;
static message *messages;
static int32_t used, room;

__attribute__((format(printf, 2, 3))) static hy_status fail(hy_status status, const char *format,
                                                            ...) {
    va_list arguments;
    va_start(arguments, format);
    status = host.fail(status, format, arguments);
    va_end(arguments);
    return status;
}

static hy_status failed(const char *what, int error) {
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    MPI_Error_string(error, text, &length);
    text[length] = 0;
    return fail(HY_ERR_IO, "MPI: %s failed: %.400s", what, text);
}

static void nap(int *spins) {
    struct timespec time = {.tv_nsec = NAP_NANOSECONDS};
    if (++*spins < SPINS)
        sched_yield();
    else
        nanosleep(&time, NULL);
}

/* ---- starting and ending --------------------------------------------------------------------- */

static hy_status start(int32_t *rank, int32_t *count) {
    int is_running = 0, is_over = 0, level = 0;
    MPI_Finalized(&is_over);
    if (is_over) return fail(HY_ERR_STATE, "MPI has ended and cannot be started again");
    MPI_Initialized(&is_running);
    int error = is_running ? MPI_Query_thread(&level)
                           : MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (error != MPI_SUCCESS) return failed("starting", error);
    if (level < MPI_THREAD_SERIALIZED)
        return fail(HY_ERR_DEVICE,
                    "MPI must allow calls from several threads (MPI_THREAD_SERIALIZED), but it was "
                    "built or initialised without this");
    if (comm == MPI_COMM_NULL) {
        error = MPI_Comm_dup(MPI_COMM_WORLD, &comm);
        if (error != MPI_SUCCESS) return failed("making a communicator", error);
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    }
    MPI_Comm_rank(comm, rank);
    MPI_Comm_size(comm, count);
    return HY_OK;
}

static void finish(bool has_failed) {
    int is_running = 0, is_over = 0;
    MPI_Initialized(&is_running);
    MPI_Finalized(&is_over);
    if (!is_running || is_over || has_failed) return;
    if (comm != MPI_COMM_NULL) MPI_Comm_free(&comm);
    MPI_Finalize();
    free(requests);
    free(statuses);
    free(messages);
}

static hy_status share(void *data, size_t bytes, double seconds) {
    MPI_Request request;
    double deadline = MPI_Wtime() + seconds;
    int is_over = 0, spins = 0;
    int error = MPI_Ibcast(data, (int)bytes, MPI_BYTE, 0, comm, &request);
    while (error == MPI_SUCCESS && !is_over) {
        error = MPI_Test(&request, &is_over, MPI_STATUS_IGNORE);
        if (!is_over && MPI_Wtime() > deadline)
            return fail(HY_ERR_IO, "MPI: not all ranks connected within %.0f s", seconds);
        if (!is_over) nap(&spins);
    }
    return error == MPI_SUCCESS ? HY_OK : failed("sharing", error);
}

/* ---- exchanges ------------------------------------------------------------------------------- */

static bool make_room(int32_t count) {
    if (count <= room) return true;
    int32_t wanted = 2 * count;
    MPI_Request *r = realloc(requests, sizeof *r * (size_t)wanted);
    if (r) requests = r;
    MPI_Status *s = realloc(statuses, sizeof *s * (size_t)wanted);
    if (s) statuses = s;
    message *m = realloc(messages, sizeof *m * (size_t)wanted);
    if (m) messages = m;
    if (r && s && m) room = wanted;
    return r && s && m;
}

/* An empty transfer is a message too: both sides must know of it. */
static hy_status post(const hy_transfer *transfer, bool is_receive) {
    uint64_t done = 0;
    do {
        uint64_t left = transfer->bytes - done;
        int bytes = (int)(left < MOST_AT_ONCE ? left : MOST_AT_ONCE), error;
        char *data = (char *)transfer->data + done;
        if (!make_room(used + 1))
            return fail(HY_ERR_MEMORY, "not enough memory for %d messages", used + 1);
        if (is_receive)
            error = MPI_Irecv(data, bytes, MPI_BYTE, transfer->peer, TAG, comm, &requests[used]);
        else
            error = MPI_Isend(data, bytes, MPI_BYTE, transfer->peer, TAG, comm, &requests[used]);
        if (error != MPI_SUCCESS) return failed(is_receive ? "receiving" : "sending", error);
        messages[used++] = (message){transfer->peer, bytes, is_receive};
        done += (uint64_t)bytes;
    } while (done < transfer->bytes);
    return HY_OK;
}

static hy_status post_all(const hy_transfer *list, int32_t count, int own, bool is_receive) {
    hy_status status = HY_OK;
    for (int32_t i = 0; i < count && status == HY_OK; i++) {
        if (list[i].peer != own) status = post(&list[i], is_receive);
    }
    return status;
}

/* Checks that each message had the expected size. */
static hy_status check_received(int own) {
    for (int32_t i = 0; i < used; i++) {
        const message *m = &messages[i];
        int error = statuses[i].MPI_ERROR, class = MPI_SUCCESS, bytes = m->bytes;
        if (!m->is_receive) continue;
        if (error != MPI_SUCCESS) MPI_Error_class(error, &class);
        if (class == MPI_ERR_TRUNCATE)
            return fail(HY_ERR_INTERNAL,
                        "rank %d sends more bytes than the %d that rank %d expects", m->peer,
                        m->bytes, own);
        if (error != MPI_SUCCESS && error != MPI_ERR_PENDING) return failed("receiving", error);
        MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
        if (error == MPI_SUCCESS && bytes != m->bytes)
            return fail(HY_ERR_INTERNAL, "rank %d sends %d bytes, but rank %d expects %d", m->peer,
                        bytes, own, m->bytes);
    }
    return HY_OK;
}

static hy_status wait_for_all(int own, hy_control *control) {
    int is_over = 0, spins = 0;
    for (;;) {
        /* MPI sets the error fields only if a call fails. */
        for (int32_t i = 0; i < used; i++) statuses[i].MPI_ERROR = MPI_SUCCESS;
        int error = MPI_Testall(used, requests, &is_over, statuses);
        if (error != MPI_SUCCESS) {
            hy_status found = check_received(own);
            return found == HY_OK ? failed("an exchange", error) : found;
        }
        if (is_over) return check_received(own);
        hy_status status = host.check(control);
        if (status != HY_OK) return status;
        nap(&spins);
    }
}

static hy_status exchange(const hy_transfer *sends, int32_t send_count, const hy_transfer *receives,
                          int32_t receive_count, hy_control *control) {
    int own;
    MPI_Comm_rank(comm, &own);
    used = 0;
    hy_status status = post_all(receives, receive_count, own, true);
    if (status == HY_OK) status = post_all(sends, send_count, own, false);
    return status == HY_OK ? wait_for_all(own, control) : status;
}

/* ---- the entry ------------------------------------------------------------------------------- */

__attribute__((visibility("default"))) hy_status hy_mpi_entry(const hy_mpi_host *from,
                                                              hy_mpi_calls *out);
hy_status hy_mpi_entry(const hy_mpi_host *from, hy_mpi_calls *out) {
    if (from->version != HY_MPI_SEAM_VERSION) return HY_ERR_STATE;
    host = *from;
    *out = (hy_mpi_calls){.start = start, .share = share, .exchange = exchange, .finish = finish};
    return HY_OK;
}
