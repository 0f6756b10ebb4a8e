/* team.h: what a run holds of its ranks: who it is, the control channel and the link that moves its
 * data.
 *
 * A process that nobody started as one of several is alone: it has no team, nothing is opened, and
 * callers ask for `team` before anything else. Only where NCCL is asked for there is a team of one,
 * which exchanges with itself. Every rank opens its team once, before it takes its device, and
 * closes it at the end; MPI cannot be started a second time in a process. */
#pragma once

#include "comm/link.h"

typedef enum hy_link_choice {
    HY_LINK_AUTO = 0, /* MPI where MPI started all ranks and can be used on all, else sockets */
    HY_LINK_SOCKETS = 1,
    HY_LINK_MPI = 2,
    HY_LINK_NCCL = 3
} hy_link_choice;

typedef struct hy_team {
    hy_ranks who; /* as the launcher said it */
    /* Among the ranks of this machine, counted: known where the launcher said nothing. */
    int32_t local_rank, local_count;
    /* Of these, how many may run on the same cores as this one, itself included: a launcher that
     * binds ranks gives each cores of its own. */
    int32_t core_sharers;
    hy_control *control;
    hy_link *link;
    const char *link_name; /* "sockets", "MPI"; "NCCL" where that moves memory of cards beside it */
    bool uses_nccl; /* the owner says so once cards are known: the link is for small things then */
} hy_team;

typedef struct hy_team_options {
    hy_link_choice link;
    double timeout;          /* seconds of silence after which a rank is lost (control.h); 0: 60 */
    uint64_t agreed;         /* alike on all ranks: a hash of the settings (hy_settings_agreed), */
    const char *agreed_name; /* which messages call so; NULL: "settings" */
    hy_link_options link_options;
    hy_observer observer; /* messages while ranks come together */
} hy_team_options;

/* Waits until all ranks are there and connected. *out is NULL where this process is alone. A link
 * that is asked for and cannot be used is HY_ERR_INPUT or HY_ERR_DEVICE, with what to install;
 * where one rank fails here all do. For tests, HYBRID_TEST_LINK="bytes_per_second,latency" makes
 * sockets slow, whatever the options say. */
hy_status hy_team_open(const hy_team_options *options, hy_team **out);

/* Link, MPI and control, in the order that they want. Where nothing failed it waits for the others
 * to close, too. hy_error_message() stays as it is. NULL is fine. */
void hy_team_close(hy_team *team);

/* Tells the others this rank's last error, so that they end too. Returns `status`, with the message
 * of the failure that came first; where that was another rank's, its status. HY_OK and HY_STOPPED,
 * and a team of NULL: nothing is said, and `status` comes back. */
hy_status hy_team_fail(hy_team *team, hy_status status);
