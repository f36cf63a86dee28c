// Additive scores: s = sum over c of u[c] tanh(a[c] + b[c]), a being the query's numbers and b the key's. Since
//
//     tanh(a + b) = 1 - 2 r,   r = 1 / x,   x = 1 + e^2a e^2b,
//
// a pair takes a division and no power, once e^2a and e^2b are known; and channels share a division:
// u / x + w / y = (u y + w x) / (x y). That could overflow where |a| + |b| is large: four channels share one up to REACH,
// two up to twice as much, and beyond that tanh is computed.

constexpr float REACH = 10.0f;  // e^(4 * 2 * REACH) is still a float

// Numbers and their e^2x. Of queries a row is a channel, with a lane for each query; of keys a row is a key.
struct Raised {
  const float *raw, *at;
  int64_t raw_row, row;
  float reach;  // no number is larger; infinite where one is not a number

  Raised from(int64_t rows, int64_t columns = 0) const {
    return {raw + rows * raw_row + columns, at + rows * row + columns, raw_row, row, reach};
  }
};

static Raised raise(const float* from, int64_t from_row, int64_t rows, int64_t width, float* to) {
  IntVec most{};  // the bits of a larger number are larger, and those of a NaN the largest
  const auto step = [&](Vec x) __attribute__((always_inline)) {
    const IntVec size = bits(x) & 0x7fffffff;
    most = size > most ? size : most;
    return exp(x + x);
  };
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = from + i * from_row;
    int64_t c = 0;
    for (; c + LANES <= width; c += LANES) store(to + i * width + c, step(load(row + c)));
    if (c == width) continue;
    float rest[LANES] = {};
    std::copy(row + c, row + width, rest);
    store(rest, step(load(rest)));
    std::copy(rest, rest + width - c, to + i * width + c);
  }
  int32_t largest = 0;
  for (int lane = 0; lane < LANES; ++lane) largest = std::max(largest, most[lane]);
  float reach;
  std::memcpy(&reach, &largest, sizeof reach);
  return {from, to, from_row, width, reach != reach ? INFINITY : reach};
}

// What is the same for all pairs of a head.
struct Additive {
  const float* u = nullptr;  // null: scores are products
  float total;               // of u
  float* twice;              // -2 u
  float* keys;               // space for e^2b of a tile

  Additive() = default;
  Additive(const Problem& p, int64_t head, double unit, float* space)
      : u(space), twice(space + p.width), keys(space + 2 * p.width) {
    double sum = 0.0;
    for (int64_t c = 0; c < p.width; ++c) {
      const double here = unit * p.u[head * p.width + c];
      space[c] = float(here), twice[c] = float(-2.0 * here);
      sum += here;
    }
    total = float(sum);
  }

  static int64_t space(const Problem& p) { return p.u ? (2 + KEYS) * p.width : 0; }
};

// Calls what(channels that may share a division): 4, 2, or 0 where there must be none.
template <class What>
REGARD_INLINE void where_in_reach(const Raised& queries, const Raised& keys, const What& what) {
  const float reach = queries.reach + keys.reach;
  if (reach <= REACH) {
    what(std::integral_constant<int, 4>{});
  } else if (reach <= 2.0f * REACH) {
    what(std::integral_constant<int, 2>{});
  } else {
    what(std::integral_constant<int, 0>{});
  }
}

// A sum of fractions.
struct Fraction {
  Vec above, below;

  REGARD_MEMBER Fraction operator+(const Fraction& other) const {
    return {fma(above, other.below, other.above * below), below * other.below};
  }
};

// A channel of queries and of a key: e^2a and e^2b, or a and b.
template <bool QUICK>
REGARD_INLINE Vec query_at(const Raised& queries, int64_t c, int j) {
  return load(QUICK ? queries.at + c * queries.row + j * LANES : queries.raw + c * queries.raw_row + j * LANES);
}
template <bool QUICK>
REGARD_INLINE Vec key_at(const Raised& keys, int64_t t, int64_t c) {
  return all(QUICK ? keys.at[t * keys.row + c] : keys.raw[t * keys.raw_row + c]);
}

// scores[t][lane], as `products` gives them
template <int N>
static void additive_scores(const Additive& of, const Raised& queries, const Raised& keys, int64_t width, int64_t count,
                            float* scores) {
  constexpr int CHANNELS = 32;  // sums of sums: rounding grows with their lengths
  where_in_reach(queries, keys, [&](auto sharing) __attribute__((always_inline)) {
    constexpr int SHARING = decltype(sharing)::value;
    constexpr bool QUICK = SHARING > 0;
    in_blocks<2>(0, count, [&](auto rows, int64_t t) __attribute__((always_inline)) {
      constexpr int M = decltype(rows)::value;
      Vec total[M][N];
      REGARD_UNROLL for (int i = 0; i < M; ++i)
        REGARD_UNROLL for (int j = 0; j < N; ++j) total[i][j] = all(QUICK ? of.total : 0.0f);
      for (int64_t first = 0; first < width; first += CHANNELS) {
        const int64_t last = std::min<int64_t>(width, first + CHANNELS);
        Vec sum[M][N] = {};
        int64_t c = first;
        for (; QUICK && c + SHARING <= last; c += SHARING)
          REGARD_UNROLL for (int i = 0; i < M; ++i)
            REGARD_UNROLL for (int j = 0; j < N; ++j) {
              const auto channel = [&](int64_t n) __attribute__((always_inline)) {
                const Vec x = fma(query_at<true>(queries, n, j), key_at<true>(keys, t + i, n), all(1.0f));
                return Fraction{all(of.twice[n]), x};
              };
              Fraction part = channel(c) + channel(c + 1);
              if constexpr (SHARING == 4) part = part + (channel(c + 2) + channel(c + 3));
              sum[i][j] = fma(part.above, reciprocal(part.below), sum[i][j]);
            }
        for (; c < last; ++c)
          REGARD_UNROLL for (int i = 0; i < M; ++i)
            REGARD_UNROLL for (int j = 0; j < N; ++j) {
              const Vec a = query_at<QUICK>(queries, c, j), b = key_at<QUICK>(keys, t + i, c);
              if constexpr (QUICK) {
                sum[i][j] = fma(all(of.twice[c]), reciprocal(fma(a, b, all(1.0f))), sum[i][j]);
              } else {
                sum[i][j] = fma(all(of.u[c]), tanh(a + b), sum[i][j]);
              }
            }
        REGARD_UNROLL for (int i = 0; i < M; ++i)
          REGARD_UNROLL for (int j = 0; j < N; ++j) total[i][j] += sum[i][j];
      }
      REGARD_UNROLL for (int i = 0; i < M; ++i)
        REGARD_UNROLL for (int j = 0; j < N; ++j) store(scores + ((t + i) * N + j) * LANES, total[i][j]);
    });
  });
}

// With h = tanh(a + b) and g the gradient of a score, a pair adds g h to a channel of u, and u g (1 - h^2) to those of a
// and b. Adds them, without the factor u, to d_queries[c][lane], d_keys[c][t] and d_u[c]; where g is 0, nothing.
template <int N>
static void additive_gradients(const Raised& queries, const Raised& keys, int64_t width, int64_t count,
                               const float* d_scores, float* d_queries, int64_t query_row, float* d_keys,
                               int64_t key_row, double* d_u) {
  where_in_reach(queries, keys, [&](auto sharing) __attribute__((always_inline)) {
    constexpr bool QUICK = decltype(sharing)::value > 0;
    for (int64_t c = 0; c < width; ++c) {
      Vec a[N], to_query[N] = {}, to_u[N] = {};
      REGARD_UNROLL for (int j = 0; j < N; ++j) a[j] = query_at<QUICK>(queries, c, j);
      for (int64_t t = 0; t < count; t += LANES) {
        Vec to_key[LANES] = {};
        const auto add = [&](int64_t i) __attribute__((always_inline)) {
          const Vec b = key_at<QUICK>(keys, t + i, c);
          REGARD_UNROLL for (int j = 0; j < N; ++j) {
            const Vec g = load(d_scores + ((t + i) * N + j) * LANES);
            const Vec h = QUICK ? fma(all(-2.0f), reciprocal(fma(a[j], b, all(1.0f))), all(1.0f)) : tanh(a[j] + b);
            Vec for_u = g * h, for_both = fma(-for_u, h, g);
            if constexpr (!QUICK) {  // what is hidden may be no number, and its gradient is 0
              for_u = choose(IntVec(g != 0.0f), for_u, Vec{});
              for_both = choose(IntVec(g != 0.0f), for_both, Vec{});
            }
            to_u[j] += for_u;
            to_query[j] += for_both;
            to_key[i] += for_both;
          }
        };
        if (t + LANES <= count) {
          REGARD_UNROLL for (int i = 0; i < LANES; ++i) add(i);
        } else {
          for (int64_t i = 0; i < count - t; ++i) add(i);
        }
        float* place = d_keys + c * key_row + t;
        store(place, load(place) + sums_of_lanes(to_key));
      }
      Vec more{};
      REGARD_UNROLL for (int j = 0; j < N; ++j) {
        float* place = d_queries + c * query_row + j * LANES;
        store(place, load(place) + to_query[j]);
        more += to_u[j];
      }
      for (int lane = 0; lane < LANES; ++lane) d_u[c] += more[lane];
    }
  });
}
