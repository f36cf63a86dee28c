// Products of bfloat16 matrices. A step of a product takes a pair of numbers from each side, and sums are floats.
//
//     scores[t][lane] = sum over p of k[t][2p, 2p + 1] . q[2p, 2p + 1][lane]        K is read in place
//     sums[c][lane]  += sum over t of (v[t][c], v[t + 1][c]) . w[t, t + 1][lane]    V and w are paired along the keys
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/panel.h"
#include "simd/exp.h"
#include "simd/half_types.h"

namespace regard {
namespace REGARD_ISA {
namespace {

// Keys whose values are packed together, and whose scores a panel computes at once.
constexpr int64_t BF16_TILE_KEYS = 256;
constexpr int WORDS = 2 * LANES;  // bfloat16 numbers in a vector

constexpr int64_t num_pairs(int64_t count) { return (count + 1) / 2; }

// Rows of bfloat16 numbers in memory.
struct Bf16Rows {
  const uint16_t* data;
  int64_t row_stride;
};

static Bf16Rows bf16_rows(const StridedRows& rows, int64_t b, int64_t h, int64_t first) {
  return {
      static_cast<const uint16_t*>(rows.data) + b * rows.batch_stride + h * rows.head_stride + first * rows.row_stride,
      rows.row_stride};
}

REGARD_INLINE IntVec load_pair(const uint16_t* p) {
  int32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return broadcast(pair);
}

// block[i][j] += sum over p of left(i, p) . right(p, j), where left(i, p) is the pair at left + i * left_row +
// p * left_step, in words, and right(p, j) is vector j of row p. on_step(p) is called at each step.
template <int M, int N, class OnStep>
REGARD_INLINE void pair_microkernel(Vec (&block)[M][N], const uint16_t* left, int64_t left_row, int64_t left_step,
                                    const int32_t* right, int64_t right_row, int64_t count, const OnStep& on_step) {
  REGARD_UNROLL_TWICE
  for (int64_t p = 0; p < count; ++p) {
    on_step(p);
    IntVec r[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) r[j] = load(right + p * right_row + j * LANES);
    REGARD_UNROLL for (int i = 0; i < M; ++i) {
      const IntVec l = load_pair(left + i * left_row + p * left_step);
      REGARD_UNROLL for (int j = 0; j < N; ++j) block[i][j] = Ops::dot_pairs(block[i][j], l, r[j]);
    }
  }
}

// The same, added to rows of floats, which are multiplied by `rescale` first.
template <int M, int N>
REGARD_INLINE void add_pair_products(float* sums, int64_t sums_row, const Vec (&rescale)[N], const uint16_t* left,
                                     int64_t left_row, int64_t left_step, const int32_t* right, int64_t right_row,
                                     int64_t count) {
  Vec block[M][N];
  REGARD_UNROLL for (int i = 0; i < M; ++i) REGARD_UNROLL for (int j = 0; j < N; ++j) block[i][j] =
      load(sums + i * sums_row + j * LANES) * rescale[j];
  pair_microkernel<M, N>(block, left, left_row, left_step, right, right_row, count, [](int64_t) {});
  REGARD_UNROLL for (int i = 0; i < M; ++i) REGARD_UNROLL for (int j = 0; j < N; ++j)
      store(sums + i * sums_row + j * LANES, block[i][j]);
}

// Packs rows into columns of lanes: to[p][lane] = (from[lane][2p], from[lane][2p + 1]), where a number beyond the last
// channel is 0. Lanes beyond `count` repeat the last row. With `negate`, the signs are flipped.
static void pack_lane_pairs(const Bf16Rows& from, int64_t count, int64_t num_channels, bool negate, int32_t* to,
                            int64_t to_row) {
  const IntVec signs = broadcast(negate ? int32_t(0x80008000) : 0);
  for (int64_t lane = 0; lane < to_row; lane += LANES)
    for (int64_t c = 0; c < num_channels; c += WORDS) {
      const int64_t words = std::min<int64_t>(WORDS, num_channels - c);
      Vec rows[LANES];
      REGARD_UNROLL for (int i = 0; i < LANES; ++i) {
        const uint16_t* row = from.data + std::min(lane + i, count - 1) * from.row_stride + c;
        rows[i] = from_bits(Ops::load_words(row, words) ^ signs);
      }
      transpose(rows);
      for (int64_t i = 0; i < num_pairs(words); ++i) store(to + (c / 2 + i) * to_row + lane, bits(rows[i]));
    }
}

// Unpacks columns of lanes into rows: to[lane][p] = from[p][lane] * factor[lane], rounded, for the first `count` lanes.
// Pairs of channels are rounded before they are transposed, which halves the work.
static void unpack_lane_pairs(const float* from, int64_t from_row, const float* factor, int64_t count,
                              int64_t num_channels, uint16_t* to) {
  for (int64_t lane = 0; lane < count; lane += LANES) {
    const Vec scale = load(factor + lane);
    for (int64_t c = 0; c < num_channels; c += WORDS) {
      const int64_t words = std::min<int64_t>(WORDS, num_channels - c);
      const auto column = [&](int64_t i) { return i < words ? load(from + (c + i) * from_row + lane) * scale : Vec{}; };
      Vec rows[LANES];
      for (int i = 0; i < LANES; ++i) rows[i] = from_bits(Ops::round_to_pairs(column(2 * i), column(2 * i + 1)));
      transpose(rows);
      for (int64_t i = 0; i < std::min<int64_t>(LANES, count - lane); ++i)
        Ops::store_words(to + (lane + i) * num_channels + c, bits(rows[i]), words);
    }
  }
}

// Pairs of rows: to[t / 2][c] = (from[t][c], from[t + 1][c]), where a row beyond the last one is 0.
static void pack_row_pairs(const Bf16Rows& from, int64_t count, int64_t num_channels, int32_t* to, int64_t to_row) {
  for (int64_t t = 0; t < count; t += 2)
    for (int64_t c = 0; c < num_channels; c += WORDS) {
      const int64_t words = num_channels - c;
      const uint16_t* row = from.data + t * from.row_stride + c;
      const IntVec first = Ops::load_words(row, words);
      const IntVec second = t + 1 < count ? Ops::load_words(row + from.row_stride, words) : IntVec{};
      uint16_t* pairs = reinterpret_cast<uint16_t*>(to + t / 2 * to_row + c);
      Ops::store_words(pairs, Ops::interleave_low(first, second), 2 * words);
      Ops::store_words(pairs + WORDS, Ops::interleave_high(first, second), 2 * words - WORDS);
    }
}

// sums[t] += sum over queries of left[t][query] * right[query], where right has pairs of queries and whole vectors of
// channels.
static void accumulate_over_query_pairs(const uint16_t* left, int64_t left_row, int64_t keys, int64_t pairs,
                                        const int32_t* right, int64_t num_channels, float* sums) {
  const auto columns = [&](auto vectors, int64_t c) __attribute__((always_inline)) {
    constexpr int N = decltype(vectors)::value;
    Vec one[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) one[j] = broadcast(1.0f);
    for_each_block<12>(0, keys, [&](auto rows, int64_t t) __attribute__((always_inline)) {
      add_pair_products<decltype(rows)::value, N>(sums + t * num_channels + c, num_channels, one, left + t * left_row,
                                                  left_row, 2, right + c, num_channels, pairs);
    });
  };
  int64_t c = 0;
  for (; c + 2 * LANES <= num_channels; c += 2 * LANES) columns(std::integral_constant<int, 2>{}, c);
  if (c < num_channels) columns(std::integral_constant<int, 1>{}, c);
}

// Copies rows of an odd number of channels, with a 0 behind each, so that their last pair can be read.
static Bf16Rows pad_odd_rows(const Bf16Rows& from, int64_t count, int64_t num_channels, uint16_t* to) {
  if (num_channels % 2 == 0) return from;
  for (int64_t t = 0; t < count; ++t) {
    std::copy_n(from.data + t * from.row_stride, num_channels, to + t * (num_channels + 1));
    to[t * (num_channels + 1) + num_channels] = 0;
  }
  return {to, num_channels + 1};
}

typedef uint16_t WordVec __attribute__((vector_size(4 * LANES)));

// The largest magnitude in each of 32 columns of words, as the bits of bfloat16 numbers.
static WordVec largest_words(const Bf16Rows& rows, int64_t count, int64_t num_channels) {
  WordVec largest{};
  for (int64_t t = 0; t < count; ++t)
    for (int64_t c = 0; c < num_channels; c += WORDS) {
      const IntVec words = Ops::load_words(rows.data + t * rows.row_stride + c, num_channels - c);
      const WordVec magnitude = reinterpret_cast<WordVec>(words & 0x7fff7fff);
      largest = magnitude > largest ? magnitude : largest;
    }
  return largest;
}

static bool all_finite(const Bf16Rows& rows, int64_t count, int64_t num_channels) {
  return !any(reinterpret_cast<IntVec>(largest_words(rows, count, num_channels) >= 0x7f80) != 0);
}

// The largest magnitude in the rows; inf or NaN if a number is not finite.
static float largest_magnitude(const Bf16Rows& rows, int64_t count, int64_t num_channels) {
  const WordVec largest = largest_words(rows, count, num_channels);
  uint32_t word = 0;
  for (int i = 0; i < WORDS; ++i) word = std::max<uint32_t>(word, largest[i]);
  word <<= 16;
  float magnitude;
  std::memcpy(&magnitude, &word, sizeof magnitude);
  return magnitude;
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
