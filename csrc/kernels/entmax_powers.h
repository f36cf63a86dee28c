// The powers of entmax: w = x^exponent, where x is the distance of a score above its row's threshold.
#pragma once

#include <cmath>

#include "simd/exp.h"

namespace regard {
namespace REGARD_ISA {
namespace {

struct EntmaxPower {
  float exponent;

  // x^(exponent - 1) where x > 0, else 0.
  REGARD_INLINE_METHOD Vec pow_minus_one(Vec x) const {
    if (exponent == 1.0f) return where(IntVec(x > 0.0f), broadcast(1.0f), Vec{});
    if (exponent == 2.0f) return x;
    return exp2((exponent - 1.0f) * LOG2_E * log(x));
  }

  // The weight and its slope, for x above 0.
  REGARD_INLINE_METHOD void weight_and_slope(Vec x, Vec& w, Vec& slope) const {
    const Vec lower_power = exponent == 1.0f ? broadcast(1.0f) : pow_minus_one(x);
    w = lower_power * x, slope = exponent * lower_power;
  }

  // A step of Newton's method towards the threshold where the norm (sum x^p)^(1/p) is 1. The norm is convex, so that no
  // step passes this threshold.
  double newton_step(double total, double slope) const {
    if (slope == 0.0) return 0.0;
    if (exponent == 1.0f) return (total - 1.0) / slope;
    return (1.0 - (exponent == 2.0f ? 1.0 / std::sqrt(total) : std::pow(total, -1.0 / exponent))) * total / slope;
  }
};

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
