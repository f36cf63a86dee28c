// A panel: some queries side by side, one a lane, in up to three vectors. Scores are kept key by key, each key a row of
// lanes, so that K and V are read as they lie in memory, and maxima and sums over keys stay within a lane.

constexpr int VECTORS = 3;
constexpr int PANEL = VECTORS * LANES;
constexpr int CHUNK = 16;
constexpr int64_t KEYS = 128;  // a tile at most: K, V and the scores of a panel stay in the nearest caches
constexpr int64_t SPAN = 128;  // terms that one accumulator sums; longer sums are sums of such sums, so that errors stay small

// How many rows a block of the product has beside N vectors of lanes: as many as the registers hold.
constexpr int rows_beside(int vectors) { return LANES == 16 ? 8 : vectors == 3 ? 4 : vectors == 2 ? 6 : 8; }

// block[i][j] += sum over p of left(i, p) * right(p, j): the inner loop of every product here.
//   left(i, p) = left[i * left_row + p * left_step], spread over a vector;  right(p, j) = vector j of row p
// `meanwhile` is called at each step.
template <int M, int N, class Meanwhile>
REGARD_INLINE void multiply(Vec (&block)[M][N], const float* left, int64_t left_row, int64_t left_step,
                            const float* right, int64_t right_row, int64_t count, const Meanwhile& meanwhile) {
#pragma GCC unroll 2
  for (int64_t p = 0; p < count; ++p) {
    meanwhile(p);
    Vec r[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) r[j] = load(right + p * right_row + j * LANES);
    REGARD_UNROLL for (int i = 0; i < M; ++i) {
      const Vec l = all(left[i * left_row + p * left_step]);
      REGARD_UNROLL for (int j = 0; j < N; ++j) block[i][j] = fma(l, r[j], block[i][j]);
    }
  }
}

template <int M, int N>
REGARD_INLINE void multiply(Vec (&block)[M][N], const float* left, int64_t left_row, int64_t left_step,
                            const float* right, int64_t right_row, int64_t count) {
  multiply(block, left, left_row, left_step, right, right_row, count, [](int64_t) {});
}

// What will be read soon is asked for line by line beside other work: a burst of wishes would be waited for.
constexpr int64_t LINE = 16;  // floats

// Nothing.
struct NoWish {
  template <int M>
  REGARD_MEMBER void among_products(int64_t, int64_t) const {}
};

// Rows of numbers.
struct Soon {
  const char* at = nullptr;  // null: nothing is asked for
  int64_t row, number;       // bytes

  REGARD_MEMBER void ask(int64_t i, int64_t c) const { __builtin_prefetch(at + i * row + c * number, 0, 2); }

  // For M keys from `t` on, at channel `p`: of each row a line, while a line's worth of channels is multiplied.
  template <int M>
  REGARD_MEMBER void among_products(int64_t t, int64_t p) const {
    if (p % LINE < M) ask(t + p % LINE, p / LINE * LINE);
  }
};

// Rows of a table that lie along the keys, one for each lane.
struct SoonLookedUp {
  const float* table = nullptr;  // null: nothing is asked for
  const int32_t *lanes, *keys;   // the place is the sum of both
  int64_t count, width;          // lanes, and channels

  template <int M>
  REGARD_MEMBER void among_products(int64_t t, int64_t p) const {
    if (t % LINE) return;
    for (int64_t lane = p; lane < count; lane += width) __builtin_prefetch(table + lanes[lane] + int64_t(keys[t]));
  }
};

// Calls step(rows, first) for blocks of M rows, and smaller ones for what is left.
template <int M, class Step>
REGARD_INLINE void in_blocks(int64_t first, int64_t last, const Step& step) {
  for (; first + M <= last; first += M) step(std::integral_constant<int, M>{}, first);
  if constexpr (M > 1) {
    if (first < last) in_blocks<M / 2>(first, last, step);
  }
}

// Calls what(vectors) with a number of vectors from 1 to 3.
template <class What>
REGARD_INLINE void with_vectors(int64_t vectors, const What& what) {
  if (vectors > 2) {
    what(std::integral_constant<int, 3>{});
  } else if (vectors > 1) {
    what(std::integral_constant<int, 2>{});
  } else {
    what(std::integral_constant<int, 1>{});
  }
}

// Columns of lanes from rows of numbers: to[p][lane] = from[lane][p] * factor; lanes beyond `count` repeat the last.
static void gather_lanes(const float* from, int64_t row, int64_t count, int64_t width, float factor, float* to,
                         int64_t to_row) {
  for (int64_t lane = 0; lane < to_row; lane += LANES) {
    const float* source[LANES];
    for (int i = 0; i < LANES; ++i) source[i] = from + std::min(lane + i, count - 1) * row;
    int64_t p = 0;
    for (; p + LANES <= width; p += LANES) {
      Vec x[LANES];
      REGARD_UNROLL for (int i = 0; i < LANES; ++i) x[i] = load(source[i] + p) * factor;
      transpose(x);
      REGARD_UNROLL for (int i = 0; i < LANES; ++i) store(to + (p + i) * to_row + lane, x[i]);
    }
    for (; p < width; ++p)
      for (int i = 0; i < LANES; ++i) to[p * to_row + lane + i] = source[i][p] * factor;
  }
}

// The way back: to[lane][p] = from[p][lane] * factor[lane] for the first `count` lanes.
static void scatter_lanes(const float* from, int64_t from_row, const float* factor, int64_t count, int64_t width,
                          float* to, int64_t row) {
  for (int64_t lane = 0; lane < count; lane += LANES) {
    const int64_t here = std::min<int64_t>(LANES, count - lane);
    const Vec scale = load(factor + lane);
    int64_t p = 0;
    for (; p + LANES <= width; p += LANES) {
      Vec x[LANES];
      REGARD_UNROLL for (int i = 0; i < LANES; ++i) x[i] = load(from + (p + i) * from_row + lane) * scale;
      transpose(x);
      for (int64_t i = 0; i < here; ++i) store(to + (lane + i) * row + p, x[i]);
    }
    for (; p < width; ++p)
      for (int64_t i = 0; i < here; ++i) to[(lane + i) * row + p] = from[p * from_row + lane + i] * factor[lane + i];
  }
}

// scores[t][lane] = k[t] . q[lane] for `count` keys, with queries as columns of lanes, a row of them `query_row` long;
// `top` grows to their maxima. A width beyond SPAN is summed span by span, and the totals wait in `scores`.
template <int N, bool TOPS = false, class Wish = NoWish>
static void products(const float* queries, int64_t query_row, int64_t width, const float* keys, int64_t key_row,
                     int64_t count, float* scores, Vec* top = nullptr, const Wish& wish = {}) {
  int64_t first = 0;
  do {  // once for a width of 0 as well: its scores are 0
    const bool last = first + SPAN >= width;
    in_blocks<rows_beside(N)>(0, count, [&](auto rows, int64_t t) __attribute__((always_inline)) {
      constexpr int M = decltype(rows)::value;
      Vec block[M][N] = {};
      multiply(block, keys + t * key_row + first, key_row, 1, queries + first * query_row, query_row,
               last ? width - first : SPAN, [&](int64_t p) REGARD_AT_ONCE {
                 wish.template among_products<M>(t, first + p);
                 // the next block's keys, which may lie in the second cache
                 if (p % LINE < M) __builtin_prefetch(keys + (t + M + p % LINE) * key_row + first + p / LINE * LINE);
               });
      REGARD_UNROLL for (int i = 0; i < M; ++i)
        REGARD_UNROLL for (int j = 0; j < N; ++j) {
          float* score = scores + ((t + i) * N + j) * LANES;
          if (first) block[i][j] += load(score);
          store(score, block[i][j]);
          if (TOPS && last) top[j] = larger(block[i][j], top[j]);  // in this order a NaN is passed over
        }
    });
    first += SPAN;
  } while (first < width);
}

// sums[c][lane] = sums[c][lane] * shrink[lane] + sum over t of values[t][c] * weights[t][lane]
template <int N, bool SOON = false>
static void weighted_sums(const float* weights, const float* values, int64_t value_row, int64_t count, int64_t width,
                          const Vec (&shrink)[N], float* sums, int64_t sums_row, const Soon& soon = {}) {
  in_blocks<rows_beside(N)>(0, width, [&](auto rows, int64_t c) __attribute__((always_inline)) {
    constexpr int M = decltype(rows)::value;
    Vec block[M][N] = {};  // sums of sums: rounding grows with their lengths
    if (SOON && c % LINE == 0) {  // a line of each row
      multiply(block, values + c, 1, value_row, weights, N * LANES, count,
               [&](int64_t t) REGARD_AT_ONCE { soon.ask(t, c); });
    } else {
      multiply<M, N>(block, values + c, 1, value_row, weights, N * LANES, count);
    }
    REGARD_UNROLL for (int i = 0; i < M; ++i)
      REGARD_UNROLL for (int j = 0; j < N; ++j) {
        float* place = sums + (c + i) * sums_row + j * LANES;
        store(place, fma(load(place), shrink[j], block[i][j]));
      }
  });
}

// Whether nothing in these rows is inf or NaN.
static bool all_finite(const float* rows, int64_t row, int64_t count, int64_t width) {
  Vec sums[4] = {};  // stay 0 as long as nothing is inf or NaN; several, since each waits for itself
  float rest = 0.0f;
  for (int64_t t = 0; t < count; ++t) {
    const float* here = rows + t * row;
    int64_t c = 0;
    for (; c + 4 * LANES <= width; c += 4 * LANES)
      REGARD_UNROLL for (int i = 0; i < 4; ++i) sums[i] = fma(load(here + c + i * LANES), Vec{}, sums[i]);
    for (; c + LANES <= width; c += LANES) sums[0] = fma(load(here + c), Vec{}, sums[0]);
    for (; c < width; ++c) rest += here[c] * 0.0f;
  }
  const Vec sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  for (int lane = 0; lane < LANES; ++lane) rest += sum[lane];
  return rest == 0.0f;
}
