/* links.h: the open connections, and a thread that watches over them.
 *
 * Each connection is in one of three states: it may send a request (for at most `patience` seconds,
 * from its beginning or the end of its last answer), its request is parsed or waits for the
 * generator (without limit, as long as the client is there), or it reads an answer (for at most
 * `patience` seconds until it takes more). The watch cuts a connection whose time is up, and ends
 * the job of a client that has left or reads too slowly. */
#pragma once

#include "serve/job.h"

typedef struct hy_links hy_links;
typedef struct hy_link hy_link;

hy_status hy_links_create(double patience, hy_links **out);
void hy_links_destroy(hy_links *links); /* after the last connection */

/* NULL: out of memory. */
hy_link *hy_link_open(hy_links *links, int fd);
void hy_link_close(hy_link *link); /* before its file descriptor is closed */

/* The states. A job stays the caller's, and is no longer watched after the next call. */
void hy_link_expects_request(hy_link *link);
void hy_link_waits(hy_link *link, hy_job *job); /* job: NULL while there is none yet */
void hy_link_reads(hy_link *link, hy_job *job); /* job: NULL if the answer is whole */

int hy_links_busy(hy_links *links); /* connections with a request in progress */
void hy_links_cut_idle(hy_links *links);
void hy_links_stop_jobs(hy_links *links);
