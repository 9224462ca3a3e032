/* The position in the event sequence, and how much each device has allocated, reserved and taken (levels.c). */
#ifndef ULLAGE_LEVELS_H
#define ULLAGE_LEVELS_H

#include <stdbool.h>
#include <stdint.h>

static inline void raise_to(uint64_t *peak, uint64_t level) {
  if (level > *peak) *peak = level;
}

/* Number of block events and out-of-memory events so far, all devices together. */
uint64_t event_position(void);
uint64_t next_position(void); /* the number of a new event */

/* After an event, by the allocator's own account. */
void note_levels(int device, uint64_t allocated, uint64_t reserved, bool is_out_of_memory);

/* Memory of a device was taken, or is about to change, that is not of PyTorch's cache. */
void note_outside(int device);

/* What PyTorch's cache holds and nobody uses. */
uint64_t cached_bytes(int device);

#endif
