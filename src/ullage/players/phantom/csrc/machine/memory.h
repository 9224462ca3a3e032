/* Device memory (memory.c) and pinned memory (pinned.c): what only the CUDA runtime and the driver need beyond phantom.h. */
#ifndef ULLAGE_MEMORY_H
#define ULLAGE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PAGE_BYTES = 2 << 20 }; /* granularity of physical device memory */

void *reserve_address_range(int device_index, size_t bytes); /* NULL: no addresses left */
bool charge(int device_index, size_t bytes);                 /* physical memory; false: the device is full */
void discharge(int device_index, size_t bytes);
bool is_mapped(const void *p);                               /* physical memory behind reserved addresses (driver_memory.c) */

/* values.c, of memory that other processes open. */
int share_values(uintptr_t start, size_t bytes); /* the file that holds them; -1: none can be made */
bool open_values(int process, int file, uintptr_t start, size_t bytes); /* false: that process has ended */
void close_values(uintptr_t start);

void *allocate_pinned(size_t bytes);
bool deallocate_pinned(void *p);                 /* false: it was not allocated here */
bool register_pinned(void *p, size_t bytes);     /* of the program's; false: a part of it is pinned already */
bool unregister_pinned(void *p);                 /* false: it was not registered */

#endif
