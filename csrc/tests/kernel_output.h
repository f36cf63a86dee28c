// The results of a build for a call.
#pragma once

#include "dispatch.h"
#include "kernel_table.h"
#include "reference_attention.h"

namespace check {

// The runs of keys that panels attend to, computed pair by pair.
class PanelRuns {
 public:
  PanelRuns(const ReferenceCall& call, const regard::KernelTable& build) {
    const CallSizes& s = call.sizes;
    const bool each = call.test_case.differs_by_head;
    coverage = {each ? s.batch : 1, each ? s.num_heads : 1, (s.n_q + build.panel_queries - 1) / build.panel_queries,
                nullptr, nullptr};
    run_offsets_.push_back(0);
    for (int64_t b = 0; b < coverage.batch; ++b)
      for (int64_t h = 0; h < coverage.num_heads; ++h)
        for (int64_t query_begin = 0; query_begin < s.n_q; query_begin += build.panel_queries)
          add_panel(call, b, h, query_begin, build);
    run_offsets_.shrink_to_fit(), runs_.shrink_to_fit();
    coverage.run_offsets = run_offsets_.data(), coverage.runs = runs_.data();
  }

  regard::PanelCoverage coverage;

 private:
  void add_panel(const ReferenceCall& call, int64_t b, int64_t h, int64_t query_begin,
                 const regard::KernelTable& build) {
    const int64_t n_q = call.sizes.n_q, n_k = call.sizes.n_k;
    const size_t begin = runs_.size();
    for (int64_t key = 0; key < n_k; key += build.chunk_keys) {
      regard::KeyRun run{int32_t(key), int32_t(std::min(n_k, key + build.chunk_keys)), 0, int32_t(build.panel_queries),
                         0};
      int64_t pairs = 0;
      for (int64_t i = query_begin; i < std::min(n_q, query_begin + build.panel_queries); ++i)
        for (int64_t j = run.begin; j < run.end; ++j) {
          if (!call.is_visible({b, h, i, j})) continue;
          const int32_t vector = int32_t((i - query_begin) / build.lanes);
          ++pairs, run.vector_begin = std::min(run.vector_begin, vector),
                   run.vector_end = std::max(run.vector_end, vector + 1);
        }
      if (!pairs) continue;
      const int64_t end = std::min(n_q, query_begin + run.vector_end * build.lanes),
                    queries = end - query_begin - run.vector_begin * build.lanes;
      run.is_partial = pairs < queries * (run.end - run.begin);
      if (runs_.size() > begin && can_extend(runs_.back(), run)) {
        runs_.back().end = run.end;
      } else {
        runs_.push_back(run);
      }
    }
    run_offsets_.push_back(int64_t(runs_.size()));
  }

  static bool can_extend(const regard::KeyRun& last, const regard::KeyRun& next) {
    return last.end == next.begin && last.is_partial == next.is_partial && last.vector_begin == next.vector_begin &&
           last.vector_end == next.vector_end;
  }

  std::vector<int64_t> run_offsets_;
  std::vector<regard::KeyRun> runs_;
};

// The results of one build for a call: forward, weights and backward.
struct KernelOutput {
  std::vector<float> output, lse, d_q, d_k, d_v, d_bias, d_factors;
  std::vector<double> d_u;
  std::vector<float> scores, weights, entropy;
  std::vector<float> column_sums, max_weight;  // without writing weights: by panels, and of each row
  std::vector<int32_t> max_weight_key;
  bool is_complete = true;

  // With BF16 as `dtype`, the kernels read copies of the inputs in bfloat16.
  KernelOutput(const ReferenceCall& call, const regard::KernelTable& build, int64_t num_threads,
               bool (*should_stop)() = nullptr, regard::DType dtype = regard::FP32) {
    const CallSizes& s = call.sizes;
    const int64_t queries = s.batch * s.num_heads * s.n_q, keys = s.batch * s.num_kv_heads * s.n_k;
    output.assign(queries * s.value_dim, NAN), lse.assign(queries, NAN);
    // the kernel writes every element
    d_q.assign(queries * s.head_dim, NAN), d_k.assign(keys * s.head_dim, NAN), d_v.assign(keys * s.value_dim, NAN);
    d_bias.assign(s.n_q * s.n_k, 0), d_factors.assign(s.n_k, 0), d_u.assign(s.num_heads * s.head_dim, 0);
    std::unique_ptr<ProgramBuilder> builder;
    std::unique_ptr<PanelRuns> runs;
    regard::AttentionParams p{};
    p.batch = s.batch, p.num_heads = s.num_heads, p.num_kv_heads = s.num_kv_heads, p.n_q = s.n_q, p.n_k = s.n_k;
    p.head_dim = s.head_dim, p.value_dim = s.value_dim, p.num_threads = num_threads, p.scale = call.scale;
    p.q = call.q.strides, p.k = call.k.strides, p.v = call.v.strides, p.d_output = call.d_output.strides;
    std::vector<Bf16Tensor> bf16;
    if (dtype == regard::BF16) {
      p.dtype = dtype;
      bf16.emplace_back(call.q, s.batch, s.num_heads, s.n_q, s.head_dim), p.q = bf16.back().strides;
      bf16.emplace_back(call.k, s.batch, s.num_kv_heads, s.n_k, s.head_dim), p.k = bf16.back().strides;
      bf16.emplace_back(call.v, s.batch, s.num_kv_heads, s.n_k, s.value_dim), p.v = bf16.back().strides;
      bf16.emplace_back(call.d_output, s.batch, s.num_heads, s.n_q, s.value_dim), p.d_output = bf16.back().strides;
    }
    p.coverage = {1, 1, 0, nullptr, nullptr};
    if (call.test_case.is_visible) {
      runs = std::make_unique<PanelRuns>(call, build);
      p.coverage = runs->coverage;
    }
    if (call.test_case.write_program) {
      builder = std::make_unique<ProgramBuilder>(s.batch, s.num_heads, s.n_q, s.n_k, build.panel_queries);
      call.test_case.write_program(*builder, call);
      if (call.test_case.needs_captured_gradients)
        builder->set_gradient_sums({{d_bias.data(), s.n_q * s.n_k, regard::ConflictScope::HEADS},
                                    {d_factors.data(), s.n_k, regard::ConflictScope::ANY}});
      p.program = &builder->program();
    }
    p.seed = ReferenceCall::SEED, p.dropout_threshold = call.dropout_threshold(),
    p.dropout_scale = call.dropout_scale();
    if (call.test_case.additive_magnitude != 0.0f) p.u = call.u.data(), p.d_u = d_u.data();
    p.output = output.data(), p.row_statistic = lse.data();
    is_complete = build.forward(p, should_stop);
    if (!is_complete) return;
    scores.assign(queries * s.n_k, NAN), weights.assign(queries * s.n_k, NAN), entropy.assign(queries, NAN);
    const bool is_partial = bool(call.test_case.is_visible);
    const regard::WeightTileParams::Range b{0, s.batch}, h{0, s.num_heads}, i{0, s.n_q}, j{0, s.n_k};
    is_complete =
        build.weights(p, {b, h, i, j, is_partial, scores.data(), weights.data(), entropy.data()}, should_stop);
    if (!is_complete) return;
    const int64_t num_panels = (s.n_q + build.panel_queries - 1) / build.panel_queries;
    column_sums.assign(s.batch * s.num_heads * num_panels * s.n_k, NAN), max_weight.assign(queries, NAN),
        max_weight_key.assign(queries, -2);
    regard::WeightTileParams statistics{b, h, i, j, is_partial};
    statistics.column_sums = column_sums.data(), statistics.max_weight = max_weight.data(),
    statistics.max_weight_key = max_weight_key.data();
    is_complete = build.weights(p, statistics, should_stop);
    if (!is_complete) return;
    const std::vector<float> d_row_statistic(queries);
    p.d_row_statistic = d_row_statistic.data();
    p.d_q = d_q.data(), p.d_k = d_k.data(), p.d_v = d_v.data();
    is_complete = build.backward(p, should_stop);
  }

  bool operator==(const KernelOutput& other) const {
    return output == other.output && lse == other.lse && d_q == other.d_q && d_k == other.d_k && d_v == other.d_v &&
           d_bias == other.d_bias && d_factors == other.d_factors && d_u == other.d_u;
  }
};

}  // namespace check
