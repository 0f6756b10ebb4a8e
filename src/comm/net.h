/* net.h: sockets between ranks: listening, connecting, and sending with a deadline.
 *
 * Every descriptor is non-blocking, closed by exec, and never raises SIGPIPE; TCP sends small
 * messages at once. Deadlines are times of hy_clock(). */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

/* Listens on `port` (0: any free port) of this numeric address and no other; "": on all
 * interfaces. HY_ERR_IO; *is_taken: the port is in use. */
hy_status hy_net_listen(const char *address, uint16_t port, int *fd, bool *is_taken);
/* Listens under a name that processes of this network namespace can see; it is not a file. Every
 * user sees the name and can connect: check hy_net_is_own_user. */
hy_status hy_net_listen_here(const char *name, int *fd, bool *is_taken);
/* The numeric address of this machine that a host name stands for; IPv4 before IPv6, loopback last.
 * "": none of its addresses belongs to this machine. HY_ERR_INPUT: the name has no address. */
hy_status hy_net_find_own(const char *host, char *out, size_t size);
uint16_t hy_net_port(int fd);

/* HY_ERR_INPUT: the host name has no address. HY_ERR_IO: the connection failed. */
hy_status hy_net_connect(const char *address, uint16_t port, double deadline, int *fd);
/* HY_ERR_IO also if another user listens there. */
hy_status hy_net_connect_here(const char *name, int *fd);
int hy_net_accept(int listener); /* -1: nobody is waiting */

/* Sends or receives all bytes; false: the other side closed, or the deadline passed. */
bool hy_net_send(int fd, const void *data, size_t size, double deadline);
bool hy_net_receive(int fd, void *data, size_t size, double deadline);

/* The address of the other end as text, or of this end; "": not TCP. */
void hy_net_peer(int fd, char *out, size_t size);
void hy_net_own(int fd, char *out, size_t size);
/* Whether the process at the other end of a Unix socket has this process's user id, *user. True for
 * TCP, which does not know. */
bool hy_net_is_own_user(int fd, int *user);
bool hy_net_is_unix(int fd);
bool hy_net_is_loopback(const char *address);

/* Identifies processes that reach each other over loopback: a number of this boot and network
 * namespace. */
uint64_t hy_net_machine(void);

void hy_net_close(int *fd); /* sets it to -1; does nothing if it is -1 */
