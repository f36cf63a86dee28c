// Vectors of floats: the only file that knows instruction sets.
//
// REGARD_LANES says how many floats a vector holds: 16 with AVX-512, 8 with AVX2, 4 anywhere. The arithmetic is the
// compiler's own on vector types; only what it cannot express is said in instructions.

constexpr int LANES = REGARD_LANES;

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef int32_t IntVec __attribute__((vector_size(4 * LANES)));
typedef float LooseVec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t LooseIntVec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define REGARD_INLINE static inline __attribute__((always_inline))
#define REGARD_MEMBER inline __attribute__((always_inline))
// For functions that only ask for memory: a compiler sees no effect, and leaves out what it has not inlined by then.
#define REGARD_AT_ONCE __attribute__((always_inline))
#define REGARD_UNROLL _Pragma("GCC unroll 32")

REGARD_INLINE Vec load(const float* p) { return *reinterpret_cast<const LooseVec*>(p); }
REGARD_INLINE void store(float* p, Vec x) { *reinterpret_cast<LooseVec*>(p) = x; }
REGARD_INLINE IntVec load(const int32_t* p) { return *reinterpret_cast<const LooseIntVec*>(p); }
REGARD_INLINE void store(int32_t* p, IntVec x) { *reinterpret_cast<LooseIntVec*>(p) = x; }
REGARD_INLINE Vec all(float x) { return x - Vec{}; }  // x + 0 would not be x where x is -0
REGARD_INLINE IntVec all(int32_t x) { return IntVec{} + x; }
// The same number, of either kind, in every lane.
REGARD_INLINE Vec spread(const float* p) {
  int32_t x;
  std::memcpy(&x, p, sizeof x);
  return reinterpret_cast<Vec>(all(x));
}
REGARD_INLINE IntVec bits(Vec x) { return reinterpret_cast<IntVec>(x); }
REGARD_INLINE Vec floats(IntVec x) { return reinterpret_cast<Vec>(x); }

// Bytes of 0 and 1 as conditions.
REGARD_INLINE IntVec conditions(const uint8_t* p) {
  typedef uint8_t ByteVec __attribute__((vector_size(LANES)));
  ByteVec x;
  std::memcpy(&x, p, sizeof x);
  return -__builtin_convertvector(x, IntVec);
}

// The same as bits: bit i is byte i, for as many bytes as there are lanes.
REGARD_INLINE int32_t packed(const uint8_t* p) {
#if REGARD_LANES == 16
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return int32_t(_mm_test_epi8_mask(x, x));
#elif REGARD_LANES == 8
  return _mm_movemask_epi8(_mm_cmpgt_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), _mm_setzero_si128()));
#else
  int32_t found = 0;
  for (int i = 0; i < LANES; ++i) found |= int32_t(p[i]) << i;
  return found;
#endif
}

#if REGARD_LANES == 16
REGARD_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
REGARD_INLINE Vec larger(Vec a, Vec b) { return _mm512_max_ps(a, b); }  // b where either is NaN
REGARD_INLINE Vec smaller(Vec a, Vec b) { return _mm512_min_ps(a, b); }
REGARD_INLINE Vec choose(IntVec yes, Vec a, Vec b) {
  return _mm512_mask_blend_ps(_mm512_movepi32_mask(reinterpret_cast<__m512i>(yes)), b, a);
}
#elif REGARD_LANES == 8
REGARD_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
REGARD_INLINE Vec larger(Vec a, Vec b) { return _mm256_max_ps(a, b); }
REGARD_INLINE Vec smaller(Vec a, Vec b) { return _mm256_min_ps(a, b); }
REGARD_INLINE Vec choose(IntVec yes, Vec a, Vec b) { return _mm256_blendv_ps(b, a, floats(yes)); }
#else
REGARD_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
REGARD_INLINE Vec choose(IntVec yes, Vec a, Vec b) { return floats((yes & bits(a)) | (~yes & bits(b))); }
REGARD_INLINE Vec larger(Vec a, Vec b) { return choose(a > b, a, b); }
REGARD_INLINE Vec smaller(Vec a, Vec b) { return choose(a < b, a, b); }
#endif

// The sum of all lanes.
REGARD_INLINE float sum_of(Vec x) {
#if REGARD_LANES == 16
  return _mm512_reduce_add_ps(x);
#else
  float sum = 0.0f;
  for (int lane = 0; lane < LANES; ++lane) sum += x[lane];
  return sum;
#endif
}

// Whether a condition holds in any lane.
REGARD_INLINE bool any(IntVec x) {
#if REGARD_LANES == 16
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(x)) != 0;
#elif REGARD_LANES == 8
  return _mm256_movemask_ps(floats(x)) != 0;
#else
  int32_t found = 0;
  for (int lane = 0; lane < LANES; ++lane) found |= x[lane];
  return found != 0;
#endif
}

// 2^(n + f) for a whole number n from -127 on, which counts as -inf, and f from -1/2 to 1/2; relative error below 8e-8.
REGARD_INLINE Vec fraction(Vec f) {
  Vec p = all(1.53533620e-4f);
  p = fma(p, f, all(1.33988750e-3f));
  p = fma(p, f, all(9.61843692e-3f));
  p = fma(p, f, all(5.55033237e-2f));
  p = fma(p, f, all(2.40226477e-1f));
  p = fma(p, f, all(6.93147182e-1f));
  return fma(p, f, all(1.0f));
}

REGARD_INLINE Vec power(Vec n, Vec f) {
  const Vec p = fraction(f);
#if REGARD_LANES == 16
  return _mm512_mask_scalef_ps(Vec{}, _mm512_cmp_ps_mask(n, all(-127.0f), _CMP_NEQ_UQ), p, n);
#else
  // n + 127 in the exponent's place; adding 2^23 + 127 puts it into the low bits
  return p * floats(bits(n + 8388735.0f) << 23);
#endif
}

REGARD_INLINE Vec rounded(Vec x) {
#if REGARD_LANES == 16
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  return (x + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23 leaves no room for a fraction
#endif
}

// 2^x, exact at 0, 0 from -127 down while tiny numbers count as 0, NaN at NaN; relative error below 8e-8.
REGARD_INLINE Vec exp2(Vec x) {
#if REGARD_LANES == 16
  const Vec f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT);  // x less the nearest whole number, 0 at -inf
  return _mm512_scalef_ps(fraction(f), x - f);
#else
  x = larger(all(-127.0f), x);  // in this order a NaN stays
  // adding 1.5 * 2^23 leaves no room for a fraction; 127 more puts the exponent's offset into the low bits
  const Vec shifted = x + 12583039.0f;
  const Vec f = x - (shifted - 12583039.0f);
  return fraction(f) * floats(bits(shifted) << 23);
#endif
}

REGARD_INLINE Vec exp(Vec x) {
  x = smaller(all(89.0f), larger(all(-88.0f), x));  // in this order a NaN stays
  const Vec n = rounded(x * 1.44269502f);
#if REGARD_LANES == 4  // without fused products: n times the first part of log(2) is exact
  const Vec f = ((x - n * 0.693359375f) + n * 2.12194440e-4f) * 1.44269504f;
#else
  // log2(e) in two parts, so that the fraction is right however large n is
  const Vec f = fma(x, all(1.92596299e-8f), fma(x, all(1.44269502f), -n));
#endif
  return choose(n > 127.0f, power(n - 1.0f, f) * 2.0f, power(n, f));
}

// log(x), by x = 2^n m with m from sqrt(1/2) to sqrt(2) and log(1 + f) = f - f^2/2 + f^3 P(f); relative error below 2e-7.
// -inf at 0, and at what counts as 0; NaN below.
REGARD_INLINE Vec log(Vec x) {
  const IntVec whole_bits = bits(larger(x, Vec{}));  // those of a number below 0 would overflow
  const IntVec n = (whole_bits - 0x3F3504F3) >> 23;
  const Vec f = floats(whole_bits - (n << 23)) - 1.0f, whole = __builtin_convertvector(n, Vec);
  Vec p = all(-7.634340989e-2f);
  p = fma(p, f, all(1.276152439e-1f));
  p = fma(p, f, all(-1.316021479e-1f));
  p = fma(p, f, all(1.420176629e-1f));
  p = fma(p, f, all(-1.662335487e-1f));
  p = fma(p, f, all(2.000122655e-1f));
  p = fma(p, f, all(-2.500082110e-1f));
  p = fma(p, f, all(3.333333171e-1f));
  const Vec square = f * f;
  // log(2) in two parts: n times the first is exact
  Vec y = fma(p * f, square, whole * 1.42860677e-6f);
  y = f + fma(square, all(-0.5f), y);
  y = fma(whole, all(0.693145752f), y);
  y = choose(IntVec(x == INFINITY), x, y);
  return choose(IntVec(x > 0.0f), y, choose(IntVec(x == 0.0f), all(-INFINITY), all(NAN)));
}

// 1 / x to a rounding or two, for x from 1 to 2^126.
REGARD_INLINE Vec reciprocal(Vec x) {
#if REGARD_LANES == 16
  const Vec guess = _mm512_rcp14_ps(x);
  const Vec y = fma(guess, fma(-x, guess, all(1.0f)), guess);
  return y;
#else
  return 1.0f / x;
#endif
}

// x P(x^2) / Q(x^2), fitted for the least relative error up to 9, from where on tanh rounds to 1.
REGARD_INLINE Vec tanh(Vec x) {
  x = smaller(all(9.0f), larger(all(-9.0f), x));  // in this order a NaN stays
  const Vec z = x * x;
  Vec p = all(1.335661683e-8f), q = all(7.777628528e-7f);
  p = fma(p, z, all(2.061142815e-5f)), q = fma(q, z, all(3.285908461e-4f));
  p = fma(p, z, all(3.495775019e-3f)), q = fma(q, z, all(2.587774239e-2f));
  p = fma(p, z, all(1.338119913e-1f)), q = fma(q, z, all(4.671451557e-1f));
  p = fma(p, z, all(1.0f)), q = fma(q, z, all(1.0f));
  const Vec y = x * p * reciprocal(q);
  return smaller(all(1.0f), larger(all(-1.0f), y));
}

// While it lives, numbers below 2^-126 count as 0 on this thread: weights that small add nothing, and arithmetic on them
// takes a hundred times as long.
class FlushTiny {
 public:
#if defined(__SSE__)
  FlushTiny() : before_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(before_ | 0x8040); }
  ~FlushTiny() { __builtin_ia32_ldmxcsr(before_); }

 private:
  unsigned before_;
#endif
};

// Of two rows of squares, STEP lanes wide: what belongs into the first row when the squares are turned over, and into
// the second.
template <int STEP>
REGARD_INLINE void turn_over(Vec& a, Vec& b) {
  IntVec low{}, high{};
  for (int lane = 0; lane < LANES; ++lane) {
    low[lane] = lane & STEP ? LANES + lane - STEP : lane;
    high[lane] = lane & STEP ? LANES + lane : lane + STEP;
  }
  const Vec first = __builtin_shuffle(a, b, low), second = __builtin_shuffle(a, b, high);
  a = first, b = second;
}

// Rows become columns: one stage for each bit of the lane's number.
template <int STEP>
REGARD_INLINE void swap_halves(Vec (&rows)[LANES]) {
  REGARD_UNROLL for (int i = 0; i < LANES; ++i)
    if (!(i & STEP)) turn_over<STEP>(rows[i], rows[i + STEP]);
}

REGARD_INLINE void transpose(Vec (&rows)[LANES]) {
  swap_halves<1>(rows);
  swap_halves<2>(rows);
  if constexpr (LANES >= 8) swap_halves<LANES >= 8 ? 4 : 1>(rows);
  if constexpr (LANES >= 16) swap_halves<LANES >= 16 ? 8 : 1>(rows);
}

// Of each vector's lanes their sum or maximum, in the lane of its number: rows become columns, put together on the way.
template <int STEP, class F>
REGARD_INLINE void join_halves(Vec (&rows)[LANES], const F& join) {
  REGARD_UNROLL for (int i = 0; i < LANES; i += 2 * STEP) {
    turn_over<STEP>(rows[i], rows[i + STEP]);
    rows[i] = join(rows[i], rows[i + STEP]);
  }
}

template <class F>
REGARD_INLINE Vec joined_lanes(Vec (&rows)[LANES], const F& join) {
  join_halves<1>(rows, join);
  join_halves<2>(rows, join);
  if constexpr (LANES >= 8) join_halves<LANES >= 8 ? 4 : 1>(rows, join);
  if constexpr (LANES >= 16) join_halves<LANES >= 16 ? 8 : 1>(rows, join);
  return rows[0];
}

REGARD_INLINE Vec sums_of_lanes(Vec (&rows)[LANES]) {
  return joined_lanes(rows, [](Vec a, Vec b) REGARD_AT_ONCE { return a + b; });
}

REGARD_INLINE Vec tops_of_lanes(Vec (&rows)[LANES]) {
  return joined_lanes(rows, [](Vec a, Vec b) REGARD_AT_ONCE { return larger(a, b); });
}
