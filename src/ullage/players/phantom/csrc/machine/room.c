/* Arrays that grow by doubling. */
#include "room.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 64 };

bool has_room_for_row(void *array, size_t *room, size_t count, size_t row_bytes, size_t most) {
  size_t wanted = *room ? *room * 2 : FIRST_ROOM;
  void *rows;
  if (count < *room) return true;
  memcpy(&rows, array, sizeof rows);
  rows = count < most ? realloc(rows, wanted * row_bytes) : NULL;
  if (!rows) return false;
  memcpy(array, &rows, sizeof rows);
  *room = wanted;
  return true;
}
