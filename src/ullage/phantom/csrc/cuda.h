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
  NOT_FOUND = 500,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURED_EVENT = 907,
};

struct dim3 {
  unsigned x, y, z;
};

/* cudart.c: remembers a failed call for cudaGetLastError; returns status. */
int fail(int status);

/* launch.c: what a launch may have written is unknown from now on. params is kernelParams: an array of unknown length
 * of pointers to argument values; buffer is a packed argument buffer, or NULL. */
void forget_launch(void *const *params);
int occupancy(int block_threads, size_t shared_bytes);

/* stream.c: streams and events are the same objects for runtime and driver. */
int create_stream(void **stream, unsigned flags, int priority);
int destroy_stream(void *stream);
int stream_priority(const void *stream);
unsigned stream_flags(const void *stream);
int create_event(void **event);
int record_event(void *event, const void *stream);
int wait_for_event(void *stream, const void *event);
int event_status(const void *event);
int elapsed_ms(float *ms, const void *start, const void *end);

/* attribute.c: cudaDeviceGetAttribute and cuDeviceGetAttribute. */
int device_attribute(int *value, int attribute, int index);

#define ALIAS(name, of) API __typeof__(of) name __attribute__((alias(#of)))

#endif
