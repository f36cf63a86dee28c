// NEON on 64-bit ARM: vectors of 4 floats, 32 registers, fused multiply-add.
#pragma once

#include <arm_neon.h>

#include "simd/vector_ops.h"

#define REGARD_ISA neon

namespace regard {

struct Neon;

template <>
struct Isa<Neon> : VectorOps<Isa<Neon>, 4> {
  static constexpr const char* NAME = "NEON";
  static constexpr int NUM_REGISTERS = 32;
  static constexpr bool HAS_FMA = true;

  REGARD_INLINE float32x4_t native(Vec x) { return reinterpret_cast<float32x4_t>(x); }
  REGARD_INLINE uint32x4_t native(IntVec x) { return reinterpret_cast<uint32x4_t>(x); }
  REGARD_INLINE Vec generic(float32x4_t x) { return reinterpret_cast<Vec>(x); }

  REGARD_INLINE Vec fma(Vec a, Vec b, Vec c) { return generic(vfmaq_f32(native(c), native(a), native(b))); }
  REGARD_INLINE Vec where(IntVec mask, Vec a, Vec b) { return generic(vbslq_f32(native(mask), native(a), native(b))); }
  // max and min are those of VectorOps: vmaxq_f32 is NaN where either operand is
  REGARD_INLINE bool any(IntVec mask) { return vmaxvq_u32(native(mask)) != 0; }
  REGARD_INLINE Vec round_nearest(Vec x) { return generic(vrndnq_f32(native(x))); }

  REGARD_INLINE Vec load_fp16(const uint16_t* p) { return generic(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))); }
  REGARD_INLINE void store_fp16(uint16_t* p, Vec x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(native(x)))); }
};

namespace neon {
using Ops = Isa<Neon>;
}

}  // namespace regard
