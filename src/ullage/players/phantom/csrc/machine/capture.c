/* Stream capture and graphs.
 *
 * A capture marks its stream, so that the caching allocator takes its private pools, and each stream that waits for an
 * event of it. Nothing runs meanwhile: what would be written is noted, and becomes unknown whenever the graph is
 * launched.
 *
 * Work that a stream is given is a node of the graph, which waits for the nodes that the stream is at; from then on the
 * stream is at that node alone. An event has the nodes that its stream was at, and who waits for it is at those, too. By
 * this PyTorch's allocator decides whether a block that several streams used in the capture is free.
 *
 * What CUDA forbids during a capture fails here with CUDA's own errors, and makes the capture void: waiting for, or asking
 * about, what is captured; depending on work outside of it; calls that may be unsafe, according to the modes of the
 * capture and of the calling thread; forks that are not joined at the end. Source: CUDA Programming Guide, "Prohibited
 * and unhandled operations" of stream capture, and the texts of cudaStreamBeginCapture, cudaStreamEndCapture,
 * cudaThreadExchangeStreamCaptureMode and of the error codes.
 */
#include "capture.h"
#include "cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2, NON_BLOCKING = 1 };

/* One stream in a capture. */
struct capture {
  const void *stream;
  uint64_t id; /* 0: the place is free */
  struct graph *graph;
  pthread_t thread; /* that began it */
  int device, mode;
  unsigned flags; /* of the stream */
  bool is_origin, is_void, is_lent; /* the last: the graph is the program's */
  struct nodes last; /* that its next work waits for */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture captures[MAX_CAPTURES];
static int num_captures;
static uint64_t next_capture = 1;
static _Thread_local int thread_mode = GLOBAL;

static bool enter(void) { return num_captures && !pthread_mutex_lock(&lock); }
static int leave(int e) { return pthread_mutex_unlock(&lock), e ? fail(e) : SUCCESS; }

static bool is_legacy(const void *stream) { return (uintptr_t)stream < 2; }

static struct capture *capture_of(const void *stream) {
  for (int i = 0; i < MAX_CAPTURES; i++)
    if (captures[i].id && captures[i].stream == stream) return &captures[i];
  return NULL;
}

static struct capture *capture_by_id(uint64_t id) {
  for (int i = 0; id && i < MAX_CAPTURES; i++)
    if (captures[i].id == id && captures[i].is_origin) return &captures[i];
  return NULL;
}

static int add(struct capture c) {
  for (int i = 0; i < MAX_CAPTURES; i++) {
    if (captures[i].id) continue;
    captures[i] = c;
    num_captures++;
    return SUCCESS;
  }
  return INVALID_VALUE;
}

static int make_void(uint64_t id, int status) {
  for (int i = 0; i < MAX_CAPTURES; i++)
    if (captures[i].id && captures[i].id == id) captures[i].is_void = true;
  return status;
}

/* A capture in a stream that waits for the legacy stream: any use of that one would depend on what is captured. */
static struct capture *capture_beside_legacy(void) {
  for (struct capture *c = captures; c < captures + MAX_CAPTURES; c++)
    if (c->id && c->device == current_device() && !(c->flags & NON_BLOCKING)) return c;
  return NULL;
}

static int refuse_legacy(const void *stream) {
  struct capture *c = is_legacy(stream) ? capture_beside_legacy() : NULL;
  return c ? make_void(c->id, CAPTURE_IMPLICIT) : SUCCESS;
}

/* ---- Begin and end ------------------------------------------------------------------------------------------------ */

int begin_capture(void *stream, struct graph *lent, int mode) {
  struct graph *graph = lent ? lent : new_graph();
  pthread_mutex_lock(&lock);
  int status = !graph               ? OUT_OF_MEMORY
               : is_legacy(stream)  ? CAPTURE_UNSUPPORTED
               : capture_of(stream) ? ILLEGAL_STATE
                                    : add((struct capture){stream, next_capture++, graph, pthread_self(), current_device(),
                                                           mode, stream_flags(stream), true, false, lent, {0}});
  if (status && !lent) drop_graph(graph);
  return leave(status);
}

/* Whether the origin's next work would come after all that the streams of its capture were given. */
static bool is_joined(const struct capture *origin) {
  reach_nodes(origin->graph, &origin->last);
  for (int i = 0; i < MAX_CAPTURES; i++)
    for (size_t n = 0; captures[i].id == origin->id && n < captures[i].last.count; n++)
      if (!captures[i].last.each[n]->is_reached) return false;
  return true;
}

static void close_capture(uint64_t id) {
  for (int i = 0; i < MAX_CAPTURES; i++) {
    if (captures[i].id != id) continue;
    free(captures[i].last.each);
    captures[i].id = 0;
    num_captures--;
  }
}

int end_capture(void *stream, void **graph) {
  pthread_mutex_lock(&lock);
  struct capture *c = capture_of(stream);
  bool is_wrong_thread = c && c->mode != RELAXED && !pthread_equal(c->thread, pthread_self());
  int status = !c                ? ILLEGAL_STATE
               : !c->is_origin   ? CAPTURE_UNMATCHED
               : is_wrong_thread ? CAPTURE_WRONG_THREAD
               : c->is_void      ? CAPTURE_INVALIDATED
               : !is_joined(c)   ? CAPTURE_UNJOINED
                                 : SUCCESS;
  struct graph *made = c ? c->graph : NULL;
  bool is_over = c && c->is_origin && !is_wrong_thread, is_lost = is_over && status && !c->is_lent;
  if (is_over) close_capture(c->id);
  pthread_mutex_unlock(&lock);
  if (is_over) close_graph(made);
  if (is_lost) drop_graph(made);
  if (graph) *graph = status ? NULL : made;
  return status ? fail(status) : SUCCESS;
}

bool is_mode_thread_local(void) { return thread_mode == THREAD_LOCAL; }

int exchange_capture_mode(int mode) {
  int before = thread_mode;
  thread_mode = mode;
  return before;
}

/* ---- What is captured ---------------------------------------------------------------------------------------------- */

enum capture_status capture_status(const void *stream, struct captured *found) {
  if (!enter()) return CAPTURE_NONE;
  struct capture *c = capture_of(stream);
  enum capture_status status = !c ? CAPTURE_NONE : c->is_void ? CAPTURE_VOID : CAPTURE_ACTIVE;
  if (c && found) *found = (struct captured){c->id, c->graph, c->last};
  pthread_mutex_unlock(&lock);
  return status;
}

bool is_any_capture_open(void) { return num_captures; }

bool is_captured(const void *stream, const struct graph_event *event) {
  if (!enter()) return false;
  struct capture *c = capture_of(stream);
  if (c && event) note_event(c->graph, *event);
  struct node *node = c ? add_node(c->graph, c->last.each, c->last.count, 0) : NULL;
  if (node) c->last.count = 0, join_nodes(&c->last, &node, 1); /* all that comes next waits for it alone */
  pthread_mutex_unlock(&lock);
  return c != NULL;
}

/* Where several capture at once, each may be the one that writes. */
bool is_write_captured(uintptr_t address) {
  if (!enter()) return false;
  for (int i = 0; i < MAX_CAPTURES; i++)
    if (captures[i].id && captures[i].is_origin) note_write(captures[i].graph, address);
  pthread_mutex_unlock(&lock);
  return true;
}

uint64_t mark_captured(const void *stream, struct nodes *before) {
  if (!enter()) return 0;
  struct capture *c = capture_of(stream);
  before->count = 0;
  if (c) join_nodes(before, c->last.each, c->last.count);
  uint64_t id = c ? c->id : 0;
  pthread_mutex_unlock(&lock);
  return id;
}

int wait_for_nodes(const void *stream, struct node *const *nodes, size_t count, bool are_alone) {
  if (!enter()) return fail(ILLEGAL_STATE);
  struct capture *c = capture_of(stream);
  if (c && are_alone) c->last.count = 0;
  if (c) join_nodes(&c->last, nodes, count);
  return leave(c ? SUCCESS : ILLEGAL_STATE);
}

/* What a wait does: stream `to` (NULL: in no capture) and an event of `from` (NULL: of no capture that is open). */
static int wait_between(struct capture *to, struct capture *from, void *stream, const struct nodes *before) {
  if (!from) return make_void(to->id, CAPTURE_ISOLATION);
  if (from->is_void) return CAPTURE_INVALIDATED;
  if (is_legacy(stream)) return make_void(from->id, CAPTURE_IMPLICIT);
  if (to && to->id != from->id) return make_void(to->id, make_void(from->id, CAPTURE_MERGE));
  if (to) {
    join_nodes(&to->last, before->each, before->count);
    return SUCCESS;
  }
  struct capture forked = *from;
  forked.stream = stream;
  forked.flags = stream_flags(stream);
  forked.is_origin = false;
  forked.last = (struct nodes){0};
  join_nodes(&forked.last, before->each, before->count);
  forked.graph->num_branches++;
  return add(forked);
}

int wait_in_capture(void *stream, uint64_t id, const struct nodes *before) {
  if (!enter()) return SUCCESS;
  struct capture *to = capture_of(stream), *from = capture_by_id(id);
  int status = to || from ? wait_between(to, from, stream, before) : SUCCESS;
  return leave(status);
}

/* ---- What a capture does not allow --------------------------------------------------------------------------------- */

int refuse_work(const void *stream) {
  if (!enter()) return SUCCESS;
  struct capture *c = capture_of(stream);
  int status = c ? (c->is_void ? CAPTURE_INVALIDATED : SUCCESS) : refuse_legacy(stream);
  return leave(status);
}

int wait_for_stream(const void *stream) {
  if (!enter()) return SUCCESS;
  struct capture *c = capture_of(stream);
  int status = c ? make_void(c->id, CAPTURE_UNSUPPORTED) : refuse_legacy(stream);
  return leave(status);
}

int wait_for_device(void) {
  if (!num_captures) return SUCCESS;
  int status = SUCCESS;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < MAX_CAPTURES; i++)
    if (captures[i].id && captures[i].device == current_device()) status = make_void(captures[i].id, CAPTURE_UNSUPPORTED);
  return leave(status);
}

int refuse_captured_event(uint64_t id) {
  if (!enter()) return SUCCESS;
  int status = capture_by_id(id) ? make_void(id, CAPTURED_EVENT) : SUCCESS;
  return leave(status);
}

/* A thread is kept from calls that may be unsafe by its own capture, or by a global one of another thread. */
int refuse_unsafe_call(void) {
  if (!num_captures || thread_mode == RELAXED) return SUCCESS;
  int status = SUCCESS;
  pthread_mutex_lock(&lock);
  for (struct capture *c = captures; c < captures + MAX_CAPTURES; c++) {
    if (!c->id || !c->is_origin) continue;
    bool is_own = pthread_equal(c->thread, pthread_self());
    if (is_own ? c->mode != RELAXED : c->mode == GLOBAL && thread_mode == GLOBAL) status = make_void(c->id, CAPTURE_UNSUPPORTED);
  }
  return leave(status);
}
