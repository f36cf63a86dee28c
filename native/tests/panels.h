// What panel.h, forward.h and backward.h do with rows and panels, against plain loops in double precision.

constexpr int64_t WIDTHS[] = {1, 3, 7, 8, 15, 16, 17, 24, 33};
constexpr int64_t COUNTS[] = {0, 1, 2, 7, 23, 24, 25};

// A sum of n products of numbers below 1 is right to n roundings.
static bool is_sum(float found, double expected, int64_t terms) {
  return check::close(found, expected, 0.0, double(terms) * FLT_EPSILON);
}

template <int N>
static void products_are_sums_of_products(int64_t width, int64_t count) {
  constexpr int64_t W = N * LANES;
  check::Dice dice;
  const std::vector<float> queries = check::thrown(width * W, dice);
  const check::Rows keys(count, width, 3, dice);
  std::vector<float> scores(count * W), again(count * W);
  Vec top[N];
  for (Vec& x : top) x = all(-INFINITY);
  products<N>(queries.data(), W, width, keys.data(), keys.row, count, scores.data());
  products<N, true>(queries.data(), W, width, keys.data(), keys.row, count, again.data(), top);

  CHECK(scores == again, "%d vectors, width %d: looking for maxima changes scores", N, int(width));
  for (int64_t lane = 0; lane < W; ++lane) {
    float highest = -INFINITY;
    for (int64_t t = 0; t < count; ++t) {
      double sum = 0.0;
      for (int64_t p = 0; p < width; ++p) sum += double(keys.at(t)[p]) * queries[p * W + lane];
      const float score = scores[t * W + lane];
      highest = std::max(highest, score);
      CHECK(is_sum(score, sum, width), "key %d of width %d, lane %d: %g, not %g", int(t), int(width), int(lane), score,
            sum);
    }
    const float found = top[lane / LANES][lane % LANES];
    CHECK(found == highest, "width %d, lane %d: the highest of %d is %g", int(width), int(lane), int(count), found);
  }
}

template <int N>
static void weighted_sums_shrink_and_grow(int64_t width, int64_t count) {
  constexpr int64_t W = N * LANES;
  check::Dice dice;
  const std::vector<float> weights = check::thrown(count * W, dice), before = check::thrown(width * W, dice);
  const check::Rows values(count, width, 1, dice);
  std::vector<float> sums = before;
  Vec shrink[N];
  for (int64_t lane = 0; lane < W; ++lane) shrink[lane / LANES][lane % LANES] = dice();
  weighted_sums<N>(weights.data(), values.data(), values.row, count, width, shrink, sums.data(), W);

  for (int64_t c = 0; c < width; ++c)
    for (int64_t lane = 0; lane < W; ++lane) {
      double sum = double(before[c * W + lane]) * shrink[lane / LANES][lane % LANES];
      for (int64_t t = 0; t < count; ++t) sum += double(values.at(t)[c]) * weights[t * W + lane];
      const float found = sums[c * W + lane];
      CHECK(is_sum(found, sum, count + 1), "column %d of %d, lane %d: %g", int(c), int(width), int(lane), found);
    }
}

static void sums_over_queries_are_added(int64_t width, int64_t keys, int64_t queries) {
  const int64_t wide = in_lanes(width), left_row = in_lanes(queries);
  check::Dice dice;
  const std::vector<float> left = check::thrown(keys * left_row, dice), right = check::thrown(queries * wide, dice);
  const std::vector<float> before = check::thrown(keys * wide, dice);
  std::vector<float> sums = before;
  over_queries(left.data(), left_row, keys, queries, right.data(), wide, sums.data());

  for (int64_t t = 0; t < keys; ++t)
    for (int64_t c = 0; c < wide; ++c) {
      double sum = before[t * wide + c];
      for (int64_t i = 0; i < queries; ++i) sum += double(left[t * left_row + i]) * right[i * wide + c];
      const float found = sums[t * wide + c];
      CHECK(is_sum(found, sum, queries + 1), "key %d of %d, column %d: %g", int(t), int(keys), int(c), found);
    }
}

static void rows_go_into_lanes_and_back(int64_t width, int64_t count) {
  check::Dice dice;
  const int64_t lanes = in_lanes(count);
  const check::Rows rows(count, width, 2, dice);
  std::vector<float> columns(width * lanes);
  gather_lanes(rows.data(), rows.row, count, width, 0.3f, columns.data(), lanes);
  for (int64_t p = 0; p < width; ++p)
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const float expected = rows.at(std::min(lane, count - 1))[p] * 0.3f, found = columns[p * lanes + lane];
      CHECK(found == expected, "width %d, lane %d of %d: %g", int(width), int(lane), int(count), found);
    }

  const std::vector<float> factor = check::thrown(lanes, dice);
  check::Rows back(count, width, 1);
  scatter_lanes(columns.data(), lanes, factor.data(), count, width, back.data(), back.row);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t p = 0; p < width; ++p) {
      const float expected = columns[p * lanes + i] * factor[i], found = back.at(i)[p];
      CHECK(found == expected, "width %d, row %d of %d: %g", int(width), int(i), int(count), found);
    }
}

static void one_number_that_is_not_finite_is_noticed(int64_t width, int64_t count) {
  check::Dice dice;
  check::Rows rows(count, width, 1, dice);
  CHECK(all_finite(rows.data(), rows.row, count, width), "%d rows, width %d", int(count), int(width));
  for (int64_t i = 0; i < count; ++i)
    for (int64_t p = 0; p < width; ++p) {
      const float kept = rows.at(i)[p];
      rows.at(i)[p] = p % 2 ? NAN : -INFINITY;
      CHECK(!all_finite(rows.data(), rows.row, count, width), "row %d, column %d of %d", int(i), int(p), int(width));
      rows.at(i)[p] = kept;
    }
}

static void test_panels() {
  for (const int64_t width : WIDTHS)
    for (const int64_t count : COUNTS) {
      products_are_sums_of_products<1>(width, count);
      products_are_sums_of_products<2>(width, count);
      products_are_sums_of_products<3>(width, count);
      weighted_sums_shrink_and_grow<1>(width, count);
      weighted_sums_shrink_and_grow<2>(width, count);
      weighted_sums_shrink_and_grow<3>(width, count);
      sums_over_queries_are_added(width, count, 1 + count % PANEL);
      if (count && count <= PANEL) rows_go_into_lanes_and_back(width, count);
      if (count <= 2) one_number_that_is_not_finite_is_noticed(width, count);
    }
  sums_over_queries_are_added(9 * LANES, 23, PANEL);  // blocks of all widths
}
