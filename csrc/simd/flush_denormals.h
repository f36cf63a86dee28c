// FlushDenormals: numbers below 2^-126 become 0.
#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace regard {

// Flushes denormals to 0 on this thread during its lifetime. Weights that small do not change a sum, and arithmetic on
// them takes a hundred times as long on some processors.
class FlushDenormals {
 public:
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

#if defined(__SSE__)
  static constexpr bool IS_SUPPORTED = true;
  __attribute__((always_inline)) FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  __attribute__((always_inline)) ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  static constexpr bool IS_SUPPORTED = true;
  __attribute__((always_inline)) FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_) : : "memory");
    asm volatile("msr fpcr, %0" : : "r"(saved_ | uint64_t(1) << 24) : "memory");
  }
  __attribute__((always_inline)) ~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }

 private:
  uint64_t saved_;
#else
  static constexpr bool IS_SUPPORTED = false;
  FlushDenormals() {}
  ~FlushDenormals() {}
#endif
};

}  // namespace regard
