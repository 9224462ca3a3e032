/* NCCL's own device memory (nccl_memory.c). */
#ifndef ULLAGE_NCCL_H
#define ULLAGE_NCCL_H

#include <stdbool.h>
#include <stddef.h>

/* To which ranks a communicator has connections. */
struct connections {
  int device;
  bool has_neighbours;
  size_t multicast_bytes;
  unsigned num_peers;
  unsigned char *has_peer; /* by rank */
};

/* false, here and below: the device is full */
bool open_connections(struct connections *c, int device, int size); /* of a new communicator */
bool connect_neighbours(struct connections *c, int size); /* for a collective */
bool connect_peer(struct connections *c, int size, int peer); /* for a message */
void disconnect(struct connections *c);

#endif
