/* cuSOLVER: handles, and the sizes of work areas.
 *
 * NVIDIA publishes no formula for its work areas. Ours, one for all: the size of the matrix that is factored (its copy,
 * or blocks of columns of it); twice that and six rows for eigenvalues and singular values, as in LAPACK's divide and
 * conquer (xSYEVD: 2 n^2 + 6 n + 1). Low end: 32 columns, the smallest panel in use. High end: four times the answer.
 * Work areas on the host are answered as 0 bytes: nothing is computed there.
 */
#include "handle.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 2, INVALID_VALUE = 3, NOT_SUPPORTED = 9 };
enum { MAGIC = 0x63736c76, PANEL_COLUMNS = 32, HIGH_FACTOR = 4 };

HANDLE(cusolverDnCreate, cusolverDnDestroy, .deterministic_mode = 1) /* CUSOLVER_DETERMINISTIC_RESULTS */
FIELD(cusolverDnSetMathMode, cusolverDnGetMathMode, int, math_mode)
FIELD(cusolverDnSetDeterministicMode, cusolverDnGetDeterministicMode, int, deterministic_mode)
STREAM(cusolverDnSetStream, cusolverDnGetStream)

/* cuSOLVER 12.4.1 came with CUDA 13; 11.x with CUDA 12. */
static int version(void) { return library_version("cusolver", 12401); }
API int cusolverGetProperty(int type, int *value) { return version_part(version(), 1000, type, value) ? SUCCESS : INVALID_VALUE; }
API int cusolverGetVersion(int *value) { return ANSWER(value, version(), INVALID_VALUE); }

/* ---- Work areas -------------------------------------------------------------------------------------------------- */

/* Some calls have more arguments than WORDS holds. */
#define MORE_WORDS                                                                                              \
  WORDS, uintptr_t w16, uintptr_t w17, uintptr_t w18, uintptr_t w19, uintptr_t w20, uintptr_t w21, uintptr_t w22, \
      uintptr_t w23
#define MORE_WORD_LIST \
  {w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15, w16, w17, w18, w19, w20, w21, w22, w23}

/* What the last size query of this thread was answered: the size of a work area that is handed over without one. */
static _Thread_local struct scratch last;

static size_t item_bytes(int type) { return type == 0 ? 4 : type == 1 || type == 4 ? 8 : 16; } /* cudaDataType: S, D or C, Z */

/* Bytes for matrices of rows x cols; SIZE_MAX: negative. Spectral: eigenvalues, singular values. */
static size_t work_bytes(const char *what, int64_t rows, int64_t cols, int64_t batch, size_t item, bool is_spectral) {
  if (rows < 0 || cols < 0 || batch < 0) return SIZE_MAX;
  int64_t longer = rows > cols ? rows : cols, matrix = rows * cols;
  int64_t elements = is_spectral ? 2 * matrix + 6 * longer + 1 : matrix;
  int64_t panel = longer * (cols < PANEL_COLUMNS ? cols : PANEL_COLUMNS);
  size_t answered = (size_t)(elements * batch) * item, low = (size_t)(panel * batch) * item;
  last = (struct scratch){what, low < answered ? low : answered, answered, HIGH_FACTOR * answered};
  if (answered) assume_bytes(what, last.low, answered, last.high);
  return answered;
}

/* The typed API counts elements in an int. */
static int answer_elements(int *result, const char *what, int rows, int cols, int batch, size_t item, bool is_spectral) {
  size_t bytes = work_bytes(what, rows, cols, batch, item, is_spectral);
  if (!result || bytes == SIZE_MAX || bytes / item > INT_MAX) return INVALID_VALUE;
  *result = (int)(bytes / item);
  return SUCCESS;
}

/* The generic API counts bytes, on the device and on the host. */
static int answer_bytes(const uintptr_t *result, const char *what, int64_t rows, int64_t cols, int64_t batch, int type,
                        bool is_spectral) {
  size_t bytes = work_bytes(what, rows, cols, batch, item_bytes(type), is_spectral);
  if (!result[0] || !result[1] || bytes == SIZE_MAX) return INVALID_VALUE;
  *(size_t *)result[0] = bytes;
  *(size_t *)result[1] = 0;
  return SUCCESS;
}

static void take_work_area(const uintptr_t *words, size_t count, int at, size_t bytes) {
  note_library_call("cuSOLVER", words, count);
  if (!words[at] || !bytes) return;
  if (bytes == last.answered) saw_scratch(LIBRARY_CUSOLVER, (void *)words[at], &last);
  else saw_workspace(LIBRARY_CUSOLVER, (void *)words[at], bytes);
}

static void answer_norms(double *norms, const void *a, int batch) {
  if (!norms || batch < 1) return;
  memset(norms, 0, (size_t)batch * sizeof *norms);
  if (is_device_address(a)) copy_values(norms, a, sizeof *norms);
}

/* Numbers in the macros are places among the arguments, the handle at 0; batch -1: a single matrix. */
#define ELEMENTS(name, what, item, rows, cols, batch, result, spectral)                                             \
  API int name(MORE_WORDS) {                                                                                        \
    const uintptr_t words[] = MORE_WORD_LIST;                                                                       \
    if (!handle_of((void *)words[0], MAGIC)) return NOT_INITIALIZED;                                                \
    return answer_elements((int *)words[result], "cuSOLVER " what " workspace", (int)words[rows], (int)words[cols], \
                           batch < 0 ? 1 : (int)words[batch < 0 ? 0 : batch], item, spectral);                      \
  }
#define BYTES(name, what, rows, cols, batch, type, result, spectral)                                                \
  API int name(MORE_WORDS) {                                                                                        \
    const uintptr_t words[] = MORE_WORD_LIST;                                                                       \
    if (!handle_of((void *)words[0], MAGIC)) return NOT_INITIALIZED;                                                \
    return answer_bytes(words + result, "cuSOLVER " what " workspace", (int64_t)words[rows], (int64_t)words[cols],  \
                        batch < 0 ? 1 : (int64_t)words[batch < 0 ? 0 : batch], (int)words[type], spectral);         \
  }
/* Calls with a work area: its place; then its size in elements, in bytes, or not said. */
#define WORK(name, at, bytes)                                                \
  API int name(MORE_WORDS) {                                                 \
    const uintptr_t words[] = MORE_WORD_LIST;                                \
    take_work_area(words, sizeof words / sizeof *words, at, bytes);          \
    return SUCCESS;                                                          \
  }
#define WORK_ELEMENTS(name, at, item) WORK(name, at, (size_t)(uint32_t)words[at + 1] * item)
#define WORK_BYTES(name, at) WORK(name, at, words[at + 1])
#define WORK_UNSAID(name, at) WORK(name, at, last.answered)
/* Approximate SVD of a batch (A is argument 5): the residual norms, doubles, go to the host where they are wanted. They are
 * values that a kernel made, so they read as zeros and the read is counted. */
#define RESIDUALS(name, at, item, residuals)                                                              \
  API int name(MORE_WORDS) {                                                                              \
    const uintptr_t words[] = MORE_WORD_LIST;                                                             \
    take_work_area(words, sizeof words / sizeof *words, at, (size_t)(uint32_t)words[at + 1] * item);      \
    answer_norms((double *)words[residuals], (const void *)words[5], (int)words[residuals + 1]);          \
    return SUCCESS;                                                                                       \
  }

#define CREATE(name)                   \
  API int name(void **result) {        \
    if (!result) return INVALID_VALUE; \
    *result = new_handle();            \
    return SUCCESS;                    \
  }
API int cusolverSpSetStream(void *handle, void *stream) { return (void)handle, follow_stream(stream), SUCCESS; }

#define DO(name) DO_RETURNING(int, name, SUCCESS)
#define REFUSE(name) API int name(void) { return refuse(#name, NOT_SUPPORTED); }
#include "tables/cusolver.inc"
