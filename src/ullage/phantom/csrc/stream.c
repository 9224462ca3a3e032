/* Streams and events.
 *
 * Work completes at once: a recorded event has always happened. Time is counted in events, so that what a program
 * chooses by timing is the same in each run: what is asked for first.
 */
#include "capture.h"
#include "cuda.h"

#include <stdlib.h>

struct stream {
  int device, priority;
  unsigned flags;
};

struct event {
  uint64_t tick;
  uint64_t capture; /* that it was recorded in; 0: none */
};

/* 0, 1 and 2 stand for default streams; small numbers are never addresses of ours. */
static bool is_default(const void *stream) { return (uintptr_t)stream < 4096; }

int create_stream(void **stream, unsigned flags, int priority) {
  struct stream *s = calloc(1, sizeof *s);
  if (!stream || !s) return fail(INVALID_VALUE);
  *s = (struct stream){current_device(), priority, flags};
  *stream = s;
  return SUCCESS;
}

int destroy_stream(void *stream) {
  if (!is_default(stream)) free(stream);
  return SUCCESS;
}

int stream_priority(const void *stream) { return is_default(stream) ? 0 : ((const struct stream *)stream)->priority; }
unsigned stream_flags(const void *stream) { return is_default(stream) ? 0 : ((const struct stream *)stream)->flags; }

int create_event(void **event) {
  struct event *e = event ? calloc(1, sizeof *e) : NULL;
  if (!e) return fail(INVALID_VALUE);
  *event = e;
  return SUCCESS;
}

int record_event(void *event, const void *stream) {
  static uint64_t ticks;
  struct event *e = event;
  if (!e) return fail(INVALID_HANDLE);
  e->tick = __atomic_add_fetch(&ticks, 1, __ATOMIC_RELAXED);
  e->capture = 0;
  capture_status(stream, &e->capture, NULL);
  return SUCCESS;
}

/* A stream that waits for an event of a capture takes part in the capture. */
int wait_for_event(void *stream, const void *event) {
  if (!event) return fail(INVALID_HANDLE);
  join_capture(stream, ((const struct event *)event)->capture);
  return SUCCESS;
}

/* Whether an event has happened, asked by the host: nothing of a capture has. */
int event_status(const void *event) {
  if (!event) return fail(INVALID_HANDLE);
  return is_open_capture(((const struct event *)event)->capture) ? fail(CAPTURED_EVENT) : SUCCESS;
}

/* One millisecond from each record to the next. */
int elapsed_ms(float *ms, const void *start, const void *end) {
  if (!ms || !start || !end) return fail(INVALID_HANDLE);
  int64_t passed = (int64_t)(((const struct event *)end)->tick - ((const struct event *)start)->tick);
  *ms = (float)passed;
  return SUCCESS;
}
