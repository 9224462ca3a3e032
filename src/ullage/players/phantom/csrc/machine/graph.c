/* Graphs: what a capture has made, and the device memory that the driver takes for one that can be launched.
 *
 * The driver states no size. Measured with driver 580, which is the phantom's, on an H200, with 1 to 2,048 nodes and 1 to 2,091
 * graphs (docs/results/accuracy.md): 112 KiB for each branch of a graph with its first node, for each further kernel or copy
 * 2.25 KiB, with 2 KiB of parameters 4.3 KiB, with 4 KiB of them 8.5 KiB; nothing for memset. A graph that is destroyed leaves
 * its memory to the next ones, and never gives it back. Pages of 2 MiB are taken. Here a call of a library counts as one node, and a
 * stream as one branch.
 *
 * Older drivers take more: with 470 an empty kernel's node took 67 KiB (topic 244901 of NVIDIA's developer forum).
 */
#include "graph.h"
#include "cuda.h"
#include "memory.h"
#include "outside.h"
#include "phantom.h"
#include "room.h"

#include <pthread.h>
#include <stdlib.h>

struct bytes {
  size_t low, high;
};

static const struct bytes PER_BRANCH = {112 << 10, 112 << 10}, PER_NODE = {9 << 8, 17 << 9};
static const char *const WHAT = "CUDA graphs, by their branches and nodes";

/* Of each device: what its graphs need, and what the driver holds for them. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct bytes needed[MAX_DEVICES], held[MAX_DEVICES];

struct executable {
  struct graph *graph;
  int device;
  struct bytes need;
};

struct graph *new_graph(void) {
  static uint32_t count;
  struct graph *graph = calloc(1, sizeof *graph);
  if (graph) graph->references = graph->num_branches = 1, graph->number = __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
  return graph;
}

void drop_graph(struct graph *graph) {
  if (!graph || __atomic_sub_fetch(&graph->references, 1, __ATOMIC_ACQ_REL)) return;
  for (size_t i = 0; i < graph->num_events; i++) graph->events[i].drop(graph->events[i].event);
  for (size_t i = 0; i < graph->nodes.count; i++) free(graph->nodes.each[i]);
  free(graph->nodes.each);
  free(graph->events);
  free(graph->written);
  free(graph);
}

void note_write(struct graph *graph, uintptr_t address) {
  if (graph->num_written && graph->written[graph->num_written - 1] == address) return;
  if (has_room_for_row(&graph->written, &graph->room, graph->num_written, sizeof *graph->written, SIZE_MAX))
    graph->written[graph->num_written++] = address;
}

void note_event(struct graph *graph, struct graph_event event) {
  event.is_first = graph->nodes.count == graph->num_events;
  if (has_room_for_row(&graph->events, &graph->event_room, graph->num_events, sizeof *graph->events, SIZE_MAX))
    graph->events[graph->num_events++] = event;
}

/* ---- Nodes --------------------------------------------------------------------------------------------------------- */

static void append(struct nodes *to, struct node *node) {
  if (has_room_for_row(&to->each, &to->room, to->count, sizeof *to->each, SIZE_MAX)) to->each[to->count++] = node;
}

struct node *add_node(struct graph *graph, struct node *const *before, size_t count, size_t room) {
  struct node *node = calloc(1, sizeof *node + (count + room) * sizeof *before);
  if (!node) return NULL;
  for (; node->count < count; node->count++) node->before[node->count] = before[node->count];
  append(&graph->nodes, node);
  return node;
}

void join_nodes(struct nodes *to, struct node *const *more, size_t count) {
  for (size_t i = 0; i < count; i++) {
    size_t at = 0;
    while (at < to->count && to->each[at] != more[i]) at++;
    if (at == to->count) append(to, more[i]);
  }
}

/* From the last on: what a node waits for was made before it. */
void reach_nodes(const struct graph *graph, const struct nodes *end) {
  for (size_t i = 0; i < end->count; i++) end->each[i]->is_reached = true;
  for (size_t n = graph->nodes.count; n-- > 0;) {
    const struct node *node = graph->nodes.each[n];
    for (size_t i = 0; node->is_reached && i < node->count; i++) node->before[i]->is_reached = true;
  }
}

static int by_address(const void *a, const void *b) {
  uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
  return x < y ? -1 : x > y;
}

/* Keeps each block once. */
void close_graph(struct graph *graph) {
  if (!graph->num_written) return;
  qsort(graph->written, graph->num_written, sizeof *graph->written, by_address);
  size_t kept = 1;
  for (size_t i = 1; i < graph->num_written; i++)
    if (graph->written[i] != graph->written[kept - 1]) graph->written[kept++] = graph->written[i];
  graph->num_written = kept;
}

static struct bytes need_of(const struct graph *graph) {
  size_t nodes = graph->nodes.count;
  if (!nodes) return (struct bytes){0, 0};
  return (struct bytes){PER_BRANCH.low + (nodes - 1) * PER_NODE.low,
                        graph->num_branches * PER_BRANCH.high + nodes * PER_NODE.high};
}

static size_t whole_pages(size_t size) { return (size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES; }

/* Takes what is beyond the memory that is held for the graphs of a device. */
static bool hold(int device, struct bytes need) {
  pthread_mutex_lock(&lock);
  struct bytes *all = &needed[device], *now = &held[device];
  size_t low = whole_pages(all->low + need.low), high = whole_pages(all->high + need.high);
  size_t more_low = low > now->low ? low - now->low : 0, more_high = high > now->high ? high - now->high : 0;
  bool has_room = take_outside(device, WHAT, more_low, more_high);
  if (has_room) {
    all->low += need.low, all->high += need.high;
    now->low += more_low, now->high += more_high;
  }
  pthread_mutex_unlock(&lock);
  return has_room;
}

int instantiate_graph(void **executable, struct graph *graph) {
  struct executable *e = executable && graph ? calloc(1, sizeof *e) : NULL;
  if (!e) return fail(INVALID_VALUE);
  *e = (struct executable){graph, current_device(), need_of(graph)};
  if (!hold(e->device, e->need)) {
    free(e);
    return fail(OUT_OF_MEMORY);
  }
  __atomic_add_fetch(&graph->references, 1, __ATOMIC_ACQ_REL);
  *executable = e;
  return SUCCESS;
}

void destroy_executable(void *executable) {
  struct executable *e = executable;
  if (!e) return;
  pthread_mutex_lock(&lock);
  needed[e->device].low -= e->need.low;
  needed[e->device].high -= e->need.high;
  pthread_mutex_unlock(&lock);
  drop_graph(e->graph);
  free(e);
}

const struct graph *graph_of(const void *executable) { return ((const struct executable *)executable)->graph; }
