/* NCCL: communicators that agree about everything, because no other rank is asked.
 *
 * Collectives behave as if every rank held the same values: a gather repeats the own input, a sum multiplies it by the
 * number of ranks, a received message is the one that was sent in the same group. So the small exchanges by which ranks
 * agree on shapes and counts come out right; what cannot be known becomes unknown. NCCL's own device memory is the matter of
 * nccl_memory.c.
 */
#include "nccl.h"
#include "phantom.h"
#include "work_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum { SUM = 0, PRODUCT = 1, MAX = 2, MIN = 3, AVERAGE = 4, NUM_BUILTIN_OPS = 5, NO_COLOR = -1 };
enum { SMALL_BYTES = 4096, MAX_MESSAGES = 4096 };

struct communicator {
  int size, rank, device;
  const void *clique; /* the same for those that one process made at once: all ranks are here */
  struct connections connections;
  struct place place;
};
struct unique_id {
  char bytes[128];
};

/* From values.c: true where all of the bytes are known. */
int ullage_read(uintptr_t p, void *dst, size_t bytes);

/* int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, float8 e4m3, float8 e5m2 */
static const unsigned char ITEM_BYTES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

static bool is_type(int type) { return type >= 0 && type < (int)sizeof ITEM_BYTES; }

/* ---- Communicators ----------------------------------------------------------------------------------------------- */

static int end(struct communicator *c) {
  if (c) disconnect(&c->connections);
  free(c);
  return SUCCESS;
}

static int create(struct communicator **result, int size, int rank, int device_index, const void *config) {
  if (!result || size < 1 || rank < 0 || rank >= size) return INVALID_ARGUMENT;
  struct communicator *c = malloc(sizeof *c);
  if (!c) return SYSTEM_ERROR;
  *c = (struct communicator){size, rank, device_index, c, {0}, find_place(config, size)};
  if (!open_connections(&c->connections, device_index, size)) {
    end(c);
    return UNHANDLED_CUDA_ERROR;
  }
  *result = c;
  return SUCCESS;
}

API int ncclGetUniqueId(struct unique_id *id) {
  static unsigned count;
  if (!id) return INVALID_ARGUMENT;
  memset(id, 0, sizeof *id);
  snprintf(id->bytes, sizeof id->bytes, "ullage phantom %ld %ld %u", (long)getpid(), (long)time(NULL),
           __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED));
  return SUCCESS;
}

API int ncclCommGetUniqueId(struct communicator *c, struct unique_id *id) {
  return c ? ncclGetUniqueId(id) : INVALID_ARGUMENT;
}

API int ncclCommInitRank(struct communicator **result, int size, struct unique_id id, int rank) {
  (void)id;
  return create(result, size, rank, current_device(), NULL);
}

API int ncclCommInitRankConfig(struct communicator **result, int size, struct unique_id id, int rank, void *config) {
  (void)id;
  return create(result, size, rank, current_device(), config);
}

API int ncclCommInitRankScalable(struct communicator **result, int size, int rank, int num_ids, void *ids, void *config) {
  (void)num_ids, (void)ids;
  return create(result, size, rank, current_device(), config);
}

API int ncclCommInitAll(struct communicator **result, int count, const int *devices) {
  if (!result || count < 1 || count > num_devices()) return INVALID_ARGUMENT;
  for (int i = 0; i < count; i++) {
    int status = create(&result[i], count, i, devices ? devices[i] : i, NULL);
    if (status) return status;
    result[i]->clique = result[0];
    result[i]->place.num_local = count;
  }
  return SUCCESS;
}

/* How many ranks share the color is known to the others alone: the recorder says it, who sees which group PyTorch makes.
 * PyTorch passes the new rank as the key. */
API int ncclCommSplit(struct communicator *c, int color, int key, struct communicator **result, void *config) {
  if (!c || !result) return INVALID_ARGUMENT;
  *result = NULL;
  if (color == NO_COLOR) return SUCCESS;
  int size = size_of_split(c->size);
  return create(result, size, key >= 0 && key < size ? key : c->rank % size, c->device, config);
}

API int ncclCommShrink(struct communicator *c, const int *excluded, int num_excluded, struct communicator **result, void *config,
                       int flags) {
  (void)flags;
  if (!c || !result || num_excluded < 0 || num_excluded >= c->size || (num_excluded && !excluded)) return INVALID_ARGUMENT;
  int rank = c->rank;
  for (int i = 0; i < num_excluded; i++) {
    if (excluded[i] == c->rank) return INVALID_ARGUMENT;
    rank -= excluded[i] < c->rank;
  }
  return create(result, c->size - num_excluded, rank, c->device, config);
}

/* A rank that is there already passes -1 and keeps its number. */
API int ncclCommGrow(struct communicator *c, int size, const void *id, int rank, struct communicator **result, void *config) {
  (void)id;
  return create(result, size, c && rank < 0 ? c->rank : rank, c ? c->device : current_device(), config);
}

API int ncclCommDestroy(struct communicator *c) { return end(c); }
API int ncclCommAbort(struct communicator *c) { return end(c); }

#define NUMBER(name, field)                            \
  API int name(const struct communicator *c, int *value) { \
    if (!c || !value) return INVALID_ARGUMENT;         \
    *value = c->field;                                 \
    return SUCCESS;                                    \
  }
NUMBER(ncclCommCount, size)
NUMBER(ncclCommUserRank, rank)
NUMBER(ncclCommCuDevice, device)

API int ncclCommGetAsyncError(const struct communicator *c, int *status) {
  return c ? ANSWER(status, SUCCESS, INVALID_ARGUMENT) : INVALID_ARGUMENT;
}

/* ---- Collectives ------------------------------------------------------------------------------------------------- */

/* The bytes of `count` items, SIZE_MAX for arguments that NCCL would not take. */
static size_t bytes_of(const struct communicator *c, size_t count, int type) {
  return c && is_type(type) ? count * ITEM_BYTES[type] : SIZE_MAX;
}

static void scale(void *values, size_t count, int type, int factor) {
#define SCALE(item) for (size_t i = 0; i < count; i++) ((item *)values)[i] = (item)(((item *)values)[i] * (item)factor)
  switch (type) {
    case 0: case 1: SCALE(uint8_t); break;
    case 2: case 3: SCALE(uint32_t); break;
    case 4: case 5: SCALE(uint64_t); break;
    case 7: SCALE(float); break;
    default: SCALE(double);
  }
#undef SCALE
}

/* The same values from every rank: maximum, minimum and average change nothing, a sum is a multiple. */
static void reduce(const struct communicator *c, void *recv, const void *send, size_t count, int type, int op) {
  note_use(send);
  saw_communication(send);
  saw_communication(recv);
  size_t bytes = count * ITEM_BYTES[type];
  if (c->size == 1 ? op < NUM_BUILTIN_OPS : op == MAX || op == MIN || op == AVERAGE) {
    if (recv != send) hand_on_values(recv, send, bytes);
    return;
  }
  uint64_t values[SMALL_BYTES / sizeof(uint64_t)];
  bool has_arithmetic = type < 6 || type == 7 || type == 8;
  if (op == SUM && has_arithmetic && bytes <= SMALL_BYTES && ullage_read((uintptr_t)send, values, bytes)) {
    scale(values, count, type, c->size);
    hand_on_values(recv, values, bytes);
  } else {
    forget(recv);
  }
}

/* The bytes of an exchange are those of the whole buffer that it fills or reduces. */
static void note_exchange(enum collective which, size_t bytes, const struct communicator *c, const void *stream) {
  note_collective(stream);
  const struct place *p = &c->place;
  struct work work = {WORK_COLLECTIVE, -1, NULL, {which, (int64_t)bytes, c->size, p->num_local, p->least_channels, p->most_channels}};
  log_work(stream, &work);
}

static int share(enum collective which, size_t whole, const void *send, void *recv, size_t count, int type, int op,
                 struct communicator *c, void *stream) {
  if (!connect_neighbours(&c->connections, c->size)) return UNHANDLED_CUDA_ERROR;
  note_exchange(which, whole, c, stream);
  reduce(c, recv, send, count, type, op);
  return SUCCESS;
}

API int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, struct communicator *c, void *stream) {
  size_t bytes = bytes_of(c, count, type);
  return bytes == SIZE_MAX ? INVALID_ARGUMENT : share(ALL_REDUCE, bytes, send, recv, count, type, op, c, stream);
}

API int ncclReduce(const void *send, void *recv, size_t count, int type, int op, int root, struct communicator *c, void *stream) {
  size_t bytes = bytes_of(c, count, type);
  note_use(send);
  if (bytes == SIZE_MAX) return INVALID_ARGUMENT;
  if (root == c->rank) return share(REDUCE, bytes, send, recv, count, type, op, c, stream);
  note_exchange(REDUCE, bytes, c, stream); /* only the root's recv is written */
  return SUCCESS;
}

API int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, struct communicator *c, void *stream) {
  size_t bytes = bytes_of(c, count, type);
  if (bytes == SIZE_MAX) return INVALID_ARGUMENT;
  return share(REDUCE_SCATTER, bytes * (size_t)c->size, (const char *)send + (size_t)c->rank * bytes, recv, count, type, op, c, stream);
}

static void repeat(const struct communicator *c, char *recv, const void *send, size_t bytes) {
  note_use(send);
  saw_communication(send);
  saw_communication(recv);
  if (bytes > SMALL_BYTES) { /* large ones are of no interest, and copying unknown bytes n times costs time */
    forget(recv);
    return;
  }
  const char *own = recv + (size_t)c->rank * bytes;
  if (own != send) hand_on_values((char *)own, send, bytes);
  for (int i = 0; i < c->size; i++)
    if (i != c->rank) hand_on_values(recv + (size_t)i * bytes, own, bytes);
}

static void gather(enum collective which, const void *send, void *recv, size_t bytes, struct communicator *c, void *stream) {
  note_exchange(which, bytes * (size_t)c->size, c, stream);
  repeat(c, recv, send, bytes);
}

API int ncclAllGather(const void *send, void *recv, size_t count, int type, struct communicator *c, void *stream) {
  size_t bytes = bytes_of(c, count, type);
  if (bytes == SIZE_MAX) return INVALID_ARGUMENT;
  if (!connect_neighbours(&c->connections, c->size)) return UNHANDLED_CUDA_ERROR;
  gather(ALL_GATHER, send, recv, bytes, c, stream);
  return SUCCESS;
}

enum { EVERYBODY = -1 };

/* These collectives are messages between each rank and the root, or everybody (NCCL, src/enqueue.cc, p2pTaskAppend). */
static bool connect_root(struct communicator *c, int root) {
  bool is_with_all = root == EVERYBODY || root == c->rank;
  for (int peer = 0; peer < c->size; peer++)
    if (peer != c->rank && (is_with_all || peer == root) && !connect_peer(&c->connections, c->size, peer)) return false;
  return true;
}

API int ncclGather(const void *send, void *recv, size_t count, int type, int root, struct communicator *c, void *stream) {
  size_t bytes = bytes_of(c, count, type);
  note_use(send);
  if (bytes == SIZE_MAX) return INVALID_ARGUMENT;
  if (!connect_root(c, root)) return UNHANDLED_CUDA_ERROR;
  if (root == c->rank) gather(GATHER, send, recv, bytes, c, stream);
  else note_exchange(GATHER, bytes * (size_t)c->size, c, stream);
  return SUCCESS;
}

/* Every rank's slice for this one is equal to the own slice for oneself. */
API int ncclAlltoAll(const void *send, void *recv, size_t count, int type, struct communicator *c, void *stream) {
  size_t bytes = bytes_of(c, count, type);
  if (bytes == SIZE_MAX) return INVALID_ARGUMENT;
  if (!connect_root(c, EVERYBODY)) return UNHANDLED_CUDA_ERROR;
  gather(ALL_TO_ALL, (const char *)send + (size_t)c->rank * bytes, recv, bytes, c, stream);
  return SUCCESS;
}

API int ncclScatter(const void *send, void *recv, size_t count, int type, int root, struct communicator *c, void *stream) {
  size_t bytes = bytes_of(c, count, type);
  if (bytes == SIZE_MAX) return INVALID_ARGUMENT;
  if (!connect_root(c, root)) return UNHANDLED_CUDA_ERROR;
  note_exchange(SCATTER, bytes * (size_t)c->size, c, stream);
  if (root == c->rank) hand_on_values(recv, (const char *)send + (size_t)root * bytes, bytes);
  else forget(recv); /* the root's input is not here */
  return SUCCESS;
}

/* ---- Messages and broadcasts: matched within a group ------------------------------------------------------------- */

struct message {
  const void *p;
  size_t bytes;
  struct communicator *c;
  int peer;
  bool is_send, is_kept; /* kept: where no counterpart is found, what the buffer holds stands */
};
static _Thread_local struct message messages[MAX_MESSAGES];
static _Thread_local int num_messages, group_depth;

/* What the peer sends to this rank is what this rank sends to itself, or else what it sends at all. */
static const struct message *counterpart(const struct message *recv) {
  const struct message *found = NULL;
  for (int i = 0; i < num_messages; i++) {
    const struct message *m = &messages[i];
    if (!m->is_send || m->c->clique != recv->c->clique || m->bytes != recv->bytes) continue;
    bool is_from_peer = m->c == recv->c || m->c->rank == recv->peer;
    if (is_from_peer && (m->peer == m->c->rank || m->peer == recv->c->rank)) return m; /* the first: a broadcast, too */
    if (!found) found = m;
  }
  return found;
}

static void deliver(void) {
  for (int i = 0; i < num_messages; i++) {
    const struct message *m = &messages[i], *other = m->is_send ? NULL : counterpart(m);
    note_use(m->p);
    saw_communication(m->p);
    if (m->is_send) continue;
    if (other && m->bytes <= SMALL_BYTES) hand_on_values((void *)m->p, other->p, m->bytes);
    else if (other || !m->is_kept) forget(m->p);
  }
  num_messages = 0;
}

static void post(struct message m) {
  if (num_messages == MAX_MESSAGES) deliver();
  messages[num_messages++] = m;
  if (!group_depth) deliver();
}

static int post_to(int peer, const void *p, size_t count, int type, struct communicator *c, const void *stream, bool is_send) {
  size_t bytes = bytes_of(c, count, type);
  if (bytes == SIZE_MAX || peer < 0 || peer >= c->size) return INVALID_ARGUMENT;
  if (peer != c->rank && !connect_peer(&c->connections, c->size, peer)) return UNHANDLED_CUDA_ERROR;
  note_exchange(is_send ? SEND : RECEIVE, bytes, c, stream);
  post((struct message){p, bytes, c, peer, .is_send = is_send});
  return SUCCESS;
}

API int ncclSend(const void *send, size_t count, int type, int peer, struct communicator *c, void *stream) {
  return post_to(peer, send, count, type, c, stream, true);
}

API int ncclRecv(void *recv, size_t count, int type, int peer, struct communicator *c, void *stream) {
  return post_to(peer, recv, count, type, c, stream, false);
}

/* Elsewhere than at the root, send means nothing: the root's values are taken to be those in recv. But one broadcast from
 * each rank, in a group, is how PyTorch gathers into a list: there what this rank sent stands for what the others send. */
API int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, struct communicator *c, void *stream) {
  size_t bytes = bytes_of(c, count, type);
  if (bytes == SIZE_MAX) return INVALID_ARGUMENT;
  if (!connect_neighbours(&c->connections, c->size)) return UNHANDLED_CUDA_ERROR;
  note_exchange(BROADCAST, bytes, c, stream);
  bool is_root = root == c->rank;
  if (is_root && recv != send) hand_on_values(recv, send, bytes);
  post((struct message){recv, bytes, c, root, .is_send = is_root, .is_kept = true});
  return SUCCESS;
}

API int ncclBcast(void *buffer, size_t count, int type, int root, struct communicator *c, void *stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, c, stream);
}

API int ncclGroupStart(void) {
  group_depth++;
  return SUCCESS;
}

API int ncclGroupEnd(void) {
  if (group_depth <= 0) return INVALID_USAGE;
  if (--group_depth == 0) deliver();
  return SUCCESS;
}

/* ---- Operations, memory, texts ----------------------------------------------------------------------------------- */

API int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, struct communicator *c) {
  static int count = NUM_BUILTIN_OPS;
  (void)scalar, (void)residence;
  if (!op || !c || !is_type(type)) return INVALID_ARGUMENT;
  *op = __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
  return SUCCESS;
}

API int ncclMemAlloc(void **p, size_t bytes) {
  if (!p) return INVALID_ARGUMENT;
  *p = allocate(current_device(), bytes);
  return *p ? SUCCESS : UNHANDLED_CUDA_ERROR; /* as when cuMemCreate fails */
}

API int ncclMemFree(void *p) { return !p || deallocate(p) ? SUCCESS : INVALID_ARGUMENT; }

API int ncclCommRegister(const struct communicator *c, void *buffer, size_t bytes, void **handle) {
  (void)buffer, (void)bytes;
  return c ? ANSWER(handle, new_handle(), INVALID_ARGUMENT) : INVALID_ARGUMENT;
}

/* "Not supported" is ncclInvalidUsage: what NCCL answers on a machine that lacks what a call needs. */
#define DO(name) DO_RETURNING(int, name, SUCCESS)
#define DO_VOID(name) API void name(void) {}
#define REFUSE(name) API int name(void) { return refuse(#name, INVALID_USAGE); }
/* The names under which profilers that wrap ncclX call the original. */
#define PROFILED(name) API __typeof__(name) p##name __attribute__((alias(#name)));
#include "tables/nccl.inc"
