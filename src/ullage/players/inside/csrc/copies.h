/* Copies between host and device, and pinned memory, in a process with a real GPU (copies.c). */
#ifndef ULLAGE_COPIES_H
#define ULLAGE_COPIES_H

/* Begins to note copies of the CUDA runtime that torch's libraries call. */
void watch_copies(void);
void stop_copies(void);   /* in a forked child: nothing is noted */
void forget_copies(void); /* at the end */

void note_launch(void); /* this thread has given the GPU other work after its last copy */

#endif
