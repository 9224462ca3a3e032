/* PyTorch's own library libc10, which the phantom stands in front of (libc10.c). */
#ifndef ULLAGE_LIBC10_H
#define ULLAGE_LIBC10_H

/* Its own function of this name. */
void *in_libc10(const char *name);

#endif
