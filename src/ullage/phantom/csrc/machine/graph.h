/* Graphs (graph.c): what a capture has made. */
#ifndef ULLAGE_GRAPH_H
#define ULLAGE_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct graph {
  uintptr_t *written; /* blocks that it writes */
  size_t num_written, room;
  uint32_t num_nodes;    /* launches, copies, calls of libraries */
  uint32_t num_branches; /* streams that took part */
  uint32_t number;       /* from 1 on, in the order of their making */
  int references;        /* itself, and what was instantiated from it */
};

struct graph *new_graph(void);
void drop_graph(struct graph *graph);
void note_write(struct graph *graph, uintptr_t address);
void close_graph(struct graph *graph); /* its capture is over */

int instantiate_graph(void **executable, struct graph *graph);
void destroy_executable(void *executable);

uint32_t number_of_graph(const void *executable); /* from which it was made; 0: none */

/* The blocks that it writes when it runs. */
const uintptr_t *writes_of(const void *executable, size_t *count);

#endif
