// Calls without any pair of a query and a key: some length is 0. Outputs and gradients are 0, and the lse is -inf. The
// other kernels divide by the number of key-value heads and need at least one pair.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "abi.h"
#include "simd/simd.h"

namespace regard {
namespace REGARD_ISA {
namespace {

static bool has_pairs(const AttentionParams& p) { return p.batch && p.num_heads && p.num_kv_heads && p.n_q && p.n_k; }

static int64_t num_rows(const AttentionParams& p) { return p.batch * p.num_heads * p.n_q; }

static void clear_output(const AttentionParams& p) {
  const int64_t bytes = num_rows(p) * p.value_dim * (p.output_dtype == FP32 ? 4 : 2);
  if (bytes) std::memset(p.output, 0, bytes);
}

static bool forward_without_pairs(const AttentionParams& p) {
  clear_output(p);
  std::fill_n(p.row_statistic, num_rows(p), -INFINITY);
  return true;
}

static bool backward_without_pairs(const AttentionParams& p) {
  std::fill_n(p.d_q, num_rows(p) * p.head_dim, 0.0f);
  std::fill_n(p.d_k, p.batch * p.num_kv_heads * p.n_k * p.head_dim, 0.0f);
  std::fill_n(p.d_v, p.batch * p.num_kv_heads * p.n_k * p.value_dim, 0.0f);
  return true;
}

// The row statistic of a row that attends to no key, the same as in thresholded.h.
static float empty_row_threshold(ThresholdParams::Mode mode) {
  if (mode == ThresholdParams::ENTMAX) return INFINITY;
  return mode == ThresholdParams::TOPK || mode == ThresholdParams::HARDMAX ? -FLT_MAX : -INFINITY;
}

static bool thresholded_without_pairs(const AttentionParams& p, const ThresholdParams& threshold_params) {
  if (threshold_params.mode == ThresholdParams::COLUMN_SUMS) {
    const int64_t groups = threshold_params.k_or_groups;
    std::fill_n(threshold_params.column_sums, p.batch * p.num_heads * groups * p.n_k, 0.0f);
  } else {
    clear_output(p);
  }
  std::fill_n(p.row_statistic, num_rows(p), empty_row_threshold(threshold_params.mode));
  return true;
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
