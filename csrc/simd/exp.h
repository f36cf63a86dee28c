// Exponentials, logarithm, tanh and reciprocal of vectors.
#pragma once

#include <cmath>

#include "simd/simd.h"

namespace regard {
namespace REGARD_ISA {
namespace {

constexpr double LOG2_E_DOUBLE = 1.4426950408889634;
constexpr float LOG2_E = float(LOG2_E_DOUBLE);

// 2^f for f from -1/2 to 1/2; relative error below 8e-8.
REGARD_INLINE Vec exp2_fraction(Vec f) {
  Vec p = broadcast(1.53533620e-4f);
  p = fma(p, f, broadcast(1.33988750e-3f));
  p = fma(p, f, broadcast(9.61843692e-3f));
  p = fma(p, f, broadcast(5.55033237e-2f));
  p = fma(p, f, broadcast(2.40226477e-1f));
  p = fma(p, f, broadcast(6.93147182e-1f));
  return fma(p, f, broadcast(1.0f));
}

// 2^x; relative error below 8e-8. Exact at 0, and NaN at NaN. It is 0 from -127 down while denormals are flushed to 0.
REGARD_INLINE Vec exp2(Vec x) {
  return Ops::exp2(
      x, [](Vec f) __attribute__((always_inline)) { return exp2_fraction(f); });
}

// The nearest integer, the even one of two.
REGARD_INLINE Vec round_nearest(Vec x) { return Ops::round_nearest(x); }

// e^x; inf from 89 up, 0 from -88 down, NaN at NaN.
REGARD_INLINE Vec exp(Vec x) {
  x = vec_min(broadcast(89.0f), vec_max(broadcast(-88.0f), x));  // in this order a NaN stays
  const Vec n = round_nearest(x * 1.44269502f);
  Vec f;
  if constexpr (Ops::HAS_FMA) {  // log2(e) in two parts keeps the fraction accurate for large n
    f = fma(x, broadcast(1.92596299e-8f), fma(x, broadcast(1.44269502f), -n));
  } else {  // n times the first part of log(2) is exact
    f = ((x - n * 0.693359375f) + n * 2.12194440e-4f) * 1.44269504f;
  }
  const Vec fraction = exp2_fraction(f);
  const Vec doubled = Ops::scale_exponent(fraction, n - 1.0f) * 2.0f;  // 2^128 is not a float
  return where(n > 127.0f, doubled, Ops::scale_exponent(fraction, n));
}

// log(x), by x = 2^n m with m from sqrt(1/2) to sqrt(2) and log(1 + f) = f - f^2/2 + f^3 P(f); relative error below
// 2e-7. -inf at 0 and at flushed denormals, NaN below 0.
REGARD_INLINE Vec log(Vec x) {
  const IntVec whole_bits = bits(vec_max(x, Vec{}));  // the bits of a negative number would overflow
  const IntVec n = (whole_bits - 0x3F3504F3) >> 23;
  const Vec f = from_bits(whole_bits - (n << 23)) - 1.0f, whole = __builtin_convertvector(n, Vec);
  Vec p = broadcast(-7.634340989e-2f);
  p = fma(p, f, broadcast(1.276152439e-1f));
  p = fma(p, f, broadcast(-1.316021479e-1f));
  p = fma(p, f, broadcast(1.420176629e-1f));
  p = fma(p, f, broadcast(-1.662335487e-1f));
  p = fma(p, f, broadcast(2.000122655e-1f));
  p = fma(p, f, broadcast(-2.500082110e-1f));
  p = fma(p, f, broadcast(3.333333171e-1f));
  const Vec square = f * f;
  // log(2) in two parts: n times the first is exact
  Vec y = fma(p * f, square, whole * 1.42860677e-6f);
  y = f + fma(square, broadcast(-0.5f), y);
  y = fma(whole, broadcast(0.693145752f), y);
  y = where(IntVec(x == INFINITY), x, y);
  return where(IntVec(x > 0.0f), y, where(IntVec(x == 0.0f), broadcast(-INFINITY), broadcast(NAN)));
}

// 1 / x for x from 1 to 2^126, accurate to one or two roundings.
REGARD_INLINE Vec reciprocal(Vec x) { return Ops::reciprocal(x); }

// tanh(x) = x P(x^2) / Q(x^2), fitted for the smallest relative error up to 9. Beyond 9, tanh rounds to 1.
REGARD_INLINE Vec tanh(Vec x) {
  x = vec_min(broadcast(9.0f), vec_max(broadcast(-9.0f), x));  // in this order a NaN stays
  const Vec z = x * x;
  Vec p = broadcast(1.335661683e-8f), q = broadcast(7.777628528e-7f);
  p = fma(p, z, broadcast(2.061142815e-5f)), q = fma(q, z, broadcast(3.285908461e-4f));
  p = fma(p, z, broadcast(3.495775019e-3f)), q = fma(q, z, broadcast(2.587774239e-2f));
  p = fma(p, z, broadcast(1.338119913e-1f)), q = fma(q, z, broadcast(4.671451557e-1f));
  p = fma(p, z, broadcast(1.0f)), q = fma(q, z, broadcast(1.0f));
  const Vec y = x * p * reciprocal(q);
  return vec_min(broadcast(1.0f), vec_max(broadcast(-1.0f), y));
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
