// The kernels for one instruction set.
#pragma once

#include "kernel_table.h"
#include "kernels/backward.h"
#include "kernels/decode.h"
#include "kernels/empty.h"
#include "kernels/forward.h"
#include "kernels/thresholded.h"
#include "kernels/weights.h"

namespace regard {
namespace REGARD_ISA {
namespace {

static bool forward(const AttentionParams& params, bool (*should_stop)()) {
  if (!has_pairs(params)) return forward_without_pairs(params);
  return is_decode(params) ? decode(params, should_stop) : forward_in_panels(params, should_stop);
}

static bool backward(const AttentionParams& params, bool (*should_stop)()) {
  return has_pairs(params) ? backward_in_panels(params, should_stop) : backward_without_pairs(params);
}

static bool thresholded(const AttentionParams& params, const ThresholdParams& threshold_params, bool (*should_stop)()) {
  return has_pairs(params) ? thresholded_in_panels(params, threshold_params, should_stop)
                           : thresholded_without_pairs(params, threshold_params);
}

}  // namespace

extern const KernelTable kernels{Ops::NAME, PANEL_QUERIES, LANES, CHUNK_KEYS, forward, backward, weights, thresholded};

}  // namespace REGARD_ISA
}  // namespace regard
