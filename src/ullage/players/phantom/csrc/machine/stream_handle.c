/* Streams: what a handle stands for. */
#include "completion.h"
#include "cuda.h"

#include <stdlib.h>

struct stream {
  unsigned flags;
  int device, priority, lane;
};

int lane_of(const void *stream) {
  enum { PER_THREAD = 2 };
  if (!is_default(stream)) return ((const struct stream *)stream)->lane;
  return current_device() + ((uintptr_t)stream == PER_THREAD ? THREAD_LANES : DEFAULT_LANES);
}

int create_stream(void **stream, unsigned flags, int priority) {
  struct stream *s = calloc(1, sizeof *s);
  if (!stream || !s) return fail(INVALID_VALUE);
  *s = (struct stream){flags, current_device(), priority, new_lane(current_device())};
  *stream = s;
  return SUCCESS;
}

int destroy_stream(void *stream) {
  if (is_default(stream)) return SUCCESS;
  drop_lane(lane_of(stream));
  free(stream);
  return SUCCESS;
}

int stream_priority(const void *stream) { return is_default(stream) ? 0 : ((const struct stream *)stream)->priority; }
