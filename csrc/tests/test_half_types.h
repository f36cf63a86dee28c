// Half precision: the conversion of every value, and rounding to the nearest value.
#pragma once

#include <cfloat>
#include <cmath>

#include "check.h"
#include "simd/flush_denormals.h"
#include "simd/half_types.h"

namespace regard {
namespace REGARD_ISA {
namespace {

// The value of 16 bits, by its definition.
static double decode_half(uint16_t bits, DType dtype) {
  const int fraction_bits = dtype == FP16 ? 10 : 7, bias = dtype == FP16 ? 15 : 127;
  const int max_exponent = (1 << (15 - fraction_bits)) - 1;
  const int exponent = bits >> fraction_bits & max_exponent, fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == max_exponent) return fraction ? NAN : sign * INFINITY;
  const int significand = exponent ? fraction + (1 << fraction_bits) : fraction;
  return sign * std::ldexp(significand, (exponent ? exponent : 1) - bias - fraction_bits);
}

static void every_half_round_trips_through_float() {
  const FlushDenormals flush;  // as in a kernel
  for (const DType dtype : {BF16, FP16}) {
    for (int64_t first = 0; first < 65536; first += 21) {  // not a whole number of vectors
      const int64_t count = std::min<int64_t>(21, 65536 - first);
      uint16_t bits[21], round_trip[21];
      float upcast[21];
      for (int64_t i = 0; i < count; ++i) bits[i] = uint16_t(first + i);
      upcast_row(bits, count, dtype, upcast);
      downcast_row(upcast, count, dtype, round_trip);
      for (int64_t i = 0; i < count; ++i) {
        const double expected = decode_half(bits[i], dtype);
        uint32_t word;  // compared as bits, since denormals are flushed here
        std::memcpy(&word, upcast + i, sizeof word);
        const float exact = float(expected);
        uint32_t exact_word;
        std::memcpy(&exact_word, &exact, sizeof exact_word);
        if (std::isnan(expected)) {
          CHECK(std::isnan(upcast[i]), "dtype %d: %04x is %g, not NaN", int(dtype), bits[i], upcast[i]);
          CHECK(std::isnan(decode_half(round_trip[i], dtype)), "dtype %d: NaN %04x becomes %04x", int(dtype), bits[i],
                round_trip[i]);
        } else {
          const bool tiny =
              dtype == BF16 && std::abs(expected) < FLT_MIN;  // the expected value itself may be flushed here
          CHECK(tiny || word == exact_word, "dtype %d: %04x is %g, not %g", int(dtype), bits[i], upcast[i], expected);
          CHECK(round_trip[i] == bits[i], "dtype %d: %04x becomes %04x", int(dtype), bits[i], round_trip[i]);
        }
      }
    }
  }
}

static void downcast_rounds_to_nearest_even() {
  check::RandomFloats random;
  for (const DType dtype : {BF16, FP16})
    for (int round = 0; round < 20000; ++round) {
      float x[LANES];
      uint16_t actual[LANES];
      for (float& value : x) {
        value = std::ldexp(random(), int(random() * (dtype == FP16 ? 20 : 100)));
        if (round % 2) {  // half-way between two values
          uint16_t half;
          downcast_row(&value, 1, dtype, &half);
          value = float((decode_half(half & 0x7fff, dtype) + decode_half((half & 0x7fff) + 1, dtype)) / 2);
          if (!std::isfinite(value)) value = 1.0f;
        }
      }
      downcast_row(x, LANES, dtype, actual);
      for (int i = 0; i < LANES; ++i) {
        const double error = std::abs(decode_half(actual[i], dtype) - x[i]);
        for (const int step : {-1, 1}) {
          const double other = decode_half(uint16_t(actual[i] + step), dtype);
          if ((actual[i] & 0x7fff) == 0 && step < 0) continue;  // there is no smaller magnitude than 0
          const double other_error = std::isinf(other) ? error + 1 : std::abs(other - x[i]);
          CHECK(error < other_error || (error == other_error && actual[i] % 2 == 0) ||
                    std::isinf(decode_half(actual[i], dtype)),
                "dtype %d: %a becomes %04x, and %04x is nearer", int(dtype), x[i], actual[i],
                uint16_t(actual[i] + step));
        }
      }
    }
  const struct {
    float x;
    DType dtype;
    uint16_t expected;
  } limits[] = {{65519.0f, FP16, 0x7bff}, {65520.0f, FP16, 0x7c00}, {-1e9f, FP16, 0xfc00},    {0x1p-25f, FP16, 0},
                {0x1.8p-25f, FP16, 1},    {-0.0f, FP16, 0x8000},    {FLT_MAX, BF16, 0x7f80},  {INFINITY, FP16, 0x7c00},
                {1.0f, BF16, 0x3f80},     {INFINITY, BF16, 0x7f80}, {-INFINITY, BF16, 0xff80}};
  for (const auto& it : limits) {
    uint16_t actual;
    downcast_row(&it.x, 1, it.dtype, &actual);
    CHECK(actual == it.expected, "dtype %d: %g becomes %04x, not %04x", int(it.dtype), it.x, actual, it.expected);
  }
}

static void test_half_types() {
  every_half_round_trips_through_float();
  downcast_rounds_to_nearest_even();
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
