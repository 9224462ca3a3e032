/* Kernels: registered, looked up, launched into nothing.
 *
 * A launch makes the blocks that its arguments point into unknown. The number and the sizes of a kernel's arguments are
 * not at hand, so the guess is generous: the arguments of a compiled launch lie together on the caller's stack, and every
 * word there counts as one, from the first argument to the end of the frame that holds the last. A block taken for an
 * argument by chance becomes unknown too early, and is said to be used for too long, which is safe.
 *
 * A GPU that the program holds no code for is refused as the real driver does (no kernel image): the architectures are
 * read from the headers of the fat binaries.
 */
#define _GNU_SOURCE
#include "capture.h"
#include "cuda.h"
#include "graph.h"
#include "transfers.h"
#include "uses.h"
#include "work_log.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#include <unwind.h>

enum { MAX_ARGUMENTS = 256, MAX_FRAMES = 16 };
static const uintptr_t MAX_ARGUMENT_BYTES = 32764; /* CUDA 12.1 and later, compute capability 7.0 and up */

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

static _Thread_local uintptr_t stack_low, stack_high;

/* The unwinder that the C++ library uses, which torch needs. */
static struct {
  pthread_once_t once;
  _Unwind_Reason_Code (*walk)(_Unwind_Trace_Fn, void *);
  uintptr_t (*end_below)(struct _Unwind_Context *);
} walker = {.once = PTHREAD_ONCE_INIT};

static void find_walker(void) {
  void *library = dlopen("libgcc_s.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return;
  walker.walk = dlsym(library, "_Unwind_Backtrace");
  walker.end_below = dlsym(library, "_Unwind_GetCFA");
}

static void find_stack(void) {
  pthread_attr_t attributes;
  void *low;
  size_t bytes;
  if (pthread_getattr_np(pthread_self(), &attributes)) return;
  if (!pthread_attr_getstack(&attributes, &low, &bytes)) {
    stack_low = (uintptr_t)low;
    stack_high = stack_low + bytes;
  }
  pthread_attr_destroy(&attributes);
}

static bool on_stack(uintptr_t p) { return p >= stack_low && p + sizeof p <= stack_high; }

/* Arguments kept off the stack (a member of an object): read by a call that fails, instead of faulting, on an address
 * that is none. */
static bool forget_far_argument(uintptr_t p) {
  uintptr_t words[128];
  struct iovec here = {words, sizeof words}, there = {(void *)(p & ~(uintptr_t)7), sizeof words};
  ssize_t got = p < 4096 ? -1 : process_vm_readv(getpid(), &here, 1, &there, 1, 0);
  if (got > 0) forget_words(words, (size_t)got / sizeof *words);
  return got > 0;
}

struct frame_search {
  uintptr_t inside, end; /* end: 0 until found */
  int num_frames;
};

/* What the unwinder says of a frame is where the one below it ends. */
static _Unwind_Reason_Code visit_frame(struct _Unwind_Context *context, void *asked) {
  struct frame_search *search = asked;
  uintptr_t end = walker.end_below(context);
  if (end > search->inside) search->end = end;
  return search->end || ++search->num_frames == MAX_FRAMES ? _URC_END_OF_STACK : _URC_NO_REASON;
}

/* Where the frame that an address of the stack lies in ends; farther, where the unwinder does not know. */
static uintptr_t end_of_frame(uintptr_t p) {
  pthread_once(&walker.once, find_walker);
  struct frame_search search = {p, 0, 0};
  if (walker.walk && walker.end_below) walker.walk(visit_frame, &search);
  uintptr_t farthest = p > stack_high - MAX_ARGUMENT_BYTES ? stack_high : p + MAX_ARGUMENT_BYTES;
  return search.end && search.end < farthest ? search.end : farthest;
}

void forget_launch(void *const *params) {
  note_launch();
  if (!params) return;
  if (!stack_high) find_stack();
  bool array_on_stack = on_stack((uintptr_t)params);
  uintptr_t low = UINTPTR_MAX, high = 0;
  for (int i = 0; i < MAX_ARGUMENTS; i++) {
    /* Past the last argument the array holds whatever was there before it; stop at what cannot be an argument. */
    if (i && (!array_on_stack || !on_stack((uintptr_t)(params + i)))) break;
    uintptr_t p = (uintptr_t)params[i];
    if (!on_stack(p)) {
      if (high || i >= 8 || !forget_far_argument(p)) break;
      continue;
    }
    if (p < low) low = p;
    if (p > high) high = p;
  }
  if (!high) return;
  low &= ~(uintptr_t)7;
  forget_words((const uintptr_t *)low, (end_of_frame(high) - low) / sizeof(uintptr_t));
}

/* Of cudaLaunchConfig_t and CUlaunchConfig alike: after two sizes of three numbers each and that of shared memory. */
const void *stream_of_launch(const void *config) { return config ? ((const void *const *)config)[4] : NULL; }

/* ---- Fat binaries ------------------------------------------------------------------------------------------------ */

enum { MAX_IMAGES = 64, PTX = 1, CUBIN = 2 };

struct module {
  const unsigned char *fatbin;
  int num_images;                      /* -1: not read yet; 0: format unknown, taken to run anywhere */
  struct { int kind, arch; } images[MAX_IMAGES];
};

struct wrapper { /* what __cudaRegisterFatBinary is handed */
  int magic, version;
  const unsigned char *data;
  void *unused;
};

struct fatbin_header {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};

struct image_header {
  uint16_t kind, attribute;
  uint32_t header_bytes;
  uint64_t bytes;
  uint32_t compressed_bytes, unused;
  uint16_t minor, major;
  uint32_t arch; /* 90 for sm_90 */
};

/* Several threads may launch the first kernels of a module at once (autograd has one for each device): the images are
 * counted last. */
static void read_images(struct module *m) {
  int count = 0;
  const struct fatbin_header *header = (const void *)m->fatbin;
  if (header && header->magic == 0xba55ed50u) {
    const unsigned char *at = m->fatbin + header->header_bytes, *end = at + header->bytes;
    while (at + sizeof(struct image_header) <= end && count < MAX_IMAGES) {
      const struct image_header *image = (const void *)at;
      if (image->kind != PTX && image->kind != CUBIN) break;
      m->images[count].kind = image->kind;
      m->images[count++].arch = (int)image->arch;
      at += image->header_bytes + image->bytes;
    }
  }
  __atomic_store_n(&m->num_images, count, __ATOMIC_RELEASE);
}

/* The architecture of the image that the driver would take: a cubin of the same major and not a higher minor, else PTX
 * to compile. 0: none fits. is_ptx says which. */
static int best_image(struct module *m, int capability, bool *is_ptx) {
  if (__atomic_load_n(&m->num_images, __ATOMIC_ACQUIRE) < 0) read_images(m);
  if (!m->num_images) return capability;
  int best = 0, best_ptx = 0;
  for (int i = 0; i < m->num_images; i++) {
    int arch = m->images[i].arch;
    if (arch > capability) continue;
    if (m->images[i].kind == CUBIN && arch / 10 == capability / 10 && arch > best) best = arch;
    if (m->images[i].kind == PTX && arch > best_ptx) best_ptx = arch;
  }
  *is_ptx = !best;
  return best ? best : best_ptx;
}

API void **__cudaRegisterFatBinary(void *fatbin) {
  struct module *m = calloc(1, sizeof *m);
  if (!m) abort();
  m->fatbin = fatbin ? ((const struct wrapper *)fatbin)->data : NULL;
  m->num_images = -1;
  return (void **)m;
}

API void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
API void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
API char __cudaInitModule(void **handle) { return (void)handle, 1; }

/* ---- Which function lives in which module: an open hash, filled while the libraries load ------------------------- */

struct function {
  const void *host;      /* its address, or a handle */
  struct module *module; /* NULL: not known */
  const char *name;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct function *functions;
static size_t num_functions, function_room;

static size_t slot_of(const void *host) {
  size_t i = (size_t)(((uintptr_t)host >> 4) * 0x9e3779b97f4a7c15u) & (function_room - 1);
  while (functions[i].host && functions[i].host != host) i = (i + 1) & (function_room - 1);
  return i;
}

static void grow_functions(void) {
  struct function *old = functions;
  size_t old_room = function_room;
  function_room = old_room ? old_room * 2 : 1 << 16;
  functions = calloc(function_room, sizeof *functions);
  if (!functions) abort();
  for (size_t i = 0; i < old_room; i++)
    if (old[i].host) functions[slot_of(old[i].host)] = old[i];
  free(old);
}

static void register_function(struct function function) {
  pthread_mutex_lock(&lock);
  if (num_functions * 2 >= function_room) grow_functions();
  struct function *f = &functions[slot_of(function.host)];
  if (!f->host) num_functions++;
  *f = function;
  pthread_mutex_unlock(&lock);
}

API void __cudaRegisterFunction(void **handle, const char *host, char *dev, const char *name, int limit, void *tid,
                                void *bid, struct dim3 *bdim, struct dim3 *gdim, int *wsize) {
  (void)dev, (void)limit, (void)tid, (void)bid, (void)bdim, (void)gdim, (void)wsize;
  register_function((struct function){host, (struct module *)handle, name});
}

void name_kernel(const void *handle, const char *name) {
  if (name) register_function((struct function){handle, NULL, strdup(name)});
}

static struct function function_of(const void *host) {
  pthread_mutex_lock(&lock);
  struct function f = function_room ? functions[slot_of(host)] : (struct function){0};
  pthread_mutex_unlock(&lock);
  return f;
}

static struct module *module_of(const void *host) { return function_of(host).module; }

void log_launch(const void *function, struct dim3 grid, struct dim3 block, void *const *params, const void *stream) {
  struct function f = is_work_logged ? function_of(function) : (struct function){0}; /* of the driver's no module is known */
  log_kernel(stream, &(struct kernel){f.name, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, params, !f.module});
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

static int launch(const void *host, struct dim3 grid, struct dim3 block, void *const *params, const void *stream) {
  const struct device *d = device(current_device());
  struct module *m = module_of(host);
  bool is_ptx;
  if (m && !best_image(m, d->major * 10 + d->minor, &is_ptx)) return fail(NO_BINARY_FOR_GPU);
  int status = refuse_work(stream);
  if (status) return status;
  note_work(stream);
  begin_operands();
  forget_launch(params);
  log_launch(host, grid, block, params, stream);
  return SUCCESS;
}

API int cudaLaunchKernel(const void *host, struct dim3 grid, struct dim3 block, void **params, size_t shared, void *stream) {
  (void)shared;
  return launch(host, grid, block, params, stream);
}
ALIAS(cudaLaunchKernel_ptsz, cudaLaunchKernel);
ALIAS(cudaLaunchCooperativeKernel, cudaLaunchKernel);
ALIAS(cudaLaunchCooperativeKernel_ptsz, cudaLaunchKernel);

/* Launches by a kernel handle from __cudaGetKernel, which is the host address itself. */
ALIAS(__cudaLaunchKernel, cudaLaunchKernel);
ALIAS(__cudaLaunchKernel_ptsz, cudaLaunchKernel);

API int cudaLaunchKernelExC(const void *config, const void *host, void **params) {
  const struct dim3 *sizes = config; /* of the grid, and of a block */
  return launch(host, sizes[0], sizes[1], params, stream_of_launch(config));
}
ALIAS(cudaLaunchKernelExC_ptsz, cudaLaunchKernelExC);

API int __cudaGetKernel(void **kernel, const void *host) {
  *kernel = (void *)host;
  return SUCCESS;
}
ALIAS(cudaGetKernel, __cudaGetKernel);
ALIAS(cudaGetFuncBySymbol, __cudaGetKernel);

struct configuration {
  struct dim3 grid, block;
  size_t shared;
  void *stream;
};
static _Thread_local struct configuration pushed[16];
static _Thread_local int num_pushed;

API unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared, void *stream) {
  if (num_pushed < 16) pushed[num_pushed++] = (struct configuration){grid, block, shared, stream};
  return 0;
}

API int __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared, void *stream) {
  if (!num_pushed) return fail(INVALID_VALUE);
  struct configuration *c = &pushed[--num_pushed];
  *grid = c->grid;
  *block = c->block;
  *shared = c->shared;
  *(void **)stream = c->stream;
  return SUCCESS;
}

/* ---- What a function is like -------------------------------------------------------------------------------------- */

enum { ASSUMED_REGISTERS = 32 };

struct function_attributes {
  size_t shared_bytes, const_bytes, local_bytes;
  int max_threads, registers, ptx_version, binary_version, cache_mode, max_dynamic_shared_bytes, carveout;
  int cluster_must_be_set, cluster_width, cluster_height, cluster_depth, cluster_policy, non_portable_cluster;
  int reserved[16];
};

API int cudaFuncGetAttributes(struct function_attributes *a, const void *host) {
  const struct device *d = device(current_device());
  int capability = d->major * 10 + d->minor;
  struct module *m = module_of(host);
  bool is_ptx = false;
  int arch = m ? best_image(m, capability, &is_ptx) : capability;
  if (!arch) return fail(NO_BINARY_FOR_GPU);
  memset(a, 0, sizeof *a);
  a->max_threads = 1024;
  a->registers = ASSUMED_REGISTERS;
  a->ptx_version = arch;
  a->binary_version = is_ptx ? capability : arch;
  a->max_dynamic_shared_bytes = d->shared_bytes_per_block;
  return SUCCESS;
}

/* Blocks that fit a multiprocessor side by side, were a thread to use ASSUMED_REGISTERS. Grid sizes hang on it, and
 * through them scratch memory of some reductions and sorts. */
int occupancy(int block_threads, size_t shared_bytes) {
  const struct device *d = device(current_device());
  if (block_threads <= 0) return 0;
  int warps = (block_threads + 31) / 32, blocks = d->blocks_per_multiprocessor;
  int by_threads = d->threads_per_multiprocessor / (warps * 32);
  int by_registers = 65536 / (ASSUMED_REGISTERS * warps * 32);
  if (by_threads < blocks) blocks = by_threads;
  if (by_registers < blocks) blocks = by_registers;
  int by_shared = shared_bytes ? d->shared_bytes_per_multiprocessor / (int)(shared_bytes + 1024) : blocks;
  return by_shared < blocks ? by_shared : blocks;
}

API int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host, int threads, size_t shared,
                                                               unsigned flags) {
  (void)host, (void)flags;
  *blocks = occupancy(threads, shared);
  return SUCCESS;
}

API int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int threads, size_t shared) {
  (void)host;
  *blocks = occupancy(threads, shared);
  return SUCCESS;
}

API int cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *host, int blocks, int threads) {
  (void)host, (void)threads;
  *bytes = blocks > 0 ? (size_t)(device(current_device())->shared_bytes_per_multiprocessor / blocks - 1024) : 0;
  return SUCCESS;
}

API int cudaOccupancyMaxActiveClusters(int *clusters, const void *host, const void *config) {
  (void)host, (void)config;
  *clusters = device(current_device())->multiprocessors / 2;
  return SUCCESS;
}

API int cudaOccupancyMaxPotentialClusterSize(int *size, const void *host, const void *config) {
  (void)host, (void)config;
  *size = 8;
  return SUCCESS;
}

void launch_graph(const void *executable, const void *stream) {
  log_graph(stream, number_of_graph(executable));
  use_every_block();
  size_t count;
  const uintptr_t *written = writes_of(executable, &count);
  for (size_t i = 0; i < count; i++) forget((const void *)written[i]);
}
