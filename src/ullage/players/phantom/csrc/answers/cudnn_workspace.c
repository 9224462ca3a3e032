/* cuDNN: how much scratch memory an operation is said to need. The library chooses its kernels by closed heuristics; this
 * is a model of what the kernels have to keep somewhere, each rule with its cause. Every answer carries a low and a high
 * end and is listed in the report. No number here was fitted; what recordings of a GPU have shown is said where it is used.
 *
 * Names: an image is x or dx, a response y or dy; N, C, K, P x Q, R x S as in the cuDNN guide.
 *
 * Convolution on tensor cores (16 bits from compute capability 7.0; float as TF32 from 8.0):
 *  1. Layout. The implicit-GEMM kernels read channels-last data whose channels fill 16 bytes (8 of 16 bits, 4 of TF32).
 *     Anything else is copied into such a layout first, and results copied back: each tensor that is not channels-last,
 *     or has other channel counts, costs its channels-last, padded size. TF32 forward is the exception: its kernels
 *     write NCHW themselves. Source: NVIDIA Convolutional Layers User's Guide (sections on channels and on layouts);
 *     kernel names in profiles: nchwToNhwcKernel, nhwcAddPaddingKernel, convertTensor_kernel,
 *     ..._fprop_implicit_gemm_f16..._nhwckrsc_nhwc, ..._fprop_implicit_gemm_tf32f32..._nhwckrsc_nchw.
 *     Low: 0, for kernels that gather NCHW directly exist (..._nchwkcrs_nchw). High: rule 4's for NCHW, which older
 *     heuristics preferred even for 16 bits (pytorch/pytorch issue 49207); and for TF32 also copies of channels-last
 *     inputs, rounded to TF32 (tensorflow/tensorflow pull request 56055 gives this as the reason for larger workspaces).
 *  2. Split K. Where the output has fewer tiles than the device has multiprocessors, the long sum is cut into slices, each
 *     with float partial results of its own: slices x output x 4 bytes (knobs CUDNN_KNOB_TYPE_SPLIT_K, _SPLIT_K_BUF;
 *     NVIDIA/cutlass pull request 413: the workspace grows linearly with the slices). So it is for filter gradients: a
 *     small output, a sum over N x P x Q; counted in the answer. Forward and data gradients of training batches have tiles
 *     enough; there it is in the high end only.
 *  3. Depthwise and narrow groups (fewer channels a group than rule 1's vector): direct kernels in either layout
 *     (conv2d_grouped_direct_kernel, dgrad2d_..., wgrad2d_...): none. High: as if they went through implicit GEMM.
 * Convolution on tensor cores from compute capability 9.0, as recorded on an H200 with cuDNN 9.19 (the events under
 * benchmarks/accuracy/truth; the shapes of five networks in float as TF32 and in bfloat16). It differs from 1 and 2 in this:
 *  6. TF32 forward copies the response, too, as all other kernels do (20 of 23 shapes; low: not). Its copies are not padded.
 *  7. A product per image. 1 x 1 at stride 1 in NCHW is a matrix product for each image, whose rows are read in place if
 *     they are multiples of 16 bytes: no copies. The filter gradient is a sum over images of such products: a float result
 *     for each image, or rules 1 and 2 where that is less (14 of 14 shapes). Taken for 8.0 and later: 9.0's own instruction
 *     reads float in one layout alone (wgmma in PTX's manual transposes 16 bits only), so that kernels of 8.0 do this.
 *  8. A split filter gradient is copied into the layout of the caller, as an unsplit one is. Filters of up to 64 responses
 *     have tiles of 64 x 64.
 *  9. Copies begin at multiples of 16 bytes: 16 bytes more.
 * Convolution without tensor cores:
 *  4. Winograd for 3 x 3 at stride 1, float: the filter transformed to 4 x 4 tiles, 16 floats for each K, C pair (LBANN
 *     pull request 437: 256 KiB for ResNet-50's 64-to-64 layer, which is this to the byte). High: the non-fused variant
 *     F(4x4, 3x3) keeps all three transforms, 36 floats a tile.
 *  5. Else implicit precomputed GEMM: one 32-bit offset for each of C x R x S. High: im2col of the whole sum for one image.
 * Where that cannot be had: implicit GEMM, which makes no matrix of its input and needs the low end. Every convolution has
 * it (cudnnConvolutionFwdAlgo_t, and CUDNN_HEUR_MODE_FALLBACK, in cuDNN's API reference).
 *
 * Attention, forward: a fused kernel keeps its state on chip. On compute capability 9.0 the plan asks for 256 bytes at every
 * shape, backward too (recorded on an H200 with cuDNN 9.19, benchmarks/accuracy/truth; the grid is one wave there whose
 * blocks draw their tiles, from a counter presumably), elsewhere for none. High: the key sequence split among blocks where batch x heads x
 * query tiles do not fill the device, each split with its float output row and its sum.
 * Attention, backward: dQ is summed by many blocks into a float accumulator, and the row sums of dO * O are kept: B x H x
 * Sq x (D + 1) floats. cudnn-frontend's composite node lays both into its own share of the workspace and hands them over
 * as tensors (get_fe_workspace_size_node), so they are not the engine's; only the unified operation's engine needs them.
 * Grouped heads: dK and dV per query head before they are summed, in the data type. Deterministic: the score gradient in
 * memory, 16 bits, both lengths rounded up to 64 (cudnn-frontend, scaled_dot_product_flash_attention.h). High: the
 * accumulator once more, its rows padded to tiles of 128.
 */
#include "cudnn.h"
#include "levels.h"
#include "memory.h"

enum { TILE = 128, TILE_FLOAT_BYTES = TILE * TILE * 4, COUNTER_BYTES = 256, MIN_SLICE = 4 * 64 /* of the sum: below, a split costs more than it brings */ };

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

void report_scratch(const struct scratch *scratch) {
  if (scratch->high > scratch->low) assume_bytes(scratch->what, scratch->low, scratch->answered, scratch->high);
}

struct scratch scratch_in_room(struct scratch scratch, size_t given) {
  int here = current_device();
  size_t room = given + free_bytes(here) / PAGE_BYTES * PAGE_BYTES + cached_bytes(here);
  if (scratch.high > room && !device(here)->unlimited) scratch.high = larger(scratch.answered, room);
  return scratch;
}

bool has_tensor_cores(int data_type) {
  int major = device(current_device())->major;
  if (data_type == DATA_FLOAT || data_type == DATA_BFLOAT16) return major >= 8;
  return data_type_bytes(data_type) <= 2 && major >= 7;
}

/* ---- Convolution ------------------------------------------------------------------------------------------------- */
static int64_t spatial_size(const struct tensor *tensor) {
  int64_t size = 1;
  for (int i = 2; i < tensor->num_dims; i++) size *= tensor->dims[i];
  return size;
}

static bool is_channels_last(const struct tensor *tensor) { return tensor->strides[1] == 1 || tensor->dims[1] == 1; }

static int64_t vector_channels(const struct tensor *tensor) { return 16 / (int64_t)data_type_bytes(tensor->data_type); }

/* The channels-last, padded copy; 0 where the tensor is so already. */
static size_t layout_copy(const struct tensor *tensor) {
  int64_t channels = round_up(tensor->dims[1], vector_channels(tensor));
  if (is_channels_last(tensor) && channels == tensor->dims[1]) return 0;
  return (size_t)(tensor->dims[0] * spatial_size(tensor) * channels) * data_type_bytes(tensor->data_type);
}

static size_t packed_bytes(const struct tensor *tensor) {
  return (size_t)(tensor->dims[0] * tensor->dims[1] * spatial_size(tensor)) * data_type_bytes(tensor->data_type);
}

static int64_t num_groups(const struct convolution *c) {
  return c->filter.dims[1] > 0 ? c->image.dims[1] / c->filter.dims[1] : 1;
}

/* The matrix product behind the convolution, per group: rows x columns, a sum over `depth`. */
struct product { int64_t rows, columns, depth, count; };

static struct product implicit_product(const struct convolution *c) {
  int64_t groups = num_groups(c), taps = spatial_size(&c->filter);
  int64_t out = c->filter.dims[0] / (groups > 0 ? groups : 1), in = c->filter.dims[1];
  int64_t responses = c->response.dims[0] * spatial_size(&c->response);
  int64_t images = c->image.dims[0] * spatial_size(&c->image);
  switch (c->direction) {
    case FORWARD: return (struct product){responses, out, in * taps, groups};
    case BACKWARD_DATA: return (struct product){images, in, out * taps, groups};
    default: return (struct product){out, in * taps, responses, groups};
  }
}

static size_t split_bytes(struct product p, int64_t tile) {
  int64_t tiles = p.count * ceil_div(p.rows, tile) * ceil_div(p.columns, tile);
  int64_t slices = tiles > 0 ? device(current_device())->multiprocessors / tiles : 0;
  if (slices > p.depth / MIN_SLICE) slices = p.depth / MIN_SLICE;
  return slices < 2 ? 0 : (size_t)(slices * p.count * p.rows * p.columns) * 4;
}

/* Non-fused Winograd F(4 x 4, 3 x 3): tiles of 6 x 6 floats for image, filter and response. */
static size_t winograd_bytes(const struct convolution *c) {
  int64_t tiles = c->response.dims[0];
  for (int i = 2; i < c->response.num_dims; i++) tiles *= ceil_div(c->response.dims[i], 4);
  int64_t in = c->filter.dims[1], out = c->filter.dims[0];
  return (size_t)(36 * (tiles * (in + out) + in * out)) * 4;
}

static bool suits_winograd(const struct convolution *c) {
  return c->filter.num_dims == 4 && c->filter.dims[2] == 3 && c->filter.dims[3] == 3 && c->unit_strides &&
         num_groups(c) == 1 && c->image.data_type != DATA_DOUBLE;
}

static struct scratch tensor_core_scratch(const struct convolution *c, const char *what) {
  bool tf32 = c->image.data_type == DATA_FLOAT;
  size_t inputs, output, rounded;
  switch (c->direction) {
    case FORWARD:
      inputs = layout_copy(&c->image) + layout_copy(&c->filter);
      output = layout_copy(&c->response);
      rounded = packed_bytes(&c->image) + packed_bytes(&c->filter);
      break;
    case BACKWARD_DATA:
      inputs = layout_copy(&c->response) + layout_copy(&c->filter);
      output = layout_copy(&c->image);
      rounded = packed_bytes(&c->response) + packed_bytes(&c->filter);
      break;
    default:
      inputs = layout_copy(&c->image) + layout_copy(&c->response);
      output = layout_copy(&c->filter);
      rounded = packed_bytes(&c->image) + packed_bytes(&c->response);
      break;
  }
  size_t split = split_bytes(implicit_product(c), TILE);
  struct scratch scratch = {what, 0, inputs + output, (tf32 ? larger(inputs, rounded) : inputs) + output + split};
  if (tf32 && c->direction == FORWARD) scratch.answered = inputs;
  if (c->direction == BACKWARD_FILTER) scratch.answered = inputs + (split ? split : output);
  if (c->filter.dims[1] < vector_channels(&c->filter) && num_groups(c) > 1) scratch.answered = 0;
  if (suits_winograd(c) && !is_channels_last(&c->image)) scratch.high = larger(scratch.high, winograd_bytes(c));
  return scratch;
}

/* Rule 7: what is less, the sums of a product for each image, or the copies. High: the copies. */
static struct scratch without_copies(const struct convolution *c, struct scratch scratch) {
  size_t row_bytes = (size_t)spatial_size(&c->response) * data_type_bytes(c->image.data_type);
  bool is_product = spatial_size(&c->filter) == 1 && c->unit_strides && num_groups(c) == 1 && row_bytes % 16 == 0 &&
                    spatial_size(&c->response) == spatial_size(&c->image) && !is_channels_last(&c->image);
  size_t sums = c->direction == BACKWARD_FILTER ? (size_t)(c->image.dims[0] * c->filter.dims[0] * c->filter.dims[1]) * 4 : 0;
  if (is_product && sums < scratch.answered) scratch.answered = sums;
  return scratch;
}

/* Rules 6, 8 and 9. */
static size_t unpadded_copy(const struct tensor *tensor) { return is_channels_last(tensor) ? 0 : packed_bytes(tensor); }

static struct scratch hopper_scratch(const struct convolution *c, const char *what) {
  struct scratch scratch = tensor_core_scratch(c, what);
  bool narrow = c->filter.dims[1] < vector_channels(&c->filter) && num_groups(c) > 1;
  if (narrow) return scratch;
  if (c->direction == FORWARD && c->image.data_type == DATA_FLOAT)
    scratch.answered = unpadded_copy(&c->image) + unpadded_copy(&c->filter) + unpadded_copy(&c->response);
  if (c->direction == BACKWARD_FILTER) {
    struct product product = implicit_product(c);
    size_t split = split_bytes(product, product.rows <= TILE / 2 ? TILE / 2 : TILE);
    scratch.answered = layout_copy(&c->image) + layout_copy(&c->response) + layout_copy(&c->filter) + split;
  }
  if (scratch.answered) scratch.answered += 16;
  scratch.high = larger(scratch.high, scratch.answered);
  return scratch;
}

static struct scratch plain_scratch(const struct convolution *c, const char *what) {
  int64_t pairs = c->filter.dims[0] * c->filter.dims[1], taps = spatial_size(&c->filter);
  if (suits_winograd(c)) {
    size_t filter = (size_t)(16 * pairs) * 4;
    return (struct scratch){what, 0, c->direction == BACKWARD_FILTER ? 0 : filter, larger(filter, winograd_bytes(c))};
  }
  size_t offsets = c->direction == BACKWARD_FILTER ? 0 : (size_t)(c->filter.dims[1] * taps) * 4;
  size_t columns = (size_t)(c->image.dims[1] * taps * spatial_size(&c->response)) * data_type_bytes(c->image.data_type);
  return (struct scratch){what, 0, offsets, larger(offsets, columns)};
}

struct scratch convolution_scratch(const struct convolution *c) {
  static const char *const names[] = {"cuDNN convolution forward workspace", "cuDNN convolution backward-data workspace",
                                      "cuDNN convolution backward-filter workspace"};
  const char *what = names[c->direction];
  if (c->image.num_dims < 3 || c->filter.num_dims < 3 || c->response.num_dims < 3) return (struct scratch){what, 0, 0, 0};
  if (!c->tensor_cores || !has_tensor_cores(c->image.data_type)) return plain_scratch(c, what);
  int major = device(current_device())->major;
  struct scratch scratch = major >= 9 ? hopper_scratch(c, what) : tensor_core_scratch(c, what);
  return major >= 8 ? without_copies(c, scratch) : scratch;
}

/* ---- Attention and the rest -------------------------------------------------------------------------------------- */
struct scratch attention_scratch(const struct tensor *query, const struct tensor *key, int64_t value_dim, bool backward) {
  int64_t heads = query->dims[0] * query->dims[1], length = query->dims[2], dim = query->dims[3];
  int64_t tiles = heads * ceil_div(length, TILE), splits = device(current_device())->multiprocessors / (tiles ? tiles : 1);
  /* Forward and backward of every shape. */
  size_t counter = device(current_device())->major == 9 ? COUNTER_BYTES : 0;
  if (!backward) {
    if (splits > ceil_div(key->dims[2], TILE)) splits = ceil_div(key->dims[2], TILE);
    size_t split_rows = splits < 2 ? 0 : (size_t)(splits * heads * length * (value_dim + 1)) * 4;
    return (struct scratch){"cuDNN attention forward workspace", 0, counter, larger(counter, split_rows)};
  }
  size_t padded = (size_t)(heads * round_up(length, TILE) * (round_up(dim, 64) + 1)) * 4;
  return (struct scratch){"cuDNN attention backward workspace", 0, counter, counter + padded};
}

/* A sum and a sum of squares for each channel of each block: blocks as many as multiprocessors, each 64 channels wide (128
 * bytes of 16-bit channels-last data, one cache line). */
struct scratch reduction_scratch(const char *what) {
  size_t partial = (size_t)device(current_device())->multiprocessors * 64 * 2 * 4;
  return (struct scratch){what, 0, partial, partial};
}
