/* NVML's cards: a program that has begun with nvmlInit asks about each by its handle. */
#include "nvml.h"

static int num_inits;
static char handles[MAX_DEVICES]; /* a handle is the address of one of these */

API int nvmlInit_v2(void) {
  if (!num_devices_there()) return DRIVER_NOT_LOADED;
  __atomic_add_fetch(&num_inits, 1, __ATOMIC_RELAXED);
  return SUCCESS;
}
API int nvmlInit(void) { return nvmlInit_v2(); }
API int nvmlInitWithFlags(unsigned flags) { return (void)flags, nvmlInit_v2(); }
API int nvmlShutdown(void) {
  if (num_inits <= 0) return UNINITIALIZED;
  __atomic_sub_fetch(&num_inits, 1, __ATOMIC_RELAXED);
  return SUCCESS;
}

bool is_initialised(void) { return num_inits > 0; }

int card_index(const void *handle) {
  uintptr_t offset = (uintptr_t)handle - (uintptr_t)handles;
  return offset < (uintptr_t)num_devices_there() ? (int)offset : -1;
}

int find_card(const char *function, const void *handle, const void *out, int *index) {
  if (num_inits <= 0) return UNINITIALIZED;
  *index = card_index(handle);
  return *index < 0 || !out ? INVALID_ARGUMENT : card_fault(function, *index);
}

/* Not supported, unless the handle is of a card with another fault. */
int refuse_card(const char *function, const void *handle) {
  int fault = card_index(handle) < 0 ? SUCCESS : card_fault(function, card_index(handle));
  return fault ? fault : refuse(function, NOT_SUPPORTED);
}

API int nvmlDeviceGetCount_v2(unsigned *count) {
  if (num_inits <= 0) return UNINITIALIZED;
  return ANSWER(count, (unsigned)num_devices_there(), INVALID_ARGUMENT);
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  if (num_inits <= 0) return UNINITIALIZED;
  if (!handle || index >= (unsigned)num_devices_there()) return INVALID_ARGUMENT;
  *handle = &handles[index];
  return card_fault(__func__, (int)index);
}

int write_number(const char *function, void *handle, unsigned *out, int (*value)(int index, unsigned *out)) {
  int index, status = find_card(function, handle, out, &index);
  return status ? status : value(index, out);
}
