// Compares the operations of panel.h and backward.h on rows and panels with plain loops in double precision.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "check.h"
#include "kernels/backward.h"
#include "kernels/panel.h"

namespace regard {
namespace REGARD_ISA {
namespace {
constexpr int64_t HEAD_DIMS[] = {1, 3, 7, 8, 15, 16, 17, 24, 33};
constexpr int64_t ROW_COUNTS[] = {0, 1, 2, 7, 23, 24, 25};

// A sum of n products of numbers below 1 is accurate to n roundings.
static bool is_close_sum(float actual, double expected, int64_t terms) {
  return check::is_close(actual, expected, 0.0, double(terms) * FLT_EPSILON);
}

template <int N>
static void dot_products_match_plain_loops(int64_t num_channels, int64_t count) {
  constexpr int64_t W = N * LANES;
  check::RandomFloats random;
  const std::vector<float> queries = check::random_floats(num_channels * W, random);
  const check::PaddedRows keys(count, num_channels, 3, random);
  std::vector<float> scores(count * W), tracked_scores(count * W);
  Vec row_max[N];
  for (Vec& x : row_max) x = broadcast(-INFINITY);
  dot_products<N>(queries.data(), W, num_channels, keys.data(), keys.row_stride, count, scores.data());
  dot_products<N, true>(queries.data(), W, num_channels, keys.data(), keys.row_stride, count, tracked_scores.data(),
                        row_max);

  CHECK(scores == tracked_scores, "%d vectors, %d channels: tracking the maximum changes scores", N, int(num_channels));
  for (int64_t lane = 0; lane < W; ++lane) {
    float highest = -INFINITY;
    for (int64_t t = 0; t < count; ++t) {
      double sum = 0.0;
      for (int64_t p = 0; p < num_channels; ++p) sum += double(keys.row_data(t)[p]) * queries[p * W + lane];
      const float score = scores[t * W + lane];
      highest = std::max(highest, score);
      CHECK(is_close_sum(score, sum, num_channels), "key %d, %d channels, lane %d: %g, not %g", int(t),
            int(num_channels), int(lane), score, sum);
    }
    const float actual = row_max[lane / LANES][lane % LANES];
    CHECK(actual == highest, "%d channels, lane %d: the maximum of %d is %g", int(num_channels), int(lane), int(count),
          actual);
  }
}

template <int N>
static void weighted_sums_rescale_and_accumulate(int64_t num_channels, int64_t count) {
  constexpr int64_t W = N * LANES;
  check::RandomFloats random;
  const std::vector<float> weights = check::random_floats(count * W, random),
                           before = check::random_floats(num_channels * W, random);
  const check::PaddedRows values(count, num_channels, 1, random);
  std::vector<float> accumulator = before;
  Vec rescale[N];
  for (int64_t lane = 0; lane < W; ++lane) rescale[lane / LANES][lane % LANES] = random();
  weighted_sums<N>(weights.data(), values.data(), values.row_stride, count, num_channels, rescale, accumulator.data(),
                   W);

  for (int64_t c = 0; c < num_channels; ++c)
    for (int64_t lane = 0; lane < W; ++lane) {
      double sum = double(before[c * W + lane]) * rescale[lane / LANES][lane % LANES];
      for (int64_t t = 0; t < count; ++t) sum += double(values.row_data(t)[c]) * weights[t * W + lane];
      const float actual = accumulator[c * W + lane];
      CHECK(is_close_sum(actual, sum, count + 1), "column %d of %d, lane %d: %g", int(c), int(num_channels), int(lane),
            actual);
    }
}

static void sums_over_queries_accumulate(int64_t num_channels, int64_t keys, int64_t queries) {
  const int64_t padded_dim = round_up_to_lanes(num_channels), left_row = round_up_to_lanes(queries);
  check::RandomFloats random;
  const std::vector<float> left = check::random_floats(keys * left_row, random),
                           right = check::random_floats(queries * padded_dim, random);
  const std::vector<float> before = check::random_floats(keys * padded_dim, random);
  std::vector<float> accumulator = before;
  accumulate_over_queries(left.data(), left_row, keys, queries, right.data(), padded_dim, accumulator.data());

  for (int64_t t = 0; t < keys; ++t)
    for (int64_t c = 0; c < padded_dim; ++c) {
      double sum = before[t * padded_dim + c];
      for (int64_t i = 0; i < queries; ++i) sum += double(left[t * left_row + i]) * right[i * padded_dim + c];
      const float actual = accumulator[t * padded_dim + c];
      CHECK(is_close_sum(actual, sum, queries + 1), "key %d of %d, column %d: %g", int(t), int(keys), int(c), actual);
    }
}

static void packed_lanes_unpack_to_the_same_rows(int64_t num_channels, int64_t count) {
  check::RandomFloats random;
  const int64_t lanes = round_up_to_lanes(count);
  const check::PaddedRows rows(count, num_channels, 2, random);
  std::vector<float> columns(num_channels * lanes);
  pack_lanes(rows.data(), rows.row_stride, count, num_channels, 0.3f, columns.data(), lanes);
  for (int64_t p = 0; p < num_channels; ++p)
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const float expected = rows.row_data(std::min(lane, count - 1))[p] * 0.3f, actual = columns[p * lanes + lane];
      CHECK(actual == expected, "%d channels, lane %d of %d: %g", int(num_channels), int(lane), int(count), actual);
    }

  const std::vector<float> factor = check::random_floats(lanes, random);
  check::PaddedRows back(count, num_channels, 1);
  unpack_lanes(columns.data(), lanes, factor.data(), count, num_channels, back.data(), back.row_stride);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t p = 0; p < num_channels; ++p) {
      const float expected = columns[p * lanes + i] * factor[i], actual = back.row_data(i)[p];
      CHECK(actual == expected, "%d channels, row %d of %d: %g", int(num_channels), int(i), int(count), actual);
    }
}

static void all_finite_detects_one_nonfinite_value(int64_t num_channels, int64_t count) {
  check::RandomFloats random;
  check::PaddedRows rows(count, num_channels, 1, random);
  CHECK(all_finite(rows.data(), rows.row_stride, count, num_channels), "%d rows, %d channels", int(count),
        int(num_channels));
  for (int64_t i = 0; i < count; ++i)
    for (int64_t p = 0; p < num_channels; ++p) {
      const float original = rows.row_data(i)[p];
      rows.row_data(i)[p] = p % 2 ? NAN : -INFINITY;
      CHECK(!all_finite(rows.data(), rows.row_stride, count, num_channels), "row %d, column %d of %d", int(i), int(p),
            int(num_channels));
      rows.row_data(i)[p] = original;
    }
}

static void test_panel() {
  for (const int64_t num_channels : HEAD_DIMS)
    for (const int64_t count : ROW_COUNTS) {
      dot_products_match_plain_loops<1>(num_channels, count);
      dot_products_match_plain_loops<2>(num_channels, count);
      dot_products_match_plain_loops<3>(num_channels, count);
      weighted_sums_rescale_and_accumulate<1>(num_channels, count);
      weighted_sums_rescale_and_accumulate<2>(num_channels, count);
      weighted_sums_rescale_and_accumulate<3>(num_channels, count);
      sums_over_queries_accumulate(num_channels, count, 1 + count % PANEL_QUERIES);
      if (count && count <= PANEL_QUERIES) packed_lanes_unpack_to_the_same_rows(num_channels, count);
      if (count <= 2) all_finite_detects_one_nonfinite_value(num_channels, count);
    }
  sums_over_queries_accumulate(9 * LANES, 23, PANEL_QUERIES);  // blocks of all sizes
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
