/* cuDNN: the handle, versions, tensor and filter descriptors, and every function without a file of its own. */
#include "cudnn.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DO(name) DO_RETURNING(int, name, CUDNN_SUCCESS)
#define REFUSE(name) \
  API int name(void) { return refuse(#name, CUDNN_NOT_SUPPORTED); }
#include "tables/cudnn.inc"

/* ---- Versions and errors ----------------------------------------------------------------------------------------- */
static int version(void) { return library_version("cudnn", 92600); }

API size_t cudnnGetVersion(void) { return (size_t)version(); }

/* cuDNN carries a CUDA runtime of its own, of the toolkit it was built with. */
API size_t cudnnGetCudartVersion(void) { return (size_t)library_version("cudart", 13020); }

API size_t cudnnGetMaxDeviceVersion(void) {
  const struct device *here = device(current_device());
  return (size_t)(100 * here->major + 10 * here->minor);
}

API int cudnnGetProperty(int property, int *value) {
  if (!value) return CUDNN_NULL_POINTER;
  return version_part(version(), 10000, property, value) ? CUDNN_SUCCESS : CUDNN_BAD_PARAM;
}

API const char *cudnnGetErrorString(int status) {
  switch (status) {
    case CUDNN_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_NULL_POINTER: return "CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
    case CUDNN_NOT_FINALIZED: return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    case CUDNN_ATTRIBUTE_TYPE: return "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE";
    case CUDNN_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_HOST_ALLOCATION_FAILED: return "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED";
    default: return "CUDNN_UNKNOWN_STATUS";
  }
}

API void cudnnGetLastErrorString(char *message, size_t max_bytes) {
  if (message && max_bytes) message[0] = '\0';
}

API int cudnnQueryRuntimeError(void *handle, int *status, int mode, void *tag) {
  (void)handle, (void)mode, (void)tag;
  if (!status) return CUDNN_NULL_POINTER;
  *status = CUDNN_SUCCESS; /* no kernel runs, so none fails */
  return CUDNN_SUCCESS;
}

/* ---- Objects ----------------------------------------------------------------------------------------------------- */
int create_object(void **object, enum kind kind, size_t bytes) {
  if (!object) return CUDNN_NULL_POINTER;
  enum kind *made = calloc(1, bytes);
  if (!made) return CUDNN_HOST_ALLOCATION_FAILED;
  *made = kind;
  *object = made;
  return CUDNN_SUCCESS;
}

void *object_of(const void *object, enum kind kind) {
  return object && *(const enum kind *)object == kind ? (void *)(uintptr_t)object : NULL;
}

int destroy_object(void *object) {
  if (object) *(enum kind *)object = 0;
  free(object);
  return CUDNN_SUCCESS;
}

#define DESCRIPTOR(name, kind, type)                                                                  \
  API int cudnnCreate##name##Descriptor(void **descriptor) {                                         \
    return create_object(descriptor, kind, sizeof(type));                                            \
  }                                                                                                  \
  API int cudnnDestroy##name##Descriptor(void *descriptor) { return destroy_object(descriptor); }

DESCRIPTOR(Tensor, KIND_TENSOR, struct tensor)
DESCRIPTOR(Filter, KIND_FILTER, struct tensor)
DESCRIPTOR(Dropout, KIND_DROPOUT, struct dropout)
/* Of these nothing is asked that would have to be remembered: their setters are in the table. */
DESCRIPTOR(Activation, KIND_OTHER, enum kind)
DESCRIPTOR(Pooling, KIND_OTHER, enum kind)
DESCRIPTOR(SpatialTransformer, KIND_OTHER, enum kind)
DESCRIPTOR(OpTensor, KIND_OTHER, enum kind)
DESCRIPTOR(ReduceTensor, KIND_OTHER, enum kind)
DESCRIPTOR(LRN, KIND_OTHER, enum kind)
DESCRIPTOR(TensorTransform, KIND_OTHER, enum kind)
DESCRIPTOR(Attn, KIND_OTHER, enum kind)
DESCRIPTOR(SeqData, KIND_OTHER, enum kind)

/* ---- The handle -------------------------------------------------------------------------------------------------- */
struct handle {
  enum kind kind;
  void *_Atomic stream;
};

API int cudnnCreate(void **handle) { return create_object(handle, KIND_HANDLE, sizeof(struct handle)); }
API int cudnnDestroy(void *handle) { return destroy_object(handle); }

API int cudnnSetStream(void *handle, void *stream) {
  struct handle *to = object_of(handle, KIND_HANDLE);
  if (!to) return CUDNN_BAD_PARAM;
  follow_stream(to->stream = stream);
  return CUDNN_SUCCESS;
}

API int cudnnGetStream(void *handle, void **stream) {
  struct handle *from = object_of(handle, KIND_HANDLE);
  return from ? ANSWER(stream, from->stream, CUDNN_BAD_PARAM) : CUDNN_BAD_PARAM;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */
size_t data_type_bytes(int data_type) {
  switch (data_type) {
    case DATA_DOUBLE: case DATA_INT64: case DATA_COMPLEX_FP32: return 8;
    case DATA_COMPLEX_FP64: return 16;
    case DATA_FLOAT: case DATA_INT32: case DATA_UINT32: case DATA_INT8x4: case DATA_UINT8x4: return 4;
    case DATA_HALF: case DATA_BFLOAT16: return 2;
    case DATA_INT8x32: return 32;
    default: return 1;
  }
}

void set_packed(struct tensor *tensor, int format) {
  int64_t stride = 1;
  if (format == FORMAT_NHWC && tensor->num_dims > 2) {
    tensor->strides[1] = 1;
    stride = tensor->dims[1];
    for (int i = tensor->num_dims - 1; i > 1; i--) tensor->strides[i] = stride, stride *= tensor->dims[i];
    tensor->strides[0] = stride;
    return;
  }
  for (int i = tensor->num_dims - 1; i >= 0; i--) tensor->strides[i] = stride, stride *= tensor->dims[i];
}

int set_tensor(struct tensor *tensor, int data_type, int num_dims, const int *dims, const int *strides) {
  if (!tensor || !dims || num_dims < 1 || num_dims > MAX_DIMS) return CUDNN_BAD_PARAM;
  tensor->data_type = data_type;
  tensor->num_dims = num_dims;
  for (int i = 0; i < num_dims; i++) tensor->dims[i] = dims[i];
  if (!strides) set_packed(tensor, FORMAT_NCHW);
  else for (int i = 0; i < num_dims; i++) tensor->strides[i] = strides[i];
  return CUDNN_SUCCESS;
}

size_t tensor_bytes(const struct tensor *tensor) {
  int64_t last = 0;
  for (int i = 0; i < tensor->num_dims; i++) {
    if (tensor->dims[i] < 1) return 0;
    last += (tensor->dims[i] - 1) * tensor->strides[i];
  }
  return tensor->num_dims ? (size_t)(last + 1) * data_type_bytes(tensor->data_type) : 0;
}

API int cudnnSetTensorNdDescriptor(void *descriptor, int data_type, int num_dims, const int *dims, const int *strides) {
  if (!strides) return CUDNN_NULL_POINTER;
  return set_tensor(object_of(descriptor, KIND_TENSOR), data_type, num_dims, dims, strides);
}

API int cudnnSetTensorNdDescriptorEx(void *descriptor, int format, int data_type, int num_dims, const int *dims) {
  struct tensor *tensor = object_of(descriptor, KIND_TENSOR);
  int status = set_tensor(tensor, data_type, num_dims, dims, NULL);
  if (status == CUDNN_SUCCESS) set_packed(tensor, format);
  return status;
}

API int cudnnSetTensor4dDescriptor(void *descriptor, int format, int data_type, int n, int c, int h, int w) {
  return cudnnSetTensorNdDescriptorEx(descriptor, format, data_type, 4, (const int[]){n, c, h, w});
}

API int cudnnSetTensor4dDescriptorEx(void *descriptor, int data_type, int n, int c, int h, int w, int n_stride, int c_stride,
                                     int h_stride, int w_stride) {
  return set_tensor(object_of(descriptor, KIND_TENSOR), data_type, 4, (const int[]){n, c, h, w},
                    (const int[]){n_stride, c_stride, h_stride, w_stride});
}

/* Writes no more than was asked for, and says how many there are. */
static int get_dims(const struct tensor *tensor, int requested, int *data_type, int *num_dims, int *dims, int *strides) {
  if (!tensor) return CUDNN_BAD_PARAM;
  if (data_type) *data_type = tensor->data_type;
  if (num_dims) *num_dims = tensor->num_dims;
  for (int i = 0; i < requested && i < tensor->num_dims; i++) {
    if (dims) dims[i] = (int)tensor->dims[i];
    if (strides) strides[i] = (int)tensor->strides[i];
  }
  return CUDNN_SUCCESS;
}

API int cudnnGetTensorNdDescriptor(const void *descriptor, int requested, int *data_type, int *num_dims, int *dims,
                                   int *strides) {
  return get_dims(object_of(descriptor, KIND_TENSOR), requested, data_type, num_dims, dims, strides);
}

API int cudnnGetTensor4dDescriptor(const void *descriptor, int *data_type, int *n, int *c, int *h, int *w, int *n_stride,
                                   int *c_stride, int *h_stride, int *w_stride) {
  int dims[4] = {0}, strides[4] = {0}, num_dims = 0;
  int status = get_dims(object_of(descriptor, KIND_TENSOR), 4, data_type, &num_dims, dims, strides);
  if (status != CUDNN_SUCCESS || num_dims != 4) return CUDNN_BAD_PARAM;
  *n = dims[0], *c = dims[1], *h = dims[2], *w = dims[3];
  *n_stride = strides[0], *c_stride = strides[1], *h_stride = strides[2], *w_stride = strides[3];
  return CUDNN_SUCCESS;
}

API int cudnnGetTensorSizeInBytes(const void *descriptor, size_t *bytes) {
  const struct tensor *tensor = object_of(descriptor, KIND_TENSOR);
  return tensor ? ANSWER(bytes, tensor_bytes(tensor), CUDNN_BAD_PARAM) : CUDNN_BAD_PARAM;
}

/* ---- Filters ----------------------------------------------------------------------------------------------------- */
API int cudnnSetFilterNdDescriptor(void *descriptor, int data_type, int format, int num_dims, const int *dims) {
  struct tensor *filter = object_of(descriptor, KIND_FILTER);
  int status = set_tensor(filter, data_type, num_dims, dims, NULL);
  if (status != CUDNN_SUCCESS) return status;
  filter->format = format;
  set_packed(filter, format);
  return CUDNN_SUCCESS;
}

API int cudnnSetFilter4dDescriptor(void *descriptor, int data_type, int format, int k, int c, int h, int w) {
  return cudnnSetFilterNdDescriptor(descriptor, data_type, format, 4, (const int[]){k, c, h, w});
}

API int cudnnGetFilterNdDescriptor(const void *descriptor, int requested, int *data_type, int *format, int *num_dims,
                                   int *dims) {
  const struct tensor *filter = object_of(descriptor, KIND_FILTER);
  if (filter && format) *format = filter->format;
  return get_dims(filter, requested, data_type, num_dims, dims, NULL);
}

API int cudnnGetFilter4dDescriptor(const void *descriptor, int *data_type, int *format, int *k, int *c, int *h, int *w) {
  int dims[4] = {0}, num_dims = 0;
  int status = cudnnGetFilterNdDescriptor(descriptor, 4, data_type, format, &num_dims, dims);
  if (status != CUDNN_SUCCESS || num_dims != 4) return CUDNN_BAD_PARAM;
  *k = dims[0], *c = dims[1], *h = dims[2], *w = dims[3];
  return CUDNN_SUCCESS;
}

API int cudnnGetFilterSizeInBytes(const void *descriptor, size_t *bytes) {
  const struct tensor *filter = object_of(descriptor, KIND_FILTER);
  return filter ? ANSWER(bytes, tensor_bytes(filter), CUDNN_BAD_PARAM) : CUDNN_BAD_PARAM;
}
