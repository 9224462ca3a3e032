/* Streams and events.
 *
 * When their work is done is a matter of completion.c. Time is counted in events, so that what a program chooses by
 * timing is the same in each run: what is asked for first.
 */
#include "activity.h"
#include "capture.h"
#include "completion.h"
#include "cuda.h"
#include "kept.h"

#include <math.h>
#include <stdlib.h>

struct event {
  uint64_t tick;
  uint64_t capture; /* that it was recorded in; 0: none */
  struct nodes captured; /* that it comes after, there */
  struct frontier after;
  struct mark collective; /* that it is the end of; position 0: none */
  uint64_t logged;        /* its record's number in the log of work; 0: none */
  bool takes_time;
  int references; /* of the program, and of graphs */
  int device;
};

/* ---- Work -------------------------------------------------------------------------------------------------------- */

/* A library's calls go to the stream that its handle was given; PyTorch gives it anew before each call. */
static _Thread_local const void *library_stream;

/* Within a capture nothing is done, so there is nothing to wait for. */
void note_work(const void *stream) {
  need_context();
  if (!is_captured(stream, NULL)) note_lane_work(lane_of(stream));
}

void note_collective(const void *stream) {
  if (!is_captured(stream, NULL)) note_lane_collective(lane_of(stream));
}

void follow_stream(const void *stream) { library_stream = stream; }
const void *stream_of_library(void) { return library_stream; }

void note_library_call(const char *name, const uintptr_t *words, size_t count) {
  begin_operands();
  if (!forget_words(words, count)) return;
  note_work(library_stream);
  log_library_call(library_stream, name);
}

int synchronize_stream(const void *stream) {
  int status = wait_for_stream(stream);
  if (status) return status;
  log_host_wait_for_lane(lane_of(stream), CALL_WAIT_FOR_STREAM);
  reach_lane(lane_of(stream));
  return status;
}

int synchronize_device(void) {
  need_context();
  int status = wait_for_device();
  if (status) return status;
  log_host_wait_for_device(CALL_WAIT_FOR_DEVICE);
  reach_device(current_device());
  return status;
}

int query_stream(const void *stream, const void *caller) {
  int status = wait_for_stream(stream);
  enum answer answer = status ? NOT_YET : is_lane_done(lane_of(stream), caller);
  if (answer == WAITED_FOR && has_virtual_clock()) log_host_wait_for_lane(lane_of(stream), CALL_WAIT_FOR_STREAM);
  return status || answer ? status : fail(NOT_READY);
}

void log_copy(const void *dst, const void *src, size_t bytes, const void *stream) {
  bool from_device = is_device_address(src), to_device = is_device_address(dst), between = from_device && to_device;
  bool is_far = between && device_of_address(src) != device_of_address(dst);
  int direction = is_far ? BETWEEN_DEVICES : between ? ON_DEVICE : to_device ? TO_DEVICE : TO_HOST;
  struct work work = {WORK_COPY, -1, NULL, {direction, (int64_t)bytes, is_pinned_address(from_device ? dst : src)}};
  log_work(stream, &work);
}

/* A copy between the device and memory that is not pinned returns when it is done; to the device, when it is read. */
void note_copy_work(const void *dst, const void *src, size_t bytes, const void *stream, bool is_waited_for) {
  note_work(stream);
  keep_operand(dst); /* where a collective's result is copied to */
  log_copy(dst, src, bytes, stream);
  bool from_device = is_device_address(src), to_device = is_device_address(dst), between = from_device && to_device;
  if (is_waited_for ? between : to_device || !from_device || is_pinned_address(dst)) return;
  log_host_wait_for_lane(lane_of(stream), CALL_COPY);
  reach_lane(lane_of(stream));
}

void note_fill_work(size_t bytes, const void *stream) {
  note_work(stream);
  struct work work = {WORK_FILL, -1, NULL, {(int64_t)bytes}};
  log_work(stream, &work);
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

int create_event(void **event, unsigned flags) {
  enum { WITHOUT_TIME = 2 };
  struct event *e = event ? calloc(1, sizeof *e) : NULL;
  if (!e) return fail(INVALID_VALUE);
  e->takes_time = !(flags & WITHOUT_TIME);
  e->references = 1, e->device = current_device();
  *event = e;
  return SUCCESS;
}

void *keep_event(void *event) {
  __atomic_add_fetch(&((struct event *)event)->references, 1, __ATOMIC_ACQ_REL);
  return event;
}

int destroy_event(void *event) {
  struct event *e = event;
  if (!e) return fail(INVALID_HANDLE);
  if (__atomic_sub_fetch(&e->references, 1, __ATOMIC_ACQ_REL)) return SUCCESS;
  drop_frontier(&e->after);
  free(e->captured.each);
  free(e);
  return SUCCESS;
}

int record_event(void *event, const void *stream) {
  static uint64_t ticks;
  struct event *e = event;
  if (!e) return fail(INVALID_HANDLE);
  e->tick = __atomic_add_fetch(&ticks, 1, __ATOMIC_RELAXED);
  e->capture = mark_captured(stream, &e->captured);
  e->collective = end_collective(lane_of(stream));
  mark_end(lane_of(stream), &e->after);
  e->logged = e->capture ? 0 : log_record(lane_of(stream));
  return SUCCESS;
}

/* A stream that waits for an event of a capture takes part in the capture. */
int wait_for_event(void *stream, const void *event) {
  const struct event *e = event;
  if (!e) return fail(INVALID_HANDLE);
  int status = e->tick ? wait_in_capture(stream, e->capture, &e->captured) : SUCCESS;
  drop_waited(e->collective);
  if (status || e->capture) return status;
  log_wait(lane_of(stream), e->logged);
  wait_before(lane_of(stream), &e->after);
  return status;
}

/* The host turns to an event: nothing of a capture has happened. */
static int event_status(const struct event *event) {
  if (!event) return fail(INVALID_HANDLE);
  int status = refuse_captured_event(event->capture);
  return status ? status : refuse_unsafe_call();
}

int synchronize_event(const void *event) {
  const struct event *e = event;
  int status = event_status(e);
  if (status) return status;
  log_host_wait_for_event(e->logged);
  reach(&e->after);
  return status;
}

/* An event that takes the time is told to have happened: PyTorch asks before it reads the time, and a program that reads it
 * some steps later without waiting goes on on a GPU, which is not that far behind. Watchdogs do not read it. Under the virtual clock the host then is as far. */
int query_event(void *event, const void *caller) {
  struct event *e = event;
  int status = event_status(e);
  if (status) return status;
  enum answer answer = e->takes_time && !is_watchdog() ? WAITED_FOR : has_happened(&e->after, caller);
  if (answer == WAITED_FOR && has_virtual_clock()) log_host_wait_for_event(e->logged);
  return answer ? SUCCESS : fail(NOT_READY);
}

/* The clock's answer, where it runs along: the milliseconds between two records of the log; NAN: it does not know. */
static double (*clock_elapsed)(uint64_t start, uint64_t end);

API void ullage_on_elapsed(double (*callback)(uint64_t, uint64_t)) { clock_elapsed = callback; }

/* Without the clock one millisecond from each record to the next. Two devices have no time in common. */
int elapsed_ms(float *ms, const void *start, const void *end) {
  const struct event *from = start, *to = end;
  if (!ms || !from || !to || from->device != to->device) return fail(INVALID_HANDLE);
  double passed = clock_elapsed && from->logged && to->logged ? clock_elapsed(from->logged, to->logged) : NAN;
  *ms = isnan(passed) ? (float)(int64_t)(to->tick - from->tick) : (float)passed;
  return SUCCESS;
}
