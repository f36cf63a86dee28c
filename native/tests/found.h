// What the builds answer to a question.
#pragma once

#include "question.h"

namespace check {

// The runs of keys that panels see, found by asking for every pair.
class Runs {
 public:
  Runs(const Question& question, const regard::Kernels& build) {
    const Sizes& s = question.sizes;
    const bool each = question.asked.differs_by_head;
    cover = {each ? s.batch : 1, each ? s.heads : 1, (s.n_q + build.panel - 1) / build.panel, nullptr, nullptr};
    starts_.push_back(0);
    for (int64_t b = 0; b < cover.batch; ++b)
      for (int64_t h = 0; h < cover.heads; ++h)
        for (int64_t first = 0; first < s.n_q; first += build.panel)
          add_panel(question, b, h, first, build);
    starts_.shrink_to_fit(), runs_.shrink_to_fit();
    cover.starts = starts_.data(), cover.runs = runs_.data();
  }

  regard::Cover cover;

 private:
  void add_panel(const Question& question, int64_t b, int64_t h, int64_t first, const regard::Kernels& build) {
    const int64_t n_q = question.sizes.n_q, n_k = question.sizes.n_k;
    const size_t begin = runs_.size();
    for (int64_t key = 0; key < n_k; key += build.chunk) {
      regard::Run run{int32_t(key), int32_t(std::min(n_k, key + build.chunk)), 0, int32_t(build.panel), 0};
      int64_t pairs = 0;
      for (int64_t i = first; i < std::min(n_q, first + build.panel); ++i)
        for (int64_t j = run.first; j < run.last; ++j) {
          if (!question.sees({b, h, i, j})) continue;
          const int32_t vector = int32_t((i - first) / build.lanes);
          ++pairs, run.low = std::min(run.low, vector), run.high = std::max(run.high, vector + 1);
        }
      if (!pairs) continue;
      const int64_t end = std::min(n_q, first + run.high * build.lanes), queries = end - first - run.low * build.lanes;
      run.partial = pairs < queries * (run.last - run.first);
      if (runs_.size() > begin && go_on(runs_.back(), run)) {
        runs_.back().last = run.last;
      } else {
        runs_.push_back(run);
      }
    }
    starts_.push_back(int64_t(runs_.size()));
  }

  static bool go_on(const regard::Run& one, const regard::Run& next) {
    return one.last == next.first && one.partial == next.partial && one.low == next.low && one.high == next.high;
  }

  std::vector<int64_t> starts_;
  std::vector<regard::Run> runs_;
};

// One build's answer to a question.
struct Found {
  std::vector<float> output, lse, d_q, d_k, d_v, d_bias, d_factors;
  std::vector<double> d_u;
  std::vector<float> scores, weights, entropy;
  std::vector<float> received, largest;  // without a tile: by panels, and of each row
  std::vector<int32_t> at;
  bool finished = true;

  Found(const Question& question, const regard::Kernels& build, int64_t threads, bool (*pause)() = nullptr) {
    const Sizes& s = question.sizes;
    const int64_t queries = s.batch * s.heads * s.n_q, keys = s.batch * s.key_heads * s.n_k;
    output.assign(queries * s.value_width, NAN), lse.assign(queries, NAN);
    // all of these are written, whatever they hold before
    d_q.assign(queries * s.width, NAN), d_k.assign(keys * s.width, NAN), d_v.assign(keys * s.value_width, NAN);
    d_bias.assign(s.n_q * s.n_k, 0), d_factors.assign(s.n_k, 0), d_u.assign(s.heads * s.width, 0);
    std::unique_ptr<Code> code;
    std::unique_ptr<Runs> runs;
    regard::Problem p{};
    p.batch = s.batch, p.heads = s.heads, p.key_heads = s.key_heads, p.n_q = s.n_q, p.n_k = s.n_k;
    p.width = s.width, p.value_width = s.value_width, p.threads = threads, p.scale = question.scale;
    p.q = question.q.place, p.k = question.k.place, p.v = question.v.place;
    p.cover = {1, 1, 0, nullptr, nullptr};
    if (question.asked.sees) {
      runs = std::make_unique<Runs>(question, build);
      p.cover = runs->cover;
    }
    if (question.asked.write) {
      code = std::make_unique<Code>(s.batch, s.heads, s.n_q, s.n_k, build.panel);
      question.asked.write(*code, question);
      if (question.asked.learns) code->sums({{d_bias.data(), s.n_q * s.n_k, 1}, {d_factors.data(), s.n_k, 2}});
      p.program = &code->program();
    }
    p.seed = Question::SEED, p.dropped = question.dropped(), p.kept_factor = question.kept_factor();
    if (question.asked.additive != 0.0f) p.u = question.u.data(), p.d_u = d_u.data();
    p.output = output.data(), p.lse = lse.data();
    finished = build.forward(p, pause);
    if (!finished) return;
    scores.assign(queries * s.n_k, NAN), weights.assign(queries * s.n_k, NAN), entropy.assign(queries, NAN);
    const bool hides = bool(question.asked.sees);
    const regard::Part::Range b{0, s.batch}, h{0, s.heads}, i{0, s.n_q}, j{0, s.n_k};
    finished = build.weights(p, {b, h, i, j, hides, scores.data(), weights.data(), entropy.data()}, pause);
    if (!finished) return;
    const int64_t panels = (s.n_q + build.panel - 1) / build.panel;
    received.assign(s.batch * s.heads * panels * s.n_k, NAN), largest.assign(queries, NAN), at.assign(queries, -2);
    regard::Part told{b, h, i, j, hides};
    told.received = received.data(), told.largest = largest.data(), told.at = at.data();
    finished = build.weights(p, told, pause);
    if (!finished) return;
    const std::vector<float> d_lse(queries);
    p.d_output = question.d_output.place, p.d_lse = d_lse.data();
    p.d_q = d_q.data(), p.d_k = d_k.data(), p.d_v = d_v.data();
    finished = build.backward(p, pause);
  }

  bool operator==(const Found& other) const {
    return output == other.output && lse == other.lse && d_q == other.d_q && d_k == other.d_k && d_v == other.d_v &&
           d_bias == other.d_bias && d_factors == other.d_factors && d_u == other.d_u;
  }
};

// The builds that this processor runs; what it does not run is said once.
inline const std::vector<const regard::Kernels*>& builds() {
  static const std::vector<const regard::Kernels*> found = [] {
    const struct {
      const char* name;
      const regard::Kernels* kernels;
    } all[] = {{"AVX-512", regard::avx512_kernels()},
               {"AVX2", regard::avx2_kernels()},
               {"portable", regard::portable_kernels()}};
    std::vector<const regard::Kernels*> here;
    for (const auto& build : all) {
      if (build.kernels) here.push_back(build.kernels);
      if (!build.kernels) std::printf("kernels for %s: skipped, this processor lacks it\n", build.name);
    }
    return here;
  }();
  return found;
}

}  // namespace check
