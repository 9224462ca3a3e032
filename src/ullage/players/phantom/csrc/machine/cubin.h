/* The parameters of the kernels in device code (cubin.c). */
#ifndef ULLAGE_CUBIN_H
#define ULLAGE_CUBIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct parameter {
  uint16_t offset, bytes; /* among all parameters of the kernel */
};

struct parameters {
  uint32_t count;
  struct parameter each[];
};

struct kernels {
  size_t count, room;
  struct kernel { char *name; struct parameters *parameters; } *each;
};

/* Adds the kernels of a cubin; false: it is none, or is damaged. */
bool add_cubin(struct kernels *kernels, const unsigned char *elf, size_t bytes);

/* The length of a cubin of which the start is known alone; 0: it is none. */
size_t cubin_bytes(const unsigned char *elf);

/* NULL: not among them. */
const struct parameters *find_kernel(const struct kernels *kernels, const char *name);

#endif
