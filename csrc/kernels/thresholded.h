// Thresholded normalizers, forward. The scores of a panel with all of its visible keys are kept, so that each row's
// threshold is found without computing them again. Then
//
//     entmax:   w = (s - threshold)^exponent where s > threshold; the threshold makes sum w = 1
//     topk:     w = exp(s - row_max) where s >= threshold, half-way between the k-th largest score and the next
//     hardmax:  w = 1 there
//
// and output = sum w v / sum w. Keys that have weight 0 in the whole panel are skipped. Softmax uses the same scheme
// for its column sums, without an output: lse_i, and the sum over i of exp(s_ij - lse_i).
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "abi.h"
#include "kernels/dropout.h"
#include "kernels/entmax_powers.h"
#include "kernels/key_tile.h"
#include "parallel.h"
#include "simd/flush_denormals.h"

namespace regard {
namespace REGARD_ISA {
namespace {

constexpr int MAX_NEWTON_STEPS = 64;

// The scores of a panel, key by key, and the position of each key.
struct PanelScores {
  float* scores;
  int32_t* keys;
  int64_t num_keys, lanes;

  template <class Body>
  REGARD_INLINE_METHOD void for_each_key(const Body& body) const {
    for (int64_t t = 0; t < num_keys; ++t) body(scores + t * lanes, t);
  }
};

struct ThresholdedForward {
  const AttentionParams& params;
  const ThresholdParams& threshold_params;
  int64_t num_panels;

  size_t scratch_floats() const {
    const AttentionParams& p = params;
    const int64_t num_registers = p.program ? p.program->num_registers : 0;
    return size_t(p.n_k) * (PANEL_QUERIES + 1) + TILE_KEYS * (2 * PANEL_QUERIES + p.value_dim) +
           num_registers * REGISTER_ROWS * PANEL_QUERIES + PackedQueries::scratch_floats(p, PANEL_QUERIES) +
           PANEL_QUERIES * (p.head_dim + 2 * p.value_dim) + upcast_scratch_floats(p.dtype, TILE_KEYS, p.head_dim) +
           p.value_dim + AdditiveHead::scratch_floats(p) + 128;
  }

  void run_item(int64_t item, float* scratch) const {
    const int64_t head = item / num_panels, panel = num_panels - 1 - item % num_panels;  // expensive panels first
    run_panel(head / params.num_heads, head % params.num_heads, panel, scratch, nullptr);
  }

  // Runs a group of panels that add to the same sums. The groups are fixed, so that the order of the sums is, too.
  void run_panel_group(int64_t item, float* scratch) const {
    const int64_t head = item / threshold_params.k_or_groups, group = item % threshold_params.k_or_groups;
    float* column_sums = threshold_params.column_sums + item * params.n_k;
    std::fill(column_sums, column_sums + params.n_k, 0.0f);
    for (int64_t panel = group * num_panels / threshold_params.k_or_groups;
         panel < (group + 1) * num_panels / threshold_params.k_or_groups; ++panel)
      run_panel(head / params.num_heads, head % params.num_heads, panel, scratch, column_sums);
  }

  void run_panel(int64_t b, int64_t h, int64_t panel, float* scratch, float* column_sums) const {
    const FlushDenormals flush;
    const AttentionParams& p = params;
    const int64_t query_begin = panel * PANEL_QUERIES,
                  num_queries = std::min<int64_t>(PANEL_QUERIES, p.n_q - query_begin);
    const int64_t lanes = (num_queries + LANES - 1) / LANES * LANES;
    const auto allocate = [&](int64_t floats) {
      float* here = scratch;
      scratch += floats;
      return here;
    };
    PanelScores panel_scores{allocate(p.n_k * lanes), reinterpret_cast<int32_t*>(allocate(p.n_k)), 0, lanes};
    float row_max[PANEL_QUERIES], threshold[PANEL_QUERIES];
    IntVec nonfinite[VECTORS_PER_PANEL] = {};  // -1 in lanes with a score that is NaN or inf
    std::fill(row_max, row_max + PANEL_QUERIES, -INFINITY);
    if (threshold_params.mode == ThresholdParams::ENTMAX_SLOPE)
      for (int64_t i = 0; i < lanes; ++i) {
        threshold[i] =
            threshold_params.thresholds[(b * p.num_heads + h) * p.n_q + query_begin + std::min(i, num_queries - 1)];
        row_max[i] = threshold[i];  // scores that are not above it have weight 0
      }
    collect_scores(b, h, panel, query_begin, num_queries, panel_scores, row_max, nonfinite, scratch);
    if (threshold_params.mode == ThresholdParams::COLUMN_SUMS)
      return accumulate_column_sums((b * p.num_heads + h) * p.n_q + query_begin, num_queries, panel_scores, row_max,
                                    nonfinite, column_sums);
    if (threshold_params.mode == ThresholdParams::ENTMAX) {
      solve_entmax(panel_scores, EntmaxPower{threshold_params.exponents[h]}, row_max, threshold);
    } else if (threshold_params.mode != ThresholdParams::ENTMAX_SLOPE) {
      topk_thresholds(panel_scores, row_max, threshold);
    }
    for (int64_t i = 0; i < lanes; ++i)
      if (nonfinite[i / LANES][i % LANES]) threshold[i] = NAN;
    accumulate_values(b, h, query_begin, num_queries, panel_scores, row_max, threshold, scratch);
  }

  // Collects the scores of a panel that may have a weight other than 0. With entmax, that of a score more than 1 below
  // another one is 0.
  void collect_scores(int64_t b, int64_t h, int64_t panel, int64_t query_begin, int64_t num_queries,
                      PanelScores& panel_scores, float* row_max, IntVec* nonfinite, float* scratch) const {
    const AttentionParams& p = params;
    const auto allocate = [&](int64_t floats) {
      float* here = scratch;
      scratch += floats;
      return here;
    };
    static const Program no_program{};
    const bool has_score_mod = p.program && p.program->score_mod_end;
    const int64_t lanes = panel_scores.lanes, kv_head = h / (p.num_heads / p.num_kv_heads);
    float* scores = allocate(TILE_KEYS * PANEL_QUERIES);
    float* registers = allocate((p.program ? p.program->num_registers : 0) * REGISTER_ROWS * PANEL_QUERIES);
    const AdditiveHead additive =
        p.u ? AdditiveHead(p, h, 1.0, allocate(AdditiveHead::scratch_floats(p))) : AdditiveHead();
    const FloatRows q =
        load_float_rows(p.q, p.dtype, b, h, query_begin, num_queries, p.head_dim, allocate(PANEL_QUERIES * p.head_dim));
    const PackedQueries queries =
        PackedQueries::pack(p, q, num_queries, lanes, 1.0, additive, allocate(PackedQueries::scratch_floats(p, lanes)));
    float* k_float = allocate(upcast_scratch_floats(p.dtype, TILE_KEYS, p.head_dim));
    const KeyRun all_keys{0, int32_t(p.n_k), 0, 0, VECTORS_PER_PANEL};
    KeyRunCursor runs = key_runs(p, b, h, panel, all_keys);
    KeyTile tile{};
    for (int64_t from = 0; tile.advance(
             runs, from, std::min(p.n_k, runs.next_visible_key(from, p.n_k) / TILE_KEYS * TILE_KEYS + TILE_KEYS));
         from = tile.end) {
      const int64_t keys = tile.end - tile.begin;
      const FloatRows k = load_float_rows(p.k, p.dtype, b, kv_head, tile.begin, keys, p.head_dim, k_float);
      tile.k = k.data, tile.k_row_stride = k.row_stride;
      if (p.u) tile.exp_terms = key_exp_terms(k.data, k.row_stride, keys, p.head_dim, additive.key_exp_scratch);
      Interpreter interpreter{p.program ? *p.program : no_program, registers, b, h,
                              query_begin + tile.vector_begin * LANES};
      dispatch_vectors(std::min(tile.vector_end, lanes / LANES) - tile.vector_begin, [&](auto vectors) {
        constexpr int N = decltype(vectors)::value;
        // where all scores are collected, they are computed in place
        const bool in_place = threshold_params.mode == ThresholdParams::COLUMN_SUMS && N * LANES == lanes;
        tile.scores = in_place ? panel_scores.scores + panel_scores.num_keys * lanes : scores;
        compute_scores<N>(p, queries, tile, tile.scores);
        if (has_score_mod || tile.has_masked_keys()) apply_program<N>(tile, interpreter);
        update_row_max<N>(tile, row_max + tile.vector_begin * LANES, nonfinite + tile.vector_begin);
        if (!in_place) return append_candidates<N>(tile, panel_scores, row_max + tile.vector_begin * LANES);
        for (int64_t t = tile.begin; t < tile.end; ++t) panel_scores.keys[panel_scores.num_keys++] = int32_t(t);
      });
    }
  }

  template <int N>
  void update_row_max(const KeyTile& tile, float* panel_max, IntVec* nonfinite) const {
    const bool has_thresholds = threshold_params.mode == ThresholdParams::ENTMAX_SLOPE;  // row_max holds the thresholds
    Vec row_max[N];
    IntVec is_nonfinite[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) row_max[j] = load(panel_max + j * LANES), is_nonfinite[j] = nonfinite[j];
    for (int64_t t = 0; t < tile.end - tile.begin; ++t) REGARD_UNROLL for (int j = 0; j < N; ++j) {
        const Vec s = load(tile.scores + (t * N + j) * LANES);
        is_nonfinite[j] |= ~IntVec(s < INFINITY);
        if (!has_thresholds) row_max[j] = vec_max(s, row_max[j]);  // in this order a NaN is ignored
      }
    REGARD_UNROLL for (int j = 0; j < N; ++j) store(panel_max + j * LANES, row_max[j]), nonfinite[j] = is_nonfinite[j];
  }

  template <int N>
  void append_candidates(const KeyTile& tile, PanelScores& panel_scores, const float* panel_max) const {
    const bool has_thresholds = threshold_params.mode == ThresholdParams::ENTMAX_SLOPE;
    Vec row_max[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) row_max[j] = load(panel_max + j * LANES);
    const int64_t keys = tile.end - tile.begin;
    const float margin = has_thresholds ? 0.0f : threshold_params.mode == ThresholdParams::ENTMAX ? 1.0f : INFINITY;
    for (int64_t t = 0; t < keys; ++t) {
      const float* from = tile.scores + t * N * LANES;
      IntVec is_candidate{};
      REGARD_UNROLL for (int j = 0; j < N; ++j) is_candidate |= IntVec(load(from + j * LANES) > row_max[j] - margin);
      if (!any(is_candidate)) continue;
      float* to = panel_scores.scores + panel_scores.num_keys * panel_scores.lanes;
      if (N * LANES < panel_scores.lanes) std::fill(to, to + panel_scores.lanes, -INFINITY);
      REGARD_UNROLL for (int j = 0; j < N; ++j) store(to + (tile.vector_begin + j) * LANES, load(from + j * LANES));
      panel_scores.keys[panel_scores.num_keys++] = int32_t(tile.begin + t);
    }
  }

  // Finds the threshold of each lane at which its weights sum to 1; inf for a row without keys.
  void solve_entmax(PanelScores& panel_scores, const EntmaxPower& entmax_power, const float* row_max,
                    float* threshold) const {
    for (int64_t i = 0; i < panel_scores.lanes; ++i)
      threshold[i] = row_max[i] == -INFINITY ? INFINITY : row_max[i] - 1.0f;
    prune_candidates(panel_scores, threshold);
    bool is_active[PANEL_QUERIES];
    std::fill(is_active, is_active + PANEL_QUERIES, true);
    double total[PANEL_QUERIES], slope[PANEL_QUERIES];
    for (int iteration = 0; iteration < MAX_NEWTON_STEPS; ++iteration) {
      dispatch_vectors(panel_scores.lanes / LANES, [&](auto vectors) {
        constexpr int N = decltype(vectors)::value;
        sum_and_slope<N>(panel_scores, entmax_power, threshold, total, slope);
      });
      bool any_active = false;
      for (int64_t i = 0; i < panel_scores.lanes; ++i) {
        if (!is_active[i]) continue;
        const double step = entmax_power.newton_step(total[i], slope[i]);
        threshold[i] = float(threshold[i] + step);
        is_active[i] = step > 4 * FLT_EPSILON * std::max(1.0f, std::abs(threshold[i]));
        any_active |= is_active[i];
      }
      if (!any_active) return;
    }
  }

  // Removes the keys whose scores are above the threshold in no lane.
  static void prune_candidates(PanelScores& panel_scores, const float* threshold) {
    int64_t num_left = 0;
    for (int64_t t = 0; t < panel_scores.num_keys; ++t) {
      const float* from = panel_scores.scores + t * panel_scores.lanes;
      IntVec is_candidate{};
      for (int64_t i = 0; i < panel_scores.lanes; i += LANES)
        is_candidate |= IntVec(load(from + i) > load(threshold + i));
      if (!any(is_candidate)) continue;
      if (num_left < t)
        std::copy_n(from, panel_scores.lanes, panel_scores.scores + num_left * panel_scores.lanes),
            panel_scores.keys[num_left] = panel_scores.keys[t];
      ++num_left;
    }
    panel_scores.num_keys = num_left;
  }

  template <int N>
  static void sum_and_slope(const PanelScores& panel_scores, const EntmaxPower& entmax_power, const float* threshold,
                            double* total, double* slope) {
    Vec origin[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) origin[j] = load(threshold + j * LANES);
    std::fill(total, total + N * LANES, 0.0), std::fill(slope, slope + N * LANES, 0.0);
    // sums of sums: rounding errors grow with their lengths
    for (int64_t chunk = 0; chunk < panel_scores.num_keys; chunk += 4 * CHUNK_KEYS) {
      Vec sum[N] = {}, lower_sum[N] = {};
      for (int64_t t = chunk; t < std::min<int64_t>(panel_scores.num_keys, chunk + 4 * CHUNK_KEYS); ++t)
        REGARD_UNROLL for (int j = 0; j < N; ++j) {
          const Vec x = vec_max(load(panel_scores.scores + t * panel_scores.lanes + j * LANES) - origin[j], Vec{});
          const Vec lower_power = entmax_power.pow_minus_one(x);
          lower_sum[j] += lower_power;
          sum[j] = fma(lower_power, x, sum[j]);
        }
      REGARD_UNROLL for (int j = 0; j < N; ++j) for (int lane = 0; lane < LANES; ++lane) {
        total[j * LANES + lane] += sum[j][lane];
        slope[j * LANES + lane] += lower_sum[j][lane];
      }
    }
  }

  // Sets each threshold half-way between the k-th largest score and the largest score below it. Only equal scores tie:
  // for adjacent floats, half-way is the larger one.
  void topk_thresholds(const PanelScores& panel_scores, const float* row_max, float* threshold) const {
    const int64_t k = threshold_params.mode == ThresholdParams::HARDMAX ? 1 : threshold_params.k_or_groups;
    for (int64_t i = 0; i < panel_scores.lanes; i += LANES) {
      Vec kth = load(row_max + i);
      if (k > 1) kth = kth_largest(panel_scores, i, k, row_max + i);
      Vec next_lower = broadcast(-INFINITY);
      panel_scores.for_each_key([&](const float* row, int64_t) REGARD_INLINE_LAMBDA {
        const Vec s = load(row + i);
        next_lower = vec_max(where(IntVec(s >= kth), broadcast(-INFINITY), s), next_lower);
      });
      const Vec midpoint = next_lower + (kth - next_lower) * 0.5f;
      Vec half_way = where(IntVec(midpoint > next_lower), midpoint, kth);
      half_way = where(IntVec(next_lower == -INFINITY), broadcast(-FLT_MAX), half_way);
      store(threshold + i, where(IntVec(kth == -INFINITY), broadcast(-FLT_MAX), half_way));
    }
  }

  // The k-th largest score of each lane, by bisection over the ordered bits of floats; -inf where there are fewer.
  static Vec kth_largest(const PanelScores& panel_scores, int64_t i, int64_t k, const float* row_max) {
    const auto ordered = [](IntVec x) { return x ^ ((x >> 31) & 0x7fffffff); };
    int64_t low[LANES], high[LANES];  // at least k scores are >= low, and fewer are >= high
    const IntVec highest = ordered(bits(load(row_max))), least = ordered(bits(broadcast(-INFINITY)));
    for (int lane = 0; lane < LANES; ++lane) low[lane] = least[lane], high[lane] = int64_t(highest[lane]) + 1;
    for (int bit = 0; bit < 33; ++bit) {
      IntVec middle{};
      bool is_open = false;
      for (int lane = 0; lane < LANES; ++lane) {
        middle[lane] = int32_t(low[lane] + (high[lane] - low[lane]) / 2);
        is_open |= high[lane] - low[lane] > 1;
      }
      if (!is_open) break;
      IntVec num_at_least{};
      panel_scores.for_each_key([&](const float* row, int64_t)
                                    REGARD_INLINE_LAMBDA { num_at_least += ordered(bits(load(row + i))) >= middle; });
      for (int lane = 0; lane < LANES; ++lane) (-int64_t(num_at_least[lane]) >= k ? low : high)[lane] = middle[lane];
    }
    IntVec kth{};
    for (int lane = 0; lane < LANES; ++lane) kth[lane] = int32_t(low[lane]);
    return from_bits(ordered(kth));
  }

  // Computes the weights of a key, adds them to `sum`, and returns the lanes where they are not 0.
  template <int N>
  REGARD_INLINE_METHOD IntVec compute_weights(const float* row, const EntmaxPower& entmax_power, const float* row_max,
                                              const float* threshold, float* to, Vec (&sum)[N]) const {
    IntVec has_weight{};
    REGARD_UNROLL for (int j = 0; j < N; ++j) {
      const Vec s = load(row + j * LANES), origin = load(threshold + j * LANES);
      Vec w;
      if (threshold_params.mode == ThresholdParams::ENTMAX) {
        const Vec x = vec_max(s - origin, Vec{});
        w = entmax_power.pow_minus_one(x) * x;
      } else if (threshold_params.mode == ThresholdParams::ENTMAX_SLOPE) {
        w = entmax_power.pow_minus_one(vec_max(s - origin, Vec{}));
      } else {
        const Vec weight = threshold_params.mode == ThresholdParams::HARDMAX
                               ? broadcast(1.0f)
                               : exp2((s - load(row_max + j * LANES)) * LOG2_E);
        w = where(IntVec(s >= origin), weight, Vec{});
      }
      store(to + j * LANES, w);
      sum[j] += w;
      has_weight |= IntVec(w != 0.0f);
    }
    return has_weight;
  }

  void accumulate_values(int64_t b, int64_t h, int64_t query_begin, int64_t num_queries,
                         const PanelScores& panel_scores, const float* row_max, const float* threshold,
                         float* scratch) const {
    const AttentionParams& p = params;
    const int64_t lanes = panel_scores.lanes, num_channels = p.value_dim,
                  row = (b * p.num_heads + h) * p.n_q + query_begin;
    const EntmaxPower entmax_power{threshold_params.exponents ? threshold_params.exponents[h] : 0.0f};
    float *weights = scratch, *undropped_weights = weights + TILE_KEYS * PANEL_QUERIES,
          *values = undropped_weights + TILE_KEYS * PANEL_QUERIES, *accumulator = values + TILE_KEYS * num_channels;
    float *v_float = accumulator + PANEL_QUERIES * num_channels, *rows = v_float + num_channels;
    std::fill(accumulator, accumulator + lanes * num_channels, 0.0f);
    Dropout dropout;
    if (p.dropout_threshold) dropout.init(p, b, h, query_begin, num_queries);
    float total[PANEL_QUERIES] = {};
    dispatch_vectors(lanes / LANES, [&](auto vectors) {
      constexpr int N = decltype(vectors)::value;
      Vec row_sum[N] = {}, ones[N];
      REGARD_UNROLL for (int j = 0; j < N; ++j) ones[j] = broadcast(1.0f);
      for (int64_t t = 0; t < panel_scores.num_keys;) {
        int64_t num_values = 0;
        Vec sum[N] = {};
        for (; t < panel_scores.num_keys && num_values < TILE_KEYS; ++t) {
          float* to = weights + num_values * lanes;
          if (!any(compute_weights<N>(panel_scores.scores + t * lanes, entmax_power, row_max, threshold, to, sum)))
            continue;
          if (p.dropout_threshold) REGARD_UNROLL for (int j = 0; j < N; ++j) {
              const Vec w = load(to + j * LANES);
              store(undropped_weights + num_values * lanes + j * LANES, w);
              store(to + j * LANES, where(dropout.keep_mask(panel_scores.keys[t], j), w * dropout.scale, Vec{}));
            }
          const FloatRows v = load_float_rows(p.v, p.dtype, b, h / (p.num_heads / p.num_kv_heads), panel_scores.keys[t],
                                              1, num_channels, v_float);
          std::copy_n(v.data, num_channels, values + num_values++ * num_channels);
        }
        REGARD_UNROLL for (int j = 0; j < N; ++j) row_sum[j] += sum[j];
        if (!all_finite(values, num_channels, num_values, num_channels))
          add_nonfinite_values(p.dropout_threshold ? undropped_weights : weights, weights, values, num_values, lanes,
                               accumulator);
        weighted_sums<N>(weights, values, num_channels, num_values, num_channels, ones, accumulator, lanes);
      }
      REGARD_UNROLL for (int j = 0; j < N; ++j) store(total + j * LANES, row_sum[j]);
    });
    for (int64_t i = 0; i < lanes; ++i) {
      if (i < num_queries)
        p.row_statistic[row + i] =
            threshold_params.mode == ThresholdParams::ENTMAX_SLOPE ? std::log(total[i]) : threshold[i];
      total[i] = threshold[i] != threshold[i] ? NAN : total[i] == 0.0f ? 0.0f : 1.0f / total[i];
    }
    const bool direct = p.output_dtype == FP32;
    float* to = direct ? static_cast<float*>(p.output) + row * num_channels : rows;
    unpack_lanes(accumulator, lanes, total, num_queries, num_channels, to, num_channels);
    if (!direct) write_output(p, rows, num_queries, row);
  }

  // Computes the sum of each row, and then adds its weights to the column sums.
  void accumulate_column_sums(int64_t row, int64_t num_queries, const PanelScores& panel_scores, const float* row_max,
                              const IntVec* nonfinite, float* column_sums) const {
    dispatch_vectors(panel_scores.lanes / LANES, [&](auto vectors) {
      constexpr int N = decltype(vectors)::value;
      Vec origin[N], total[N] = {}, inverse_sum[N];
      REGARD_UNROLL for (int j = 0; j < N; ++j) origin[j] = vec_max(load(row_max + j * LANES), broadcast(-FLT_MAX));
      // sums of sums: rounding errors grow with their lengths
      for (int64_t chunk = 0; chunk < panel_scores.num_keys; chunk += CHUNK_KEYS) {
        Vec sum[N] = {};
        for (int64_t t = chunk; t < std::min<int64_t>(panel_scores.num_keys, chunk + CHUNK_KEYS); ++t)
          REGARD_UNROLL for (int j = 0; j < N; ++j) {
            float* element = panel_scores.scores + t * panel_scores.lanes + j * LANES;
            const Vec weight = exp2((load(element) - origin[j]) * LOG2_E);
            store(element, weight);
            sum[j] += weight;
          }
        REGARD_UNROLL for (int j = 0; j < N; ++j) total[j] += sum[j];
      }
      for (int64_t i = 0; i < panel_scores.lanes; ++i) {
        const float sum = nonfinite[i / LANES][i % LANES] ? NAN : total[i / LANES][i % LANES];
        inverse_sum[i / LANES][i % LANES] = i < num_queries && sum != 0.0f ? 1.0f / sum : 0.0f;
        if (i < num_queries)
          params.row_statistic[row + i] = sum == 0.0f ? -INFINITY : float(row_max[i] + std::log(double(sum)));
      }
      for (int64_t t = 0; t < panel_scores.num_keys; ++t) {
        Vec sum{};
        REGARD_UNROLL for (int j = 0; j < N; ++j) sum =
            fma(load(panel_scores.scores + t * panel_scores.lanes + j * LANES), inverse_sum[j], sum);
        column_sums[panel_scores.keys[t]] += horizontal_sum(sum);
      }
    });
  }

  // 0 times inf is NaN: values that are not finite are added where their weight is not 0, and then set to 0.
  void add_nonfinite_values(const float* undropped_weights, const float* weights, float* values, int64_t keys,
                            int64_t lanes, float* accumulator) const {
    for (int64_t t = 0; t < keys; ++t)
      for (int64_t c = 0; c < params.value_dim; ++c) {
        float& value = values[t * params.value_dim + c];
        if (std::isfinite(value)) continue;
        for (int64_t i = 0; i < lanes; ++i)
          if (undropped_weights[t * lanes + i] != 0.0f) accumulator[c * lanes + i] += weights[t * lanes + i] * value;
        value = 0.0f;
      }
  }
};

static bool thresholded_in_panels(const AttentionParams& params, const ThresholdParams& threshold_params,
                                  bool (*should_stop)()) {
  ThresholdedForward work{params, threshold_params, (params.n_q + PANEL_QUERIES - 1) / PANEL_QUERIES};
  const int64_t num_heads = params.batch * params.num_heads;
  if (threshold_params.mode == ThresholdParams::COLUMN_SUMS)
    return parallel_for(
        num_heads * threshold_params.k_or_groups, params.num_threads, work.scratch_floats(),
        [](void* context, int64_t item, float* scratch) {
          static_cast<ThresholdedForward*>(context)->run_panel_group(item, scratch);
        },
        &work, should_stop);
  return parallel_for(
      num_heads * work.num_panels, params.num_threads, work.scratch_floats(),
      [](void* context, int64_t item, float* scratch) {
        static_cast<ThresholdedForward*>(context)->run_item(item, scratch);
      },
      &work, should_stop);
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
