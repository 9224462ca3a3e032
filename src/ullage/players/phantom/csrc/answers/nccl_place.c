/* What the clock asks of a communicator: how many of its ranks are on this machine, and how many channels it may have.
 *
 * NCCL learns from the other ranks where they are. Here the recorder says it (players/inside/one_rank/communicators.py): of a new
 * communicator in the name of the network of its configuration, which means nothing to the phantom; of one that is split
 * from another, right before. Channels are limited by the environment and by that configuration.
 * Source: NCCL, src/nccl.h.in (ncclConfig_t), src/graph/connect.cc (ncclTopoPostset), user guide (NCCL_MAX_CTAS).
 */
#include "nccl.h"
#include "phantom.h"

#include <stdio.h>
#include <stdlib.h>

struct config {
  size_t size;
  unsigned magic, version;
  int blocking, cluster_size, least_blocks, most_blocks; /* INT_MIN: not set */
  const char *network;
};

static _Thread_local int split_size, split_local;

API void ullage_split(int size, int num_local) {
  split_size = size;
  split_local = num_local;
}

int size_of_split(int parent_size) { return split_size > 0 && split_size <= parent_size ? split_size : parent_size; }

static int limit(const char *name) {
  const char *text = getenv(name);
  int value = text ? atoi(text) : 0;
  return value > 0 ? value : 0;
}

static int larger(int a, int b) { return a > b ? a : b; }
static int smaller(int a, int b) { return a && (!b || a < b) ? a : b; } /* 0: no limit */

struct place find_place(const void *of, int size) {
  const struct config *config = of;
  bool is_long = config && config->size >= sizeof *config;
  struct place place = {0, larger(limit("NCCL_MIN_NCHANNELS"), limit("NCCL_MIN_CTAS")),
                        smaller(limit("NCCL_MAX_NCHANNELS"), limit("NCCL_MAX_CTAS"))};
  if (is_long && config->least_blocks > 0) place.least_channels = larger(place.least_channels, config->least_blocks);
  if (is_long && config->most_blocks > 0) place.most_channels = smaller(place.most_channels, config->most_blocks);
  if (split_size > 0) place.num_local = split_local;
  else if (is_long && config->network) sscanf(config->network, "ullage: %d ranks here", &place.num_local);
  if (place.num_local < 0) place.num_local = 0;
  if (place.num_local > size) place.num_local = size;
  return place;
}
