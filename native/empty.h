// Calls without a single pair of a query and a key: some length is 0. A query then attends to nothing: its output is 0,
// its lse is -inf, and every gradient is 0. The other kernels divide by the number of key heads and rely on one pair.

static bool has_pairs(const Problem& p) { return p.batch && p.heads && p.key_heads && p.n_q && p.n_k; }

static int64_t rows_in(const Problem& p) { return p.batch * p.heads * p.n_q; }

static void clear_output(const Problem& p) {
  const int64_t bytes = rows_in(p) * p.value_width * (p.kind == FLOAT ? 4 : 2);
  if (bytes) std::memset(p.output, 0, bytes);
}

static bool forward_without_pairs(const Problem& p) {
  clear_output(p);
  std::fill_n(p.lse, rows_in(p), -INFINITY);
  return true;
}

static bool backward_without_pairs(const Problem& p) {
  std::fill_n(p.d_q, rows_in(p) * p.width, 0.0f);
  std::fill_n(p.d_k, p.batch * p.key_heads * p.n_k * p.width, 0.0f);
  std::fill_n(p.d_v, p.batch * p.key_heads * p.n_k * p.value_width, 0.0f);
  return true;
}

// The level of a row that attends to nothing, as the kernels in leveled.h give it.
static float level_of_nothing(Leveled::Kind kind) {
  if (kind == Leveled::POWERS) return INFINITY;
  return kind == Leveled::LARGEST || kind == Leveled::HARD ? -FLT_MAX : -INFINITY;
}

static bool leveled_without_pairs(const Problem& p, const Leveled& how) {
  if (how.kind == Leveled::RECEIVED) {
    std::fill_n(how.received, p.batch * p.heads * how.count * p.n_k, 0.0f);
  } else {
    clear_output(p);
  }
  std::fill_n(p.lse, rows_in(p), level_of_nothing(how.kind));
  return true;
}
