// Tensors in half precision: rows are widened to floats where a kernel reads them, and rounded where it writes them.

#if REGARD_LANES == 16
REGARD_INLINE Vec widened_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
REGARD_INLINE void store_half(uint16_t* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#elif REGARD_LANES == 8
REGARD_INLINE Vec widened_half(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
REGARD_INLINE void store_half(uint16_t* p, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#else
static float widened_half(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
  float x = 0.0f;
  if (exponent) {  // the largest exponent stays the largest: infinities and NaN
    const uint32_t word = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
    std::memcpy(&x, &word, sizeof x);
    return x;
  }
  x = float(fraction) * 0x1p-24f;
  return sign ? -x : x;
}

static uint16_t rounded_to_half(float x) {
  uint32_t word;
  std::memcpy(&word, &x, sizeof word);
  const uint16_t sign = uint16_t(word >> 16 & 0x8000);
  word &= 0x7fffffff;
  if (word > 0x7f800000) return sign | 0x7e00;   // NaN
  if (word >= 0x477ff000) return sign | 0x7c00;  // from 65520 on the nearest is infinity
  if (word < 0x38800000) {                       // below 2^-14 a half has fixed steps of 2^-24
    float tiny;
    std::memcpy(&tiny, &word, sizeof tiny);
    return sign | uint16_t(std::nearbyint(double(tiny) * 0x1p24));
  }
  const uint32_t odd = word >> 13 & 1;
  return sign | uint16_t((word - 0x38000000 + 0xfff + odd) >> 13);
}

REGARD_INLINE Vec widened_half(const uint16_t* p) {
  Vec x;
  for (int lane = 0; lane < LANES; ++lane) x[lane] = widened_half(p[lane]);
  return x;
}
REGARD_INLINE void store_half(uint16_t* p, Vec x) {
  for (int lane = 0; lane < LANES; ++lane) p[lane] = rounded_to_half(x[lane]);
}
#endif

typedef uint16_t HalfVec __attribute__((vector_size(2 * LANES)));

// A bfloat16 is the upper half of a float.
REGARD_INLINE Vec widened_brain(const uint16_t* p) {
  HalfVec x;
  std::memcpy(&x, p, sizeof x);
  return floats(__builtin_convertvector(x, IntVec) << 16);
}
REGARD_INLINE void store_brain(uint16_t* p, Vec x) {
  const IntVec word = bits(x), odd = (word >> 16) & 1;
  const IntVec nearest = (word + 0x7fff + odd) >> 16, quiet = (word >> 16) | 0x40;
  const HalfVec half = __builtin_convertvector(IntVec(x != x) ? quiet : nearest, HalfVec);
  std::memcpy(p, &half, sizeof half);
}

// Rows of floats somewhere in memory, `row` apart.
struct Floats {
  const float* at;
  int64_t row;
};

static void widen(const uint16_t* from, int64_t count, Kind kind, float* to) {
  const auto vector = [&](const uint16_t* p) { return kind == HALF ? widened_half(p) : widened_brain(p); };
  int64_t c = 0;
  for (; c + LANES <= count; c += LANES) store(to + c, vector(from + c));
  if (c == count) return;
  uint16_t rest[LANES] = {};
  float wide[LANES];
  std::copy(from + c, from + count, rest);
  store(wide, vector(rest));
  std::copy(wide, wide + count - c, to + c);
}

static void narrow(const float* from, int64_t count, Kind kind, uint16_t* to) {
  const auto vector = [&](uint16_t* p, Vec x) { kind == HALF ? store_half(p, x) : store_brain(p, x); };
  int64_t c = 0;
  for (; c + LANES <= count; c += LANES) vector(to + c, load(from + c));
  if (c == count) return;
  float rest[LANES] = {};
  uint16_t half[LANES];
  std::copy(from + c, from + count, rest);
  vector(half, load(rest));
  std::copy(half, half + count - c, to + c);
}

// Some rows of a tensor: where they are, or widened into the space given.
static Floats floats_of(const Rows& rows, Kind kind, int64_t b, int64_t h, int64_t first, int64_t count, int64_t width,
                        float* space) {
  const int64_t begin = b * rows.batch + h * rows.head + first * rows.row;
  if (kind == FLOAT) return {static_cast<const float*>(rows.at) + begin, rows.row};
  for (int64_t i = 0; i < count; ++i)
    widen(static_cast<const uint16_t*>(rows.at) + begin + i * rows.row, width, kind, space + i * width);
  return {space, width};
}

// The same rows, to be asked for before they are read.
static Soon soon(const Rows& rows, Kind kind, int64_t b, int64_t h, int64_t first) {
  const int64_t number = kind == FLOAT ? 4 : 2;
  const int64_t begin = b * rows.batch + h * rows.head + first * rows.row;
  return {static_cast<const char*>(rows.at) + begin * number, rows.row * number, number};
}

// How many floats that space has.
static int64_t space_of(Kind kind, int64_t count, int64_t width) { return kind == FLOAT ? 0 : count * width; }

// Contiguous rows of the output, from row number `first` on.
static void write_output(const Problem& p, const float* from, int64_t count, int64_t first) {
  const int64_t begin = first * p.value_width, size = count * p.value_width;
  if (p.kind == FLOAT) {
    std::copy_n(from, size, static_cast<float*>(p.output) + begin);
  } else {
    narrow(from, size, p.kind, static_cast<uint16_t*>(p.output) + begin);
  }
}
