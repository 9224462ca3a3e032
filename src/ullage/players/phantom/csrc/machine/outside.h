/* Device memory that the driver and libraries hold beside PyTorch's allocator (outside.c). */
#ifndef ULLAGE_OUTSIDE_H
#define ULLAGE_OUTSIDE_H

#include <stdbool.h>
#include <stddef.h>

/* Takes `high` bytes of a device, of which `low` are certain; false: there is no room. `what` is a short stable text:
 * all that has it, on one device, is one entry of the report, at its highest. */
bool take_outside(int device, const char *what, size_t low, size_t high);
void give_back_outside(int device, const char *what, size_t low, size_t high);

#endif
