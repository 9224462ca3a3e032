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

API int cudaGetDeviceCount(int *n) { return (*n = num_devices()) ? SUCCESS : fail(NO_DEVICE); }
API int cudaGetDevice(int *index) { return *index = current_device(), num_devices() ? SUCCESS : fail(NO_DEVICE); }

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
  return snprintf(text, (size_t)room, "0000:%02X:00.0", place_of(index) + 1), SUCCESS;
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
  bool is_node = is_captured(stream, &noted);
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
  return (void)flags, note_work(stream), call(stream, SUCCESS, data), SUCCESS;
}

API int cudaLaunchHostFunc(void *stream, void (*call)(void *), void *data) {
  return note_work(stream), call(data), SUCCESS;
}

/* ---- Capture and graphs ------------------------------------------------------------------------------------------ */

API int cudaStreamBeginCapture(void *stream, int mode) { return begin_capture(stream, NULL, mode); }

API int cudaStreamBeginCaptureToGraph(void *stream, void *graph, void *nodes, void *edges, size_t count, int mode) {
  int status = graph ? begin_capture(stream, graph, mode) : fail(INVALID_VALUE);
  return (void)edges, status ? status : wait_for_nodes(stream, nodes, count, true);
}

API int cudaStreamEndCapture(void *stream, void **graph) { return end_capture(stream, graph); }

API int cudaStreamIsCapturing(void *stream, int *status) { return *status = capture_status(stream, NULL), SUCCESS; }

/* CUDA 13. What annotates an edge is 8 bytes, of an ordinary one 0. */
API int cudaStreamGetCaptureInfo(void *stream, int *status, uint64_t *id, void **graph, struct node ***nodes,
                                 const void **edges, size_t *count) {
  static const uint64_t ORDINARY[1 << 14];
  struct captured in = {0};
  *status = capture_status(stream, &in);
  if (id) *id = in.id;
  if (graph) *graph = in.graph;
  if (nodes) *nodes = in.before.each;
  if (edges) *edges = ORDINARY;
  if (count) *count = in.before.count;
  return SUCCESS;
}
ALIAS(cudaStreamGetCaptureInfo_v3, cudaStreamGetCaptureInfo);

/* CUDA 12 */
API int cudaStreamGetCaptureInfo_v2(void *s, int *status, uint64_t *id, void **g, struct node ***nodes, size_t *n) {
  return cudaStreamGetCaptureInfo(s, status, id, g, nodes, NULL, n);
}

/* With edges since CUDA 13; before, what follows them is an argument earlier, and _v2 is the name of the other. */
static bool has_edges(void) { return library_version("cudart", 13020) >= 13000; }

API int cudaStreamUpdateCaptureDependencies_v2(void *s, void *nodes, void *edges, size_t count, size_t flags) {
  return (void)edges, wait_for_nodes(s, nodes, count, flags & 1);
}

API int cudaStreamUpdateCaptureDependencies(void *s, void *nodes, void *third, size_t fourth, size_t flags) {
  return has_edges() ? wait_for_nodes(s, nodes, fourth, flags & 1) : wait_for_nodes(s, nodes, (size_t)third, fourth & 1);
}

API int cudaThreadExchangeStreamCaptureMode(int *m) { return *m = exchange_capture_mode(*m), SUCCESS; }

static int give_handle(void **out) { return out ? (*out = new_handle(), SUCCESS) : fail(INVALID_VALUE); }

API int cudaGraphCreate(void **graph, unsigned flags) { return (void)flags, (*graph = new_graph()) ? SUCCESS : fail(OUT_OF_MEMORY); }
API int cudaGraphDestroy(void *graph) { return drop_graph(graph), SUCCESS; }
API int cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags) { return (void)flags, instantiate_graph(exec, graph); }
API int cudaGraphExecDestroy(void *exec) { return destroy_executable(exec), SUCCESS; }
ALIAS(cudaGraphInstantiateWithFlags, cudaGraphInstantiate);

API int cudaGraphAddEmptyNode(void **node, void *graph, void *before, size_t count) {
  return (*node = add_node(graph, before, count, 0)) ? SUCCESS : fail(OUT_OF_MEMORY);
}

/* A conditional node has bodies, into which the program captures. What they do may happen whenever the graph runs, so that each is
 * the graph itself. */
API int cudaGraphAddNode(struct node **node, void *graph, void *before, size_t fourth, size_t fifth, void *sixth) {
  enum { CONDITIONAL = 13 };
  struct {
    int type, reserved[3];
    uint64_t handle;
    unsigned kind, size;
    void **bodies;
  } *params = has_edges() ? sixth : (void *)fifth;
  size_t count = has_edges() ? fifth : fourth, size = params->type == CONDITIONAL ? params->size : 0;
  if (!(*node = add_node(graph, before, count, size))) return fail(OUT_OF_MEMORY);
  if (size) params->bodies = (void **)((*node)->before + count);
  for (size_t i = 0; i < size; i++) params->bodies[i] = graph;
  return SUCCESS;
}

API int cudaGraphLaunch(void *e, void *s) { return note_work(s), launch_graph(e, s), SUCCESS; }
ALIAS(cudaGraphLaunch_ptsz, cudaGraphLaunch);

/* As many as there is room for; without room their number. */
static int give_nodes(struct node *const *there, size_t num_there, void **nodes, size_t *count) {
  for (size_t i = 0; nodes && i < *count; i++) nodes[i] = i < num_there ? there[i] : NULL;
  *count = nodes && *count < num_there ? *count : num_there;
  return SUCCESS;
}

API int cudaGraphGetNodes(const struct graph *graph, void **nodes, size_t *count) {
  return give_nodes(graph->nodes.each, graph->nodes.count, nodes, count);
}

API int cudaGraphNodeGetDependencies_v2(struct node *node, void **before, void *edges, size_t *count) {
  if (before && edges) memset(edges, 0, *count * 8);
  return give_nodes(node->before, node->count, before, count);
}

API int cudaGraphNodeGetDependencies(struct node *node, void **before, void *third, size_t *fourth) {
  if (has_edges()) return cudaGraphNodeGetDependencies_v2(node, before, third, fourth);
  return give_nodes(node->before, node->count, before, third);
}

API int cudaGraphConditionalHandleCreate(unsigned long long *handle, void *graph, unsigned value, unsigned flags) {
  return (void)graph, (void)value, (void)flags, *handle = (uintptr_t)new_handle(), SUCCESS;
}

API int cudaUserObjectCreate(void **object, void *p, void (*destroy)(void *), unsigned count, unsigned flags) {
  return (void)p, (void)destroy, (void)count, (void)flags, give_handle(object);
}

API int cudaDeviceSetGraphMemAttribute(int d, int a, void *value) { return (void)d, (void)a, (void)value, SUCCESS; }

API int cudaDeviceGetGraphMemAttribute(int d, int a, size_t *bytes) { return (void)d, (void)a, *bytes = 0, SUCCESS; }

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
