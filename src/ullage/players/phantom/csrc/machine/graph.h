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

/* Nodes, in the order in which they came. */
struct nodes {
  struct node **each;
  size_t count, room;
};

/* A launch, copy, call of a library or event of the program's in a graph. */
struct node {
  bool is_reached; /* from the end of the capture's first stream */
  size_t count;
  struct node *before[]; /* that it waits for; behind them is room for what else the node is to keep */
};

struct graph {
  struct nodes nodes;
  uintptr_t *written; /* blocks that it writes */
  size_t num_written, room;
  struct graph_event *events;
  size_t num_events, event_room;
  uint32_t num_branches; /* streams that took part */
  uint32_t number;       /* from 1 on, in the order of their making */
  int references;        /* itself, and what was instantiated from it */
};

struct graph *new_graph(void);
void drop_graph(struct graph *graph);
void note_write(struct graph *graph, uintptr_t address);
void close_graph(struct graph *graph); /* its capture is over */
void note_event(struct graph *graph, struct graph_event event);

struct node *add_node(struct graph *graph, struct node *const *before, size_t count, size_t room);
void join_nodes(struct nodes *to, struct node *const *more, size_t count); /* keeps each once */
void reach_nodes(const struct graph *graph, const struct nodes *end);      /* marks what comes before it */

int instantiate_graph(void **executable, struct graph *graph);
void destroy_executable(void *executable);

const struct graph *graph_of(const void *executable); /* that it was made from */

#endif
