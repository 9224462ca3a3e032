/* cuDNN: what its files share: status codes, descriptors, and the workspace model's questions. */
#ifndef ULLAGE_PHANTOM_CUDNN_H
#define ULLAGE_PHANTOM_CUDNN_H

#include "phantom.h"

enum cudnn_status {
  CUDNN_SUCCESS = 0,
  CUDNN_BAD_PARAM = 2000,
  CUDNN_NULL_POINTER = 2002,
  CUDNN_NOT_FINALIZED = 2004,
  CUDNN_ATTRIBUTE_TYPE = 2010,
  CUDNN_NOT_SUPPORTED = 3000,
  CUDNN_HOST_ALLOCATION_FAILED = 4003,
};

enum cudnn_data_type {
  DATA_FLOAT = 0, DATA_DOUBLE = 1, DATA_HALF = 2, DATA_INT32 = 4, DATA_INT8x4 = 5, DATA_UINT8x4 = 7, DATA_INT8x32 = 8,
  DATA_BFLOAT16 = 9, DATA_INT64 = 10, DATA_UINT32 = 19, DATA_COMPLEX_FP32 = 20, DATA_COMPLEX_FP64 = 21,
};
enum cudnn_tensor_format { FORMAT_NCHW = 0, FORMAT_NHWC = 1 };

/* Bytes of one element; types smaller than a byte count as one. */
size_t data_type_bytes(int data_type);

/* ---- Descriptors -------------------------------------------------------------------------------------------------
 * A handle or descriptor is a heap object that begins with its kind, so that a wrong or missing one is found out. */
enum kind {
  KIND_HANDLE = 0xcdd1, KIND_TENSOR, KIND_FILTER, KIND_CONVOLUTION, KIND_DROPOUT, KIND_CTC_LOSS, KIND_RNN, KIND_RNN_DATA,
  KIND_BACKEND, KIND_OTHER,
};
int create_object(void **object, enum kind kind, size_t bytes);     /* a cudnn_status; zeroed but for the kind */
void *object_of(const void *object, enum kind kind);                /* NULL: not of that kind */
int destroy_object(void *object);

/* A kernel may have written to these. */
#define WROTE(...)                                                                      \
  do {                                                                                  \
    const uintptr_t wrote[] = {__VA_ARGS__};                                            \
    note_library_call(__func__, wrote, sizeof wrote / sizeof *wrote);                   \
  } while (0)
#define WORD(pointer) ((uintptr_t)(pointer))

enum { MAX_DIMS = 8 };
struct tensor {
  enum kind kind;
  int data_type, num_dims;
  int64_t dims[MAX_DIMS], strides[MAX_DIMS];
  int format;        /* filters only */
  bool is_virtual;   /* graphs only: never in memory, unless the engine needs it there */
};
int set_tensor(struct tensor *tensor, int data_type, int num_dims, const int *dims, const int *strides);
void set_packed(struct tensor *tensor, int format); /* strides from dims */
size_t tensor_bytes(const struct tensor *tensor);   /* from first to last element, gaps included */

struct dropout {
  enum kind kind;
  float probability;
  void *states;
  unsigned long long seed;
};

/* ---- The workspace model (cudnn_workspace.c) --------------------------------------------------------------------- */
enum direction { FORWARD, BACKWARD_DATA, BACKWARD_FILTER };
struct convolution {
  enum direction direction;
  struct tensor image, filter, response;  /* x or dx; w or dw, C being the channels of one group; y or dy */
  bool unit_strides;                      /* and no dilation: what Winograd kernels ask for */
  bool tensor_cores;                      /* allowed, TF32 included */
};
struct scratch convolution_scratch(const struct convolution *convolution);
struct scratch attention_scratch(const struct tensor *query, const struct tensor *key, int64_t value_dim, bool backward);
struct scratch reduction_scratch(const char *what); /* anything that sums over blocks of threads */
/* The device has tensor cores for this type: 16 bits from 7.0, bfloat16 and float (as TF32) from 8.0. */
bool has_tensor_cores(int data_type);
void report_scratch(const struct scratch *scratch);
/* A convolution's: no more than there is room for, as others need less; `given` bytes of it are there already. */
struct scratch scratch_in_room(struct scratch scratch, size_t given);

/* ---- Graphs (cudnn_graph.c) -------------------------------------------------------------------------------------- */
struct backend;
struct scratch graph_scratch(const struct backend *graph, bool tensor_cores);
/* Of the first input of the convolution, matrix product or attention in it; -1: there is none. */
int graph_data_type(const struct backend *graph);
/* What the clock is told (cudnn_work.c). */
void log_graph_work(const struct backend *graph);
void log_convolution(const struct convolution *convolution);
bool has_position_mask(const struct backend *graph);
bool read_graph_convolution(const struct backend *graph, struct convolution *convolution);
bool read_graph_attention(const struct backend *graph, struct tensor *query, struct tensor *key, bool *is_backward);
/* Tensors that the frontend lays into its share of the workspace: written and read within an attention backward. */
int graph_frontend_scratch(const struct backend *graph, int64_t *uids, size_t *bytes, int max);

/* ---- Backend descriptors (cudnn_descriptor.c) ----------------------------------------------------------------------- */
struct attribute {
  int name, type;
  int64_t count;
  void *values;
};
enum { TYPE_BOOLEAN = 2, TYPE_INT64 = 3, TYPE_VOID_PTR = 6, TYPE_BACKEND = 15, TYPE_INT32 = 23, TYPE_CHAR = 24, TYPE_FRACTION = 26 };

int backend_type(const struct backend *backend);
const struct attribute *attribute_of(const struct backend *backend, int name);   /* NULL: not set */
int64_t int64_of(const struct backend *backend, int name, int64_t fallback);
struct backend *backend_of(const struct backend *backend, int name, int64_t index); /* a descriptor it refers to */

#endif
