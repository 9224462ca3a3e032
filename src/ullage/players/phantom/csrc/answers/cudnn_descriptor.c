/* Descriptors of cuDNN's backend API: what each was told, and the others among that. */
#include "cudnn_descriptor.h"

#include <stdlib.h>
#include <string.h>

size_t type_bytes(int type) {
  switch (type) {
    case 0: case TYPE_INT64: case 5: case TYPE_VOID_PTR: case TYPE_BACKEND: return 8; /* 0: handle, 5: double */
    case TYPE_BOOLEAN: return sizeof(bool);
    case TYPE_CHAR: return 1;
    case TYPE_FRACTION: return 16;
    default: return 4; /* float, int32 and the enumerations */
  }
}

static void drop_values(struct attribute *attribute) {
  struct backend *const *children = attribute->values;
  for (int64_t i = 0; attribute->type == TYPE_BACKEND && i < attribute->count; i++) release_backend(children[i]);
  free(attribute->values);
  attribute->values = NULL;
}

void drop_attributes(struct backend *backend) {
  for (int i = 0; i < backend->num_attributes; i++) drop_values(&backend->attributes[i]);
  free(backend->attributes);
  backend->attributes = NULL;
  backend->num_attributes = 0;
}

void release_backend(struct backend *backend) {
  if (!backend || atomic_fetch_sub(&backend->num_references, 1) != 1) return;
  drop_attributes(backend);
  destroy_object(backend);
}

int create_backend(int type, struct backend **backend) {
  void *object = NULL;
  int status = create_object(&object, KIND_BACKEND, sizeof(struct backend));
  if (status != CUDNN_SUCCESS) return status;
  *backend = object;
  (*backend)->type = type;
  atomic_init(&(*backend)->num_references, 1);
  return CUDNN_SUCCESS;
}

struct attribute *find_backend_attribute(const struct backend *backend, int name) {
  for (int i = 0; backend && i < backend->num_attributes; i++)
    if (backend->attributes[i].name == name) return &backend->attributes[i];
  return NULL;
}

int set_backend_attribute(struct backend *backend, int name, int type, int64_t count, const void *values) {
  size_t bytes = (size_t)count * type_bytes(type);
  void *copy = malloc(bytes ? bytes : 1);
  struct attribute *attribute = find_backend_attribute(backend, name);
  if (!attribute) {
    struct attribute *grown = realloc(backend->attributes, sizeof *grown * (size_t)(backend->num_attributes + 1));
    if (grown) backend->attributes = grown, attribute = &grown[backend->num_attributes];
  }
  if (!copy || !attribute) return free(copy), CUDNN_HOST_ALLOCATION_FAILED;
  if (bytes) memcpy(copy, values, bytes);
  struct backend *const *children = copy;
  for (int64_t i = 0; type == TYPE_BACKEND && i < count; i++)
    if (children[i]) atomic_fetch_add(&children[i]->num_references, 1);
  if (attribute == &backend->attributes[backend->num_attributes]) backend->num_attributes++;
  else drop_values(attribute);
  *attribute = (struct attribute){name, type, count, copy};
  return CUDNN_SUCCESS;
}

/* The caller's descriptor becomes what `source` is. */
int copy_backend(struct backend *target, const struct backend *source) {
  if (!target || target->type != source->type) return CUDNN_BAD_PARAM;
  if (target == source) return CUDNN_SUCCESS;
  drop_attributes(target);
  for (int i = 0; i < source->num_attributes; i++) {
    const struct attribute *from = &source->attributes[i];
    int status = set_backend_attribute(target, from->name, from->type, from->count, from->values);
    if (status != CUDNN_SUCCESS) return status;
  }
  target->scratch = source->scratch;
  target->is_finalized = true;
  return CUDNN_SUCCESS;
}

int backend_type(const struct backend *backend) { return backend ? backend->type : -1; }
const struct attribute *attribute_of(const struct backend *backend, int name) { return find_backend_attribute(backend, name); }

int64_t int64_of(const struct backend *backend, int name, int64_t fallback) {
  const struct attribute *attribute = find_backend_attribute(backend, name);
  return attribute && attribute->type == TYPE_INT64 && attribute->count ? *(const int64_t *)attribute->values : fallback;
}

struct backend *backend_of(const struct backend *backend, int name, int64_t index) {
  const struct attribute *attribute = find_backend_attribute(backend, name);
  if (!attribute || attribute->type != TYPE_BACKEND || index >= attribute->count) return NULL;
  return ((struct backend *const *)attribute->values)[index];
}
