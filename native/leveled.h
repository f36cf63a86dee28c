// Weighings with a level, forward: the scores of a panel with all keys that it sees are kept, so that the level of each
// row is found without computing them again. Then
//
//     powers:   w = (s - level)^p where s > level,   the level such that sum w = 1
//     largest:  w = exp(s - top) where s is not below the level, half-way between the k-th largest and the next
//     hard:     w = 1 there
//
// and output = sum w v / sum w. A row of keys that weighs nothing in the whole panel is passed over. Softmax is kept the
// same way where not its output is wanted but what each key receives: lse_i, and the sum over i of exp(s_ij - lse_i).

constexpr int NEWTON_STEPS = 64;

// The scores of a panel, key by key, and where each key lies.
struct KeptScores {
  float* scores;
  int32_t* keys;
  int64_t count, lanes;

  template <class What>
  REGARD_MEMBER void each(const What& what) const {
    for (int64_t t = 0; t < count; ++t) what(scores + t * lanes, t);
  }
};

struct Weighing {
  const Problem& problem;
  const Leveled& how;
  int64_t panels;

  size_t scratch() const {
    const Problem& p = problem;
    const int64_t registers = p.program ? p.program->registers : 0;
    return size_t(p.n_k) * (PANEL + 1) + KEYS * (2 * PANEL + p.value_width) + registers * ROWS * PANEL +
           Queries::space(p, PANEL) + PANEL * (p.width + 2 * p.value_width) + space_of(p.kind, KEYS, p.width) +
           p.value_width + Additive::space(p) + 128;
  }

  void one_panel(int64_t item, float* space) const {
    const int64_t head = item / panels;
    panel(head / problem.heads, head % problem.heads, panels - 1 - item % panels, space, nullptr);  // heavy ones first
  }

  // Panels of which the sums are taken together: always the same ones, so that their order is that of any run.
  void group_of_panels(int64_t item, float* space) const {
    const int64_t head = item / how.count, group = item % how.count;
    float* received = how.received + item * problem.n_k;
    std::fill(received, received + problem.n_k, 0.0f);
    for (int64_t number = group * panels / how.count; number < (group + 1) * panels / how.count; ++number)
      panel(head / problem.heads, head % problem.heads, number, space, received);
  }

  void panel(int64_t b, int64_t h, int64_t number, float* space, float* received) const {
    const FlushTiny flush;
    const Problem& p = problem;
    const int64_t first = number * PANEL, count = std::min<int64_t>(PANEL, p.n_q - first);
    const int64_t lanes = (count + LANES - 1) / LANES * LANES;
    const auto take = [&](int64_t floats) {
      float* here = space;
      space += floats;
      return here;
    };
    KeptScores kept{take(p.n_k * lanes), reinterpret_cast<int32_t*>(take(p.n_k)), 0, lanes};
    float top[PANEL], level[PANEL];
    IntVec wild[VECTORS] = {};  // where a score is NaN or inf
    std::fill(top, top + PANEL, -INFINITY);
    if (how.kind == Leveled::SLOPES)
      for (int64_t i = 0; i < lanes; ++i) {
        level[i] = how.levels[(b * p.heads + h) * p.n_q + first + std::min(i, count - 1)];
        top[i] = level[i];  // what is not above weighs nothing
      }
    keep_scores(b, h, number, first, count, kept, top, wild, space);
    if (how.kind == Leveled::RECEIVED) return receive((b * p.heads + h) * p.n_q + first, count, kept, top, wild, received);
    if (how.kind == Leveled::POWERS) {
      solve(kept, Powers{how.powers[h]}, top, level);
    } else if (how.kind != Leveled::SLOPES) {
      select(kept, top, level);
    }
    for (int64_t i = 0; i < lanes; ++i)
      if (wild[i / LANES][i % LANES]) level[i] = NAN;
    sum_values(b, h, first, count, kept, top, level, space);
  }

  // All scores of a panel that may weigh something. Where powers are taken, a score more than 1 below another never does.
  void keep_scores(int64_t b, int64_t h, int64_t number, int64_t first, int64_t count, KeptScores& kept, float* top,
                   IntVec* wild, float* space) const {
    const Problem& p = problem;
    const auto take = [&](int64_t floats) {
      float* here = space;
      space += floats;
      return here;
    };
    static const Program nothing{};
    const bool ruled = p.program && p.program->rule;
    const int64_t lanes = kept.lanes, key_head = h / (p.heads / p.key_heads);
    float* scores = take(KEYS * PANEL);
    float* registers = take((p.program ? p.program->registers : 0) * ROWS * PANEL);
    const Additive additive = p.u ? Additive(p, h, 1.0, take(Additive::space(p))) : Additive();
    const Floats q = floats_of(p.q, p.kind, b, h, first, count, p.width, take(PANEL * p.width));
    const Queries queries = Queries::of(p, q, count, lanes, 1.0, additive, take(Queries::space(p, lanes)));
    float* wide_k = take(space_of(p.kind, KEYS, p.width));
    const Run everything{0, int32_t(p.n_k), 0, 0, VECTORS};
    Runs runs = runs_of(p, b, h, number, everything);
    Piece piece{};
    for (int64_t from = 0; piece.next(runs, from, std::min(p.n_k, runs.seen_from(from, p.n_k) / KEYS * KEYS + KEYS));
         from = piece.to) {
      const int64_t keys = piece.to - piece.from;
      const Floats k = floats_of(p.k, p.kind, b, key_head, piece.from, keys, p.width, wide_k);
      piece.k = k.at, piece.k_row = k.row;
      if (p.u) piece.raised = raised_keys(k.at, k.row, keys, p.width, additive.keys);
      Machine machine{p.program ? *p.program : nothing, registers, b, h, first + piece.low * LANES};
      with_vectors(std::min(piece.high, lanes / LANES) - piece.low, [&](auto vectors) {
        constexpr int N = decltype(vectors)::value;
        // where all are kept, they are made where they stay
        const bool stays = how.kind == Leveled::RECEIVED && N * LANES == lanes;
        piece.scores = stays ? kept.scores + kept.count * lanes : scores;
        score_keys<N>(p, queries, piece, piece.scores);
        if (ruled || piece.partial()) apply_program<N>(piece, machine);
        find_tops<N>(piece, top + piece.low * LANES, wild + piece.low);
        if (!stays) return append<N>(piece, kept, top + piece.low * LANES);
        for (int64_t t = piece.from; t < piece.to; ++t) kept.keys[kept.count++] = int32_t(t);
      });
    }
  }

  template <int N>
  void find_tops(const Piece& piece, float* tops, IntVec* wild) const {
    const bool known = how.kind == Leveled::SLOPES;  // the level, in place of the top
    Vec top[N];
    IntVec bad[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) top[j] = load(tops + j * LANES), bad[j] = wild[j];
    for (int64_t t = 0; t < piece.to - piece.from; ++t)
      REGARD_UNROLL for (int j = 0; j < N; ++j) {
        const Vec s = load(piece.scores + (t * N + j) * LANES);
        bad[j] |= ~IntVec(s < INFINITY);
        if (!known) top[j] = larger(s, top[j]);  // in this order a NaN is passed over
      }
    REGARD_UNROLL for (int j = 0; j < N; ++j) store(tops + j * LANES, top[j]), wild[j] = bad[j];
  }

  template <int N>
  void append(const Piece& piece, KeptScores& kept, const float* tops) const {
    const bool known = how.kind == Leveled::SLOPES;
    Vec top[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) top[j] = load(tops + j * LANES);
    const int64_t keys = piece.to - piece.from;
    const float reach = known ? 0.0f : how.kind == Leveled::POWERS ? 1.0f : INFINITY;
    for (int64_t t = 0; t < keys; ++t) {
      const float* from = piece.scores + t * N * LANES;
      IntVec counts{};
      REGARD_UNROLL for (int j = 0; j < N; ++j) counts |= IntVec(load(from + j * LANES) > top[j] - reach);
      if (!any(counts)) continue;
      float* to = kept.scores + kept.count * kept.lanes;
      if (N * LANES < kept.lanes) std::fill(to, to + kept.lanes, -INFINITY);
      REGARD_UNROLL for (int j = 0; j < N; ++j) store(to + (piece.low + j) * LANES, load(from + j * LANES));
      kept.keys[kept.count++] = int32_t(piece.from + t);
    }
  }

  // The level of each lane at which its row sums to 1; inf where nothing is seen.
  void solve(KeptScores& kept, const Powers& powers, const float* top, float* level) const {
    for (int64_t i = 0; i < kept.lanes; ++i) level[i] = top[i] == -INFINITY ? INFINITY : top[i] - 1.0f;
    drop_below(kept, level);
    bool moves[PANEL];
    std::fill(moves, moves + PANEL, true);
    double total[PANEL], slope[PANEL];
    for (int step = 0; step < NEWTON_STEPS; ++step) {
      with_vectors(kept.lanes / LANES, [&](auto vectors) {
        constexpr int N = decltype(vectors)::value;
        add_up<N>(kept, powers, level, total, slope);
      });
      bool moving = false;
      for (int64_t i = 0; i < kept.lanes; ++i) {
        if (!moves[i]) continue;
        const double by = powers.step(total[i], slope[i]);
        level[i] = float(level[i] + by);
        moves[i] = by > 4 * FLT_EPSILON * std::max(1.0f, std::abs(level[i]));
        moving |= moves[i];
      }
      if (!moving) return;
    }
  }

  // Leaves out the keys whose scores no lane has above its level.
  static void drop_below(KeptScores& kept, const float* level) {
    int64_t stays = 0;
    for (int64_t t = 0; t < kept.count; ++t) {
      const float* from = kept.scores + t * kept.lanes;
      IntVec counts{};
      for (int64_t i = 0; i < kept.lanes; i += LANES) counts |= IntVec(load(from + i) > load(level + i));
      if (!any(counts)) continue;
      if (stays < t) std::copy_n(from, kept.lanes, kept.scores + stays * kept.lanes), kept.keys[stays] = kept.keys[t];
      ++stays;
    }
    kept.count = stays;
  }

  template <int N>
  static void add_up(const KeptScores& kept, const Powers& powers, const float* level, double* total, double* slope) {
    Vec from[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) from[j] = load(level + j * LANES);
    std::fill(total, total + N * LANES, 0.0), std::fill(slope, slope + N * LANES, 0.0);
    for (int64_t chunk = 0; chunk < kept.count; chunk += 4 * CHUNK) {  // sums of sums: rounding grows with their lengths
      Vec sum[N] = {}, below[N] = {};
      for (int64_t t = chunk; t < std::min<int64_t>(kept.count, chunk + 4 * CHUNK); ++t)
        REGARD_UNROLL for (int j = 0; j < N; ++j) {
          const Vec x = larger(load(kept.scores + t * kept.lanes + j * LANES) - from[j], Vec{});
          const Vec less = powers.below(x);
          below[j] += less;
          sum[j] = fma(less, x, sum[j]);
        }
      REGARD_UNROLL for (int j = 0; j < N; ++j)
        for (int lane = 0; lane < LANES; ++lane) {
          total[j * LANES + lane] += sum[j][lane];
          slope[j * LANES + lane] += below[j][lane];
        }
    }
  }

  // Half-way between the last of the largest and the largest score below it. Scores tie only where they are equal; of
  // two that are next to each other, half-way is the larger one.
  void select(const KeptScores& kept, const float* top, float* level) const {
    const int64_t k = how.kind == Leveled::HARD ? 1 : how.count;
    for (int64_t i = 0; i < kept.lanes; i += LANES) {
      Vec last = load(top + i);
      if (k > 1) last = kth(kept, i, k, top + i);
      Vec next = all(-INFINITY);
      kept.each([&](const float* row, int64_t) REGARD_AT_ONCE {
        const Vec s = load(row + i);
        next = larger(choose(IntVec(s >= last), all(-INFINITY), s), next);
      });
      const Vec middle = next + (last - next) * 0.5f;
      Vec found = choose(IntVec(middle > next), middle, last);
      found = choose(IntVec(next == -INFINITY), all(-FLT_MAX), found);
      store(level + i, choose(IntVec(last == -INFINITY), all(-FLT_MAX), found));
    }
  }

  // The k-th largest of each lane, by halving what is left of the numbers' order; -inf where there are fewer.
  static Vec kth(const KeptScores& kept, int64_t i, int64_t k, const float* top) {
    const auto ordered = [](IntVec x) { return x ^ ((x >> 31) & 0x7fffffff); };
    int64_t low[LANES], high[LANES];  // at `low` there are as many as k or more, at `high` fewer
    const IntVec first = ordered(bits(load(top))), least = ordered(bits(all(-INFINITY)));
    for (int lane = 0; lane < LANES; ++lane) low[lane] = least[lane], high[lane] = int64_t(first[lane]) + 1;
    for (int bit = 0; bit < 33; ++bit) {
      IntVec middle{};
      bool open = false;
      for (int lane = 0; lane < LANES; ++lane) {
        middle[lane] = int32_t(low[lane] + (high[lane] - low[lane]) / 2);
        open |= high[lane] - low[lane] > 1;
      }
      if (!open) break;
      IntVec many{};
      kept.each([&](const float* row, int64_t) REGARD_AT_ONCE { many += ordered(bits(load(row + i))) >= middle; });
      for (int lane = 0; lane < LANES; ++lane) (-int64_t(many[lane]) >= k ? low : high)[lane] = middle[lane];
    }
    IntVec found{};
    for (int lane = 0; lane < LANES; ++lane) found[lane] = int32_t(low[lane]);
    return floats(ordered(found));
  }

  // The weights of a key's row, and of those the sum.
  template <int N>
  REGARD_MEMBER IntVec weigh(const float* row, const Powers& powers, const float* top, const float* level, float* to,
                             Vec (&sum)[N]) const {
    IntVec counts{};
    REGARD_UNROLL for (int j = 0; j < N; ++j) {
      const Vec s = load(row + j * LANES), from = load(level + j * LANES);
      Vec w;
      if (how.kind == Leveled::POWERS) {
        const Vec x = larger(s - from, Vec{});
        w = powers.below(x) * x;
      } else if (how.kind == Leveled::SLOPES) {
        w = powers.below(larger(s - from, Vec{}));
      } else {
        const Vec whole = how.kind == Leveled::HARD ? all(1.0f) : exp2((s - load(top + j * LANES)) * LOG2_E);
        w = choose(IntVec(s >= from), whole, Vec{});
      }
      store(to + j * LANES, w);
      sum[j] += w;
      counts |= IntVec(w != 0.0f);
    }
    return counts;
  }

  void sum_values(int64_t b, int64_t h, int64_t first, int64_t count, const KeptScores& kept, const float* top,
                  const float* level, float* space) const {
    const Problem& p = problem;
    const int64_t lanes = kept.lanes, width = p.value_width, row = (b * p.heads + h) * p.n_q + first;
    const Powers powers{how.powers ? how.powers[h] : 0.0f};
    float *weights = space, *seen = weights + KEYS * PANEL, *values = seen + KEYS * PANEL, *sums = values + KEYS * width;
    float *wide = sums + PANEL * width, *rows = wide + width;
    std::fill(sums, sums + lanes * width, 0.0f);
    Dropout dropout;
    if (p.dropped) dropout.begin(p, b, h, first, count);
    float total[PANEL] = {};
    with_vectors(lanes / LANES, [&](auto vectors) {
      constexpr int N = decltype(vectors)::value;
      Vec whole[N] = {}, keeps[N];
      REGARD_UNROLL for (int j = 0; j < N; ++j) keeps[j] = all(1.0f);
      for (int64_t t = 0; t < kept.count;) {
        int64_t taken = 0;
        Vec sum[N] = {};
        for (; t < kept.count && taken < KEYS; ++t) {
          float* to = weights + taken * lanes;
          if (!any(weigh<N>(kept.scores + t * lanes, powers, top, level, to, sum))) continue;
          if (p.dropped)
            REGARD_UNROLL for (int j = 0; j < N; ++j) {
              const Vec w = load(to + j * LANES);
              store(seen + taken * lanes + j * LANES, w);
              store(to + j * LANES, choose(dropout.kept(kept.keys[t], j), w * dropout.factor, Vec{}));
            }
          const Floats v = floats_of(p.v, p.kind, b, h / (p.heads / p.key_heads), kept.keys[t], 1, width, wide);
          std::copy_n(v.at, width, values + taken++ * width);
        }
        REGARD_UNROLL for (int j = 0; j < N; ++j) whole[j] += sum[j];
        if (!all_finite(values, width, taken, width))
          add_wild(p.dropped ? seen : weights, weights, values, taken, lanes, sums);
        weighted_sums<N>(weights, values, width, taken, width, keeps, sums, lanes);
      }
      REGARD_UNROLL for (int j = 0; j < N; ++j) store(total + j * LANES, whole[j]);
    });
    for (int64_t i = 0; i < lanes; ++i) {
      if (i < count) p.lse[row + i] = how.kind == Leveled::SLOPES ? std::log(total[i]) : level[i];
      total[i] = level[i] != level[i] ? NAN : total[i] == 0.0f ? 0.0f : 1.0f / total[i];
    }
    const bool direct = p.kind == FLOAT;
    float* to = direct ? static_cast<float*>(p.output) + row * width : rows;
    scatter_lanes(sums, lanes, total, count, width, to, width);
    if (!direct) write_output(p, rows, count, row);
  }

  // A row's sum, and then what it gives to each key.
  void receive(int64_t row, int64_t count, const KeptScores& kept, const float* top, const IntVec* wild,
               float* received) const {
    with_vectors(kept.lanes / LANES, [&](auto vectors) {
      constexpr int N = decltype(vectors)::value;
      Vec from[N], total[N] = {}, share[N];
      REGARD_UNROLL for (int j = 0; j < N; ++j) from[j] = larger(load(top + j * LANES), all(-FLT_MAX));
      for (int64_t chunk = 0; chunk < kept.count; chunk += CHUNK) {  // sums of sums: rounding grows with their lengths
        Vec sum[N] = {};
        for (int64_t t = chunk; t < std::min<int64_t>(kept.count, chunk + CHUNK); ++t)
          REGARD_UNROLL for (int j = 0; j < N; ++j) {
            float* place = kept.scores + t * kept.lanes + j * LANES;
            const Vec weight = exp2((load(place) - from[j]) * LOG2_E);
            store(place, weight);
            sum[j] += weight;
          }
        REGARD_UNROLL for (int j = 0; j < N; ++j) total[j] += sum[j];
      }
      for (int64_t i = 0; i < kept.lanes; ++i) {
        const float sum = wild[i / LANES][i % LANES] ? NAN : total[i / LANES][i % LANES];
        share[i / LANES][i % LANES] = i < count && sum != 0.0f ? 1.0f / sum : 0.0f;
        if (i < count) problem.lse[row + i] = sum == 0.0f ? -INFINITY : float(top[i] + std::log(double(sum)));
      }
      for (int64_t t = 0; t < kept.count; ++t) {
        Vec sum{};
        REGARD_UNROLL for (int j = 0; j < N; ++j) sum = fma(load(kept.scores + t * kept.lanes + j * LANES), share[j], sum);
        received[kept.keys[t]] += sum_of(sum);
      }
    });
  }

  // 0 times inf is NaN: values that are not finite are added where they weigh something, and taken out.
  void add_wild(const float* seen, const float* weights, float* values, int64_t keys, int64_t lanes, float* sums) const {
    for (int64_t t = 0; t < keys; ++t)
      for (int64_t c = 0; c < problem.value_width; ++c) {
        float& value = values[t * problem.value_width + c];
        if (std::isfinite(value)) continue;
        for (int64_t i = 0; i < lanes; ++i)
          if (seen[t * lanes + i] != 0.0f) sums[c * lanes + i] += weights[t * lanes + i] * value;
        value = 0.0f;
      }
  }
};

static bool leveled_in_panels(const Problem& problem, const Leveled& how, bool (*pause)()) {
  Weighing work{problem, how, (problem.n_q + PANEL - 1) / PANEL};
  const int64_t heads = problem.batch * problem.heads;
  if (how.kind == Leveled::RECEIVED)
    return parallel(
        heads * how.count, problem.threads, work.scratch(),
        [](void* context, int64_t item, float* space) { static_cast<Weighing*>(context)->group_of_panels(item, space); },
        &work, pause);
  return parallel(
      heads * work.panels, problem.threads, work.scratch(),
      [](void* context, int64_t item, float* space) { static_cast<Weighing*>(context)->one_panel(item, space); }, &work,
      pause);
}
