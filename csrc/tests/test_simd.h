// Compares the functions of simd.h and exp.h, lane by lane, with those of the C library.
#pragma once

#include <cfloat>
#include <cmath>

#include "check.h"
#include "simd/exp.h"
#include "simd/flush_denormals.h"
#include "simd/simd.h"

namespace regard {
namespace REGARD_ISA {
namespace {
typedef Vec (*Unary)(Vec);

static float scalar_result(Unary f, float x) { return f(broadcast(x))[LANES / 2]; }

// The largest relative error of f from `low` to `high`.
static double max_relative_error(Unary f, double (*expected_function)(double), double low, double high) {
  constexpr int STEPS = 200000;
  double max_error = 0.0;
  for (int step = 0; step < STEPS; step += LANES) {
    Vec x;
    for (int lane = 0; lane < LANES; ++lane) x[lane] = float(low + (high - low) * (step + lane) / STEPS);
    const Vec y = f(x);
    for (int lane = 0; lane < LANES; ++lane) {
      const double expected = expected_function(x[lane]);
      const double error = std::abs(y[lane] - expected) / std::max(std::abs(expected), double(FLT_MIN));
      if (!(error <= max_error)) max_error = error;  // also for NaN
    }
  }
  return max_error;
}

static double inverse(double x) { return 1.0 / x; }

static void functions_are_accurate_to_a_few_ulp() {
  const struct {
    const char* name;
    Unary f;
    double (*expected_function)(double);
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
    const double error = max_relative_error(it.f, it.expected_function, it.low, it.high);
    CHECK(error < it.bound, "%s from %g to %g: relative error %.3g", it.name, it.low, it.high, error);
  }
}

static void functions_handle_limits() {
  const FlushDenormals flush;  // as in a kernel
  const struct {
    const char* name;
    Unary f;
    float x, expected;
  } limits[] = {
      {"exp2", exp2, 0.0f, 1.0f},       {"exp2", exp2, -127.0f, 0.0f},    {"exp2", exp2, -1e30f, 0.0f},
      {"exp2", exp2, -INFINITY, 0.0f},  {"exp2", exp2, NAN, NAN},         {"exp", exp, 0.0f, 1.0f},
      {"exp", exp, -INFINITY, 0.0f},    {"exp", exp, INFINITY, INFINITY}, {"exp", exp, 1e30f, INFINITY},
      {"exp", exp, NAN, NAN},           {"tanh", tanh, 0.0f, 0.0f},       {"tanh", tanh, INFINITY, 1.0f},
      {"tanh", tanh, -INFINITY, -1.0f}, {"tanh", tanh, 1e30f, 1.0f},      {"tanh", tanh, NAN, NAN},
      {"log", log, 0.0f, -INFINITY},    {"log", log, 1.0f, 0.0f},         {"log", log, INFINITY, INFINITY},
      {"log", log, -1.0f, NAN},         {"log", log, NAN, NAN},           {"log", log, 1e-40f, -INFINITY},
  };
  for (const auto& it : limits) {
    const float y = scalar_result(it.f, it.x);
    CHECK(check::is_close(y, it.expected, 0.0, 0.0), "%s(%g) is %g, not %g", it.name, it.x, y, it.expected);
  }
}

static void vec_max_returns_the_second_operand_for_nan() {
  const float pairs[][2] = {{1.0f, 2.0f}, {2.0f, 1.0f}, {-INFINITY, 0.0f}, {NAN, 3.0f}, {3.0f, NAN}, {-1.0f, INFINITY}};
  for (const auto& [a, b] : pairs) {
    const float high = vec_max(broadcast(a), broadcast(b))[0], low = vec_min(broadcast(a), broadcast(b))[0];
    // the second operand where either is NaN
    CHECK(check::is_close(high, a > b ? a : b, 0.0, 0.0), "vec_max(%g, %g) is %g", a, b, high);
    CHECK(check::is_close(low, a < b ? a : b, 0.0, 0.0), "vec_min(%g, %g) is %g", a, b, low);
  }
}

static void broadcast_and_where_preserve_bits() {
  const float minus_zero = -0.0f;
  CHECK(std::signbit(broadcast(minus_zero)[0]), "broadcast(-0) is %g", broadcast(minus_zero)[0]);
  CHECK(std::signbit(load_broadcast(&minus_zero)[LANES - 1]), "load_broadcast(-0) is %g",
        load_broadcast(&minus_zero)[LANES - 1]);
  Vec a, b;
  IntVec mask;
  std::vector<uint8_t> bytes(LANES);  // a read beyond the last byte would be an error under AddressSanitizer
  for (int lane = 0; lane < LANES; ++lane) {
    a[lane] = float(lane), b[lane] = float(100 + lane);
    bytes[lane] = lane % 3 == 0;
    mask[lane] = -(lane % 3 == 0);
  }
  const Vec selected = where(mask, a, b), from_bytes = where(load_bool_mask(bytes.data()), a, b);
  for (int lane = 0; lane < LANES; ++lane) {
    const float expected = lane % 3 == 0 ? lane : 100 + lane;
    CHECK(selected[lane] == expected && from_bytes[lane] == expected, "lane %d: %g, %g", lane, selected[lane],
          from_bytes[lane]);
  }
}

static void round_nearest_rounds_half_to_even() {
  for (float x = -40.0f; x <= 40.0f; x += 0.125f)
    CHECK(round_nearest(broadcast(x))[0] == std::nearbyint(x), "%g becomes %g", x, round_nearest(broadcast(x))[0]);
}

static void transpose_swaps_rows_and_columns() {
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

static void denormals_are_flushed_only_in_scope() {
  if (!FlushDenormals::IS_SUPPORTED) return;
  volatile float tiny = 1e-38f, factor = 0.125f;
  {
    const FlushDenormals flush;
    CHECK(tiny * factor == 0.0f, "%g", tiny * factor);
  }
  CHECK(tiny * factor != 0.0f, "%g", tiny * factor);
}

static void test_simd() {
  functions_are_accurate_to_a_few_ulp();
  functions_handle_limits();
  vec_max_returns_the_second_operand_for_nan();
  broadcast_and_where_preserve_bits();
  round_nearest_rounds_half_to_even();
  transpose_swaps_rows_and_columns();
  loads_and_stores_touch_one_vector_at_any_address();
  denormals_are_flushed_only_in_scope();
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
