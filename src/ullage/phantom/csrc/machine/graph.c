/* Graphs: what a capture has made, and the device memory that the driver takes for one that can be launched.
 *
 * The driver states no size. An engineer of NVIDIA gives "around 10KB per kernel node" (github.com/NVIDIA/cccl/pull/3768,
 * 2025). With driver 470 the use that nvidia-smi shows grew by 33 MiB from 500 to 1000 nodes of an empty kernel, and by 63 MiB
 * from 1000 to 2000 (topic 244901 of NVIDIA's developer forum). A call of a library counts as one node.
 */
#include "graph.h"
#include "cuda.h"
#include "outside.h"

#include <stdlib.h>

static const size_t LOW_PER_NODE = 10000, HIGH_PER_NODE = (33 << 20) / 500;
static const char *const WHAT = "CUDA graphs, by their nodes";

struct executable {
  struct graph *graph;
  int device;
  size_t num_nodes;
};

struct graph *new_graph(void) {
  static uint32_t count;
  struct graph *graph = calloc(1, sizeof *graph);
  if (graph) graph->references = 1, graph->number = __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
  return graph;
}

void drop_graph(struct graph *graph) {
  if (!graph || __atomic_sub_fetch(&graph->references, 1, __ATOMIC_ACQ_REL)) return;
  free(graph->written);
  free(graph);
}

void note_write(struct graph *graph, uintptr_t address) {
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

int instantiate_graph(void **executable, struct graph *graph) {
  struct executable *e = executable && graph ? calloc(1, sizeof *e) : NULL;
  if (!e) return fail(INVALID_VALUE);
  *e = (struct executable){graph, current_device(), graph->num_nodes};
  if (!take_outside(e->device, WHAT, e->num_nodes * LOW_PER_NODE, e->num_nodes * HIGH_PER_NODE)) {
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
  give_back_outside(e->device, WHAT, e->num_nodes * LOW_PER_NODE, e->num_nodes * HIGH_PER_NODE);
  drop_graph(e->graph);
  free(e);
}

uint32_t number_of_graph(const void *executable) {
  const struct executable *e = executable;
  return e ? e->graph->number : 0;
}

const uintptr_t *writes_of(const void *executable, size_t *count) {
  const struct executable *e = executable;
  *count = e ? e->graph->num_written : 0;
  return e ? e->graph->written : NULL;
}
