// A tile of the matrix of weights, from the lse of the forward pass:
//
//     w[i,j] = exp(s[i,j] - lse[i]),   entropy[i] = -sum_j w log w,   column_sum[j] = sum_i w,   max[i] = max_j w
//
// Scores and weights are written as rows of keys, query by query. If only statistics are requested, they are not
// written.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "abi.h"
#include "kernels/key_tile.h"
#include "parallel.h"
#include "simd/flush_denormals.h"

namespace regard {
namespace REGARD_ISA {
namespace {

struct WeightTileKernel {
  const AttentionParams& params;
  const WeightTileParams& weight_tile;
  const int64_t num_panels;  // of queries in the tile

  size_t scratch_floats() const {
    const int64_t num_registers = params.program ? params.program->num_registers : 0;
    return TILE_KEYS * PANEL_QUERIES + num_registers * REGISTER_ROWS * PANEL_QUERIES +
           2 * weight_tile.num_cells() * PANEL_QUERIES + PackedQueries::scratch_floats(params, PANEL_QUERIES) +
           AdditiveHead::scratch_floats(params) +
           upcast_scratch_floats(params.dtype, TILE_KEYS + PANEL_QUERIES, params.head_dim) + 64;
  }

  void run_panel(int64_t item, float* scratch) const {
    const FlushDenormals flush;
    const AttentionParams& p = params;
    const int64_t head = item / num_panels;  // of the tile
    const int64_t b = weight_tile.b.begin + head / weight_tile.h.size(),
                  h = weight_tile.h.begin + head % weight_tile.h.size();
    const int64_t query_begin = weight_tile.i.begin + item % num_panels * PANEL_QUERIES;
    const int64_t count = std::min<int64_t>(PANEL_QUERIES, weight_tile.i.end - query_begin),
                  lanes = (count + LANES - 1) / LANES * LANES;
    const auto allocate = [&](int64_t floats) {
      float* here = scratch;
      scratch += floats;
      return here;
    };
    float* scores = allocate(TILE_KEYS * PANEL_QUERIES);
    float *sums = allocate(weight_tile.num_cells() * PANEL_QUERIES),
          *maxima = allocate(weight_tile.num_cells() * PANEL_QUERIES);  // of cells, one row of lanes each
    std::fill(sums, sums + 2 * weight_tile.num_cells() * PANEL_QUERIES, 0.0f);
    float* registers = allocate((p.program ? p.program->num_registers : 0) * REGISTER_ROWS * PANEL_QUERIES);
    const bool has_score_mod = p.program && p.program->score_mod_end;
    static const Program no_program{};
    const AdditiveHead additive =
        p.u ? AdditiveHead(p, h, 1.0, allocate(AdditiveHead::scratch_floats(p))) : AdditiveHead();
    const FloatRows q = load_float_rows(p.q, p.dtype, b, h, query_begin, count, p.head_dim,
                                        allocate(upcast_scratch_floats(p.dtype, PANEL_QUERIES, p.head_dim)));
    const PackedQueries queries =
        PackedQueries::pack(p, q, count, lanes, 1.0, additive, allocate(PackedQueries::scratch_floats(p, lanes)));
    float* k_float = allocate(upcast_scratch_floats(p.dtype, TILE_KEYS, p.head_dim));
    float lse[PANEL_QUERIES];
    RowStatistics row_statistics{};
    for (int64_t i = 0; i < lanes; ++i) {
      const float here = i < count ? p.row_statistic[(b * p.num_heads + h) * p.n_q + query_begin + i] : -INFINITY;
      // weights become 0 for a query without keys, and for lanes beyond the last query
      lse[i] = here == -INFINITY ? INFINITY : here;
      row_statistics.max_score[i] = -INFINITY, row_statistics.argmax_key[i] = -1;
    }
    const int64_t row = head * weight_tile.i.size() + query_begin - weight_tile.i.begin;
    float* column_sums = weight_tile.column_sums ? weight_tile.column_sums + item * weight_tile.j.size() : nullptr;
    if (column_sums) std::fill(column_sums, column_sums + weight_tile.j.size(), 0.0f);
    Interpreter interpreter{p.program ? *p.program : no_program, registers, b, h, query_begin};
    for (int64_t key = weight_tile.j.begin; key < weight_tile.j.end; key += TILE_KEYS) {
      KeyTile tile{};
      tile.begin = key, tile.end = std::min(weight_tile.j.end, key + TILE_KEYS), tile.vector_end = VECTORS_PER_PANEL,
      tile.scores = scores;
      tile.masked_begin = key, tile.masked_end = weight_tile.is_partial ? tile.end : key;
      const int64_t keys = tile.end - key;
      const FloatRows k =
          load_float_rows(p.k, p.dtype, b, h / (p.num_heads / p.num_kv_heads), key, keys, p.head_dim, k_float);
      tile.k = k.data, tile.k_row_stride = k.row_stride;
      if (p.u) tile.exp_terms = key_exp_terms(k.data, k.row_stride, keys, p.head_dim, additive.key_exp_scratch);
      dispatch_vectors(lanes / LANES, [&](auto vectors) {
        constexpr int N = decltype(vectors)::value;
        compute_scores<N>(p, queries, tile, scores);
        if (has_score_mod || weight_tile.is_partial) apply_program<N>(tile, interpreter);
        const int64_t offset = row * weight_tile.j.size() + key - weight_tile.j.begin;
        REGARD_UNROLL for (int j = 0; j < N; ++j) accumulate_scores(
            scores + j * LANES, N * LANES, key, keys, std::min<int64_t>(LANES, count - j * LANES), lse + j * LANES,
            offset + j * LANES * weight_tile.j.size(), row_statistics, j * LANES, sums + j * LANES, maxima + j * LANES,
            column_sums ? column_sums + key - weight_tile.j.begin : nullptr);
      });
    }
    if (weight_tile.entropy) std::copy_n(row_statistics.entropy, count, weight_tile.entropy + row);
    if (weight_tile.max_weight)
      for (int64_t i = 0; i < lanes; i += LANES) {
        const Vec max_weight = exp2((load(row_statistics.max_score + i) - load(lse + i)) * LOG2_E);
        for (int64_t lane = 0; lane < std::min<int64_t>(LANES, count - i); ++lane) {
          weight_tile.max_weight_key[row + i + lane] = row_statistics.argmax_key[i + lane];
          weight_tile.max_weight[row + i + lane] =
              row_statistics.argmax_key[i + lane] < 0 && max_weight[lane] == max_weight[lane] ? -1.0f
                                                                                              : max_weight[lane];
        }
      }
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < weight_tile.num_cells(); ++c) {
        weight_tile.cell_sums[(row + i) * weight_tile.num_cells() + c] = sums[c * PANEL_QUERIES + i];
        weight_tile.cell_maxima[(row + i) * weight_tile.num_cells() + c] = maxima[c * PANEL_QUERIES + i];
      }
  }

  // Statistics of each row over the keys processed so far: the sum of -w log w, the largest score and its key.
  struct RowStatistics {
    float entropy[PANEL_QUERIES], max_score[PANEL_QUERIES];
    int32_t argmax_key[PANEL_QUERIES];
  };

  // Adds the scores of some keys and one vector of queries, and their weights, to the statistics, and writes them as
  // rows of keys.
  void accumulate_scores(const float* from, int64_t from_row, int64_t key, int64_t keys, int64_t count,
                         const float* lse, int64_t offset, RowStatistics& statistics, int64_t lane, float* cell_sums,
                         float* cell_maxima, float* column_sums) const {
    const Vec origin = load(lse);
    Vec sum{};
    const int64_t to_row = weight_tile.j.size();
    for (int64_t t = 0; t < keys; t += LANES) {
      const int64_t here = std::min<int64_t>(LANES, keys - t);
      Vec score[LANES], weight[LANES], sums[2] = {};
      REGARD_UNROLL for (int i = 0; i < LANES; ++i) {
        score[i] = i < here ? load(from + (t + i) * from_row) : broadcast(-INFINITY);
        const Vec log_weight = score[i] - origin;
        weight[i] = where(IntVec(score[i] == -INFINITY), Vec{}, exp2(log_weight * LOG2_E));
        // 0 where w is 0: the logarithm is not finite there
        sums[i % 2] += where(IntVec(weight[i] == 0.0f), Vec{}, weight[i] * log_weight);
      }
      sum -= sums[0] + sums[1];
      if (weight_tile.cell_keys) accumulate_cells(weight, key + t, here, cell_sums, cell_maxima);
      if (weight_tile.max_weight)
        update_argmax(score, int32_t(key + t), statistics.max_score + lane, statistics.argmax_key + lane);
      if (column_sums) add_vector(column_sums + t, sum_over_queries(weight), here);
      if (weight_tile.scores) write_transposed(score, weight_tile.scores + offset + t, to_row, count, here);
      if (weight_tile.weights) write_transposed(weight, weight_tile.weights + offset + t, to_row, count, here);
    }
    store(statistics.entropy + lane, load(statistics.entropy + lane) + sum);
  }

  // The largest score of a row seldom changes.
  static void update_argmax(const Vec (&score)[LANES], int32_t key, float* max_score, int32_t* argmax_key) {
    Vec new_max = load(max_score);
    REGARD_UNROLL for (int i = 0; i < LANES; ++i) new_max =
        vec_max(score[i], new_max);  // in this order a NaN is ignored
    IntVec is_open = new_max > load(max_score);
    if (!any(is_open)) return;
    store(max_score, new_max);
    IntVec key_of_max = load(argmax_key);
    REGARD_UNROLL for (int i = 0; i < LANES; ++i) {
      const IntVec here = is_open & IntVec(score[i] == new_max);
      key_of_max = (here & (key + i)) | (~here & key_of_max);
      is_open &= ~here;
    }
    store(argmax_key, key_of_max);
  }

  static Vec sum_over_queries(const Vec (&weight)[LANES]) {
    Vec columns[LANES];
    REGARD_UNROLL for (int i = 0; i < LANES; ++i) columns[i] = weight[i];
    return lane_sums(columns);
  }

  static void add_vector(float* target, Vec update, int64_t count) {
    if (count == LANES) return store(target, load(target) + update);
    for (int64_t i = 0; i < count; ++i) target[i] += update[i];
  }

  // Adds the weights of some keys to their cells.
  void accumulate_cells(const Vec (&weight)[LANES], int64_t key, int64_t keys, float* sums, float* maxima) const {
    for (int64_t i = 0; i < keys;) {
      const int64_t cell = (key + i) / weight_tile.cell_keys,
                    end = std::min(keys, (cell + 1) * weight_tile.cell_keys - key);
      float *sum = sums + (cell - weight_tile.j.begin / weight_tile.cell_keys) * PANEL_QUERIES,
            *maximum = maxima + (sum - sums);
      Vec total = load(sum), cell_max = load(maximum);
      for (; i < end; ++i) total += weight[i], cell_max = vec_max(weight[i], cell_max);
      store(sum, total), store(maximum, cell_max);
    }
  }

  static void write_transposed(Vec (&columns)[LANES], float* to, int64_t to_row, int64_t rows, int64_t keys) {
    transpose(columns);
    for (int64_t i = 0; i < rows; ++i) {
      if (keys == LANES) {
        store(to + i * to_row, columns[i]);
      } else {
        std::memcpy(to + i * to_row, &columns[i], keys * sizeof(float));
      }
    }
  }
};

static bool weights(const AttentionParams& params, const WeightTileParams& weight_tile, bool (*should_stop)()) {
  WeightTileKernel work{params, weight_tile, (weight_tile.i.size() + PANEL_QUERIES - 1) / PANEL_QUERIES};
  return parallel_for(
      weight_tile.b.size() * weight_tile.h.size() * work.num_panels, params.num_threads, work.scratch_floats(),
      [](void* context, int64_t item, float* scratch) {
        static_cast<WeightTileKernel*>(context)->run_panel(item, scratch);
      },
      &work, should_stop);
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
