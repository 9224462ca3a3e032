/* The CUDA runtime: devices, errors, streams, events and graphs. Memory is in cudart_memory.c, kernels in launch.c. */
#include "capture.h"
#include "cuda.h"
#include "fat_binary.h"
#include "graph.h"
#include "transfers.h"
#include "uses.h"

#include <stdio.h>
#include <string.h>

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

static const struct {
  int status;
  const char *name, *text;
} ERRORS[] = {
    {SUCCESS, "cudaSuccess", "no error"},
    {INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
    {NO_DEVICE, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {INVALID_CONTEXT, "cudaErrorDeviceUninitialized", "invalid device context"},
    {NO_BINARY_FOR_GPU, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {PEER_ACCESS_UNSUPPORTED, "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {PEER_ACCESS_ENABLED, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {PEER_ACCESS_NOT_ENABLED, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {HOST_MEMORY_REGISTERED, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {HOST_MEMORY_NOT_REGISTERED, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {INVALID_HANDLE, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {ILLEGAL_STATE, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {NOT_FOUND, "cudaErrorSymbolNotFound", "named symbol not found"},
    {NOT_READY, "cudaErrorNotReady", "device not ready"},
    {NOT_SUPPORTED, "cudaErrorNotSupported", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {CAPTURE_MERGE, "cudaErrorStreamCaptureMerge", "operation would result in a merge of separate capture sequences"},
    {CAPTURE_UNMATCHED, "cudaErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began"},
    {CAPTURE_UNJOINED, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {CAPTURE_ISOLATION, "cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"},
    {CAPTURE_IMPLICIT, "cudaErrorStreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream"},
    {CAPTURE_WRONG_THREAD, "cudaErrorStreamCaptureWrongThread", "attempt to terminate a thread-local capture sequence from another thread"},
    {CAPTURED_EVENT, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
};

API const char *cudaGetErrorName(int status) {
  for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
    if (ERRORS[i].status == status) return ERRORS[i].name;
  return "unrecognized error code";
}

API const char *cudaGetErrorString(int status) {
  for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
    if (ERRORS[i].status == status) return ERRORS[i].text;
  return "unrecognized error code";
}

API int cudaPeekAtLastError(void) { return last_failure(); }

API int cudaGetLastError(void) { return take_last_failure(); }

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

API int cudaGetDeviceCount(int *count) {
  *count = num_devices();
  return *count ? SUCCESS : fail(NO_DEVICE);
}

API int cudaGetDevice(int *index) {
  *index = current_device();
  return num_devices() ? SUCCESS : fail(NO_DEVICE);
}

API int cudaSetDevice(int index) {
  if (!num_devices()) return fail(NO_DEVICE);
  if (!set_current_device(index)) return fail(INVALID_DEVICE);
  if (!has_context(index)) open_context(index); /* since CUDA 12 */
  return SUCCESS;
}

API int cudaInitDevice(int index, unsigned device_flags, unsigned flags) {
  (void)device_flags, (void)flags;
  if (index < 0 || index >= num_devices()) return fail(INVALID_DEVICE);
  open_context(index);
  return SUCCESS;
}

API int cudaGetDeviceFlags(unsigned *flags) { return *flags = 0, SUCCESS; }
API int cudaDriverGetVersion(int *version) { return *version = library_version("cudart", 13020), SUCCESS; }
API int cudaRuntimeGetVersion(int *version) { return *version = library_version("cudart", 13020), SUCCESS; }

API int cudaDeviceGetAttribute(int *value, int attribute, int index) {
  int status = device_attribute(value, attribute, index);
  return status ? fail(status) : SUCCESS;
}

API int cudaDeviceGetPCIBusId(char *text, int room, int index) {
  snprintf(text, (size_t)room, "0000:%02X:00.0", place_of(index) + 1);
  return SUCCESS;
}

API int cudaDeviceGetByPCIBusId(int *index, const char *text) {
  unsigned bus = 0;
  if (sscanf(text, "%*x:%x:", &bus) != 1 && sscanf(text, "%x:", &bus) != 1) return fail(INVALID_VALUE);
  *index = device_at((int)bus - 1);
  return *index >= 0 && *index < num_devices() ? SUCCESS : fail(INVALID_DEVICE);
}

API int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return SUCCESS;
}

/* Limits as a fresh context has them: stack, printf buffer, heap, and so on. */
API int cudaDeviceGetLimit(size_t *value, int limit) {
  static const size_t LIMITS[] = {1024, 1048576, 8388608, 2, 2048, 32, 0};
  if (limit < 0 || limit >= (int)(sizeof LIMITS / sizeof *LIMITS)) return fail(NOT_SUPPORTED);
  *value = LIMITS[limit];
  return SUCCESS;
}

static bool is_device(int index) { return index >= 0 && index < num_devices(); }

API int cudaDeviceCanAccessPeer(int *can, int a, int b) {
  if (!is_device(a) || !is_device(b)) return fail(INVALID_DEVICE);
  *can = a != b && device(a)->peer_access;
  return SUCCESS;
}

API int cudaDeviceGetP2PAttribute(int *value, int attribute, int a, int b) {
  enum { ACCESS_SUPPORTED = 2 }; /* no atomics, no rank */
  int can, status = cudaDeviceCanAccessPeer(&can, a, b);
  if (!status) *value = attribute == ACCESS_SUPPORTED && can;
  return status;
}

static bool is_enabled[MAX_DEVICES][MAX_DEVICES]; /* access of the first to the memory of the second */

API int cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  int here = current_device(), can, status = flags ? fail(INVALID_VALUE) : cudaDeviceCanAccessPeer(&can, here, peer);
  if (status) return status;
  if (!can) return fail(peer == here ? INVALID_DEVICE : PEER_ACCESS_UNSUPPORTED);
  return __atomic_exchange_n(&is_enabled[here][peer], true, __ATOMIC_RELAXED) ? fail(PEER_ACCESS_ENABLED) : SUCCESS;
}

API int cudaDeviceDisablePeerAccess(int peer) {
  if (!is_device(peer)) return fail(INVALID_DEVICE);
  bool was = __atomic_exchange_n(&is_enabled[current_device()][peer], false, __ATOMIC_RELAXED);
  return was ? SUCCESS : fail(PEER_ACCESS_NOT_ENABLED);
}

/* ---- Streams and events ------------------------------------------------------------------------------------------ */

API int cudaStreamCreate(void **stream) { return create_stream(stream, 0, 0); }
API int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return create_stream(stream, flags, 0); }
API int cudaStreamCreateWithPriority(void **s, unsigned flags, int priority) { return create_stream(s, flags, priority); }
API int cudaStreamDestroy(void *stream) { return destroy_stream(stream); }
API int cudaStreamGetPriority(void *stream, int *priority) { return *priority = stream_priority(stream), SUCCESS; }
API int cudaStreamGetFlags(void *stream, unsigned *flags) { return *flags = stream_flags(stream), SUCCESS; }
API int cudaStreamGetId(void *stream, unsigned long long *id) { return *id = (uintptr_t)stream, SUCCESS; }
API int cudaStreamGetDevice(void *stream, int *index) { return (void)stream, *index = current_device(), SUCCESS; }

API int cudaEventCreate(void **event) { return create_event(event, 0); }
API int cudaEventCreateWithFlags(void **event, unsigned flags) { return create_event(event, flags); }
API int cudaEventRecord(void *event, void *stream) { return record_event(event, stream); }

/* Of an event of its own, not of the capture (cudaEventRecordExternal, cudaEventWaitExternal), a capture makes a node. */
static bool is_captured_node(const void *stream, unsigned flags, void *event, bool is_wait) {
  if (!(flags & 1) || !event) return false;
  const struct graph_event noted = {keep_event(event), destroy_event, is_wait, false};
  bool is_node = is_event_captured(stream, &noted);
  if (!is_node) destroy_event(event);
  return is_node;
}

API int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) {
  return is_captured_node(stream, flags, event, false) ? SUCCESS : record_event(event, stream);
}
API int cudaEventDestroy(void *event) { return destroy_event(event); }
API int cudaEventQuery(void *event) { return query_event(event, __builtin_return_address(0)); }
API int cudaEventSynchronize(void *event) { return synchronize_event(event); }
API int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
  return is_captured_node(stream, flags, event, true) ? SUCCESS : wait_for_event(stream, event);
}
ALIAS(cudaStreamWaitEvent_ptsz, cudaStreamWaitEvent);
API int cudaStreamSynchronize(void *stream) { return note_wait(stream), synchronize_stream(stream); }
ALIAS(cudaStreamSynchronize_ptsz, cudaStreamSynchronize);
API int cudaStreamQuery(void *stream) { return query_stream(stream, __builtin_return_address(0)); }
ALIAS(cudaStreamQuery_ptsz, cudaStreamQuery);
API int cudaDeviceSynchronize(void) { return synchronize_device(); }
API int cudaEventElapsedTime(float *ms, void *start, void *end) { return elapsed_ms(ms, start, end); }

/* What the host is to do between two pieces of work is done at once: nobody waits for it in vain. */
API int cudaStreamAddCallback(void *stream, void (*call)(void *, int, void *), void *data, unsigned flags) {
  (void)flags;
  note_work(stream);
  call(stream, SUCCESS, data);
  return SUCCESS;
}

API int cudaLaunchHostFunc(void *stream, void (*call)(void *), void *data) {
  note_work(stream);
  call(data);
  return SUCCESS;
}

/* ---- Capture and graphs ------------------------------------------------------------------------------------------ */

API int cudaStreamBeginCapture(void *stream, int mode) { return begin_capture(stream, stream_flags(stream), new_graph(), mode); }

API int cudaStreamBeginCaptureToGraph(void *stream, void *graph, const void *nodes, const void *edges, size_t count, int mode) {
  (void)nodes, (void)edges, (void)count;
  return begin_capture(stream, stream_flags(stream), graph, mode);
}

API int cudaStreamEndCapture(void *stream, void **graph) { return end_capture(stream, graph); }

API int cudaStreamIsCapturing(void *stream, int *status) {
  return *status = capture_status(stream, NULL, NULL), SUCCESS;
}

static int capture_info(void *stream, int *status, unsigned long long *id, void **graph, size_t *count) {
  uint64_t number = 0;
  *status = capture_status(stream, &number, graph);
  if (id) *id = number;
  if (count) *count = 0;
  return SUCCESS;
}

/* CUDA 13 */
API int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph, const void ***nodes,
                                 const void **edges, size_t *count) {
  if (nodes) *nodes = NULL;
  if (edges) *edges = NULL;
  return capture_info(stream, status, id, graph, count);
}
ALIAS(cudaStreamGetCaptureInfo_v3, cudaStreamGetCaptureInfo);

/* CUDA 12 */
API int cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id, void **graph, const void ***nodes,
                                    size_t *count) {
  if (nodes) *nodes = NULL;
  return capture_info(stream, status, id, graph, count);
}

API int cudaThreadExchangeStreamCaptureMode(int *mode) {
  *mode = exchange_capture_mode(*mode);
  return SUCCESS;
}

static int give_handle(void **out) { return out ? (*out = new_handle(), SUCCESS) : fail(INVALID_VALUE); }

API int cudaGraphCreate(void **graph, unsigned flags) { return (void)flags, (*graph = new_graph()) ? SUCCESS : fail(OUT_OF_MEMORY); }
API int cudaGraphDestroy(void *graph) { return drop_graph(graph), SUCCESS; }
API int cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags) { return (void)flags, instantiate_graph(exec, graph); }
API int cudaGraphExecDestroy(void *exec) { return destroy_executable(exec), SUCCESS; }
ALIAS(cudaGraphInstantiateWithFlags, cudaGraphInstantiate);

API int cudaGraphAddNode(void **node, void *graph, const void *before, const void *edges, size_t count, void *params) {
  (void)graph, (void)before, (void)edges, (void)count, (void)params;
  return give_handle(node);
}

API int cudaGraphLaunch(void *exec, void *stream) {
  note_work(stream);
  launch_graph(exec, stream);
  return SUCCESS;
}
ALIAS(cudaGraphLaunch_ptsz, cudaGraphLaunch);

/* PyTorch warns of graphs without any; it asks for no more than their number. */
API int cudaGraphGetNodes(void *graph, void **nodes, size_t *count) {
  size_t there = ((const struct graph *)graph)->num_nodes;
  for (size_t i = 0; nodes && i < *count; i++) nodes[i] = i < there ? graph : NULL;
  *count = nodes && *count < there ? *count : there;
  return SUCCESS;
}

API int cudaGraphNodeGetDependencies(void *node, void **before, void *edges, size_t *count) {
  (void)node, (void)before, (void)edges;
  return *count = 0, SUCCESS;
}

API int cudaGraphConditionalHandleCreate(unsigned long long *handle, void *graph, unsigned value, unsigned flags) {
  (void)graph, (void)value, (void)flags;
  *handle = (uintptr_t)new_handle();
  return SUCCESS;
}

API int cudaUserObjectCreate(void **object, void *p, void (*destroy)(void *), unsigned count, unsigned flags) {
  (void)p, (void)destroy, (void)count, (void)flags;
  return give_handle(object);
}

API int cudaStreamUpdateCaptureDependencies(void *stream) { return (void)stream, SUCCESS; }
API int cudaDeviceSetGraphMemAttribute(int d, int a, void *value) { return (void)d, (void)a, (void)value, SUCCESS; }

API int cudaDeviceGetGraphMemAttribute(int index, int attribute, uint64_t *value) {
  return (void)index, (void)attribute, *value = 0, SUCCESS;
}

/* ---- Libraries of kernels loaded at run time --------------------------------------------------------------------- */

static int load(void **library, const struct kernels *kernels) {
  int status = give_handle(library);
  if (!status) note_code(*library, kernels);
  return status;
}

API int cudaLibraryLoadData(void **library, const void *code) { return load(library, kernels_of_image(code)); }
API int cudaLibraryLoadFromFile(void **library, const char *file) { return load(library, kernels_of_file(file)); }
API int cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  int status = give_handle(kernel);
  if (!status) name_kernel(*kernel, library, name);
  return status;
}
API int cudaLibraryGetKernelCount(unsigned *count, void *library) { return (void)library, *count = 1, SUCCESS; }

API int cudaProfilerStart(void) { return SUCCESS; }
API int cudaProfilerStop(void) { return SUCCESS; }

/* What is in this table moves no data: no look at the arguments, whose unused registers may hold any address. */
#define DO(name) \
  API int name(void) { return SUCCESS; }
#define REFUSE(name) \
  API int name(void) { return fail(refuse(#name, NOT_SUPPORTED)); }
#include "tables/cudart.inc"
