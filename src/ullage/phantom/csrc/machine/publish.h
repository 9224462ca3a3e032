/* Tells NVML programs outside what this process uses of the devices (publish.c). */
#ifndef ULLAGE_PUBLISH_H
#define ULLAGE_PUBLISH_H

#include <stdint.h>

/* The process uses that many bytes of a device; nothing where nobody is to be told. */
void publish_used_bytes(int device, uint64_t bytes);

#endif
