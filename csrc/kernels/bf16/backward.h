// Backward in bfloat16: the five products of kernels/backward.h with bfloat16 pairs. Weights, gradients of scores and
// all sums are computed in float32; the weights and the gradients of scores are rounded to bfloat16 for the products.
//
// The products over queries, for d_k and d_v, run over panels that attend to the same keys of a tile together. A panel
// computes a tile in float32 if its scores or gradients might not be finite.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "abi.h"
#include "kernels/backward.h"
#include "kernels/bf16/forward.h"
#include "kernels/bf16/products.h"
#include "simd/flush_denormals.h"

namespace regard {
namespace REGARD_ISA {
namespace {

constexpr int64_t BLOCK_QUERIES = BACKWARD_PANELS_PER_BLOCK * PANEL_QUERIES;

struct Bf16Backward : Backward {
  using Backward::Backward;

  struct Bf16BackwardPanel {
    int32_t* query_pairs;     // (pairs of head_dim, lanes), with the sign of the scale
    int32_t* d_output_pairs;  // (pairs of value_dim, lanes)
    float largest_query, largest_d_output;
    bool has_finite_rows;  // whether delta and the row statistic are finite
    bool is_packed;        // in float32 as well
  };

  // The scratch memory of an item, beside that of Backward.
  struct Bf16Workspace {
    Bf16BackwardPanel panels[BACKWARD_PANELS_PER_BLOCK];
    int32_t *query_row_pairs, *d_output_row_pairs;  // (pairs of the item's queries, whole vectors of channels)
    uint16_t *weights, *d_scores;                   // (keys, the item's queries)
    int32_t* d_score_pairs;                         // (pairs of keys, lanes) of a panel
    int32_t* key_pairs;                             // (pairs of keys, head_dim)
    uint16_t *odd_keys, *odd_values;                // where head_dim or value_dim is odd
    float* d_output_float;
  };

  // The keys and values of a tile, once a panel attends to them.
  struct Bf16BackwardRows {
    TileRows in_float32;
    bool is_loaded = false;
    Bf16Rows k{}, v{};
    float largest_key = 0.0f, largest_value = 0.0f;
  };

  // Consecutive panels that attend to the same keys of a tile, whose weights wait for the products over queries.
  struct PendingPanels {
    int64_t query_begin = 0, query_end = 0;  // within the item
    int64_t key_begin = 0, key_end = 0;      // within the tile
  };

  size_t scratch_floats() const {
    const AttentionParams& p = params;
    const int64_t padded_channels = round_up_to_lanes(p.head_dim) + round_up_to_lanes(p.value_dim);
    return Backward::scratch_floats() + BLOCK_QUERIES * (num_pairs(p.head_dim) + num_pairs(p.value_dim)) +
           BLOCK_QUERIES / 2 * padded_channels + BACKWARD_TILE_KEYS * (BLOCK_QUERIES + PANEL_QUERIES / 2) +
           BACKWARD_TILE_KEYS * (p.head_dim + p.value_dim / 2 + 2) + PANEL_QUERIES * p.value_dim + 16 * 24;
  }

  Bf16Workspace allocate_bf16_workspace(ScratchAllocator& allocator) const {
    const AttentionParams& p = params;
    const auto pairs = [&](int64_t count) { return reinterpret_cast<int32_t*>(allocator.floats(count)); };
    const auto words = [&](int64_t count) { return reinterpret_cast<uint16_t*>(allocator.floats(num_pairs(count))); };
    Bf16Workspace work{};
    work.query_row_pairs = pairs(BLOCK_QUERIES / 2 * round_up_to_lanes(p.head_dim));
    work.d_output_row_pairs = pairs(BLOCK_QUERIES / 2 * round_up_to_lanes(p.value_dim));
    work.weights = words(BACKWARD_TILE_KEYS * BLOCK_QUERIES);
    work.d_scores = words(BACKWARD_TILE_KEYS * BLOCK_QUERIES);
    work.d_score_pairs = pairs(BACKWARD_TILE_KEYS / 2 * PANEL_QUERIES);
    work.key_pairs = pairs(BACKWARD_TILE_KEYS / 2 * p.head_dim);
    work.odd_keys = words(BACKWARD_TILE_KEYS * (p.head_dim + 1));
    work.odd_values = words(BACKWARD_TILE_KEYS * (p.value_dim + 1));
    work.d_output_float = allocator.floats(PANEL_QUERIES * p.value_dim);
    return work;
  }

  void run_block(int64_t index, float* scratch) const {
    const FlushDenormals flush;
    const AttentionParams& p = params;
    const int64_t b = index / blocks_per_head / p.num_heads, h = index / blocks_per_head % p.num_heads;
    const Item item{index, b, h, h / (p.num_heads / p.num_kv_heads), (b * p.num_heads + h) * p.n_q};
    ScratchAllocator allocator(scratch);
    Workspace work = allocate_workspace(item, allocator);
    Bf16Workspace bf16_work = allocate_bf16_workspace(allocator);
    wait_for_item(init_gradient_targets(item, work));
    const KeyRun all_keys{0, int32_t(p.n_k), 0, 0, VECTORS_PER_PANEL};
    for (int64_t n = 0; n < work.num_panels; ++n) {
      init_panel(item, n, all_keys, work, allocator);
      pack_bf16_panel(item, work.panels[n], bf16_work.panels[n], work, bf16_work, allocator);
    }
    pack_query_rows(item, work, bf16_work);
    for (int64_t tile_index = tile_range[2 * index]; tile_index < tile_range[2 * index + 1]; ++tile_index) {
      const bool has_visible_keys = run_bf16_tile(item, tile_index, work, bf16_work, allocator);
      write_tile(item, tile_index, has_visible_keys, work);
    }
    write_query_gradients(item, work);
    if (has_captured_gradients()) add_captured_gradients(item, work);
  }

  void pack_bf16_panel(const Item& item, BackwardPanel& panel, Bf16BackwardPanel& bf16_panel, const Workspace& work,
                       const Bf16Workspace& bf16_work, ScratchAllocator& allocator) const {
    const AttentionParams& p = params;
    const auto pack = [&](const StridedRows& rows, int64_t num_channels, bool negate, float& largest) {
      const Bf16Rows from = bf16_rows(rows, item.b, item.h, panel.query_begin);
      int32_t* const to = reinterpret_cast<int32_t*>(allocator.floats(num_pairs(num_channels) * panel.lanes));
      pack_lane_pairs(from, panel.num_queries, num_channels, negate, to, panel.lanes);
      largest = largest_magnitude(from, panel.num_queries, num_channels);
      return to;
    };
    bf16_panel.query_pairs = pack(p.q, p.head_dim, p.scale < 0.0, bf16_panel.largest_query);
    bf16_panel.d_output_pairs = pack(p.d_output, p.value_dim, false, bf16_panel.largest_d_output);
    const FloatRows d_output = load_float_rows(p.d_output, p.dtype, item.b, item.h, panel.query_begin,
                                               panel.num_queries, p.value_dim, bf16_work.d_output_float);
    init_row_statistics(item, d_output, work, panel);
    bf16_panel.has_finite_rows = true;
    for (int64_t i = 0; i < panel.lanes; ++i) {
      const float statistic = panel.row_statistic[i];  // inf for a query without keys
      bf16_panel.has_finite_rows &= std::abs(panel.delta[i]) < MAX_BF16_PRODUCT &&
                                    (std::abs(statistic) < MAX_BF16_SCORE || statistic == INFINITY);
    }
  }

  void pack_query_rows(const Item& item, const Workspace& work, const Bf16Workspace& bf16_work) const {
    const AttentionParams& p = params;
    const int64_t first = work.panels[0].query_begin;
    const int64_t count = std::min(p.n_q, first + work.num_panels * PANEL_QUERIES) - first;
    const auto pack = [&](const StridedRows& rows, int64_t num_channels, int32_t* to) {
      const int64_t to_row = round_up_to_lanes(num_channels);
      std::fill_n(to, BLOCK_QUERIES / 2 * to_row, 0);
      pack_row_pairs(bf16_rows(rows, item.b, item.h, first), count, num_channels, to, to_row);
    };
    pack(p.q, p.head_dim, bf16_work.query_row_pairs);
    pack(p.d_output, p.value_dim, bf16_work.d_output_row_pairs);
  }

  // Computes d_k and d_v of a tile, and adds its part of d_q. Returns whether a panel attends to some of its keys.
  bool run_bf16_tile(const Item& item, int64_t tile_index, Workspace& work, Bf16Workspace& bf16_work,
                     ScratchAllocator& allocator) const {
    Bf16BackwardRows rows;
    rows.in_float32.begin = tile_index * BACKWARD_TILE_KEYS;
    rows.in_float32.end = std::min(params.n_k, rows.in_float32.begin + BACKWARD_TILE_KEYS);
    PendingPanels pending;
    for (int64_t n = 0; n < work.num_panels; ++n) {
      BackwardPanel& panel = work.panels[n];
      KeyTile tile{};
      tile.scores = work.weights;
      for (int64_t from = rows.in_float32.begin; tile.advance(panel.key_runs, from, rows.in_float32.end);
           from = tile.end) {
        if (!rows.is_loaded) load_bf16_tile(item, rows, work, bf16_work);
        if (run_bf16_panel_tile(item, n, tile, rows, work, bf16_work)) {
          extend_pending(n, panel, tile, rows, work, bf16_work, pending);
          continue;
        }
        if (!bf16_work.panels[n].is_packed) pack_panel(item, work, panel, allocator);
        bf16_work.panels[n].is_packed = true;
        if (!rows.in_float32.is_loaded) load_tile(item, rows.in_float32, work);
        run_panel_tile(item, panel, tile, rows.in_float32, work);
      }
    }
    add_pending(pending, work, bf16_work);
    return rows.is_loaded;
  }

  void load_bf16_tile(const Item& item, Bf16BackwardRows& rows, const Workspace& work,
                      const Bf16Workspace& bf16_work) const {
    const AttentionParams& p = params;
    const int64_t begin = rows.in_float32.begin, count = rows.in_float32.end - begin;
    clear_key_gradients(rows.in_float32, work);
    const Bf16Rows k = bf16_rows(p.k, item.b, item.kv_head, begin), v = bf16_rows(p.v, item.b, item.kv_head, begin);
    rows.k = pad_odd_rows(k, count, p.head_dim, bf16_work.odd_keys);
    rows.v = pad_odd_rows(v, count, p.value_dim, bf16_work.odd_values);
    rows.largest_key = largest_magnitude(k, count, p.head_dim);
    rows.largest_value = largest_magnitude(v, count, p.value_dim);
    pack_row_pairs(k, count, p.head_dim, bf16_work.key_pairs, p.head_dim);
    rows.is_loaded = true;
  }

  // Computes the weights and the gradients of the scores of a panel and a part of a tile, and adds to d_q. Returns
  // false, with nothing changed, if a score or a gradient might not be finite.
  bool run_bf16_panel_tile(const Item& item, int64_t n, KeyTile& tile, const Bf16BackwardRows& rows,
                           const Workspace& work, const Bf16Workspace& bf16_work) const {
    const AttentionParams& p = params;
    const BackwardPanel& panel = work.panels[n];
    const Bf16BackwardPanel& bf16_panel = bf16_work.panels[n];
    const float score_bound =
        bf16_panel.largest_query * rows.largest_key * float(p.head_dim * std::abs(p.scale) * LOG2_E_DOUBLE);
    const float gradient_bound = bf16_panel.largest_d_output * rows.largest_value * float(p.value_dim);
    if (!(score_bound < MAX_BF16_PRODUCT && gradient_bound < MAX_BF16_PRODUCT && bf16_panel.has_finite_rows))
      return false;
    Interpreter interpreter = make_interpreter(item, panel, tile, work);
    const int64_t first_vector = tile.vector_begin, end_vector = std::min(tile.vector_end, panel.lanes / LANES);
    bool is_done = false;
    dispatch_vectors(end_vector - first_vector, [&](auto vectors) {
      constexpr int N = decltype(vectors)::value;
      is_done = p.program && p.program->score_mod_end
                    ? bf16_tile_gradients<N, true>(n, tile, rows, interpreter, work, bf16_work)
                    : bf16_tile_gradients<N, false>(n, tile, rows, interpreter, work, bf16_work);
    });
    return is_done;
  }

  template <int N, bool HAS_SCORE_MOD>
  bool bf16_tile_gradients(int64_t n, const KeyTile& tile, const Bf16BackwardRows& rows, Interpreter& interpreter,
                           const Workspace& work, const Bf16Workspace& bf16_work) const {
    const AttentionParams& p = params;
    const BackwardPanel& panel = work.panels[n];
    const Bf16BackwardPanel& bf16_panel = bf16_work.panels[n];
    const Program& program = interpreter.program;
    const int64_t count = tile.end - tile.begin, offset = tile.begin - rows.in_float32.begin,
                  low = tile.vector_begin * LANES;
    const bool has_derivative = HAS_SCORE_MOD && program.mask_end < program.derivative_end,
               has_captured = HAS_SCORE_MOD && program.derivative_end < program.end;
    float *scores = tile.scores, *d_scores = work.d_scores;
    pair_products<N>(rows.k, offset, count, num_pairs(p.head_dim), bf16_panel.query_pairs + low, panel.lanes,
                     HAS_SCORE_MOD ? float(std::abs(p.scale)) : 1.0f, scores);
    if (has_derivative || has_captured) std::copy_n(scores, count * N * LANES, work.raw_scores);
    if (HAS_SCORE_MOD || tile.has_masked_keys()) {
      apply_program<N>(tile, interpreter);
      IntVec is_infinite{};
      for (int64_t i = 0; i < count * N * LANES; i += LANES)
        is_infinite |= ~IntVec(load(scores + i) <= MAX_BF16_PRODUCT);  // or NaN
      if (any(is_infinite)) return false;
    }
    pair_products<N>(rows.v, offset, count, num_pairs(p.value_dim), bf16_panel.d_output_pairs + low, panel.lanes, 1.0f,
                     d_scores);
    const int64_t column = n * PANEL_QUERIES + low;
    if (has_derivative || has_captured) {
      weights_to_bf16<N, HAS_SCORE_MOD, false>(panel, tile, offset, column, d_scores, bf16_work);
      apply_program_gradients<N>(tile, interpreter, d_scores, work);
      round_d_scores<N>(count, offset, column, d_scores, bf16_work);
    } else {
      weights_to_bf16<N, HAS_SCORE_MOD, true>(panel, tile, offset, column, d_scores, bf16_work);
    }
    const int64_t lead = offset % 2;
    Vec one[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) one[j] = broadcast(1.0f);
    const int32_t* key_pairs = bf16_work.key_pairs + offset / 2 * p.head_dim;
    for_each_block<microkernel_rows(N)>(0, p.head_dim, [&](auto channels, int64_t c) __attribute__((always_inline)) {
      add_pair_products<decltype(channels)::value, N>(panel.d_q_accumulator + c * panel.lanes + low, panel.lanes, one,
                                                      reinterpret_cast<const uint16_t*>(key_pairs + c), 2,
                                                      2 * p.head_dim, bf16_work.d_score_pairs, N * LANES,
                                                      num_pairs(count + lead));
    });
    return true;
  }

  // products[t][lane] = factor * rows[t] . columns[lane], for rows from `offset` on.
  template <int N>
  static void pair_products(const Bf16Rows& rows, int64_t offset, int64_t count, int64_t pairs, const int32_t* columns,
                            int64_t column_row, float factor, float* products) {
    const uint16_t* first = rows.data + offset * rows.row_stride;
    for_each_block<microkernel_rows(N)>(0, count, [&](auto block_rows, int64_t t) __attribute__((always_inline)) {
      constexpr int M = decltype(block_rows)::value;
      Vec block[M][N] = {};
      pair_microkernel<M, N>(block, first + t * rows.row_stride, rows.row_stride, 2, columns, column_row, pairs,
                             [](int64_t) REGARD_INLINE_LAMBDA {});
      REGARD_UNROLL for (int i = 0; i < M; ++i) REGARD_UNROLL for (int j = 0; j < N; ++j)
          store(products + ((t + i) * N + j) * LANES, block[i][j] * factor);
    });
  }

  // Turns scores into weights, and gradients of weights into gradients of scores, and rounds the weights. With
  // ROUND_ALL it rounds the gradients of scores as well, and else it stores them as floats.
  template <int N, bool HAS_SCORE_MOD, bool ROUND_ALL>
  void weights_to_bf16(const BackwardPanel& panel, const KeyTile& tile, int64_t offset, int64_t column, float* d_scores,
                       const Bf16Workspace& bf16_work) const {
    const AttentionParams& p = params;
    const int64_t count = tile.end - tile.begin, low = tile.vector_begin * LANES;
    const float log_unit = HAS_SCORE_MOD ? LOG2_E : 1.0f;
    const Vec unit = broadcast((HAS_SCORE_MOD ? LOG2_E : float(std::abs(p.scale) * LOG2_E_DOUBLE)) * 0x1p23f);
    Vec bias[N], delta[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) {
      bias[j] = load(panel.row_statistic + low + j * LANES) * (-log_unit * 0x1p23f);
      delta[j] = load(panel.delta + low + j * LANES);
    }
    const auto d_score = [&](int64_t t, int j) __attribute__((always_inline)) {
      const Vec weight = from_bits(Ops::exp2_bits(fma(load(tile.scores + (t * N + j) * LANES), unit, bias[j])));
      Vec weight_after_dropout = weight, d_weight = load(d_scores + (t * N + j) * LANES);
      if (p.dropout_threshold) {
        const IntVec keep = panel.dropout.keep_mask(tile.begin + t, tile.vector_begin + j);
        weight_after_dropout = where(keep, weight * panel.dropout.scale, Vec{});
        d_weight = where(keep, d_weight * panel.dropout.scale, Vec{});
      }
      Ops::store_rounded(bf16_work.weights + (offset + t) * BLOCK_QUERIES + column + j * LANES, weight_after_dropout);
      return weight * (d_weight - delta[j]);
    };
    if (ROUND_ALL) return store_d_scores<N>(count, offset, column, bf16_work, d_score);
    for (int64_t t = 0; t < count; ++t)
      REGARD_UNROLL for (int j = 0; j < N; ++j) store(d_scores + (t * N + j) * LANES, d_score(t, j));
  }

  template <int N>
  void round_d_scores(int64_t count, int64_t offset, int64_t column, const float* d_scores,
                      const Bf16Workspace& bf16_work) const {
    store_d_scores<N>(count, offset, column, bf16_work,
                      [&](int64_t t, int j) REGARD_INLINE_LAMBDA { return load(d_scores + (t * N + j) * LANES); });
  }

  // Rounds the gradients of scores, which `d_score(t, j)` returns, to rows and to pairs of keys.
  template <int N, class DScore>
  REGARD_INLINE_METHOD void store_d_scores(int64_t count, int64_t offset, int64_t column,
                                           const Bf16Workspace& bf16_work, const DScore& d_score) const {
    uint16_t* rows = bf16_work.d_scores + offset * BLOCK_QUERIES + column;
    const int64_t lead = offset % 2;
    const auto rounded = [&](int64_t t, int j) REGARD_INLINE_LAMBDA {
      const Vec x = d_score(t, j);
      Ops::store_rounded(rows + t * BLOCK_QUERIES + j * LANES, x);
      return x;
    };
    const auto store_pair = [&](int64_t pair, int j, Vec first, Vec second) REGARD_INLINE_LAMBDA {
      store(bf16_work.d_score_pairs + (pair * N + j) * LANES, Ops::round_to_pairs(first, second));
    };
    if (lead) REGARD_UNROLL for (int j = 0; j < N; ++j) store_pair(0, j, Vec{}, rounded(0, j));
    int64_t t = lead, pair = lead;
    for (; t + 2 <= count; t += 2, ++pair) REGARD_UNROLL for (int j = 0; j < N; ++j) {
        const Vec first = rounded(t, j), second = rounded(t + 1, j);
        store_pair(pair, j, first, second);
      }
    if (t < count) REGARD_UNROLL for (int j = 0; j < N; ++j) store_pair(pair, j, rounded(t, j), Vec{});
  }

  // Adds to the gradients of captured tensors, and multiplies by the derivative of the score modifier.
  template <int N>
  static void apply_program_gradients(const KeyTile& tile, Interpreter& interpreter, float* d_scores,
                                      const Workspace& work) {
    const Program& program = interpreter.program;
    const int64_t count = tile.end - tile.begin;
    for (int64_t t = 0; t < count; t += REGISTER_ROWS) {
      const int64_t rows = std::min<int64_t>(REGISTER_ROWS, count - t);
      interpreter.d_scores = d_scores + t * N * LANES;
      interpreter.run<N>(program.derivative_end, program.end, tile.begin + t, rows, work.raw_scores + t * N * LANES);
    }
    if (program.mask_end == program.derivative_end) return;
    for (int64_t t = 0; t < count; t += REGISTER_ROWS) {
      const int64_t rows = std::min<int64_t>(REGISTER_ROWS, count - t);
      interpreter.run<N>(program.mask_end, program.derivative_end, tile.begin + t, rows,
                         work.raw_scores + t * N * LANES);
      apply_score_derivatives(d_scores + t * N * LANES, interpreter.registers, rows * N * LANES);
    }
  }

  // Adds the part of a panel to the pending ones if it has the same keys, else adds the pending ones to d_k and d_v.
  void extend_pending(int64_t n, const BackwardPanel& panel, const KeyTile& tile, const Bf16BackwardRows& rows,
                      const Workspace& work, const Bf16Workspace& bf16_work, PendingPanels& pending) const {
    PendingPanels part;
    part.query_begin = n * PANEL_QUERIES + tile.vector_begin * LANES;
    part.query_end = n * PANEL_QUERIES + std::min(tile.vector_end * LANES, panel.lanes);
    part.key_begin = tile.begin - rows.in_float32.begin, part.key_end = tile.end - rows.in_float32.begin;
    if (pending.query_end == part.query_begin && pending.key_begin == part.key_begin &&
        pending.key_end == part.key_end) {
      pending.query_end = part.query_end;
      return;
    }
    add_pending(pending, work, bf16_work);
    pending = part;
  }

  // d_v += w' g and d_k += d_s' q of the pending panels.
  void add_pending(const PendingPanels& pending, const Workspace& work, const Bf16Workspace& bf16_work) const {
    const int64_t keys = pending.key_end - pending.key_begin, pairs = (pending.query_end - pending.query_begin) / 2;
    const int64_t at = pending.key_begin * BLOCK_QUERIES + pending.query_begin;
    const auto add = [&](const uint16_t* left, const int32_t* right, int64_t num_channels, float* sums) {
      accumulate_over_query_pairs(left + at, BLOCK_QUERIES, keys, pairs, right + pending.query_begin / 2 * num_channels,
                                  num_channels, sums + pending.key_begin * num_channels);
    };
    if (!pairs) return;
    add(bf16_work.weights, bf16_work.d_output_row_pairs, round_up_to_lanes(params.value_dim), work.d_v);
    add(bf16_work.d_scores, bf16_work.query_row_pairs, round_up_to_lanes(params.head_dim), work.d_k);
  }
};

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
