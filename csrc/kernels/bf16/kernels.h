// The kernels with products of bfloat16. Calls in other dtypes, additive scores and weights use the AVX-512 kernels.
#pragma once

#include "kernel_table.h"
#include "kernels/bf16/backward.h"
#include "kernels/bf16/decode.h"
#include "kernels/bf16/forward.h"
#include "kernels/empty.h"

namespace regard {
namespace avx512 {
extern const KernelTable kernels;
}

namespace REGARD_ISA {
namespace {

// A scale of 0 times the maximum of a row without keys, -inf, would be NaN.
static bool uses_bf16_products(const AttentionParams& p) {
  return p.dtype == BF16 && !p.u && p.head_dim && p.value_dim && p.scale != 0.0 && has_pairs(p);
}

static bool forward(const AttentionParams& params, bool (*should_stop)()) {
  if (!uses_bf16_products(params)) return avx512::kernels.forward(params, should_stop);
  return is_decode(params) ? decode<Bf16Channels>(params, should_stop)
                           : forward_in_panels<Bf16Forward>(params, should_stop);
}

static bool backward(const AttentionParams& params, bool (*should_stop)()) {
  return uses_bf16_products(params) && !params.entmax_exponents ? backward_in_panels<Bf16Backward>(params, should_stop)
                                                                : avx512::kernels.backward(params, should_stop);
}

static bool weights(const AttentionParams& params, const WeightTileParams& weight_tile, bool (*should_stop)()) {
  return avx512::kernels.weights(params, weight_tile, should_stop);
}

static bool thresholded(const AttentionParams& params, const ThresholdParams& threshold_params, bool (*should_stop)()) {
  return avx512::kernels.thresholded(params, threshold_params, should_stop);
}

}  // namespace

extern const KernelTable kernels{Ops::NAME, PANEL_QUERIES, LANES, CHUNK_KEYS, forward, backward, weights, thresholded};

}  // namespace REGARD_ISA
}  // namespace regard
