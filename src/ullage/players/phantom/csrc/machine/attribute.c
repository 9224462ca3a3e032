/* Device attributes: the same numbers ask the same question of the runtime and of the driver. */
#include "cuda.h"

/* Attributes with one answer on every GPU since Pascal that PyTorch supports (CUDA driver API, CUdevice_attribute). */
static const struct {
  int attribute, value;
} FIXED[] = {
    {1, 1024},          /* max threads per block */
    {2, 1024},          /* max block dim x */
    {3, 1024},          /* y */
    {4, 64},            /* z */
    {5, 0x7fffffff},    /* max grid dim x */
    {6, 65535},         /* y */
    {7, 65535},         /* z */
    {8, 49152},         /* shared memory per block without opt-in */
    {9, 65536},         /* constant memory */
    {10, 32},           /* warp size */
    {11, 0x7fffffff},   /* max pitch */
    {12, 65536},        /* registers per block */
    {14, 512},          /* texture alignment */
    {15, 1},            /* overlap of copies and kernels */
    {17, 0},            /* kernel execution timeout */
    {18, 0},            /* integrated */
    {19, 1},            /* can map host memory */
    {20, 0},            /* compute mode: default */
    {30, 512},          /* surface alignment */
    {31, 1},            /* concurrent kernels */
    {32, 1},            /* ECC */
    {34, 0},            /* PCI device id */
    {35, 0},            /* TCC driver */
    {40, 3},            /* async engines */
    {41, 1},            /* unified addressing */
    {50, 0},            /* PCI domain id */
    {51, 32},           /* texture pitch alignment */
    {78, 1},            /* stream priorities */
    {79, 1},            /* L1 caches globals */
    {80, 1},            /* L1 caches locals */
    {82, 65536},        /* registers per multiprocessor */
    {83, 1},            /* managed memory */
    {84, 0},            /* multi-GPU board */
    {85, 0},            /* its group */
    {86, 0},            /* native atomics to the host */
    {87, 2},            /* single to double performance */
    {88, 0},            /* pageable memory access */
    {89, 1},            /* concurrent managed access */
    {90, 1},            /* compute preemption */
    {91, 1},            /* host pointer for registered memory */
    {95, 1},            /* cooperative launch */
    {98, 0},            /* flush of remote writes */
    {99, 1},            /* host register */
    {100, 0},           /* pageable access uses host page tables */
    {101, 0},           /* direct managed access from the host */
    {102, 1},           /* virtual memory management */
    {103, 1},           /* handles as file descriptors */
    {111, 1024},        /* shared memory reserved per block */
    {115, 1},           /* memory pools */
    {116, 0},           /* GPUDirect RDMA */
    {119, 1},           /* memory pool handle types: file descriptor */
    {124, 0},           /* unified function pointers */
    {128, 0},           /* fabric handles */
    {130, 0},           /* NUMA configuration */
    {131, -1},          /* NUMA node */
    {132, 0},           /* multicast */
};

static int changing_attribute(const struct device *d, int attribute, int index, int *value) {
  switch (attribute) {
    case 13: *value = d->clock_khz; return SUCCESS;
    case 16: *value = d->multiprocessors; return SUCCESS;
    case 33: *value = place_of(index) + 1; return SUCCESS; /* PCI bus id */
    case 36: *value = d->memory_clock_khz; return SUCCESS;
    case 37: *value = d->bus_bits; return SUCCESS;
    case 38: *value = d->l2_bytes; return SUCCESS;
    case 39: *value = d->threads_per_multiprocessor; return SUCCESS;
    case 75: *value = d->major; return SUCCESS;
    case 76: *value = d->minor; return SUCCESS;
    case 81: *value = d->shared_bytes_per_multiprocessor; return SUCCESS;
    case 97: *value = d->shared_bytes_per_block; return SUCCESS;
    case 106: *value = d->blocks_per_multiprocessor; return SUCCESS;
    case 120: *value = d->major >= 9; return SUCCESS; /* cluster launch */
    case 127: *value = d->major >= 9; return SUCCESS; /* tensor map access */
  }
  /* Sizes of textures and surfaces, and features that no program here depends on: not there. */
  *value = 0;
  return SUCCESS;
}

int device_attribute(int *value, int attribute, int index) {
  if (!value) return INVALID_VALUE;
  if (index < 0 || index >= num_devices()) return INVALID_DEVICE;
  for (size_t i = 0; i < sizeof FIXED / sizeof *FIXED; i++)
    if (FIXED[i].attribute == attribute) {
      *value = FIXED[i].value;
      return SUCCESS;
    }
  return changing_attribute(device(index), attribute, index, value);
}
