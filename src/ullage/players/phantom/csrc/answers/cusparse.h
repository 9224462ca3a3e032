/* cuSPARSE: the descriptors, which cusparse.c makes and cusparse_work.c reads. */
#ifndef ULLAGE_CUSPARSE_H
#define ULLAGE_CUSPARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 2, INVALID_VALUE = 3, NOT_SUPPORTED = 10 };

/* A matrix or vector, sparse or dense. */
struct operand {
  int64_t rows, cols, nonzeros, leading; /* a dense one has rows * cols nonzeros */
  void *offsets, *indices, *values;      /* of a COO matrix: row indices are the offsets */
  int format, index_base, value_type, order;
  int offset_type, index_type;           /* cusparseIndexType_t: 2 is 32 bits, 3 is 64 */
  int batch_count;
  int64_t batch_stride;
  int attributes[2];                     /* fill mode, diagonal type */
};

/* The operand that d stands for, or NULL. */
struct operand *find_operand(const void *d);
size_t value_bytes(const struct operand *operand);
size_t index_bytes(const struct operand *operand);

#endif
