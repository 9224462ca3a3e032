/* Streams, events and graph capture.
 *
 * Work completes at once: a recorded event has always happened. A capture only marks its stream, so that the caching
 * allocator takes its private pools; the graph that comes out replays nothing.
 */
#include "cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct stream {
  int device, priority;
  unsigned flags;
};

struct event {
  double recorded_ms;
};

struct capture {
  const void *stream;
  uint64_t id;
  void *graph;
};

enum { MAX_CAPTURES = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture captures[MAX_CAPTURES];
static int num_captures;
static uint64_t next_capture = 1;

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

static struct capture *capture_of(const void *stream) {
  for (int i = 0; i < num_captures; i++)
    if (captures[i].stream == stream) return &captures[i];
  return NULL;
}

int begin_capture(void *stream) {
  pthread_mutex_lock(&lock);
  bool room = num_captures < MAX_CAPTURES && !capture_of(stream);
  if (room) captures[num_captures++] = (struct capture){stream, next_capture++, new_handle()};
  pthread_mutex_unlock(&lock);
  return room ? SUCCESS : fail(INVALID_VALUE);
}

int end_capture(void *stream, void **graph) {
  pthread_mutex_lock(&lock);
  struct capture *c = capture_of(stream);
  if (c && graph) *graph = c->graph;
  if (c) *c = captures[--num_captures];
  pthread_mutex_unlock(&lock);
  return c ? SUCCESS : fail(INVALID_VALUE);
}

bool is_capturing(const void *stream, uint64_t *id, void **graph) {
  if (!num_captures) return false;
  pthread_mutex_lock(&lock);
  struct capture *c = capture_of(stream);
  if (c && id) *id = c->id;
  if (c && graph) *graph = c->graph;
  pthread_mutex_unlock(&lock);
  return c != NULL;
}

int create_event(void **event) {
  struct event *e = event ? calloc(1, sizeof *e) : NULL;
  if (!e) return fail(INVALID_VALUE);
  *event = e;
  return SUCCESS;
}

int record_event(void *event) {
  if (!event) return fail(INVALID_HANDLE);
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  ((struct event *)event)->recorded_ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
  return SUCCESS;
}

/* Host time between the two records: programs divide by it, so it is never 0. */
int elapsed_ms(float *ms, const void *start, const void *end) {
  if (!ms || !start || !end) return fail(INVALID_HANDLE);
  double passed = ((const struct event *)end)->recorded_ms - ((const struct event *)start)->recorded_ms;
  *ms = passed > 1e-3 ? (float)passed : 1e-3f;
  return SUCCESS;
}
