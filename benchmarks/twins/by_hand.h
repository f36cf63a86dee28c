// Rules written by hand, in the place of the machine that runs programs. Everything around them is the library's own, so
// what a twin saves is what running a program costs. Only for queries and keys that begin at the same position.

constexpr int ROWS = 32;  // keys at a time, as in the machine

// As in the machine; no twin learns anything.
struct Into {
  float* large;
  double* small;
};

// The machine's members that the kernels know, and its one call.
struct Machine {
  const Program& program;
  float* registers;
  int64_t b, h, first_query;

  const Into* sums = nullptr;
  float* arriving = nullptr;
  int64_t queries = 0;

  SoonLookedUp soon(int64_t, int64_t, int64_t) const { return {}; }  // nothing is looked up

  template <int N>
  void run(int64_t from, int64_t, int64_t key, int64_t rows, float* scores) const {
    if (from < program.rule) {
      by_hand.rule == ALIBI ? alibi<N>(key, rows, scores) : softcap<N>(rows, scores);
    } else if (from < program.hiding) {
      by_hand.rule == WINDOW ? hide<N, true>(key, rows, scores) : hide<N, false>(key, rows, scores);
    } else {
      softcap_slope<N>(rows, scores);
    }
  }

  // s - slope (i - j): under a causal mask the distance needs no absolute value
  template <int N>
  void alibi(int64_t key, int64_t rows, float* scores) const {
    const float slope = by_hand.slopes[h];
    Vec first[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) first[j] = __builtin_convertvector(lanes(j) - int32_t(key), Vec) * slope;
    for (int64_t t = 0; t < rows; ++t)
      REGARD_UNROLL for (int j = 0; j < N; ++j) {
        float* score = scores + (t * N + j) * LANES;
        store(score, load(score) - (first[j] - slope * float(t)));
      }
  }

  // c tanh(s / c)
  template <int N>
  void softcap(int64_t rows, float* scores) const {
    const float cap = by_hand.cap, inverse = 1.0f / cap;
    for (int64_t i = 0; i < rows * N * LANES; i += LANES) store(scores + i, cap * tanh(load(scores + i) * inverse));
  }

  // 1 - tanh(s / c)^2, into the first register
  template <int N>
  void softcap_slope(int64_t rows, const float* scores) const {
    const float inverse = 1.0f / by_hand.cap;
    for (int64_t i = 0; i < rows * N * LANES; i += LANES) {
      const Vec x = tanh(load(scores + i) * inverse);
      store(registers + i, 1.0f - x * x);
    }
  }

  // j <= i, and with a window i - j < window
  template <int N, bool NEAR>
  void hide(int64_t key, int64_t rows, float* scores) const {
    const Vec hidden = all(-INFINITY);
    const int32_t window = int32_t(by_hand.window);
    IntVec apart[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) apart[j] = lanes(j) - int32_t(key);
    for (int64_t t = 0; t < rows; ++t)
      REGARD_UNROLL for (int j = 0; j < N; ++j) {
        float* score = scores + (t * N + j) * LANES;
        IntVec seen = apart[j] >= int32_t(t);
        if (NEAR) seen &= apart[j] - int32_t(t) < window;
        store(score, choose(seen, load(score), hidden));
      }
  }

  // the queries of vector j
  IntVec lanes(int j) const {
    IntVec result;
    for (int lane = 0; lane < LANES; ++lane) result[lane] = int32_t(first_query) + j * LANES + lane;
    return result;
  }
};
