/* Stream capture and graphs.
 *
 * A capture marks its stream, so that the caching allocator takes its private pools, and each stream that waits for an
 * event of it. Nothing runs meanwhile: what would be written is noted, and becomes unknown whenever the graph is
 * launched. A host that waits for a stream in capture gets the error that the driver gives, and the capture is void.
 */
#include "capture.h"
#include "cuda.h"

#include <pthread.h>
#include <stdlib.h>

enum { MAX_CAPTURES = 64 };

struct graph {
  uintptr_t *written;
  size_t num_written, room;
};

struct capture {
  const void *stream;
  uint64_t id;
  struct graph *graph;
  bool is_origin, is_void;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture captures[MAX_CAPTURES];
static int num_captures;
static uint64_t next_capture = 1;

static struct capture *capture_of(const void *stream) {
  for (int i = 0; i < num_captures; i++)
    if (captures[i].stream == stream) return &captures[i];
  return NULL;
}

static struct capture *capture_by_id(uint64_t id) {
  for (int i = 0; i < num_captures; i++)
    if (captures[i].id == id) return &captures[i];
  return NULL;
}

void *new_graph(void) { return calloc(1, sizeof(struct graph)); }

int begin_capture(void *stream, void *graph) {
  if (!graph) return fail(OUT_OF_MEMORY);
  pthread_mutex_lock(&lock);
  bool room = num_captures < MAX_CAPTURES && !capture_of(stream);
  if (room) captures[num_captures++] = (struct capture){stream, next_capture++, graph, true, false};
  pthread_mutex_unlock(&lock);
  return room ? SUCCESS : fail(INVALID_VALUE);
}

static int by_address(const void *a, const void *b) {
  uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
  return x < y ? -1 : x > y;
}

static void keep_each_once(struct graph *graph) {
  if (!graph->num_written) return;
  qsort(graph->written, graph->num_written, sizeof *graph->written, by_address);
  size_t kept = 1;
  for (size_t i = 1; i < graph->num_written; i++)
    if (graph->written[i] != graph->written[kept - 1]) graph->written[kept++] = graph->written[i];
  graph->num_written = kept;
}

int end_capture(void *stream, void **graph) {
  pthread_mutex_lock(&lock);
  struct capture *c = capture_of(stream), ended = {0};
  if (c && c->is_origin) ended = *c;
  for (int i = num_captures - 1; ended.id && i >= 0; i--)
    if (captures[i].id == ended.id) captures[i] = captures[--num_captures];
  pthread_mutex_unlock(&lock);
  if (!ended.id) return fail(INVALID_VALUE);
  keep_each_once(ended.graph);
  if (graph) *graph = ended.is_void ? NULL : ended.graph;
  return ended.is_void ? fail(CAPTURE_INVALIDATED) : SUCCESS;
}

enum capture_status capture_status(const void *stream, uint64_t *id, void **graph) {
  if (!num_captures) return CAPTURE_NONE;
  pthread_mutex_lock(&lock);
  struct capture *c = capture_of(stream);
  enum capture_status status = !c ? CAPTURE_NONE : c->is_void ? CAPTURE_VOID : CAPTURE_ACTIVE;
  if (c && id) *id = c->id;
  if (c && graph) *graph = c->graph;
  pthread_mutex_unlock(&lock);
  return status;
}

bool is_any_capture_open(void) { return num_captures; }

bool is_open_capture(uint64_t id) {
  if (!num_captures || !id) return false;
  pthread_mutex_lock(&lock);
  bool is_open = capture_by_id(id) != NULL;
  pthread_mutex_unlock(&lock);
  return is_open;
}

void join_capture(void *stream, uint64_t id) {
  if (!num_captures || !id) return;
  pthread_mutex_lock(&lock);
  struct capture *c = capture_by_id(id);
  if (c && num_captures < MAX_CAPTURES && !capture_of(stream))
    captures[num_captures++] = (struct capture){stream, id, c->graph, false, c->is_void};
  pthread_mutex_unlock(&lock);
}

/* ---- What a capture does not allow -------------------------------------------------------------------------------- */

static int make_void(uint64_t id) {
  for (int i = 0; i < num_captures; i++)
    if (!id || captures[i].id == id) captures[i].is_void = true;
  return fail(CAPTURE_UNSUPPORTED);
}

int wait_for_stream(const void *stream) {
  if (!num_captures) return SUCCESS;
  pthread_mutex_lock(&lock);
  struct capture *c = capture_of(stream);
  int status = c ? make_void(c->id) : SUCCESS;
  pthread_mutex_unlock(&lock);
  return status;
}

int wait_for_device(void) {
  if (!num_captures) return SUCCESS;
  pthread_mutex_lock(&lock);
  int status = num_captures ? make_void(0) : SUCCESS;
  pthread_mutex_unlock(&lock);
  return status;
}

/* ---- What a graph writes ------------------------------------------------------------------------------------------ */

static void note_write(struct graph *graph, uintptr_t address) {
  if (graph->num_written && graph->written[graph->num_written - 1] == address) return;
  if (graph->num_written == graph->room) {
    size_t room = graph->room ? 2 * graph->room : 256;
    uintptr_t *larger = realloc(graph->written, room * sizeof *larger);
    if (!larger) return;
    graph->written = larger;
    graph->room = room;
  }
  graph->written[graph->num_written++] = address;
}

/* Where several capture at once, each may be the one that writes. */
bool is_write_captured(uintptr_t address) {
  if (!num_captures) return false;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < num_captures; i++)
    if (captures[i].is_origin) note_write(captures[i].graph, address);
  pthread_mutex_unlock(&lock);
  return true;
}

void launch_graph(const void *launched) {
  const struct graph *graph = launched;
  for (size_t i = 0; graph && i < graph->num_written; i++) forget((const void *)graph->written[i]);
}
