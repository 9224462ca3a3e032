/* Memory that is handed to NVIDIA's libraries: scratch, and what NCCL exchanges (handed.c). */
#ifndef ULLAGE_HANDED_H
#define ULLAGE_HANDED_H

#include <stdint.h>

/* Begins to look; what is handed over after an event has its position. */
void watch_libraries(void);
void forget_handed(void);

/* A block was freed: what comes to its address is another one. */
void note_freed(int64_t address);

uint64_t event_position(void);

/* The address of the live block that holds p, if it was allocated lately; else p itself (event_hook.c). */
int64_t block_that_holds(int64_t p);

#endif
