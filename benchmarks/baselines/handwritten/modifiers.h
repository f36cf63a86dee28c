// Handwritten masks and score modifiers that replace the tile interpreter. Everything around them is the library's own,
// so the difference in time is the cost of interpreting a program. Only for queries and keys that begin at the same
// position.
#pragma once

#include "kernels/panel.h"
#include "simd/exp.h"

namespace regard {
namespace REGARD_ISA {
namespace {

constexpr int REGISTER_ROWS = 32;  // as in interpreter.h

// As in interpreter.h; no modifier here has gradients of captured tensors.
struct GradientTarget {
  float* shared;
  double* local;
};

// The members of Interpreter that the kernels use, and its method `run`.
struct Interpreter {
  const Program& program;
  float* registers;
  int64_t b, h, first_query;

  const GradientTarget* gradient_targets = nullptr;
  float* d_scores = nullptr;
  int64_t num_queries = 0;

  TablePrefetch table_prefetch(int64_t, int64_t, int64_t) const { return {}; }  // there are no tables

  template <int N>
  void run(int64_t begin, int64_t, int64_t key, int64_t rows, float* scores) const {
    if (begin < program.score_mod_end) {
      active_modifier.modifier == ALIBI ? alibi<N>(key, rows, scores) : softcap<N>(rows, scores);
    } else if (begin < program.mask_end) {
      active_modifier.modifier == WINDOW ? apply_mask<N, true>(key, rows, scores)
                                         : apply_mask<N, false>(key, rows, scores);
    } else {
      softcap_derivative<N>(rows, scores);
    }
  }

  // s - slope (i - j): under a causal mask the distance needs no absolute value
  template <int N>
  void alibi(int64_t key, int64_t rows, float* scores) const {
    const float slope = active_modifier.slopes[h];
    Vec first[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) first[j] =
        __builtin_convertvector(query_positions(j) - int32_t(key), Vec) * slope;
    for (int64_t t = 0; t < rows; ++t) REGARD_UNROLL for (int j = 0; j < N; ++j) {
        float* score = scores + (t * N + j) * LANES;
        store(score, load(score) - (first[j] - slope * float(t)));
      }
  }

  // c tanh(s / c)
  template <int N>
  void softcap(int64_t rows, float* scores) const {
    const float cap = active_modifier.cap, inverse = 1.0f / cap;
    for (int64_t i = 0; i < rows * N * LANES; i += LANES) store(scores + i, cap * tanh(load(scores + i) * inverse));
  }

  // 1 - tanh(s / c)^2, into register 1
  template <int N>
  void softcap_derivative(int64_t rows, const float* scores) const {
    const float inverse = 1.0f / active_modifier.cap;
    for (int64_t i = 0; i < rows * N * LANES; i += LANES) {
      const Vec x = tanh(load(scores + i) * inverse);
      store(registers + i, 1.0f - x * x);
    }
  }

  // j <= i, and with a window i - j < window
  template <int N, bool HAS_WINDOW>
  void apply_mask(int64_t key, int64_t rows, float* scores) const {
    const Vec hidden = broadcast(-INFINITY);
    const int32_t window = int32_t(active_modifier.window);
    IntVec distance[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) distance[j] = query_positions(j) - int32_t(key);
    for (int64_t t = 0; t < rows; ++t) REGARD_UNROLL for (int j = 0; j < N; ++j) {
        float* score = scores + (t * N + j) * LANES;
        IntVec visible = distance[j] >= int32_t(t);
        if (HAS_WINDOW) visible &= distance[j] - int32_t(t) < window;
        store(score, where(visible, load(score), hidden));
      }
  }

  // the positions of the queries of vector j
  IntVec query_positions(int j) const {
    IntVec result;
    for (int lane = 0; lane < LANES; ++lane) result[lane] = int32_t(first_query) + j * LANES + lane;
    return result;
  }
};

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
