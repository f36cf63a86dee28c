// Dropout: which weights are left out is a pure function of (seed, b, h, i, j), the same on every engine; the formula is
// written down in engine/dropout.py.

typedef uint32_t WordVec __attribute__((vector_size(4 * LANES)));
typedef uint32_t LooseWordVec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

template <class Word>
REGARD_INLINE Word mix(Word x) {
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  return x ^ (x >> 16);
}

// The words of a panel's queries.
struct Dropout {
  uint32_t row[PANEL], stride[PANEL];
  uint32_t first_key, step_key;
  uint32_t threshold;
  float factor;

  void begin(const Problem& p, int64_t b, int64_t h, int64_t first, int64_t count) {
    threshold = uint32_t(p.dropped);
    factor = float(p.kept_factor);
    first_key = uint32_t(p.first_key);
    step_key = uint32_t(p.step_key);
    const uint64_t seed = uint64_t(p.seed);
    uint32_t head = mix(mix(uint32_t(seed)) + uint32_t(seed >> 32));
    head = mix(mix(head + uint32_t(b)) + uint32_t(p.first_head + h));
    for (int64_t i = 0; i < PANEL; ++i) {
      row[i] = mix(head + uint32_t(p.first_query + p.step_query * (first + std::min(i, count - 1))));
      stride[i] = mix(row[i] ^ 0x9E3779B9u) | 1u;
    }
  }

  // -1 in every bit where the weight of key `key` and vector j of the queries is kept
  REGARD_MEMBER IntVec kept(int64_t key, int j) const {
    const uint32_t at = first_key + step_key * uint32_t(key);
    const WordVec word = mix(at * *reinterpret_cast<const LooseWordVec*>(stride + j * LANES) +
                             *reinterpret_cast<const LooseWordVec*>(row + j * LANES));
    return IntVec(word >= threshold);
  }
};
