// Decoding in bfloat16: kernels/decode.h with keys and values read in place. Scores and weights are
// floats; the weights are rounded to bfloat16 for their product with the values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "abi.h"
#include "kernels/bf16/products.h"
#include "kernels/decode.h"

namespace regard {
namespace REGARD_ISA {
namespace {

// Rows whose channels lie in lanes, and their products.
struct Bf16Channels {
  typedef uint16_t Element;
  typedef IntVec Vector;
  typedef Bf16Rows Rows;
  static constexpr int64_t PER_VECTOR = WORDS;
  static constexpr int64_t TILE_KEYS = 64;
  static constexpr bool ROUNDS_WEIGHTS = true;

  struct Queries {
    const uint16_t* data;
    float factor;
  };

  REGARD_INLINE IntVec load(const uint16_t* p) {
    IntVec x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  REGARD_INLINE Vec dot(IntVec a, IntVec b, Vec sum) { return Ops::dot_pairs(sum, a, b); }

  // Copies the queries of a key-value head; a product is multiplied by the scale and `unit` afterwards.
  static Queries pack_queries(const AttentionParams& p, int64_t b, int64_t kv_head, int64_t group_queries, double unit,
                              const float*, float* scratch) {
    uint16_t* const to = reinterpret_cast<uint16_t*>(scratch);
    const int64_t group_size = p.num_heads / p.num_kv_heads;
    for (int64_t r = 0; r < group_queries; ++r)
      std::copy_n(bf16_rows(p.q, b, kv_head * group_size + r / p.n_q, r % p.n_q).data, p.head_dim, to + r * p.head_dim);
    return {to, float(p.scale * unit)};
  }

  static Rows load_rows(const StridedRows& rows, DType, int64_t b, int64_t h, int64_t first, int64_t, int64_t, float*) {
    return bf16_rows(rows, b, h, first);
  }
  static bool is_finite(const Rows& rows, int64_t count, int64_t num_channels) {
    return all_finite(rows, count, num_channels);
  }

  REGARD_INLINE Vec round_weights(Vec weights) {
    const IntVec word = bits(weights), rounded = (word + 0x7fff + ((word >> 16) & 1)) & int32_t(0xffff0000);
    return where(IntVec(weights != weights), weights, from_bits(rounded));
  }

  // accumulator[r] = accumulator[r] * rescale[r] + sum over t of weights[r][t] * v[t], for M queries
  template <int M>
  static void add_values(const float* weights, const Rows& v, int64_t count, int64_t num_channels, const float* rescale,
                         float* accumulator, const Prefetch& prefetch) {
    const auto sum_columns = [&](auto vectors, int64_t c) __attribute__((always_inline)) {
      constexpr int C = decltype(vectors)::value;  // of words
      Vec sums[M][2 * C];
      REGARD_UNROLL for (int r = 0; r < M; ++r) REGARD_UNROLL for (int j = 0; j < 2 * C; ++j) sums[r][j] =
          REGARD_ISA::load(accumulator + r * num_channels + c + j * LANES) * rescale[r];
      const auto add = [&](int64_t t, bool has_second) REGARD_INLINE_LAMBDA {
        IntVec low[C], high[C];
        REGARD_UNROLL for (int j = 0; j < C; ++j) {
          const uint16_t* row = v.data + t * v.row_stride + c + j * WORDS;
          const IntVec first = load(row), second = has_second ? load(row + v.row_stride) : IntVec{};
          low[j] = Ops::interleave_low(first, second), high[j] = Ops::interleave_high(first, second);
        }
        REGARD_UNROLL for (int r = 0; r < M; ++r) {
          const IntVec pair = weight_pair(weights + r * TILE_KEYS + t, has_second);
          REGARD_UNROLL for (int j = 0; j < C; ++j) {
            sums[r][2 * j] = Ops::dot_pairs(sums[r][2 * j], low[j], pair);
            sums[r][2 * j + 1] = Ops::dot_pairs(sums[r][2 * j + 1], high[j], pair);
          }
        }
      };
      int64_t t = 0;
      for (; t + 2 <= count; t += 2) {
        add(t, true);
        if (!prefetch.data) continue;
        REGARD_UNROLL for (int j = 0; j < C; ++j) prefetch.issue(t, c + j * WORDS),
            prefetch.issue(t + 1, c + j * WORDS);
      }
      if (t < count) add(t, false);
      REGARD_UNROLL for (int r = 0; r < M; ++r) REGARD_UNROLL for (int j = 0; j < 2 * C; ++j)
          store(accumulator + r * num_channels + c + j * LANES, sums[r][j]);
    };
    int64_t c = 0;
    for (; c + 2 * WORDS <= num_channels; c += 2 * WORDS) sum_columns(std::integral_constant<int, 2>{}, c);
    for (; c < num_channels; c += WORDS) sum_columns(std::integral_constant<int, 1>{}, c);
  }

 private:
  // Two rounded weights in every lane.
  REGARD_INLINE IntVec weight_pair(const float* weights, bool has_second) {
    uint32_t words[2] = {0, 0};
    std::memcpy(words, weights, has_second ? 8 : 4);
    return broadcast(int32_t(words[0] >> 16 | (words[1] & 0xffff0000)));
  }
};

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
