/* What no file can know beforehand, so that none can be made whose values all hash alike. */
#ifndef ULLAGE_SEED_H
#define ULLAGE_SEED_H

#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

/* getrandom is younger than the oldest C library that this is built for. */
static inline uint64_t make_seed(const void *fallback) {
  uint64_t seed = 0;
  int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  int is_read = file >= 0 && read(file, &seed, sizeof seed) == (ssize_t)sizeof seed;
  if (file >= 0) close(file);
  return is_read ? seed : (uint64_t)(uintptr_t)fallback;
}

#endif
