// Operations on vectors of floats and 32-bit integers, in the compiler's vector types, for any number of lanes. The
// traits of an instruction set derive from VectorOps and replace the operations for which it has an instruction. Calls
// through Derived use the replacements.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// Kernels must be inlined: a function that is not would be compiled with the instructions of one build, and the linker
// might call it from another build.
#define REGARD_INLINE static inline __attribute__((always_inline))
#define REGARD_INLINE_METHOD inline __attribute__((always_inline))
// For lambdas that only prefetch: they have no visible effect, and GCC removes a call that is not yet inlined.
#define REGARD_INLINE_LAMBDA __attribute__((always_inline))
#if defined(__clang__)
#define REGARD_UNROLL _Pragma("unroll")
#define REGARD_UNROLL_TWICE _Pragma("unroll 2")
#else
#define REGARD_UNROLL _Pragma("GCC unroll 32")
#define REGARD_UNROLL_TWICE _Pragma("GCC unroll 2")
#endif

namespace regard {

// The traits of an instruction set: the vector types, the registers, and the operations. Each has a header in simd/isa.
template <class Tag>
struct Isa;

// The compiler's vector types. GCC does not index a vector whose size depends on a template parameter.
template <int NUM_LANES>
struct VectorTypes;

template <>
struct VectorTypes<4> {
  typedef float Vec __attribute__((vector_size(16)));
  typedef int32_t IntVec __attribute__((vector_size(16)));
};

template <>
struct VectorTypes<8> {
  typedef float Vec __attribute__((vector_size(32)));
  typedef int32_t IntVec __attribute__((vector_size(32)));
};

template <>
struct VectorTypes<16> {
  typedef float Vec __attribute__((vector_size(64)));
  typedef int32_t IntVec __attribute__((vector_size(64)));
};

template <class Derived, int NUM_LANES>
struct VectorOps {
  static constexpr int LANES = NUM_LANES;

  using Vec = typename VectorTypes<NUM_LANES>::Vec;
  using IntVec = typename VectorTypes<NUM_LANES>::IntVec;

  REGARD_INLINE IntVec bits(Vec x) { return reinterpret_cast<IntVec>(x); }
  REGARD_INLINE Vec from_bits(IntVec x) { return reinterpret_cast<Vec>(x); }

  REGARD_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
  REGARD_INLINE Vec where(IntVec mask, Vec a, Vec b) { return from_bits((mask & bits(a)) | (~mask & bits(b))); }
  REGARD_INLINE Vec max(Vec a, Vec b) { return Derived::where(a > b, a, b); }  // b where either is NaN
  REGARD_INLINE Vec min(Vec a, Vec b) { return Derived::where(a < b, a, b); }

  REGARD_INLINE float horizontal_sum(Vec x) {
    float sum = 0.0f;
    for (int lane = 0; lane < LANES; ++lane) sum += x[lane];
    return sum;
  }

  REGARD_INLINE bool any(IntVec mask) {
    int32_t combined = 0;
    for (int lane = 0; lane < LANES; ++lane) combined |= mask[lane];
    return combined != 0;
  }

  // One boolean per lane as bits: bit i is byte i.
  REGARD_INLINE int32_t load_bool_bits(const uint8_t* p) {
    int32_t mask = 0;
    for (int lane = 0; lane < LANES; ++lane) mask |= int32_t(p[lane]) << lane;
    return mask;
  }

  // The nearest integer, the even one of two.
  REGARD_INLINE Vec round_nearest(Vec x) {
    return (x + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23 leaves no room for a fraction
  }

  // x 2^n for an integer n from -127 on. n = -127 stands for -inf, and gives 0.
  REGARD_INLINE Vec scale_exponent(Vec x, Vec n) {
    // n + 127 belongs into the exponent bits; adding 2^23 + 127 puts it into the low bits
    return x * from_bits(bits(n + 8388735.0f) << 23);
  }

  // 2^x, given exp2_fraction(f) = 2^f for f from -1/2 to 1/2.
  template <class Exp2Fraction>
  REGARD_INLINE Vec exp2(Vec x, const Exp2Fraction& exp2_fraction) {
    x = Derived::max(Vec{} - 127.0f, x);  // in this order a NaN stays
    // adding 1.5 * 2^23 rounds to an integer; 127 more adds the bias of the exponent to the low bits
    const Vec shifted = x + 12583039.0f;
    const Vec f = x - (shifted - 12583039.0f);
    return exp2_fraction(f) * from_bits(bits(shifted) << 23);
  }

  // 1 / x for x from 1 to 2^126, accurate to one or two roundings.
  REGARD_INLINE Vec reciprocal(Vec x) { return 1.0f / x; }

  REGARD_INLINE Vec load_fp16(const uint16_t* p) {
    Vec x{};
    for (int lane = 0; lane < LANES; ++lane) x[lane] = fp16_to_float(p[lane]);
    return x;
  }

  REGARD_INLINE void store_fp16(uint16_t* p, Vec x) {
    for (int lane = 0; lane < LANES; ++lane) p[lane] = float_to_fp16(x[lane]);
  }

  REGARD_INLINE float fp16_to_float(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    float x = 0.0f;
    if (exponent) {  // the largest exponent, of infinities and NaN, becomes the largest one of a float
      const uint32_t word = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
      std::memcpy(&x, &word, sizeof x);
      return x;
    }
    x = float(fraction) * 0x1p-24f;
    return sign ? -x : x;
  }

  REGARD_INLINE uint16_t float_to_fp16(float x) {
    uint32_t word;
    std::memcpy(&word, &x, sizeof word);
    const uint16_t sign = uint16_t(word >> 16 & 0x8000);
    word &= 0x7fffffff;
    if (word > 0x7f800000) return sign | 0x7e00;   // NaN
    if (word >= 0x477ff000) return sign | 0x7c00;  // from 65520 on, the nearest is infinity
    if (word < 0x38800000) {                       // below 2^-14, fp16 has fixed steps of 2^-24
      float tiny;
      std::memcpy(&tiny, &word, sizeof tiny);
      return sign | uint16_t(std::nearbyint(double(tiny) * 0x1p24));
    }
    const uint32_t odd = word >> 13 & 1;
    return sign | uint16_t((word - 0x38000000 + 0xfff + odd) >> 13);
  }
};

}  // namespace regard
