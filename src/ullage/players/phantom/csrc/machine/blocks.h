/* The live blocks of PyTorch's allocator, as the observer sees them come and go (blocks.c). */
#ifndef ULLAGE_BLOCKS_H
#define ULLAGE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void block_allocated(uintptr_t start, size_t bytes, uint64_t birth); /* birth: number of the event */
void block_freed(uintptr_t start);

/* Marks the block that holds p as scratch memory of a library; false: no such block, or marked before. */
bool mark_workspace(uintptr_t p);

/* The number of the event that brought the block that holds p; NO_BIRTH: there is none. */
uint64_t birth_of(uintptr_t p);

/* Writes down the last uses of the blocks that are there (uses.c). */
void note_live_uses(void);

#endif
