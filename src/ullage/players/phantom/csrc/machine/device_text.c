/* What a device is, from the text "key=value;key=value" in which it is told. */
#include "device_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The value of key in "key=value;key=value", or NULL; end is set to one past its last character. */
static const char *find_value(const char *text, const char *key, const char **end) {
  size_t length = strlen(key);
  while (text && *text) {
    const char *stop = strchr(text, ';');
    if (!stop) stop = text + strlen(text);
    if (!strncmp(text, key, length) && text[length] == '=') {
      *end = stop;
      return text + length + 1;
    }
    text = *stop ? stop + 1 : stop;
  }
  return NULL;
}

long long read_number(const char *text, const char *key, long long fallback) {
  const char *end, *value = find_value(text, key, &end);
  return value ? strtoll(value, NULL, 10) : fallback;
}

/* An H100 SXM5, where a figure was not told. */
void read_device_text(const char *text, struct device *to) {
  const char *end, *name = find_value(text, "name", &end);
  if (name) snprintf(to->name, sizeof to->name, "%.*s", (int)(end - name), name);
  else snprintf(to->name, sizeof to->name, "NVIDIA H100 80GB HBM3");
  const char *capability = find_value(text, "capability", &end);
  if (!capability || sscanf(capability, "%d.%d", &to->major, &to->minor) != 2) {
    to->major = 9;
    to->minor = 0;
  }
  to->total_bytes = (uint64_t)read_number(text, "total_bytes", 85028896768);
  to->usable_bytes = (uint64_t)read_number(text, "budget_bytes", (long long)to->total_bytes);
  to->context_bytes = (uint64_t)read_number(text, "context_bytes", 0);
  to->unlimited = read_number(text, "unlimited", 0) != 0;
  to->peer_access = read_number(text, "peer_access", 1) != 0;
  to->multicast = read_number(text, "multicast", 0) != 0;
  to->nccl_low_bytes = (uint64_t)read_number(text, "nccl_low_bytes", 0);
  to->nccl_high_bytes = (uint64_t)read_number(text, "nccl_high_bytes", 0);
  to->multiprocessors = (int)read_number(text, "multiprocessors", 132);
  to->shared_bytes_per_block = (int)read_number(text, "shared_bytes_per_block", 232448);
  to->shared_bytes_per_multiprocessor = (int)read_number(text, "shared_bytes_per_multiprocessor", 233472);
  to->threads_per_multiprocessor = (int)read_number(text, "threads_per_multiprocessor", 2048);
  to->blocks_per_multiprocessor = (int)read_number(text, "blocks_per_multiprocessor", 32);
  to->l2_bytes = (int)read_number(text, "l2_bytes", 50 << 20);
  to->bus_bits = (int)read_number(text, "bus_bits", 5120);
  to->clock_khz = (int)read_number(text, "clock_khz", 1980000);
  to->memory_clock_khz = (int)read_number(text, "memory_clock_khz", 2619000);
}

void device_uuid(int place, unsigned char uuid[16]) {
  /* "ullage phantom" and the place: the mark by which a program can tell that no GPU is there. */
  memcpy(uuid, "ullage phantom", 14);
  uuid[14] = 0;
  uuid[15] = (unsigned char)place;
}
