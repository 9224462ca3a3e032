/* Stream capture (capture.c). */
#ifndef ULLAGE_CAPTURE_H
#define ULLAGE_CAPTURE_H

#include "graph.h"

#include <stdbool.h>
#include <stdint.h>

enum { MAX_CAPTURES = 64 }; /* streams in captures at once */

/* As the runtime numbers them. */
enum capture_status { CAPTURE_NONE, CAPTURE_ACTIVE, CAPTURE_VOID };

/* What a capture says of itself. */
struct captured {
  uint64_t id;
  struct graph *graph;
  struct nodes before; /* that the stream's next work waits for */
};

int begin_capture(void *stream, struct graph *graph, int mode); /* NULL: into one of its own */
int end_capture(void *stream, void **graph);
int exchange_capture_mode(int mode); /* of this thread; answers with the mode before */
bool is_mode_thread_local(void);
enum capture_status capture_status(const void *stream, struct captured *found);
bool is_any_capture_open(void);

/* Work is given to a stream (event: NULL), or an event of the program's, not of the capture, is recorded or waited for
 * there: true in a capture, where it is a node and not done. */
bool is_captured(const void *stream, const struct graph_event *event);

/* Something is written to the device: true while a capture is open, when nothing is done yet. */
bool is_write_captured(uintptr_t address);

/* An event is recorded: the capture, 0 for none, and what comes before the event. */
uint64_t mark_captured(const void *stream, struct nodes *before);

/* A stream's next work is to wait for these nodes, alone or as well. */
int wait_for_nodes(const void *stream, struct node *const *nodes, size_t count, bool are_alone);

/* A stream waits for an event of a capture (0: of none), and takes part in the capture from now on. */
int wait_in_capture(void *stream, uint64_t id, const struct nodes *before);

/* Calls that captures do not allow: answer with CUDA's error, and make the capture void. */
int refuse_work(const void *stream);        /* work for a stream whose capture is void, or for the legacy stream */
int refuse_unsafe_call(void);               /* an allocation, a question about an event */
int refuse_captured_event(uint64_t id);     /* the host turns to an event of this capture */
int wait_for_stream(const void *stream);    /* the host waits for a stream */
int wait_for_device(void);                  /* the host waits for all of the current device */

#endif
