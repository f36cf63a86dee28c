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
#include "kernels/scratch.h"
#include "parallel.h"
#include "simd/flush_denormals.h"

namespace regard {
namespace REGARD_ISA {
namespace {

constexpr int64_t BACKWARD_TILE_KEYS = 96;
constexpr int64_t BACKWARD_PANELS_PER_BLOCK = 4;
constexpr int64_t MAX_LOCAL_SUM_FLOATS = 1 << 16;
constexpr int64_t TRANSPOSED_ROW = BACKWARD_TILE_KEYS + LANES;  // additive_gradients writes whole vectors

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
        REGARD_UNROLL for (int i = 0; i < R; ++i) REGARD_UNROLL for (int j = 0; j < N; ++j) sum[i][j] =
            load(sums + (t + i) * num_channels + (c + j) * LANES);
        gemm_microkernel<R, N>(sum, left + t * left_row, left_row, 1, right + c * LANES, num_channels, queries);
        REGARD_UNROLL for (int i = 0; i < R; ++i) REGARD_UNROLL for (int j = 0; j < N; ++j)
            store(sums + (t + i) * num_channels + (c + j) * LANES, sum[i][j]);
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

  // A block of panels of one head.
  struct Item {
    int64_t index, b, h, kv_head;
    int64_t head_row;  // the row of the head's first query
  };

  // Copies of the keys of a tile that have a weight other than 0: rows of k, v, d_k and d_v.
  struct CompactedKeys {
    float *k, *v, *d_k, *d_v;
  };

  // The scratch memory of an item. A tile has a row for each key.
  struct Workspace {
    BackwardPanel panels[BACKWARD_PANELS_PER_BLOCK];
    int64_t num_panels;
    double score_unit;          // scores are in units of log 2 unless there is a score modifier
    float *weights, *d_scores;  // of a tile, with a lane for each query
    float* raw_scores;          // before the score modifier
    int32_t* visible;           // -1 or 0 for each pair, where a value is not finite
    float* registers;           // of the interpreter
    float *k_float, *v_float;   // upcast keys and values
    float *d_k, *d_v;           // of a tile, with whole vectors of channels
    CompactedKeys compacted;    // for entmax
    EntmaxPower entmax_power;   // for entmax
    AdditiveHead additive;      // for additive scores, as the next two
    float* d_k_transposed;      // (head_dim, keys)
    double* d_u;                // (head_dim)
    double* local_sums;         // small gradients of captured tensors
    std::vector<GradientTarget> gradient_targets;
  };

  // The keys and values of a tile, once a panel attends to them.
  struct TileRows {
    int64_t begin, end;  // keys
    bool is_loaded = false;
    bool is_finite = false;
    FloatRows k{}, v{};
    ExpTerms exp_terms{};
  };

  void run_block(int64_t index, float* scratch) const {
    const FlushDenormals flush;
    const AttentionParams& p = params;
    const int64_t b = index / blocks_per_head / p.num_heads, h = index / blocks_per_head % p.num_heads;
    const Item item{index, b, h, h / (p.num_heads / p.num_kv_heads), (b * p.num_heads + h) * p.n_q};
    ScratchAllocator allocator(scratch);
    Workspace work = allocate_workspace(item, allocator);
    wait_for_item(init_gradient_targets(item, work));
    const KeyRun all_keys{0, int32_t(p.n_k), 0, 0, VECTORS_PER_PANEL};
    for (int64_t n = 0; n < work.num_panels; ++n) {
      init_panel(item, n, all_keys, work, allocator);
      pack_panel(item, work, work.panels[n], allocator);
    }
    for (int64_t tile_index = tile_range[2 * index]; tile_index < tile_range[2 * index + 1]; ++tile_index) {
      const bool has_visible_keys = run_tile(item, tile_index, work);
      write_tile(item, tile_index, has_visible_keys, work);
    }
    write_query_gradients(item, work);
    if (has_captured_gradients()) add_captured_gradients(item, work);
  }

  Workspace allocate_workspace(const Item& item, ScratchAllocator& allocator) const {
    const AttentionParams& p = params;
    const int64_t padded_dim = round_up_to_lanes(p.head_dim), padded_value_dim = round_up_to_lanes(p.value_dim);
    const bool has_score_mod = p.program && p.program->score_mod_end;
    Workspace work{};
    work.num_panels = panel_end(item.index) - panel_begin(item.index);
    work.score_unit = has_score_mod || p.entmax_exponents ? 1.0 : LOG2_E_DOUBLE;
    work.weights = allocator.floats(BACKWARD_TILE_KEYS * PANEL_QUERIES);
    work.d_scores = allocator.floats(BACKWARD_TILE_KEYS * PANEL_QUERIES);
    work.d_k = allocator.floats(BACKWARD_TILE_KEYS * padded_dim);
    work.d_v = allocator.floats(BACKWARD_TILE_KEYS * padded_value_dim);
    work.raw_scores = allocator.floats(p.program ? BACKWARD_TILE_KEYS * PANEL_QUERIES : 0);
    work.visible = reinterpret_cast<int32_t*>(allocator.floats(BACKWARD_TILE_KEYS * PANEL_QUERIES));
    work.registers = allocator.floats((p.program ? p.program->num_registers : 0) * REGISTER_ROWS * PANEL_QUERIES);
    work.k_float = allocator.floats(upcast_scratch_floats(p.dtype, BACKWARD_TILE_KEYS, p.head_dim));
    work.v_float = allocator.floats(upcast_scratch_floats(p.dtype, BACKWARD_TILE_KEYS, p.value_dim));
    if (p.entmax_exponents) {
      work.compacted.k = allocator.floats(BACKWARD_TILE_KEYS * p.head_dim);
      work.compacted.v = allocator.floats(BACKWARD_TILE_KEYS * p.value_dim);
      work.compacted.d_k = allocator.floats(BACKWARD_TILE_KEYS * padded_dim);
      work.compacted.d_v = allocator.floats(BACKWARD_TILE_KEYS * padded_value_dim);
      work.entmax_power.exponent = p.entmax_exponents[item.h];
    }
    if (p.u) {
      work.additive = AdditiveHead(p, item.h, work.score_unit, allocator.floats(AdditiveHead::scratch_floats(p)));
      work.d_k_transposed = allocator.floats(TRANSPOSED_ROW * p.head_dim);
      work.d_u = allocator.doubles(p.head_dim);
      std::fill(work.d_u, work.d_u + p.head_dim, 0.0);
    }
    work.local_sums = allocator.doubles(local_sum_size);
    std::fill(work.local_sums, work.local_sums + local_sum_size, 0.0);
    return work;
  }

  // Chooses where the gradients of captured tensors are summed. Returns the last item that must be done before this one
  // adds to a large sum, or -1.
  int64_t init_gradient_targets(const Item& item, Workspace& work) const {
    int64_t previous_item = -1;
    double* local = work.local_sums;
    for (int64_t n = 0; n < num_sums(); ++n) {
      const GradientSum& sum = params.program->gradient_sums[n];
      if (is_local_sum(n)) {
        work.gradient_targets.push_back({nullptr, local});
        local += sum.size;
        continue;
      }
      work.gradient_targets.push_back({sum.data, nullptr});
      if (sum.conflict_scope == ConflictScope::HEADS)
        previous_item = std::max(previous_item, item.index - blocks_per_head);
      if (sum.conflict_scope == ConflictScope::ANY) previous_item = std::max(previous_item, item.index - 1);
    }
    return previous_item;
  }

  // Allocates the sums of a panel.
  void init_panel(const Item& item, int64_t n, const KeyRun& all_keys, Workspace& work,
                  ScratchAllocator& allocator) const {
    const AttentionParams& p = params;
    BackwardPanel& panel = work.panels[n];
    panel.query_begin = (panel_begin(item.index) + n) * PANEL_QUERIES;
    panel.num_queries = std::min<int64_t>(PANEL_QUERIES, p.n_q - panel.query_begin);
    panel.lanes = round_up_to_lanes(panel.num_queries);
    panel.key_runs = key_runs(p, item.b, item.h, panel_begin(item.index) + n, all_keys);
    panel.d_q_accumulator = allocator.floats(panel.lanes * p.head_dim);
    std::fill(panel.d_q_accumulator, panel.d_q_accumulator + panel.lanes * p.head_dim, 0.0f);
    if (p.dropout_threshold) panel.dropout.init(p, item.b, item.h, panel.query_begin, panel.num_queries);
  }

  // Packs the queries and the gradients of the output of a panel, and computes delta.
  void pack_panel(const Item& item, Workspace& work, BackwardPanel& panel, ScratchAllocator& allocator) const {
    const AttentionParams& p = params;
    panel.d_output = allocator.floats(panel.lanes * p.value_dim);
    const auto load_rows = [&](const StridedRows& rows, int64_t num_channels) {
      return load_float_rows(rows, p.dtype, item.b, item.h, panel.query_begin, panel.num_queries, num_channels,
                             allocator.floats(upcast_scratch_floats(p.dtype, panel.num_queries, num_channels)));
    };
    const FloatRows q = load_rows(p.q, p.head_dim), g = load_rows(p.d_output, p.value_dim);
    panel.is_finite = all_finite(q.data, q.row_stride, panel.num_queries, p.head_dim) &&
                      all_finite(g.data, g.row_stride, panel.num_queries, p.value_dim);
    panel.queries = PackedQueries::pack(p, q, panel.num_queries, panel.lanes, work.score_unit, work.additive,
                                        allocator.floats(PackedQueries::scratch_floats(p, panel.lanes)));
    pack_lanes(g.data, g.row_stride, panel.num_queries, p.value_dim, 1.0f, panel.d_output, panel.lanes);
    panel.query_rows = padded_rows(q.data, q.row_stride, panel.num_queries, p.head_dim,
                                   allocator.floats(panel.num_queries * round_up_to_lanes(p.head_dim)));
    panel.d_output_rows = padded_rows(g.data, g.row_stride, panel.num_queries, p.value_dim,
                                      allocator.floats(panel.num_queries * round_up_to_lanes(p.value_dim)));
    init_row_statistics(item, g, work, panel);
  }

  void init_row_statistics(const Item& item, const FloatRows& d_output, const Workspace& work,
                           BackwardPanel& panel) const {
    const AttentionParams& p = params;
    const StridedRows output_rows{p.output, 0, 0, p.value_dim};
    for (int64_t i = 0; i < panel.lanes; ++i) {
      const int64_t query = std::min(i, panel.num_queries - 1), row = item.head_row + panel.query_begin + query;
      const float statistic =
          work.score_unit == 1.0 ? p.row_statistic[row] : float(p.row_statistic[row] * work.score_unit);
      // weights become 0 for a query without keys
      panel.row_statistic[i] = statistic == -INFINITY ? INFINITY : statistic;
      // v_float is not yet in use
      const FloatRows output = load_float_rows(output_rows, p.output_dtype, 0, 0, row, 1, p.value_dim, work.v_float);
      panel.delta[i] =
          dot(output.data, d_output.data + query * d_output.row_stride, p.value_dim) - p.d_row_statistic[row];
    }
  }

  // Computes d_k and d_v of a tile, and adds its part of d_q. Returns whether a panel attends to some of its keys.
  bool run_tile(const Item& item, int64_t tile_index, Workspace& work) const {
    TileRows rows;
    rows.begin = tile_index * BACKWARD_TILE_KEYS, rows.end = std::min(params.n_k, rows.begin + BACKWARD_TILE_KEYS);
    for (int64_t n = 0; n < work.num_panels; ++n) {
      BackwardPanel& panel = work.panels[n];
      KeyTile tile{};
      tile.scores = work.weights;
      for (int64_t from = rows.begin; tile.advance(panel.key_runs, from, rows.end); from = tile.end) {
        if (!rows.is_loaded) {
          clear_key_gradients(rows, work);
          load_tile(item, rows, work);
        }
        run_panel_tile(item, panel, tile, rows, work);
      }
    }
    if (params.u && rows.is_loaded) transpose_d_k(item, rows.end - rows.begin, work);
    return rows.is_loaded;
  }

  void clear_key_gradients(const TileRows& rows, const Workspace& work) const {
    const int64_t count = rows.end - rows.begin;
    std::fill(work.d_k, work.d_k + count * round_up_to_lanes(params.head_dim), 0.0f);
    std::fill(work.d_v, work.d_v + count * round_up_to_lanes(params.value_dim), 0.0f);
  }

  void load_tile(const Item& item, TileRows& rows, Workspace& work) const {
    const AttentionParams& p = params;
    const int64_t count = rows.end - rows.begin;
    rows.k = load_float_rows(p.k, p.dtype, item.b, item.kv_head, rows.begin, count, p.head_dim, work.k_float);
    rows.v = load_float_rows(p.v, p.dtype, item.b, item.kv_head, rows.begin, count, p.value_dim, work.v_float);
    if (p.u) {
      std::fill(work.d_k_transposed, work.d_k_transposed + TRANSPOSED_ROW * p.head_dim, 0.0f);
      rows.exp_terms = key_exp_terms(rows.k.data, rows.k.row_stride, count, p.head_dim, work.additive.key_exp_scratch);
    }
    // 0 times inf is NaN: where a value is not finite, only visible pairs are summed
    rows.is_finite = all_finite(rows.k.data, rows.k.row_stride, count, p.head_dim) &&
                     all_finite(rows.v.data, rows.v.row_stride, count, p.value_dim);
    rows.is_loaded = true;
  }

  Interpreter make_interpreter(const Item& item, const BackwardPanel& panel, const KeyTile& tile,
                               const Workspace& work) const {
    static const Program no_program{};
    const int64_t low = tile.vector_begin * LANES, high = std::min(tile.vector_end * LANES, panel.lanes);
    Interpreter interpreter{params.program ? *params.program : no_program, work.registers, item.b, item.h,
                            panel.query_begin + low};
    interpreter.gradient_targets = work.gradient_targets.data();
    interpreter.num_queries = std::min(high, panel.num_queries) - low;
    return interpreter;
  }

  // The gradients of a panel and a part of a tile of keys.
  void run_panel_tile(const Item& item, BackwardPanel& panel, KeyTile& tile, const TileRows& rows,
                      Workspace& work) const {
    const AttentionParams& p = params;
    const int64_t offset = tile.begin - rows.begin;  // of the part in the tile
    int32_t* const visible = rows.is_finite && panel.is_finite ? nullptr : work.visible;
    tile.k = rows.k.data + offset * rows.k.row_stride, tile.k_row_stride = rows.k.row_stride;
    tile.v = rows.v.data + offset * rows.v.row_stride, tile.v_row_stride = rows.v.row_stride;
    if (p.u) tile.exp_terms = rows.exp_terms.slice(offset);
    const int64_t low = tile.vector_begin * LANES, high = std::min(tile.vector_end * LANES, panel.lanes);
    const bool has_score_mod = p.program && p.program->score_mod_end,
               has_captured = has_score_mod && p.program->derivative_end < p.program->end;
    Interpreter interpreter = make_interpreter(item, panel, tile, work);
    float* d_k = work.d_k + offset * round_up_to_lanes(p.head_dim);
    float* d_v = work.d_v + offset * round_up_to_lanes(p.value_dim);
    const bool is_compacted = p.entmax_exponents && !visible && !p.u && !has_captured;
    dispatch_vectors((high - low) / LANES, [&](auto vectors) {
      constexpr int N = decltype(vectors)::value;
      if (is_compacted)
        return has_score_mod ? compacted_tile_gradients<N, true>(panel, tile, interpreter, work, d_k, d_v)
                             : compacted_tile_gradients<N, false>(panel, tile, interpreter, work, d_k, d_v);
      if (has_score_mod && !p.u) tile.table_prefetch = interpreter.table_prefetch(tile.begin, N * LANES, p.head_dim);
      const auto compute = p.entmax_exponents ? has_score_mod ? &Backward::tile_gradients<N, true, true>
                                                              : &Backward::tile_gradients<N, false, true>
                           : has_score_mod ? &Backward::tile_gradients<N, true, false>
                                              : &Backward::tile_gradients<N, false, false>;
      (this->*compute)(panel, tile, interpreter, visible, work);
      if (p.u) add_additive_gradients<N>(panel, tile, interpreter.num_queries, offset, work);
    });
    if (!is_compacted) add_key_gradients(panel, tile, high - low, interpreter.num_queries, visible, work, d_k, d_v);
  }

  template <int N>
  void add_additive_gradients(BackwardPanel& panel, const KeyTile& tile, int64_t num_queries, int64_t offset,
                              Workspace& work) const {
    const int64_t keys = tile.end - tile.begin, low = tile.vector_begin * LANES;
    for (int64_t t = 0; t < keys; ++t)  // lanes that repeat the last query do not count
      std::fill(work.d_scores + t * N * LANES + num_queries, work.d_scores + (t + 1) * N * LANES, 0.0f);
    additive_gradients<N>(panel.queries.exp_terms.slice(0, low), tile.exp_terms, params.head_dim, keys, work.d_scores,
                          panel.d_q_accumulator + low, panel.lanes, work.d_k_transposed + offset, TRANSPOSED_ROW,
                          work.d_u);
  }

  // d_v += w' g and d_k += d_s' q, over the visible pairs.
  void add_key_gradients(const BackwardPanel& panel, const KeyTile& tile, int64_t row, int64_t num_queries,
                         const int32_t* visible, const Workspace& work, float* d_k, float* d_v) const {
    const int64_t padded_dim = round_up_to_lanes(params.head_dim),
                  padded_value_dim = round_up_to_lanes(params.value_dim);
    const int64_t keys = tile.end - tile.begin, low = tile.vector_begin * LANES;
    const auto add = [&](const float* left, const float* right, int64_t num_channels, float* sums) {
      if (visible) {
        accumulate_over_visible(left, visible, row, keys, num_queries, right, num_channels, sums);
      } else {
        accumulate_over_queries(left, row, keys, num_queries, right, num_channels, sums);
      }
    };
    add(work.weights, panel.d_output_rows + low * padded_value_dim, padded_value_dim, d_v);
    if (!params.u) add(work.d_scores, panel.query_rows + low * padded_dim, padded_dim, d_k);
  }

  void transpose_d_k(const Item& item, int64_t keys, Workspace& work) const {
    const float* u = params.u + item.h * params.head_dim;
    for (int64_t t = 0; t < keys; ++t)
      for (int64_t c = 0; c < params.head_dim; ++c)
        work.d_k[t * round_up_to_lanes(params.head_dim) + c] = u[c] * work.d_k_transposed[c * TRANSPOSED_ROW + t];
  }

  // Waits until this item is the next writer of the tile, adds to its gradients, and passes it on.
  void write_tile(const Item& item, int64_t tile_index, bool has_visible_keys, const Workspace& work) const {
    const int64_t items_per_kv_head = params.num_heads / params.num_kv_heads * blocks_per_head;
    const int64_t slot = (item.b * params.num_kv_heads + item.kv_head) * num_tiles + tile_index;
    std::atomic<int64_t>& writer = next_writer[slot];
    for (int64_t spins = 0; writer.load(std::memory_order_acquire) != item.index; ++spins)
      if (spins > 256) std::this_thread::yield();
    if (has_visible_keys) {
      is_initialized[slot] ? write_key_gradients<true>(slot / num_tiles, tile_index, work.d_k, work.d_v)
                           : write_key_gradients<false>(slot / num_tiles, tile_index, work.d_k, work.d_v);
      is_initialized[slot] = true;
    }
    const int64_t end = (item.index / items_per_kv_head + 1) * items_per_kv_head;
    writer.store(next_item_at_tile(item.index + 1, end, tile_index), std::memory_order_release);
  }

  void write_query_gradients(const Item& item, const Workspace& work) const {
    const AttentionParams& p = params;
    float factor[PANEL_QUERIES];
    std::fill(factor, factor + PANEL_QUERIES, float(p.scale));
    for (int64_t n = 0; n < work.num_panels; ++n) {
      const BackwardPanel& panel = work.panels[n];
      for (int64_t c = 0; p.u && c < p.head_dim; ++c)
        for (int64_t i = 0; i < panel.lanes; ++i)
          panel.d_q_accumulator[c * panel.lanes + i] *= p.u[item.h * p.head_dim + c];
      unpack_lanes(panel.d_q_accumulator, panel.lanes, factor, panel.num_queries, p.head_dim,
                   p.d_q + (item.head_row + panel.query_begin) * p.head_dim, p.head_dim);
    }
  }

  // Adds the small sums in the order of the items.
  void add_captured_gradients(const Item& item, const Workspace& work) const {
    const AttentionParams& p = params;
    wait_for_item(item.index - 1);
    for (int64_t c = 0; p.u && c < p.head_dim; ++c) p.d_u[item.h * p.head_dim + c] += work.d_u[c];
    for (int64_t i = 0; i < local_sum_size; ++i) local_sums[i] += work.local_sums[i];
    is_item_done[item.index].store(true, std::memory_order_release);
  }

  // Computes w and d_s of a tile, and adds its part of d_q. Writes which pairs are visible to `visible`, unless it is
  // null. With THRESHOLDED, scores that are not above their row's threshold are not visible.
  template <int N, bool HAS_SCORE_MOD, bool THRESHOLDED>
  void tile_gradients(BackwardPanel& panel, const KeyTile& tile, Interpreter& interpreter, int32_t* visible,
                      const Workspace& work) const {
    const AttentionParams& p = params;
    const Program& program = interpreter.program;
    const int64_t count = tile.end - tile.begin;
    float *weights = tile.scores, *d_scores = work.d_scores, *raw_scores = work.raw_scores;
    const int64_t low = tile.vector_begin * LANES;
    compute_scores<N>(p, panel.queries, tile, weights);
    dot_products<N>(panel.d_output + low, panel.lanes, p.value_dim, tile.v, tile.v_row_stride, count, d_scores);
    const bool has_derivative = HAS_SCORE_MOD && program.mask_end < program.derivative_end,
               has_captured = HAS_SCORE_MOD && program.derivative_end < program.end;
    if (has_derivative || has_captured) std::memcpy(raw_scores, weights, sizeof(float) * count * N * LANES);
    if (HAS_SCORE_MOD || tile.has_masked_keys()) apply_program<N>(tile, interpreter);
    weights_to_d_scores<N, HAS_SCORE_MOD, THRESHOLDED>(panel, tile, count, nullptr, d_scores, visible,
                                                       work.entmax_power);
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
      for (int64_t c = 0; c < p.head_dim; ++c) REGARD_UNROLL for (int j = 0; j < N; ++j) {
          float* sum = panel.d_q_accumulator + c * panel.lanes + low + j * LANES;
          const Vec updated = load(sum) + tile.k[t * tile.k_row_stride + c] * load(d_scores + (t * N + j) * LANES);
          store(sum, where(load(visible + (t * N + j) * LANES), updated, load(sum)));
        }
  }

  // All gradients of a tile for a thresholded normalizer. Most keys have weight 0 for all queries of the panel; they
  // are left out before any product.
  template <int N, bool HAS_SCORE_MOD>
  void compacted_tile_gradients(BackwardPanel& panel, const KeyTile& tile, Interpreter& interpreter,
                                const Workspace& work, float* d_k, float* d_v) const {
    const AttentionParams& p = params;
    const Program& program = interpreter.program;
    const int64_t keys = tile.end - tile.begin, row = N * LANES, low = tile.vector_begin * LANES;
    const int64_t padded_dim = round_up_to_lanes(p.head_dim), padded_value_dim = round_up_to_lanes(p.value_dim);
    const CompactedKeys& compacted = work.compacted;
    float *weights = tile.scores, *d_scores = work.d_scores, *raw_scores = work.raw_scores;
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
    weights_to_d_scores<N, HAS_SCORE_MOD, true>(panel, tile, count, key_offsets, d_scores, nullptr, work.entmax_power);
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
    for (int64_t t = 0; t < count; ++t) REGARD_UNROLL for (int j = 0; j < N; ++j) {
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

// Runs the blocks of panels of all heads. `Work` is Backward, or derives from it.
template <class Work = Backward>
static bool backward_in_panels(const AttentionParams& params, bool (*should_stop)()) {
  const int64_t num_panels = (params.n_q + PANEL_QUERIES - 1) / PANEL_QUERIES;
  const int64_t panels_per_block = std::min(BACKWARD_PANELS_PER_BLOCK, num_panels);
  const int64_t blocks_per_head = (num_panels + panels_per_block - 1) / panels_per_block;
  Work work(params, blocks_per_head, panels_per_block);
  const bool is_complete = parallel_for(
      params.batch * params.num_heads * blocks_per_head, params.num_threads, work.scratch_floats(),
      [](void* context, int64_t item, float* scratch) { static_cast<Work*>(context)->run_block(item, scratch); }, &work,
      should_stop);
  work.zero_unvisited_keys();
  work.write_local_sums();
  return is_complete;
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
