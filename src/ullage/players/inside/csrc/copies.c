/* Copies between host and device, and pinned memory, in a process with a real GPU.
 *
 * The calls of the CUDA runtime that torch's libraries make are looked at and passed on. A row says what the phantom's
 * own recorder says (players/phantom/csrc/machine/transfers.c): how large, pinned or pageable, on which stream, and whether the
 * host waited for the copy before it gave the GPU anything else. The last MAX_COPIES are kept, in a ring.
 *
 * Pinned memory is what was seen to be pinned. For other memory the driver is asked, as it may have been pinned before the
 * recording began, or by a library that is not looked at.
 */
#include "copies.h"
#include "handed.h"
#include "phantom.h"
#include "slots.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_COPIES = 1 << 15, MAX_LEVELS = 1 << 14, OTHER_CALLS = 16 };
enum { TO_DEVICE = 1, PINNED = 2, WAITED_FOR = 4 };                             /* flags of a row */
enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, BY_ADDRESS = 4 };                /* cudaMemcpyKind */
enum { UNREGISTERED_MEMORY = 0, HOST_MEMORY = 1, DEVICE_MEMORY = 2, MANAGED_MEMORY = 3 }; /* cudaMemoryType */
static const size_t SMALL = 64 << 10; /* as the phantom's recorder: nobody waits long for less */

struct copy {
  uint64_t position;
  int64_t address, bytes, stream;
  int32_t device, flags;
};

struct level {
  uint64_t position, bytes;
};

struct range {
  uintptr_t start;
  size_t bytes;
};

struct extent { /* dim3 */
  unsigned x, y, z;
};

struct pointer_attributes {
  int type, device;
  void *device_pointer, *host_pointer;
  long reserved[8]; /* since CUDA 13 */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_noting;
static struct copy copies[MAX_COPIES];
static struct level levels[MAX_LEVELS];
static uint64_t num_copies, num_levels, pinned_bytes, highest_bytes;
static void *pinned; /* tsearch tree, ordered by address */
static _Thread_local uint64_t last_copy, last_position; /* 1 + the number of this thread's last copy, until it does more */

static int (*next_copy_async)(void *, const void *, size_t, int, void *);
static int (*next_copy)(void *, const void *, size_t, int);
static int (*next_synchronize)(void *);
static int (*next_launch)(const void *, struct extent, struct extent, void **, size_t, void *);
static int (*next_launch_extended)(const void *, const void *, void **);
static int (*next_launch_graph)(void *, void *);
static int (*next_host_alloc)(void **, size_t, unsigned);
static int (*next_malloc_host)(void **, size_t);
static int (*next_free_host)(void *);
static int (*next_register)(void *, size_t, unsigned);
static int (*next_unregister)(void *);
static int (*get_attributes)(struct pointer_attributes *, const void *);
static int (*get_device)(int *);
static int (*get_last_error)(void);

/* ---- What is pinned ---------------------------------------------------------------------------------------------- */

/* Overlapping ranges compare as equal. */
static int by_address(const void *a, const void *b) {
  const struct range *x = a, *y = b;
  if (x->start + x->bytes <= y->start) return -1;
  return x->start >= y->start + y->bytes;
}

static struct range *holder(const void *p) {
  struct range key = {(uintptr_t)p, 1};
  struct range **node = tfind(&key, &pinned, by_address);
  return node ? *node : NULL;
}

static void note_level(void) {
  if (pinned_bytes > highest_bytes) highest_bytes = pinned_bytes;
  levels[num_levels++ % MAX_LEVELS] = (struct level){event_position(), pinned_bytes};
}

static void note_pinned(void *p, size_t bytes) {
  struct range *range = is_noting && p && bytes ? malloc(sizeof *range) : NULL;
  if (!range) return;
  *range = (struct range){(uintptr_t)p, bytes};
  pthread_mutex_lock(&lock);
  struct range **node = tsearch(range, &pinned, by_address);
  if (node && *node == range) {
    pinned_bytes += bytes;
    note_level();
    range = NULL;
  }
  pthread_mutex_unlock(&lock);
  free(range);
}

static void note_unpinned(void *p) {
  if (!is_noting) return;
  pthread_mutex_lock(&lock);
  struct range *range = holder(p);
  if (range && range->start == (uintptr_t)p) {
    tdelete(range, &pinned, by_address);
    pinned_bytes -= range->bytes;
    note_level();
  } else {
    range = NULL; /* from before the recording */
  }
  pthread_mutex_unlock(&lock);
  free(range);
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

static int memory_type(const void *p) {
  struct pointer_attributes a = {0};
  if (!get_attributes) return UNREGISTERED_MEMORY;
  if (!get_attributes(&a, p)) return a.type;
  if (get_last_error) get_last_error(); /* ours, which the program is not to see */
  return UNREGISTERED_MEMORY;
}

static bool is_pinned(const void *host) {
  pthread_mutex_lock(&lock);
  bool is_known = holder(host) != NULL;
  pthread_mutex_unlock(&lock);
  if (is_known) return true;
  int type = memory_type(host);
  return type == HOST_MEMORY || type == MANAGED_MEMORY;
}

static int direction(const void *dst, const void *src, int kind) {
  if (kind != BY_ADDRESS) return kind;
  bool to_device = memory_type(dst) == DEVICE_MEMORY;
  if (to_device == (memory_type(src) == DEVICE_MEMORY)) return 0;
  return to_device ? HOST_TO_DEVICE : DEVICE_TO_HOST;
}

static void note_copy(void *dst, const void *src, size_t bytes, int kind, const void *stream, int flags) {
  last_copy = 0;
  if (!is_noting || bytes < SMALL) return;
  kind = direction(dst, src, kind);
  if (kind != HOST_TO_DEVICE && kind != DEVICE_TO_HOST) return;
  bool to_device = kind == HOST_TO_DEVICE;
  const void *on_device = to_device ? dst : src;
  flags |= to_device * TO_DEVICE | is_pinned(to_device ? src : dst) * PINNED;
  int device = 0;
  if (get_device) get_device(&device);
  last_position = event_position();
  pthread_mutex_lock(&lock);
  copies[num_copies++ % MAX_COPIES] = (struct copy){last_position, (int64_t)(uintptr_t)on_device, (int64_t)bytes,
                                                    (int64_t)(uintptr_t)stream, device, flags};
  last_copy = num_copies;
  pthread_mutex_unlock(&lock);
}

void note_launch(void) { last_copy = 0; }

/* Libraries launch kernels unseen; whoever computes has allocated a result. */
static void note_wait(const void *stream) {
  uint64_t number = last_copy;
  last_copy = 0;
  if (!number || !is_noting || last_position != event_position()) return;
  pthread_mutex_lock(&lock);
  struct copy *c = &copies[(number - 1) % MAX_COPIES];
  if (number <= num_copies && number + MAX_COPIES > num_copies && c->stream == (int64_t)(uintptr_t)stream)
    c->flags |= WAITED_FOR;
  pthread_mutex_unlock(&lock);
}

/* ---- In front of the CUDA runtime -------------------------------------------------------------------------------- */

static int copy_async(void *dst, const void *src, size_t bytes, int kind, void *stream) {
  int status = next_copy_async(dst, src, bytes, kind, stream);
  if (!status) note_copy(dst, src, bytes, kind, stream, 0);
  return status;
}

static int copy(void *dst, const void *src, size_t bytes, int kind) {
  int status = next_copy(dst, src, bytes, kind);
  if (!status) note_copy(dst, src, bytes, kind, NULL, WAITED_FOR);
  return status;
}

static int synchronize(void *stream) {
  note_wait(stream);
  return next_synchronize(stream);
}

static int launch(const void *kernel, struct extent grid, struct extent block, void **arguments, size_t shared, void *stream) {
  note_launch();
  return next_launch(kernel, grid, block, arguments, shared, stream);
}

static int launch_extended(const void *configuration, const void *kernel, void **arguments) {
  note_launch();
  return next_launch_extended(configuration, kernel, arguments);
}

static int launch_graph(void *graph, void *stream) {
  note_launch();
  return next_launch_graph(graph, stream);
}

static int host_alloc(void **p, size_t bytes, unsigned flags) {
  int status = next_host_alloc(p, bytes, flags);
  if (!status) note_pinned(*p, bytes);
  return status;
}

static int malloc_host(void **p, size_t bytes) {
  int status = next_malloc_host(p, bytes);
  if (!status) note_pinned(*p, bytes);
  return status;
}

static int register_host(void *p, size_t bytes, unsigned flags) {
  int status = next_register(p, bytes, flags);
  if (!status) note_pinned(p, bytes);
  return status;
}

/* Before the call: another thread may be given the same address right after it. */
static int free_host(void *p) {
  note_unpinned(p);
  return next_free_host(p);
}

static int unregister_host(void *p) {
  note_unpinned(p);
  return next_unregister(p);
}

struct call {
  const char *name;
  const void *ours;
  void *next; /* where the address of the runtime's own goes */
};

static void find_function(const char *name, void *place) {
  void *function = function_of(name);
  memcpy(place, &function, sizeof function);
}

void watch_copies(void) {
  const struct call calls[] = {
      {"cudaMemcpyAsync", (const void *)copy_async, &next_copy_async},
      {"cudaMemcpy", (const void *)copy, &next_copy},
      {"cudaStreamSynchronize", (const void *)synchronize, &next_synchronize},
      {"cudaLaunchKernel", (const void *)launch, &next_launch},
      {"cudaLaunchKernelExC", (const void *)launch_extended, &next_launch_extended},
      {"cudaGraphLaunch", (const void *)launch_graph, &next_launch_graph},
      {"cudaHostAlloc", (const void *)host_alloc, &next_host_alloc},
      {"cudaMallocHost", (const void *)malloc_host, &next_malloc_host},
      {"cudaFreeHost", (const void *)free_host, &next_free_host},
      {"cudaHostRegister", (const void *)register_host, &next_register},
      {"cudaHostUnregister", (const void *)unregister_host, &next_unregister},
  };
  struct replacement list[OTHER_CALLS] = {{0}};
  size_t num_calls = 0;
  find_function("cudaPointerGetAttributes", &get_attributes);
  find_function("cudaGetDevice", &get_device);
  find_function("cudaGetLastError", &get_last_error);
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    void *next = function_of(calls[i].name);
    if (!next) continue;
    memcpy(calls[i].next, &next, sizeof next);
    list[num_calls++] = (struct replacement){calls[i].name, calls[i].ours};
  }
  is_noting = true;
  replace_calls("libtorch_cuda.so", list);
  replace_calls("libc10_cuda.so", list);
  replace_calls("libtorch_python.so", list);
}

void stop_copies(void) { is_noting = false; }

void forget_copies(void) {
  pthread_mutex_lock(&lock);
  is_noting = false;
  while (pinned) {
    struct range *range = *(struct range **)pinned;
    tdelete(range, &pinned, by_address);
    free(range);
  }
  num_copies = num_levels = pinned_bytes = highest_bytes = 0;
  pthread_mutex_unlock(&lock);
}

/* ---- For the recorder -------------------------------------------------------------------------------------------- */

/* The copies that are kept, the oldest first: position, device, address, bytes, stream, flags. Answers how many, and in
 * `lost` how many were before them. `rows` has room for all that can be kept; NULL only asks how much that is. */
API uint64_t ullage_copies(int64_t (*rows)[6], uint64_t *lost) {
  if (!rows) return MAX_COPIES;
  pthread_mutex_lock(&lock);
  uint64_t count = num_copies < MAX_COPIES ? num_copies : MAX_COPIES;
  *lost = num_copies - count;
  for (uint64_t i = 0; i < count; i++) {
    const struct copy *c = &copies[(num_copies - count + i) % MAX_COPIES];
    const int64_t row[6] = {(int64_t)c->position, c->device, c->address, c->bytes, c->stream, c->flags};
    memcpy(rows[i], row, sizeof row);
  }
  pthread_mutex_unlock(&lock);
  return count;
}

/* How much was pinned whenever it changed: position, bytes; `highest`: the most. Otherwise like ullage_copies. */
API uint64_t ullage_pinned_levels(int64_t (*rows)[2], uint64_t *highest) {
  if (!rows) return MAX_LEVELS;
  pthread_mutex_lock(&lock);
  uint64_t count = num_levels < MAX_LEVELS ? num_levels : MAX_LEVELS;
  *highest = highest_bytes;
  for (uint64_t i = 0; i < count; i++) {
    const struct level *l = &levels[(num_levels - count + i) % MAX_LEVELS];
    rows[i][0] = (int64_t)l->position;
    rows[i][1] = (int64_t)l->bytes;
  }
  pthread_mutex_unlock(&lock);
  return count;
}
