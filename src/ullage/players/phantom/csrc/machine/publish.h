/* Tells others what this process uses of the devices, and keeps order among the processes of a run (publish.c). */
#ifndef ULLAGE_PUBLISH_H
#define ULLAGE_PUBLISH_H

#include <stdbool.h>
#include <stdint.h>

/* The process uses that many bytes of a device; nothing where nobody is to be told. */
void publish_used_bytes(int device, uint64_t bytes);

/* While it is locked, no other process of the run takes memory of a device. The kernel unlocks it where one ends. */
void lock_devices_of_run(bool is_locked);

#endif
