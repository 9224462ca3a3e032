/* NVML for the program that runs on the phantom: nobody knows its load, temperature, power and clocks, so they are refused, as
 * NVML outside refuses them (phantom/nvml/load.c).
 */
#include "nvml.h"

#define REFUSE(name) API int name(void *handle) { return refuse_card(#name, handle); }
REFUSE(nvmlDeviceGetApplicationsClock)
REFUSE(nvmlDeviceGetClock)
REFUSE(nvmlDeviceGetClockInfo)
REFUSE(nvmlDeviceGetCurrentClocksEventReasons)
REFUSE(nvmlDeviceGetCurrentClocksThrottleReasons)
REFUSE(nvmlDeviceGetDecoderUtilization)
REFUSE(nvmlDeviceGetEccMode)
REFUSE(nvmlDeviceGetEncoderUtilization)
REFUSE(nvmlDeviceGetEnforcedPowerLimit)
REFUSE(nvmlDeviceGetFanSpeed)
REFUSE(nvmlDeviceGetJpgUtilization)
REFUSE(nvmlDeviceGetMemoryErrorCounter)
REFUSE(nvmlDeviceGetOfaUtilization)
REFUSE(nvmlDeviceGetPcieThroughput)
REFUSE(nvmlDeviceGetPerformanceState)
REFUSE(nvmlDeviceGetPowerManagementLimit)
REFUSE(nvmlDeviceGetPowerState)
REFUSE(nvmlDeviceGetPowerUsage)
REFUSE(nvmlDeviceGetTemperature)
REFUSE(nvmlDeviceGetTemperatureThreshold)
REFUSE(nvmlDeviceGetTemperatureV)
REFUSE(nvmlDeviceGetTotalEccErrors)
REFUSE(nvmlDeviceGetUtilizationRates)
REFUSE(nvmlGpmMetricsGet)
REFUSE(nvmlGpmQueryDeviceSupport)
REFUSE(nvmlGpmSampleAlloc)
REFUSE(nvmlGpmSampleFree)
REFUSE(nvmlGpmSampleGet)
