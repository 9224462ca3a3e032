/* Fat binaries: device code for several architectures, each image a cubin or PTX, and mostly packed.
 *
 * A GPU that the program holds no code for is refused as the real driver does (no kernel image): the architectures are
 * read from the images' headers. What parameters kernels have is read from an image of any architecture, since they are
 * the same in each; the smallest is unpacked first, and when the first kernel of the module is launched.
 *
 * Images that LZ4 packed, as nvcc did before CUDA 12.8, are not read, and neither is PTX.
 */
#define _GNU_SOURCE
#include "fat_binary.h"

#include "zstd.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_IMAGES = 64, PTX = 1, CUBIN = 2, PACKED_LZ4 = 0x2000, PACKED_ZSTD = 0x8000 };
static const uint32_t WRAPPER = 0x466243b1u, FAT_BINARY = 0xba55ed50u;
static const size_t MOST_BYTES = (size_t)1 << 30; /* of an image: more is damaged */

struct image {
  int kind, arch;
  const unsigned char *data;
  size_t bytes, unpacked_bytes; /* unpacked_bytes: 0: not packed */
  bool is_read;
};

struct module {
  const unsigned char *fat_binary;
  int num_images; /* -1: not read yet; 0: format unknown, taken to run anywhere */
  struct image images[MAX_IMAGES];
  struct kernels kernels; /* of the images that are read */
};

struct wrapper { /* what __cudaRegisterFatBinary is handed */
  uint32_t magic, version;
  const unsigned char *data;
  void *unused;
};

struct fat_binary_header {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};

struct image_header {
  uint16_t kind, attribute;
  uint32_t header_bytes;
  uint64_t bytes;
  uint32_t packed_bytes, options;
  uint16_t minor, major;
  uint32_t arch; /* 90 for sm_90 */
  uint32_t name, name_bytes;
  uint64_t flags, unused, unpacked_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct module *open_module(const void *wrapper) {
  struct module *module = calloc(1, sizeof *module);
  if (!module) abort();
  module->fat_binary = wrapper ? ((const struct wrapper *)wrapper)->data : NULL;
  module->num_images = -1;
  return module;
}

/* ---- Images ------------------------------------------------------------------------------------------------------- */

static struct image image_at(const struct image_header *header) {
  bool is_packed = header->flags & (PACKED_LZ4 | PACKED_ZSTD);
  bool is_short = header->packed_bytes && header->packed_bytes < header->bytes; /* the rest fills the last word */
  return (struct image){header->kind, (int)header->arch, (const unsigned char *)header + header->header_bytes,
                        is_short ? header->packed_bytes : header->bytes, is_packed ? header->unpacked_bytes : 0,
                        header->kind != CUBIN || header->flags & PACKED_LZ4};
}

/* Several threads may launch the first kernels of a module at once (autograd has one for each device): the images are
 * counted last. */
static void read_images(struct module *module) {
  int count = 0;
  const struct fat_binary_header *header = (const void *)module->fat_binary;
  if (header && header->magic == FAT_BINARY) {
    const unsigned char *at = module->fat_binary + header->header_bytes, *end = at + header->bytes;
    while (at + sizeof(struct image_header) <= end && count < MAX_IMAGES) {
      const struct image_header *image = (const void *)at;
      if (image->kind != PTX && image->kind != CUBIN) break;
      module->images[count++] = image_at(image);
      at += image->header_bytes + image->bytes;
    }
  }
  __atomic_store_n(&module->num_images, count, __ATOMIC_RELEASE);
}

static int num_images(struct module *module) {
  if (__atomic_load_n(&module->num_images, __ATOMIC_ACQUIRE) < 0) read_images(module);
  return module->num_images;
}

int best_image(struct module *module, int capability, bool *is_ptx) {
  if (!num_images(module)) return capability;
  int best = 0, best_ptx = 0;
  for (int i = 0; i < module->num_images; i++) {
    int arch = module->images[i].arch;
    if (arch > capability) continue;
    if (module->images[i].kind == CUBIN && arch / 10 == capability / 10 && arch > best) best = arch;
    if (module->images[i].kind == PTX && arch > best_ptx) best_ptx = arch;
  }
  *is_ptx = !best;
  return best ? best : best_ptx;
}

/* ---- Kernels ------------------------------------------------------------------------------------------------------ */

static void read_kernels(struct kernels *kernels, struct image *image) {
  image->is_read = true;
  if (!image->unpacked_bytes) {
    add_cubin(kernels, image->data, image->bytes);
    return;
  }
  unsigned char *code = image->unpacked_bytes <= MOST_BYTES ? malloc(image->unpacked_bytes) : NULL;
  if (code && unpack_zstd(image->data, image->bytes, code, image->unpacked_bytes))
    add_cubin(kernels, code, image->unpacked_bytes);
  free(code);
}

static size_t code_bytes(const struct image *image) { return image->unpacked_bytes ? image->unpacked_bytes : image->bytes; }

static struct image *smallest_unread(struct module *module) {
  struct image *smallest = NULL;
  for (struct image *image = module->images; image < module->images + num_images(module); image++)
    if (!image->is_read && (!smallest || code_bytes(image) < code_bytes(smallest))) smallest = image;
  return smallest;
}

const struct parameters *parameters_in(struct module *module, const char *name) {
  pthread_mutex_lock(&lock);
  const struct parameters *parameters = find_kernel(&module->kernels, name);
  for (struct image *image; !parameters && (image = smallest_unread(module));) {
    read_kernels(&module->kernels, image);
    parameters = find_kernel(&module->kernels, name);
  }
  pthread_mutex_unlock(&lock);
  return parameters;
}

struct kernels *kernels_of_image(const void *image) {
  uint32_t magic;
  struct kernels *kernels = image ? calloc(1, sizeof *kernels) : NULL;
  if (!kernels) return NULL;
  memcpy(&magic, image, sizeof magic);
  if (magic == WRAPPER) {
    image = ((const struct wrapper *)image)->data;
    memcpy(&magic, image, sizeof magic);
  }
  if (magic != FAT_BINARY) {
    size_t bytes = cubin_bytes(image);
    if (bytes) add_cubin(kernels, image, bytes);
    return kernels;
  }
  struct module module = {.fat_binary = image, .num_images = -1};
  for (struct image *each; (each = smallest_unread(&module));) read_kernels(kernels, each);
  return kernels;
}

struct kernels *kernels_of_file(const char *file) {
  FILE *stream = file ? fopen(file, "rbe") : NULL;
  if (!stream) return NULL;
  struct kernels *kernels = NULL;
  unsigned char *image = NULL;
  long bytes = fseek(stream, 0, SEEK_END) ? 0 : ftell(stream);
  /* The cubin's own length is held against that of the file. */
  if (bytes > (long)sizeof(struct fat_binary_header) && !fseek(stream, 0, SEEK_SET)) image = calloc(1, (size_t)bytes + 64);
  if (image && fread(image, 1, (size_t)bytes, stream) == (size_t)bytes && cubin_bytes(image) <= (size_t)bytes)
    kernels = kernels_of_image(image);
  free(image);
  fclose(stream);
  return kernels;
}
