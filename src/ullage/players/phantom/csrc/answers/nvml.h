/* NVML, in two libraries: the phantom answers the program that runs on it (nvml_use.c, nvml_idle.c), and
 * libnvidia-ml.so.1 of a directory answers other programs about all that run there (players/phantom/nvml). They share nvml.c and
 * nvml_card.c.
 */
#ifndef ULLAGE_NVML_H
#define ULLAGE_NVML_H

#include "phantom.h"
#include "published.h"

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, OUT_OF_MEMORY = 20, ARGUMENT_VERSION_MISMATCH = 25 };

/* ---- nvml_card.c ------------------------------------------------------------------------------------------------- */

/* SUCCESS, with the index, for a good handle and somewhere to write to; else what `function` is to return. */
int find_card(const char *function, const void *handle, const void *out, int *index);
bool is_initialised(void);
int card_index(const void *handle); /* -1: it is no handle */
int refuse_card(const char *function, const void *handle); /* not supported, or the fault of the card */
#define find(handle, out, index) find_card(__func__, handle, out, index)

/* Of a function that answers with one number: `value` may refuse. */
int write_number(const char *function, void *handle, unsigned *out, int (*value)(int index, unsigned *out));
#define NUMBER(name, expression)                                                                                     \
  static int name##_value(int index, unsigned *out) { return (void)index, *out = (unsigned)(expression), SUCCESS; }  \
  API int name(void *handle, unsigned *out) { return write_number(__func__, handle, out, name##_value); }

/* ---- What the two libraries know, each in its own way ------------------------------------------------------------- */

/* The processes on a card, as list_processes_on has them. */
size_t list_uses(int index, struct process_use *uses, size_t room);
uint64_t card_used_bytes(int index);
uint64_t card_free_bytes(int index);
int card_fault(const char *function, int index); /* SUCCESS, or what the function is to return instead of an answer */

#endif
