// The part of a tile of keys that a panel of queries attends to, and its scores.
#pragma once

#include <algorithm>
#include <cstdint>

#include "abi.h"
#include "kernels/additive.h"
#include "kernels/panel.h"
#include "simd/half_types.h"

#ifndef REGARD_INTERPRETER  // benchmarks/baselines/handwritten replaces the interpreter by handwritten modifiers
#define REGARD_INTERPRETER "kernels/interpreter.h"
#endif
#include REGARD_INTERPRETER

namespace regard {
namespace REGARD_ISA {
namespace {

// The runs of keys that a panel attends to, from the first one that is not yet processed.
struct KeyRunCursor {
  const KeyRun* next;
  const KeyRun* end;

  // The first key from `key` on that the panel attends to, or `none`. Skips the runs before it.
  int64_t next_visible_key(int64_t key, int64_t none) {
    while (next < end && next->end <= key) ++next;
    return next == end ? none : std::max<int64_t>(key, next->begin);
  }
};

// The runs of a panel; `all_keys` where there is no coverage.
static KeyRunCursor key_runs(const AttentionParams& p, int64_t b, int64_t h, int64_t panel, const KeyRun& all_keys) {
  const PanelCoverage& c = p.coverage;
  if (!c.run_offsets) return {&all_keys, &all_keys + 1};
  const int64_t list = (b % c.batch * c.num_heads + h % c.num_heads) * c.num_panels + panel;
  return {c.runs + c.run_offsets[list], c.runs + c.run_offsets[list + 1]};
}

// Consecutive keys that the same vectors of a panel attend to. The mask may hide pairs of the keys from masked_begin to
// masked_end - 1.
struct KeyTile {
  int64_t begin, end, masked_begin, masked_end;
  int64_t vector_begin, vector_end;
  const float *k, *v;
  int64_t k_row_stride, v_row_stride;
  ExpTerms exp_terms;               // of the keys, for additive scores
  Prefetch prefetch_k, prefetch_v;  // the rows after these
  TablePrefetch table_prefetch;     // table rows that the score modifier reads for these keys
  float* scores;

  bool has_masked_keys() const { return masked_begin < masked_end; }

  // Advances to the next tile of keys from `key` on and below `until`. Skips the runs that end in it.
  bool advance(KeyRunCursor& runs, int64_t key, int64_t until) {
    begin = end = runs.next_visible_key(key, until);
    if (begin >= until) return false;
    const KeyRun*& run = runs.next;
    const KeyRun* const runs_end = runs.end;
    masked_begin = masked_end = 0;
    vector_begin = run->vector_begin, vector_end = run->vector_end;
    for (; run < runs_end && run->begin <= end && end < until && run->vector_begin == vector_begin &&
           run->vector_end == vector_end;
         ++run) {
      const int64_t first = end;
      end = std::min<int64_t>(until, run->end);
      if (run->is_partial) {
        if (!has_masked_keys()) masked_begin = first;
        masked_end = end;
      }
      if (run->end > until) break;
    }
    return true;
  }
};

// The queries of a panel, (head_dim, lanes): scaled for dot products, or unscaled with their e^2x for additive scores.
struct PackedQueries {
  float* data;
  int64_t lanes;
  ExpTerms exp_terms;
  const AdditiveHead* additive;

  static int64_t scratch_floats(const AttentionParams& p, int64_t lanes) {
    return p.head_dim * (p.u ? 2 * lanes + LANES : lanes);
  }

  static PackedQueries pack(const AttentionParams& p, const FloatRows& rows, int64_t count, int64_t lanes, double unit,
                            const AdditiveHead& additive, float* scratch) {
    pack_lanes(rows.data, rows.row_stride, count, p.head_dim, p.u ? 1.0f : float(p.scale * unit), scratch, lanes);
    float* exp_scratch = scratch + p.head_dim * lanes;
    return {scratch, lanes, p.u ? query_exp_terms(scratch, p.head_dim, lanes, exp_scratch) : ExpTerms{}, &additive};
  }
};

// The scores of a tile before the score modifier. With TRACK_MAX, row_max becomes the maximum of itself and the scores.
template <int N, bool TRACK_MAX = false>
static void compute_scores(const AttentionParams& p, const PackedQueries& queries, const KeyTile& tile, float* scores,
                           Vec* row_max = nullptr) {
  const int64_t count = tile.end - tile.begin, low = tile.vector_begin * LANES;
  if (tile.prefetch_k.data)
    return dot_products<N, TRACK_MAX>(queries.data + low, queries.lanes, p.head_dim, tile.k, tile.k_row_stride, count,
                                      scores, row_max, tile.prefetch_k);
  if (tile.table_prefetch.table)
    return dot_products<N, TRACK_MAX>(queries.data + low, queries.lanes, p.head_dim, tile.k, tile.k_row_stride, count,
                                      scores, row_max, tile.table_prefetch);
  if (!p.u)
    return dot_products<N, TRACK_MAX>(queries.data + low, queries.lanes, p.head_dim, tile.k, tile.k_row_stride, count,
                                      scores, row_max);
  additive_scores<N>(*queries.additive, queries.exp_terms.slice(0, low), tile.exp_terms, p.head_dim, count, scores);
  for (int64_t t = 0; TRACK_MAX && t < count; ++t)
    REGARD_UNROLL for (int j = 0; j < N; ++j) row_max[j] = vec_max(load(scores + (t * N + j) * LANES), row_max[j]);
}

// Applies the score modifier and the mask to the scores of a tile.
template <int N>
static void apply_program(const KeyTile& tile, Interpreter& interpreter) {
  const Program& program = interpreter.program;
  const auto run = [&](int64_t first, int64_t last, int64_t begin, int64_t end) {
    if (first == last) return;
    for (int64_t key = begin; key < end; key += REGISTER_ROWS)
      interpreter.run<N>(first, last, key, std::min<int64_t>(REGISTER_ROWS, end - key),
                         tile.scores + (key - tile.begin) * N * LANES);
  };
  run(0, program.score_mod_end, tile.begin, tile.end);
  run(program.score_mod_end, program.mask_end, tile.masked_begin, tile.masked_end);
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
