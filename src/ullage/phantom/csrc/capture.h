/* Stream capture and graphs (capture.c). */
#ifndef ULLAGE_CAPTURE_H
#define ULLAGE_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>

/* As the runtime numbers them. */
enum capture_status { CAPTURE_NONE, CAPTURE_ACTIVE, CAPTURE_VOID };

void *new_graph(void);
int begin_capture(void *stream, void *graph);
int end_capture(void *stream, void **graph);
enum capture_status capture_status(const void *stream, uint64_t *id, void **graph);
bool is_any_capture_open(void);
bool is_open_capture(uint64_t id);
void join_capture(void *stream, uint64_t id);

/* The host waits for a stream, or for all of a device (NULL): an error while it captures, which ends the capture. */
int wait_for_stream(const void *stream);
int wait_for_device(void);

/* Something is written to the device: true while a capture is open, when nothing is done yet. */
bool is_write_captured(uintptr_t address);

/* A graph runs: what it writes is unknown from now on. */
void launch_graph(const void *graph);

#endif
