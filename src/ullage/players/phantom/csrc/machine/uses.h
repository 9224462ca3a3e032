/* When each block was last handed to a kernel, a library or a copy (uses.c). */
#ifndef ULLAGE_USES_H
#define ULLAGE_USES_H

#include <stdint.h>

#define NO_BIRTH UINT64_MAX /* not a block of PyTorch's allocator */

/* The block that event `birth` brought was last used when there had been `used` events; 0: never. */
void note_last_use(uint64_t birth, uint64_t used);

/* A graph runs: its kernels' arguments are not at hand, so every block that is there may be used. */
void use_every_block(void);

/* Of what each of the first `count` events brought; 0: none. */
void copy_last_uses(uint64_t count, uint32_t *found);

#endif
