/* cuSPARSE: work, and the sizes that it asks for.
 *
 * Work areas: NVIDIA publishes no formula. Ours, one for all, is the bytes of the sparse operand's values; between
 * nothing (many formats need none) and the whole operand, values, rows and columns. The pattern of a sparse product is
 * not computed: its number of nonzeros is that of A times B's mean in a row (each product falls on a place of its own),
 * no more than the result has places; between one nonzero a row and the full matrix.
 */
#include "cusparse.h"
#include "phantom.h"

#include <limits.h>

/* Some calls have more arguments than WORDS holds. */
#define MORE_WORDS WORDS, uintptr_t w16, uintptr_t w17, uintptr_t w18, uintptr_t w19, uintptr_t w20
#define MORE_WORD_LIST {w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15, w16, w17, w18, w19, w20}
enum { NUM_WORDS = 21 };

/* What the last size query of this thread was answered: work areas are handed over without their size. */
static _Thread_local struct scratch last;

/* Values change wherever an argument, or a descriptor among the arguments, points; indices only where a pattern is made. */
static void forget_arguments(const uintptr_t *words, bool makes_pattern) {
  note_library_call("cuSPARSE", words, NUM_WORDS);
  for (int i = 1; i < NUM_WORDS; i++) {
    const struct operand *operand = find_operand((const void *)words[i]);
    if (!operand) continue;
    forget(operand->values);
    if (!makes_pattern) continue;
    forget(operand->offsets);
    forget(operand->indices);
  }
}

static void use_buffer(const void *buffer) {
  if (buffer && last.answered) saw_scratch(LIBRARY_CUSPARSE, buffer, &last);
}

/* A size for `nonzeros` values, each with a row and a column of `index` bytes. */
static size_t size_for(const char *what, int64_t nonzeros, size_t value, size_t index) {
  size_t answered = (size_t)(nonzeros < 0 ? 0 : nonzeros) * value;
  last = (struct scratch){what, 0, answered, answered / value * (value + 2 * index)};
  if (answered) assume_bytes(what, 0, answered, last.high);
  return answered;
}

static int answer_size(size_t *result, const char *what, const void *d) {
  const struct operand *operand = find_operand(d);
  if (!result || !operand) return INVALID_VALUE;
  *result = size_for(what, operand->nonzeros * operand->batch_count, value_bytes(operand), index_bytes(operand));
  return SUCCESS;
}

/* The typed API: the size is an int in some calls, a size_t in others. */
static int answer_typed(void *result, bool is_wide, const char *what, int64_t nonzeros, size_t item) {
  size_t bytes = size_for(what, nonzeros, item, sizeof(int));
  if (!result || (!is_wide && bytes > INT_MAX)) return INVALID_VALUE;
  if (is_wide) *(size_t *)result = bytes;
  else *(int *)result = (int)bytes;
  return SUCCESS;
}

/* Numbers in the macros are places among the arguments, the handle at 0. */
#define SIZE(name, what, operand, result)                                                                    \
  API int name(MORE_WORDS) {                                                                                 \
    const uintptr_t words[] = MORE_WORD_LIST;                                                                \
    return answer_size((size_t *)words[result], "cuSPARSE " what " workspace", (const void *)words[operand]); \
  }
#define TYPED_SIZE(name, what, nonzeros, item, result, is_wide)                                              \
  API int name(MORE_WORDS) {                                                                                 \
    const uintptr_t words[] = MORE_WORD_LIST;                                                                \
    return answer_typed((void *)words[result], is_wide, "cuSPARSE " what " workspace", (int)words[nonzeros], item); \
  }
/* Square blocks. */
#define BLOCK_SIZE(name, what, blocks, side, item, result)                                                   \
  API int name(MORE_WORDS) {                                                                                 \
    const uintptr_t words[] = MORE_WORD_LIST;                                                                \
    int64_t nonzeros = (int64_t)(int)words[blocks] * (int)words[side] * (int)words[side];                    \
    return answer_typed((void *)words[result], false, "cuSPARSE " what " workspace", nonzeros, item);        \
  }
#define SUM_SIZE(name, what, nonzeros_a, nonzeros_b, item, result)                                           \
  API int name(MORE_WORDS) {                                                                                 \
    const uintptr_t words[] = MORE_WORD_LIST;                                                                \
    int64_t nonzeros = (int64_t)(int)words[nonzeros_a] + (int)words[nonzeros_b];                             \
    return answer_typed((void *)words[result], true, "cuSPARSE " what " workspace", nonzeros, item);         \
  }
#define CALL(name, makes_pattern, then)          \
  API int name(MORE_WORDS) {                     \
    const uintptr_t words[] = MORE_WORD_LIST;    \
    forget_arguments(words, makes_pattern);      \
    then;                                        \
    return SUCCESS;                              \
  }
#define DO(name) CALL(name, false, (void)0)
#define DO_PATTERN(name) CALL(name, true, (void)0)
#define USE(name, buffer) CALL(name, false, use_buffer((void *)words[buffer]))
#define USE_PATTERN(name, buffer) CALL(name, true, use_buffer((void *)words[buffer]))
#define REFUSE(name) API int name(void) { return refuse(#name, NOT_SUPPORTED); }
#define CREATE(name)                   \
  API int name(void **result) {        \
    if (!result) return INVALID_VALUE; \
    *result = new_handle();            \
    return SUCCESS;                    \
  }
/* A zero pivot is a value that a kernel finds: none, on the host; unknown, on the device. */
#define ZERO_PIVOT(name)                                                  \
  API int name(void *handle, void *info, int *position) {                 \
    (void)handle, (void)info;                                             \
    if (!position) return INVALID_VALUE;                                  \
    if (is_device_address(position)) forget(position);                    \
    else *position = -1;                                                  \
    return SUCCESS;                                                       \
  }

/* ---- Sparse times sparse ----------------------------------------------------------------------------------------- */

/* The number of products of nonzeros that A x B makes. */
static int64_t num_products(const struct operand *a, const struct operand *b) {
  double products = b->rows ? (double)a->nonzeros * (double)b->nonzeros / (double)b->rows : 0;
  return products < (double)INT64_MAX / 64 ? (int64_t)(products + 0.5) : INT64_MAX / 64;
}

static size_t product_bytes(const struct operand *c, int64_t count) {
  return (size_t)count * (value_bytes(c) + index_bytes(c));
}

/* Asked without a buffer, both steps say how large it must be; with one they work. */
static int size_product(const char *what, const uintptr_t *words) {
  const struct operand *a = find_operand((void *)words[4]), *b = find_operand((void *)words[5]);
  const struct operand *c = find_operand((void *)words[7]);
  size_t *result = (size_t *)words[11];
  void *buffer = (void *)words[12];
  if (!a || !b || !c || !result) return INVALID_VALUE;
  size_t answered = product_bytes(c, num_products(a, b));
  size_t row_counts = (size_t)c->rows * sizeof(int);
  if (!buffer) assume_bytes(what, row_counts < answered ? row_counts : answered, answered, 4 * answered);
  else if (*result) saw_workspace(LIBRARY_CUSPARSE, buffer, *result);
  *result = answered;
  return SUCCESS;
}

API int cusparseSpGEMM_workEstimation(MORE_WORDS) {
  const uintptr_t words[] = MORE_WORD_LIST;
  return size_product("cuSPARSE SpGEMM estimation workspace", words);
}

API int cusparseSpGEMM_compute(MORE_WORDS) {
  const uintptr_t words[] = MORE_WORD_LIST;
  int status = size_product("cuSPARSE SpGEMM workspace", words);
  if (status || !words[12]) return status;
  const struct operand *a = find_operand((void *)words[4]), *b = find_operand((void *)words[5]);
  struct operand *c = find_operand((void *)words[7]);
  int64_t nonzeros = num_products(a, b);
  if (c->cols && nonzeros / c->cols >= c->rows) nonzeros = c->rows * c->cols;
  c->nonzeros = nonzeros;
  int64_t fewest = nonzeros < c->rows ? nonzeros : c->rows;
  assume_bytes("cuSPARSE SpGEMM result", product_bytes(c, fewest), product_bytes(c, nonzeros),
               product_bytes(c, c->rows * c->cols));
  return SUCCESS;
}

API int cusparseSpGEMM_getNumProducts(void *descriptor, int64_t *count) {
  (void)descriptor, (void)count;
  return refuse("cusparseSpGEMM_getNumProducts", NOT_SUPPORTED);
}

/* C = A + B of the typed API: as many nonzeros as both have, where no two share a place. */
API int cusparseXcsrgeam2Nnz(void *handle, int rows, int cols, void *a, int num_a, const int *a_rows, const int *a_cols, void *b,
                             int num_b, const int *b_rows, const int *b_cols, void *c, int *c_rows, int *total, void *workspace) {
  (void)handle, (void)a, (void)a_rows, (void)a_cols, (void)b, (void)b_rows, (void)b_cols, (void)c;
  if (!total || rows < 0 || cols < 0 || num_a < 0 || num_b < 0) return INVALID_VALUE;
  forget(c_rows);
  use_buffer(workspace);
  if (is_device_address(total)) {
    forget(total);
    return SUCCESS;
  }
  int64_t sum = (int64_t)num_a + num_b, places = (int64_t)rows * cols, fewest = num_a > num_b ? num_a : num_b;
  *total = (int)(sum < places ? sum : places);
  if (fewest > *total) fewest = *total;
  size_t item = sizeof(float) + sizeof(int);
  assume_bytes("cuSPARSE csrgeam2 result", (size_t)fewest * item, (size_t)*total * item, (size_t)*total * item);
  return SUCCESS;
}

#include "tables/cusparse.inc"
