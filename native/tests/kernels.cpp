// The kernels of every build against plain loops, at sizes that leave something over in every loop.
#include "cases.h"
#include "found.h"
#include "parallel.h"

// In place of the threads: one item after another, each in exactly the scratch space that was asked for, in which every
// number that is read before it is written shows.
bool regard::parallel(int64_t count, int64_t, size_t floats, void (*work)(void*, int64_t, float*), void* context,
                      bool (*)()) {
  for (int64_t item = 0; item < count; ++item) {
    void* space = nullptr;
    if (posix_memalign(&space, 64, floats * sizeof(float))) return false;
    std::fill_n(static_cast<float*>(space), floats, NAN);
    work(context, item, static_cast<float*>(space));
    std::free(space);
  }
  return true;
}

namespace {

template <class Number>
void compare(const char* what, const std::vector<Number>& found, const std::vector<double>& expected,
             const check::Question& question, const regard::Kernels& build) {
  for (size_t n = 0; n < expected.size(); ++n)
    // sums of some hundred terms of size about 1
    CHECK(check::close(found[n], expected[n], 1e-5, 1e-5), "%s, %s of %s, number %zu: %g, not %g", build.name, what,
          (question.asked.name + (": " + question.sizes.name())).c_str(), n, found[n], expected[n]);
}

// What is told of weights that are not written, beside those that are.
void told(const check::Found& found, const check::Question& question, const regard::Kernels& build) {
  const check::Sizes& s = question.sizes;
  const int64_t panels = (s.n_q + build.panel - 1) / build.panel;
  for (int64_t head = 0; head < s.batch * s.heads; ++head) {
    for (int64_t j = 0; j < s.n_k; ++j) {
      double sum = 0, expected = 0;
      for (int64_t n = 0; n < panels; ++n) sum += found.received[(head * panels + n) * s.n_k + j];
      for (int64_t i = 0; i < s.n_q; ++i) expected += found.weights[(head * s.n_q + i) * s.n_k + j];
      CHECK(check::close(sum, expected, 1e-5, 1e-5), "%s: key %lld receives %g, not %g", build.name, (long long)j, sum,
            expected);
    }
    for (int64_t i = 0; i < s.n_q; ++i) {
      const int64_t row = head * s.n_q + i, first = row * s.n_k;
      int64_t best = -1;
      for (int64_t j = 0; j < s.n_k; ++j)
        if (found.scores[first + j] > (best < 0 ? -INFINITY : found.scores[first + best])) best = j;
      CHECK(found.at[row] == best, "%s: row %lld has its largest weight at %d, not %lld", build.name, (long long)row,
            found.at[row], (long long)best);
      const float most = best < 0 ? -1.0f : found.weights[first + best];
      CHECK(found.largest[row] == most, "%s: row %lld: %g, not %g", build.name, (long long)row, found.largest[row], most);
    }
  }
}

void ask(const check::Sizes& sizes, const check::Case& asked, bool rows_first) {
  const check::Question question(sizes, asked, rows_first);
  const check::Answer expected = question.answer();
  for (const regard::Kernels* build : check::builds()) {
    const check::Found found(question, *build, 1);
    CHECK(found.finished, "%s: unfinished", build->name);
    compare("output", found.output, expected.output, question, *build);
    compare("lse", found.lse, expected.lse, question, *build);
    compare("weights", found.weights, expected.weights, question, *build);
    compare("entropy", found.entropy, expected.entropy, question, *build);
    for (size_t n = 0; n < found.scores.size(); ++n)
      CHECK((found.scores[n] == -INFINITY) == (expected.weights[n] == 0.0), "%s: score %zu is %g", build->name, n,
            found.scores[n]);
    told(found, question, *build);
    compare("d_q", found.d_q, expected.d_q, question, *build);
    compare("d_k", found.d_k, expected.d_k, question, *build);
    compare("d_v", found.d_v, expected.d_v, question, *build);
    if (asked.additive != 0.0f) compare("d_u", found.d_u, expected.d_u, question, *build);
    if (!asked.learns) continue;
    compare("d_bias", found.d_bias, expected.d_bias, question, *build);
    compare("d_factors", found.d_factors, expected.d_factors, question, *build);
  }
}

}  // namespace

int main() {
  const int64_t lengths[] = {0, 1, 7, 23, 24, 25, 191, 193};
  std::vector<check::Case> cases = check::cases();
  cases.push_back(check::wild_values());
  bool rows_first = false;
  for (const check::Case& asked : cases) {
    for (const int64_t n_q : lengths)
      for (const int64_t n_k : lengths) ask({2, 2, 1, n_q, n_k, 8, 5}, asked, rows_first = !rows_first);
    for (const int64_t width : {1, 3, 8, 17, 24, 40, 80, 256, 320})
      ask({1, 4, 2, 25, 113, width, width % 3 ? width + 1 : width - 1}, asked, rows_first = !rows_first);
  }
  ask({2, 2, 2, 49, 97, 8, 0}, check::nothing_special(), false);  // values without a width
  for (const check::Case& asked : cases)
    for (const check::Sizes& sizes : {check::Sizes{0, 2, 1, 25, 30, 8, 5}, check::Sizes{2, 0, 0, 25, 30, 8, 5}})
      ask(sizes, asked, false);  // no batch, and no heads
  return check::verdict("kernels");
}
