/* The CUDA driver: devices, contexts, streams, modules, and the look-up of its own entry points. */
#define _GNU_SOURCE
#include "arguments.h"
#include "capture.h"
#include "cuda.h"
#include "fat_binary.h"
#include "graph.h"
#include "transfers.h"
#include "uses.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* ---- Errors ------------------------------------------------------------------------------------------------------- */

API const char *cudaGetErrorName(int status);
API const char *cudaGetErrorString(int status);

/* The driver's names differ from the runtime's; the texts are the same. */
API int cuGetErrorName(int status, const char **text) {
  static const struct { int status; const char *name; } NAMES[] = {
      {SUCCESS, "CUDA_SUCCESS"}, {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"}, {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
      {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"}, {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
      {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
      {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"}, {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"}, {NOT_READY, "CUDA_ERROR_NOT_READY"},
      {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
      {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}, {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT"},
      {CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"}, {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
      {CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"}, {CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
      {CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE"}, {CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
      {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE"}, {HOST_MEMORY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
      {HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
      {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"}};
  for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
    if (NAMES[i].status == status) return *text = NAMES[i].name, SUCCESS;
  return *text = NULL, INVALID_VALUE;
}

API int cuGetErrorString(int status, const char **text) { return *text = cudaGetErrorString(status), SUCCESS; }

/* ---- Devices and contexts ----------------------------------------------------------------------------------------- */

static void *context_of(int index) { return (void *)(uintptr_t)(0x10000 + 16 * index); }
static int device_of_context(const void *context) { return (int)(((uintptr_t)context - 0x10000) / 16); }

API int cuInit(unsigned flags) { return (void)flags, num_devices() ? SUCCESS : NO_DEVICE; }
API int cuDriverGetVersion(int *version) { return *version = library_version("cudart", 13020), SUCCESS; }
API int cuDeviceGetCount(int *count) { return *count = num_devices(), SUCCESS; }
API int cuDeviceGet(int *dev, int index) { return *dev = index, index < num_devices() ? SUCCESS : INVALID_DEVICE; }
API int cuDeviceGetAttribute(int *value, int attribute, int dev) { return device_attribute(value, attribute, dev); }
API int cuDeviceGetName(char *text, int room, int dev) { return snprintf(text, (size_t)room, "%s", device(dev)->name), SUCCESS; }
API int cuDeviceTotalMem_v2(size_t *bytes, int dev) { return *bytes = total_bytes(dev), SUCCESS; }
ALIAS(cuDeviceTotalMem, cuDeviceTotalMem_v2);
API int cuDeviceGetUuid_v2(unsigned char *uuid, int dev) { return device_uuid(place_of(dev), uuid), SUCCESS; }
ALIAS(cuDeviceGetUuid, cuDeviceGetUuid_v2);
API int cuDeviceGetPCIBusId(char *text, int room, int dev) { return snprintf(text, (size_t)room, "0000:%02X:00.0", place_of(dev) + 1), SUCCESS; }
API int cuDeviceCanAccessPeer(int *can, int a, int b) { return *can = a != b && device(a)->peer_access, SUCCESS; }
API int cuDeviceGetP2PAttribute(int *value, int attribute, int a, int b) { return *value = attribute == 2 && a != b && device(a)->peer_access, SUCCESS; }

API int cuDeviceComputeCapability(int *major, int *minor, int dev) {
  *major = device(dev)->major;
  *minor = device(dev)->minor;
  return SUCCESS;
}

API int cuCtxGetCurrent(void **context) { return *context = num_devices() ? context_of(current_device()) : NULL, SUCCESS; }
API int cuCtxSetCurrent(void *context) { return !context || set_current_device(device_of_context(context)) ? SUCCESS : INVALID_CONTEXT; }
ALIAS(cuCtxPushCurrent_v2, cuCtxSetCurrent);
ALIAS(cuCtxPushCurrent, cuCtxSetCurrent);
ALIAS(cuCtxPopCurrent_v2, cuCtxGetCurrent);
ALIAS(cuCtxPopCurrent, cuCtxGetCurrent);
API int cuCtxGetDevice(int *dev) { return *dev = current_device(), SUCCESS; }
API int cuCtxGetDevice_v2(int *dev, void *context) {
  *dev = context ? device_of_context(context) : current_device();
  return *dev < 0 ? INVALID_CONTEXT : SUCCESS;
}
API int cuCtxGetFlags(unsigned *flags) { return *flags = 0, SUCCESS; }
API int cuCtxGetApiVersion(void *context, unsigned *version) { return (void)context, *version = 3020, SUCCESS; }
API int cuCtxGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, SUCCESS; }
API int cuCtxCreate_v2(void **context, unsigned flags, int dev) { return (void)flags, *context = context_of(dev), SUCCESS; }
ALIAS(cuCtxCreate, cuCtxCreate_v2);
API int cuDevicePrimaryCtxRetain(void **context, int dev) {
  open_context(dev);
  return *context = context_of(dev), SUCCESS;
}

API int cuDevicePrimaryCtxGetState(int dev, unsigned *flags, int *active) {
  if (flags) *flags = 0;
  *active = has_context(dev);
  return SUCCESS;
}

/* ---- Streams and events ------------------------------------------------------------------------------------------- */

API int cuStreamCreate(void **stream, unsigned flags) { return create_stream(stream, flags, 0); }
API int cuStreamCreateWithPriority(void **s, unsigned flags, int priority) { return create_stream(s, flags, priority); }
API int cuStreamDestroy_v2(void *stream) { return destroy_stream(stream); }
ALIAS(cuStreamDestroy, cuStreamDestroy_v2);
API int cuStreamGetPriority(void *stream, int *priority) { return *priority = stream_priority(stream), SUCCESS; }
API int cuStreamGetFlags(void *stream, unsigned *flags) { return *flags = stream_flags(stream), SUCCESS; }
API int cuStreamGetId(void *stream, unsigned long long *id) { return *id = (uintptr_t)stream, SUCCESS; }
API int cuStreamGetCtx(void *stream, void **context) { return (void)stream, *context = context_of(current_device()), SUCCESS; }
API int cuStreamGetDevice(void *stream, int *dev) { return (void)stream, *dev = current_device(), SUCCESS; }
API int cuStreamIsCapturing(void *stream, int *status) { return *status = capture_status(stream, NULL), SUCCESS; }
API int cuStreamBeginCapture_v2(void *stream, int mode) { return begin_capture(stream, NULL, mode); }
API int cuThreadExchangeStreamCaptureMode(int *mode) { return *mode = exchange_capture_mode(*mode), SUCCESS; }
API int cuStreamEndCapture(void *stream, void **graph) { return end_capture(stream, graph); }
API int cuEventCreate(void **event, unsigned flags) { return create_event(event, flags); }
API int cuEventRecord(void *event, void *stream) { return record_event(event, stream); }
API int cuEventRecordWithFlags(void *event, void *stream, unsigned flags) { return (void)flags, record_event(event, stream); }
API int cuEventDestroy_v2(void *event) { return destroy_event(event); }
ALIAS(cuEventDestroy, cuEventDestroy_v2);
API int cuEventQuery(void *event) { return query_event(event, __builtin_return_address(0)); }
API int cuEventSynchronize(void *event) { return synchronize_event(event); }
API int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return (void)flags, wait_for_event(stream, event); }
API int cuStreamQuery(void *stream) { return query_stream(stream, __builtin_return_address(0)); }
API int cuCtxSynchronize(void) { return synchronize_device(); }
ALIAS(cuCtxSynchronize_v2, cuCtxSynchronize);
API int cuEventElapsedTime(float *ms, void *start, void *end) { return elapsed_ms(ms, start, end); }
ALIAS(cuEventElapsedTime_v2, cuEventElapsedTime);

/* ---- Modules and kernels ------------------------------------------------------------------------------------------ */

static int give_handle(void **out) { return out ? (*out = new_handle(), SUCCESS) : INVALID_VALUE; }

/* Of code that is loaded, the kernels' parameters are noted: the program may free its image. */
static int load(void **handle, const struct kernels *kernels) {
  int status = give_handle(handle);
  if (!status) note_code(*handle, kernels);
  return status;
}

API int cuModuleLoad(void **module, const char *file) { return load(module, kernels_of_file(file)); }
API int cuModuleLoadData(void **module, const void *image) { return load(module, kernels_of_image(image)); }
API int cuModuleLoadDataEx(void **module, const void *image) { return load(module, kernels_of_image(image)); }
ALIAS(cuModuleLoadFatBinary, cuModuleLoadData);
API int cuModuleGetFunction(void **function, void *module, const char *name) {
  int status = give_handle(function);
  if (!status) name_kernel(*function, module, name);
  return status;
}
API int cuModuleGetLoadingMode(int *mode) { return *mode = 2, SUCCESS; /* lazy */ }
API int cuLibraryLoadData(void **library, const void *image) { return load(library, kernels_of_image(image)); }
API int cuLibraryLoadFromFile(void **library, const char *file) { return load(library, kernels_of_file(file)); }
API int cuLibraryGetKernel(void **kernel, void *library, const char *name) { return cuModuleGetFunction(kernel, library, name); }

API int cuLibraryGetKernelCount(unsigned *count, void *library) {
  const struct kernels *kernels = kernels_of_code(library);
  if (!kernels || !kernels->count) return NOT_SUPPORTED; /* which are in it is not known */
  return *count = (unsigned)kernels->count, SUCCESS;
}

API int cuLibraryEnumerateKernels(void **found, unsigned room, void *library) {
  const struct kernels *kernels = kernels_of_code(library);
  if (!kernels || !kernels->count) return NOT_SUPPORTED; /* which are in it is not known */
  int status = SUCCESS;
  for (unsigned i = 0; !status && i < room && i < kernels->count; i++) {
    status = cuModuleGetFunction(found + i, library, kernels->each[i].name);
  }
  return status;
}

API int cuLibraryGetModule(void **module, void *library) { return *module = library, SUCCESS; }
API int cuKernelGetFunction(void **function, void *kernel) { return *function = kernel, SUCCESS; }
API int cuFuncGetModule(void **module, void *function) { return (void)function, give_handle(module); }
API int cuLinkCreate_v2(unsigned n, int *options, void **values, void **state) { return (void)n, (void)options, (void)values, give_handle(state); }
API int cuLinkAddData_v2(void *state) { return (void)state, SUCCESS; }

/* What the linker made: an image that cuModuleLoadData takes as it takes any. */
API int cuLinkComplete(void *state, void **image, size_t *bytes) {
  static char linked[16];
  (void)state;
  *image = linked;
  *bytes = sizeof linked;
  return SUCCESS;
}

API int cuFuncGetAttribute(int *value, int attribute, void *function) {
  enum { MAX_THREADS = 0, REGISTERS = 4, PTX_VERSION = 5, BINARY_VERSION = 6, MAX_DYNAMIC_SHARED = 8 };
  const struct device *d = device(current_device());
  (void)function;
  *value = attribute == MAX_THREADS          ? 1024
           : attribute == REGISTERS          ? 32
           : attribute == MAX_DYNAMIC_SHARED ? d->shared_bytes_per_block
           : attribute == PTX_VERSION || attribute == BINARY_VERSION ? d->major * 10 + d->minor
                                                                     : 0;
  return SUCCESS;
}

API int cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *bytes) {
  const struct parameters *parameters = parameters_of(function);
  if (!parameters) return NOT_SUPPORTED;
  if (!offset || index >= parameters->count) return INVALID_VALUE;
  *offset = parameters->each[index].offset;
  if (bytes) *bytes = parameters->each[index].bytes;
  return SUCCESS;
}
ALIAS(cuKernelGetParamInfo, cuFuncGetParamInfo);

API int cuFuncGetParamCount(void *function, size_t *count) {
  const struct parameters *parameters = parameters_of(function);
  if (!parameters || !count) return parameters ? INVALID_VALUE : NOT_SUPPORTED;
  return *count = parameters->count, SUCCESS;
}
ALIAS(cuKernelGetParamCount, cuFuncGetParamCount);

API int cuKernelGetAttribute(int *value, int attribute, void *kernel, int dev) { return (void)dev, cuFuncGetAttribute(value, attribute, kernel); }

API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared) {
  (void)function;
  return *blocks = occupancy(threads, shared), SUCCESS;
}

API int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *b, void *f, int threads, size_t shared, unsigned flags) {
  return (void)flags, cuOccupancyMaxActiveBlocksPerMultiprocessor(b, f, threads, shared);
}

API int cuOccupancyMaxActiveClusters(int *clusters, void *function, const void *config) {
  (void)function, (void)config;
  return *clusters = device(current_device())->multiprocessors / 2, SUCCESS;
}

/* A packed argument buffer comes as {POINTER, p, SIZE, &bytes, END}. */
static void forget_extra(void *const *extra) {
  enum { BUFFER_POINTER = 1, BUFFER_SIZE = 2 };
  const void *buffer = NULL;
  size_t bytes = 0;
  for (int i = 0; extra && extra[i] && i < 8; i += 2) {
    if ((uintptr_t)extra[i] == BUFFER_POINTER) buffer = extra[i + 1];
    if ((uintptr_t)extra[i] == BUFFER_SIZE) bytes = *(size_t *)extra[i + 1];
  }
  if (buffer) forget_words(buffer, bytes / sizeof(uintptr_t));
}

static int launch_function(const void *function, struct dim3 grid, struct dim3 block, void *const *params, void *const *extra,
                           const void *stream) {
  note_work(stream);
  begin_operands();
  forget_launch(params, parameters_of(function), 0);
  forget_extra(extra);
  log_launch(function, grid, block, params, stream);
  return SUCCESS;
}

API int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                       void *stream, void **params, void **extra) {
  (void)shared;
  struct dim3 grid = {gx, gy, gz}, block = {bx, by, bz};
  return launch_function(f, grid, block, params, extra, stream);
}

API int cuLaunchCooperativeKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                  unsigned shared, void *stream, void **params) {
  return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, params, NULL);
}

API int cuLaunchKernelEx(const void *config, void *f, void **params, void **extra) {
  const struct dim3 *sizes = config; /* of the grid, and of a block */
  return launch_function(f, sizes[0], sizes[1], params, extra, stream_of_launch(config));
}

API int cuGraphLaunch(void *exec, void *stream) { return note_work(stream), launch_graph(exec, stream), SUCCESS; }
API int cuStreamSynchronize(void *stream) { return note_wait(stream), synchronize_stream(stream); }

/* Nothing is ever logged, so the callback is never called. */
API int cuLogsRegisterCallback(void *callback, void *data, void **handle) { return (void)callback, (void)data, give_handle(handle); }

API int cuLaunchHostFunc(void *stream, void (*call)(void *), void *data) { return note_work(stream), call(data), SUCCESS; }

/* A tensor map is an opaque 128 bytes that only kernels read. */

/* A descriptor is handed to a kernel in place of its tensor's address, which a launch must still find in it. */
API int cuTensorMapReplaceAddress(void **map, void *address) { return *map = address, SUCCESS; }
API int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address) {
  (void)type, (void)rank;
  memset(map, 0, 128);
  return cuTensorMapReplaceAddress(map, address);
}
ALIAS(cuTensorMapEncodeIm2col, cuTensorMapEncodeTiled);

/* ---- The look-up of entry points ---------------------------------------------------------------------------------- */

/* The newest variant of a name that the phantom answers; the real driver, too, hands out the newest that fits. */
static void *entry_point(const char *name) {
  char versioned[128];
  for (int version = 4; version >= 2; version--) {
    snprintf(versioned, sizeof versioned, "%s_v%d", name, version);
    void *found = dlsym(RTLD_DEFAULT, versioned);
    if (found) return found;
  }
  return dlsym(RTLD_DEFAULT, name);
}

API int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *result) {
  enum { FOUND = 0, SYMBOL_NOT_FOUND = 1 };
  (void)version, (void)flags;
  *function = entry_point(name);
  if (result) *result = *function ? FOUND : SYMBOL_NOT_FOUND;
  return *function ? SUCCESS : NOT_FOUND;
}

API int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

API int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags, int *result) {
  int found, status = cuGetProcAddress_v2(name, function, (int)version, flags, &found);
  if (result) *result = found;
  return status && !result ? fail(status) : SUCCESS;
}
ALIAS(cudaGetDriverEntryPointByVersion_ptsz, cudaGetDriverEntryPointByVersion);

API int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *result) {
  return cudaGetDriverEntryPointByVersion(name, function, 12000, flags, result);
}
ALIAS(cudaGetDriverEntryPoint_ptsz, cudaGetDriverEntryPoint);

/* What is in this table moves no data: no look at the arguments, whose unused registers may hold any address. */
#define DO(name) \
  API int name(void) { return SUCCESS; }
#define REFUSE(name) \
  API int name(void) { return refuse(#name, NOT_SUPPORTED); }
#include "tables/driver.inc"
