// The functions of simd.h, lane by lane, against those of the C library.

typedef Vec (*Unary)(Vec);

static float lane_of(Unary f, float x) { return f(all(x))[LANES / 2]; }

// The largest relative error of f from `low` to `high`.
static double worst(Unary f, double (*truth)(double), double low, double high) {
  constexpr int STEPS = 200000;
  double found = 0.0;
  for (int step = 0; step < STEPS; step += LANES) {
    Vec x;
    for (int lane = 0; lane < LANES; ++lane) x[lane] = float(low + (high - low) * (step + lane) / STEPS);
    const Vec y = f(x);
    for (int lane = 0; lane < LANES; ++lane) {
      const double expected = truth(x[lane]);
      const double error = std::abs(y[lane] - expected) / std::max(std::abs(expected), double(FLT_MIN));
      if (!(error <= found)) found = error;  // a NaN is the worst
    }
  }
  return found;
}

static double inverse(double x) { return 1.0 / x; }

static void functions_are_right_to_a_few_roundings() {
  const struct {
    const char* name;
    Unary f;
    double (*truth)(double);
    double low, high, bound;
  } functions[] = {
      {"exp2", exp2, [](double x) { return std::exp2(x); }, -126.0, 0.0, FLT_EPSILON},
      {"exp2", exp2, [](double x) { return std::exp2(x); }, 0.0, 127.4, FLT_EPSILON},
      {"exp", exp, [](double x) { return std::exp(x); }, -87.3, 88.7, FLT_EPSILON},
      {"exp", exp, [](double x) { return std::exp(x); }, -1.0, 1.0, FLT_EPSILON},
      {"tanh", tanh, [](double x) { return std::tanh(x); }, -0.7, 0.7, 4e-7},
      {"tanh", tanh, [](double x) { return std::tanh(x); }, -30.0, 30.0, 4e-7},
      {"log", log, [](double x) { return std::log(x); }, 0x1p-126, 0.1, 3e-7},
      {"log", log, [](double x) { return std::log(x); }, 0.1, 10.0, 3e-7},
      {"log", log, [](double x) { return std::log(x); }, 10.0, 0x1p127, 3e-7},
      {"reciprocal", reciprocal, inverse, 1.0, 2.0, FLT_EPSILON},
      {"reciprocal", reciprocal, inverse, 1.0, 0x1p126, FLT_EPSILON},
  };
  for (const auto& it : functions) {
    const double error = worst(it.f, it.truth, it.low, it.high);
    CHECK(error < it.bound, "%s from %g to %g: relative error %.3g", it.name, it.low, it.high, error);
  }
}

static void functions_know_their_limits() {
  const FlushTiny flush;  // as in a kernel
  const struct {
    const char* name;
    Unary f;
    float x, expected;
  } limits[] = {
      {"exp2", exp2, 0.0f, 1.0f},       {"exp2", exp2, -127.0f, 0.0f},     {"exp2", exp2, -1e30f, 0.0f},
      {"exp2", exp2, -INFINITY, 0.0f},  {"exp2", exp2, NAN, NAN},          {"exp", exp, 0.0f, 1.0f},
      {"exp", exp, -INFINITY, 0.0f},    {"exp", exp, INFINITY, INFINITY},  {"exp", exp, 1e30f, INFINITY},
      {"exp", exp, NAN, NAN},           {"tanh", tanh, 0.0f, 0.0f},         {"tanh", tanh, INFINITY, 1.0f},
      {"tanh", tanh, -INFINITY, -1.0f},  {"tanh", tanh, 1e30f, 1.0f},        {"tanh", tanh, NAN, NAN},
      {"log", log, 0.0f, -INFINITY},     {"log", log, 1.0f, 0.0f},           {"log", log, INFINITY, INFINITY},
      {"log", log, -1.0f, NAN},          {"log", log, NAN, NAN},             {"log", log, 1e-40f, -INFINITY},
  };
  for (const auto& it : limits) {
    const float y = lane_of(it.f, it.x);
    CHECK(check::close(y, it.expected, 0.0, 0.0), "%s(%g) is %g, not %g", it.name, it.x, y, it.expected);
  }
}

static void a_not_a_number_decides_what_is_larger_and_smaller() {
  const float pairs[][2] = {{1.0f, 2.0f}, {2.0f, 1.0f}, {-INFINITY, 0.0f}, {NAN, 3.0f}, {3.0f, NAN}, {-1.0f, INFINITY}};
  for (const auto& [a, b] : pairs) {
    const float high = larger(all(a), all(b))[0], low = smaller(all(a), all(b))[0];
    // the second one, where either is not a number
    CHECK(check::close(high, a > b ? a : b, 0.0, 0.0), "larger(%g, %g) is %g", a, b, high);
    CHECK(check::close(low, a < b ? a : b, 0.0, 0.0), "smaller(%g, %g) is %g", a, b, low);
  }
}

static void what_moves_numbers_keeps_their_bits() {
  const float minus_nothing = -0.0f;
  CHECK(std::signbit(all(minus_nothing)[0]), "all(-0) is %g", all(minus_nothing)[0]);
  CHECK(std::signbit(spread(&minus_nothing)[LANES - 1]), "spread(-0) is %g", spread(&minus_nothing)[LANES - 1]);
  Vec a, b;
  IntVec yes;
  std::vector<uint8_t> bytes(LANES);  // exactly so many: one more read would show
  for (int lane = 0; lane < LANES; ++lane) {
    a[lane] = float(lane), b[lane] = float(100 + lane);
    bytes[lane] = lane % 3 == 0;
    yes[lane] = -(lane % 3 == 0);
  }
  const Vec chosen = choose(yes, a, b), again = choose(conditions(bytes.data()), a, b);
  for (int lane = 0; lane < LANES; ++lane) {
    const float expected = lane % 3 == 0 ? lane : 100 + lane;
    CHECK(chosen[lane] == expected && again[lane] == expected, "lane %d: %g, %g", lane, chosen[lane], again[lane]);
  }
}

static void rounding_is_to_the_nearest_even_number() {
  for (float x = -40.0f; x <= 40.0f; x += 0.125f)
    CHECK(rounded(all(x))[0] == std::nearbyint(x), "%g becomes %g", x, rounded(all(x))[0]);
}

static void rows_become_columns() {
  Vec rows[LANES];
  for (int i = 0; i < LANES; ++i)
    for (int lane = 0; lane < LANES; ++lane) rows[i][lane] = float(i * LANES + lane);
  transpose(rows);
  for (int i = 0; i < LANES; ++i)
    for (int lane = 0; lane < LANES; ++lane)
      CHECK(rows[i][lane] == float(lane * LANES + i), "row %d, lane %d: %g", i, lane, rows[i][lane]);
}

static void loads_and_stores_touch_one_vector_at_any_address() {
  for (int offset = 0; offset < 3; ++offset) {
    std::vector<float> from(offset + LANES), to(offset + LANES);
    for (int i = 0; i < LANES; ++i) from[offset + i] = float(i);
    store(to.data() + offset, load(from.data() + offset));
    CHECK(from == to, "offset %d", offset);
  }
}

static void tiny_numbers_count_as_nothing_only_for_a_while() {
#if defined(__SSE__)
  volatile float tiny = 1e-38f, factor = 0.125f;
  {
    const FlushTiny flush;
    CHECK(tiny * factor == 0.0f, "%g", tiny * factor);
  }
  CHECK(tiny * factor != 0.0f, "%g", tiny * factor);
#endif
}

static void test_vectors() {
  functions_are_right_to_a_few_roundings();
  functions_know_their_limits();
  a_not_a_number_decides_what_is_larger_and_smaller();
  what_moves_numbers_keeps_their_bits();
  rounding_is_to_the_nearest_even_number();
  rows_become_columns();
  loads_and_stores_touch_one_vector_at_any_address();
  tiny_numbers_count_as_nothing_only_for_a_while();
}
