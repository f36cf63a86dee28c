// A part of the matrix of weights, w = exp(s - lse), for whoever wants to see it: rows of keys, query by query; or what
// there is to know of them without their being written anywhere.

struct PartOfWeights {
  const Problem& problem;
  const Part& part;
  const int64_t panels;  // of queries in the part

  size_t scratch() const {
    const int64_t registers = problem.program ? problem.program->registers : 0;
    return KEYS * PANEL + registers * ROWS * PANEL + 2 * part.cells() * PANEL + Queries::space(problem, PANEL) + Additive::space(problem) +
           space_of(problem.kind, KEYS + PANEL, problem.width) + 64;
  }

  void panel(int64_t item, float* space) const {
    const FlushTiny flush;
    const Problem& p = problem;
    const int64_t head = item / panels;  // of the part
    const int64_t b = part.b.first + head / part.h.size(), h = part.h.first + head % part.h.size();
    const int64_t first = part.i.first + item % panels * PANEL;
    const int64_t count = std::min<int64_t>(PANEL, part.i.last - first), lanes = (count + LANES - 1) / LANES * LANES;
    const auto take = [&](int64_t floats) {
      float* here = space;
      space += floats;
      return here;
    };
    float* scores = take(KEYS * PANEL);
    float *sums = take(part.cells() * PANEL), *tops = take(part.cells() * PANEL);  // of cells, a row of lanes each
    std::fill(sums, sums + 2 * part.cells() * PANEL, 0.0f);
    float* registers = take((p.program ? p.program->registers : 0) * ROWS * PANEL);
    const bool ruled = p.program && p.program->rule;
    static const Program nothing{};
    const Additive additive = p.u ? Additive(p, h, 1.0, take(Additive::space(p))) : Additive();
    const Floats q = floats_of(p.q, p.kind, b, h, first, count, p.width, take(space_of(p.kind, PANEL, p.width)));
    const Queries queries = Queries::of(p, q, count, lanes, 1.0, additive, take(Queries::space(p, lanes)));
    float* wide_k = take(space_of(p.kind, KEYS, p.width));
    float lse[PANEL];
    Row all_rows{};
    for (int64_t i = 0; i < lanes; ++i) {
      const float here = i < count ? p.lse[(b * p.heads + h) * p.n_q + first + i] : -INFINITY;
      lse[i] = here == -INFINITY ? INFINITY : here;  // a query that sees nothing weighs nothing, nor one that is not there
      all_rows.best[i] = -INFINITY, all_rows.at[i] = -1;
    }
    const int64_t row = head * part.i.size() + first - part.i.first;
    float* received = part.received ? part.received + item * part.j.size() : nullptr;
    if (received) std::fill(received, received + part.j.size(), 0.0f);
    Machine machine{p.program ? *p.program : nothing, registers, b, h, first};
    for (int64_t key = part.j.first; key < part.j.last; key += KEYS) {
      Piece piece{};
      piece.from = key, piece.to = std::min(part.j.last, key + KEYS), piece.high = VECTORS, piece.scores = scores;
      piece.hide_from = key, piece.hide_to = part.hides ? piece.to : key;
      const int64_t keys = piece.to - key;
      const Floats k = floats_of(p.k, p.kind, b, h / (p.heads / p.key_heads), key, keys, p.width, wide_k);
      piece.k = k.at, piece.k_row = k.row;
      if (p.u) piece.raised = raised_keys(k.at, k.row, keys, p.width, additive.keys);
      with_vectors(lanes / LANES, [&](auto vectors) {
        constexpr int N = decltype(vectors)::value;
        score_keys<N>(p, queries, piece, scores);
        if (ruled || part.hides) apply_program<N>(piece, machine);
        const int64_t place = row * part.j.size() + key - part.j.first;
        REGARD_UNROLL for (int j = 0; j < N; ++j)
          take_in(scores + j * LANES, N * LANES, key, keys, std::min<int64_t>(LANES, count - j * LANES), lse + j * LANES,
                  place + j * LANES * part.j.size(), all_rows, j * LANES, sums + j * LANES, tops + j * LANES,
                  received ? received + key - part.j.first : nullptr);
      });
    }
    if (part.entropy) std::copy_n(all_rows.entropy, count, part.entropy + row);
    if (part.largest)
      for (int64_t i = 0; i < lanes; i += LANES) {
        const Vec most = exp2((load(all_rows.best + i) - load(lse + i)) * LOG2_E);
        for (int64_t lane = 0; lane < std::min<int64_t>(LANES, count - i); ++lane) {
          part.at[row + i + lane] = all_rows.at[i + lane];
          part.largest[row + i + lane] = all_rows.at[i + lane] < 0 && most[lane] == most[lane] ? -1.0f : most[lane];
        }
      }
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < part.cells(); ++c) {
        part.cell_sums[(row + i) * part.cells() + c] = sums[c * PANEL + i];
        part.cell_tops[(row + i) * part.cells() + c] = tops[c * PANEL + i];
      }
  }

  // What is known of each row so far: the sum of -w log w, the largest score and the key that has it.
  struct Row {
    float entropy[PANEL], best[PANEL];
    int32_t at[PANEL];
  };

  // Scores of some keys and a vector of queries, and their weights: in columns of lanes they are added up, as rows of
  // keys written.
  void take_in(const float* from, int64_t from_row, int64_t key, int64_t keys, int64_t count, const float* lse,
               int64_t place, Row& row, int64_t lane, float* cell_sums, float* cell_tops, float* received) const {
    const Vec origin = load(lse);
    Vec sum{};
    const int64_t to_row = part.j.size();
    for (int64_t t = 0; t < keys; t += LANES) {
      const int64_t here = std::min<int64_t>(LANES, keys - t);
      Vec score[LANES], weight[LANES], sums[2] = {};
      REGARD_UNROLL for (int i = 0; i < LANES; ++i) {
        score[i] = i < here ? load(from + (t + i) * from_row) : all(-INFINITY);
        const Vec log = score[i] - origin;
        weight[i] = choose(IntVec(score[i] == -INFINITY), Vec{}, exp2(log * LOG2_E));
        // 0 where w is: the logarithm is not finite there
        sums[i % 2] += choose(IntVec(weight[i] == 0.0f), Vec{}, weight[i] * log);
      }
      sum -= sums[0] + sums[1];
      if (part.cell) add_to_cells(weight, key + t, here, cell_sums, cell_tops);
      if (part.largest) find_largest(score, int32_t(key + t), row.best + lane, row.at + lane);
      if (received) add_to(received + t, sums_of(weight), here);
      if (part.scores) put(score, part.scores + place + t, to_row, count, here);
      if (part.weights) put(weight, part.weights + place + t, to_row, count, here);
    }
    store(row.entropy + lane, load(row.entropy + lane) + sum);
  }

  // A row's largest score is seldom found anew.
  static void find_largest(const Vec (&score)[LANES], int32_t key, float* best, int32_t* at) {
    Vec most = load(best);
    REGARD_UNROLL for (int i = 0; i < LANES; ++i) most = larger(score[i], most);  // in this order a NaN is passed over
    IntVec open = most > load(best);
    if (!any(open)) return;
    store(best, most);
    IntVec found = load(at);
    REGARD_UNROLL for (int i = 0; i < LANES; ++i) {
      const IntVec here = open & IntVec(score[i] == most);
      found = (here & (key + i)) | (~here & found);
      open &= ~here;
    }
    store(at, found);
  }

  static Vec sums_of(const Vec (&weight)[LANES]) {
    Vec columns[LANES];
    REGARD_UNROLL for (int i = 0; i < LANES; ++i) columns[i] = weight[i];
    return sums_of_lanes(columns);
  }

  static void add_to(float* place, Vec more, int64_t count) {
    if (count == LANES) return store(place, load(place) + more);
    for (int64_t i = 0; i < count; ++i) place[i] += more[i];
  }

  // Weights of some keys, to their cells.
  void add_to_cells(const Vec (&weight)[LANES], int64_t key, int64_t keys, float* sums, float* tops) const {
    for (int64_t i = 0; i < keys;) {
      const int64_t cell = (key + i) / part.cell, end = std::min(keys, (cell + 1) * part.cell - key);
      float *sum = sums + (cell - part.j.first / part.cell) * PANEL, *top = tops + (sum - sums);
      Vec total = load(sum), most = load(top);
      for (; i < end; ++i) total += weight[i], most = larger(weight[i], most);
      store(sum, total), store(top, most);
    }
  }

  static void put(Vec (&columns)[LANES], float* to, int64_t to_row, int64_t rows, int64_t keys) {
    transpose(columns);
    for (int64_t i = 0; i < rows; ++i) {
      if (keys == LANES) {
        store(to + i * to_row, columns[i]);
      } else {
        std::memcpy(to + i * to_row, &columns[i], keys * sizeof(float));
      }
    }
  }
};

static bool weights(const Problem& problem, const Part& part, bool (*pause)()) {
  PartOfWeights work{problem, part, (part.i.size() + PANEL - 1) / PANEL};
  return parallel(
      part.b.size() * part.h.size() * work.panels, problem.threads, work.scratch(),
      [](void* context, int64_t item, float* space) { static_cast<PartOfWeights*>(context)->panel(item, space); }, &work,
      pause);
}
