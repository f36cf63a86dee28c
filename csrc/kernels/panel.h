// Panels and their products. A panel holds queries side by side, one per lane, in up to three vectors. A tile of scores
// has one row of lanes per key. So K and V are read in memory order, and maxima and sums over keys stay within a lane.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "simd/prefetch.h"
#include "simd/simd.h"

namespace regard {
namespace REGARD_ISA {
namespace {

constexpr int VECTORS_PER_PANEL = 3;
constexpr int PANEL_QUERIES = VECTORS_PER_PANEL * LANES;
constexpr int CHUNK_KEYS = 16;
constexpr int64_t TILE_KEYS = 128;  // K, V and the scores of a panel stay in the L1 and L2 caches
// One accumulator sums at most this many terms; longer sums are sums of such sums, which keeps rounding errors small.
constexpr int64_t ACCUMULATOR_TERMS = 128;
// Channels of a dot product that one vector sums: half as many terms in each lane, and then a sum over the lanes.
constexpr int64_t DOT_SPAN_CHANNELS = ACCUMULATOR_TERMS / 2 * LANES;

// The number of rows of the GEMM microkernel with `vectors` vectors per row: as many as the registers hold.
constexpr int microkernel_rows(int vectors) {
  return Ops::NUM_REGISTERS >= 32 ? 8 : vectors == 3 ? 4 : vectors == 2 ? 6 : 8;
}

// block[i][j] += sum over p of left(i, p) * right(p, j): the inner loop of every product here.
//   left(i, p) = left[i * left_row + p * left_step], broadcast to a vector;  right(p, j) = vector j of row p
// on_step(p) is called at each step.
template <int M, int N, class OnStep>
REGARD_INLINE void gemm_microkernel(Vec (&block)[M][N], const float* left, int64_t left_row, int64_t left_step,
                                    const float* right, int64_t right_row, int64_t count, const OnStep& on_step) {
  REGARD_UNROLL_TWICE
  for (int64_t p = 0; p < count; ++p) {
    on_step(p);
    Vec r[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) r[j] = load(right + p * right_row + j * LANES);
    REGARD_UNROLL for (int i = 0; i < M; ++i) {
      const Vec l = broadcast(left[i * left_row + p * left_step]);
      REGARD_UNROLL for (int j = 0; j < N; ++j) block[i][j] = fma(l, r[j], block[i][j]);
    }
  }
}

template <int M, int N>
REGARD_INLINE void gemm_microkernel(Vec (&block)[M][N], const float* left, int64_t left_row, int64_t left_step,
                                    const float* right, int64_t right_row, int64_t count) {
  gemm_microkernel(block, left, left_row, left_step, right, right_row, count, [](int64_t) {});
}

// Calls step(rows, begin) for blocks of M rows, and then for smaller blocks of the remaining rows.
template <int M, class Step>
REGARD_INLINE void for_each_block(int64_t begin, int64_t end, const Step& step) {
  for (; begin + M <= end; begin += M) step(std::integral_constant<int, M>{}, begin);
  if constexpr (M > 1) {
    if (begin < end) for_each_block<M / 2>(begin, end, step);
  }
}

// Calls body(vectors) with the number of vectors, 1 to 3, as a compile-time constant.
template <class Body>
REGARD_INLINE void dispatch_vectors(int64_t vectors, const Body& body) {
  if (vectors > 2) {
    body(std::integral_constant<int, 3>{});
  } else if (vectors > 1) {
    body(std::integral_constant<int, 2>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

// Packs rows into columns of lanes: to[p][lane] = from[lane][p] * factor. Lanes beyond `count` repeat the last row.
static void pack_lanes(const float* from, int64_t row, int64_t count, int64_t num_channels, float factor, float* to,
                       int64_t to_row) {
  for (int64_t lane = 0; lane < to_row; lane += LANES) {
    const float* source[LANES];
    for (int i = 0; i < LANES; ++i) source[i] = from + std::min(lane + i, count - 1) * row;
    int64_t p = 0;
    for (; p + LANES <= num_channels; p += LANES) {
      Vec x[LANES];
      REGARD_UNROLL for (int i = 0; i < LANES; ++i) x[i] = load(source[i] + p) * factor;
      transpose(x);
      REGARD_UNROLL for (int i = 0; i < LANES; ++i) store(to + (p + i) * to_row + lane, x[i]);
    }
    for (; p < num_channels; ++p)
      for (int i = 0; i < LANES; ++i) to[p * to_row + lane + i] = source[i][p] * factor;
  }
}

// Unpacks columns of lanes into rows: to[lane][p] = from[p][lane] * factor[lane] for the first `count` lanes.
static void unpack_lanes(const float* from, int64_t from_row, const float* factor, int64_t count, int64_t num_channels,
                         float* to, int64_t row) {
  for (int64_t lane = 0; lane < count; lane += LANES) {
    const int64_t here = std::min<int64_t>(LANES, count - lane);
    const Vec scale = load(factor + lane);
    int64_t p = 0;
    for (; p + LANES <= num_channels; p += LANES) {
      Vec x[LANES];
      REGARD_UNROLL for (int i = 0; i < LANES; ++i) x[i] = load(from + (p + i) * from_row + lane) * scale;
      transpose(x);
      for (int64_t i = 0; i < here; ++i) store(to + (lane + i) * row + p, x[i]);
    }
    for (; p < num_channels; ++p)
      for (int64_t i = 0; i < here; ++i) to[(lane + i) * row + p] = from[p * from_row + lane + i] * factor[lane + i];
  }
}

// scores[t][lane] = k[t] . q[lane] for `count` keys. Queries are columns of lanes, in rows of `query_row` floats. With
// TRACK_MAX, row_max becomes the maximum of itself and the scores. More channels than ACCUMULATOR_TERMS are summed in
// spans, with the partial sums in `scores`.
template <int N, bool TRACK_MAX = false, class Prefetcher = NoPrefetch>
static void dot_products(const float* queries, int64_t query_row, int64_t num_channels, const float* keys,
                         int64_t key_row, int64_t count, float* scores, Vec* row_max = nullptr,
                         const Prefetcher& prefetch = {}) {
  int64_t span = 0;
  do {  // once for 0 channels as well: the scores are 0
    const bool is_last_span = span + ACCUMULATOR_TERMS >= num_channels;
    for_each_block<microkernel_rows(N)>(
        0, count, [&](auto rows, int64_t t) __attribute__((always_inline)) {
          constexpr int M = decltype(rows)::value;
          Vec block[M][N] = {};
          gemm_microkernel(block, keys + t * key_row + span, key_row, 1, queries + span * query_row, query_row,
                           is_last_span ? num_channels - span : ACCUMULATOR_TERMS, [&](int64_t p) REGARD_INLINE_LAMBDA {
                             prefetch.template issue_during_product<M>(t, span + p);
                             // the next block's keys, which may be in the L2 cache
                             if (p % CACHE_LINE_FLOATS < M)
                               __builtin_prefetch(keys + (t + M + p % CACHE_LINE_FLOATS) * key_row + span +
                                                  p / CACHE_LINE_FLOATS * CACHE_LINE_FLOATS);
                           });
          REGARD_UNROLL for (int i = 0; i < M; ++i) REGARD_UNROLL for (int j = 0; j < N; ++j) {
            float* score = scores + ((t + i) * N + j) * LANES;
            if (span) block[i][j] += load(score);
            store(score, block[i][j]);
            if (TRACK_MAX && is_last_span)
              row_max[j] = vec_max(block[i][j], row_max[j]);  // in this order a NaN is ignored
          }
        });
    span += ACCUMULATOR_TERMS;
  } while (span < num_channels);
}

// accumulator[c][lane] = accumulator[c][lane] * rescale[lane] + sum over t of values[t][c] * weights[t][lane]
template <int N, bool PREFETCH = false>
static void weighted_sums(const float* weights, const float* values, int64_t value_row, int64_t count,
                          int64_t num_channels, const Vec (&rescale)[N], float* accumulator, int64_t accumulator_row,
                          const Prefetch& prefetch = {}) {
  for_each_block<microkernel_rows(N)>(
      0, num_channels, [&](auto rows, int64_t c) __attribute__((always_inline)) {
        constexpr int M = decltype(rows)::value;
        Vec block[M][N] = {};                          // sums of sums: rounding errors grow with their lengths
        if (PREFETCH && c % CACHE_LINE_FLOATS == 0) {  // one line of each row
          gemm_microkernel(block, values + c, 1, value_row, weights, N * LANES, count,
                           [&](int64_t t) REGARD_INLINE_LAMBDA { prefetch.issue(t, c); });
        } else {
          gemm_microkernel<M, N>(block, values + c, 1, value_row, weights, N * LANES, count);
        }
        REGARD_UNROLL for (int i = 0; i < M; ++i) REGARD_UNROLL for (int j = 0; j < N; ++j) {
          float* target = accumulator + (c + i) * accumulator_row + j * LANES;
          store(target, fma(load(target), rescale[j], block[i][j]));
        }
      });
}

// Whether all values of these rows are finite.
static bool all_finite(const float* rows, int64_t row, int64_t count, int64_t num_channels) {
  Vec sums[4] = {};  // 0 unless a value is inf or NaN; four sums, because the additions of one wait for each other
  float rest = 0.0f;
  for (int64_t t = 0; t < count; ++t) {
    const float* here = rows + t * row;
    int64_t c = 0;
    for (; c + 4 * LANES <= num_channels; c += 4 * LANES)
      REGARD_UNROLL for (int i = 0; i < 4; ++i) sums[i] = fma(load(here + c + i * LANES), Vec{}, sums[i]);
    for (; c + LANES <= num_channels; c += LANES) sums[0] = fma(load(here + c), Vec{}, sums[0]);
    for (; c < num_channels; ++c) rest += here[c] * 0.0f;
  }
  const Vec sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  for (int lane = 0; lane < LANES; ++lane) rest += sum[lane];
  return rest == 0.0f;
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
