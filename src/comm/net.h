/* net.h: sockets between ranks: listening, connecting, and sending with a deadline.
 *
 * Every descriptor is non-blocking, closed by exec, and never raises SIGPIPE; TCP sends small
 * messages at once. Deadlines are times of hy_clock(). */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

/* Listens on `port` (0: any free port), only on loopback if the address is a loopback address,
 * else on all interfaces. HY_ERR_IO; *is_taken: the port is in use. */
hy_status hy_net_listen(const char *address, uint16_t port, int *fd, bool *is_taken);
/* Listens under a name that processes of this network namespace can see; it is not a file. */
hy_status hy_net_listen_here(const char *name, int *fd);
uint16_t hy_net_port(int fd);

/* HY_ERR_INPUT: the host name has no address. HY_ERR_IO: the connection failed. */
hy_status hy_net_connect(const char *address, uint16_t port, double deadline, int *fd);
hy_status hy_net_connect_here(const char *name, int *fd);
int hy_net_accept(int listener); /* -1: nobody is waiting */

/* Sends or receives all bytes; false: the other side closed, or the deadline passed. */
bool hy_net_send(int fd, const void *data, size_t size, double deadline);
bool hy_net_receive(int fd, void *data, size_t size, double deadline);

/* The address of the other end as text; "": not TCP. */
void hy_net_peer(int fd, char *out, size_t size);
bool hy_net_is_loopback(const char *address);

/* Identifies processes that reach each other over loopback: a number of this boot and network
 * namespace. */
uint64_t hy_net_machine(void);

void hy_net_close(int *fd); /* sets it to -1; does nothing if it is -1 */
