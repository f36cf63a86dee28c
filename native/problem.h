// What is asked of the core: numbers, and pointers into memory that the caller keeps. Strides count floats; the last
// dimension of every tensor is contiguous.
#pragma once

#include <cstdint>

#include "program.h"

namespace regard {

struct Strides {
  int64_t batch, head, row;
};

// Which keys each panel of queries sees: list number n has the runs from starts[n] to starts[n + 1], in order; list
// numbers count (batch or 1) x (heads or 1) x panels. Without `starts` every query sees every key.
struct Run {
  int32_t first, last;  // keys
  int32_t partial;      // whether some pair in it is hidden
};

struct Cover {
  int64_t batch, heads, panels;
  const int64_t* starts;
  const Run* runs;
};

struct Problem {
  int64_t batch, heads, key_heads, n_q, n_k, width, value_width;
  int64_t threads;
  double scale;
  const float* q;
  Strides q_strides;
  const float* k;
  Strides k_strides;
  const float* v;
  Strides v_strides;
  Cover cover;
  const Program* program;  // what partial runs hide, and what changes the scores; null where there is neither
  int64_t seed;
  int64_t dropped;     // a weight is left out where its word is below this: dropout * 2^32
  double kept_factor;  // 1 / (1 - dropout)
  float* output;       // contiguous, as everything below
  float* lse;
  // backward: the gradient that reaches the output, each row's level, and the sums, which begin as zeros
  const float* d_output;
  Strides d_output_strides;
  const float* level;
  float* d_q;
  float* d_k;
  float* d_v;
};

static_assert(sizeof(Problem) % 8 == 0, "every field is eight bytes, so that a caller can pack it");

// One build of the kernels for one instruction set.
struct Kernels {
  const char* name;
  int64_t panel;  // queries side by side
  int64_t chunk;  // keys by which a mask is cut
  bool (*forward)(const Problem&, bool (*pause)());
  bool (*backward)(const Problem&, bool (*pause)());
};

const Kernels* avx512_kernels();  // null where the processor lacks it
const Kernels* avx2_kernels();
const Kernels* portable_kernels();

}  // namespace regard
