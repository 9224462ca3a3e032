/* The names of linear algebra are a product of types and operations: S and D are real, C and Z complex numbers. */
#ifndef ULLAGE_TYPES_H
#define ULLAGE_TYPES_H

#define REAL(row, at, op) row(at##S##op) row(at##D##op)
#define COMPLEX(row, at, op) row(at##C##op) row(at##Z##op)
#define NUMBER(row, at, op) REAL(row, at, op) COMPLEX(row, at, op)
/* and the same with sizes of 64 bits */
#define REAL_64(row, at, op) REAL(row, at, op) REAL(row, at, op##_64)
#define COMPLEX_64(row, at, op) COMPLEX(row, at, op) COMPLEX(row, at, op##_64)
#define NUMBER_64(row, at, op) NUMBER(row, at, op) NUMBER(row, at, op##_64)

#endif
