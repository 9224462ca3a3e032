/* cuBLAS: handles that remember their modes, host reads of reductions; all the arithmetic is in the table.
 *
 * cublasCreate takes no device memory here. The real one does (context and module memory, which the device's
 * context_bytes stand for); the workspace is PyTorch's own, handed over by cublasSetWorkspace.
 */
#include "handle.h"
#include "work_log.h"

#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, MAPPING_ERROR = 11, NOT_SUPPORTED = 15 };
enum { MAGIC = 0x63626c73 };

HANDLE(cublasCreate_v2, cublasDestroy_v2)
HANDLE(cublasXtCreate, cublasXtDestroy, .block_dim = 2048) /* its default tile */
FIELD(cublasSetMathMode, cublasGetMathMode, int, math_mode)
FIELD(cublasSetPointerMode_v2, cublasGetPointerMode_v2, int, pointer_mode)
FIELD(cublasSetAtomicsMode, cublasGetAtomicsMode, int, atomics_mode)
FIELD(cublasSetSmCountTarget, cublasGetSmCountTarget, int, sm_count_target)
FIELD(cublasXtSetBlockDim, cublasXtGetBlockDim, int, block_dim)
FIELD(cublasXtSetPinningMemMode, cublasXtGetPinningMemMode, int, pinning_mode)
STREAM(cublasSetStream_v2, cublasGetStream_v2)

API int cublasSetWorkspace_v2(void *h, void *workspace, size_t bytes) {
  if (!handle_of(h, MAGIC)) return NOT_INITIALIZED;
  if (workspace && bytes) saw_workspace(LIBRARY_CUBLAS, workspace, bytes);
  return SUCCESS;
}

/* ---- Versions and texts ------------------------------------------------------------------------------------------ */

static int version(void) { return library_version("cublas", 130300); } /* 13.3.0 */

API int cublasGetVersion_v2(void *h, int *value) {
  return (void)h /* the real one accepts NULL */, ANSWER(value, version(), INVALID_VALUE);
}

API int cublasGetVersion(int *value) { return cublasGetVersion_v2(NULL, value); }

API int cublasGetProperty(int type, int *value) { return version_part(version(), 10000, type, value) ? SUCCESS : INVALID_VALUE; }

API size_t cublasGetCudartVersion(void) { return (size_t)library_version("cudart", 13020); }

API const char *cublasGetStatusName(int status) {
  switch (status) {
    case 0: return "CUBLAS_STATUS_SUCCESS";
    case 1: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case 3: return "CUBLAS_STATUS_ALLOC_FAILED";
    case 7: return "CUBLAS_STATUS_INVALID_VALUE";
    case 8: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case 11: return "CUBLAS_STATUS_MAPPING_ERROR";
    case 13: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case 14: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case 15: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case 16: return "CUBLAS_STATUS_LICENSE_ERROR";
    default: return "CUBLAS_STATUS_UNKNOWN";
  }
}

API const char *cublasGetStatusString(int status) {
  switch (status) {
    case 0: return "success";
    case 1: return "the library was not initialized";
    case 3: return "the resource allocation failed";
    case 7: return "an invalid value was passed";
    case 15: return "the functionality is not supported";
    default: return cublasGetStatusName(status);
  }
}

/* ---- Copies between host and device: strided by column or by element --------------------------------------------- */

/* cuBLAS's matrices are stored by column; lda and ldb count elements. */
static int copy_matrix(int64_t rows, int64_t cols, int64_t item, const char *a, int64_t lda, char *b, int64_t ldb) {
  if (rows < 0 || cols < 0 || item <= 0 || lda < rows || ldb < rows) return INVALID_VALUE;
  if (!rows || !cols) return SUCCESS;
  if (!a || !b) return MAPPING_ERROR;
  if (lda == rows && ldb == rows) {
    copy_values(b, a, (size_t)(rows * cols * item));
    return SUCCESS;
  }
  for (int64_t j = 0; j < cols; j++)
    copy_values(b + j * ldb * item, a + j * lda * item, (size_t)(rows * item));
  return SUCCESS;
}

static int copy_vector(int64_t n, int64_t item, const char *x, int64_t incx, char *y, int64_t incy) {
  if (n < 0 || item <= 0 || incx <= 0 || incy <= 0) return INVALID_VALUE;
  if (incx == 1 && incy == 1) return copy_matrix(n, 1, item, x, n, y, n);
  return copy_matrix(1, n, item, x, incx, y, incy);
}

#define COPY_MATRIX(name, integer)                                                                                \
  API int name(integer rows, integer cols, integer item, const void *a, integer lda, void *b, integer ldb) {      \
    return copy_matrix(rows, cols, item, a, lda, b, ldb);                                                         \
  }
#define COPY_VECTOR(name, integer)                                                                                \
  API int name(integer n, integer item, const void *x, integer incx, void *y, integer incy) {                     \
    return copy_vector(n, item, x, incx, y, incy);                                                                \
  }
/* The Async forms have a stream after these arguments, which nothing here needs. */
#define COPIES(integer, suffix)                        \
  COPY_MATRIX(cublasSetMatrix##suffix, integer)        \
  COPY_MATRIX(cublasGetMatrix##suffix, integer)        \
  COPY_MATRIX(cublasSetMatrixAsync##suffix, integer)   \
  COPY_MATRIX(cublasGetMatrixAsync##suffix, integer)   \
  COPY_VECTOR(cublasSetVector##suffix, integer)        \
  COPY_VECTOR(cublasGetVector##suffix, integer)        \
  COPY_VECTOR(cublasSetVectorAsync##suffix, integer)   \
  COPY_VECTOR(cublasGetVectorAsync##suffix, integer)
COPIES(int, )
COPIES(int64_t, _64)

/* ---- Reductions: a scalar that may be wanted on the host --------------------------------------------------------- */

/* A result on the device is unknown from now on. A result on the host is a read of a value that a kernel made: x's bytes
 * are made unknown and read, so that the read is counted and answered as every such read is. */
static int answer_scalar(void *h, const void *x, void *result, size_t bytes) {
  if (!handle_of(h, MAGIC)) return NOT_INITIALIZED;
  if (!result) return INVALID_VALUE;
  if (is_device_address(result)) {
    forget(result);
    return SUCCESS;
  }
  memset(result, 0, bytes);
  if (!is_device_address(x)) return SUCCESS; /* an empty vector */
  forget(x);
  copy_values(result, x, bytes);
  return SUCCESS;
}

/* The result is argument `at`, counted from the handle as 0; x is argument 2 in all of them. */
#define SCALAR(name, at, bytes)                                                 \
  API int name(WORDS) {                                                         \
    const uintptr_t words[] = WORD_LIST;                                        \
    return answer_scalar((void *)words[0], (void *)words[2], (void *)words[at], bytes); \
  }
/* The Ex forms name the type of the result, a cudaDataType, in the argument after it. */
static size_t item_bytes(int type) {
  switch (type) {
    case 0: case 4: return type == 0 ? 4 : 8;              /* CUDA_R_32F, CUDA_C_32F */
    case 1: case 5: return type == 1 ? 8 : 16;             /* CUDA_R_64F, CUDA_C_64F */
    case 2: case 6: case 14: case 15: return type == 2 || type == 14 ? 2 : 4; /* half, bfloat16 and complex of them */
    default: return 4;
  }
}
#define SCALAR_EX(name, at)                                                     \
  API int name(WORDS) {                                                         \
    const uintptr_t words[] = WORD_LIST;                                        \
    return answer_scalar((void *)words[0], (void *)words[2], (void *)words[at], item_bytes((int)words[at + 1])); \
  }
/* Plane rotations: up to four scalars, each on the host or on the device, made from each other. Without their values
 * there is no answer on the host. */
static int answer_rotation(const char *name, const uintptr_t *words, int count) {
  for (int i = 1; i <= count; i++)
    if (!is_device_address((void *)words[i])) return refuse(name, NOT_SUPPORTED);
  note_library_call(name, words, (size_t)count + 1);
  return SUCCESS;
}
#define ROTATION(name, count)                              \
  API int name(WORDS) {                                    \
    const uintptr_t words[] = WORD_LIST;                   \
    return answer_rotation(#name, words, count);           \
  }

/* ---- The API before version 4: no handle, results returned ------------------------------------------------------- */

API int cublasInit(void) { return num_devices() ? SUCCESS : NOT_INITIALIZED; }
API int cublasShutdown(void) { return SUCCESS; }
API int cublasGetError(void) { return SUCCESS; }
API void cublasXerbla(const char *name, int info) { (void)name, (void)info; }

API int cublasAlloc(int n, int item, void **p) {
  if (n <= 0 || item <= 0 || !p) return INVALID_VALUE;
  *p = allocate(current_device(), (size_t)n * (size_t)item);
  return *p ? SUCCESS : ALLOC_FAILED;
}

API int cublasFree(void *p) {
  if (p) deallocate(p);
  return SUCCESS;
}

/* ---- Matrix products: nothing is done, but the clock is told of them --------------------------------------------- */

enum { REAL_32 = 0, REAL_64 = 1, COMPLEX_32 = 4, COMPLEX_64 = 5, COMPUTE_TF32 = 77, MATH_TF32 = 3 };

struct product {
  int64_t m, n, k, batch;
  int type, result_type, compute_type;
};

static int multiply(void *h, struct product p, const void *alpha, const void *a, const void *b, const void *beta, void *c) {
  struct handle *handle = handle_of(h, MAGIC);
  if (!handle) return NOT_INITIALIZED;
  const uintptr_t words[] = {(uintptr_t)alpha, (uintptr_t)a, (uintptr_t)b, (uintptr_t)beta, (uintptr_t)c};
  forget_words(words, sizeof words / sizeof *words);
  bool is_tf32 = p.type == REAL_32 && (p.compute_type == COMPUTE_TF32 || handle->math_mode == MATH_TF32);
  struct work work = {WORK_PRODUCT, is_tf32 ? TF32 : p.type, NULL, {p.m, p.n, p.k, p.batch, (int64_t)item_bytes(p.result_type)}};
  note_work(stream_of_library());
  log_work(stream_of_library(), &work);
  return SUCCESS;
}

/* With sizes of 32 and of 64 bits. `batched` has its matrices at equal distances, or in lists of addresses. */
#define PRODUCTS(name, suffix, size, type)                                                                                  \
  API int cublas##name##gemm##suffix(void *h, int ta, int tb, size m, size n, size k, const void *alpha, const void *a,     \
                                     size lda, const void *b, size ldb, const void *beta, void *c, size ldc) {              \
    (void)ta, (void)tb, (void)lda, (void)ldb, (void)ldc;                                                                    \
    return multiply(h, (struct product){m, n, k, 1, type, type, 0}, alpha, a, b, beta, c);                                  \
  }
#define BATCHED_PRODUCTS(name, suffix, size, type)                                                                          \
  API int cublas##name##gemmBatched##suffix(void *h, int ta, int tb, size m, size n, size k, const void *alpha,             \
                                            const void *a, size lda, const void *b, size ldb, const void *beta, void *c,    \
                                            size ldc, size batch) {                                                         \
    (void)ta, (void)tb, (void)lda, (void)ldb, (void)ldc;                                                                    \
    return multiply(h, (struct product){m, n, k, batch, type, type, 0}, alpha, a, b, beta, c);                              \
  }                                                                                                                         \
  API int cublas##name##gemmStridedBatched##suffix(void *h, int ta, int tb, size m, size n, size k, const void *alpha,      \
                                                   const void *a, size lda, long long sa, const void *b, size ldb,          \
                                                   long long sb, const void *beta, void *c, size ldc, long long sc,         \
                                                   size batch) {                                                            \
    (void)ta, (void)tb, (void)lda, (void)ldb, (void)ldc, (void)sa, (void)sb, (void)sc;                                      \
    return multiply(h, (struct product){m, n, k, batch, type, type, 0}, alpha, a, b, beta, c);                              \
  }
#define TYPED_PRODUCTS(suffix, size)                                                                                        \
  API int cublasGemmEx##suffix(void *h, int ta, int tb, size m, size n, size k, const void *alpha, const void *a, int at,   \
                               size lda, const void *b, int bt, size ldb, const void *beta, void *c, int ct, size ldc,      \
                               int compute, int algorithm) {                                                                \
    (void)ta, (void)tb, (void)bt, (void)lda, (void)ldb, (void)ldc, (void)algorithm;                                         \
    return multiply(h, (struct product){m, n, k, 1, at, ct, compute}, alpha, a, b, beta, c);                                \
  }                                                                                                                         \
  API int cublasSgemmEx##suffix(void *h, int ta, int tb, size m, size n, size k, const void *alpha, const void *a, int at,  \
                                size lda, const void *b, int bt, size ldb, const void *beta, void *c, int ct, size ldc) {   \
    (void)ta, (void)tb, (void)bt, (void)lda, (void)ldb, (void)ldc;                                                          \
    return multiply(h, (struct product){m, n, k, 1, at, ct, 0}, alpha, a, b, beta, c);                                      \
  }                                                                                                                         \
  API int cublasGemmBatchedEx##suffix(void *h, int ta, int tb, size m, size n, size k, const void *alpha, const void *a,    \
                                      int at, size lda, const void *b, int bt, size ldb, const void *beta, void *c, int ct, \
                                      size ldc, size batch, int compute, int algorithm) {                                   \
    (void)ta, (void)tb, (void)bt, (void)lda, (void)ldb, (void)ldc, (void)algorithm;                                         \
    return multiply(h, (struct product){m, n, k, batch, at, ct, compute}, alpha, a, b, beta, c);                            \
  }                                                                                                                         \
  API int cublasGemmStridedBatchedEx##suffix(void *h, int ta, int tb, size m, size n, size k, const void *alpha,            \
                                             const void *a, int at, size lda, long long sa, const void *b, int bt,          \
                                             size ldb, long long sb, const void *beta, void *c, int ct, size ldc,           \
                                             long long sc, size batch, int compute, int algorithm) {                        \
    (void)ta, (void)tb, (void)bt, (void)lda, (void)ldb, (void)ldc, (void)sa, (void)sb, (void)sc, (void)algorithm;           \
    return multiply(h, (struct product){m, n, k, batch, at, ct, compute}, alpha, a, b, beta, c);                            \
  }
#define BOTH_SIZES(name, type)                   \
  PRODUCTS(name, _v2, int, type)                 \
  PRODUCTS(name, _v2_64, int64_t, type)          \
  BATCHED_PRODUCTS(name, , int, type)            \
  BATCHED_PRODUCTS(name, _64, int64_t, type)
BOTH_SIZES(S, REAL_32)
BOTH_SIZES(D, REAL_64)
BOTH_SIZES(C, COMPLEX_32)
BOTH_SIZES(Z, COMPLEX_64)
TYPED_PRODUCTS(, int)
TYPED_PRODUCTS(_64, int64_t)

/* ---- Several devices --------------------------------------------------------------------------------------------- */

API int cublasXtMaxBoards(int *count) { return ANSWER(count, num_devices(), INVALID_VALUE); }

API int cublasXtGetNumBoards(int num, const int *devices, int *count) {
  (void)devices;
  if (!count || num < 0) return INVALID_VALUE;
  *count = num;
  return SUCCESS;
}

API int cublasGetLoggerCallback(void **callback) { return ANSWER(callback, NULL, INVALID_VALUE); }

#define DO(name) DO_RETURNING(int, name, SUCCESS)
#define DO_VOID(name)                             \
  API void name(WORDS) {                          \
    const uintptr_t words[] = WORD_LIST;          \
    note_library_call(__func__, words, sizeof words / sizeof *words); \
  }
#define REFUSE(name) API int name(void) { return refuse(#name, NOT_SUPPORTED); }
/* The host is told whether the arguments were in order: 0. */
#define INFO(name, at)                                                          \
  API int name(WORDS) {                                                         \
    const uintptr_t words[] = WORD_LIST;                                        \
    note_library_call(__func__, words, sizeof words / sizeof *words); \
    if (words[at] && !is_device_address((void *)words[at])) *(int *)words[at] = 0; \
    return SUCCESS;                                                             \
  }
/* Returns nothing, and would write its answer to the host. */
#define LEAVE(name) API void name(void) { refuse(#name, NOT_SUPPORTED); }
/* Returned by value from numbers on the device. */
#define RETURN(type, name) API type name(void) { refuse(#name, NOT_SUPPORTED); return 0; }
#include "tables/cublas.inc"
