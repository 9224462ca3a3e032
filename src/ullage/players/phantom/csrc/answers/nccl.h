/* NCCL's own device memory (nccl_memory.c), and where a communicator's ranks are (nccl_place.c). */
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

struct place {
  int num_local; /* its ranks on this machine; 0: not known */
  int least_channels, most_channels; /* 0: no limit */
};

/* Of a new communicator with that ncclConfig_t, which may be NULL. */
struct place find_place(const void *config, int size);
int size_of_split(int parent_size);

#endif
