/* cuSPARSELt: 2:4 sparse matrix products. Descriptors lie in memory of the caller's, whose size depends on the version
 * (512 bytes since 0.7); we use the first 512.
 *
 * Sizes: of every four values two are kept, and 4 bits say which: half of the values plus an eighth of a byte a value.
 * That is 9/16 of a 16-bit matrix. Scratch memory for compression: as much as the positions; between nothing and the
 * compressed matrix. A product needs none; at most a float32 copy of its result. Not measured.
 */
#include "descriptor.h"
#include "phantom.h"

enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 3, NOT_SUPPORTED = 10 };
enum { HANDLE = 0x736c6861, MATRIX = 0x736c6d61, MATMUL = 0x736c6d75, SELECTION = 0x736c7365, PLAN = 0x736c706c };
enum { STRUCT_BYTES = 512, BATCHES = 0, CONFIG_ID = 0, CONFIG_MAX_ID = 1, SEARCH_ITERATIONS = 2, SPLIT_K = 3,
       SPLIT_K_MODE = 4, SPLIT_K_BUFFERS = 5, ONE_KERNEL = 1 };
/* Ours, out of the way of the library's own numbers. */
enum { ROWS = 56, COLS = 57, TYPE = 58, OUTPUT_BYTES = 59 };

API int cusparseLtInit(void *handle) { return begin_attributes(handle, STRUCT_BYTES, HANDLE) ? SUCCESS : INVALID_VALUE; }
API int cusparseLtDestroy(const void *handle) { return is_attributes(handle, HANDLE) ? SUCCESS : NOT_INITIALIZED; }

static int version(void) { return library_version("cusparselt", 1000); } /* 0.10.0 */

API int cusparseLtGetVersion(const void *handle, int *value) {
  return (void)handle, ANSWER(value, version(), INVALID_VALUE);
}

API int cusparseLtGetProperty(int type, int *value) { return version_part(version(), 1000, type, value) ? SUCCESS : INVALID_VALUE; }

API const char *cusparseGetErrorName(int status);
API const char *cusparseGetErrorString(int status);
API const char *cusparseLtGetErrorName(int status) { return cusparseGetErrorName(status); }
API const char *cusparseLtGetErrorString(int status) { return cusparseGetErrorString(status); }

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

static int begin_matrix(const void *handle, void *d, int64_t rows, int64_t cols, int type) {
  if (!is_attributes(handle, HANDLE)) return NOT_INITIALIZED;
  if (rows < 0 || cols < 0 || !begin_attributes(d, STRUCT_BYTES, MATRIX)) return INVALID_VALUE;
  set_number(d, ROWS, (uint64_t)rows, 8);
  set_number(d, COLS, (uint64_t)cols, 8);
  set_number(d, TYPE, (uint64_t)type, 4);
  set_number(d, BATCHES, 1, 4);
  return SUCCESS;
}

API int cusparseLtDenseDescriptorInit(const void *handle, void *d, int64_t rows, int64_t cols, int64_t leading, uint32_t alignment,
                                      int type, int order) {
  return (void)leading, (void)alignment, (void)order, begin_matrix(handle, d, rows, cols, type);
}
API int cusparseLtStructuredDescriptorInit(const void *handle, void *d, int64_t rows, int64_t cols, int64_t leading,
                                           uint32_t alignment, int type, int order, int sparsity) {
  return (void)leading, (void)alignment, (void)order, (void)sparsity, begin_matrix(handle, d, rows, cols, type);
}

API int cusparseLtMatmulDescriptorInit(const void *handle, void *d, int op_a, int op_b, const void *a, const void *b, const void *c,
                                       const void *output, int compute) {
  (void)op_a, (void)op_b, (void)b, (void)c, (void)compute;
  if (!is_attributes(handle, HANDLE)) return NOT_INITIALIZED;
  if (!is_attributes(a, MATRIX) || !is_attributes(output, MATRIX) || !begin_attributes(d, STRUCT_BYTES, MATMUL)) return INVALID_VALUE;
  uint64_t elements = attribute_number(output, ROWS, 0) * attribute_number(output, COLS, 0);
  set_number(d, OUTPUT_BYTES, elements * sizeof(float) * attribute_number(output, BATCHES, 1), 8);
  set_number(d, ROWS, attribute_number(a, ROWS, 0), 8);
  set_number(d, COLS, attribute_number(a, COLS, 0), 8);
  set_number(d, TYPE, attribute_number(a, TYPE, 0), 4);
  return SUCCESS;
}

API int cusparseLtMatmulAlgSelectionInit(const void *handle, void *d, const void *matmul, int algorithm) {
  (void)algorithm;
  if (!is_attributes(handle, HANDLE)) return NOT_INITIALIZED;
  if (!is_attributes(matmul, MATMUL) || !begin_attributes(d, STRUCT_BYTES, SELECTION)) return INVALID_VALUE;
  set_number(d, CONFIG_ID, 0, 4);
  set_number(d, CONFIG_MAX_ID, 1, 4); /* a single algorithm to search through */
  set_number(d, SEARCH_ITERATIONS, 5, 4);
  set_number(d, SPLIT_K, 1, 4);
  set_number(d, SPLIT_K_MODE, ONE_KERNEL, 4);
  set_number(d, SPLIT_K_BUFFERS, 0, 4);
  return SUCCESS;
}

/* The plan is all that later calls are given: it takes over what the product knows. */
API int cusparseLtMatmulPlanInit(const void *handle, void *d, const void *matmul, const void *selection) {
  (void)selection;
  if (!is_attributes(handle, HANDLE)) return NOT_INITIALIZED;
  if (!is_attributes(matmul, MATMUL) || !begin_attributes(d, STRUCT_BYTES, PLAN)) return INVALID_VALUE;
  for (int i = ROWS; i <= OUTPUT_BYTES; i++) set_number(d, i, attribute_number(matmul, i, 0), 8);
  return SUCCESS;
}

#define ATTRIBUTES(setter, getter, magic)                                                               \
  API int setter(const void *handle, void *d, int attribute, const void *value, size_t bytes) {         \
    if (!is_attributes(handle, HANDLE)) return NOT_INITIALIZED;                                         \
    if (!is_attributes(d, magic) || attribute >= ROWS) return INVALID_VALUE;                            \
    return set_attribute(d, attribute, value, bytes) ? SUCCESS : INVALID_VALUE;                         \
  }                                                                                                     \
  API int getter(const void *handle, const void *d, int attribute, void *value, size_t bytes) {         \
    if (!is_attributes(handle, HANDLE)) return NOT_INITIALIZED;                                         \
    if (!is_attributes(d, magic) || !value || attribute >= ROWS) return INVALID_VALUE;                  \
    size_t length = get_attribute(d, attribute, value, bytes);                                          \
    if (!length) return refuse(#getter, NOT_SUPPORTED);                                                 \
    return bytes < length ? INVALID_VALUE : SUCCESS;                                                    \
  }
ATTRIBUTES(cusparseLtMatDescSetAttribute, cusparseLtMatDescGetAttribute, MATRIX)
ATTRIBUTES(cusparseLtMatmulDescSetAttribute, cusparseLtMatmulDescGetAttribute, MATMUL)
ATTRIBUTES(cusparseLtMatmulAlgSetAttribute, cusparseLtMatmulAlgGetAttribute, SELECTION)

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

static size_t value_bytes(uint64_t type) { /* cudaDataType; what is not listed has 8 bits */
  return type == 0 || type == 10 ? 4 : type == 2 || type == 14 ? 2 : 1;
}

static int write_sizes(const void *d, size_t *compressed, size_t *scratch) {
  if (!compressed || !scratch) return INVALID_VALUE;
  uint64_t elements = attribute_number(d, ROWS, 0) * attribute_number(d, COLS, 0) * attribute_number(d, BATCHES, 1);
  *compressed = elements * value_bytes(attribute_number(d, TYPE, 0)) / 2 + elements / 8;
  *scratch = elements / 8;
  assume_bytes("cuSPARSELt compressed matrix", *compressed - elements / 8, *compressed, *compressed + elements / 8);
  assume_bytes("cuSPARSELt compression workspace", 0, *scratch, *compressed);
  return SUCCESS;
}

API int cusparseLtSpMMACompressedSize(const void *handle, const void *plan, size_t *compressed, size_t *scratch) {
  if (!is_attributes(handle, HANDLE)) return NOT_INITIALIZED;
  return is_attributes(plan, PLAN) ? write_sizes(plan, compressed, scratch) : INVALID_VALUE;
}
API int cusparseLtSpMMACompressedSize2(const void *handle, const void *d, size_t *compressed, size_t *scratch) {
  if (!is_attributes(handle, HANDLE)) return NOT_INITIALIZED;
  return is_attributes(d, MATRIX) ? write_sizes(d, compressed, scratch) : INVALID_VALUE;
}

API int cusparseLtMatmulGetWorkspace(const void *handle, const void *plan, size_t *bytes) {
  if (!is_attributes(handle, HANDLE)) return NOT_INITIALIZED;
  if (!is_attributes(plan, PLAN) || !bytes) return INVALID_VALUE;
  *bytes = 0;
  assume_bytes("cuSPARSELt matmul workspace", 0, 0, attribute_number(plan, OUTPUT_BYTES, 0));
  return SUCCESS;
}

/* Whether a matrix has the 2:4 pattern is a value that a kernel finds: it has, on the host; unknown, on the device. */
static int answer_valid(int *invalid) {
  if (!invalid) return INVALID_VALUE;
  if (is_device_address(invalid)) forget(invalid);
  else *invalid = 0;
  return SUCCESS;
}
API int cusparseLtSpMMAPruneCheck(const void *handle, const void *matmul, const void *in, int *invalid, void *stream) {
  return (void)handle, (void)matmul, (void)in, (void)stream, answer_valid(invalid);
}
API int cusparseLtSpMMAPruneCheck2(const void *handle, const void *d, int is_a, int op, const void *in, int *invalid, void *stream) {
  return (void)handle, (void)d, (void)is_a, (void)op, (void)in, (void)stream, answer_valid(invalid);
}

#define DO(name) DO_RETURNING(int, name, SUCCESS)
#include "tables/cusparselt.inc"
