/* NCCL's own device memory: the buffers of its connections.
 *
 * A connection between two GPUs of one machine has, on each of them and in each channel, a buffer for each of the three
 * protocols where it receives, rounded up to 2 MiB, and 2 MiB where it sends: 10 and 2 MiB with the usual sizes, which
 * the log of nccl issue 1685 shows. A collective connects a rank with the two beside it in rings and trees, a message with
 * its peer. Connections are made when they are first needed (NCCL_RUNTIME_CONNECT).
 * Source: NCCL, src/init.cc (computeBuffSizes), src/include/device.h, src/transport/p2p.cc (p2pSendSetup, p2pRecvSetup).
 *
 * How many channels there are hangs on the machine: 32 are the most that are seen on eight H100 with NVLink, unless
 * NCCL_MIN_NCHANNELS asks for more. Between machines buffers may lie in host memory, and the lower end is 0; without peer
 * access they do (src/transport/shm.cc).
 *
 * Where a switch reduces (NVLS), which takes more than two GPUs, there is a buffer for each of these, channel and direction
 * besides: up to NCCL 2.21 of 6 MiB, later of 8 steps of 128 KiB and made when a collective first needs it (src/transport/nvls.cc,
 * ncclNvlsSetup and ncclNvlsBufferSetup). That an environment is without it, nobody can know here: the lower end is 0.
 *
 * The kernels (nccl_low_bytes, nccl_high_bytes: facts/gpus/nccl.py) are loaded with a process's first communicator on a device.
 * Left out: CollNet.
 */
#include "nccl.h"
#include "outside.h"
#include "memory.h"
#include "phantom.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL_CHANNELS = 32, NEIGHBOURS = 2, USUAL_LOCAL_RANKS = 8, LL_BYTES = 8 * 512 * 8 * 16, LL128_BYTES = 120 * 640 * 8 * 8 };
enum { NEWEST = 23007, FIRST_LAZY = 22200, STEPS = 8, DIRECTIONS = 2, HOPPER_CHANNELS = 16, BLACKWELL_CHANNELS = 32 };

static const char *const COLLECTIVES = "NCCL's buffers for collectives", *const MESSAGES = "NCCL's buffers for messages",
                  *const MULTICAST = "NCCL's buffers for reductions in the NVLink switch", *const KERNELS = "NCCL's kernels";

static bool has_kernels[MAX_DEVICES];

static size_t number(const char *name, size_t fallback) {
  const char *text = getenv(name);
  long long value = text ? atoll(text) : 0;
  return value > 0 ? (size_t)value : fallback;
}

static bool is_lazy(void) { return library_version("nccl", NEWEST) >= FIRST_LAZY; }

static size_t num_channels(void) {
  size_t least = number("NCCL_MIN_NCHANNELS", 0), most = number("NCCL_MAX_NCHANNELS", USUAL_CHANNELS);
  return least > most ? least : most;
}

/* On one GPU, to and from one other, in all channels. */
static size_t bytes_per_peer(void) {
  size_t buffers = number("NCCL_BUFFSIZE", 4 << 20) + number("NCCL_LL_BUFFSIZE", LL_BYTES) + number("NCCL_LL128_BUFFSIZE", LL128_BYTES);
  size_t received = (buffers / PAGE_BYTES + 1) * PAGE_BYTES; /* the buffers, and a few counters before them */
  return num_channels() * (received + PAGE_BYTES);
}

static size_t multicast_bytes(const struct device *d, int size) {
  size_t local = number("LOCAL_WORLD_SIZE", USUAL_LOCAL_RANKS), ranks = local < (size_t)size ? local : (size_t)size;
  const char *enabled = getenv("NCCL_NVLS_ENABLE");
  if (!d->multicast || ranks <= 2 || (enabled && !strcmp(enabled, "0"))) return 0;
  size_t channels = number("NCCL_NVLS_NCHANNELS", d->major >= 10 ? BLACKWELL_CHANNELS : HOPPER_CHANNELS);
  size_t buffer = is_lazy() ? STEPS * number("NCCL_NVLS_CHUNKSIZE", 128 << 10) : number("NCCL_BUFFSIZE", 4 << 20) + PAGE_BYTES;
  return channels * DIRECTIONS * buffer * ranks;
}

static bool connect_switch(struct connections *c, int size) {
  size_t bytes = multicast_bytes(device(c->device), size);
  if (!take_outside(c->device, MULTICAST, 0, bytes)) return false;
  c->multicast_bytes = bytes;
  return true;
}

bool connect_neighbours(struct connections *c, int size) {
  if (size < 2 || c->has_neighbours || !device(c->device)->peer_access) return true;
  if (!c->multicast_bytes && !connect_switch(c, size)) return false;
  c->has_neighbours = take_outside(c->device, COLLECTIVES, 0, NEIGHBOURS * bytes_per_peer());
  return c->has_neighbours;
}

bool open_connections(struct connections *c, int index, int size) {
  c->device = index;
  if (!has_kernels[index] && !take_outside(index, KERNELS, device(index)->nccl_low_bytes, device(index)->nccl_high_bytes)) return false;
  has_kernels[index] = true;
  return is_lazy() || connect_neighbours(c, size);
}

/* Ranks of other machines share one buffer, so no more than those of this machine count. */
bool connect_peer(struct connections *c, int size, int peer) {
  if (!device(c->device)->peer_access) return true;
  if (!c->has_peer) c->has_peer = calloc((size_t)size, 1);
  if (!c->has_peer || c->has_peer[peer] || c->num_peers + 1 >= number("LOCAL_WORLD_SIZE", USUAL_LOCAL_RANKS)) return true;
  if (!take_outside(c->device, MESSAGES, 0, bytes_per_peer())) return false;
  c->has_peer[peer] = 1;
  c->num_peers++;
  return true;
}

void disconnect(struct connections *c) {
  if (c->has_neighbours) give_back_outside(c->device, COLLECTIVES, 0, NEIGHBOURS * bytes_per_peer());
  if (c->multicast_bytes) give_back_outside(c->device, MULTICAST, 0, c->multicast_bytes);
  for (unsigned i = 0; i < c->num_peers; i++) give_back_outside(c->device, MESSAGES, 0, bytes_per_peer());
  free(c->has_peer);
}
