/* Zstandard, unpacked (zstd.c). */
#ifndef ULLAGE_ZSTD_H
#define ULLAGE_ZSTD_H

#include <stdbool.h>
#include <stddef.h>

/* Unpacks a frame into exactly `room` bytes; false: it is none, it is damaged, or it has another length. */
bool unpack_zstd(const unsigned char *packed, size_t packed_bytes, unsigned char *to, size_t room);

#endif
