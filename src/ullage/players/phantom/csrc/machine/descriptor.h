/* Descriptors that are bags of attributes, as cuBLASLt and cuSPARSELt have them.
 *
 * Both libraries let the caller provide the memory of a descriptor, and never tell when it goes away. So everything that
 * was set is kept inside that memory: a header, then the attributes one after another.
 */
#ifndef ULLAGE_DESCRIPTOR_H
#define ULLAGE_DESCRIPTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct attributes {
  uint32_t magic; /* what the descriptor is; 0 after its end */
  uint16_t capacity, used;
  unsigned char entries[];
};

/* Makes `bytes` bytes at memory an empty descriptor of that kind; false: too small. */
bool begin_attributes(void *memory, size_t bytes, uint32_t magic);
struct attributes *new_attributes(uint32_t magic); /* on the heap; end with free_attributes */
bool free_attributes(void *descriptor, uint32_t magic);
bool is_attributes(const void *descriptor, uint32_t magic);

/* Attributes are 0..63. false: no room, or not `bytes` long where a length was set before. */
bool set_attribute(void *descriptor, int attribute, const void *value, size_t bytes);
size_t get_attribute(const void *descriptor, int attribute, void *value, size_t bytes); /* its length; 0: never set */
uint64_t attribute_number(const void *descriptor, int attribute, uint64_t fallback);
void set_number(void *descriptor, int attribute, uint64_t value, size_t bytes); /* 4 or 8 bytes */

#endif
