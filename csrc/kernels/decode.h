// Decoding: few queries and many keys (split-KV). For each split n of the keys, and then for each query, with s in
// units of log 2:
//
//     max_n = max s,   sum_n = sum 2^(s - max_n),   output_n = sum 2^(s - max_n) v
//     max = max_n max_n,   output = sum_n 2^(max_n - max) output_n / sum_n 2^(max_n - max) sum_n
//
// The queries of all heads that share a key-value head are processed together, so that each key is read once. Splits
// have a fixed length. So several threads share the work, and the result does not depend on their number.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "abi.h"
#include "kernels/forward.h"
#include "parallel.h"
#include "simd/flush_denormals.h"

namespace regard {
namespace REGARD_ISA {
namespace {

constexpr int64_t SPLIT_KEYS = 2048;
constexpr int64_t DECODE_TILE_KEYS = 32;
// Up to this many queries, the lanes of a vector hold channels of a key; with more queries, they hold queries.
constexpr int64_t MAX_CHANNEL_LANE_QUERIES = LANES * 3 / 4;

// scores[r][t] = factor * q[r] . k[t] for M queries, with channels in lanes. Beyond the last key, up to a whole vector,
// scores are -inf. Of every four rows, those from prefetch_begin to prefetch_end - 1 are prefetched.
template <class Channels, int M>
static void channel_lane_scores(const typename Channels::Element* q, int64_t num_channels,
                                const typename Channels::Element* keys, int64_t key_row, int64_t count, float factor,
                                float* scores, const Prefetch& prefetch, int64_t prefetch_begin, int64_t prefetch_end) {
  constexpr int KEYS_PER_VECTOR = LANES / M, KEYS_PER_STEP = KEYS_PER_VECTOR < 4 ? KEYS_PER_VECTOR : 4;
  constexpr int64_t STEP = Channels::PER_VECTOR;
  const auto write = [&](Vec(&sums)[LANES], int64_t t) REGARD_INLINE_LAMBDA {
    float values[LANES];
    store(values, lane_sums(sums) * factor);
    REGARD_UNROLL for (int r = 0; r < M; ++r) std::memcpy(
        scores + r * Channels::TILE_KEYS + t, values + r * KEYS_PER_VECTOR, sizeof(float) * KEYS_PER_VECTOR);
  };
  // the products of KEYS_PER_STEP keys from t on, over one span of the channels
  const auto accumulate_dots = [&](Vec(&dots)[M][KEYS_PER_STEP], int64_t t, int64_t span) REGARD_INLINE_LAMBDA {
    const typename Channels::Element* key_rows = keys + t * key_row;
    for (int64_t c = span; c < std::min(num_channels, span + DOT_SPAN_CHANNELS); c += STEP) {
      typename Channels::Vector key[KEYS_PER_STEP];
      REGARD_UNROLL for (int i = 0; i < KEYS_PER_STEP; ++i) key[i] = Channels::load(key_rows + i * key_row + c);
      REGARD_UNROLL for (int r = 0; r < M; ++r) {
        const typename Channels::Vector query = Channels::load(q + r * num_channels + c);
        REGARD_UNROLL for (int i = 0; i < KEYS_PER_STEP; ++i) dots[r][i] = Channels::dot(query, key[i], dots[r][i]);
      }
      for (int64_t i = prefetch_begin; i < prefetch_end; ++i) prefetch.issue(t + i, c);
    }
  };
  int64_t t = 0;
  for (; t + KEYS_PER_VECTOR <= count; t += KEYS_PER_VECTOR) {
    Vec sums[LANES];
    REGARD_UNROLL for (int offset = 0; offset < KEYS_PER_VECTOR; offset += KEYS_PER_STEP) {
      Vec dots[M][KEYS_PER_STEP] = {};
      accumulate_dots(dots, t + offset, 0);
      REGARD_UNROLL for (int r = 0; r < M; ++r) REGARD_UNROLL for (int i = 0; i < KEYS_PER_STEP; ++i)
          sums[r * KEYS_PER_VECTOR + offset + i] = dots[r][i];
      for (int64_t span = DOT_SPAN_CHANNELS; span < num_channels; span += DOT_SPAN_CHANNELS) {
        Vec span_dots[M][KEYS_PER_STEP] = {};
        accumulate_dots(span_dots, t + offset, span);
        REGARD_UNROLL for (int r = 0; r < M; ++r) REGARD_UNROLL for (int i = 0; i < KEYS_PER_STEP; ++i)
            sums[r * KEYS_PER_VECTOR + offset + i] += span_dots[r][i];
      }
    }
    write(sums, t);
  }
  if (t < count) {
    Vec sums[LANES] = {};
    for (int64_t i = 0; i < count - t; ++i)
      for (int r = 0; r < M; ++r)
        for (int64_t span = 0; span < num_channels; span += DOT_SPAN_CHANNELS) {
          Vec dot{};
          for (int64_t c = span; c < std::min(num_channels, span + DOT_SPAN_CHANNELS); c += STEP)
            dot = Channels::dot(Channels::load(q + r * num_channels + c), Channels::load(keys + (t + i) * key_row + c),
                                dot);
          sums[r * KEYS_PER_VECTOR + i] += dot;
        }
    write(sums, t);
  }
  const int64_t padded_count = (count + LANES - 1) / LANES * LANES;
  for (int r = 0; r < M; ++r)
    std::fill(scores + r * Channels::TILE_KEYS + count, scores + r * Channels::TILE_KEYS + padded_count, -INFINITY);
}

// accumulator[r] = accumulator[r] * rescale[r] + sum over t of weights[r][t] * values[t], for M queries
template <int M>
static void channel_lane_sums(const float* weights, const float* values, int64_t value_row, int64_t count,
                              int64_t num_channels, const float* rescale, float* accumulator,
                              const Prefetch& prefetch) {
  const auto sum_columns = [&](auto vectors, int64_t c) __attribute__((always_inline)) {
    constexpr int C = decltype(vectors)::value;
    // few sums are split in two, because the additions of one sum wait for each other
    constexpr int NUM_PARTIALS = M * C < 8 ? 2 : 1;
    Vec partial[NUM_PARTIALS][M][C] = {};
    REGARD_UNROLL for (int r = 0; r < M; ++r) REGARD_UNROLL for (int j = 0; j < C; ++j) partial[0][r][j] =
        load(accumulator + r * num_channels + c + j * LANES) * rescale[r];
    const auto add = [&](Vec(&target)[M][C], int64_t t) __attribute__((always_inline)) {
      Vec value[C];
      REGARD_UNROLL for (int j = 0; j < C; ++j) value[j] = load(values + t * value_row + c + j * LANES);
      REGARD_UNROLL for (int r = 0; r < M; ++r) {
        const Vec weight = broadcast(weights[r * DECODE_TILE_KEYS + t]);
        REGARD_UNROLL for (int j = 0; j < C; ++j) target[r][j] = fma(weight, value[j], target[r][j]);
      }
    };
    int64_t t = 0;
    for (; t + 2 <= count; t += 2) {
      add(partial[0], t), add(partial[NUM_PARTIALS - 1], t + 1);
      if (!prefetch.data) continue;
      REGARD_UNROLL for (int j = 0; j < C; ++j) prefetch.issue(t, c + j * LANES), prefetch.issue(t + 1, c + j * LANES);
    }
    if (t < count) add(partial[0], t);
    REGARD_UNROLL for (int r = 0; r < M; ++r) REGARD_UNROLL for (int j = 0; j < C; ++j) {
      const Vec sum = NUM_PARTIALS == 2 ? partial[0][r][j] + partial[NUM_PARTIALS - 1][r][j] : partial[0][r][j];
      store(accumulator + r * num_channels + c + j * LANES, sum);
    }
  };
  constexpr int MAX_VECTORS = Ops::NUM_REGISTERS >= 32 ? 4 : 2;
  int64_t c = 0;
  for (; c + MAX_VECTORS * LANES <= num_channels; c += MAX_VECTORS * LANES)
    sum_columns(std::integral_constant<int, MAX_VECTORS>{}, c);
  for (; c < num_channels; c += LANES) sum_columns(std::integral_constant<int, 1>{}, c);
}

static bool is_decode(const AttentionParams& p) {
  return p.n_q > 0 && p.n_k >= DECODE_TILE_KEYS && p.num_heads / p.num_kv_heads * p.n_q <= PANEL_QUERIES &&
         !p.dropout_threshold && !p.u;
}

// Rows whose channels lie in lanes, and their products, in float32. kernels/bf16/decode.h has those of bfloat16.
struct FloatChannels {
  typedef float Element;
  typedef Vec Vector;
  typedef FloatRows Rows;
  static constexpr int64_t PER_VECTOR = LANES;
  static constexpr int64_t TILE_KEYS = DECODE_TILE_KEYS;

  REGARD_INLINE Vec load(const float* p) { return REGARD_ISA::load(p); }
  REGARD_INLINE Vec dot(Vec a, Vec b, Vec sum) { return fma(a, b, sum); }

  // Contiguous queries, and a factor of their products.
  struct Queries {
    const float* data;
    float factor;
  };
  static Queries pack_queries(const AttentionParams&, int64_t, int64_t, int64_t, double, const float* scaled_queries,
                              float*) {
    return {scaled_queries, 1.0f};
  }

  static Rows load_rows(const StridedRows& rows, DType dtype, int64_t b, int64_t h, int64_t first, int64_t count,
                        int64_t num_channels, float* scratch) {
    return load_float_rows(rows, dtype, b, h, first, count, num_channels, scratch);
  }
  static bool is_finite(const Rows& rows, int64_t count, int64_t num_channels) {
    return all_finite(rows.data, rows.row_stride, count, num_channels);
  }
  static constexpr bool ROUNDS_WEIGHTS = false;  // for the products
  REGARD_INLINE Vec round_weights(Vec weights) { return weights; }

  template <int M>
  static void add_values(const float* weights, const Rows& v, int64_t count, int64_t num_channels, const float* rescale,
                         float* accumulator, const Prefetch& prefetch) {
    channel_lane_sums<M>(weights, v.data, v.row_stride, count, num_channels, rescale, accumulator, prefetch);
  }
};

template <class Channels>
struct Decode {
  const AttentionParams& params;
  const int64_t group_size, group_queries;  // query heads that share a kv head, and their queries
  const int64_t num_splits;
  // Of each split: (batch x num_kv_heads, num_splits, group_queries, value_dim + 3): output, maximum, sum of the
  // weights, and sum of the weights as rounded for the output.
  std::vector<float> partials;

  enum Visibility { EMPTY, PARTIAL, FULL };

  explicit Decode(const AttentionParams& p)
      : params(p),
        group_size(p.num_heads / p.num_kv_heads),
        group_queries(group_size * p.n_q),
        num_splits((p.n_k + SPLIT_KEYS - 1) / SPLIT_KEYS),
        partials(p.batch * p.num_kv_heads * num_splits * group_queries * (p.value_dim + 3)) {}

  bool uses_channel_lanes() const {
    return group_queries <= MAX_CHANNEL_LANE_QUERIES && params.head_dim % Channels::PER_VECTOR == 0 &&
           params.value_dim % Channels::PER_VECTOR == 0;
  }

  size_t scratch_floats() const {
    const int64_t lanes = (group_queries + LANES - 1) / LANES * LANES,
                  num_channels = params.head_dim + params.value_dim;
    const int64_t num_registers = params.program ? params.program->num_registers : 0;
    return upcast_scratch_floats(params.dtype, Channels::TILE_KEYS, num_channels) +
           lanes * (2 * params.head_dim + num_channels) + 3 * Channels::TILE_KEYS * PANEL_QUERIES +
           TILE_KEYS * params.value_dim + (num_registers + 1) * REGISTER_ROWS * PANEL_QUERIES + 8 * 16;
  }

  float* partial_state(int64_t item, int64_t row) {
    return partials.data() + (item * group_queries + row) * (params.value_dim + 3);
  }

  // Whether a head's queries attend to none, some or all of the keys from `begin` to `end` - 1.
  Visibility visibility(KeyRunCursor& runs, int64_t begin, int64_t end) const {
    if (runs.next_visible_key(begin, end) >= end) return EMPTY;
    const int64_t vectors = (params.n_q + LANES - 1) / LANES;
    for (const KeyRun* r = runs.next;
         r < runs.end && r->begin <= begin && !r->is_partial && !r->vector_begin && r->vector_end >= vectors; ++r) {
      begin = r->end;
      if (begin >= end) return FULL;
    }
    return PARTIAL;
  }

  // Runs the program on the scores of one head. score_at(t, i) points to the score of key t and query i.
  template <class ScoreAt>
  void apply_program_to_head(Interpreter& interpreter, int64_t key, int64_t count, bool is_partial, float* transposed,
                             const ScoreAt& score_at) const {
    const int64_t n_q = params.n_q;
    dispatch_vectors((n_q + LANES - 1) / LANES, [&](auto vectors) {
      constexpr int N = decltype(vectors)::value;
      for (int64_t first = 0; first < count; first += REGISTER_ROWS) {
        const int64_t here = std::min<int64_t>(REGISTER_ROWS, count - first);
        for (int64_t t = 0; t < here; ++t)
          for (int64_t i = 0; i < N * LANES; ++i)
            transposed[t * N * LANES + i] = *score_at(first + t, std::min(i, n_q - 1));
        interpreter.run<N>(0, interpreter.program.score_mod_end, key + first, here, transposed);
        if (is_partial)
          interpreter.run<N>(interpreter.program.score_mod_end, interpreter.program.mask_end, key + first, here,
                             transposed);
        for (int64_t t = 0; t < here; ++t)
          for (int64_t i = 0; i < n_q; ++i) *score_at(first + t, i) = transposed[t * N * LANES + i];
      }
    });
  }

  void run_split(int64_t item, float* scratch) {
    const FlushDenormals flush;
    const AttentionParams& p = params;
    const int64_t b = item / num_splits / p.num_kv_heads, kv_head = item / num_splits % p.num_kv_heads;
    const int64_t key_begin = item % num_splits * SPLIT_KEYS, key_end = std::min(p.n_k, key_begin + SPLIT_KEYS);
    const bool has_score_mod = p.program && p.program->score_mod_end;
    const auto allocate = [&](int64_t floats) {
      float* here = scratch;
      scratch += (floats + 15) / 16 * 16;
      return here;
    };
    float* queries = allocate(group_queries * p.head_dim);
    for (int64_t r = 0; r < group_queries; ++r) {
      float* row = queries + r * p.head_dim;
      const float* q =
          load_float_rows(p.q, p.dtype, b, kv_head * group_size + r / p.n_q, r % p.n_q, 1, p.head_dim, row).data;
      const float factor = float(has_score_mod ? p.scale : p.scale * LOG2_E_DOUBLE);
      for (int64_t c = 0; c < p.head_dim; ++c) row[c] = q[c] * factor;
    }
    KeyRunCursor runs[PANEL_QUERIES];
    const KeyRun all_keys{0, int32_t(p.n_k), 0, 0, VECTORS_PER_PANEL};
    for (int64_t n = 0; n < group_size; ++n) runs[n] = key_runs(p, b, kv_head * group_size + n, 0, all_keys);
    if (uses_channel_lanes()) {
      const auto packed = Channels::pack_queries(p, b, kv_head, group_queries, has_score_mod ? 1.0 : LOG2_E_DOUBLE,
                                                 queries, allocate(group_queries * p.head_dim));
      has_score_mod ? channel_lanes<true>(item, b, kv_head, key_begin, key_end, packed, runs, allocate)
                    : channel_lanes<false>(item, b, kv_head, key_begin, key_end, packed, runs, allocate);
    } else {
      query_lanes(item, b, kv_head, key_begin, key_end, queries, runs, allocate, has_score_mod);
    }
  }

  // Lanes hold queries, as in forward.h.
  template <class Allocate>
  void query_lanes(int64_t item, int64_t b, int64_t kv_head, int64_t key_begin, int64_t key_end, const float* queries,
                   KeyRunCursor* runs, const Allocate& allocate, bool has_score_mod) {
    const AttentionParams& p = params;
    float* k_float = allocate(upcast_scratch_floats(p.dtype, DECODE_TILE_KEYS, p.head_dim));
    float* v_float = allocate(upcast_scratch_floats(p.dtype, DECODE_TILE_KEYS, p.value_dim));
    Panel panel{};
    panel.num_queries = group_queries, panel.lanes = (group_queries + LANES - 1) / LANES * LANES;
    panel.queries = {allocate(panel.lanes * p.head_dim), panel.lanes, ExpTerms{}, nullptr};
    panel.accumulator = allocate(panel.lanes * p.value_dim);
    float* scores = allocate(DECODE_TILE_KEYS * PANEL_QUERIES);
    float* finite_values = allocate(TILE_KEYS * p.value_dim + DECODE_TILE_KEYS * PANEL_QUERIES);
    float* registers = allocate((p.program ? p.program->num_registers : 0) * REGISTER_ROWS * PANEL_QUERIES);
    float* transposed = allocate(REGISTER_ROWS * PANEL_QUERIES);
    pack_lanes(queries, p.head_dim, group_queries, p.head_dim, 1.0f, panel.queries.data, panel.lanes);
    std::fill(panel.accumulator, panel.accumulator + panel.lanes * p.value_dim, 0.0f);
    std::fill(panel.row_max, panel.row_max + PANEL_QUERIES, -INFINITY);
    std::fill(panel.row_sum, panel.row_sum + PANEL_QUERIES, 0.0f);
    for (int64_t key = key_begin; key < key_end; key += DECODE_TILE_KEYS) {
      const int64_t until = std::min(key_end, key + DECODE_TILE_KEYS);
      bool none_visible = true, all_visible = true;
      for (int64_t n = 0; n < group_size; ++n) {
        const Visibility head_visibility = visibility(runs[n], key, until);
        none_visible = none_visible && head_visibility == EMPTY, all_visible = all_visible && head_visibility == FULL;
      }
      if (none_visible) continue;
      KeyTile tile{};
      tile.begin = key, tile.end = until, tile.vector_end = VECTORS_PER_PANEL, tile.scores = scores;
      tile.masked_begin = key, tile.masked_end = all_visible ? key : until;
      const FloatRows k = load_float_rows(p.k, p.dtype, b, kv_head, key, until - key, p.head_dim, k_float);
      const FloatRows v = load_float_rows(p.v, p.dtype, b, kv_head, key, until - key, p.value_dim, v_float);
      tile.k = k.data, tile.k_row_stride = k.row_stride, tile.v = v.data, tile.v_row_stride = v.row_stride;
      if (until < key_end)
        tile.prefetch_k = prefetch_rows(p.k, p.dtype, b, kv_head, until),
        tile.prefetch_v = prefetch_rows(p.v, p.dtype, b, kv_head, until);
      float* values_scratch = all_finite(v.data, v.row_stride, until - key, p.value_dim) ? nullptr : finite_values;
      dispatch_vectors(panel.lanes / LANES, [&](auto vectors) {
        constexpr int N = decltype(vectors)::value;
        const auto modify_scores = [&] {
          for (int64_t n = 0; n < group_size; ++n) {
            Interpreter interpreter{*p.program, registers, b, kv_head * group_size + n, 0};
            apply_program_to_head(interpreter, key, until - key, !all_visible, transposed,
                                  [&](int64_t t, int64_t i) { return scores + t * N * LANES + n * p.n_q + i; });
          }
        };
        has_score_mod ? online_softmax_step<N, true>(panel, p, tile, modify_scores, values_scratch)
                      : online_softmax_step<N, false>(panel, p, tile, modify_scores, values_scratch);
      });
    }
    float ones[PANEL_QUERIES];
    std::fill(ones, ones + PANEL_QUERIES, 1.0f);
    unpack_lanes(panel.accumulator, panel.lanes, ones, group_queries, p.value_dim, partial_state(item, 0),
                 p.value_dim + 3);
    for (int64_t r = 0; r < group_queries; ++r) {
      float* sums = partial_state(item, r) + p.value_dim;
      sums[0] = panel.row_max[r], sums[1] = sums[2] = panel.row_sum[r];
    }
  }

  // Lanes hold channels of a key.
  template <bool HAS_SCORE_MOD, class Allocate>
  void channel_lanes(int64_t item, int64_t b, int64_t kv_head, int64_t key_begin, int64_t key_end,
                     const typename Channels::Queries& queries, KeyRunCursor* runs, const Allocate& allocate) {
    typedef typename Channels::Rows Rows;
    const AttentionParams& p = params;
    float* k_float = allocate(upcast_scratch_floats(p.dtype, Channels::TILE_KEYS, p.head_dim));
    float* v_float = allocate(upcast_scratch_floats(p.dtype, Channels::TILE_KEYS, p.value_dim));
    float* accumulator = allocate(group_queries * p.value_dim);
    float* scores = allocate(group_queries * Channels::TILE_KEYS);
    float* registers = allocate((p.program ? p.program->num_registers : 0) * REGISTER_ROWS * PANEL_QUERIES);
    float* transposed = allocate(REGISTER_ROWS * PANEL_QUERIES);
    Vec row_max = broadcast(-INFINITY), row_sum{}, rounded_sum{};  // one query per lane
    float rescales[LANES];
    uint8_t visible[MAX_CHANNEL_LANE_QUERIES * Channels::TILE_KEYS];
    std::fill(accumulator, accumulator + group_queries * p.value_dim, 0.0f);
    for (int64_t key = key_begin; key < key_end; key += Channels::TILE_KEYS) {
      const int64_t until = std::min(key_end, key + Channels::TILE_KEYS), count = until - key;
      Visibility visibilities[MAX_CHANNEL_LANE_QUERIES];  // of each head
      for (int64_t n = 0; n < group_size; ++n) visibilities[n] = visibility(runs[n], key, until);
      if (std::all_of(visibilities, visibilities + group_size, [](Visibility x) { return x == EMPTY; })) continue;
      const bool prefetches = until < key_end;
      const Prefetch prefetch_k = prefetches ? prefetch_rows(p.k, p.dtype, b, kv_head, until) : Prefetch{};
      const Prefetch prefetch_v = prefetches ? prefetch_rows(p.v, p.dtype, b, kv_head, until) : Prefetch{};
      const Rows k = Channels::load_rows(p.k, p.dtype, b, kv_head, key, count, p.head_dim, k_float);
      for_each_block<4>(0, group_queries, [&](auto block_rows, int64_t r) {
        constexpr int M = decltype(block_rows)::value;
        channel_lane_scores<Channels, M>(queries.data + r * p.head_dim, p.head_dim, k.data, k.row_stride, count,
                                         queries.factor, scores + r * Channels::TILE_KEYS, prefetch_k,
                                         prefetches ? r * 4 / group_queries : 0,
                                         prefetches ? (r + M) * 4 / group_queries : 0);
      });
      for (int64_t n = 0; n < group_size; ++n) {
        float* head_scores = scores + n * p.n_q * Channels::TILE_KEYS;
        if (visibilities[n] == EMPTY) std::fill(head_scores, head_scores + p.n_q * Channels::TILE_KEYS, -INFINITY);
        if (visibilities[n] == EMPTY || (visibilities[n] == FULL && !HAS_SCORE_MOD)) continue;
        Interpreter interpreter{*p.program, registers, b, kv_head * group_size + n, 0};
        apply_program_to_head(interpreter, key, count, visibilities[n] != FULL, transposed,
                              [&](int64_t t, int64_t i) { return head_scores + i * Channels::TILE_KEYS + t; });
      }
      const Rows v = Channels::load_rows(p.v, p.dtype, b, kv_head, key, count, p.value_dim, v_float);
      const bool finite = Channels::is_finite(v, count, p.value_dim);
      if (!finite)
        for (int64_t r = 0; r < group_queries; ++r)
          for (int64_t t = 0; t < count; ++t)
            visible[r * Channels::TILE_KEYS + t] = scores[r * Channels::TILE_KEYS + t] != -INFINITY;
      Vec per_row[LANES];
      std::fill(per_row, per_row + LANES, broadcast(-INFINITY));
      for (int64_t r = 0; r < group_queries; ++r)  // in this order a NaN is ignored
        for (int64_t t = 0; t < count; t += LANES)
          per_row[r] = vec_max(load(scores + r * Channels::TILE_KEYS + t), per_row[r]);
      const Vec new_max = vec_max(lane_maxima(per_row), row_max);
      const Vec origin = vec_max(new_max, broadcast(-FLT_MAX));  // no visible key so far: 2^(-inf - finite) is 0
      const Vec rescale = exp2(HAS_SCORE_MOD ? (row_max - origin) * LOG2_E : row_max - origin);
      row_max = new_max;
      Vec rounded_per_row[LANES] = {};
      std::fill(per_row, per_row + LANES, Vec{});
      for (int64_t r = 0; r < group_queries; ++r)
        for (int64_t t = 0; t < count; t += LANES) {
          float* here = scores + r * Channels::TILE_KEYS + t;
          const Vec shifted = load(here) - origin[r], weight = exp2(HAS_SCORE_MOD ? shifted * LOG2_E : shifted);
          per_row[r] += weight;
          const Vec rounded = Channels::round_weights(weight);
          store(here, rounded);
          if (Channels::ROUNDS_WEIGHTS) rounded_per_row[r] += rounded;
        }
      row_sum = fma(row_sum, rescale, lane_sums(per_row));
      if (Channels::ROUNDS_WEIGHTS) rounded_sum = fma(rounded_sum, rescale, lane_sums(rounded_per_row));
      store(rescales, rescale);
      if (finite) {
        for_each_block<4>(0, group_queries, [&](auto block_rows, int64_t r) {
          Channels::template add_values<decltype(block_rows)::value>(
              scores + r * Channels::TILE_KEYS, v, count, p.value_dim, rescales + r, accumulator + r * p.value_dim,
              r == 0 ? prefetch_v : Prefetch{});
        });
      } else {  // 0 times inf is NaN: hidden values are left out
        const FloatRows values = load_float_rows(p.v, p.dtype, b, kv_head, key, count, p.value_dim, v_float);
        for (int64_t r = 0; r < group_queries; ++r)
          for (int64_t c = 0; c < p.value_dim; ++c) {
            float& sum = accumulator[r * p.value_dim + c];
            sum *= rescales[r];
            for (int64_t t = 0; t < count; ++t)
              if (visible[r * Channels::TILE_KEYS + t])
                sum += scores[r * Channels::TILE_KEYS + t] * values.data[t * values.row_stride + c];
          }
      }
    }
    for (int64_t r = 0; r < group_queries; ++r) {
      float* to = partial_state(item, r);
      std::copy_n(accumulator + r * p.value_dim, p.value_dim, to);
      to[p.value_dim] = row_max[r], to[p.value_dim + 1] = row_sum[r];
      to[p.value_dim + 2] = Channels::ROUNDS_WEIGHTS ? rounded_sum[r] : row_sum[r];
    }
  }

  // Merges the splits of each query, in the order of their keys.
  void merge_splits() {
    const AttentionParams& p = params;
    const bool has_score_mod = p.program && p.program->score_mod_end;
    std::vector<float> output(p.value_dim);
    for (int64_t kv = 0; kv < p.batch * p.num_kv_heads; ++kv)
      for (int64_t r = 0; r < group_queries; ++r) {
        const int64_t head = kv / p.num_kv_heads * p.num_heads + kv % p.num_kv_heads * group_size + r / p.n_q;
        const int64_t row = head * p.n_q + r % p.n_q;
        float row_max = -INFINITY;
        for (int64_t n = 0; n < num_splits; ++n)
          row_max = std::max(row_max, partial_state(kv * num_splits + n, r)[p.value_dim]);
        double row_sum = 0.0, rounded_sum = 0.0;
        std::fill(output.begin(), output.end(), 0.0f);
        for (int64_t n = 0; n < num_splits; ++n) {
          const float* partial = partial_state(kv * num_splits + n, r);
          const float split_max = partial[p.value_dim], split_sum = partial[p.value_dim + 1];
          if (split_sum == 0.0f) continue;  // no visible key
          const float rescale = has_score_mod ? std::exp(split_max - row_max) : std::exp2(split_max - row_max);
          row_sum += double(split_sum) * rescale;
          rounded_sum += double(partial[p.value_dim + 2]) * rescale;
          for (int64_t c = 0; c < p.value_dim; ++c) output[c] += partial[c] * rescale;
        }
        const bool has_keys = row_sum != 0.0;
        for (int64_t c = 0; c < p.value_dim; ++c) output[c] = has_keys ? output[c] / float(rounded_sum) : 0.0f;
        write_output(p, output.data(), 1, row);
        p.row_statistic[row] =
            has_keys ? float(row_max / (has_score_mod ? 1.0 : LOG2_E_DOUBLE) + std::log(row_sum)) : -INFINITY;
      }
  }
};

template <class Channels = FloatChannels>
static bool decode(const AttentionParams& params, bool (*should_stop)()) {
  Decode<Channels> work(params);
  const bool is_complete = parallel_for(
      params.batch * params.num_kv_heads * work.num_splits, params.num_threads, work.scratch_floats(),
      [](void* context, int64_t item, float* scratch) {
        static_cast<Decode<Channels>*>(context)->run_split(item, scratch);
      },
      &work, should_stop);
  if (is_complete) work.merge_splits();
  return is_complete;
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
