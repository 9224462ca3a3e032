/* Kernels: registered, looked up, launched into nothing.
 *
 * A launch makes the blocks that its arguments point into unknown (arguments.c). A GPU that the program holds no code for
 * is refused as the real driver does (no kernel image).
 */
#define _GNU_SOURCE
#include "arguments.h"
#include "capture.h"
#include "cuda.h"
#include "fat_binary.h"
#include "graph.h"
#include "transfers.h"
#include "uses.h"
#include "work_log.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Of cudaLaunchConfig_t and CUlaunchConfig alike: after two sizes of three numbers each and that of shared memory. */
const void *stream_of_launch(const void *config) { return config ? ((const void *const *)config)[4] : NULL; }

/* ---- Which function lives in which module: an open hash, filled while the libraries load ------------------------- */

struct function {
  const void *host;                    /* its address, or a handle */
  struct module *module;               /* NULL: not known */
  const char *name;
  const struct parameters *parameters; /* NULL: not known; UNSEARCHED until the first launch */
};

struct code { /* that the program loaded */
  const void *handle;
  const struct kernels *kernels;
  const struct code *next;
};

static const struct parameters UNSEARCHED;
static const struct code *codes;
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

API void **__cudaRegisterFatBinary(void *wrapper) { return (void **)open_module(wrapper); }
API void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
API void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
API char __cudaInitModule(void **handle) { return (void)handle, 1; }

API void __cudaRegisterFunction(void **handle, const char *host, char *dev, const char *name, int limit, void *tid,
                                void *bid, struct dim3 *bdim, struct dim3 *gdim, int *wsize) {
  (void)dev, (void)limit, (void)tid, (void)bid, (void)bdim, (void)gdim, (void)wsize;
  register_function((struct function){host, (struct module *)handle, name, &UNSEARCHED});
}

void note_code(const void *handle, const struct kernels *kernels) {
  struct code *code = kernels ? malloc(sizeof *code) : NULL;
  if (!code) return;
  pthread_mutex_lock(&lock);
  *code = (struct code){handle, kernels, codes};
  codes = code;
  pthread_mutex_unlock(&lock);
}

const struct kernels *kernels_of_code(const void *handle) {
  pthread_mutex_lock(&lock);
  const struct code *of = codes;
  pthread_mutex_unlock(&lock);
  while (of && of->handle != handle) of = of->next;
  return of ? of->kernels : NULL;
}

void name_kernel(const void *handle, const void *code, const char *name) {
  if (!name) return;
  const struct kernels *of = kernels_of_code(code);
  register_function((struct function){handle, NULL, strdup(name), of ? find_kernel(of, name) : NULL});
}

static struct function function_of(const void *host) {
  pthread_mutex_lock(&lock);
  struct function f = function_room ? functions[slot_of(host)] : (struct function){0};
  pthread_mutex_unlock(&lock);
  return f;
}

static struct module *module_of(const void *host) { return function_of(host).module; }

const struct parameters *parameters_of(const void *host) {
  struct function f = function_of(host);
  if (f.parameters != &UNSEARCHED) return f.parameters;
  f.parameters = parameters_in(f.module, f.name);
  register_function(f);
  return f.parameters;
}

/* PyTorch's reductions have what they read and write at the end of their structure, of 64 bytes, behind tables for 25
 * dimensions of which few are set. 0: another kernel. Source: pytorch, aten/src/ATen/native/cuda/Reduce.cuh, ReduceOp. */
static size_t pointers_last(const char *name) {
  enum { POINTERS = 6, OFFSET_AND_FLAGS = 16 };
  return name && strstr(name, "13reduce_kernelI") ? POINTERS * sizeof(void *) + OFFSET_AND_FLAGS : 0;
}

void log_launch(const void *function, struct dim3 grid, struct dim3 block, void *const *params, const void *stream) {
  if (!is_work_logged) return;
  struct function f = function_of(function); /* of the driver's no module is known */
  bool is_known = f.parameters && f.parameters != &UNSEARCHED && f.parameters->count;
  log_kernel(stream, &(struct given_kernel){f.name, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, params,
                                            is_known ? f.parameters->each[0].bytes : SIZE_MAX, !f.module});
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
  forget_launch(params, parameters_of(host), is_work_logged ? pointers_last(function_of(host).name) : 0);
  log_launch(host, grid, block, params, stream);
  return SUCCESS;
}

API int cudaLaunchKernel(const void *host, struct dim3 grid, struct dim3 block, void **params, size_t shared, void *stream) {
  return (void)shared, launch(host, grid, block, params, stream);
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

API int __cudaGetKernel(void **kernel, const void *host) { return *kernel = (void *)host, SUCCESS; }
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
  return (void)host, *blocks = occupancy(threads, shared), SUCCESS;
}

API int cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *host, int blocks, int threads) {
  (void)host, (void)threads;
  *bytes = blocks > 0 ? (size_t)(device(current_device())->shared_bytes_per_multiprocessor / blocks - 1024) : 0;
  return SUCCESS;
}

API int cudaOccupancyMaxActiveClusters(int *clusters, const void *host, const void *config) {
  return (void)host, (void)config, *clusters = device(current_device())->multiprocessors / 2, SUCCESS;
}

API int cudaOccupancyMaxPotentialClusterSize(int *size, const void *host, const void *config) {
  return (void)host, (void)config, *size = 8, SUCCESS;
}

/* Its events before any of its work, or those after: where between its work they lie is not known. */
static void pass_events(const struct graph *graph, void *stream, bool are_first) {
  for (const struct graph_event *e = graph->events; e < graph->events + graph->num_events; e++) {
    if (e->is_first != are_first) continue;
    if (e->is_wait) wait_for_event(stream, e->event);
    else record_event(e->event, stream);
  }
}

void launch_graph(const void *executable, void *stream) {
  if (!executable) return;
  const struct graph *graph = graph_of(executable);
  pass_events(graph, stream, true);
  log_graph(stream, graph->number);
  use_every_block();
  for (size_t i = 0; i < graph->num_written; i++) forget((const void *)graph->written[i]);
  pass_events(graph, stream, false);
}
