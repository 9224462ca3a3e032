/* Copies between host and device, as the program asks for them (transfers.c). */
#ifndef ULLAGE_TRANSFERS_H
#define ULLAGE_TRANSFERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void note_copy(const void *dst, const void *src, size_t bytes, const void *stream, bool is_waited_for);
void note_launch(void);               /* this thread has put other work after its last copy */
void note_wait(const void *stream);   /* the host waits until the stream is done */

#endif
