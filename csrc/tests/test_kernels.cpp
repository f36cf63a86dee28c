// Compares the kernels of every build with plain loops, at sizes that leave a remainder in every loop.
#include "cases.h"
#include "dispatch.h"
#include "kernel_output.h"
#include "parallel.h"

// Replaces the threads: runs one item after another, each in a scratch buffer of exactly the requested size. The buffer
// is filled with NaN, so that reading a float before writing it shows.
bool regard::parallel_for(int64_t num_items, int64_t, size_t scratch_floats, void (*work)(void*, int64_t, float*),
                          void* context, bool (*)()) {
  for (int64_t item = 0; item < num_items; ++item) {
    void* scratch = nullptr;
    if (posix_memalign(&scratch, 64, scratch_floats * sizeof(float))) return false;
    std::fill_n(static_cast<float*>(scratch), scratch_floats, NAN);
    work(context, item, static_cast<float*>(scratch));
    std::free(scratch);
  }
  return true;
}

namespace {

// The default tolerance is for sums of some hundred terms of size about 1.
template <class Number>
void compare(const char* what, const std::vector<Number>& actual, const std::vector<double>& expected,
             const check::ReferenceCall& call, const regard::KernelTable& build, double tolerance = 1e-5) {
  for (size_t n = 0; n < expected.size(); ++n)
    CHECK(check::is_close(actual[n], expected[n], tolerance, tolerance), "%s, %s of %s, element %zu: %g, not %g",
          build.name, what, (call.test_case.name + (": " + call.sizes.name())).c_str(), n, actual[n], expected[n]);
}

// Compares the statistics of weights that are not written with the weights of the other call.
void check_weight_statistics(const check::KernelOutput& actual, const check::ReferenceCall& call,
                             const regard::KernelTable& build) {
  const check::CallSizes& s = call.sizes;
  const int64_t num_panels = (s.n_q + build.panel_queries - 1) / build.panel_queries;
  for (int64_t head = 0; head < s.batch * s.num_heads; ++head) {
    for (int64_t j = 0; j < s.n_k; ++j) {
      double sum = 0, expected = 0;
      for (int64_t n = 0; n < num_panels; ++n) sum += actual.column_sums[(head * num_panels + n) * s.n_k + j];
      for (int64_t i = 0; i < s.n_q; ++i) expected += actual.weights[(head * s.n_q + i) * s.n_k + j];
      CHECK(check::is_close(sum, expected, 1e-5, 1e-5), "%s: column sum of key %lld is %g, not %g", build.name,
            (long long)j, sum, expected);
    }
    for (int64_t i = 0; i < s.n_q; ++i) {
      const int64_t row = head * s.n_q + i, first = row * s.n_k;
      int64_t best = -1;
      for (int64_t j = 0; j < s.n_k; ++j)
        if (actual.scores[first + j] > (best < 0 ? -INFINITY : actual.scores[first + best])) best = j;
      CHECK(actual.max_weight_key[row] == best, "%s: row %lld has its largest weight at %d, not %lld", build.name,
            (long long)row, actual.max_weight_key[row], (long long)best);
      const float max_weight = best < 0 ? -1.0f : actual.weights[first + best];
      CHECK(actual.max_weight[row] == max_weight, "%s: row %lld: %g, not %g", build.name, (long long)row,
            actual.max_weight[row], max_weight);
    }
  }
}

void check_call(const check::CallSizes& sizes, const check::TestCase& test_case, bool rows_first) {
  const check::ReferenceCall call(sizes, test_case, rows_first);
  const check::ReferenceOutput expected = call.reference_output();
  for (const regard::KernelTable* build : regard::supported_builds()) {
    const check::KernelOutput actual(call, *build, 1);
    CHECK(actual.is_complete, "%s: not complete", build->name);
    compare("output", actual.output, expected.output, call, *build);
    compare("lse", actual.lse, expected.lse, call, *build);
    compare("weights", actual.weights, expected.weights, call, *build);
    compare("entropy", actual.entropy, expected.entropy, call, *build);
    for (size_t n = 0; n < actual.scores.size(); ++n)
      CHECK((actual.scores[n] == -INFINITY) == (expected.weights[n] == 0.0), "%s: score %zu is %g", build->name, n,
            actual.scores[n]);
    check_weight_statistics(actual, call, *build);
    compare("d_q", actual.d_q, expected.d_q, call, *build);
    compare("d_k", actual.d_k, expected.d_k, call, *build);
    compare("d_v", actual.d_v, expected.d_v, call, *build);
    if (test_case.additive_magnitude != 0.0f) compare("d_u", actual.d_u, expected.d_u, call, *build);
    if (!test_case.needs_captured_gradients) continue;
    compare("d_bias", actual.d_bias, expected.d_bias, call, *build);
    compare("d_factors", actual.d_factors, expected.d_factors, call, *build);
  }
}

// Inputs in bfloat16. Weights are rounded to 8 bits, and so are gradients of scores: an element is off by some
// thousandths of the terms of its sum, which are of size about 1.
void check_bf16_call(const check::CallSizes& sizes, const check::TestCase& test_case, bool rows_first) {
  check::ReferenceCall call(sizes, test_case, rows_first);
  call.truncate_to_bf16();
  const check::ReferenceOutput expected = call.reference_output();
  for (const regard::KernelTable* build : regard::supported_builds()) {
    const check::KernelOutput actual(call, *build, 1, nullptr, regard::BF16);
    CHECK(actual.is_complete, "%s: not complete", build->name);
    compare("output in bfloat16", actual.output, expected.output, call, *build, 0.02);
    compare("lse in bfloat16", actual.lse, expected.lse, call, *build, 2e-5);
    compare("d_q in bfloat16", actual.d_q, expected.d_q, call, *build, 0.05);
    compare("d_k in bfloat16", actual.d_k, expected.d_k, call, *build, 0.05);
    compare("d_v in bfloat16", actual.d_v, expected.d_v, call, *build, 0.05);
    if (!test_case.needs_captured_gradients) continue;
    compare("d_bias in bfloat16", actual.d_bias, expected.d_bias, call, *build, 0.05);
    compare("d_factors in bfloat16", actual.d_factors, expected.d_factors, call, *build, 0.1);
  }
}

}  // namespace

int main() {
  const int64_t lengths[] = {0, 1, 7, 23, 24, 25, 191, 193};
  std::vector<check::TestCase> cases = check::cases();
  cases.push_back(check::nonfinite_values());
  bool rows_first = false;
  for (const check::TestCase& test_case : cases) {
    for (const int64_t n_q : lengths)
      for (const int64_t n_k : lengths) check_call({2, 2, 1, n_q, n_k, 8, 5}, test_case, rows_first = !rows_first);
    for (const int64_t head_dim : {1, 3, 8, 17, 24, 40, 80, 256, 320})
      check_call({1, 4, 2, 25, 113, head_dim, head_dim % 3 ? head_dim + 1 : head_dim - 1}, test_case,
                 rows_first = !rows_first);
  }
  for (const check::TestCase& test_case : cases) {
    for (const int64_t n_q : {1, 3, 48, 61, 193, 240})
      for (const int64_t n_k : {1, 17, 96, 97, 257, 530})
        check_bf16_call({1, 2, 1, n_q, n_k, 12, 7}, test_case, rows_first = !rows_first);
    for (const int64_t head_dim : {1, 3, 8, 17, 32, 64, 65, 130})
      check_bf16_call({1, 4, 2, 25, 113, head_dim, head_dim % 3 ? head_dim + 1 : head_dim - 1}, test_case,
                      rows_first = !rows_first);
    for (const int64_t n_q : {1, 5}) check_bf16_call({2, 2, 1, n_q, 600, 64, 32}, test_case, true);
  }
  check_call({2, 2, 2, 49, 97, 8, 0}, check::plain(), false);  // values without channels
  check_bf16_call({2, 2, 2, 49, 97, 8, 0}, check::plain(), false);
  for (const check::TestCase& test_case : cases)
    for (const check::CallSizes& sizes :
         {check::CallSizes{0, 2, 1, 25, 30, 8, 5}, check::CallSizes{2, 0, 0, 25, 30, 8, 5}})
      check_call(sizes, test_case, false);  // no batch, and no heads
  return check::exit_status("kernels");
}
