// Forward in bfloat16: the online softmax of kernels/forward.h with products of bfloat16 pairs.
//
// Scores, maxima and sums are floats. Weights are rounded to bfloat16 once, and the output is divided by the sum of the
// rounded weights; the lse is the logarithm of the sum of the unrounded ones. The
// exponential does not propagate NaN or infinity, so a panel computes a tile in float32 if its scores might not be
// finite, or if its values are not.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "abi.h"
#include "kernels/bf16/products.h"
#include "kernels/dropout.h"
#include "kernels/forward.h"
#include "kernels/key_tile.h"
#include "kernels/scratch.h"
#include "simd/flush_denormals.h"

namespace regard {
namespace REGARD_ISA {
namespace {

// Larger products might overflow to infinity.
constexpr float MAX_BF16_PRODUCT = 1e30f;
// A row with a larger score, in units of log 2, is computed in float32: there, a maximum is rounded like its scores.
constexpr float MAX_BF16_SCORE = 1e5f;

struct Bf16Panel : Panel {
  int32_t* query_pairs;                  // (pairs of head_dim, lanes), with the sign of the scale
  float largest_query;                   // magnitude
  float rounded_row_sum[PANEL_QUERIES];  // of the weights as rounded; row_sum is that of the unrounded ones
  float product_max[PANEL_QUERIES];      // row_max before it is multiplied by the scale
  bool is_in_float32;                    // from the first tile on that needs it
};

// The keys and values of a tile, loaded once a panel attends to it.
struct Bf16TileRows {
  bool is_loaded = false;
  Bf16Rows k{};
  float largest_key = 0.0f, largest_value = 0.0f;  // magnitudes
};

struct Bf16Forward {
  const AttentionParams& params;
  int64_t blocks_per_head;
  int64_t panels_per_block;

  // The scratch memory of an item.
  struct Workspace {
    float* scores;       // (keys, lanes)
    int32_t* weights;    // (pairs of keys, lanes)
    int32_t* values;     // (pairs of keys, value_dim)
    uint16_t* odd_keys;  // keys with an odd head_dim
    float* registers;    // of the interpreter
    // of tiles in float32
    float *k_float, *v_float, *finite_values, *query_rows, *queries;
  };

  bool has_score_mod() const { return params.program && params.program->score_mod_end; }
  // A panel's maximum is in units of log 2 unless there is a score modifier, as in kernels/forward.h.
  double score_unit() const { return has_score_mod() ? 1.0 : LOG2_E_DOUBLE; }

  size_t scratch_floats() const {
    const AttentionParams& p = params;
    const int64_t num_registers = p.program ? p.program->num_registers : 0;
    const int64_t tile_floats = BF16_TILE_KEYS * PANEL_QUERIES + BF16_TILE_KEYS / 2 * (PANEL_QUERIES + p.value_dim) +
                                BF16_TILE_KEYS * (p.head_dim / 2 + 1);
    const int64_t panel_floats = PANEL_QUERIES * (num_pairs(p.head_dim) + p.value_dim);
    const int64_t float32_floats =
        TILE_KEYS * (p.head_dim + 2 * p.value_dim + PANEL_QUERIES) + 2 * PANEL_QUERIES * p.head_dim;
    return tile_floats + num_registers * REGISTER_ROWS * PANEL_QUERIES + panels_per_block * panel_floats +
           float32_floats + 16 * (11 + 2 * panels_per_block);
  }

  Workspace allocate_workspace(ScratchAllocator& allocator) const {
    const AttentionParams& p = params;
    Workspace work;
    work.scores = allocator.floats(BF16_TILE_KEYS * PANEL_QUERIES);
    work.weights = reinterpret_cast<int32_t*>(allocator.floats(BF16_TILE_KEYS / 2 * PANEL_QUERIES));
    work.values = reinterpret_cast<int32_t*>(allocator.floats(BF16_TILE_KEYS / 2 * p.value_dim));
    work.odd_keys = reinterpret_cast<uint16_t*>(allocator.floats(BF16_TILE_KEYS * (p.head_dim / 2 + 1)));
    work.registers = allocator.floats((p.program ? p.program->num_registers : 0) * REGISTER_ROWS * PANEL_QUERIES);
    work.k_float = allocator.floats(TILE_KEYS * p.head_dim);
    work.v_float = allocator.floats(TILE_KEYS * p.value_dim);
    work.finite_values = allocator.floats(TILE_KEYS * (p.value_dim + PANEL_QUERIES));
    work.query_rows = allocator.floats(PANEL_QUERIES * p.head_dim);
    work.queries = allocator.floats(PANEL_QUERIES * p.head_dim);
    return work;
  }

  void run_block(int64_t item, float* scratch) const {
    const FlushDenormals flush;
    const AttentionParams& p = params;
    const int64_t b = item / (p.num_heads * blocks_per_head), h = item / blocks_per_head % p.num_heads;
    const int64_t kv_head = h / (p.num_heads / p.num_kv_heads);
    const int64_t num_panels = (p.n_q + PANEL_QUERIES - 1) / PANEL_QUERIES;
    // expensive blocks first: under a causal mask the last queries attend to most keys
    const int64_t panel_begin = (blocks_per_head - 1 - item % blocks_per_head) * panels_per_block,
                  panel_end = std::min(num_panels, panel_begin + panels_per_block);
    ScratchAllocator allocator(scratch);
    const Workspace work = allocate_workspace(allocator);
    Bf16Panel panels[PANELS_PER_BLOCK];
    const KeyRun all_keys{0, int32_t(p.n_k), 0, 0, VECTORS_PER_PANEL};
    for (int64_t n = panel_begin; n < panel_end; ++n) init_panel(b, h, n, all_keys, allocator, panels[n - panel_begin]);
    const auto next_tile = [&](int64_t key) {
      int64_t visible_key = p.n_k;
      for (int64_t n = 0; n < panel_end - panel_begin; ++n)
        visible_key = std::min(visible_key, panels[n].key_runs.next_visible_key(key, p.n_k));
      return visible_key < p.n_k ? visible_key / BF16_TILE_KEYS * BF16_TILE_KEYS : p.n_k;
    };
    for (int64_t key = next_tile(0); key < p.n_k; key = next_tile(key + BF16_TILE_KEYS)) {
      const int64_t until = std::min(p.n_k, key + BF16_TILE_KEYS);
      Bf16TileRows rows;
      for (int64_t n = 0; n < panel_end - panel_begin; ++n) {
        KeyTile tile{};
        for (int64_t from = key; tile.advance(panels[n].key_runs, from, until); from = tile.end) {
          if (!rows.is_loaded) load_tile(b, kv_head, key, until, work, rows);
          const Prefetch prefetch = until == p.n_k ? prefetch_next_item(item, n, tile.begin - key) : Prefetch{};
          run_panel_tile(b, h, panels[n], tile, key, rows, prefetch, work);
        }
      }
    }
    for (int64_t n = 0; n < panel_end - panel_begin; ++n) write_panel(b, h, panels[n]);
  }

  void init_panel(int64_t b, int64_t h, int64_t n, const KeyRun& all_keys, ScratchAllocator& allocator,
                  Bf16Panel& panel) const {
    const AttentionParams& p = params;
    panel.query_begin = n * PANEL_QUERIES;
    panel.num_queries = std::min<int64_t>(PANEL_QUERIES, p.n_q - panel.query_begin);
    panel.lanes = (panel.num_queries + LANES - 1) / LANES * LANES;
    const Bf16Rows q = bf16_rows(p.q, b, h, panel.query_begin);
    panel.query_pairs = reinterpret_cast<int32_t*>(allocator.floats(num_pairs(p.head_dim) * panel.lanes));
    pack_lane_pairs(q, panel.num_queries, p.head_dim, p.scale < 0.0, panel.query_pairs, panel.lanes);
    panel.largest_query = largest_magnitude(q, panel.num_queries, p.head_dim);
    panel.accumulator = allocator.floats(panel.lanes * p.value_dim);
    std::fill_n(panel.accumulator, panel.lanes * p.value_dim, 0.0f);
    std::fill_n(panel.row_max, PANEL_QUERIES, -INFINITY);
    std::fill_n(panel.row_sum, PANEL_QUERIES, 0.0f);
    std::fill_n(panel.rounded_row_sum, PANEL_QUERIES, 0.0f);
    std::fill_n(panel.product_max, PANEL_QUERIES, -INFINITY);
    panel.is_in_float32 = false;
    if (p.dropout_threshold) {
      panel.dropout.init(p, b, h, panel.query_begin, panel.num_queries);
      panel.dropout.scale = 1.0f;  // write_panel scales the output
    }
    panel.key_runs = key_runs(p, b, h, n, all_keys);
  }

  void load_tile(int64_t b, int64_t kv_head, int64_t key, int64_t until, const Workspace& work,
                 Bf16TileRows& rows) const {
    const AttentionParams& p = params;
    const Bf16Rows v = bf16_rows(p.v, b, kv_head, key);
    rows.k = pad_odd_rows(bf16_rows(p.k, b, kv_head, key), until - key, p.head_dim, work.odd_keys);
    rows.largest_key = largest_magnitude(rows.k, until - key, p.head_dim);
    rows.largest_value = largest_magnitude(v, until - key, p.value_dim);
    pack_row_pairs(v, until - key, p.value_dim, work.values, p.value_dim);
    rows.is_loaded = true;
  }

  // Prefetches memory that the thread needs next, as in kernels/forward.h.
  Prefetch prefetch_next_item(int64_t item, int64_t n, int64_t row_offset) const {
    const AttentionParams& p = params;
    const int64_t next = item + p.num_threads;
    if (n > 2 || next >= p.batch * p.num_heads * blocks_per_head) return {};
    const int64_t b = next / (p.num_heads * blocks_per_head), h = next / blocks_per_head % p.num_heads,
                  kv_head = h / (p.num_heads / p.num_kv_heads);
    const int64_t query_begin = (blocks_per_head - 1 - next % blocks_per_head) * panels_per_block * PANEL_QUERIES;
    if (n == 2) return prefetch_rows(p.q, p.dtype, b, h, query_begin + row_offset);
    return prefetch_rows(n == 0 ? p.k : p.v, p.dtype, b, kv_head, row_offset);
  }

  void run_panel_tile(int64_t b, int64_t h, Bf16Panel& panel, KeyTile& tile, int64_t key, const Bf16TileRows& rows,
                      const Prefetch& prefetch, const Workspace& work) const {
    const AttentionParams& p = params;
    static const Program no_program{};
    tile.scores = work.scores;
    Interpreter interpreter{p.program ? *p.program : no_program, work.registers, b, h,
                            panel.query_begin + tile.vector_begin * LANES};
    const float score_bound =
        panel.largest_query * rows.largest_key * float(p.head_dim * std::abs(p.scale) * LOG2_E_DOUBLE);
    bool is_done = false;
    // false for NaN
    if (!panel.is_in_float32 && score_bound < MAX_BF16_PRODUCT && std::isfinite(rows.largest_value))
      dispatch_vectors(num_vectors(panel, tile), [&](auto vectors) {
        constexpr int N = decltype(vectors)::value;
        is_done = has_score_mod() ? run_step<N, true>(panel, tile, key, rows.k, prefetch, interpreter, work)
                                  : run_step<N, false>(panel, tile, key, rows.k, prefetch, interpreter, work);
      });
    if (is_done) return;
    panel.is_in_float32 = true;
    run_tile_in_float32(b, h, panel, tile, interpreter, work);
  }

  static int64_t num_vectors(const Panel& panel, const KeyTile& tile) {
    return std::min(tile.vector_end, panel.lanes / LANES) - tile.vector_begin;
  }

  // One step of the online softmax. Returns false, with the panel unchanged, if a score is too large or not finite.
  template <int N, bool HAS_SCORE_MOD>
  bool run_step(Bf16Panel& panel, const KeyTile& tile, int64_t key, const Bf16Rows& k, const Prefetch& prefetch,
                Interpreter& interpreter, const Workspace& work) const {
    const AttentionParams& p = params;
    const int64_t count = tile.end - tile.begin, low = tile.vector_begin * LANES;
    const float unit = HAS_SCORE_MOD ? 1.0f : float(std::abs(p.scale) * LOG2_E_DOUBLE);
    const bool has_program = HAS_SCORE_MOD || tile.has_masked_keys();
    Vec row_max[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) row_max[j] = broadcast(-INFINITY);
    compute_scores<N, HAS_SCORE_MOD>(panel.query_pairs + low, panel.lanes, k.data + (tile.begin - key) * k.row_stride,
                                     k.row_stride, count, tile.scores, row_max, prefetch);
    if (has_program) {
      apply_program<N>(tile, interpreter);
      IntVec is_infinite{};
      REGARD_UNROLL for (int j = 0; j < N; ++j) row_max[j] = broadcast(-INFINITY);
      for (int64_t t = 0; t < count; ++t) REGARD_UNROLL for (int j = 0; j < N; ++j) {
          const Vec score = load(tile.scores + (t * N + j) * LANES);
          row_max[j] = vec_max(score, row_max[j]);
          is_infinite |= ~IntVec(score <= MAX_BF16_PRODUCT);  // or NaN
        }
      if (any(is_infinite)) return false;
    }
    Vec product_max[N], rescale[N];
    IntVec is_too_large{};
    REGARD_UNROLL for (int j = 0; j < N; ++j) {
      product_max[j] = vec_max(row_max[j], load(panel.product_max + low + j * LANES));
      row_max[j] = product_max[j] * unit;
      is_too_large |= IntVec(row_max[j] > MAX_BF16_SCORE);
    }
    if (any(is_too_large)) return false;
    REGARD_UNROLL for (int j = 0; j < N; ++j) {
      const Vec old_max = load(panel.row_max + low + j * LANES);
      store(panel.row_max + low + j * LANES, row_max[j]);
      store(panel.product_max + low + j * LANES, product_max[j]);
      // no visible key so far: weights and the factor are 0
      product_max[j] = vec_max(product_max[j], broadcast(-FLT_MAX));
      rescale[j] = exp2((old_max - vec_max(row_max[j], broadcast(-FLT_MAX))) * (HAS_SCORE_MOD ? LOG2_E : 1.0f));
    }
    // pairs of keys begin at even keys of the tile's values
    const int64_t lead = (tile.begin - key) % 2;
    const Vec fixed_unit = broadcast((HAS_SCORE_MOD ? LOG2_E : unit) * 0x1p23f);
    p.dropout_threshold ? compute_weights<N, true>(panel, tile, lead, fixed_unit, product_max, rescale, work.weights)
                        : compute_weights<N, false>(panel, tile, lead, fixed_unit, product_max, rescale, work.weights);
    const int32_t* values = work.values + (tile.begin - key) / 2 * p.value_dim;
    for_each_block<microkernel_rows(N)>(0, p.value_dim, [&](auto channels, int64_t c) __attribute__((always_inline)) {
      add_pair_products<decltype(channels)::value, N>(panel.accumulator + c * panel.lanes + low, panel.lanes, rescale,
                                                      reinterpret_cast<const uint16_t*>(values + c), 2, 2 * p.value_dim,
                                                      work.weights, N * LANES, num_pairs(count + lead));
    });
    return true;
  }

  // scores[t][lane] = k[t] . q[lane], times the scale with SCALED, and their maxima.
  template <int N, bool SCALED>
  void compute_scores(const int32_t* queries, int64_t query_row, const uint16_t* keys, int64_t key_row, int64_t count,
                      float* scores, Vec* row_max, const Prefetch& prefetch) const {
    const int64_t pairs = num_pairs(params.head_dim);
    const float scale = float(std::abs(params.scale));
    for_each_block<microkernel_rows(N)>(0, count, [&](auto rows, int64_t t) __attribute__((always_inline)) {
      constexpr int M = decltype(rows)::value;
      Vec block[M][N] = {};
      const auto product = [&](const auto& on_step) __attribute__((always_inline)) {
        pair_microkernel<M, N>(block, keys + t * key_row, key_row, 2, queries, query_row, pairs, on_step);
      };
      if (prefetch.data) {
        product([&](int64_t pair) REGARD_INLINE_LAMBDA {  // a cache line has 16 pairs
          if (pair % LANES < M) prefetch.issue(t + pair % LANES, pair / LANES * WORDS);
        });
      } else {
        product([](int64_t) REGARD_INLINE_LAMBDA {});
      }
      REGARD_UNROLL for (int i = 0; i < M; ++i) REGARD_UNROLL for (int j = 0; j < N; ++j) {
        if (SCALED) block[i][j] *= scale;
        store(scores + ((t + i) * N + j) * LANES, block[i][j]);
        row_max[j] = vec_max(block[i][j], row_max[j]);
      }
    });
  }

  // The weights of a tile as pairs along the keys, and their sums. `lead` is 1 where the first key is the second of a
  // pair, else 0.
  template <int N, bool HAS_DROPOUT>
  void compute_weights(Bf16Panel& panel, const KeyTile& tile, int64_t lead, Vec unit, const Vec (&origin)[N],
                       const Vec (&rescale)[N], int32_t* weights) const {
    const int64_t count = tile.end - tile.begin;
    Vec total[N] = {}, rounded_total[N] = {};
    const auto add_pair = [&](auto has_first, auto has_second, int64_t t, int64_t pair) __attribute__((always_inline)) {
      REGARD_UNROLL for (int j = 0; j < N; ++j) {
        const auto weight = [&](auto is_visible, int64_t row) __attribute__((always_inline)) {
          if (!decltype(is_visible)::value) return IntVec{};
          const IntVec w = Ops::exp2_bits((load(tile.scores + (row * N + j) * LANES) - origin[j]) * unit);
          total[j] += from_bits(w);
          return w + 0x8000;  // so that cutting off rounds to the nearest
        };
        const IntVec first = weight(has_first, t), second = weight(has_second, t + 1);
        IntVec w = Ops::pair_upper_halves(first, second);
        rounded_total[j] = Ops::dot_pairs(rounded_total[j], w, broadcast(0x3f803f80));  // a pair of ones
        if (HAS_DROPOUT)
          w &= (panel.dropout.keep_mask(tile.begin + t, tile.vector_begin + j) & 0xffff) |
               (panel.dropout.keep_mask(tile.begin + t + 1, tile.vector_begin + j) & int32_t(0xffff0000));
        store(weights + (pair * N + j) * LANES, w);
      }
    };
    const std::true_type yes{};
    const std::false_type no{};
    int64_t t = lead, pair = lead;
    if (lead) add_pair(no, yes, -1, 0);
    for (; t + 2 <= count; t += 2, ++pair) add_pair(yes, yes, t, pair);
    if (t < count) add_pair(yes, no, t, pair);
    const int64_t low = tile.vector_begin * LANES;
    REGARD_UNROLL for (int j = 0; j < N; ++j) {
      float *row_sum = panel.row_sum + low + j * LANES, *rounded_sum = panel.rounded_row_sum + low + j * LANES;
      store(row_sum, fma(load(row_sum), rescale[j], total[j]));
      store(rounded_sum, fma(load(rounded_sum), rescale[j], rounded_total[j]));
    }
  }

  // The same step in float32, in tiles of TILE_KEYS keys.
  void run_tile_in_float32(int64_t b, int64_t h, Bf16Panel& panel, const KeyTile& whole, Interpreter& interpreter,
                           const Workspace& work) const {
    const AttentionParams& p = params;
    const int64_t kv_head = h / (p.num_heads / p.num_kv_heads);
    const AdditiveHead additive{};
    const FloatRows q =
        load_float_rows(p.q, p.dtype, b, h, panel.query_begin, panel.num_queries, p.head_dim, work.query_rows);
    panel.queries = PackedQueries::pack(p, q, panel.num_queries, panel.lanes, score_unit(), additive, work.queries);
    for (int64_t key = whole.begin; key < whole.end; key += TILE_KEYS) {
      KeyTile tile = whole;
      tile.begin = key, tile.end = std::min(whole.end, key + TILE_KEYS);
      tile.masked_begin = std::max(tile.begin, whole.masked_begin);
      tile.masked_end = std::max(tile.masked_begin, std::min(tile.end, whole.masked_end));
      const int64_t count = tile.end - tile.begin;
      const FloatRows k = load_float_rows(p.k, p.dtype, b, kv_head, key, count, p.head_dim, work.k_float);
      const FloatRows v = load_float_rows(p.v, p.dtype, b, kv_head, key, count, p.value_dim, work.v_float);
      tile.k = k.data, tile.k_row_stride = k.row_stride, tile.v = v.data, tile.v_row_stride = v.row_stride;
      float* finite_values = all_finite(v.data, v.row_stride, count, p.value_dim) ? nullptr : work.finite_values;
      float old_max[PANEL_QUERIES], old_sum[PANEL_QUERIES];
      std::copy_n(panel.row_max, PANEL_QUERIES, old_max), std::copy_n(panel.row_sum, PANEL_QUERIES, old_sum);
      dispatch_vectors(num_vectors(panel, tile), [&](auto vectors) {
        constexpr int N = decltype(vectors)::value;
        const auto modify_scores = [&] { apply_program<N>(tile, interpreter); };
        has_score_mod() ? online_softmax_step<N, true>(panel, p, tile, modify_scores, finite_values)
                        : online_softmax_step<N, false>(panel, p, tile, modify_scores, finite_values);
      });
      for (int64_t i = tile.vector_begin * LANES; i < panel.lanes; ++i) {
        if (old_max[i] == panel.row_max[i] && old_sum[i] == panel.row_sum[i]) continue;
        const float shrink = (old_max[i] - panel.row_max[i]) * float(has_score_mod() ? LOG2_E : 1.0f);
        const float factor = old_sum[i] == 0.0f ? 0.0f : std::exp2(shrink);
        panel.rounded_row_sum[i] = panel.rounded_row_sum[i] * factor + (panel.row_sum[i] - old_sum[i] * factor);
      }
    }
  }

  void write_panel(int64_t b, int64_t h, const Bf16Panel& panel) const {
    const AttentionParams& p = params;
    const int64_t row = (b * p.num_heads + h) * p.n_q + panel.query_begin;
    float factor[PANEL_QUERIES];
    for (int64_t i = 0; i < panel.lanes; ++i) {
      const bool has_keys = panel.row_sum[i] != 0.0f;  // the largest score adds about 1, and a NaN is not 0
      factor[i] = has_keys ? float(p.dropout_threshold ? p.dropout_scale : 1.0) / panel.rounded_row_sum[i] : 0.0f;
      if (i < panel.num_queries)
        p.row_statistic[row + i] =
            has_keys ? float(panel.row_max[i] / score_unit() + std::log(double(panel.row_sum[i]))) : -INFINITY;
    }
    if (p.output_dtype == FP32)
      unpack_lanes(panel.accumulator, panel.lanes, factor, panel.num_queries, p.value_dim,
                   static_cast<float*>(p.output) + row * p.value_dim, p.value_dim);
    else
      unpack_lane_pairs(panel.accumulator, panel.lanes, factor, panel.num_queries, p.value_dim,
                        static_cast<uint16_t*>(p.output) + row * p.value_dim);
  }
};

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
