/* How descriptors of the backend API are made and kept (cudnn_descriptor.c); what graphs ask of them is in cudnn.h. */
#ifndef ULLAGE_PHANTOM_CUDNN_DESCRIPTOR_H
#define ULLAGE_PHANTOM_CUDNN_DESCRIPTOR_H

#include "cudnn.h"

#include <stdatomic.h>

struct backend {
  enum kind kind;
  int type;
  atomic_int num_references;
  bool is_finalized;
  int num_attributes;
  struct attribute *attributes;
  struct scratch scratch; /* plans */
  bool is_reported;
};

size_t type_bytes(int type); /* of one value of an attribute */
int create_backend(int type, struct backend **backend); /* a cudnn_status */
void release_backend(struct backend *backend);
void drop_attributes(struct backend *backend);
struct attribute *find_backend_attribute(const struct backend *backend, int name); /* NULL: not set */
int set_backend_attribute(struct backend *backend, int name, int type, int64_t count, const void *values); /* a cudnn_status */
/* The target becomes what the source is. */
int copy_backend(struct backend *target, const struct backend *source);

#endif
