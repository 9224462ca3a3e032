/* cuBLASLt: descriptors that give back what was set in them, and a heuristic that always finds one algorithm.
 *
 * What peaks depend on: nothing in PyTorch. ATen (aten/src/ATen/cuda/CUDABlas.cpp) takes its workspace, of a size that
 * depends on the compute capability and on CUBLASLT_WORKSPACE_SIZE, before it asks the heuristic, states that size as
 * the limit, and hands all of it to cublasLtMatmul whatever the algorithm needs. Only a program that allocates the
 * workspaceSize of the heuristic's result depends on our answer: it is recognised by the size it hands over, and only
 * then does the answer count as assumed.
 */
#include "descriptor.h"
#include "phantom.h"
#include "work_log.h"

#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { MATMUL = 0x6c746d6d, LAYOUT = 0x6c746c61, PREFERENCE = 0x6c747072, TRANSFORM = 0x6c747472, EMULATION = 0x6c74656d };
enum { TYPE = 0, ORDER = 1, ROWS = 2, COLS = 3, LEADING = 4, BATCH_COUNT = 5, BATCH_STRIDE = 6 }; /* of a layout */
enum { COMPUTE_TYPE = 0, SCALE_TYPE = 1, TRANSPOSE_A = 3, FILL_MODE = 6, EPILOGUE = 7 };          /* of a matmul */
enum { MAX_WORKSPACE = 1 };                                                                       /* of a preference */
enum { DESCRIPTOR_WORDS = 5, OPERATION_FULL = 2, EPILOGUE_DEFAULT = 1, FORMAT_COLUMN = 0 };

/* cublasLtMatmulAlgo_t: 64 opaque bytes of which we use the first; cublasLtMatmulHeuristicResult_t around it. */
struct algorithm {
  uint32_t magic;
  int32_t id;
  uint64_t answered, limit; /* bytes of workspace */
  int32_t config[10];       /* tile, stages, split-K, ...: as set */
};
struct heuristic_result {
  struct algorithm algorithm;
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
_Static_assert(sizeof(struct algorithm) == 64 && sizeof(struct heuristic_result) == 96, "cuBLASLt's layout");
enum { ALGORITHM = 0x6c74616c, CONFIG_ID = 0 };

API int cublasLtCreate(void **h) { return ANSWER(h, new_handle(), INVALID_VALUE); }
API int cublasLtDestroy(void *h) { return h ? SUCCESS : NOT_INITIALIZED; }

API size_t cublasLtGetVersion(void) { return (size_t)library_version("cublas", 130300); }
API size_t cublasLtGetCudartVersion(void) { return (size_t)library_version("cudart", 13020); }
API int cublasGetProperty(int type, int *value);
API int cublasLtGetProperty(int type, int *value) { return cublasGetProperty(type, value); }
API const char *cublasGetStatusName(int status);
API const char *cublasGetStatusString(int status);
API const char *cublasLtGetStatusName(int status) { return cublasGetStatusName(status); }
API const char *cublasLtGetStatusString(int status) { return cublasGetStatusString(status); }

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

static void fill_matmul(void *d, int compute_type, int scale_type) {
  set_number(d, COMPUTE_TYPE, (uint64_t)compute_type, 4);
  set_number(d, SCALE_TYPE, (uint64_t)scale_type, 4);
  for (int i = SCALE_TYPE + 1; i < FILL_MODE; i++) set_number(d, i, 0, 4); /* pointer mode host; no transposes */
  set_number(d, FILL_MODE, OPERATION_FULL, 4);
  set_number(d, EPILOGUE, EPILOGUE_DEFAULT, 4);
}

static void fill_layout(void *d, int type, uint64_t rows, uint64_t cols, int64_t leading) {
  set_number(d, TYPE, (uint64_t)type, 4);
  set_number(d, ORDER, FORMAT_COLUMN, 4);
  set_number(d, ROWS, rows, 8);
  set_number(d, COLS, cols, 8);
  set_number(d, LEADING, (uint64_t)leading, 8);
  set_number(d, BATCH_COUNT, 1, 4);
  set_number(d, BATCH_STRIDE, 0, 8);
}

static void fill_preference(void *d) {
  set_number(d, 0, 0, 4); /* search mode: best fit */
  set_number(d, MAX_WORKSPACE, 0, 8);
}

#define CREATE(name, magic, parameters, fill)              \
  API int name parameters {                                \
    if (!result) return INVALID_VALUE;                     \
    struct attributes *d = new_attributes(magic);          \
    if (!d) return ALLOC_FAILED;                           \
    fill;                                                  \
    *result = d;                                           \
    return SUCCESS;                                        \
  }
/* The caller's own memory, of the size of the caller's version of the struct. */
#define INIT(name, magic, parameters, fill)                             \
  API int name parameters {                                             \
    if (!begin_attributes(d, bytes, magic)) return INVALID_VALUE;       \
    fill;                                                               \
    return SUCCESS;                                                     \
  }
CREATE(cublasLtMatmulDescCreate, MATMUL, (void **result, int compute, int scale), fill_matmul(d, compute, scale))
INIT(cublasLtMatmulDescInit_internal, MATMUL, (void *d, size_t bytes, int compute, int scale), fill_matmul(d, compute, scale))
CREATE(cublasLtMatrixLayoutCreate, LAYOUT, (void **result, int type, uint64_t rows, uint64_t cols, int64_t leading),
       fill_layout(d, type, rows, cols, leading))
INIT(cublasLtMatrixLayoutInit_internal, LAYOUT,
     (void *d, size_t bytes, int type, uint64_t rows, uint64_t cols, int64_t leading), fill_layout(d, type, rows, cols, leading))
/* Rows and columns of each group lie on the device: 0 stands for unknown. */
CREATE(cublasLtGroupedMatrixLayoutCreate, LAYOUT, (void **result, int type), fill_layout(d, type, 0, 0, 0))
INIT(cublasLtGroupedMatrixLayoutInit_internal, LAYOUT, (void *d, size_t bytes, int type), fill_layout(d, type, 0, 0, 0))
CREATE(cublasLtMatmulPreferenceCreate, PREFERENCE, (void **result), fill_preference(d))
INIT(cublasLtMatmulPreferenceInit_internal, PREFERENCE, (void *d, size_t bytes), fill_preference(d))
CREATE(cublasLtMatrixTransformDescCreate, TRANSFORM, (void **result, int scale), set_number(d, 0, (uint64_t)scale, 4))
INIT(cublasLtMatrixTransformDescInit_internal, TRANSFORM, (void *d, size_t bytes, int scale), set_number(d, 0, (uint64_t)scale, 4))
CREATE(cublasLtEmulationDescCreate, EMULATION, (void **result), (void)0)
INIT(cublasLtEmulationDescInit_internal, EMULATION, (void *d, size_t bytes), (void)0)

static int set_in(void *d, uint32_t magic, int attribute, const void *value, size_t bytes) {
  if (!is_attributes(d, magic)) return INVALID_VALUE;
  const void *p = NULL; /* a bias, a scale: read by the matmul that follows */
  if (value && bytes == sizeof p) memcpy(&p, value, sizeof p);
  note_use(p);
  return set_attribute(d, attribute, value, bytes) ? SUCCESS : INVALID_VALUE;
}

/* With bytes 0 the caller asks for the length alone. */
static int get_from(const char *name, const void *d, uint32_t magic, int attribute, void *value, size_t bytes,
                    size_t *written) {
  if (!is_attributes(d, magic) || (!value && !written)) return INVALID_VALUE;
  size_t length = get_attribute(d, attribute, value, bytes);
  if (!length) return refuse(name, NOT_SUPPORTED);
  if (written) *written = length;
  return bytes && bytes < length ? INVALID_VALUE : SUCCESS;
}

#define DESCRIPTOR(prefix, magic)                                                                                \
  API int prefix##Destroy(void *d) { return !d || free_attributes(d, magic) ? SUCCESS : INVALID_VALUE; }         \
  API int prefix##SetAttribute(void *d, int attribute, const void *value, size_t bytes) {                        \
    return set_in(d, magic, attribute, value, bytes);                                                            \
  }                                                                                                              \
  API int prefix##GetAttribute(void *d, int attribute, void *value, size_t bytes, size_t *written) {             \
    return get_from(#prefix "GetAttribute", d, magic, attribute, value, bytes, written);                         \
  }
DESCRIPTOR(cublasLtMatmulDesc, MATMUL)
DESCRIPTOR(cublasLtMatrixLayout, LAYOUT)
DESCRIPTOR(cublasLtMatmulPreference, PREFERENCE)
DESCRIPTOR(cublasLtMatrixTransformDesc, TRANSFORM)
DESCRIPTOR(cublasLtEmulationDesc, EMULATION)

/* ---- Algorithms -------------------------------------------------------------------------------------------------- */

/* Workspace is for split-K: where the output has too few tiles for the device, each multiprocessor left over takes a
 * slice of the inner dimension and leaves a float32 copy of the output for a later sum. A model of that: tiles of
 * 128 x 128, slices of at least 256. */
static uint64_t split_k_bytes(const void *matmul, const void *a, const void *output, uint64_t limit) {
  uint64_t rows = attribute_number(output, ROWS, 0), cols = attribute_number(output, COLS, 0);
  uint64_t inner = attribute_number(a, attribute_number(matmul, TRANSPOSE_A, 0) ? ROWS : COLS, 0);
  uint64_t batches = attribute_number(output, BATCH_COUNT, 1);
  uint64_t tiles = (rows + 127) / 128 * ((cols + 127) / 128) * (batches ? batches : 1);
  uint64_t slices = tiles ? (uint64_t)device(current_device())->multiprocessors / tiles : 0;
  if (slices > inner / 256) slices = inner / 256;
  if (slices < 2) return 0;
  uint64_t bytes = slices * rows * cols * 4 * (batches ? batches : 1);
  return bytes < limit ? (bytes + 255) / 256 * 256 : limit;
}

static void fill_algorithm(struct algorithm *algorithm, int id, uint64_t answered, uint64_t limit) {
  memset(algorithm, 0, sizeof *algorithm);
  *algorithm = (struct algorithm){.magic = ALGORITHM, .id = id, .answered = answered, .limit = limit, .config = {id}};
}

API int cublasLtMatmulAlgoGetHeuristic(void *h, void *matmul, void *a, void *b, void *c, void *output, void *preference,
                                       int requested, struct heuristic_result *results, int *returned) {
  (void)b, (void)c;
  if (!h) return NOT_INITIALIZED;
  if (!results || !returned || requested < 1 || !is_attributes(matmul, MATMUL) || !is_attributes(a, LAYOUT) ||
      !is_attributes(output, LAYOUT) || !is_attributes(preference, PREFERENCE))
    return INVALID_VALUE;
  uint64_t limit = attribute_number(preference, MAX_WORKSPACE, 0);
  memset(results, 0, sizeof *results);
  results->workspace_bytes = split_k_bytes(matmul, a, output, limit);
  results->waves = 1;
  fill_algorithm(&results->algorithm, 0, results->workspace_bytes, limit);
  *returned = 1;
  return SUCCESS;
}

/* The stream comes last and changes nothing. */
API int cublasLtMatmulAlgoGetHeuristicForStream(void *h, void *matmul, void *a, void *b, void *c, void *output, void *preference,
                                                int requested, struct heuristic_result *results, int *returned, void *stream) {
  (void)stream;
  return cublasLtMatmulAlgoGetHeuristic(h, matmul, a, b, c, output, preference, requested, results, returned);
}

API int cublasLtMatmulAlgoGetIds(void *h, int compute, int scale, int a, int b, int c, int d, int requested, int *ids,
                                 int *returned) {
  (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d;
  if (!h) return NOT_INITIALIZED;
  if (!ids || requested < 1) return INVALID_VALUE;
  ids[0] = 0;
  if (returned) *returned = 1;
  return SUCCESS;
}

API int cublasLtMatmulAlgoInit(void *h, int compute, int scale, int a, int b, int c, int d, int id, struct algorithm *algorithm) {
  (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d;
  if (!h) return NOT_INITIALIZED;
  if (!algorithm) return INVALID_VALUE;
  fill_algorithm(algorithm, id, 0, 0);
  return SUCCESS;
}

API int cublasLtMatmulAlgoCheck(void *h, void *matmul, void *a, void *b, void *c, void *output, const struct algorithm *algorithm,
                                struct heuristic_result *result) {
  (void)b, (void)c;
  if (!h) return NOT_INITIALIZED;
  if (!algorithm || !result || !is_attributes(matmul, MATMUL) || !is_attributes(a, LAYOUT) || !is_attributes(output, LAYOUT))
    return INVALID_VALUE;
  struct algorithm checked = *algorithm;
  memset(result, 0, sizeof *result);
  result->workspace_bytes = checked.answered = split_k_bytes(matmul, a, output, UINT64_MAX);
  if (!checked.limit) checked.limit = checked.answered;
  result->algorithm = checked;
  result->waves = 1;
  return SUCCESS;
}

API int cublasLtMatmulAlgoCheckForStream(void *h, void *matmul, void *a, void *b, void *c, void *output,
                                         const struct algorithm *algorithm, struct heuristic_result *result, void *stream) {
  (void)stream;
  return cublasLtMatmulAlgoCheck(h, matmul, a, b, c, output, algorithm, result);
}

/* Configuration: ten small numbers and no more (the id, tile, split-K, ...), 32 bits except two of 16. */
static size_t config_bytes(int attribute) { return attribute == 7 || attribute == 8 ? 2 : 4; }

API int cublasLtMatmulAlgoConfigSetAttribute(struct algorithm *algorithm, int attribute, const void *value, size_t bytes) {
  if (!algorithm || !value || attribute < 0 || attribute >= 10 || bytes != config_bytes(attribute)) return INVALID_VALUE;
  algorithm->config[attribute] = 0;
  memcpy(&algorithm->config[attribute], value, bytes);
  return SUCCESS;
}

API int cublasLtMatmulAlgoConfigGetAttribute(const struct algorithm *algorithm, int attribute, void *value, size_t bytes,
                                             size_t *written) {
  if (!algorithm || attribute < 0 || attribute >= 10 || (!value && !written)) return INVALID_VALUE;
  size_t length = config_bytes(attribute);
  if (written) *written = length;
  if (!bytes) return SUCCESS;
  if (!value || bytes < length) return INVALID_VALUE;
  memcpy(value, &algorithm->config[attribute], length);
  return SUCCESS;
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

static void log_product(const void *matmul, const void *a, const void *d, const void *stream) {
  enum { REAL_32 = 0, COMPUTE_TF32 = 77 };
  if (!is_work_logged || !is_attributes(a, LAYOUT) || !is_attributes(d, LAYOUT)) return;
  int type = (int)attribute_number(a, TYPE, 0), result = (int)attribute_number(d, TYPE, 0);
  bool is_tf32 = type == REAL_32 && attribute_number(matmul, COMPUTE_TYPE, 0) == COMPUTE_TF32;
  int64_t inner = (int64_t)attribute_number(a, attribute_number(matmul, TRANSPOSE_A, 0) ? ROWS : COLS, 0);
  struct work work = {WORK_PRODUCT, is_tf32 ? TF32 : type, NULL,
                      {(int64_t)attribute_number(d, ROWS, 0), (int64_t)attribute_number(d, COLS, 0), inner,
                       (int64_t)attribute_number(d, BATCH_COUNT, 1), result == REAL_32 ? 4 : 2}};
  log_work(stream, &work);
}

API int cublasLtMatmul(void *h, void *matmul, const void *alpha, const void *a, void *a_layout, const void *b, void *b_layout,
                       const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                       const struct algorithm *algorithm, void *workspace, size_t workspace_bytes, void *stream) {
  (void)b_layout, (void)c_layout;
  if (!h) return NOT_INITIALIZED;
  if (!is_attributes(matmul, MATMUL)) return INVALID_VALUE;
  /* The descriptor's pointers too: gradients of a bias, auxiliary output and amax are written. */
  uintptr_t words[DESCRIPTOR_WORDS + 7] = {(uintptr_t)alpha, (uintptr_t)a, (uintptr_t)b, (uintptr_t)beta,
                                           (uintptr_t)c, (uintptr_t)d, (uintptr_t)workspace};
  static const int pointers[DESCRIPTOR_WORDS] = {8, 11, 21, 24, 36};
  for (int i = 0; i < DESCRIPTOR_WORDS; i++) words[7 + i] = attribute_number(matmul, pointers[i], 0);
  note_work(stream);
  log_product(matmul, a_layout, d_layout, stream);
  forget_words(words, sizeof words / sizeof *words);
  if (workspace && workspace_bytes) saw_workspace(LIBRARY_CUBLASLT, workspace, workspace_bytes);
  if (algorithm && algorithm->magic == ALGORITHM && workspace_bytes == algorithm->answered && workspace_bytes != algorithm->limit)
    assume_bytes("cuBLASLt matmul workspace", 0, algorithm->answered, algorithm->limit);
  return SUCCESS;
}

API int cublasLtHeuristicsCacheGetCapacity(size_t *capacity) {
  if (!capacity) return INVALID_VALUE;
  *capacity = 8192; /* entries, the documented default */
  return SUCCESS;
}

#define DO(name) DO_RETURNING(int, name, SUCCESS)
#define REFUSE(name) API int name(void) { return refuse(#name, NOT_SUPPORTED); }
#include "tables/cublaslt.inc"
