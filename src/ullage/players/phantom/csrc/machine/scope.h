/* The module in which a thread is (scope.c). */
#ifndef ULLAGE_SCOPE_H
#define ULLAGE_SCOPE_H

#include <stdint.h>

enum { NO_SCOPE = -1 };

int32_t current_scope(void);

#endif
