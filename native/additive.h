// Additive scores: s = sum over c of u[c] tanh(a[c] + b[c]), a being the query's numbers and b the key's. Since
//
//     tanh(a + b) = 1 - 2 r,   r = 1 / x,   x = 1 + e^2a e^2b,
//
// a pair takes a division and no power, once e^2a and e^2b are known; and channels share a division:
// u / x + w / y = (u y + w x) / (x y). Where that might overflow fewer share one, and beyond that tanh is computed.

constexpr float LARGEST = 0x1p125f;  // that is divided by, and that is divided

// Numbers and their e^2x. Of queries a row is a channel, with a lane for each query; of keys a row is a key.
struct Raised {
  const float *raw, *at;
  int64_t raw_row, row;
  const float* tops;  // the largest e^2x of each channel; no number where one is none

  Raised from(int64_t rows, int64_t columns = 0) const {
    return {raw + rows * raw_row + columns, at + rows * row + columns, raw_row, row, tops};
  }
};

// The larger one of two numbers that are not negative, or what is no number: without their signs, bits of a larger number
// are larger, and those of a NaN the largest.
REGARD_INLINE Vec larger_or_none(Vec a, Vec b) {
  const IntVec x = bits(a) & 0x7fffffff, y = bits(b) & 0x7fffffff;
  return floats(x > y ? x : y);
}

static void raise(const float* from, int64_t from_row, int64_t rows, int64_t width, float* to) {
  const auto step = [](Vec x) __attribute__((always_inline)) { return exp(x + x); };
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
}

// Keys, a row each; `to` has room for a row more.
static Raised raised_keys(const float* from, int64_t from_row, int64_t rows, int64_t width, float* to) {
  raise(from, from_row, rows, width, to);
  float* tops = to + rows * width;
  std::fill(tops, tops + width, 0.0f);
  for (int64_t i = 0; i < rows; ++i) {
    int64_t c = 0;
    for (; c + LANES <= width; c += LANES) store(tops + c, larger_or_none(load(to + i * width + c), load(tops + c)));
    for (; c < width; ++c) tops[c] = larger_or_none(all(to[i * width + c]), all(tops[c]))[0];
  }
  return {from, to, from_row, width, tops};
}

// Queries, a channel a row; `to` has room for a number more of each.
static Raised raised_queries(const float* from, int64_t width, int64_t lanes, float* to) {
  raise(from, lanes, width, lanes, to);
  float* tops = to + width * lanes;
  for (int64_t c = 0; c < width; ++c) {
    Vec top{};
    for (int64_t lane = 0; lane < lanes; lane += LANES) top = larger_or_none(load(to + c * lanes + lane), top);
    for (int lane = 0; lane < LANES; ++lane) tops[c] = larger_or_none(all(top[lane]), lane ? all(tops[c]) : Vec{})[0];
  }
  return {from, to, lanes, lanes, tops};
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

  static int64_t space(const Problem& p) { return p.u ? (3 + KEYS) * p.width : 0; }
};

// Whether so many channels may share a division: neither what is divided by nor, `twice` u times that, what is divided may
// be larger than a float.
static bool may_share(int64_t channels, const Raised& queries, const Raised& keys, int64_t width, const float* twice) {
  for (int64_t first = 0; first < width; first += channels) {
    float below = 1.0f, above = 0.0f;
    for (int64_t c = first; c < std::min(width, first + channels); ++c) {
      below *= 1.0f + queries.tops[c] * keys.tops[c];
      above += twice ? std::abs(twice[c]) : 0.0f;
    }
    if (!(below * std::max(1.0f, above) <= LARGEST)) return false;  // also where something is no number
  }
  return true;
}

// Calls what(channels that share a division): 8, 4, 2, or 0 where tanh is to be computed.
template <class What>
REGARD_INLINE void where_shared(const Additive& of, const Raised& queries, const Raised& keys, int64_t width,
                                const What& what) {
  if (may_share(8, queries, keys, width, of.twice)) {
    what(std::integral_constant<int, 8>{});
  } else if (may_share(4, queries, keys, width, of.twice)) {
    what(std::integral_constant<int, 4>{});
  } else if (may_share(2, queries, keys, width, of.twice)) {
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

// The sum of so many channels from `first` on.
template <int CHANNELS, class Channel>
REGARD_INLINE Fraction shared(int64_t first, const Channel& channel) {
  if constexpr (CHANNELS > 1) {
    return shared<CHANNELS / 2>(first, channel) + shared<CHANNELS / 2>(first + CHANNELS / 2, channel);
  } else {
    return channel(first);
  }
}

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
  where_shared(of, queries, keys, width, [&](auto sharing) __attribute__((always_inline)) {
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
              const Fraction part = shared<SHARING>(c, [&](int64_t n) __attribute__((always_inline)) {
                const Vec x = fma(query_at<true>(queries, n, j), key_at<true>(keys, t + i, n), all(1.0f));
                return Fraction{all(of.twice[n]), x};
              });
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
  const auto add_all = [&](auto quick) __attribute__((always_inline)) {
    constexpr bool QUICK = decltype(quick)::value;
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
  };
  may_share(1, queries, keys, width, nullptr) ? add_all(std::true_type{}) : add_all(std::false_type{});
}
