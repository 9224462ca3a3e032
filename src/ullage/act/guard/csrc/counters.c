/* Reads one thing of many tensors in one call: Python takes 0.1 us for each, and a step of a training has several
 * hundred. The functions of torch that read it are passed in. */
#include <stdbool.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* `at::TensorBase::_version() const`, whose tensor is one pointer. It must not be given tensors of inference mode: it
 * throws. */
typedef int64_t read_version(void *const *tensor);
/* `c10::TensorImpl::requires_grad() const` */
typedef bool read_requires_grad(const void *tensor);
/* `c10::TensorImpl::grad() const`, which returns a reference to a tensor. */
typedef void *const *read_gradient(const void *tensor);

/* Writes the version counter of each of `num_tensors` tensors. */
EXPORT void ullage_read_versions(read_version *read, void *const *tensors, int64_t num_tensors, int64_t *versions) {
  for (int64_t i = 0; i < num_tensors; i++) versions[i] = read(&tensors[i]);
}

/* Writes whether each tensor requires a gradient. */
EXPORT void ullage_read_requires_grad(read_requires_grad *read, void *const *tensors, int64_t num_tensors,
                                      uint8_t *flags) {
  for (int64_t i = 0; i < num_tensors; i++) flags[i] = read(tensors[i]);
}

/* How many of the tensors have another gradient than `without`, a tensor that has none. */
EXPORT int64_t ullage_count_gradients(read_gradient *read, void *const *tensors, int64_t num_tensors,
                                      const void *without) {
  const void *none = *read(without);
  int64_t count = 0;
  for (int64_t i = 0; i < num_tensors; i++) count += *read(tensors[i]) != none;
  return count;
}

/* Writes the version counter of each tensor's gradient; -1 where it has none, as `without` has none. */
EXPORT void ullage_read_gradient_versions(read_gradient *read, read_version *version, void *const *tensors,
                                          int64_t num_tensors, const void *without, int64_t *versions) {
  const void *none = *read(without);
  for (int64_t i = 0; i < num_tensors; i++) {
    void *const *gradient = read(tensors[i]);
    versions[i] = *gradient == none ? -1 : version(gradient);
  }
}

/* Writes which of `num_dicts` dicts have another version tag than `tags` says, and the tags; returns how many they are.
 * In CPython's dict (Include/cpython/dictobject.h) the tag follows the header of two words and the number of entries. */
EXPORT int64_t ullage_changed_dicts(const uint64_t *const *dicts, uint64_t *tags, int64_t num_dicts, int64_t *changed) {
  int64_t count = 0;
  for (int64_t i = 0; i < num_dicts; i++) {
    uint64_t tag = dicts[i][3];
    if (tag == tags[i]) continue;
    tags[i] = tag;
    changed[count++] = i;
  }
  return count;
}
