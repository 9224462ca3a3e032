/* PyTorch's random generator on the CPU, moved on without drawing.
 *
 * A fill that is put off must leave the generator as if it had been done: what the program draws afterwards (an order of
 * samples, the length of a sequence) is then what it would be on a real machine.
 *
 * The state is that of torch.Generator.get_state(): Matsumoto and Nishimura's MT19937, each of its words in 64 bits
 * (ATen/CPUGeneratorImpl.cpp, CPUGeneratorImplStateLegacy). The recorder checks the layout before it relies on it.
 */
#include "phantom.h"

#include <string.h>

enum { ROUND = 624, FAR = 397 };

struct generator {
  uint64_t seed;
  int32_t left, is_seeded; /* outputs until the next round, plus one */
  uint64_t next, words[ROUND];
};

typedef uint32_t several __attribute__((vector_size(32)));
enum { SEVERAL = sizeof(several) / sizeof(uint32_t) };

/* w[i] for first <= i < end of the next round, out of w[i], w[i+1] and w[far+i]. */
static inline __attribute__((always_inline)) void twist(uint32_t *w, int first, int end, int far) {
  int i = first;
  for (; i + SEVERAL <= end; i += SEVERAL) {
    several high, low, made;
    memcpy(&high, w + i, sizeof high);
    memcpy(&low, w + i + 1, sizeof low);
    memcpy(&made, w + far + i, sizeof made);
    several y = (high & 0x80000000u) | (low & 0x7fffffffu);
    made ^= (y >> 1) ^ (-(low & 1u) & 0x9908b0dfu);
    memcpy(w + i, &made, sizeof made);
  }
  for (; i < end; i++) {
    uint32_t low = w[i + 1], y = (w[i] & 0x80000000u) | (low & 0x7fffffffu);
    w[i] = w[far + i] ^ (y >> 1) ^ (-(low & 1u) & 0x9908b0dfu);
  }
}

/* w has one word more than a round, for what follows the last: the first of the next. */
static inline __attribute__((always_inline)) void next_round(uint32_t w[ROUND + 1]) {
  twist(w, 0, ROUND - FAR, FAR);
  w[ROUND] = w[0];
  twist(w, ROUND - FAR, ROUND, FAR - ROUND);
}

static void next_rounds(uint32_t w[ROUND + 1], uint64_t count) {
  while (count--) next_round(w);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void next_rounds_avx2(uint32_t w[ROUND + 1], uint64_t count) {
  while (count--) next_round(w);
}
#define NEXT_ROUNDS (__builtin_cpu_supports("avx2") ? next_rounds_avx2 : next_rounds)
#else
#define NEXT_ROUNDS next_rounds
#endif

/* Moves the generator on by so many outputs of 32 bits. */
API void ullage_skip_random(struct generator *g, uint64_t draws) {
  uint64_t rest = (uint64_t)g->left - 1;
  if (draws > rest) {
    uint32_t w[ROUND + 1];
    uint64_t rounds = (draws - rest + ROUND - 1) / ROUND;
    for (int i = 0; i < ROUND; i++) w[i] = (uint32_t)g->words[i];
    NEXT_ROUNDS(w, rounds);
    for (int i = 0; i < ROUND; i++) g->words[i] = w[i];
    draws -= rest + (rounds - 1) * ROUND;
    g->left = ROUND + 1;
    g->next = 0;
  }
  g->left -= (int32_t)draws;
  g->next += draws;
}
