// Additive scores: s = sum over c of u[c] tanh(a[c] + b[c]), with a from the query and b from the key. Since
//
//     tanh(a + b) = 1 - 2 r,   r = 1 / x,   x = 1 + e^2a e^2b,
//
// a pair takes a division and no exponential once e^2a and e^2b are known. Channels share a division:
// u / x + w / y = (u y + w x) / (x y). Fewer channels share one where the product might overflow, and tanh is computed
// where even two channels would.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "abi.h"
#include "kernels/panel.h"
#include "simd/exp.h"

namespace regard {
namespace REGARD_ISA {
namespace {

// The largest denominator and the largest numerator of a shared division.
constexpr float MAX_DENOMINATOR = 0x1p125f;

// Values x and e^2x. For queries, a row is a channel with a lane for each query. For keys, a row is a key.
struct ExpTerms {
  const float *raw, *exp_2x;
  int64_t raw_row_stride, exp_row_stride;
  const float* channel_max;  // the largest e^2x of each channel, or NaN if one of them is NaN

  ExpTerms slice(int64_t rows, int64_t columns = 0) const {
    return {raw + rows * raw_row_stride + columns, exp_2x + rows * exp_row_stride + columns, raw_row_stride,
            exp_row_stride, channel_max};
  }
};

// The maximum of two numbers that are not negative, or NaN if one of them is NaN. The bits of a larger number, without
// the sign, are larger as an integer, and those of NaN are the largest.
REGARD_INLINE Vec max_or_nan(Vec a, Vec b) {
  const IntVec x = bits(a) & 0x7fffffff, y = bits(b) & 0x7fffffff;
  return from_bits(x > y ? x : y);
}

static void exp_of_twice(const float* from, int64_t from_row, int64_t rows, int64_t num_channels, float* to) {
  const auto step = [](Vec x) __attribute__((always_inline)) { return exp(x + x); };
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = from + i * from_row;
    int64_t c = 0;
    for (; c + LANES <= num_channels; c += LANES) store(to + i * num_channels + c, step(load(row + c)));
    if (c == num_channels) continue;
    float rest[LANES] = {};
    std::copy(row + c, row + num_channels, rest);
    store(rest, step(load(rest)));
    std::copy(rest, rest + num_channels - c, to + i * num_channels + c);
  }
}

// The terms of keys, a row each. `to` has room for an additional row.
static ExpTerms key_exp_terms(const float* from, int64_t from_row, int64_t rows, int64_t num_channels, float* to) {
  exp_of_twice(from, from_row, rows, num_channels, to);
  float* channel_max = to + rows * num_channels;
  std::fill(channel_max, channel_max + num_channels, 0.0f);
  for (int64_t i = 0; i < rows; ++i) {
    int64_t c = 0;
    for (; c + LANES <= num_channels; c += LANES)
      store(channel_max + c, max_or_nan(load(to + i * num_channels + c), load(channel_max + c)));
    for (; c < num_channels; ++c)
      channel_max[c] = max_or_nan(broadcast(to[i * num_channels + c]), broadcast(channel_max[c]))[0];
  }
  return {from, to, from_row, num_channels, channel_max};
}

// The terms of queries, a row for each channel. `to` has room for an additional value per channel.
static ExpTerms query_exp_terms(const float* from, int64_t num_channels, int64_t lanes, float* to) {
  exp_of_twice(from, lanes, num_channels, lanes, to);
  float* channel_max = to + num_channels * lanes;
  for (int64_t c = 0; c < num_channels; ++c) {
    Vec row_max{};
    for (int64_t lane = 0; lane < lanes; lane += LANES) row_max = max_or_nan(load(to + c * lanes + lane), row_max);
    for (int lane = 0; lane < LANES; ++lane)
      channel_max[c] = max_or_nan(broadcast(row_max[lane]), lane ? broadcast(channel_max[c]) : Vec{})[0];
  }
  return {from, to, lanes, lanes, channel_max};
}

// The constants of a head.
struct AdditiveHead {
  const float* u = nullptr;  // null: scores are dot products
  float u_sum;               // the sum of u
  float* minus_2u;
  float* key_exp_scratch;  // for e^2b of a tile

  AdditiveHead() = default;
  AdditiveHead(const AttentionParams& p, int64_t head, double unit, float* scratch)
      : u(scratch), minus_2u(scratch + p.head_dim), key_exp_scratch(scratch + 2 * p.head_dim) {
    double sum = 0.0;
    for (int64_t c = 0; c < p.head_dim; ++c) {
      const double scaled = unit * p.u[head * p.head_dim + c];
      scratch[c] = float(scaled), minus_2u[c] = float(-2.0 * scaled);
      sum += scaled;
    }
    u_sum = float(sum);
  }

  static int64_t scratch_floats(const AttentionParams& p) { return p.u ? (3 + TILE_KEYS) * p.head_dim : 0; }
};

// Whether `channels` channels can share a division: neither the denominator nor the numerator, the denominator times
// the sum of |minus_2u|, may overflow.
static bool can_share_division(int64_t channels, const ExpTerms& queries, const ExpTerms& keys, int64_t num_channels,
                               const float* minus_2u) {
  for (int64_t first = 0; first < num_channels; first += channels) {
    float denominator = 1.0f, u_total = 0.0f;
    for (int64_t c = first; c < std::min(num_channels, first + channels); ++c) {
      denominator *= 1.0f + queries.channel_max[c] * keys.channel_max[c];
      u_total += minus_2u ? std::abs(minus_2u[c]) : 0.0f;
    }
    if (!(denominator * std::max(1.0f, u_total) <= MAX_DENOMINATOR)) return false;  // also for NaN
  }
  return true;
}

// Calls body(number of channels that share a division): 8, 4, 2, or 0 where tanh must be computed.
template <class Body>
REGARD_INLINE void dispatch_shared_channels(const AdditiveHead& head, const ExpTerms& queries, const ExpTerms& keys,
                                            int64_t num_channels, const Body& body) {
  if (can_share_division(8, queries, keys, num_channels, head.minus_2u)) {
    body(std::integral_constant<int, 8>{});
  } else if (can_share_division(4, queries, keys, num_channels, head.minus_2u)) {
    body(std::integral_constant<int, 4>{});
  } else if (can_share_division(2, queries, keys, num_channels, head.minus_2u)) {
    body(std::integral_constant<int, 2>{});
  } else {
    body(std::integral_constant<int, 0>{});
  }
}

// A fraction; the sum of two of them takes no division.
struct Fraction {
  Vec numerator, denominator;

  REGARD_INLINE_METHOD Fraction operator+(const Fraction& other) const {
    return {fma(numerator, other.denominator, other.numerator * denominator), denominator * other.denominator};
  }
};

// The sum of CHANNELS channels from `first` on.
template <int CHANNELS, class Channel>
REGARD_INLINE Fraction sum_fractions(int64_t first, const Channel& channel) {
  if constexpr (CHANNELS > 1) {
    return sum_fractions<CHANNELS / 2>(first, channel) + sum_fractions<CHANNELS / 2>(first + CHANNELS / 2, channel);
  } else {
    return channel(first);
  }
}

// A channel of the queries or of a key: e^2a and e^2b with USE_EXP_TERMS, else a and b.
template <bool USE_EXP_TERMS>
REGARD_INLINE Vec query_channel(const ExpTerms& queries, int64_t c, int j) {
  return load(USE_EXP_TERMS ? queries.exp_2x + c * queries.exp_row_stride + j * LANES
                            : queries.raw + c * queries.raw_row_stride + j * LANES);
}
template <bool USE_EXP_TERMS>
REGARD_INLINE Vec key_channel(const ExpTerms& keys, int64_t t, int64_t c) {
  return broadcast(USE_EXP_TERMS ? keys.exp_2x[t * keys.exp_row_stride + c] : keys.raw[t * keys.raw_row_stride + c]);
}

// scores[t][lane], in the layout of dot_products.
template <int N>
static void additive_scores(const AdditiveHead& head, const ExpTerms& queries, const ExpTerms& keys,
                            int64_t num_channels, int64_t count, float* scores) {
  constexpr int CHANNELS = 32;  // sums of sums: rounding errors grow with their lengths
  dispatch_shared_channels(
      head, queries, keys, num_channels, [&](auto sharing) __attribute__((always_inline)) {
        constexpr int SHARING = decltype(sharing)::value;
        constexpr bool USE_EXP_TERMS = SHARING > 0;
        for_each_block<2>(
            0, count, [&](auto rows, int64_t t) __attribute__((always_inline)) {
              constexpr int M = decltype(rows)::value;
              Vec total[M][N];
              REGARD_UNROLL for (int i = 0; i < M; ++i) REGARD_UNROLL for (int j = 0; j < N; ++j) total[i][j] =
                  broadcast(USE_EXP_TERMS ? head.u_sum : 0.0f);
              for (int64_t first = 0; first < num_channels; first += CHANNELS) {
                const int64_t last = std::min<int64_t>(num_channels, first + CHANNELS);
                Vec sum[M][N] = {};
                int64_t c = first;
                for (; USE_EXP_TERMS && c + SHARING <= last; c += SHARING)
                  REGARD_UNROLL for (int i = 0; i < M; ++i) REGARD_UNROLL for (int j = 0; j < N; ++j) {
                    const Fraction part = sum_fractions<SHARING>(
                        c, [&](int64_t n) __attribute__((always_inline)) {
                          const Vec x = fma(query_channel<true>(queries, n, j), key_channel<true>(keys, t + i, n),
                                            broadcast(1.0f));
                          return Fraction{broadcast(head.minus_2u[n]), x};
                        });
                    sum[i][j] = fma(part.numerator, reciprocal(part.denominator), sum[i][j]);
                  }
                for (; c < last; ++c)
                  REGARD_UNROLL for (int i = 0; i < M; ++i) REGARD_UNROLL for (int j = 0; j < N; ++j) {
                    const Vec a = query_channel<USE_EXP_TERMS>(queries, c, j),
                              b = key_channel<USE_EXP_TERMS>(keys, t + i, c);
                    if constexpr (USE_EXP_TERMS) {
                      sum[i][j] = fma(broadcast(head.minus_2u[c]), reciprocal(fma(a, b, broadcast(1.0f))), sum[i][j]);
                    } else {
                      sum[i][j] = fma(broadcast(head.u[c]), tanh(a + b), sum[i][j]);
                    }
                  }
                REGARD_UNROLL for (int i = 0; i < M; ++i) REGARD_UNROLL for (int j = 0; j < N; ++j) total[i][j] +=
                    sum[i][j];
              }
              REGARD_UNROLL for (int i = 0; i < M; ++i) REGARD_UNROLL for (int j = 0; j < N; ++j)
                  store(scores + ((t + i) * N + j) * LANES, total[i][j]);
            });
      });
}

// With h = tanh(a + b) and g the gradient of a score, a pair adds g h to a channel of d_u, and u g (1 - h^2) to a
// channel of d_a and of d_b. Adds them, without the factor u, to d_queries[c][lane], d_keys[c][t] and d_u[c]. Pairs
// with g = 0 add nothing.
template <int N>
static void additive_gradients(const ExpTerms& queries, const ExpTerms& keys, int64_t num_channels, int64_t count,
                               const float* d_scores, float* d_queries, int64_t query_row, float* d_keys,
                               int64_t key_row, double* d_u) {
  const auto accumulate = [&](auto use_exp_terms) __attribute__((always_inline)) {
    constexpr bool USE_EXP_TERMS = decltype(use_exp_terms)::value;
    for (int64_t c = 0; c < num_channels; ++c) {
      Vec a[N], query_sums[N] = {}, u_sums[N] = {};
      REGARD_UNROLL for (int j = 0; j < N; ++j) a[j] = query_channel<USE_EXP_TERMS>(queries, c, j);
      for (int64_t t = 0; t < count; t += LANES) {
        Vec key_sums[LANES] = {};
        const auto add = [&](int64_t i) __attribute__((always_inline)) {
          const Vec b = key_channel<USE_EXP_TERMS>(keys, t + i, c);
          REGARD_UNROLL for (int j = 0; j < N; ++j) {
            const Vec g = load(d_scores + ((t + i) * N + j) * LANES);
            const Vec h = USE_EXP_TERMS
                              ? fma(broadcast(-2.0f), reciprocal(fma(a[j], b, broadcast(1.0f))), broadcast(1.0f))
                              : tanh(a[j] + b);
            Vec u_term = g * h, qk_term = fma(-u_term, h, g);
            if constexpr (!USE_EXP_TERMS) {  // a hidden value may be NaN, and its gradient is 0
              u_term = where(IntVec(g != 0.0f), u_term, Vec{});
              qk_term = where(IntVec(g != 0.0f), qk_term, Vec{});
            }
            u_sums[j] += u_term;
            query_sums[j] += qk_term;
            key_sums[i] += qk_term;
          }
        };
        if (t + LANES <= count) {
          REGARD_UNROLL for (int i = 0; i < LANES; ++i) add(i);
        } else {
          for (int64_t i = 0; i < count - t; ++i) add(i);
        }
        float* target = d_keys + c * key_row + t;
        store(target, load(target) + lane_sums(key_sums));
      }
      Vec u_update{};
      REGARD_UNROLL for (int j = 0; j < N; ++j) {
        float* target = d_queries + c * query_row + j * LANES;
        store(target, load(target) + query_sums[j]);
        u_update += u_sums[j];
      }
      for (int lane = 0; lane < LANES; ++lane) d_u[c] += u_update[lane];
    }
  };
  can_share_division(1, queries, keys, num_channels, nullptr) ? accumulate(std::true_type{})
                                                              : accumulate(std::false_type{});
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
