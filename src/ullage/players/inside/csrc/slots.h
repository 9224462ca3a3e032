/* Functions that other libraries call, replaced in the tables by which they call them (slots.c). */
#ifndef ULLAGE_SLOTS_H
#define ULLAGE_SLOTS_H

#include <stddef.h>

struct replacement {
  const char *name; /* NULL ends a list */
  const void *function;
};

/* The function of a name as a library without our hooks would call it: what is preloaded comes first; NULL: there is
 * none. */
void *function_of(const char *name);

/* Replaces what a library, such as libc10_cuda.so, calls by these names. Answers how many slots were found. */
size_t replace_calls(const char *library, const struct replacement *list);

/* Puts back what was in all slots. */
void restore_calls(void);

#endif
