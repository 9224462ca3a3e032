/* Graphs (graph.c): what a capture has made. */
#ifndef ULLAGE_GRAPH_H
#define ULLAGE_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An event of the program's that a graph records, or waits for, whenever it is launched. */
struct graph_event {
  void *event;
  int (*drop)(void *event);
  bool is_wait, is_first; /* before any work of the graph */
};

struct graph {
  uintptr_t *written; /* blocks that it writes */
  size_t num_written, room;
  struct graph_event *events;
  size_t num_events, event_room;
  uint32_t num_nodes;    /* launches, copies, calls of libraries */
  uint32_t num_branches; /* streams that took part */
  uint32_t number;       /* from 1 on, in the order of their making */
  int references;        /* itself, and what was instantiated from it */
};

struct graph *new_graph(void);
void drop_graph(struct graph *graph);
void note_write(struct graph *graph, uintptr_t address);
void close_graph(struct graph *graph); /* its capture is over */
void note_event(struct graph *graph, struct graph_event event);

int instantiate_graph(void **executable, struct graph *graph);
void destroy_executable(void *executable);

uint32_t number_of_graph(const void *executable); /* from which it was made; 0: none */

const struct graph_event *events_of(const void *executable, size_t *count);

/* The blocks that it writes when it runs. */
const uintptr_t *writes_of(const void *executable, size_t *count);

#endif
