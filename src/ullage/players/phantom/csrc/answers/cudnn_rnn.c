/* cuDNN: recurrent networks (version 8 of their API). The weight space is exact; temporary spaces follow a stated model.
 *
 * Weight space, as cudnnGetRNNWeightParams documents it: for each pseudo-layer (layer x direction) the gates' input
 * matrices (hidden x input), their recurrent matrices (hidden x output), and with projection one output x hidden matrix;
 * behind the matrices of all pseudo-layers the biases, in the same order. Nothing is padded.
 *
 * Reserve space (training): what backward needs and the caller does not keep. Per pseudo-layer, step and sample:
 *   LSTM  four gates, the cell state                           5 x hidden
 *   GRU   three gates, the recurrent part of the candidate     4 x hidden
 *   plain the activation                                       1 x hidden
 * and the hidden states of each layer but the last, whose are the caller's y; with dropout they are kept as the masked input
 * of the next layer. Besides, the states before the first step; for an LSTM four for each of its cells, in float32, and 256
 * bytes. For an LSTM of two layers with dropout this is what an H200 in float32 and an H100 in float16 were recorded to ask
 * for with cuDNN 9.19, to the byte. Low: the cell states are computed again. High: all hidden states beside the masked ones,
 * gates in the precision of the arithmetic, and tanh of the cell state.
 * Work space: the gates of all layers and steps, for kernels that run down the diagonal of layers and steps. The same
 * recordings have 10 and 17 % more: 16 MiB and 512 bytes, and 2,752,512 elements, both of an unknown purpose. Low: one step.
 * High: in the precision of the arithmetic, and the weights in another layout besides. Source: Appleyard et al. 2016,
 * arXiv:1604.01946 (what cuDNN's RNN does).
 */
#include "cudnn.h"

#include <stdlib.h>
#include <string.h>

enum { CELL_LSTM = 2, CELL_GRU = 3, BIAS_NONE = 0, BIAS_INPUT = 1, BIAS_DOUBLE = 2, BIAS_RECURRENT = 3, SKIP_INPUT = 1,
       MODE_TRAINING = 1, LAYOUT_PACKED = 1, PROJECTION_ID = 8 };

struct rnn {
  enum kind kind;
  int algo, cell, bias, bidirectional, input_mode, data_type, math_precision, math_type;
  int32_t input_size, hidden_size, projection_size, num_layers;
  void *dropout;
  float dropout_probability; /* as it was when the descriptor was set: the dropout descriptor may go first */
  uint32_t flags;
  int clip_mode, clip_nan;
  double clip_low, clip_high;
};
struct rnn_data {
  enum kind kind;
  int data_type, layout, max_length, batch_size, vector_size;
  int *lengths;
  unsigned char padding[16];
};

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */
API int cudnnCreateRNNDescriptor(void **descriptor) { return create_object(descriptor, KIND_RNN, sizeof(struct rnn)); }
API int cudnnDestroyRNNDescriptor(void *descriptor) { return destroy_object(descriptor); }

API int cudnnSetRNNDescriptor_v8(void *descriptor, int algo, int cell, int bias, int direction, int input_mode, int data_type,
                                 int math_precision, int math_type, int32_t input_size, int32_t hidden_size,
                                 int32_t projection_size, int32_t num_layers, void *dropout, uint32_t flags) {
  struct rnn *rnn = object_of(descriptor, KIND_RNN);
  if (!rnn || input_size < 1 || hidden_size < 1 || num_layers < 1 || projection_size > hidden_size) return CUDNN_BAD_PARAM;
  const struct dropout *masks = object_of(dropout, KIND_DROPOUT);
  *rnn = (struct rnn){.kind = KIND_RNN, .algo = algo, .cell = cell, .bias = bias, .bidirectional = direction,
                      .input_mode = input_mode, .data_type = data_type, .math_precision = math_precision,
                      .math_type = math_type, .input_size = input_size, .hidden_size = hidden_size,
                      .projection_size = projection_size, .num_layers = num_layers, .dropout = dropout, .flags = flags,
                      .dropout_probability = masks ? masks->probability : 0};
  return CUDNN_SUCCESS;
}

API int cudnnGetRNNDescriptor_v8(void *descriptor, int *algo, int *cell, int *bias, int *direction, int *input_mode,
                                 int *data_type, int *math_precision, int *math_type, int32_t *input_size,
                                 int32_t *hidden_size, int32_t *projection_size, int32_t *num_layers, void **dropout,
                                 uint32_t *flags) {
  const struct rnn *rnn = object_of(descriptor, KIND_RNN);
  if (!rnn) return CUDNN_BAD_PARAM;
  *algo = rnn->algo, *cell = rnn->cell, *bias = rnn->bias, *direction = rnn->bidirectional;
  *input_mode = rnn->input_mode, *data_type = rnn->data_type, *math_precision = rnn->math_precision;
  *math_type = rnn->math_type, *input_size = rnn->input_size, *hidden_size = rnn->hidden_size;
  *projection_size = rnn->projection_size, *num_layers = rnn->num_layers, *dropout = rnn->dropout, *flags = rnn->flags;
  return CUDNN_SUCCESS;
}

API int cudnnRNNSetClip_v8(void *descriptor, int mode, int nan, double low, double high) {
  struct rnn *rnn = object_of(descriptor, KIND_RNN);
  if (!rnn) return CUDNN_BAD_PARAM;
  rnn->clip_mode = mode, rnn->clip_nan = nan, rnn->clip_low = low, rnn->clip_high = high;
  return CUDNN_SUCCESS;
}
API int cudnnRNNSetClip_v9(void *descriptor, int mode, double low, double high) {
  return cudnnRNNSetClip_v8(descriptor, mode, 0, low, high);
}
API int cudnnRNNGetClip_v8(void *descriptor, int *mode, int *nan, double *low, double *high) {
  const struct rnn *rnn = object_of(descriptor, KIND_RNN);
  if (!rnn) return CUDNN_BAD_PARAM;
  if (mode) *mode = rnn->clip_mode;
  if (nan) *nan = rnn->clip_nan;
  if (low) *low = rnn->clip_low;
  if (high) *high = rnn->clip_high;
  return CUDNN_SUCCESS;
}
API int cudnnRNNGetClip_v9(void *descriptor, int *mode, double *low, double *high) {
  return cudnnRNNGetClip_v8(descriptor, mode, NULL, low, high);
}

API int cudnnCreateRNNDataDescriptor(void **descriptor) {
  return create_object(descriptor, KIND_RNN_DATA, sizeof(struct rnn_data));
}
API int cudnnDestroyRNNDataDescriptor(void *descriptor) {
  struct rnn_data *data = object_of(descriptor, KIND_RNN_DATA);
  if (data) free(data->lengths);
  return destroy_object(descriptor);
}

API int cudnnSetRNNDataDescriptor(void *descriptor, int data_type, int layout, int max_length, int batch_size, int vector_size,
                                  const int *lengths, const void *padding) {
  struct rnn_data *data = object_of(descriptor, KIND_RNN_DATA);
  if (!data || max_length < 1 || batch_size < 1 || vector_size < 1 || !lengths) return CUDNN_BAD_PARAM;
  int *copy = malloc(sizeof *copy * (size_t)batch_size);
  if (!copy) return CUDNN_HOST_ALLOCATION_FAILED;
  memcpy(copy, lengths, sizeof *copy * (size_t)batch_size);
  free(data->lengths);
  *data = (struct rnn_data){.kind = KIND_RNN_DATA, .data_type = data_type, .layout = layout, .max_length = max_length,
                            .batch_size = batch_size, .vector_size = vector_size, .lengths = copy};
  if (padding && data_type_bytes(data_type) <= sizeof data->padding) memcpy(data->padding, padding, data_type_bytes(data_type));
  return CUDNN_SUCCESS;
}

API int cudnnGetRNNDataDescriptor(void *descriptor, int *data_type, int *layout, int *max_length, int *batch_size,
                                  int *vector_size, int requested, int *lengths, void *padding) {
  const struct rnn_data *data = object_of(descriptor, KIND_RNN_DATA);
  if (!data) return CUDNN_BAD_PARAM;
  *data_type = data->data_type, *layout = data->layout, *max_length = data->max_length;
  *batch_size = data->batch_size, *vector_size = data->vector_size;
  for (int i = 0; i < requested && i < data->batch_size; i++) lengths[i] = data->lengths ? data->lengths[i] : 0;
  if (padding && data_type_bytes(data->data_type) <= sizeof data->padding)
    memcpy(padding, data->padding, data_type_bytes(data->data_type));
  return CUDNN_SUCCESS;
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */
static int64_t num_gates(const struct rnn *rnn) { return rnn->cell == CELL_LSTM ? 4 : rnn->cell == CELL_GRU ? 3 : 1; }
static int64_t num_directions(const struct rnn *rnn) { return rnn->bidirectional ? 2 : 1; }
static bool has_projection(const struct rnn *rnn) {
  return rnn->cell == CELL_LSTM && rnn->projection_size > 0 && rnn->projection_size < rnn->hidden_size;
}
static int64_t output_size(const struct rnn *rnn) { return has_projection(rnn) ? rnn->projection_size : rnn->hidden_size; }

/* Columns of a pseudo-layer's input matrices; 0: the first layer adds its input as it is. */
static int64_t input_columns(const struct rnn *rnn, int64_t pseudo_layer) {
  if (pseudo_layer >= num_directions(rnn)) return output_size(rnn) * num_directions(rnn);
  return rnn->input_mode == SKIP_INPUT ? 0 : rnn->input_size;
}

static int64_t matrix_elements(const struct rnn *rnn, int64_t pseudo_layer) {
  int64_t projection = has_projection(rnn) ? output_size(rnn) * rnn->hidden_size : 0;
  return num_gates(rnn) * rnn->hidden_size * (input_columns(rnn, pseudo_layer) + output_size(rnn)) + projection;
}

static int64_t bias_sets(const struct rnn *rnn) { return rnn->bias == BIAS_NONE ? 0 : rnn->bias == BIAS_DOUBLE ? 2 : 1; }
static int64_t bias_elements(const struct rnn *rnn) { return bias_sets(rnn) * num_gates(rnn) * rnn->hidden_size; }
static int64_t num_pseudo_layers(const struct rnn *rnn) { return rnn->num_layers * num_directions(rnn); }

static int64_t matrices_before(const struct rnn *rnn, int64_t pseudo_layer) {
  int64_t elements = 0;
  for (int64_t i = 0; i < pseudo_layer; i++) elements += matrix_elements(rnn, i);
  return elements;
}

static int64_t weight_elements(const struct rnn *rnn) {
  return matrices_before(rnn, num_pseudo_layers(rnn)) + num_pseudo_layers(rnn) * bias_elements(rnn);
}

API int cudnnGetRNNWeightSpaceSize(void *handle, void *descriptor, size_t *bytes) {
  (void)handle;
  const struct rnn *rnn = object_of(descriptor, KIND_RNN);
  return rnn ? ANSWER(bytes, (size_t)weight_elements(rnn) * data_type_bytes(rnn->data_type), CUDNN_BAD_PARAM) : CUDNN_BAD_PARAM;
}

/* Writes a 1 x rows x columns tensor at `offset` elements; rows 0: there is none, address NULL and sizes 0. */
static int give(const struct rnn *rnn, const void *space, int64_t offset, int64_t rows, int64_t columns, void *descriptor,
                void **address) {
  bool none = rows < 1 || columns < 1;
  if (address) *address = none ? NULL : (void *)((uintptr_t)space + (uintptr_t)offset * data_type_bytes(rnn->data_type));
  if (!descriptor) return CUDNN_SUCCESS;
  const int dims[] = {none ? 0 : 1, none ? 0 : (int)rows, none ? 0 : (int)columns};
  return set_tensor(object_of(descriptor, KIND_TENSOR), rnn->data_type, 3, dims, NULL);
}

static int give_matrix(const struct rnn *rnn, int64_t layer, int64_t id, const void *space, void *descriptor, void **address) {
  int64_t gates = num_gates(rnn), hidden = rnn->hidden_size, in = input_columns(rnn, layer), out = output_size(rnn);
  int64_t offset = matrices_before(rnn, layer);
  if (id == PROJECTION_ID && rnn->cell == CELL_LSTM)
    return give(rnn, space, offset + gates * hidden * (in + out), has_projection(rnn) ? out : 0, hidden, descriptor, address);
  if (id < gates) return give(rnn, space, offset + id * hidden * in, hidden, in, descriptor, address);
  return give(rnn, space, offset + gates * hidden * in + (id - gates) * hidden * out, hidden, out, descriptor, address);
}

static int give_bias(const struct rnn *rnn, int64_t layer, int64_t id, const void *space, void *descriptor, void **address) {
  int64_t gates = num_gates(rnn), hidden = rnn->hidden_size, set = id / gates;
  bool exists = id < 2 * gates && (rnn->bias == BIAS_DOUBLE || (rnn->bias == BIAS_INPUT && set == 0) ||
                                   (rnn->bias == BIAS_RECURRENT && set == 1));
  int64_t index = rnn->bias == BIAS_DOUBLE ? id : id % gates;
  int64_t offset = matrices_before(rnn, num_pseudo_layers(rnn)) + layer * bias_elements(rnn) + index * hidden;
  return give(rnn, space, offset, exists ? hidden : 0, 1, descriptor, address);
}

API int cudnnGetRNNWeightParams(void *handle, void *descriptor, int32_t pseudo_layer, size_t bytes, const void *space,
                                int32_t id, void *matrix, void **matrix_address, void *bias, void **bias_address) {
  (void)handle;
  const struct rnn *rnn = object_of(descriptor, KIND_RNN);
  if (!rnn || pseudo_layer < 0 || pseudo_layer >= num_pseudo_layers(rnn)) return CUDNN_BAD_PARAM;
  if (id < 0 || (id >= 2 * num_gates(rnn) && !(id == PROJECTION_ID && rnn->cell == CELL_LSTM))) return CUDNN_BAD_PARAM;
  if (bytes < (size_t)weight_elements(rnn) * data_type_bytes(rnn->data_type)) return CUDNN_BAD_PARAM;
  int status = give_matrix(rnn, pseudo_layer, id, space, matrix, matrix_address);
  return status == CUDNN_SUCCESS ? give_bias(rnn, pseudo_layer, id, space, bias, bias_address) : status;
}

/* ---- Temporary spaces -------------------------------------------------------------------------------------------- */
static int64_t num_steps(const struct rnn_data *data) {
  int64_t steps = 0; /* summed over the batch */
  if (data->layout != LAYOUT_PACKED) return (int64_t)data->max_length * data->batch_size;
  for (int i = 0; i < data->batch_size; i++) steps += data->lengths[i];
  return steps;
}

static struct scratch reserve_scratch(const struct rnn *rnn, int64_t steps, int64_t batch) {
  size_t element = data_type_bytes(rnn->data_type), math = data_type_bytes(rnn->math_precision);
  int64_t layer = steps * num_directions(rnn) * rnn->hidden_size, gates = num_gates(rnn);
  int64_t states = rnn->cell == CELL_LSTM || rnn->cell == CELL_GRU ? 2 : 1;
  int64_t masked = rnn->dropout_probability > 0 ? (rnn->num_layers - 1) * steps * num_directions(rnn) * output_size(rnn) : 0;
  int64_t all = layer * rnn->num_layers;
  int64_t below = all - layer, cells = batch * num_directions(rnn) * rnn->hidden_size * rnn->num_layers;
  size_t first = rnn->cell == CELL_LSTM ? 4 * (size_t)cells * sizeof(float) + 256 : (size_t)cells * element;
  if (math < element) math = element;
  return (struct scratch){"cuDNN RNN reserve space", (size_t)(all * gates + below) * element,
                          (size_t)(all * (gates + states - 1) + below) * element + first,
                          (size_t)(all * (gates + states + 1) + masked) * math + first};
}

static struct scratch work_scratch(const struct rnn *rnn, const struct rnn_data *data, int64_t steps) {
  size_t element = data_type_bytes(rnn->data_type), math = data_type_bytes(rnn->math_precision);
  size_t gates = (size_t)(num_gates(rnn) * num_directions(rnn) * rnn->hidden_size);
  size_t all = gates * (size_t)steps * (size_t)rnn->num_layers;
  if (math < element) math = element;
  return (struct scratch){"cuDNN RNN workspace", gates * (size_t)data->batch_size * element, all * element,
                          (all + (size_t)weight_elements(rnn)) * math};
}

API int cudnnGetRNNTempSpaceSizes(void *handle, void *descriptor, int mode, void *data_descriptor, size_t *work_bytes,
                                  size_t *reserve_bytes) {
  (void)handle;
  const struct rnn *rnn = object_of(descriptor, KIND_RNN);
  const struct rnn_data *data = object_of(data_descriptor, KIND_RNN_DATA);
  if (!rnn || !data || !data->lengths) return CUDNN_BAD_PARAM;
  int64_t steps = num_steps(data);
  struct scratch work = work_scratch(rnn, data, steps), reserve = reserve_scratch(rnn, steps, data->batch_size);
  if (work_bytes) report_scratch(&work), *work_bytes = work.answered;
  if (mode != MODE_TRAINING) reserve.answered = 0;
  else if (reserve_bytes) report_scratch(&reserve);
  if (reserve_bytes) *reserve_bytes = reserve.answered;
  return CUDNN_SUCCESS;
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */
static void see_work(void *descriptor, void *data_descriptor, const void *work, size_t bytes) {
  const struct rnn *rnn = object_of(descriptor, KIND_RNN);
  const struct rnn_data *data = object_of(data_descriptor, KIND_RNN_DATA);
  struct scratch scratch = {"cuDNN RNN workspace", bytes, bytes, bytes};
  if (rnn && data && data->lengths) scratch = work_scratch(rnn, data, num_steps(data));
  /* A caller may hand over more than it was told. */
  if (work && bytes && bytes == scratch.answered) saw_scratch(LIBRARY_CUDNN, work, &scratch);
  else if (work && bytes) saw_workspace(LIBRARY_CUDNN, work, bytes);
}

API int cudnnRNNForward(void *handle, void *rnn, int mode, const int32_t *lengths, void *x_desc, const void *x, void *y_desc,
                        void *y, void *h_desc, const void *hx, void *hy, void *c_desc, const void *cx, void *cy,
                        size_t weight_bytes, const void *weights, size_t work_bytes, void *work, size_t reserve_bytes,
                        void *reserve) {
  (void)handle, (void)mode, (void)lengths, (void)x, (void)y_desc, (void)h_desc, (void)hx;
  (void)c_desc, (void)cx, (void)weight_bytes, (void)weights, (void)reserve_bytes;
  see_work(rnn, x_desc, work, work_bytes);
  WROTE(WORD(y), WORD(hy), WORD(cy), WORD(work), WORD(reserve));
  return CUDNN_SUCCESS;
}

API int cudnnRNNBackwardData_v8(void *handle, void *rnn, const int32_t *lengths, void *y_desc, const void *y, const void *dy,
                                void *x_desc, void *dx, void *h_desc, const void *hx, const void *dhy, void *dhx,
                                void *c_desc, const void *cx, const void *dcy, void *dcx, size_t weight_bytes,
                                const void *weights, size_t work_bytes, void *work, size_t reserve_bytes, void *reserve) {
  (void)handle, (void)lengths, (void)y_desc, (void)y, (void)dy, (void)h_desc, (void)hx, (void)dhy;
  (void)c_desc, (void)cx, (void)dcy, (void)weight_bytes, (void)weights, (void)reserve_bytes;
  see_work(rnn, x_desc, work, work_bytes);
  WROTE(WORD(dx), WORD(dhx), WORD(dcx), WORD(work), WORD(reserve));
  return CUDNN_SUCCESS;
}

API int cudnnRNNBackwardWeights_v8(void *handle, void *rnn, int add, const int32_t *lengths, void *x_desc, const void *x,
                                   void *h_desc, const void *hx, void *y_desc, const void *y, size_t weight_bytes,
                                   void *dweights, size_t work_bytes, void *work, size_t reserve_bytes, void *reserve) {
  (void)handle, (void)add, (void)lengths, (void)x, (void)h_desc, (void)hx, (void)y_desc, (void)y;
  (void)weight_bytes, (void)reserve_bytes;
  see_work(rnn, x_desc, work, work_bytes);
  WROTE(WORD(dweights), WORD(work), WORD(reserve));
  return CUDNN_SUCCESS;
}
