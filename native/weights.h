// A part of the matrix of weights, w = exp(s - lse), for whoever wants to see it: rows of keys, query by query.

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
    float lse[PANEL], entropy[PANEL] = {};
    for (int64_t i = 0; i < lanes; ++i) {
      const float here = p.lse[(b * p.heads + h) * p.n_q + first + std::min(i, count - 1)];
      lse[i] = here == -INFINITY ? INFINITY : here;  // a query that sees nothing weighs nothing
    }
    const int64_t row = head * part.i.size() + first - part.i.first;
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
          write(scores + j * LANES, N * LANES, key, keys, std::min<int64_t>(LANES, count - j * LANES), lse + j * LANES,
                place + j * LANES * part.j.size(), entropy + j * LANES, sums + j * LANES, tops + j * LANES);
      });
    }
    std::copy_n(entropy, count, part.entropy + row);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < part.cells(); ++c) {
        part.cell_sums[(row + i) * part.cells() + c] = sums[c * PANEL + i];
        part.cell_tops[(row + i) * part.cells() + c] = tops[c * PANEL + i];
      }
  }

  // Scores of some keys and a vector of queries, and their weights, from columns of lanes to rows of keys.
  void write(const float* from, int64_t from_row, int64_t key, int64_t keys, int64_t count, const float* lse,
             int64_t place, float* entropy, float* cell_sums, float* cell_tops) const {
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
      put(score, part.scores + place + t, to_row, count, here);
      put(weight, part.weights + place + t, to_row, count, here);
    }
    store(entropy, load(entropy) + sum);
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
