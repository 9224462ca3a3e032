/* Host memory that would be filled on a machine with the GPU, and is left untouched here. */
#ifndef ULLAGE_HOST_H
#define ULLAGE_HOST_H

#include <stddef.h>

void host_filled(const void *p, size_t bytes); /* these bytes of a CPU tensor, by a copy or a fill that was left out */
void host_pinned(const void *p, size_t bytes); /* pinned memory is resident from the start */
void host_unpinned(const void *p);

void fill_zeros(void *dst, size_t bytes);

#endif
