/* cuDNN: convolutions of the legacy API, which PyTorch uses when told to (TORCH_CUDNN_V8_API_DISABLED) and others always.
 *
 * Each search finds two algorithms: implicit GEMM with offsets computed before, with the workspace that the model of
 * cudnn_workspace.c gives it, as has whichever other a caller asks about; and implicit GEMM, which needs the least. */
#include "cudnn.h"

enum { ALGORITHM_OF_LEAST_WORKSPACE = 0, ALGORITHM = 1, DETERMINISTIC = 1, DEFAULT_MATH = 0, FMA_MATH = 3, MAX_SPATIAL = MAX_DIMS - 2 };

struct convolution_descriptor {
  enum kind kind;
  int num_spatial, mode, compute_type, math_type, num_groups, reorder_type;
  int padding[MAX_SPATIAL], stride[MAX_SPATIAL], dilation[MAX_SPATIAL];
};

/* cudnnConvolution{Fwd,BwdData,BwdFilter}AlgoPerf_t: the three are laid out alike. */
struct performance {
  int algorithm, status;
  float milliseconds;
  size_t bytes;
  int determinism, math_type, reserved[3];
};

/* ---- The descriptor ---------------------------------------------------------------------------------------------- */
API int cudnnCreateConvolutionDescriptor(void **descriptor) {
  int status = create_object(descriptor, KIND_CONVOLUTION, sizeof(struct convolution_descriptor));
  if (status == CUDNN_SUCCESS) ((struct convolution_descriptor *)*descriptor)->num_groups = 1;
  return status;
}
API int cudnnDestroyConvolutionDescriptor(void *descriptor) { return destroy_object(descriptor); }

#define FIELD(name, field)                                                                  \
  API int cudnnSetConvolution##name(void *descriptor, int value) {                          \
    struct convolution_descriptor *convolution = object_of(descriptor, KIND_CONVOLUTION);  \
    if (!convolution) return CUDNN_BAD_PARAM;                                               \
    convolution->field = value;                                                             \
    return CUDNN_SUCCESS;                                                                   \
  }                                                                                         \
  API int cudnnGetConvolution##name(void *descriptor, int *value) {                         \
    const struct convolution_descriptor *convolution = object_of(descriptor, KIND_CONVOLUTION); \
    if (!convolution || !value) return CUDNN_BAD_PARAM;                                     \
    *value = convolution->field;                                                            \
    return CUDNN_SUCCESS;                                                                   \
  }
FIELD(MathType, math_type)
FIELD(GroupCount, num_groups)
FIELD(ReorderType, reorder_type)

API int cudnnSetConvolutionNdDescriptor(void *descriptor, int num_spatial, const int *padding, const int *stride,
                                        const int *dilation, int mode, int compute_type) {
  struct convolution_descriptor *convolution = object_of(descriptor, KIND_CONVOLUTION);
  if (!convolution || num_spatial < 1 || num_spatial > MAX_SPATIAL || !padding || !stride || !dilation) return CUDNN_BAD_PARAM;
  convolution->num_spatial = num_spatial;
  convolution->mode = mode;
  convolution->compute_type = compute_type;
  for (int i = 0; i < num_spatial; i++)
    convolution->padding[i] = padding[i], convolution->stride[i] = stride[i], convolution->dilation[i] = dilation[i];
  return CUDNN_SUCCESS;
}

API int cudnnSetConvolution2dDescriptor(void *descriptor, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h,
                                        int dilation_w, int mode, int compute_type) {
  return cudnnSetConvolutionNdDescriptor(descriptor, 2, (const int[]){pad_h, pad_w}, (const int[]){stride_h, stride_w},
                                         (const int[]){dilation_h, dilation_w}, mode, compute_type);
}

API int cudnnGetConvolutionNdDescriptor(const void *descriptor, int requested, int *num_spatial, int *padding, int *stride,
                                        int *dilation, int *mode, int *compute_type) {
  const struct convolution_descriptor *convolution = object_of(descriptor, KIND_CONVOLUTION);
  if (!convolution) return CUDNN_BAD_PARAM;
  if (num_spatial) *num_spatial = convolution->num_spatial;
  if (mode) *mode = convolution->mode;
  if (compute_type) *compute_type = convolution->compute_type;
  for (int i = 0; i < requested && i < convolution->num_spatial; i++)
    padding[i] = convolution->padding[i], stride[i] = convolution->stride[i], dilation[i] = convolution->dilation[i];
  return CUDNN_SUCCESS;
}

API int cudnnGetConvolution2dDescriptor(const void *descriptor, int *pad_h, int *pad_w, int *stride_h, int *stride_w,
                                        int *dilation_h, int *dilation_w, int *mode, int *compute_type) {
  int num_spatial = 0, padding[2], stride[2], dilation[2];
  int status = cudnnGetConvolutionNdDescriptor(descriptor, 2, &num_spatial, padding, stride, dilation, mode, compute_type);
  if (status != CUDNN_SUCCESS || num_spatial != 2) return CUDNN_BAD_PARAM;
  *pad_h = padding[0], *pad_w = padding[1], *stride_h = stride[0], *stride_w = stride[1];
  *dilation_h = dilation[0], *dilation_w = dilation[1];
  return CUDNN_SUCCESS;
}

API int cudnnGetConvolutionNdForwardOutputDim(const void *descriptor, const void *image_desc, const void *filter_desc,
                                              int num_dims, int *dims) {
  const struct convolution_descriptor *convolution = object_of(descriptor, KIND_CONVOLUTION);
  const struct tensor *image = object_of(image_desc, KIND_TENSOR), *filter = object_of(filter_desc, KIND_FILTER);
  if (!convolution || !image || !filter || !dims || num_dims > image->num_dims || num_dims > filter->num_dims ||
      num_dims > convolution->num_spatial + 2)
    return CUDNN_BAD_PARAM;
  if (num_dims > 0) dims[0] = (int)image->dims[0];
  if (num_dims > 1) dims[1] = (int)filter->dims[0];
  for (int i = 0; i < num_dims - 2; i++) {
    int64_t reach = (filter->dims[i + 2] - 1) * convolution->dilation[i] + 1;
    dims[i + 2] = 1 + (int)((image->dims[i + 2] + 2 * convolution->padding[i] - reach) / convolution->stride[i]);
  }
  return CUDNN_SUCCESS;
}

API int cudnnGetConvolution2dForwardOutputDim(const void *descriptor, const void *image, const void *filter, int *n, int *c,
                                              int *h, int *w) {
  int dims[4];
  int status = cudnnGetConvolutionNdForwardOutputDim(descriptor, image, filter, 4, dims);
  if (status != CUDNN_SUCCESS) return status;
  *n = dims[0], *c = dims[1], *h = dims[2], *w = dims[3];
  return CUDNN_SUCCESS;
}

/* ---- Workspaces and algorithms ----------------------------------------------------------------------------------- */
static int workspace(enum direction direction, const void *image_desc, const void *filter_desc, const void *response_desc,
                     const void *descriptor, int algorithm, size_t *bytes) {
  const struct tensor *image = object_of(image_desc, KIND_TENSOR), *filter = object_of(filter_desc, KIND_FILTER);
  const struct tensor *response = object_of(response_desc, KIND_TENSOR);
  const struct convolution_descriptor *how = object_of(descriptor, KIND_CONVOLUTION);
  if (!image || !filter || !response || !how || !bytes) return CUDNN_BAD_PARAM;
  struct convolution convolution = {direction, *image, *filter, *response, true, how->math_type != FMA_MATH};
  for (int i = 0; i < how->num_spatial; i++) convolution.unit_strides &= how->stride[i] == 1 && how->dilation[i] == 1;
  struct scratch scratch = scratch_in_room(convolution_scratch(&convolution), 0);
  if (algorithm == ALGORITHM_OF_LEAST_WORKSPACE) scratch.answered = scratch.high = scratch.low;
  report_scratch(&scratch);
  *bytes = scratch.answered;
  return CUDNN_SUCCESS;
}

static int find_algorithm(enum direction direction, const void *image, const void *filter, const void *response,
                          const void *descriptor, size_t max_bytes, int requested, int *returned,
                          struct performance *results) {
  size_t bytes = 0;
  if (requested < 1 || !returned || !results) return CUDNN_BAD_PARAM;
  *returned = 0;
  for (int algorithm = ALGORITHM; algorithm >= ALGORITHM_OF_LEAST_WORKSPACE && *returned < requested; algorithm--) {
    int status = workspace(direction, image, filter, response, descriptor, algorithm, &bytes);
    if (status != CUDNN_SUCCESS) return status;
    const struct convolution_descriptor *how = object_of(descriptor, KIND_CONVOLUTION);
    /* Backward, the first algorithm adds up in any order. */
    int determinism = algorithm == ALGORITHM || direction == FORWARD ? DETERMINISTIC : 0;
    if (bytes <= max_bytes)
      results[(*returned)++] = (struct performance){algorithm, CUDNN_SUCCESS, 2.0f - (float)algorithm, bytes, determinism, how->math_type, {0}};
  }
  return CUDNN_SUCCESS;
}

static void log_call(enum direction direction, const void *image, const void *filter, const void *response, const void *descriptor) {
  const struct tensor *x = object_of(image, KIND_TENSOR), *w = object_of(filter, KIND_FILTER), *y = object_of(response, KIND_TENSOR);
  const struct convolution_descriptor *how = object_of(descriptor, KIND_CONVOLUTION);
  if (!x || !w || !y || !how) return;
  struct convolution convolution = {direction, *x, *w, *y, true, how->math_type != FMA_MATH};
  log_convolution(&convolution);
}

/* The arguments come in the order of data flow: what is read, then what is written. */
#define OPERATION(stem, direction, A, B, C, image, filter, response, max_count)                                           \
  API int cudnnGetConvolution##stem##AlgorithmMaxCount(void *handle, int *count) {                                        \
    (void)handle;                                                                                                         \
    if (!count) return CUDNN_NULL_POINTER;                                                                                \
    *count = max_count;                                                                                                   \
    return CUDNN_SUCCESS;                                                                                                 \
  }                                                                                                                       \
  API int cudnnGetConvolution##stem##WorkspaceSize(void *handle, const void *A, const void *B, const void *descriptor,    \
                                                   const void *C, int algorithm, size_t *bytes) {                         \
    (void)handle;                                                                                                         \
    return workspace(direction, image, filter, response, descriptor, algorithm, bytes);                                   \
  }                                                                                                                       \
  API int cudnnGetConvolution##stem##Algorithm_v7(void *handle, const void *A, const void *B, const void *descriptor,     \
                                                  const void *C, int requested, int *returned,                            \
                                                  struct performance *results) {                                          \
    (void)handle;                                                                                                         \
    return find_algorithm(direction, image, filter, response, descriptor, SIZE_MAX, requested, returned, results);        \
  }                                                                                                                       \
  API int cudnnFindConvolution##stem##Algorithm(void *handle, const void *A, const void *B, const void *descriptor,       \
                                                const void *C, int requested, int *returned,                              \
                                                struct performance *results) {                                            \
    (void)handle;                                                                                                         \
    return find_algorithm(direction, image, filter, response, descriptor, SIZE_MAX, requested, returned, results);        \
  }                                                                                                                       \
  API int cudnnFindConvolution##stem##AlgorithmEx(void *handle, const void *A, const void *a, const void *B,              \
                                                  const void *b, const void *descriptor, const void *C, void *c,          \
                                                  int requested, int *returned, struct performance *results,              \
                                                  void *work, size_t work_bytes) {                                        \
    (void)handle, (void)a, (void)b;                                                                                       \
    if (work && work_bytes) saw_workspace(LIBRARY_CUDNN, work, work_bytes);                                               \
    WROTE(WORD(c), WORD(work)); /* it tries the algorithms */                                                             \
    return find_algorithm(direction, image, filter, response, descriptor, work_bytes, requested, returned, results);      \
  }                                                                                                                       \
  API int cudnnConvolution##stem(void *handle, const void *alpha, const void *A, const void *a, const void *B,            \
                                 const void *b, const void *descriptor, int algorithm, void *work, size_t work_bytes,     \
                                 const void *beta, const void *C, void *c) {                                              \
    (void)handle, (void)alpha, (void)algorithm, (void)beta;                                                               \
    note_work(stream_of_library());                                                                                       \
    log_call(direction, image, filter, response, descriptor);                                                             \
    saw_choice(work);                                                                                                     \
    if (work && work_bytes) saw_workspace(LIBRARY_CUDNN, work, work_bytes);                                               \
    const uintptr_t words[] = {WORD(c), WORD(work)};                                                                     \
    forget_words(words, sizeof words / sizeof *words);                                                                   \
    note_use(a), note_use(b);                                                                                             \
    return CUDNN_SUCCESS;                                                                                                 \
  }
OPERATION(Forward, FORWARD, x, w, y, x, w, y, 8)
OPERATION(BackwardData, BACKWARD_DATA, w, dy, dx, dx, w, dy, 6)
OPERATION(BackwardFilter, BACKWARD_FILTER, x, dy, dw, x, dw, dy, 7)

API int cudnnConvolutionBiasActivationForward(void *handle, const void *alpha1, const void *x_desc, const void *x,
                                              const void *w_desc, const void *w, const void *descriptor, int algorithm,
                                              void *work, size_t work_bytes, const void *alpha2, const void *z_desc,
                                              const void *z, const void *bias_desc, const void *bias,
                                              const void *activation, const void *y_desc, void *y) {
  (void)alpha2, (void)z_desc, (void)z, (void)bias_desc, (void)bias, (void)activation;
  return cudnnConvolutionForward(handle, alpha1, x_desc, x, w_desc, w, descriptor, algorithm, work, work_bytes, alpha2,
                                 y_desc, y);
}
