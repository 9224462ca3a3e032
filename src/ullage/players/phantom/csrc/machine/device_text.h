/* What a device is, from the text in which it is told (device_text.c). */
#ifndef ULLAGE_DEVICE_TEXT_H
#define ULLAGE_DEVICE_TEXT_H

#include "phantom.h"

void read_device_text(const char *text, struct device *to); /* an H100 SXM5, where a figure is not told */
long long read_number(const char *text, const char *key, long long fallback);

#endif
