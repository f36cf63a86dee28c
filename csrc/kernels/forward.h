// Forward. For each query, over tiles of keys, with s in units of log 2 (online softmax):
//
//     row_max' = max(row_max, s),   rescale = 2^(row_max - row_max'),
//     row_sum = row_sum rescale + sum 2^(s - row_max'),   accumulator = accumulator rescale + sum 2^(s - row_max') v
//
// and at the end output = accumulator / row_sum, lse = (row_max + log2 row_sum) log 2. The result of a panel depends on
// the panel alone, so it does not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "abi.h"
#include "kernels/dropout.h"
#include "kernels/key_tile.h"
#include "parallel.h"
#include "simd/flush_denormals.h"

namespace regard {
namespace REGARD_ISA {
namespace {

struct Panel {
  int64_t query_begin, num_queries, lanes;
  KeyRunCursor key_runs;  // those not yet processed
  PackedQueries queries;
  float* accumulator;  // (value_dim, lanes), not yet normalized
  float row_max[PANEL_QUERIES], row_sum[PANEL_QUERIES];
  Dropout dropout;
};

// 0 times inf is NaN: rows of V that are not finite are left out of the product and added only where they are visible.
template <int N>
static void accumulate_nonfinite_values(Panel& panel, const AttentionParams& params, const KeyTile& tile,
                                        const Vec (&rescale)[N], float* finite_values, const int32_t* visible) {
  const int64_t count = tile.end - tile.begin, num_channels = params.value_dim;
  for (int64_t t = 0; t < count; ++t) {
    const float* row = tile.v + t * tile.v_row_stride;
    const bool is_nonfinite = !std::all_of(row, row + num_channels, [](float x) { return std::isfinite(x); });
    for (int64_t c = 0; c < num_channels; ++c) finite_values[t * num_channels + c] = is_nonfinite ? 0.0f : row[c];
  }
  weighted_sums<N>(tile.scores, finite_values, num_channels, count, num_channels, rescale,
                   panel.accumulator + tile.vector_begin * LANES, panel.lanes);
  for (int64_t t = 0; t < count; ++t) {
    const float* row = tile.v + t * tile.v_row_stride;
    if (std::all_of(row, row + num_channels, [](float x) { return std::isfinite(x); })) continue;
    for (int64_t c = 0; c < num_channels; ++c)
      for (int j = 0; j < N; ++j) {
        float* sum = panel.accumulator + c * panel.lanes + (tile.vector_begin + j) * LANES;
        const Vec updated = load(sum) + row[c] * load(tile.scores + (t * N + j) * LANES);
        store(sum, where(load(visible + (t * N + j) * LANES), updated, load(sum)));
      }
  }
}

// One step of the online softmax, over the keys of a tile. Scores are in units of log 2 unless there is a score
// modifier. modify_scores() runs the program on them. finite_values is null where all of V is finite; else it is
// scratch for V without the other rows, and for the visible pairs.
template <int N, bool HAS_SCORE_MOD, class ModifyScores>
static void online_softmax_step(Panel& panel, const AttentionParams& params, const KeyTile& tile,
                                const ModifyScores& modify_scores, float* finite_values) {
  const int64_t count = tile.end - tile.begin;
  const int64_t low = tile.vector_begin * LANES;
  float *scores = tile.scores, *panel_max = panel.row_max + low, *panel_sum = panel.row_sum + low;
  Vec row_max[N], rescale[N], total[N];
  REGARD_UNROLL for (int j = 0; j < N; ++j) row_max[j] = load(panel_max + j * LANES);
  if (!HAS_SCORE_MOD && !tile.has_masked_keys()) {
    compute_scores<N, true>(params, panel.queries, tile, scores, row_max);
  } else {
    compute_scores<N>(params, panel.queries, tile, scores);
    modify_scores();
    for (int64_t t = 0; t < count; ++t)
      REGARD_UNROLL for (int j = 0; j < N; ++j) row_max[j] = vec_max(load(scores + (t * N + j) * LANES), row_max[j]);
  }
  int32_t* visible = finite_values ? reinterpret_cast<int32_t*>(finite_values) + TILE_KEYS * params.value_dim : nullptr;
  if (visible)
    for (int64_t i = 0; i < count * N * LANES; i += LANES) store(visible + i, IntVec(load(scores + i) != -INFINITY));
  REGARD_UNROLL for (int j = 0; j < N; ++j) {
    const Vec old_max = load(panel_max + j * LANES);
    store(panel_max + j * LANES, row_max[j]);
    row_max[j] = vec_max(row_max[j], broadcast(-FLT_MAX));  // no visible key so far: 2^(-inf - finite) is 0
    rescale[j] = exp2(HAS_SCORE_MOD ? (old_max - row_max[j]) * LOG2_E : old_max - row_max[j]);
    total[j] = Vec{};
  }
  // sums of sums: rounding errors grow with their lengths
  for (int64_t chunk = 0; chunk < count; chunk += CHUNK_KEYS) {
    Vec sum[N] = {};
    for (int64_t t = chunk; t < std::min<int64_t>(count, chunk + CHUNK_KEYS); ++t)
      REGARD_UNROLL for (int j = 0; j < N; ++j) {
        float* element = scores + (t * N + j) * LANES;
        const Vec shifted = load(element) - row_max[j];
        const Vec weight = exp2(HAS_SCORE_MOD ? shifted * LOG2_E : shifted);
        store(element, weight);
        sum[j] += weight;
      }
    REGARD_UNROLL for (int j = 0; j < N; ++j) total[j] += sum[j];
  }
  REGARD_UNROLL for (int j = 0; j < N; ++j) {
    float* row_sum = panel_sum + j * LANES;
    store(row_sum, fma(load(row_sum), rescale[j], total[j]));
  }
  if (params.dropout_threshold)
    for (int64_t t = 0; t < count; ++t) REGARD_UNROLL for (int j = 0; j < N; ++j) {
        float* element = scores + (t * N + j) * LANES;
        const IntVec keep = panel.dropout.keep_mask(tile.begin + t, tile.vector_begin + j);
        store(element, where(keep, load(element) * panel.dropout.scale, Vec{}));
      }
  if (visible) return accumulate_nonfinite_values<N>(panel, params, tile, rescale, finite_values, visible);
  if (tile.prefetch_v.data)
    return weighted_sums<N, true>(scores, tile.v, tile.v_row_stride, count, params.value_dim, rescale,
                                  panel.accumulator + low, panel.lanes, tile.prefetch_v);
  weighted_sums<N>(scores, tile.v, tile.v_row_stride, count, params.value_dim, rescale, panel.accumulator + low,
                   panel.lanes);
}

struct Forward {
  const AttentionParams& params;
  int64_t blocks_per_head;
  int64_t panels_per_block;

  size_t scratch_floats() const {
    const int64_t num_registers = params.program ? params.program->num_registers : 0;
    const int64_t num_channels = params.head_dim + params.value_dim;
    return size_t(TILE_KEYS) * (2 * PANEL_QUERIES + params.value_dim) + num_registers * REGISTER_ROWS * PANEL_QUERIES +
           panels_per_block *
               (PackedQueries::scratch_floats(params, PANEL_QUERIES) + PANEL_QUERIES * params.value_dim) +
           upcast_scratch_floats(params.dtype, TILE_KEYS, num_channels) + PANEL_QUERIES * num_channels +
           AdditiveHead::scratch_floats(params) + 64;
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
    float* scores = scratch;
    scratch += TILE_KEYS * PANEL_QUERIES;
    float* finite_values = scratch;
    scratch += TILE_KEYS * (p.value_dim + PANEL_QUERIES);
    float* registers = scratch;
    scratch += (p.program ? p.program->num_registers : 0) * REGISTER_ROWS * PANEL_QUERIES;
    float *k_float = scratch, *v_float = k_float + upcast_scratch_floats(p.dtype, TILE_KEYS, p.head_dim);
    scratch = v_float + upcast_scratch_floats(p.dtype, TILE_KEYS, p.value_dim);
    float* rows = scratch;  // of a panel, upcast or not yet rounded
    scratch += PANEL_QUERIES * (p.head_dim + p.value_dim);
    static const Program no_program{};
    const bool has_score_mod = p.program && p.program->score_mod_end;
    const double unit = has_score_mod ? 1.0 : LOG2_E_DOUBLE;
    const AdditiveHead additive = p.u ? AdditiveHead(p, h, unit, scratch) : AdditiveHead();
    scratch += AdditiveHead::scratch_floats(p);
    float* key_exp_scratch = additive.key_exp_scratch;
    Panel panels[PANELS_PER_BLOCK];
    const KeyRun all_keys{0, int32_t(p.n_k), 0, 0, VECTORS_PER_PANEL};
    for (int64_t n = panel_begin; n < panel_end; ++n) {
      Panel& panel = panels[n - panel_begin];
      panel.query_begin = n * PANEL_QUERIES;
      panel.num_queries = std::min<int64_t>(PANEL_QUERIES, p.n_q - panel.query_begin);
      panel.lanes = (panel.num_queries + LANES - 1) / LANES * LANES;
      const FloatRows q = load_float_rows(p.q, p.dtype, b, h, panel.query_begin, panel.num_queries, p.head_dim, rows);
      panel.queries = PackedQueries::pack(p, q, panel.num_queries, panel.lanes, unit, additive, scratch);
      scratch += PackedQueries::scratch_floats(p, panel.lanes);
      panel.accumulator = scratch, scratch += panel.lanes * p.value_dim;
      std::fill(panel.accumulator, panel.accumulator + panel.lanes * p.value_dim, 0.0f);
      std::fill(panel.row_max, panel.row_max + PANEL_QUERIES, -INFINITY);
      std::fill(panel.row_sum, panel.row_sum + PANEL_QUERIES, 0.0f);
      if (p.dropout_threshold) panel.dropout.init(p, b, h, panel.query_begin, panel.num_queries);
      panel.key_runs = key_runs(p, b, h, n, all_keys);
    }
    // tiles that no panel attends to are skipped, so that time grows with the number of visible pairs
    const auto next_tile = [&](int64_t key) {
      int64_t visible_key = p.n_k;
      for (int64_t n = 0; n < panel_end - panel_begin; ++n)
        visible_key = std::min(visible_key, panels[n].key_runs.next_visible_key(key, p.n_k));
      return visible_key < p.n_k ? visible_key / TILE_KEYS * TILE_KEYS : p.n_k;
    };
    for (int64_t key = next_tile(0); key < p.n_k; key = next_tile(key + TILE_KEYS)) {
      const int64_t until = std::min(p.n_k, key + TILE_KEYS);
      int v_is_finite = -1;  // whether V is finite in this tile; -1: not yet checked
      FloatRows k{}, v{};
      ExpTerms keys{};
      for (int64_t n = 0; n < panel_end - panel_begin; ++n) {
        Panel& panel = panels[n];
        KeyTile tile{};
        tile.scores = scores;
        for (int64_t from = key; tile.advance(panel.key_runs, from, until); from = tile.end) {
          if (v_is_finite < 0) {
            k = load_float_rows(p.k, p.dtype, b, kv_head, key, until - key, p.head_dim, k_float);
            v = load_float_rows(p.v, p.dtype, b, kv_head, key, until - key, p.value_dim, v_float);
            if (p.u) keys = key_exp_terms(k.data, k.row_stride, until - key, p.head_dim, key_exp_scratch);
            v_is_finite = all_finite(v.data, v.row_stride, until - key, p.value_dim);
          }
          tile.k = k.data + (tile.begin - key) * k.row_stride, tile.v = v.data + (tile.begin - key) * v.row_stride;
          tile.k_row_stride = k.row_stride, tile.v_row_stride = v.row_stride;
          if (p.u) tile.exp_terms = keys.slice(tile.begin - key);
          if (until == p.n_k && !has_score_mod && !p.u) prefetch_next_item(tile, item, n, tile.begin - key);
          Interpreter interpreter{p.program ? *p.program : no_program, registers, b, h,
                                  panel.query_begin + tile.vector_begin * LANES};
          dispatch_vectors(std::min(tile.vector_end, panel.lanes / LANES) - tile.vector_begin, [&](auto vectors) {
            constexpr int N = decltype(vectors)::value;
            if (has_score_mod && !p.u)
              tile.table_prefetch = interpreter.table_prefetch(tile.begin, N * LANES, p.head_dim);
            float* values_scratch = v_is_finite ? nullptr : finite_values;
            const auto modify_scores = [&] { apply_program<N>(tile, interpreter); };
            has_score_mod ? online_softmax_step<N, true>(panel, p, tile, modify_scores, values_scratch)
                          : online_softmax_step<N, false>(panel, p, tile, modify_scores, values_scratch);
          });
        }
      }
    }
    for (int64_t n = 0; n < panel_end - panel_begin; ++n) write_panel(panels[n], b, h, rows);
  }

  // Prefetches memory that the thread needs next, from row `row_offset` on, while the last tile of an item is computed.
  // The first panel prefetches the keys and values of the next item of this thread, if all threads are equally fast;
  // the second its queries; the third the output of the current item. Short sequences, of a hundred tokens, would
  // otherwise wait for memory most of the time.
  void prefetch_next_item(KeyTile& tile, int64_t item, int64_t n, int64_t row_offset) const {
    const AttentionParams& p = params;
    tile.prefetch_k = tile.prefetch_v = {};
    const int64_t next = n == 2 ? item : item + p.num_threads;
    if (n > 2 || next >= p.batch * p.num_heads * blocks_per_head) return;
    const int64_t b = next / (p.num_heads * blocks_per_head), h = next / blocks_per_head % p.num_heads,
                  kv_head = h / (p.num_heads / p.num_kv_heads);
    const int64_t query_begin = (blocks_per_head - 1 - next % blocks_per_head) * panels_per_block * PANEL_QUERIES;
    if (n == 0) {
      tile.prefetch_k = prefetch_rows(p.k, p.dtype, b, kv_head, row_offset),
      tile.prefetch_v = prefetch_rows(p.v, p.dtype, b, kv_head, row_offset);
    } else {
      const StridedRows output{p.output, p.num_heads * p.n_q * p.value_dim, p.n_q * p.value_dim, p.value_dim};
      tile.prefetch_k = n == 1 ? prefetch_rows(p.q, p.dtype, b, h, query_begin + row_offset)
                               : prefetch_rows(output, p.output_dtype, b, h, query_begin + row_offset);
    }
  }

  void write_panel(Panel& panel, int64_t b, int64_t h, float* rows) const {
    const AttentionParams& p = params;
    const bool has_score_mod = p.program && p.program->score_mod_end;
    const int64_t row = (b * p.num_heads + h) * p.n_q + panel.query_begin;
    float factor[PANEL_QUERIES];
    for (int64_t i = 0; i < panel.lanes; ++i) {
      const bool has_keys = panel.row_sum[i] != 0.0f;  // the largest score adds 1, and a NaN is not 0
      factor[i] = has_keys ? 1.0f / panel.row_sum[i] : 0.0f;
      if (i < panel.num_queries)
        p.row_statistic[row + i] =
            has_keys
                ? float(panel.row_max[i] / (has_score_mod ? 1.0 : LOG2_E_DOUBLE) + std::log(double(panel.row_sum[i])))
                : -INFINITY;
    }
    const bool direct = p.output_dtype == FP32;
    float* to = direct ? static_cast<float*>(p.output) + row * p.value_dim : rows;
    unpack_lanes(panel.accumulator, panel.lanes, factor, panel.num_queries, p.value_dim, to, p.value_dim);
    if (!direct) write_output(p, rows, panel.num_queries, row);
  }
};

// Runs the blocks of panels of all heads. `Work` is Forward, or one with the same members.
template <class Work = Forward>
static bool forward_in_panels(const AttentionParams& params, bool (*should_stop)()) {
  const int64_t num_panels = (params.n_q + PANEL_QUERIES - 1) / PANEL_QUERIES;
  const int64_t num_heads = params.batch * params.num_heads;
  int64_t panels_per_block = std::min(PANELS_PER_BLOCK, num_panels);
  // several items per thread, so that no thread waits long for another
  while (panels_per_block > 1 &&
         num_heads * ((num_panels + panels_per_block - 1) / panels_per_block) < 4 * params.num_threads)
    --panels_per_block;
  Work work{params, panels_per_block ? (num_panels + panels_per_block - 1) / panels_per_block : 0, panels_per_block};
  return parallel_for(
      num_heads * work.blocks_per_head, params.num_threads, work.scratch_floats(),
      [](void* context, int64_t item, float* scratch) { static_cast<Work*>(context)->run_block(item, scratch); }, &work,
      should_stop);
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
