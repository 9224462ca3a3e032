/* Device code as libraries hold it, and as programs load it (fat_binary.c). */
#ifndef ULLAGE_FAT_BINARY_H
#define ULLAGE_FAT_BINARY_H

#include "cubin.h"

struct module; /* one that a library registers */

/* NULL wrapper: nothing is known of it. */
struct module *open_module(const void *wrapper);

/* The architecture of the image that the driver would take: a cubin of the same major and not a higher minor, else PTX
 * to compile. 0: none fits. is_ptx says which. */
int best_image(struct module *module, int capability, bool *is_ptx);

/* The parameters of a kernel; NULL: not known. The first call for a module unpacks code, and takes some milliseconds. */
const struct parameters *parameters_in(struct module *module, const char *name);

/* The kernels of code that a program loads itself: a cubin, a fat binary, or one's wrapper; none, where it is another. */
struct kernels *kernels_of_image(const void *image);
struct kernels *kernels_of_file(const char *file);

#endif
