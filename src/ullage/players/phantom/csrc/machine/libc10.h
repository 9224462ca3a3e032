/* PyTorch's own library libc10, which the phantom stands in front of (libc10.c). */
#ifndef ULLAGE_LIBC10_H
#define ULLAGE_LIBC10_H

/* Its own function of this name; of any library that is loaded: NULL where it has none. */
void *in_libc10(const char *name);
void *in_library(const char *library, const char *name);

#endif
