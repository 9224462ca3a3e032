/* cuDNN: batch normalization, dropout and CTC loss of the legacy API: their sizes, and the scratch memory they use. */
#include "cudnn.h"

/* ---- Batch normalization -----------------------------------------------------------------------------------------
 * Scratch: for NCHW one block of threads owns a channel, sums it up itself, and needs none. The NHWC kernels (persistent
 * mode, 16 bits) share a channel among blocks: each leaves a sum and a sum of squares per channel, see
 * reduction_scratch(). Reserve: what backward needs beyond x, the saved mean and inverse standard deviation. Plain
 * normalization needs nothing; with an activation behind it one bit an element says where it let the value pass.
 * Source: cuDNN API reference, cudnnBatchNormalizationForwardTrainingEx (which modes use the two spaces at all); the
 * kernels' published relative, NVIDIA apex contrib/csrc/groupbn (partial sums per block, bit mask). */
enum { MODE_SPATIAL_PERSISTENT = 2, OPS_PLAIN = 0 };

static struct scratch norm_scratch(bool persistent, const struct tensor *image, const char *what) {
  struct scratch scratch = reduction_scratch(what);
  bool shared = persistent && image->num_dims > 2 && image->strides[1] == 1 && data_type_bytes(image->data_type) == 2;
  if (!shared) scratch.answered = 0;
  return scratch;
}

static size_t mask_bytes(const struct tensor *image) {
  size_t num_elements = tensor_bytes(image) / data_type_bytes(image->data_type);
  return (num_elements + 31) / 32 * 4;
}

static int answer_workspace(bool persistent, const void *image_desc, const char *what, size_t *bytes) {
  const struct tensor *image = object_of(image_desc, KIND_TENSOR);
  if (!image || !bytes) return CUDNN_BAD_PARAM;
  struct scratch scratch = norm_scratch(persistent, image, what);
  report_scratch(&scratch);
  *bytes = scratch.answered;
  return CUDNN_SUCCESS;
}

static int answer_reserve(int ops, const void *image_desc, size_t *bytes) {
  const struct tensor *image = object_of(image_desc, KIND_TENSOR);
  if (!image || !bytes) return CUDNN_BAD_PARAM;
  size_t mask = mask_bytes(image);
  struct scratch reserve = {"cuDNN batch normalization reserve space", 0, ops == OPS_PLAIN ? 0 : mask, mask};
  report_scratch(&reserve);
  *bytes = reserve.answered;
  return CUDNN_SUCCESS;
}

API int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int ops, const void *x,
                                                                 const void *z, const void *y, const void *scale,
                                                                 const void *activation, size_t *bytes) {
  (void)handle, (void)ops, (void)z, (void)y, (void)scale, (void)activation;
  return answer_workspace(mode == MODE_SPATIAL_PERSISTENT, x, "cuDNN batch normalization forward workspace", bytes);
}

API int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int ops, const void *x, const void *y,
                                                          const void *dy, const void *dz, const void *dx,
                                                          const void *dscale, const void *activation, size_t *bytes) {
  (void)handle, (void)ops, (void)y, (void)dy, (void)dz, (void)dx, (void)dscale, (void)activation;
  return answer_workspace(mode == MODE_SPATIAL_PERSISTENT, x, "cuDNN batch normalization backward workspace", bytes);
}

API int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int ops, const void *activation,
                                                             const void *x, size_t *bytes) {
  (void)handle, (void)mode, (void)activation;
  return answer_reserve(ops, x, bytes);
}

/* The same for cudnnNormalization*, whose algorithm 1 is the persistent one. */
API int cudnnGetNormalizationForwardTrainingWorkspaceSize(void *handle, int mode, int ops, int algo, const void *x,
                                                          const void *z, const void *y, const void *scale,
                                                          const void *activation, const void *mean, size_t *bytes,
                                                          int num_groups) {
  (void)handle, (void)mode, (void)ops, (void)z, (void)y, (void)scale, (void)activation, (void)mean, (void)num_groups;
  return answer_workspace(algo == 1, x, "cuDNN batch normalization forward workspace", bytes);
}

API int cudnnGetNormalizationBackwardWorkspaceSize(void *handle, int mode, int ops, int algo, const void *x,
                                                   const void *y, const void *dy, const void *dz, const void *dx,
                                                   const void *dscale, const void *activation, const void *mean,
                                                   size_t *bytes, int num_groups) {
  (void)handle, (void)mode, (void)ops, (void)y, (void)dy, (void)dz, (void)dx, (void)dscale, (void)activation;
  (void)mean, (void)num_groups;
  return answer_workspace(algo == 1, x, "cuDNN batch normalization backward workspace", bytes);
}

API int cudnnGetNormalizationTrainingReserveSpaceSize(void *handle, int mode, int ops, int algo, const void *activation,
                                                      const void *x, size_t *bytes, int num_groups) {
  (void)handle, (void)mode, (void)algo, (void)activation, (void)num_groups;
  return answer_reserve(ops, x, bytes);
}

API int cudnnBatchNormalizationForwardTrainingEx(void *handle, int mode, int ops, const void *alpha, const void *beta,
                                                 const void *x_desc, const void *x, const void *z_desc, const void *z,
                                                 const void *y_desc, void *y, const void *scale_desc, const void *scale,
                                                 const void *bias, double factor, void *running_mean, void *running_variance,
                                                 double epsilon, void *mean, void *inverse_deviation, void *activation,
                                                 void *workspace, size_t workspace_bytes, void *reserve,
                                                 size_t reserve_bytes) {
  (void)handle, (void)mode, (void)ops, (void)alpha, (void)beta, (void)x_desc, (void)x, (void)z_desc, (void)z, (void)y_desc;
  (void)scale_desc, (void)scale, (void)bias, (void)factor, (void)epsilon, (void)activation, (void)reserve_bytes;
  if (workspace && workspace_bytes) saw_workspace(LIBRARY_CUDNN, workspace, workspace_bytes);
  WROTE(WORD(y), WORD(running_mean), WORD(running_variance), WORD(mean), WORD(inverse_deviation), WORD(workspace), WORD(reserve));
  return CUDNN_SUCCESS;
}

API int cudnnBatchNormalizationBackwardEx(void *handle, int mode, int ops, const void *alpha_data, const void *beta_data,
                                          const void *alpha_param, const void *beta_param, const void *x_desc,
                                          const void *x, const void *y_desc, const void *y, const void *dy_desc,
                                          const void *dy, const void *dz_desc, void *dz, const void *dx_desc, void *dx,
                                          const void *scale_desc, const void *scale, const void *bias, void *dscale,
                                          void *dbias, double epsilon, const void *mean, const void *inverse_deviation,
                                          void *activation, void *workspace, size_t workspace_bytes, void *reserve,
                                          size_t reserve_bytes) {
  (void)handle, (void)mode, (void)ops, (void)alpha_data, (void)beta_data, (void)alpha_param, (void)beta_param;
  (void)x_desc, (void)x, (void)y_desc, (void)y, (void)dy_desc, (void)dy, (void)dz_desc, (void)dx_desc, (void)scale_desc;
  (void)scale, (void)bias, (void)epsilon, (void)mean, (void)inverse_deviation, (void)activation, (void)reserve_bytes;
  if (workspace && workspace_bytes) saw_workspace(LIBRARY_CUDNN, workspace, workspace_bytes);
  WROTE(WORD(dz), WORD(dx), WORD(dscale), WORD(dbias), WORD(workspace), WORD(reserve));
  return CUDNN_SUCCESS;
}

API int cudnnNormalizationForwardTraining(void *handle, int mode, int ops, int algo, const void *alpha, const void *beta,
                                          const void *x_desc, const void *x, const void *scale_desc, const void *scale,
                                          const void *bias, double factor, const void *mean_desc, void *running_mean,
                                          void *running_variance, double epsilon, void *mean, void *inverse_deviation,
                                          void *activation, const void *z_desc, const void *z, const void *y_desc, void *y,
                                          void *workspace, size_t workspace_bytes, void *reserve, size_t reserve_bytes,
                                          int num_groups) {
  (void)algo, (void)mean_desc, (void)num_groups;
  return cudnnBatchNormalizationForwardTrainingEx(handle, mode, ops, alpha, beta, x_desc, x, z_desc, z, y_desc, y,
                                                  scale_desc, scale, bias, factor, running_mean, running_variance, epsilon,
                                                  mean, inverse_deviation, activation, workspace, workspace_bytes, reserve,
                                                  reserve_bytes);
}

API int cudnnNormalizationBackward(void *handle, int mode, int ops, int algo, const void *alpha_data, const void *beta_data,
                                   const void *alpha_param, const void *beta_param, const void *x_desc, const void *x,
                                   const void *y_desc, const void *y, const void *dy_desc, const void *dy,
                                   const void *dz_desc, void *dz, const void *dx_desc, void *dx, const void *scale_desc,
                                   const void *scale, const void *bias, void *dscale, void *dbias, double epsilon,
                                   const void *mean_desc, const void *mean, const void *inverse_deviation, void *activation,
                                   void *workspace, size_t workspace_bytes, void *reserve, size_t reserve_bytes,
                                   int num_groups) {
  (void)algo, (void)mean_desc, (void)num_groups;
  return cudnnBatchNormalizationBackwardEx(handle, mode, ops, alpha_data, beta_data, alpha_param, beta_param, x_desc, x,
                                           y_desc, y, dy_desc, dy, dz_desc, dz, dx_desc, dx, scale_desc, scale, bias,
                                           dscale, dbias, epsilon, mean, inverse_deviation, activation, workspace,
                                           workspace_bytes, reserve, reserve_bytes);
}

API int cudnnNormalizationForwardInference(void *handle, int mode, int ops, int algo, const void *alpha, const void *beta,
                                           const void *x_desc, const void *x, const void *scale_desc, const void *scale,
                                           const void *bias, const void *mean_desc, const void *mean, const void *variance,
                                           const void *z_desc, const void *z, void *activation, const void *y_desc,
                                           void *y, double epsilon, int num_groups) {
  (void)handle, (void)mode, (void)ops, (void)algo, (void)alpha, (void)beta, (void)x_desc, (void)x, (void)scale_desc;
  (void)scale, (void)bias, (void)mean_desc, (void)mean, (void)variance, (void)z_desc, (void)z, (void)activation;
  (void)y_desc, (void)epsilon, (void)num_groups;
  WROTE(WORD(y));
  return CUDNN_SUCCESS;
}

/* One value a channel, or one an activation in mode 0, in float where the data is shorter. */
API int cudnnDeriveBNTensorDescriptor(void *derived, const void *x, int mode) {
  struct tensor *to = object_of(derived, KIND_TENSOR);
  const struct tensor *image = object_of(x, KIND_TENSOR);
  if (!to || !image) return CUDNN_BAD_PARAM;
  *to = *image;
  for (int i = 0; i < to->num_dims; i++)
    if (i == 0 || (i > 1 && mode != 0)) to->dims[i] = 1;
  if (data_type_bytes(to->data_type) == 2) to->data_type = DATA_FLOAT;
  set_packed(to, FORMAT_NCHW);
  return CUDNN_SUCCESS;
}

/* ---- Dropout -----------------------------------------------------------------------------------------------------
 * States: one XORWOW state (48 bytes, cuRAND's curandStateXORWOW_t) for each thread that draws. Answered: a block of 1024,
 * the largest, on each multiprocessor (recorded on an H200 with cuDNN 9.19). Low: blocks of 256. High: as many threads as the
 * device holds at a time. */
API int cudnnDropoutGetStatesSize(void *handle, size_t *bytes) {
  (void)handle;
  if (!bytes) return CUDNN_NULL_POINTER;
  const struct device *here = device(current_device());
  const size_t state_bytes = 48, blocks = (size_t)here->multiprocessors;
  struct scratch states = {"cuDNN dropout states", blocks * 256 * state_bytes,
                           blocks * 1024 * state_bytes,
                           blocks * (size_t)here->threads_per_multiprocessor * state_bytes};
  report_scratch(&states);
  *bytes = states.answered;
  return CUDNN_SUCCESS;
}

/* One bit an element: kept or not. */
API int cudnnDropoutGetReserveSpaceSize(void *x, size_t *bytes) {
  const struct tensor *image = object_of(x, KIND_TENSOR);
  if (!image || !bytes) return CUDNN_BAD_PARAM;
  size_t num_elements = tensor_bytes(image) / data_type_bytes(image->data_type);
  struct scratch reserve = {"cuDNN dropout reserve space", mask_bytes(image), mask_bytes(image), num_elements};
  report_scratch(&reserve);
  *bytes = reserve.answered;
  return CUDNN_SUCCESS;
}

API int cudnnRestoreDropoutDescriptor(void *descriptor, void *handle, float probability, void *states, size_t bytes,
                                      unsigned long long seed) {
  (void)handle, (void)bytes;
  struct dropout *dropout = object_of(descriptor, KIND_DROPOUT);
  if (!dropout) return CUDNN_BAD_PARAM;
  dropout->probability = probability;
  dropout->states = states;
  dropout->seed = seed;
  return CUDNN_SUCCESS;
}

API int cudnnSetDropoutDescriptor(void *descriptor, void *handle, float probability, void *states, size_t bytes,
                                  unsigned long long seed) {
  WROTE(WORD(states));
  return cudnnRestoreDropoutDescriptor(descriptor, handle, probability, states, bytes, seed);
}

API int cudnnGetDropoutDescriptor(void *descriptor, void *handle, float *probability, void **states,
                                  unsigned long long *seed) {
  (void)handle;
  const struct dropout *dropout = object_of(descriptor, KIND_DROPOUT);
  if (!dropout) return CUDNN_BAD_PARAM;
  if (probability) *probability = dropout->probability;
  if (states) *states = dropout->states;
  if (seed) *seed = dropout->seed;
  return CUDNN_SUCCESS;
}

/* ---- CTC loss ----------------------------------------------------------------------------------------------------
 * The forward-backward algorithm (Graves et al. 2006) keeps alpha and beta for each step, sample and position of the label
 * with blanks between: 2 x T x N x (2 L + 1) floats; with softmax normalization also the probabilities: T x N x C floats.
 * Low: alpha alone, beta being consumed as it is made. High: twice the answer. */
struct ctc_loss {
  enum kind kind;
  int compute_type, normalization, gradient_mode, max_label_length;
};

API int cudnnCreateCTCLossDescriptor(void **descriptor) {
  return create_object(descriptor, KIND_CTC_LOSS, sizeof(struct ctc_loss));
}
API int cudnnDestroyCTCLossDescriptor(void *descriptor) { return destroy_object(descriptor); }

API int cudnnSetCTCLossDescriptor_v9(void *descriptor, int compute_type, int normalization, int gradient_mode,
                                     int max_label_length) {
  struct ctc_loss *loss = object_of(descriptor, KIND_CTC_LOSS);
  if (!loss) return CUDNN_BAD_PARAM;
  *loss = (struct ctc_loss){KIND_CTC_LOSS, compute_type, normalization, gradient_mode, max_label_length};
  return CUDNN_SUCCESS;
}
API int cudnnSetCTCLossDescriptor_v8(void *descriptor, int compute_type, int normalization, int gradient_mode,
                                     int max_label_length) {
  return cudnnSetCTCLossDescriptor_v9(descriptor, compute_type, normalization, gradient_mode, max_label_length);
}
API int cudnnSetCTCLossDescriptorEx(void *descriptor, int compute_type, int normalization, int gradient_mode) {
  return cudnnSetCTCLossDescriptor_v9(descriptor, compute_type, normalization, gradient_mode, 0);
}
API int cudnnSetCTCLossDescriptor(void *descriptor, int compute_type) {
  return cudnnSetCTCLossDescriptor_v9(descriptor, compute_type, 0, 0, 0);
}

static int answer_ctc(const void *probabilities_desc, const void *loss_desc, int64_t label_length, size_t *bytes) {
  const struct tensor *probabilities = object_of(probabilities_desc, KIND_TENSOR); /* T, N, C */
  if (!probabilities || !object_of(loss_desc, KIND_CTC_LOSS) || probabilities->num_dims < 3 || !bytes) return CUDNN_BAD_PARAM;
  size_t rows = (size_t)(probabilities->dims[0] * probabilities->dims[1]);
  size_t lattice = rows * (size_t)(2 * label_length + 1) * 4, softmax = rows * (size_t)probabilities->dims[2] * 4;
  struct scratch scratch = {"cuDNN CTC loss workspace", lattice, 2 * lattice + softmax, 2 * (2 * lattice + softmax)};
  report_scratch(&scratch);
  *bytes = scratch.answered;
  return CUDNN_SUCCESS;
}

API int cudnnGetCTCLossWorkspaceSize(void *handle, const void *probabilities, const void *gradients, const int *labels,
                                     const int *label_lengths, const int *input_lengths, int algo, void *loss,
                                     size_t *bytes) {
  (void)handle, (void)gradients, (void)labels, (void)input_lengths, (void)algo;
  const struct tensor *of = object_of(probabilities, KIND_TENSOR);
  if (!of || !label_lengths) return CUDNN_BAD_PARAM;
  int longest = 0; /* these lengths are on the host */
  for (int64_t i = 0; i < of->dims[1]; i++) longest = label_lengths[i] > longest ? label_lengths[i] : longest;
  return answer_ctc(probabilities, loss, longest, bytes);
}

API int cudnnGetCTCLossWorkspaceSize_v8(void *handle, int algo, void *loss, const void *probabilities,
                                        const void *gradients, size_t *bytes) {
  (void)handle, (void)algo, (void)gradients;
  const struct ctc_loss *of = object_of(loss, KIND_CTC_LOSS);
  return of ? answer_ctc(probabilities, loss, of->max_label_length, bytes) : CUDNN_BAD_PARAM;
}

API int cudnnCTCLoss(void *handle, const void *probabilities_desc, const void *probabilities, const int *labels,
                     const int *label_lengths, const int *input_lengths, void *costs, const void *gradients_desc,
                     void *gradients, int algo, void *loss, void *workspace, size_t workspace_bytes) {
  (void)handle, (void)probabilities_desc, (void)probabilities, (void)labels, (void)label_lengths, (void)input_lengths;
  (void)gradients_desc, (void)algo, (void)loss;
  if (workspace && workspace_bytes) saw_workspace(LIBRARY_CUDNN, workspace, workspace_bytes);
  WROTE(WORD(costs), WORD(gradients), WORD(workspace));
  return CUDNN_SUCCESS;
}

API int cudnnCTCLoss_v8(void *handle, int algo, void *loss, const void *probabilities_desc, const void *probabilities,
                        const int *labels, const int *label_lengths, const int *input_lengths, void *costs,
                        const void *gradients_desc, void *gradients, size_t workspace_bytes, void *workspace) {
  return cudnnCTCLoss(handle, probabilities_desc, probabilities, labels, label_lengths, input_lengths, costs,
                      gradients_desc, gradients, algo, loss, workspace, workspace_bytes);
}
