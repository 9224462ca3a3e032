/* Which addresses the driver gives to allocations (address_space.c). Its C library is all that it needs: the replay of
 * estimates is linked with it too. */
#ifndef ULLAGE_ADDRESS_SPACE_H
#define ULLAGE_ADDRESS_SPACE_H

#include <stddef.h>
#include <stdint.h>

/* LINUX_ORDER: large allocations downwards, in chunks; smaller ones fill the rest of a chunk.
 * WINDOWS_ORDER: the lowest address that is free; WSL2's too. */
enum address_order { LINUX_ORDER, WINDOWS_ORDER };

struct address_space;

/* All addresses from `bottom` up to `top`, which are free; NULL: no host memory. */
struct address_space *new_address_space(uintptr_t bottom, uintptr_t top, enum address_order order);
void delete_address_space(struct address_space *space);

/* The start of a range of so many bytes, a multiple of the driver's pages of 2 MiB; 0: no such range is free. */
uintptr_t take_addresses(struct address_space *space, size_t bytes);
void return_addresses(struct address_space *space, uintptr_t start, size_t bytes);

#endif
