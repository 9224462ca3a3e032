/* cudaGetDeviceProperties: one struct in CUDA 12 (the _v2 name), another in 13 (the plain name). */
#include "cuda.h"

#include <stdio.h>
#include <string.h>

/* Fields both have, in the order of CUDA 13; CUDA 12 has a few ints in between. The macros name them once. */
#define HEAD \
  char name[256]; \
  unsigned char uuid[16]; \
  char luid[8]; \
  unsigned luid_mask; \
  size_t total_bytes, shared_per_block; \
  int registers_per_block, warp_size; \
  size_t pitch; \
  int threads_per_block, block_dim[3], grid_dim[3];
#define SURFACES \
  int texture_2d[2], texture_2d_mipmap[2], texture_2d_linear[3], texture_2d_gather[2], texture_3d[3], \
      texture_3d_alternate[3], texture_cubemap, texture_1d_layered[2], texture_2d_layered[3], \
      texture_cubemap_layered[2], surface_1d, surface_2d[2], surface_3d[3], surface_1d_layered[2], \
      surface_2d_layered[3], surface_cubemap, surface_cubemap_layered[2]; \
  size_t surface_alignment; \
  int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, async_engines, unified_addressing;

struct properties_13 {
  HEAD
  size_t constant_bytes;
  int major, minor;
  size_t texture_alignment, texture_pitch_alignment;
  int multiprocessors, integrated, can_map_host, texture_1d, texture_1d_mipmap;
  SURFACES
  int bus_bits, l2_bytes, persisting_l2_bytes, threads_per_multiprocessor, priorities, global_l1, local_l1;
  size_t shared_per_multiprocessor;
  int registers_per_multiprocessor, managed, multi_gpu_board, multi_gpu_group, host_atomics, pageable,
      concurrent_managed, compute_preemption, host_pointer_for_registered, cooperative_launch;
  size_t shared_per_block_optin;
  int pageable_page_tables, direct_managed, blocks_per_multiprocessor, access_window_bytes;
  size_t reserved_shared_per_block;
  int host_register, sparse_array, host_register_read_only, timeline_semaphore, memory_pools, rdma;
  unsigned rdma_flush;
  int rdma_ordering;
  unsigned pool_handle_types;
  int deferred_array, ipc_event, cluster_launch, unified_functions, numa_config, numa_id, mps, host_numa;
  unsigned gpu_pci_device, gpu_pci_subsystem;
  int host_numa_ipc, reserved[56];
};

struct properties_12 {
  HEAD
  int clock_khz;
  size_t constant_bytes;
  int major, minor;
  size_t texture_alignment, texture_pitch_alignment;
  int overlap, multiprocessors, timeout, integrated, can_map_host, compute_mode, texture_1d, texture_1d_mipmap,
      texture_1d_linear;
  SURFACES
  int memory_clock_khz, bus_bits, l2_bytes, persisting_l2_bytes, threads_per_multiprocessor, priorities, global_l1, local_l1;
  size_t shared_per_multiprocessor;
  int registers_per_multiprocessor, managed, multi_gpu_board, multi_gpu_group, host_atomics, double_ratio, pageable,
      concurrent_managed, compute_preemption, host_pointer_for_registered, cooperative_launch, cooperative_multi;
  size_t shared_per_block_optin;
  int pageable_page_tables, direct_managed, blocks_per_multiprocessor, access_window_bytes;
  size_t reserved_shared_per_block;
  int host_register, sparse_array, host_register_read_only, timeline_semaphore, memory_pools, rdma;
  unsigned rdma_flush;
  int rdma_ordering;
  unsigned pool_handle_types;
  int deferred_array, ipc_event, cluster_launch, unified_functions, reserved2[2], reserved1, reserved[60];
};

/* Sizes as the headers of CUDA 12.4 and 13.2 give them: a wrong one would write over the caller's memory. */
_Static_assert(sizeof(struct properties_13) == 1008, "struct cudaDeviceProp of CUDA 13");
_Static_assert(offsetof(struct properties_13, l2_bytes) == 596, "l2CacheSize of CUDA 13");
_Static_assert(offsetof(struct properties_13, cluster_launch) == 748, "clusterLaunch of CUDA 13");
_Static_assert(sizeof(struct properties_12) == 1032, "struct cudaDeviceProp of CUDA 12");
_Static_assert(offsetof(struct properties_12, l2_bytes) == 616, "l2CacheSize of CUDA 12");
_Static_assert(offsetof(struct properties_12, cluster_launch) == 772, "clusterLaunch of CUDA 12");

#define FILL(p, d, index)                                                                                  \
  do {                                                                                                     \
    memset(p, 0, sizeof *p);                                                                               \
    snprintf(p->name, sizeof p->name, "%s", d->name);                                                      \
    device_uuid(place_of(index), p->uuid);                                                                           \
    p->total_bytes = d->total_bytes;                                                                       \
    p->shared_per_block = 49152;                                                                           \
    p->registers_per_block = p->registers_per_multiprocessor = 65536;                                      \
    p->warp_size = 32;                                                                                     \
    p->pitch = 0x7fffffff;                                                                                 \
    p->threads_per_block = p->block_dim[0] = p->block_dim[1] = 1024;                                       \
    p->block_dim[2] = 64;                                                                                  \
    p->grid_dim[0] = 0x7fffffff;                                                                           \
    p->grid_dim[1] = p->grid_dim[2] = 65535;                                                               \
    p->constant_bytes = 65536;                                                                             \
    p->major = d->major;                                                                                   \
    p->minor = d->minor;                                                                                   \
    p->texture_alignment = p->surface_alignment = 512;                                                     \
    p->texture_pitch_alignment = 32;                                                                       \
    p->multiprocessors = d->multiprocessors;                                                               \
    p->can_map_host = p->concurrent_kernels = p->ecc = p->unified_addressing = 1;                          \
    p->pci_bus = place_of(index) + 1;                                                                      \
    p->async_engines = 3;                                                                                  \
    p->bus_bits = d->bus_bits;                                                                             \
    p->l2_bytes = d->l2_bytes;                                                                             \
    p->threads_per_multiprocessor = d->threads_per_multiprocessor;                                         \
    p->priorities = p->global_l1 = p->local_l1 = p->managed = p->concurrent_managed = 1;                   \
    p->compute_preemption = p->cooperative_launch = p->host_register = p->memory_pools = 1;                \
    p->shared_per_multiprocessor = (size_t)d->shared_bytes_per_multiprocessor;                             \
    p->shared_per_block_optin = (size_t)d->shared_bytes_per_block;                                         \
    p->blocks_per_multiprocessor = d->blocks_per_multiprocessor;                                           \
    p->reserved_shared_per_block = 1024;                                                                   \
    p->pool_handle_types = p->ipc_event = 1;                                                               \
    p->cluster_launch = d->major >= 9;                                                                     \
  } while (0)

API int cudaGetDeviceProperties(struct properties_13 *p, int index) {
  if (index < 0 || index >= num_devices()) return fail(INVALID_DEVICE);
  const struct device *d = device(index);
  FILL(p, d, index);
  p->mps = 0;
  return SUCCESS;
}

API int cudaGetDeviceProperties_v2(struct properties_12 *p, int index) {
  if (index < 0 || index >= num_devices()) return fail(INVALID_DEVICE);
  const struct device *d = device(index);
  FILL(p, d, index);
  p->clock_khz = d->clock_khz;
  p->memory_clock_khz = d->memory_clock_khz;
  return SUCCESS;
}
