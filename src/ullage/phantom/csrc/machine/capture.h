/* Stream capture (capture.c). */
#ifndef ULLAGE_CAPTURE_H
#define ULLAGE_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>

enum { MAX_CAPTURES = 64 }; /* streams in captures at once */

/* As the runtime numbers them. */
enum capture_status { CAPTURE_NONE, CAPTURE_ACTIVE, CAPTURE_VOID };

/* How much of the work of each stream in a capture comes before something. */
struct captured_work {
  uint32_t counts[MAX_CAPTURES];
};

int begin_capture(void *stream, unsigned stream_flags, void *graph, int mode);
int end_capture(void *stream, void **graph);
int exchange_capture_mode(int mode); /* of this thread; answers with the mode before */
bool is_mode_thread_local(void);
enum capture_status capture_status(const void *stream, uint64_t *id, void **graph);
bool is_any_capture_open(void);
bool is_open_capture(uint64_t id);

/* Work is given to a stream: true in a capture, when it is noted and not done. */
bool is_work_captured(const void *stream);

/* An event of the program's, not of the capture, is recorded or waited for: true in a capture, where that is a node. */
struct graph_event;
bool is_event_captured(const void *stream, const struct graph_event *event);

/* Something is written to the device: true while a capture is open, when nothing is done yet. */
bool is_write_captured(uintptr_t address);

/* An event is recorded: the capture, 0 for none, and what comes before the event. */
uint64_t mark_captured(const void *stream, struct captured_work *work);

/* A stream waits for an event of a capture (0: of none), and takes part in the capture from now on. */
int wait_in_capture(void *stream, unsigned stream_flags, uint64_t id, const struct captured_work *work);

/* Calls that captures do not allow: answer with CUDA's error, and make the capture void. */
int refuse_work(const void *stream);        /* work for a stream whose capture is void, or for the legacy stream */
int refuse_unsafe_call(void);               /* an allocation, a question about an event */
int refuse_captured_event(uint64_t id);     /* the host turns to an event of this capture */
int wait_for_stream(const void *stream);    /* the host waits for a stream */
int wait_for_device(void);                  /* the host waits for all of the current device */

#endif
