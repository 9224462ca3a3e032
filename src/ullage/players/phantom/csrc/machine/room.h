/* Arrays that grow by doubling (room.c). */
#ifndef ULLAGE_ROOM_H
#define ULLAGE_ROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sees to room for one more row than `count`, up to `most` rows; false: there is none. `array` is where the pointer to the
 * rows is. */
bool has_room_for_row(void *array, size_t *room, size_t count, size_t row_bytes, size_t most);

#endif
