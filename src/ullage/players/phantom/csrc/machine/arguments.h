/* What a launch hands to its kernel (arguments.c). */
#ifndef ULLAGE_ARGUMENTS_H
#define ULLAGE_ARGUMENTS_H

#include "cubin.h"

/* What a launch may have written is unknown from now on. params: pointers to the values of the arguments, as many as the
 * kernel has parameters; NULL: they are packed. parameters: NULL: not known. The last bytes of
 * the only argument come first among the operands: see pointers_last. */
void forget_launch(void *const *params, const struct parameters *parameters, size_t last_bytes);

#endif
