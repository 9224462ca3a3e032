/* cuDNN: what an operation graph of the backend API computes, as far as the workspace model asks.
 *
 * A graph is a list of operations that refer to tensor descriptors by attribute. Convolutions come alone or with pointwise
 * operations behind them; attention comes as one operation (cuDNN's unified ones) or, as cudnn-frontend spells it out, as
 * two matrix products forward and five backward with pointwise operations and reductions between. */
#include "cudnn.h"

enum operation {
  OP_CONVOLUTION_FORWARD = 10, OP_CONVOLUTION_BACKWARD_FILTER = 11, OP_CONVOLUTION_BACKWARD_DATA = 12, OP_POINTWISE = 13,
  OP_MATMUL = 19, OP_REDUCTION = 22, OP_NORM_FORWARD = 29, OP_NORM_BACKWARD = 30, OP_ATTENTION_FORWARD = 41,
  OP_ATTENTION_BACKWARD = 43, OP_BAND_MASK = 44,
};
enum attribute_name {
  CONVOLUTION_DILATIONS = 102, CONVOLUTION_STRIDES = 103,
  GRAPH_OPERATIONS = 801,
  TENSOR_DATA_TYPE = 901, TENSOR_DIMENSIONS = 902, TENSOR_STRIDES = 903, TENSOR_UID = 906, TENSOR_IS_VIRTUAL = 907,
  POINTWISE_MODE = 0, POINTWISE_DESCRIPTOR = 750, POINTWISE_X = 751, POINTWISE_B = 752, POINTWISE_Y = 753, POINTWISE_T = 758,
  MATMUL_A = 1520, MATMUL_B = 1521, MATMUL_C = 1522,
  REDUCTION_X = 1610, REDUCTION_Y = 1611,
  ATTENTION_FORWARD_Q = 2800, ATTENTION_FORWARD_K = 2801, ATTENTION_FORWARD_V = 2802, ATTENTION_FORWARD_SCORES = 2811,
  ATTENTION_BACKWARD_Q = 2851, ATTENTION_BACKWARD_K = 2852, ATTENTION_BACKWARD_V = 2853,
};

static int64_t num_operations(const struct backend *graph) {
  const struct attribute *operations = attribute_of(graph, GRAPH_OPERATIONS);
  return operations ? operations->count : 0;
}

static const struct backend *operation_at(const struct backend *graph, int64_t i) {
  return backend_of(graph, GRAPH_OPERATIONS, i);
}

static int64_t uid_of(const struct backend *operation, int name) {
  return int64_of(backend_of(operation, name, 0), TENSOR_UID, -1);
}

/* False: the operation has no such tensor. */
static bool read_tensor(const struct backend *operation, int name, struct tensor *tensor) {
  const struct backend *descriptor = backend_of(operation, name, 0);
  const struct attribute *dims = attribute_of(descriptor, TENSOR_DIMENSIONS), *strides = attribute_of(descriptor, TENSOR_STRIDES);
  const struct attribute *data_type = attribute_of(descriptor, TENSOR_DATA_TYPE);
  const struct attribute *is_virtual = attribute_of(descriptor, TENSOR_IS_VIRTUAL);
  if (!dims || dims->count < 1 || dims->count > MAX_DIMS) return false;
  *tensor = (struct tensor){.kind = KIND_TENSOR, .num_dims = (int)dims->count};
  for (int i = 0; i < tensor->num_dims; i++) tensor->dims[i] = ((const int64_t *)dims->values)[i];
  if (strides && strides->count == dims->count) {
    for (int i = 0; i < tensor->num_dims; i++) tensor->strides[i] = ((const int64_t *)strides->values)[i];
  } else {
    set_packed(tensor, FORMAT_NCHW);
  }
  if (data_type) tensor->data_type = *(const int *)data_type->values;
  tensor->is_virtual = is_virtual && *(const bool *)is_virtual->values;
  return true;
}

static size_t element_bytes(const struct tensor *tensor) {
  size_t bytes = data_type_bytes(tensor->data_type);
  for (int i = 0; i < tensor->num_dims; i++) bytes *= (size_t)tensor->dims[i];
  return bytes;
}

/* ---- Convolution ------------------------------------------------------------------------------------------------- */
static bool all_ones(const struct attribute *attribute) {
  if (!attribute) return true;
  for (int64_t i = 0; i < attribute->count; i++)
    if (((const int64_t *)attribute->values)[i] != 1) return false;
  return true;
}

static bool read_convolution(const struct backend *operation, struct convolution *convolution) {
  static const struct { int type, image, filter, response, descriptor; enum direction direction; } layouts[] = {
      {OP_CONVOLUTION_FORWARD, 704, 703, 705, 702, FORWARD},
      {OP_CONVOLUTION_BACKWARD_DATA, 710, 709, 711, 708, BACKWARD_DATA},
      {OP_CONVOLUTION_BACKWARD_FILTER, 716, 715, 717, 714, BACKWARD_FILTER},
  };
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
    if (backend_type(operation) != layouts[i].type) continue;
    const struct backend *descriptor = backend_of(operation, layouts[i].descriptor, 0);
    convolution->direction = layouts[i].direction;
    convolution->unit_strides = all_ones(attribute_of(descriptor, CONVOLUTION_STRIDES)) &&
                                all_ones(attribute_of(descriptor, CONVOLUTION_DILATIONS));
    bool complete = read_tensor(operation, layouts[i].image, &convolution->image) &&
                    read_tensor(operation, layouts[i].filter, &convolution->filter) &&
                    read_tensor(operation, layouts[i].response, &convolution->response);
    /* In a fused graph the response is virtual and float; what is written has the image's type. */
    if (complete && convolution->response.is_virtual) convolution->response.data_type = convolution->image.data_type;
    return complete;
  }
  return false;
}

/* ---- Attention --------------------------------------------------------------------------------------------------- */
static struct scratch attention_of(const struct backend *operation, int q, int k, int v, bool backward) {
  struct tensor query, key, value;
  if (!read_tensor(operation, q, &query) || !read_tensor(operation, k, &key) || !read_tensor(operation, v, &value) ||
      query.num_dims != 4 || key.num_dims != 4 || value.num_dims != 4)
    return (struct scratch){"cuDNN attention workspace", 0, 0, 0};
  struct scratch scratch = attention_scratch(&query, &key, value.dims[3], backward);
  if (backward) {
    /* One operation: the accumulator of dQ and the row sums are the engine's own. */
    size_t rows = (size_t)(query.dims[0] * query.dims[1] * query.dims[2]);
    scratch.answered += rows * (size_t)(query.dims[3] + 1) * 4;
    if (query.dims[1] != key.dims[1])
      scratch.answered += (size_t)(query.dims[0] * query.dims[1] * key.dims[2] * (query.dims[3] + value.dims[3])) *
                          data_type_bytes(query.data_type);
    scratch.high += scratch.answered;
  }
  return scratch;
}

/* A matrix product whose virtual result is only summed over heads: the gradient per query head. */
static bool is_reduced(const struct backend *graph, int64_t uid) {
  for (int64_t i = 0; i < num_operations(graph); i++) {
    const struct backend *operation = operation_at(graph, i);
    if (backend_type(operation) == OP_REDUCTION && uid_of(operation, REDUCTION_X) == uid) return true;
  }
  return false;
}

static struct scratch composite_attention(const struct backend *graph, bool backward) {
  struct tensor query = {0}, scores = {0}, result = {0}, key = {0};
  size_t grouped = 0, score_gradient = 0;
  bool accumulates = false, first = true;
  for (int64_t i = 0; i < num_operations(graph); i++) {
    const struct backend *operation = operation_at(graph, i);
    if (backend_type(operation) != OP_MATMUL || !read_tensor(operation, MATMUL_C, &result) || result.num_dims != 4) continue;
    if (first && read_tensor(operation, MATMUL_A, &query) && query.num_dims == 4) scores = result, first = false;
    if (result.is_virtual && is_reduced(graph, uid_of(operation, MATMUL_C))) grouped += element_bytes(&result);
    if (!result.is_virtual && result.data_type == DATA_FLOAT && query.data_type != DATA_FLOAT) accumulates = true;
  }
  if (first) return (struct scratch){"cuDNN attention workspace", 0, 0, 0};
  key.dims[2] = scores.dims[3];
  struct scratch scratch = attention_scratch(&query, &key, backward ? query.dims[3] : result.dims[3], backward);
  if (!backward) return scratch;
  if (!accumulates) {
    int64_t rows = (scores.dims[2] + 63) / 64 * 64, columns = (scores.dims[3] + 63) / 64 * 64;
    score_gradient = (size_t)(scores.dims[0] * scores.dims[1] * rows * columns) * 2;
  }
  scratch.answered += grouped + score_gradient;
  scratch.high += scratch.answered;
  return scratch;
}

/* ---- The graph --------------------------------------------------------------------------------------------------- */
static int num_matmuls(const struct backend *graph) {
  int count = 0;
  for (int64_t i = 0; i < num_operations(graph); i++) count += backend_type(operation_at(graph, i)) == OP_MATMUL;
  return count;
}

struct scratch graph_scratch(const struct backend *graph, bool tensor_cores) {
  bool norm = false;
  for (int64_t i = 0; i < num_operations(graph); i++) {
    const struct backend *operation = operation_at(graph, i);
    struct convolution convolution = {.tensor_cores = tensor_cores};
    if (read_convolution(operation, &convolution)) return convolution_scratch(&convolution);
    int type = backend_type(operation);
    if (type == OP_ATTENTION_FORWARD)
      return attention_of(operation, ATTENTION_FORWARD_Q, ATTENTION_FORWARD_K, ATTENTION_FORWARD_V, false);
    if (type == OP_ATTENTION_BACKWARD)
      return attention_of(operation, ATTENTION_BACKWARD_Q, ATTENTION_BACKWARD_K, ATTENTION_BACKWARD_V, true);
    norm |= type == OP_NORM_FORWARD || type == OP_NORM_BACKWARD;
  }
  int products = num_matmuls(graph);
  if (products >= 2) return composite_attention(graph, products >= 4);
  if (norm) return reduction_scratch("cuDNN normalization workspace");
  if (products == 0) return (struct scratch){"cuDNN pointwise workspace", 0, 0, 0};
  /* High: split along the sum, a tile of 128 x 128 floats for each multiprocessor. */
  size_t split = (size_t)device(current_device())->multiprocessors * 128 * 128 * 4;
  return (struct scratch){"cuDNN matrix product workspace", 0, 0, split};
}

int graph_data_type(const struct backend *graph) {
  for (int64_t i = 0; i < num_operations(graph); i++) {
    const struct backend *operation = operation_at(graph, i);
    struct convolution convolution;
    struct tensor input;
    if (read_convolution(operation, &convolution)) return convolution.image.data_type;
    int type = backend_type(operation);
    int name = type == OP_MATMUL              ? MATMUL_A
               : type == OP_ATTENTION_FORWARD  ? ATTENTION_FORWARD_Q
               : type == OP_ATTENTION_BACKWARD ? ATTENTION_BACKWARD_Q
                                               : -1;
    if (name >= 0 && read_tensor(operation, name, &input)) return input.data_type;
  }
  return -1;
}

bool read_graph_convolution(const struct backend *graph, struct convolution *convolution) {
  for (int64_t i = 0; i < num_operations(graph); i++)
    if (read_convolution(operation_at(graph, i), convolution)) return true;
  return false;
}

/* Causal attention has a mask by position: an operation of its own, or a graph that changes the scores, or pointwise
 * operations on positions. PyTorch gives cuDNN no other mask of these kinds. */
bool has_position_mask(const struct backend *graph) {
  enum { MAKE_POSITIONS = 501 };
  for (int64_t i = 0; i < num_operations(graph); i++) {
    const struct backend *operation = operation_at(graph, i);
    int type = backend_type(operation);
    const struct attribute *mode = attribute_of(backend_of(operation, POINTWISE_DESCRIPTOR, 0), POINTWISE_MODE);
    if (type == OP_BAND_MASK || (type == OP_ATTENTION_FORWARD && backend_of(operation, ATTENTION_FORWARD_SCORES, 0))) return true;
    if (type == OP_POINTWISE && mode && mode->count && *(const int *)mode->values == MAKE_POSITIONS) return true;
  }
  return false;
}

/* As one operation, or as products: the first is that of queries and keys, whose transposition is not told apart. */
bool read_graph_attention(const struct backend *graph, struct tensor *query, struct tensor *key, bool *is_backward) {
  int products = num_matmuls(graph);
  for (int64_t i = 0; i < num_operations(graph); i++) {
    const struct backend *operation = operation_at(graph, i);
    int type = backend_type(operation);
    struct tensor scores;
    *is_backward = type == OP_ATTENTION_BACKWARD || products >= 4;
    if (type == OP_ATTENTION_FORWARD) return read_tensor(operation, ATTENTION_FORWARD_Q, query) && read_tensor(operation, ATTENTION_FORWARD_K, key);
    if (type == OP_ATTENTION_BACKWARD) return read_tensor(operation, ATTENTION_BACKWARD_Q, query) && read_tensor(operation, ATTENTION_BACKWARD_K, key);
    if (type != OP_MATMUL || products < 2 || !read_tensor(operation, MATMUL_A, query) || !read_tensor(operation, MATMUL_C, &scores)) continue;
    *key = *query;
    key->dims[2] = scores.dims[3];
    return query->num_dims == 4 && scores.num_dims == 4;
  }
  return false;
}

static bool is_read(const struct backend *graph, int64_t uid) {
  static const int inputs[] = {POINTWISE_X, POINTWISE_B, POINTWISE_T, MATMUL_A, MATMUL_B, REDUCTION_X};
  for (int64_t i = 0; i < num_operations(graph); i++)
    for (size_t j = 0; j < sizeof inputs / sizeof *inputs; j++)
      if (uid_of(operation_at(graph, i), inputs[j]) == uid) return true;
  return false;
}

int graph_frontend_scratch(const struct backend *graph, int64_t *uids, size_t *bytes, int max) {
  static const int outputs[] = {POINTWISE_Y, MATMUL_C, REDUCTION_Y};
  int found = 0;
  if (num_matmuls(graph) < 4) return 0;
  for (int64_t i = 0; i < num_operations(graph); i++) {
    for (size_t j = 0; j < sizeof outputs / sizeof *outputs; j++) {
      struct tensor tensor;
      if (found == max || !read_tensor(operation_at(graph, i), outputs[j], &tensor)) continue;
      int64_t uid = uid_of(operation_at(graph, i), outputs[j]);
      if (tensor.is_virtual || !is_read(graph, uid)) continue;
      uids[found] = uid;
      bytes[found++] = element_bytes(&tensor);
    }
  }
  return found;
}
