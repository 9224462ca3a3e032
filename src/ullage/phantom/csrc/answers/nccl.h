/* NCCL's own device memory (nccl_memory.c). */
#ifndef ULLAGE_NCCL_H
#define ULLAGE_NCCL_H

#include <stdbool.h>

/* To which ranks a communicator has connections. */
struct connections {
  int device;
  bool has_neighbours;
  unsigned num_peers;
  unsigned char *has_peer; /* by rank */
};

bool connect_neighbours(struct connections *c, int size); /* for a collective; false: the device is full */
bool connect_peer(struct connections *c, int size, int peer); /* for a message; likewise */
void disconnect(struct connections *c);

#endif
