/* What cudart*.c and driver*.c share: status codes (runtime and driver use the same numbers), streams, launches. */
#ifndef ULLAGE_CUDA_H
#define ULLAGE_CUDA_H

#include "phantom.h"

enum status {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  NO_BINARY_FOR_GPU = 209,
  PEER_ACCESS_UNSUPPORTED = 217,
  INVALID_HANDLE = 400,
  ILLEGAL_STATE = 401,
  NOT_FOUND = 500,
  NOT_READY = 600,
  PEER_ACCESS_ENABLED = 704,
  PEER_ACCESS_NOT_ENABLED = 705,
  HOST_MEMORY_REGISTERED = 712,
  HOST_MEMORY_NOT_REGISTERED = 713,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURE_MERGE = 902,
  CAPTURE_UNMATCHED = 903,
  CAPTURE_UNJOINED = 904,
  CAPTURE_ISOLATION = 905,
  CAPTURE_IMPLICIT = 906,
  CAPTURED_EVENT = 907,
  CAPTURE_WRONG_THREAD = 908,
};

struct dim3 {
  unsigned x, y, z;
};

/* status.c: remembers a failed call for cudaGetLastError; returns status. */
int fail(int status);
int last_failure(void);
int take_last_failure(void); /* and forgets it */

/* launch.c */
void launch_graph(const void *executable, void *stream); /* what it writes is unknown, and every block may be used */
struct kernels;
void note_code(const void *handle, const struct kernels *kernels);                 /* what a handle of loaded code stands for */
const struct kernels *kernels_of_code(const void *handle);                          /* NULL: not known */
void name_kernel(const void *handle, const void *code, const char *name);          /* of the function that a handle stands for */
const struct parameters *parameters_of(const void *function);                      /* NULL: not known */
void log_launch(const void *function, struct dim3 grid, struct dim3 block, void *const *params, const void *stream);
const void *stream_of_launch(const void *config);
int occupancy(int block_threads, size_t shared_bytes);

/* stream.c: streams and events are the same objects for runtime and driver. */
int create_stream(void **stream, unsigned flags, int priority);
int destroy_stream(void *stream);
int stream_priority(const void *stream);
/* 0, 1 and 2 stand for default streams; small numbers are never addresses of ours, which begin with their flags. */
static inline bool is_default(const void *stream) { return (uintptr_t)stream < 4096; }
static inline unsigned stream_flags(const void *stream) { return is_default(stream) ? 0 : *(const unsigned *)stream; }
int create_event(void **event, unsigned flags);
int destroy_event(void *event);
void *keep_event(void *event); /* a graph has it, too, until it destroys it */
int record_event(void *event, const void *stream);
int wait_for_event(void *stream, const void *event);
int synchronize_event(const void *event);
int synchronize_stream(const void *stream);
int synchronize_device(void);
int query_event(void *event, const void *caller);         /* NOT_READY, or SUCCESS */
int query_stream(const void *stream, const void *caller); /* likewise */
void note_copy_work(const void *dst, const void *src, size_t bytes, const void *stream, bool is_waited_for);
void note_fill_work(size_t bytes, const void *stream);
void log_copy(const void *dst, const void *src, size_t bytes, const void *stream); /* for the clock */
int lane_of(const void *stream); /* its number in the books of completion.c */
int elapsed_ms(float *ms, const void *start, const void *end);

/* attribute.c: cudaDeviceGetAttribute and cuDeviceGetAttribute. */
int device_attribute(int *value, int attribute, int index);

#define ALIAS(name, of) API __typeof__(of) name __attribute__((alias(#of)))

#endif
