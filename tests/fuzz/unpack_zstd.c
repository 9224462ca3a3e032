/* Any bytes as a frame of Zstandard, unpacked into as many bytes as the first two say. Both buffers are as large as they
 * are said to be, so that the sanitizer sees a byte read or written beyond. */
#include "zstd.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER = 2 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < HEADER) return 0;
  size_t room = data[0] | (size_t)data[1] << 8, packed_bytes = size - HEADER;
  unsigned char *packed = malloc(packed_bytes), *to = malloc(room);
  if (packed_bytes) memcpy(packed, data + HEADER, packed_bytes);
  if (unpack_zstd(packed, packed_bytes, to, room)) {
    /* What is whole is written to its last byte, and comes to the same a second time. */
    unsigned char *again = calloc(room, 1);
    if (!unpack_zstd(packed, packed_bytes, again, room) || memcmp(to, again, room)) abort();
    free(again);
  }
  free(packed);
  free(to);
  return 0;
}
