// Backward. With weights w = 2^(s - lse) recomputed tile by tile, g the gradient of the output and delta = g . output:
//
//     d_v[t] += sum_q w[t,q] g[q],   d_s[t,q] = w[t,q] (v[t] . g[q] - delta[q]),
//     d_k[t] += scale sum_q d_s[t,q] q[q],   d_q[q] = scale sum_t d_s[t,q] k[t]
//
// An item is a block of panels of one head. It holds its d_q and iterates over tiles of keys. All items that share a kv
// head add to the same d_k and d_v, each tile in the order of the items: an item waits until it is the next writer of a
// tile. So the sums do not depend on the number of threads, and d_k and d_v need no copies.
//
// A small gradient of a captured tensor is summed by each item separately, and the sums are added in the order of the
// items. For a large one, an item waits until the earlier items that may add to the same elements are done. The
// gradient of an additive score's u is such a small sum.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "abi.h"
#include "kernels/dropout.h"
#include "kernels/entmax_powers.h"
#include "kernels/key_tile.h"
#include "parallel.h"
#include "simd/flush_denormals.h"

namespace regard {
namespace REGARD_ISA {
namespace {

constexpr int64_t BACKWARD_TILE_KEYS = 96;
constexpr int64_t BACKWARD_PANELS_PER_BLOCK = 4;
constexpr int64_t MAX_LOCAL_SUM_FLOATS = 1 << 16;

constexpr int64_t round_up_to_lanes(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

struct BackwardPanel {
  int64_t query_begin, num_queries, lanes;
  KeyRunCursor key_runs;  // those not yet processed
  bool is_finite;         // whether q and d_output are
  PackedQueries queries;
  float* d_output;             // (value_dim, lanes)
  float* d_q_accumulator;      // (head_dim, lanes)
  const float* query_rows;     // (num_queries, head_dim rounded up to whole vectors)
  const float* d_output_rows;  // (num_queries, value_dim rounded up to whole vectors)
  float row_statistic[PANEL_QUERIES], delta[PANEL_QUERIES];
  Dropout dropout;
};

// sums[t] += sum over queries of left[t, query] * right[query]. num_channels is a multiple of LANES.
static void accumulate_over_queries(const float* left, int64_t left_row, int64_t keys, int64_t queries,
                                    const float* right, int64_t num_channels, float* sums) {
  constexpr int MAX_VECTORS = Ops::NUM_REGISTERS >= 32 ? 4 : 2;
  auto columns = [&](auto vectors, int64_t c) __attribute__((always_inline)) {
    constexpr int N = decltype(vectors)::value;
    constexpr int M = Ops::NUM_REGISTERS >= 32 && N < 4 ? 8 : 6;
    for (int64_t t = 0; t < keys;) {
      auto block = [&](auto rows) __attribute__((always_inline)) {
        constexpr int R = decltype(rows)::value;
        Vec sum[R][N];
        REGARD_UNROLL for (int i = 0; i < R; ++i)
          REGARD_UNROLL for (int j = 0; j < N; ++j) sum[i][j] = load(sums + (t + i) * num_channels + (c + j) * LANES);
        gemm_microkernel<R, N>(sum, left + t * left_row, left_row, 1, right + c * LANES, num_channels, queries);
        REGARD_UNROLL for (int i = 0; i < R; ++i)
          REGARD_UNROLL for (int j = 0; j < N; ++j) store(sums + (t + i) * num_channels + (c + j) * LANES, sum[i][j]);
        t += R;
      };
      if (t + M <= keys) {
        block(std::integral_constant<int, M>{});
      } else if (t + 2 <= keys) {
        block(std::integral_constant<int, 2>{});
      } else {
        block(std::integral_constant<int, 1>{});
      }
    }
  };
  int64_t c = 0;
  for (; c + MAX_VECTORS <= num_channels / LANES; c += MAX_VECTORS)
    columns(std::integral_constant<int, MAX_VECTORS>{}, c);
  for (; c < num_channels / LANES; ++c) columns(std::integral_constant<int, 1>{}, c);
}

// The same over the visible pairs only, for values that are not finite.
static void accumulate_over_visible(const float* left, const int32_t* visible, int64_t left_row, int64_t keys,
                                    int64_t queries, const float* right, int64_t num_channels, float* sums) {
  for (int64_t t = 0; t < keys; ++t)
    for (int64_t i = 0; i < queries; ++i) {
      if (!visible[t * left_row + i]) continue;
      const Vec weight = broadcast(left[t * left_row + i]);
      for (int64_t c = 0; c < num_channels; c += LANES)
        store(sums + t * num_channels + c,
              fma(weight, load(right + i * num_channels + c), load(sums + t * num_channels + c)));
    }
}

static float dot(const float* x, const float* y, int64_t count) {
  double total = 0.0;
  int64_t i = 0;
  while (i + LANES <= count) {
    Vec sum{};
    const int64_t end = std::min(count, i + DOT_SPAN_CHANNELS);
    for (; i + LANES <= end; i += LANES) sum = fma(load(x + i), load(y + i), sum);
    for (int lane = 0; lane < LANES; ++lane) total += sum[lane];
  }
  for (; i < count; ++i) total += double(x[i]) * y[i];
  return float(total);
}

struct Backward {
  const AttentionParams& params;
  int64_t blocks_per_head;
  int64_t panels_per_block;
  int64_t num_tiles;  // of keys
  // For each batch element, kv head and tile: the next item to write, and whether an item has written before.
  std::unique_ptr<std::atomic<int64_t>[]> next_writer;
  std::unique_ptr<bool[]> is_initialized;
  std::unique_ptr<int32_t[]> tile_range;              // begin and end of the tiles of each item
  std::unique_ptr<std::atomic<bool>[]> is_item_done;  // only where gradients of captured tensors are summed
  int64_t local_sum_size = 0;                         // total size of the small sums
  std::unique_ptr<double[]> local_sums;

  Backward(const AttentionParams& p, int64_t blocks_per_head, int64_t panels_per_block)
      : params(p),
        blocks_per_head(blocks_per_head),
        panels_per_block(panels_per_block),
        num_tiles((p.n_k + BACKWARD_TILE_KEYS - 1) / BACKWARD_TILE_KEYS),
        next_writer(new std::atomic<int64_t>[p.batch * p.num_kv_heads * num_tiles]),
        is_initialized(new bool[p.batch * p.num_kv_heads * num_tiles]()),
        tile_range(new int32_t[2 * p.batch * p.num_heads * blocks_per_head]) {
    const int64_t items_per_kv_head = p.num_heads / p.num_kv_heads * blocks_per_head;
    for (int64_t item = 0; item < p.batch * p.num_heads * blocks_per_head; ++item) {
      int64_t key_begin = p.n_k, key_end = 0;
      for (int64_t n = panel_begin(item); n < panel_end(item); ++n) {
        const KeyRun all_keys{0, int32_t(p.n_k), 0, 0, VECTORS_PER_PANEL};
        const KeyRunCursor runs =
            key_runs(p, item / blocks_per_head / p.num_heads, item / blocks_per_head % p.num_heads, n, all_keys);
        if (runs.next == runs.end) continue;
        key_begin = std::min<int64_t>(key_begin, runs.next->begin),
        key_end = std::max<int64_t>(key_end, runs.end[-1].end);
      }
      tile_range[2 * item] = int32_t(key_begin / BACKWARD_TILE_KEYS);
      tile_range[2 * item + 1] = int32_t((key_end + BACKWARD_TILE_KEYS - 1) / BACKWARD_TILE_KEYS);
    }
    for (int64_t kv = 0; kv < p.batch * p.num_kv_heads; ++kv)
      for (int64_t tile_index = 0; tile_index < num_tiles; ++tile_index)
        next_writer[kv * num_tiles + tile_index] =
            next_item_at_tile(kv * items_per_kv_head, (kv + 1) * items_per_kv_head, tile_index);
    if (!has_captured_gradients()) return;
    is_item_done.reset(new std::atomic<bool>[p.batch * p.num_heads * blocks_per_head]);
    for (int64_t item = 0; item < p.batch * p.num_heads * blocks_per_head; ++item) is_item_done[item] = false;
    for (int64_t n = 0; n < num_sums(); ++n)
      if (is_local_sum(n)) local_sum_size += p.program->gradient_sums[n].size;
    local_sums.reset(new double[local_sum_size]());
  }

  // Writes the small sums, once all items are done.
  void write_local_sums() const {
    const double* from = local_sums.get();
    for (int64_t n = 0; n < num_sums(); ++n) {
      if (!is_local_sum(n)) continue;
      const GradientSum& sum = params.program->gradient_sums[n];
      std::copy(from, from + sum.size, sum.data);
      from += sum.size;
    }
  }

  // Writes the gradients, 0, of keys that no query attends to.
  void zero_unvisited_keys() const {
    for (int64_t n = 0; n < params.batch * params.num_kv_heads * num_tiles; ++n)
      if (!is_initialized[n]) write_key_gradients<false>(n / num_tiles, n % num_tiles, nullptr, nullptr);
  }

  // Writes the rows of d_k and d_v of a kv head and tile, or adds them with ACCUMULATE. Null stands for 0.
  template <bool ACCUMULATE>
  void write_key_gradients(int64_t kv_head, int64_t tile_index, const float* d_k, const float* d_v) const {
    const AttentionParams& p = params;
    const int64_t key = tile_index * BACKWARD_TILE_KEYS, count = std::min(p.n_k, key + BACKWARD_TILE_KEYS) - key;
    const int64_t row = kv_head * p.n_k + key;
    write_scaled_rows<ACCUMULATE>(d_k, round_up_to_lanes(p.head_dim), count, p.head_dim, float(p.scale),
                                  p.d_k + row * p.head_dim);
    write_scaled_rows<ACCUMULATE>(d_v, round_up_to_lanes(p.value_dim), count, p.value_dim, 1.0f,
                                  p.d_v + row * p.value_dim);
  }

  int64_t num_sums() const { return params.program ? params.program->num_sums : 0; }
  bool has_captured_gradients() const { return num_sums() || params.u; }
  bool is_local_sum(int64_t n) const { return params.program->gradient_sums[n].size <= MAX_LOCAL_SUM_FLOATS; }

  void wait_for_item(int64_t item) const {
    for (int64_t spins = 0; item >= 0 && !is_item_done[item].load(std::memory_order_acquire); ++spins)
      if (spins > 256) std::this_thread::yield();
  }

  // The first item from `item` to `end` - 1 whose range contains the tile, or `end`.
  int64_t next_item_at_tile(int64_t item, int64_t end, int64_t tile_index) const {
    while (item < end && !(tile_range[2 * item] <= tile_index && tile_index < tile_range[2 * item + 1])) ++item;
    return item;
  }

  int64_t panel_begin(int64_t item) const { return item % blocks_per_head * panels_per_block; }
  int64_t panel_end(int64_t item) const {
    return std::min(panel_begin(item) + panels_per_block, (params.n_q + PANEL_QUERIES - 1) / PANEL_QUERIES);
  }

  size_t scratch_floats() const {
    const int64_t row_floats = round_up_to_lanes(params.head_dim) + round_up_to_lanes(params.value_dim);
    const int64_t upcast_floats = upcast_scratch_floats(
        params.dtype, panels_per_block * PANEL_QUERIES + BACKWARD_TILE_KEYS, params.head_dim + params.value_dim + 32);
    const int64_t compacted_floats =
        params.entmax_exponents ? BACKWARD_TILE_KEYS * (row_floats + params.head_dim + params.value_dim) : 0;
    const int64_t register_rows =
        params.program ? params.program->num_registers * REGISTER_ROWS + BACKWARD_TILE_KEYS : 0;
    const int64_t transposed_floats =
        params.u ? (BACKWARD_TILE_KEYS + LANES + panels_per_block * (PANEL_QUERIES + LANES) + 2) * params.head_dim : 0;
    return upcast_floats + params.value_dim +
           panels_per_block * PANEL_QUERIES * (2 * params.head_dim + params.value_dim + row_floats) +
           3 * BACKWARD_TILE_KEYS * PANEL_QUERIES + BACKWARD_TILE_KEYS * row_floats + compacted_floats +
           register_rows * PANEL_QUERIES + 2 * local_sum_size + transposed_floats +
           AdditiveHead::scratch_floats(params) + 704;
  }

  void run_block(int64_t item, float* scratch) const {
    const FlushDenormals flush;
    const AttentionParams& p = params;
    const int64_t b = item / blocks_per_head / p.num_heads, h = item / blocks_per_head % p.num_heads;
    const int64_t group_size = p.num_heads / p.num_kv_heads, kv_head = h / group_size,
                  items_per_kv_head = group_size * blocks_per_head;
    const int64_t head_row = (b * p.num_heads + h) * p.n_q;
    const int64_t padded_dim = round_up_to_lanes(p.head_dim), padded_value_dim = round_up_to_lanes(p.value_dim);
    auto allocate = [&](int64_t floats) {
      float* here = scratch;
      scratch += (floats + 15) / 16 * 16;
      return here;
    };
    float* weights = allocate(BACKWARD_TILE_KEYS * PANEL_QUERIES);
    float* d_scores = allocate(BACKWARD_TILE_KEYS * PANEL_QUERIES);
    float* d_k = allocate(BACKWARD_TILE_KEYS * padded_dim);
    float* d_v = allocate(BACKWARD_TILE_KEYS * padded_value_dim);
    float* raw_scores = allocate(p.program ? BACKWARD_TILE_KEYS * PANEL_QUERIES : 0);
    int32_t* visible_scratch = reinterpret_cast<int32_t*>(allocate(BACKWARD_TILE_KEYS * PANEL_QUERIES));
    float* registers = allocate((p.program ? p.program->num_registers : 0) * REGISTER_ROWS * PANEL_QUERIES);
    float* k_float = allocate(upcast_scratch_floats(p.dtype, BACKWARD_TILE_KEYS, p.head_dim));
    float* v_float = allocate(upcast_scratch_floats(p.dtype, BACKWARD_TILE_KEYS, p.value_dim));
    float* one_row = allocate(p.value_dim);
    CompactedKeys compacted{};
    if (p.entmax_exponents) {
      compacted.k = allocate(BACKWARD_TILE_KEYS * p.head_dim), compacted.v = allocate(BACKWARD_TILE_KEYS * p.value_dim);
      compacted.d_k = allocate(BACKWARD_TILE_KEYS * padded_dim),
      compacted.d_v = allocate(BACKWARD_TILE_KEYS * padded_value_dim);
    }
    static const Program no_program{};
    const bool has_score_mod = p.program && p.program->score_mod_end;
    const double unit = has_score_mod || p.entmax_exponents ? 1.0 : LOG2_E_DOUBLE;
    float* additive_scratch = allocate(AdditiveHead::scratch_floats(p));
    const EntmaxPower entmax_power{p.entmax_exponents ? p.entmax_exponents[h] : 0.0f};
    const float* u = p.u ? p.u + h * p.head_dim : nullptr;
    const AdditiveHead additive = p.u ? AdditiveHead(p, h, unit, additive_scratch) : AdditiveHead();
    float* key_exp_scratch = additive.key_exp_scratch;
    float* d_k_transposed = allocate(p.u ? (BACKWARD_TILE_KEYS + LANES) * p.head_dim : 0);
    double* item_d_u = reinterpret_cast<double*>(allocate(p.u ? 2 * p.head_dim : 0));
    if (p.u) std::fill(item_d_u, item_d_u + p.head_dim, 0.0);
    double* item_sums = reinterpret_cast<double*>(allocate(2 * local_sum_size));
    std::fill(item_sums, item_sums + local_sum_size, 0.0);
    std::vector<GradientTarget> gradient_targets(num_sums());
    int64_t previous_item = -1;  // the last item that must be done before this one adds to a large sum
    for (int64_t n = 0, offset = 0; n < num_sums(); ++n) {
      const GradientSum& sum = p.program->gradient_sums[n];
      gradient_targets[n] =
          is_local_sum(n) ? GradientTarget{nullptr, item_sums + offset} : GradientTarget{sum.data, nullptr};
      if (is_local_sum(n)) offset += sum.size;
      if (!is_local_sum(n) && sum.conflict_scope != ConflictScope::PANEL)
        previous_item =
            std::max(previous_item, sum.conflict_scope == ConflictScope::HEADS ? item - blocks_per_head : item - 1);
    }
    wait_for_item(previous_item);
    BackwardPanel panels[BACKWARD_PANELS_PER_BLOCK];
    const KeyRun all_keys{0, int32_t(p.n_k), 0, 0, VECTORS_PER_PANEL};
    const int64_t num_panels = panel_end(item) - panel_begin(item);
    for (int64_t n = 0; n < num_panels; ++n) {
      BackwardPanel& panel = panels[n];
      panel.query_begin = (panel_begin(item) + n) * PANEL_QUERIES;
      panel.num_queries = std::min<int64_t>(PANEL_QUERIES, p.n_q - panel.query_begin);
      panel.lanes = round_up_to_lanes(panel.num_queries);
      panel.key_runs = key_runs(p, b, h, panel_begin(item) + n, all_keys);
      panel.d_output = allocate(panel.lanes * p.value_dim);
      panel.d_q_accumulator = allocate(panel.lanes * p.head_dim);
      const FloatRows q = load_float_rows(p.q, p.dtype, b, h, panel.query_begin, panel.num_queries, p.head_dim,
                                          allocate(upcast_scratch_floats(p.dtype, panel.num_queries, p.head_dim)));
      const FloatRows g = load_float_rows(p.d_output, p.dtype, b, h, panel.query_begin, panel.num_queries, p.value_dim,
                                          allocate(upcast_scratch_floats(p.dtype, panel.num_queries, p.value_dim)));
      panel.is_finite = all_finite(q.data, q.row_stride, panel.num_queries, p.head_dim) &&
                        all_finite(g.data, g.row_stride, panel.num_queries, p.value_dim);
      panel.queries = PackedQueries::pack(p, q, panel.num_queries, panel.lanes, unit, additive,
                                          allocate(PackedQueries::scratch_floats(p, panel.lanes)));
      pack_lanes(g.data, g.row_stride, panel.num_queries, p.value_dim, 1.0f, panel.d_output, panel.lanes);
      panel.query_rows =
          padded_rows(q.data, q.row_stride, panel.num_queries, p.head_dim, allocate(panel.num_queries * padded_dim));
      panel.d_output_rows = padded_rows(g.data, g.row_stride, panel.num_queries, p.value_dim,
                                        allocate(panel.num_queries * padded_value_dim));
      std::fill(panel.d_q_accumulator, panel.d_q_accumulator + panel.lanes * p.head_dim, 0.0f);
      if (p.dropout_threshold) panel.dropout.init(p, b, h, panel.query_begin, panel.num_queries);
      for (int64_t i = 0; i < panel.lanes; ++i) {
        const int64_t row = head_row + panel.query_begin + std::min(i, panel.num_queries - 1);
        const float statistic = unit == 1.0 ? p.row_statistic[row] : float(p.row_statistic[row] * unit);
        panel.row_statistic[i] =
            statistic == -INFINITY ? INFINITY : statistic;  // weights become 0 for a query without keys
        const FloatRows output =
            load_float_rows({p.output, 0, 0, p.value_dim}, p.dtype, 0, 0, row, 1, p.value_dim, one_row);
        panel.delta[i] = dot(output.data, g.data + std::min(i, panel.num_queries - 1) * g.row_stride, p.value_dim) -
                         p.d_row_statistic[row];
      }
    }
    for (int64_t tile_index = tile_range[2 * item]; tile_index < tile_range[2 * item + 1]; ++tile_index) {
      const int64_t key = tile_index * BACKWARD_TILE_KEYS, until = std::min(p.n_k, key + BACKWARD_TILE_KEYS);
      bool has_visible_keys = false;
      int kv_is_finite = -1;  // whether K and V are finite in this tile; -1: not yet checked
      FloatRows k{}, v{};
      ExpTerms keys{};
      for (int64_t n = 0; n < num_panels; ++n) {
        BackwardPanel& panel = panels[n];
        KeyTile tile{};
        tile.scores = weights;
        for (int64_t from = key; tile.advance(panel.key_runs, from, until); from = tile.end) {
          if (!has_visible_keys) {
            std::fill(d_k, d_k + (until - key) * padded_dim, 0.0f);
            std::fill(d_v, d_v + (until - key) * padded_value_dim, 0.0f);
            if (p.u) std::fill(d_k_transposed, d_k_transposed + (BACKWARD_TILE_KEYS + LANES) * p.head_dim, 0.0f);
            has_visible_keys = true;
          }
          if (kv_is_finite < 0) {
            k = load_float_rows(p.k, p.dtype, b, kv_head, key, until - key, p.head_dim, k_float);
            v = load_float_rows(p.v, p.dtype, b, kv_head, key, until - key, p.value_dim, v_float);
            if (p.u) keys = key_exp_terms(k.data, k.row_stride, until - key, p.head_dim, key_exp_scratch);
            // 0 times inf is NaN: where a value is not finite, only visible pairs are summed
            kv_is_finite = all_finite(k.data, k.row_stride, until - key, p.head_dim) &&
                           all_finite(v.data, v.row_stride, until - key, p.value_dim);
          }
          tile.k = k.data + (tile.begin - key) * k.row_stride, tile.v = v.data + (tile.begin - key) * v.row_stride;
          tile.k_row_stride = k.row_stride, tile.v_row_stride = v.row_stride;
          if (p.u) tile.exp_terms = keys.slice(tile.begin - key);
          int32_t* visible = kv_is_finite && panel.is_finite ? nullptr : visible_scratch;
          const int64_t low = tile.vector_begin * LANES, high = std::min(tile.vector_end * LANES, panel.lanes);
          Interpreter interpreter{p.program ? *p.program : no_program, registers, b, h, panel.query_begin + low};
          interpreter.gradient_targets = gradient_targets.data();
          interpreter.num_queries = std::min(high, panel.num_queries) - low;
          float* tile_d_v = d_v + (tile.begin - key) * padded_value_dim;
          float* tile_d_k = d_k + (tile.begin - key) * padded_dim;
          const bool has_captured = has_score_mod && p.program->derivative_end < p.program->end;
          if (p.entmax_exponents && !visible && !p.u && !has_captured) {
            dispatch_vectors((high - low) / LANES, [&](auto vectors) {
              constexpr int N = decltype(vectors)::value;
              has_score_mod ? compacted_tile_gradients<N, true>(panel, tile, interpreter, d_scores, raw_scores,
                                                                entmax_power, compacted, tile_d_k, tile_d_v)
                            : compacted_tile_gradients<N, false>(panel, tile, interpreter, d_scores, raw_scores,
                                                                 entmax_power, compacted, tile_d_k, tile_d_v);
            });
            continue;
          }
          dispatch_vectors((high - low) / LANES, [&](auto vectors) {
            constexpr int N = decltype(vectors)::value;
            if (has_score_mod && !p.u)
              tile.table_prefetch = interpreter.table_prefetch(tile.begin, N * LANES, p.head_dim);
            const auto compute = p.entmax_exponents ? has_score_mod ? &Backward::tile_gradients<N, true, true>
                                                                    : &Backward::tile_gradients<N, false, true>
                                 : has_score_mod    ? &Backward::tile_gradients<N, true, false>
                                                    : &Backward::tile_gradients<N, false, false>;
            (this->*compute)(panel, tile, interpreter, d_scores, raw_scores, visible, entmax_power);
            if (p.u) {
              const int64_t rows = tile.end - tile.begin, first = tile.begin - key;
              for (int64_t t = 0; t < rows; ++t)  // lanes that repeat the last query do not count
                std::fill(d_scores + t * N * LANES + interpreter.num_queries, d_scores + (t + 1) * N * LANES, 0.0f);
              additive_gradients<N>(panel.queries.exp_terms.slice(0, low), tile.exp_terms, p.head_dim, rows, d_scores,
                                    panel.d_q_accumulator + low, panel.lanes, d_k_transposed + first,
                                    BACKWARD_TILE_KEYS + LANES, item_d_u);
            }
          });
          const int64_t rows = tile.end - tile.begin, row = high - low;
          const float *d_output_rows = panel.d_output_rows + low * padded_value_dim,
                      *query_rows = panel.query_rows + low * padded_dim;
          if (visible) {
            accumulate_over_visible(weights, visible_scratch, row, rows, interpreter.num_queries, d_output_rows,
                                    padded_value_dim, tile_d_v);
            if (!p.u)
              accumulate_over_visible(d_scores, visible_scratch, row, rows, interpreter.num_queries, query_rows,
                                      padded_dim, tile_d_k);
          } else {
            accumulate_over_queries(weights, row, rows, interpreter.num_queries, d_output_rows, padded_value_dim,
                                    tile_d_v);
            if (!p.u)
              accumulate_over_queries(d_scores, row, rows, interpreter.num_queries, query_rows, padded_dim, tile_d_k);
          }
        }
      }
      if (p.u && has_visible_keys)
        for (int64_t t = 0; t < until - key; ++t)
          for (int64_t c = 0; c < p.head_dim; ++c)
            d_k[t * padded_dim + c] = u[c] * d_k_transposed[c * (BACKWARD_TILE_KEYS + LANES) + t];
      const int64_t slot = (b * p.num_kv_heads + kv_head) * num_tiles + tile_index;
      std::atomic<int64_t>& writer = next_writer[slot];
      for (int64_t spins = 0; writer.load(std::memory_order_acquire) != item; ++spins)
        if (spins > 256) std::this_thread::yield();
      if (has_visible_keys) {
        is_initialized[slot] ? write_key_gradients<true>(slot / num_tiles, tile_index, d_k, d_v)
                             : write_key_gradients<false>(slot / num_tiles, tile_index, d_k, d_v);
        is_initialized[slot] = true;
      }
      writer.store(next_item_at_tile(item + 1, (item / items_per_kv_head + 1) * items_per_kv_head, tile_index),
                   std::memory_order_release);
    }
    float factor[PANEL_QUERIES];
    std::fill(factor, factor + PANEL_QUERIES, float(p.scale));
    for (int64_t n = 0; p.u && n < num_panels; ++n)
      for (int64_t c = 0; c < p.head_dim; ++c)
        for (int64_t i = 0; i < panels[n].lanes; ++i) panels[n].d_q_accumulator[c * panels[n].lanes + i] *= u[c];
    for (int64_t n = 0; n < num_panels; ++n)
      unpack_lanes(panels[n].d_q_accumulator, panels[n].lanes, factor, panels[n].num_queries, p.head_dim,
                   p.d_q + (head_row + panels[n].query_begin) * p.head_dim, p.head_dim);
    if (!has_captured_gradients()) return;
    wait_for_item(item - 1);
    for (int64_t c = 0; u && c < p.head_dim; ++c) p.d_u[h * p.head_dim + c] += item_d_u[c];
    for (int64_t i = 0; i < local_sum_size; ++i) local_sums[i] += item_sums[i];
    is_item_done[item].store(true, std::memory_order_release);
  }

  // Computes w and d_s of a tile, and adds its part of d_q. Writes which pairs are visible to `visible`, unless it is
  // null. With THRESHOLDED, scores that are not above their row's threshold are not visible.
  template <int N, bool HAS_SCORE_MOD, bool THRESHOLDED>
  void tile_gradients(BackwardPanel& panel, const KeyTile& tile, Interpreter& interpreter, float* d_scores,
                      float* raw_scores, int32_t* visible, const EntmaxPower& entmax_power) const {
    const AttentionParams& p = params;
    const Program& program = interpreter.program;
    const int64_t count = tile.end - tile.begin;
    float* weights = tile.scores;
    const int64_t low = tile.vector_begin * LANES;
    compute_scores<N>(p, panel.queries, tile, weights);
    dot_products<N>(panel.d_output + low, panel.lanes, p.value_dim, tile.v, tile.v_row_stride, count, d_scores);
    const bool has_derivative = HAS_SCORE_MOD && program.mask_end < program.derivative_end,
               has_captured = HAS_SCORE_MOD && program.derivative_end < program.end;
    if (has_derivative || has_captured) std::memcpy(raw_scores, weights, sizeof(float) * count * N * LANES);
    if (HAS_SCORE_MOD || tile.has_masked_keys()) apply_program<N>(tile, interpreter);
    weights_to_d_scores<N, HAS_SCORE_MOD, THRESHOLDED>(panel, tile, count, nullptr, d_scores, visible, entmax_power);
    if (has_captured)
      for (int64_t t = 0; t < count; t += REGISTER_ROWS) {
        interpreter.d_scores = d_scores + t * N * LANES;
        interpreter.run<N>(program.derivative_end, program.end, tile.begin + t,
                           std::min<int64_t>(REGISTER_ROWS, count - t), raw_scores + t * N * LANES);
      }
    if (has_derivative)
      for (int64_t t = 0; t < count; t += REGISTER_ROWS) {
        const int64_t rows = std::min<int64_t>(REGISTER_ROWS, count - t);
        interpreter.run<N>(program.mask_end, program.derivative_end, tile.begin + t, rows, raw_scores + t * N * LANES);
        apply_score_derivatives(d_scores + t * N * LANES, interpreter.registers, rows * N * LANES);
      }
    if (p.u) return;  // additive_gradients computes it
    if (!visible) return accumulate_d_q<N>(panel, tile, d_scores, tile.k, tile.k_row_stride, count);
    for (int64_t t = 0; t < count; ++t)
      for (int64_t c = 0; c < p.head_dim; ++c)
        REGARD_UNROLL for (int j = 0; j < N; ++j) {
          float* sum = panel.d_q_accumulator + c * panel.lanes + low + j * LANES;
          const Vec updated = load(sum) + tile.k[t * tile.k_row_stride + c] * load(d_scores + (t * N + j) * LANES);
          store(sum, where(load(visible + (t * N + j) * LANES), updated, load(sum)));
        }
  }

  // Copies of the keys of a tile that have a weight other than 0: rows of k, v, d_k and d_v.
  struct CompactedKeys {
    float *k, *v, *d_k, *d_v;
  };

  // All gradients of a tile for a thresholded normalizer. Most keys have weight 0 for all queries of the panel; they
  // are left out before any product.
  template <int N, bool HAS_SCORE_MOD>
  void compacted_tile_gradients(BackwardPanel& panel, const KeyTile& tile, Interpreter& interpreter, float* d_scores,
                                float* raw_scores, const EntmaxPower& entmax_power, const CompactedKeys& compacted,
                                float* d_k, float* d_v) const {
    const AttentionParams& p = params;
    const Program& program = interpreter.program;
    const int64_t keys = tile.end - tile.begin, row = N * LANES, low = tile.vector_begin * LANES;
    const int64_t padded_dim = round_up_to_lanes(p.head_dim), padded_value_dim = round_up_to_lanes(p.value_dim);
    float* weights = tile.scores;
    compute_scores<N>(p, panel.queries, tile, weights);
    const bool has_derivative = HAS_SCORE_MOD && program.mask_end < program.derivative_end;
    if (has_derivative) std::memcpy(raw_scores, weights, sizeof(float) * keys * row);
    if (HAS_SCORE_MOD || tile.has_masked_keys()) apply_program<N>(tile, interpreter);
    for (int64_t t = 0; has_derivative && t < keys; t += REGISTER_ROWS) {  // derivatives replace the scores
      const int64_t rows = std::min<int64_t>(REGISTER_ROWS, keys - t);
      interpreter.run<N>(program.mask_end, program.derivative_end, tile.begin + t, rows, raw_scores + t * row);
      std::copy_n(interpreter.registers, rows * row, raw_scores + t * row);
    }
    Vec row_statistic[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) row_statistic[j] = load(panel.row_statistic + low + j * LANES);
    int32_t key_offsets[BACKWARD_TILE_KEYS];
    int64_t count = 0;
    for (int64_t t = 0; t < keys; ++t) {
      const float* scores = weights + t * row;
      IntVec is_above{};
      REGARD_UNROLL for (int j = 0; j < N; ++j) is_above |= ~IntVec(load(scores + j * LANES) <= row_statistic[j]);
      if (!any(is_above)) continue;
      if (count < t) std::copy_n(scores, row, weights + count * row);
      if (has_derivative && count < t) std::copy_n(raw_scores + t * row, row, raw_scores + count * row);
      std::copy_n(tile.k + t * tile.k_row_stride, p.head_dim, compacted.k + count * p.head_dim);
      std::copy_n(tile.v + t * tile.v_row_stride, p.value_dim, compacted.v + count * p.value_dim);
      std::copy_n(d_k + t * padded_dim, padded_dim, compacted.d_k + count * padded_dim);
      std::copy_n(d_v + t * padded_value_dim, padded_value_dim, compacted.d_v + count * padded_value_dim);
      key_offsets[count++] = int32_t(t);
    }
    dot_products<N>(panel.d_output + low, panel.lanes, p.value_dim, compacted.v, p.value_dim, count, d_scores);
    weights_to_d_scores<N, HAS_SCORE_MOD, true>(panel, tile, count, key_offsets, d_scores, nullptr, entmax_power);
    if (has_derivative) apply_score_derivatives(d_scores, raw_scores, count * row);
    accumulate_d_q<N>(panel, tile, d_scores, compacted.k, p.head_dim, count);
    accumulate_over_queries(weights, row, count, interpreter.num_queries, panel.d_output_rows + low * padded_value_dim,
                            padded_value_dim, compacted.d_v);
    accumulate_over_queries(d_scores, row, count, interpreter.num_queries, panel.query_rows + low * padded_dim,
                            padded_dim, compacted.d_k);
    for (int64_t t = 0; t < count; ++t) {
      std::copy_n(compacted.d_k + t * padded_dim, padded_dim, d_k + key_offsets[t] * padded_dim);
      std::copy_n(compacted.d_v + t * padded_value_dim, padded_value_dim, d_v + key_offsets[t] * padded_value_dim);
    }
  }

  // Where the gradient is 0 (hidden pairs among them), an infinite derivative must not give NaN.
  static void apply_score_derivatives(float* d_scores, const float* derivatives, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) {
      const Vec g = load(d_scores + i);
      store(d_scores + i, where(g == 0.0f, g, g * load(derivatives + i)));
    }
  }

  template <int N>
  void accumulate_d_q(BackwardPanel& panel, const KeyTile& tile, const float* d_scores, const float* k, int64_t k_row,
                      int64_t count) const {
    Vec one[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) one[j] = broadcast(1.0f);
    weighted_sums<N>(d_scores, k, k_row, count, params.head_dim, one, panel.d_q_accumulator + tile.vector_begin * LANES,
                     panel.lanes);
  }

  // Turns scores into weights, and gradients of weights into gradients of scores. key_offsets are the keys' positions
  // in the tile; null for consecutive keys.
  template <int N, bool HAS_SCORE_MOD, bool THRESHOLDED>
  REGARD_INLINE_METHOD void weights_to_d_scores(const BackwardPanel& panel, const KeyTile& tile, int64_t count,
                                                const int32_t* key_offsets, float* d_scores, int32_t* visible,
                                                const EntmaxPower& entmax_power) const {
    const AttentionParams& p = params;
    const int64_t low = tile.vector_begin * LANES;
    float* weights = tile.scores;
    Vec row_statistic[N], delta[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) {
      row_statistic[j] = load(panel.row_statistic + low + j * LANES);
      delta[j] = load(panel.delta + low + j * LANES);
    }
    for (int64_t t = 0; t < count; ++t)
      REGARD_UNROLL for (int j = 0; j < N; ++j) {
        float* weight = weights + (t * N + j) * LANES;
        float* gradient = d_scores + (t * N + j) * LANES;
        const Vec score = load(weight), shifted = score - row_statistic[j];
        const IntVec hidden = THRESHOLDED ? IntVec(shifted <= 0.0f) : IntVec(score == -INFINITY);
        Vec w, slope;
        if (THRESHOLDED) {
          entmax_power.weight_and_slope(shifted, w, slope);
        } else {
          w = slope = exp2(HAS_SCORE_MOD ? shifted * LOG2_E : shifted);
        }
        Vec weight_after_dropout = w, d_weight = load(gradient);
        if (p.dropout_threshold) {
          const IntVec keep =
              panel.dropout.keep_mask(tile.begin + (key_offsets ? key_offsets[t] : t), tile.vector_begin + j);
          weight_after_dropout = where(keep, w * panel.dropout.scale, Vec{});
          d_weight = where(keep, d_weight * panel.dropout.scale, Vec{});
        }
        Vec d_score = slope * (d_weight - delta[j]);
        if (visible) store(visible + (t * N + j) * LANES, ~hidden);
        if (THRESHOLDED || tile.has_masked_keys() || HAS_SCORE_MOD || visible) {
          // hidden pairs are not 0 by themselves where the row statistic or d_weight is not finite
          weight_after_dropout = where(hidden, Vec{}, weight_after_dropout);
          d_score = where(hidden, Vec{}, d_score);
        }
        store(weight, weight_after_dropout);
        store(gradient, d_score);
      }
  }

  // Contiguous rows of whole vectors: the rows themselves if they are contiguous, else a padded copy in `scratch`.
  static const float* padded_rows(const float* from, int64_t row, int64_t count, int64_t num_channels, float* scratch) {
    const int64_t padded_dim = round_up_to_lanes(num_channels);
    if (row == num_channels && num_channels == padded_dim) return from;
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(from + i * row, num_channels, scratch + i * padded_dim);
      std::fill(scratch + i * padded_dim + num_channels, scratch + (i + 1) * padded_dim, 0.0f);
    }
    return scratch;
  }

  template <bool ACCUMULATE>
  static void write_scaled_rows(const float* from, int64_t row, int64_t count, int64_t num_channels, float factor,
                                float* to) {
    if (!from) return std::fill(to, to + count * num_channels, 0.0f), void();
    for (int64_t i = 0; i < count; ++i)
      for (int64_t p = 0; p < num_channels; ++p) {
        const float update = factor * from[i * row + p];
        to[i * num_channels + p] = ACCUMULATE ? to[i * num_channels + p] + update : update;
      }
  }
};

static bool backward_in_panels(const AttentionParams& params, bool (*should_stop)()) {
  const int64_t num_panels = (params.n_q + PANEL_QUERIES - 1) / PANEL_QUERIES;
  const int64_t panels_per_block = std::min(BACKWARD_PANELS_PER_BLOCK, num_panels);
  const int64_t blocks_per_head = (num_panels + panels_per_block - 1) / panels_per_block;
  Backward work(params, blocks_per_head, panels_per_block);
  const bool is_complete = parallel_for(
      params.batch * params.num_heads * blocks_per_head, params.num_threads, work.scratch_floats(),
      [](void* context, int64_t item, float* scratch) { static_cast<Backward*>(context)->run_block(item, scratch); },
      &work, should_stop);
  work.zero_unvisited_keys();
  work.write_local_sums();
  return is_complete;
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
