// The packed structs that Python passes to the core. backends/native/abi.py declares the same fields in the same order,
// and compares sizes, offsets, enumerators and constants with those of the compiled module when it is imported.
//
// Pointers point into memory that the caller owns. Strides count elements. The last dimension of every tensor is
// contiguous.
#pragma once

#include <cstdint>

#include "program.h"

namespace regard {

// The largest n_q and n_k. Positions have 32 bits, and a tile may extend slightly beyond the last key.
constexpr int64_t MAX_LENGTH = (int64_t(1) << 31) - 1024;

// Panels of queries that read a tile of keys one after another. Python's tiling and cost estimates use the same number.
constexpr int64_t PANELS_PER_BLOCK = 8;

// The dtype of q, k, v and the gradient of the output; the output has a dtype of its own. Row statistics and the
// gradients of q, k and v are FP32.
enum DType : int64_t { FP32, BF16, FP16 };

// Rows of a tensor, with a stride for each leading dimension.
struct StridedRows {
  const void* data;
  int64_t batch_stride, head_stride, row_stride;
};

// A run of keys that a panel of queries attends to.
struct KeyRun {
  int32_t begin, end;                // keys, end exclusive
  int32_t is_partial;                // whether the mask hides some pair of the run
  int32_t vector_begin, vector_end;  // the panel's vectors of queries that attend to some key of the run
};

// The keys that each panel of queries attends to, as lists of runs in CSR form: list n has the runs from run_offsets[n]
// to run_offsets[n + 1] - 1, in increasing order of keys. There are batch x num_heads x num_panels lists; batch and
// num_heads are 1 where all batch elements or heads share them. A null run_offsets means that every query attends to
// every key.
struct PanelCoverage {
  int64_t batch, num_heads, num_panels;
  const int64_t* run_offsets;
  const KeyRun* runs;
};

struct AttentionParams {
  int64_t batch, num_heads, num_kv_heads, n_q, n_k, head_dim, value_dim;
  int64_t num_threads;
  double scale;
  DType dtype, output_dtype;  // output_dtype is dtype or FP32
  StridedRows q, k, v;
  PanelCoverage coverage;
  const Program* program;  // the score modifier, and the mask of partial runs; null where there is neither
  int64_t seed;
  int64_t dropout_threshold;  // a weight is dropped where its 32-bit hash is below this number: dropout * 2^32
  double dropout_scale;       // 1 / (1 - dropout)
  void* output;               // contiguous, as everything below
  float* row_statistic;       // the lse of each row, or the threshold of a thresholded normalizer
  // Backward: the gradients of the output and of the row statistic, and those of q, k and v. The kernel writes every
  // element of d_q, d_k and d_v.
  StridedRows d_output;
  const float* d_row_statistic;
  float* d_q;
  float* d_k;
  float* d_v;
  // Additive scores: u, (num_heads, head_dim), and its gradient; null for dot-product scores.
  const float* u;
  double* d_u;
  // Backward of entmax: one exponent per head; weights are (s - threshold)^exponent. Null for softmax.
  const float* entmax_exponents;
  // The positions that dropout hashes, where the call is a part of a larger one: head h becomes offset + h, and query i
  // becomes offset + step * i, and so does key j.
  int64_t dropout_head_offset = 0;
  int64_t dropout_query_offset = 0, dropout_query_step = 1;
  int64_t dropout_key_offset = 0, dropout_key_step = 1;
};

static_assert(sizeof(AttentionParams) == 8 * 50, "every field has eight bytes, so that a caller can pack it");

// A tile of the matrix of weights: ranges of batch elements, heads, queries and keys. The first query begins a panel.
struct WeightTileParams {
  struct Range {
    int64_t begin, end;  // end exclusive
    int64_t size() const { return end - begin; }
  };
  Range b, h, i, j;
  int64_t is_partial;  // whether the mask hides some pair of the tile
  // Outputs, contiguous; null where the caller does not request one.
  float* scores;   // (b, h, i, j), after the score modifier; -inf where hidden
  float* weights;  // (b, h, i, j)
  float* entropy;  // (b, h, i), the sum of -w log w over these keys
  // Cells of cell_keys keys, counted from key 0, or 0 for none; and the sum and the maximum of a row's weights in each
  // cell, (b, h, i, num_cells()).
  int64_t cell_keys;
  float *cell_sums, *cell_maxima;
  float* column_sums;       // (b, h, panels, j), the sum of a panel's weights for each key
  float* max_weight;        // (b, h, i), the largest weight of a row; -1 where the row attends to no key
  int32_t* max_weight_key;  // (b, h, i), the first key with that weight; -1 where the row attends to no key

  int64_t num_cells() const { return cell_keys && j.size() ? (j.end - 1) / cell_keys - j.begin / cell_keys + 1 : 0; }
};

static_assert(sizeof(WeightTileParams) == 8 * 18, "every field has eight bytes");

// A thresholded normalizer: each row has a threshold, and weights below it are 0. The kernel writes the threshold to
// row_statistic.
struct ThresholdParams {
  enum Mode : int64_t {
    ENTMAX,        // (s - threshold)^exponent, where the threshold makes a row sum to 1
    TOPK,          // softmax of the k largest scores
    HARDMAX,       // equal weights for all maxima of a row
    ENTMAX_SLOPE,  // (s - threshold)^(exponent - 1) for given thresholds, divided by its sum; row_statistic is log sum
    COLUMN_SUMS,   // softmax without an output: row_statistic is the lse, and column_sums are written
  } mode;
  int64_t k_or_groups;      // TOPK: k; COLUMN_SUMS: the number of groups of panels
  const float* exponents;   // ENTMAX, ENTMAX_SLOPE: one per head
  const float* thresholds;  // ENTMAX_SLOPE: one per row
  float* column_sums;       // COLUMN_SUMS: (batch, num_heads, groups, n_k), summed over the rows of each group
};

static_assert(sizeof(ThresholdParams) == 8 * 5, "every field has eight bytes");

}  // namespace regard
