/* cuDNN: what the clock is told of convolutions and attention. */
#include "cudnn.h"
#include "work_log.h"

static int64_t number_of_elements(const struct tensor *tensor) {
  int64_t count = 1;
  for (int i = 0; i < tensor->num_dims; i++) count *= tensor->dims[i];
  return count;
}

/* As cuBLAS numbers types; float on tensor cores is TF32. */
static int precision_of(int data_type, bool has_tf32) {
  enum { REAL_32 = 0, REAL_64 = 1, REAL_16 = 2, BRAIN_16 = 14, OTHER = -1 };
  switch (data_type) {
    case DATA_FLOAT: return has_tf32 && has_tensor_cores(DATA_FLOAT) ? TF32 : REAL_32;
    case DATA_DOUBLE: return REAL_64;
    case DATA_HALF: return REAL_16;
    case DATA_BFLOAT16: return BRAIN_16;
    default: return OTHER;
  }
}

void log_convolution(const struct convolution *c) {
  int64_t filter = number_of_elements(&c->filter), responses = number_of_elements(&c->response);
  if (!is_work_logged || !filter || c->filter.num_dims < 2 || c->image.num_dims < 2) return;
  int64_t item = (int64_t)data_type_bytes(c->image.data_type), groups = c->filter.dims[1] ? c->image.dims[1] / c->filter.dims[1] : 1;
  struct work work = {WORK_CONVOLUTION, precision_of(c->image.data_type, c->tensor_cores), NULL,
                      {c->direction, responses * (filter / c->filter.dims[0]),
                       (number_of_elements(&c->image) + filter + responses) * item, groups}};
  log_work(stream_of_library(), &work);
}

void log_graph_work(const struct backend *graph) {
  struct convolution convolution = {.tensor_cores = true};
  struct tensor query = {0}, key = {0};
  bool is_backward;
  if (!is_work_logged || !graph) {
    note_work(stream_of_library());
  } else if (read_graph_convolution(graph, &convolution)) {
    note_work(stream_of_library());
    log_convolution(&convolution);
  } else if (read_graph_attention(graph, &query, &key, &is_backward)) {
    note_work(stream_of_library());
    struct work work = {WORK_ATTENTION, precision_of(query.data_type, true), NULL,
                        {is_backward, query.dims[0], query.dims[1], key.dims[1], query.dims[2], key.dims[2], query.dims[3], has_position_mask(graph)}};
    log_work(stream_of_library(), &work);
  } else {
    note_work(stream_of_library());
    log_library_call(stream_of_library(), "cuDNN graph");
  }
}
