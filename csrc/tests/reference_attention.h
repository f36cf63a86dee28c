// Calls of the kernels, and their expected results from plain loops in double precision.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "abi.h"
#include "program_builder.h"

namespace check {

// A tensor (batch, heads, rows, channels), with gaps between the rows. Heads or rows come first in memory.
class StridedTensor {
 public:
  StridedTensor(int64_t batch, int64_t num_heads, int64_t rows, int64_t num_channels, bool rows_first,
                RandomFloats& random)
      : memory_(batch * num_heads * rows, num_channels, 3, random) {
    const int64_t row = memory_.row_stride, head_rows = std::max<int64_t>(rows, 1);
    strides = {memory_.data(), num_heads * head_rows * row, rows_first ? row : head_rows * row,
               rows_first ? num_heads * row : row};
  }

  const float* row(int64_t b, int64_t h, int64_t i) const {
    return static_cast<const float*>(strides.data) + b * strides.batch_stride + h * strides.head_stride +
           i * strides.row_stride;
  }
  float* row(int64_t b, int64_t h, int64_t i) {
    return const_cast<float*>(static_cast<const StridedTensor*>(this)->row(b, h, i));
  }

  // Rounds every number towards 0 to one of bfloat16.
  void truncate_to_bf16(int64_t batch, int64_t num_heads, int64_t rows, int64_t num_channels) {
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t h = 0; h < num_heads; ++h)
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t c = 0; c < num_channels; ++c) {
            uint32_t word;
            std::memcpy(&word, row(b, h, i) + c, sizeof word);
            word &= 0xffff0000;
            std::memcpy(row(b, h, i) + c, &word, sizeof word);
          }
  }

  regard::StridedRows strides;

 private:
  PaddedRows memory_;
};

// The numbers of a tensor in bfloat16, at the same strides; gaps between rows are NaN. Memory ends at the last number.
class Bf16Tensor {
 public:
  Bf16Tensor(const StridedTensor& from, int64_t batch, int64_t num_heads, int64_t rows, int64_t num_channels)
      : strides(from.strides) {
    const bool is_empty = !batch || !num_heads || !rows || !num_channels;
    const int64_t size = is_empty ? 1 : from.row(batch - 1, num_heads - 1, rows - 1) - from.row(0, 0, 0) + num_channels;
    memory_.assign(size, 0x7fff);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t h = 0; h < num_heads; ++h)
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t c = 0; c < num_channels; ++c) {
            uint32_t word;
            std::memcpy(&word, from.row(b, h, i) + c, sizeof word);
            memory_[from.row(b, h, i) - from.row(0, 0, 0) + c] = uint16_t(word >> 16);
          }
    memory_.shrink_to_fit();
    strides.data = memory_.data();
  }

  regard::StridedRows strides;

 private:
  std::vector<uint16_t> memory_;
};

struct CallSizes {
  int64_t batch, num_heads, num_kv_heads, n_q, n_k, head_dim, value_dim;

  std::string name() const {
    return std::to_string(num_heads) + "/" + std::to_string(num_kv_heads) + " heads, " + std::to_string(n_q) +
           " queries, " + std::to_string(n_k) + " keys, head_dim " + std::to_string(head_dim) + ", value_dim " +
           std::to_string(value_dim);
  }
};

// One query and one key.
struct Pair {
  int64_t b, h, i, j;
};

class ReferenceCall;

// The options of a call: its mask and score modifier, and a program that computes both.
struct TestCase {
  const char* name;
  std::function<bool(const CallSizes&, const Pair&)> is_visible;  // empty: every pair is visible
  bool differs_by_head = false;                                   // the mask, or by batch element
  std::function<double(double score, const CallSizes&, const Pair&)> score_mod, score_mod_derivative;
  std::function<void(ProgramBuilder&, const ReferenceCall&)> write_program;
  double dropout = 0.0;
  bool has_nonfinite_values = false;      // in values that no query attends to
  bool needs_captured_gradients = false;  // of a bias, and of a factor per key
  float additive_magnitude = 0.0f;        // other than 0: scores are additive, with q and k multiplied by this factor
};

inline float bias_at(int64_t i, int64_t j) { return std::sin(0.7f * float(i) + 0.3f * float(j)); }
inline bool visible_at(int64_t i, int64_t j) { return (i + 2 * j) % 5 != 0; }

// The hash that decides whether a weight is dropped; backends/shared/dropout.py has the formula.
inline uint32_t dropout_hash(uint64_t seed, const Pair& at) {
  const auto mix = [](uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
  };
  uint32_t hash = mix(mix(uint32_t(seed)) + uint32_t(seed >> 32));
  for (const int64_t index : {at.b, at.h, at.i}) hash = mix(hash + uint32_t(index));
  return mix(uint32_t(at.j) * (mix(hash ^ 0x9E3779B9u) | 1u) + hash);
}

struct ReferenceOutput {
  std::vector<double> output, lse, d_q, d_k, d_v, d_bias, d_factors, d_u, weights, entropy;
};

class ReferenceCall {
 public:
  static constexpr int64_t SEED = -0x123456789ABCDEFll;

  ReferenceCall(const CallSizes& sizes, const TestCase& test_case, bool rows_first = false, RandomFloats random = {})
      : sizes(sizes),
        test_case(test_case),
        scale(test_case.additive_magnitude != 0.0f ? 1.0 : 2.0 / std::sqrt(double(sizes.head_dim))),
        q(sizes.batch, sizes.num_heads, sizes.n_q, sizes.head_dim, rows_first, random),
        k(sizes.batch, sizes.num_kv_heads, sizes.n_k, sizes.head_dim, rows_first, random),
        v(sizes.batch, sizes.num_kv_heads, sizes.n_k, sizes.value_dim, !rows_first, random),
        d_output(sizes.batch, sizes.num_heads, sizes.n_q, sizes.value_dim, rows_first, random),
        bias(sizes.n_q * sizes.n_k),
        visible(sizes.n_q * sizes.n_k),
        u(sizes.num_heads * sizes.head_dim) {
    for (int64_t i = 0; i < sizes.n_q; ++i)
      for (int64_t j = 0; j < sizes.n_k; ++j)
        bias[i * sizes.n_k + j] = bias_at(i, j), visible[i * sizes.n_k + j] = visible_at(i, j);
    if (test_case.has_nonfinite_values) insert_nonfinite_values();
    for (size_t c = 0; c < u.size(); ++c) u[c] = 2.0f / std::sqrt(float(sizes.head_dim)) * std::cos(float(c));
    if (test_case.additive_magnitude != 0.0f)
      scale_rows(q, sizes.num_heads, sizes.n_q), scale_rows(k, sizes.num_kv_heads, sizes.n_k);
  }

  void truncate_to_bf16() {
    const CallSizes& s = sizes;
    q.truncate_to_bf16(s.batch, s.num_heads, s.n_q, s.head_dim);
    k.truncate_to_bf16(s.batch, s.num_kv_heads, s.n_k, s.head_dim);
    v.truncate_to_bf16(s.batch, s.num_kv_heads, s.n_k, s.value_dim);
    d_output.truncate_to_bf16(s.batch, s.num_heads, s.n_q, s.value_dim);
  }

  bool is_visible(const Pair& at) const { return !test_case.is_visible || test_case.is_visible(sizes, at); }

  int64_t dropout_threshold() const { return std::llround(test_case.dropout * 0x1p32); }
  double dropout_scale() const { return 1.0 / (1.0 - test_case.dropout); }

  ReferenceOutput reference_output() const {
    const CallSizes& s = sizes;
    ReferenceOutput a;
    a.output.resize(s.batch * s.num_heads * s.n_q * s.value_dim);
    a.lse.resize(s.batch * s.num_heads * s.n_q);
    a.d_q.resize(s.batch * s.num_heads * s.n_q * s.head_dim);
    a.d_k.resize(s.batch * s.num_kv_heads * s.n_k * s.head_dim);
    a.d_v.resize(s.batch * s.num_kv_heads * s.n_k * s.value_dim);
    a.d_bias.resize(s.n_q * s.n_k), a.d_factors.resize(s.n_k), a.d_u.resize(s.num_heads * s.head_dim);
    a.weights.resize(s.batch * s.num_heads * s.n_q * s.n_k), a.entropy.resize(s.batch * s.num_heads * s.n_q);
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.num_heads; ++h)
        for (int64_t i = 0; i < s.n_q; ++i) accumulate_query(a, b, h, i);
    return a;
  }

  const CallSizes sizes;
  const TestCase& test_case;
  const double scale;
  StridedTensor q, k, v, d_output;
  std::vector<float> bias;  // tables (queries, keys) that programs look up
  std::vector<uint8_t> visible;
  std::vector<float> u;  // of additive scores

 private:
  int64_t heads_per_kv_head() const { return sizes.num_heads / sizes.num_kv_heads; }

  // The factor of a weight under dropout: 0 or dropout_scale().
  double dropout_multiplier(const Pair& at) const {
    if (!dropout_threshold()) return 1.0;
    return dropout_hash(uint64_t(SEED), at) < uint64_t(dropout_threshold()) ? 0.0 : dropout_scale();
  }

  bool is_hidden_key(int64_t b, int64_t kv_head, int64_t j) const {
    for (int64_t h = kv_head * heads_per_kv_head(); h < (kv_head + 1) * heads_per_kv_head(); ++h)
      for (int64_t i = 0; i < sizes.n_q; ++i)
        if (is_visible({b, h, i, j})) return false;
    return true;
  }

  void insert_nonfinite_values() {
    for (int64_t b = 0; b < sizes.batch; ++b)
      for (int64_t h = 0; h < sizes.num_kv_heads; ++h)
        for (int64_t j = 0; j < sizes.n_k; ++j)
          if (is_hidden_key(b, h, j)) v.row(b, h, j)[j % sizes.value_dim] = j % 2 ? NAN : INFINITY;
  }

  void scale_rows(StridedTensor& x, int64_t num_heads, int64_t rows) const {
    for (int64_t b = 0; b < sizes.batch; ++b)
      for (int64_t h = 0; h < num_heads; ++h)
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t c = 0; c < sizes.head_dim; ++c) x.row(b, h, i)[c] *= test_case.additive_magnitude;
  }

  // A score, and its derivatives with respect to each channel of the query, of the key and of u.
  struct Channel {
    double query, key, u;
  };
  double score(const Pair& at, std::vector<Channel>& channels) const {
    const float *x = q.row(at.b, at.h, at.i), *y = k.row(at.b, at.h / heads_per_kv_head(), at.j),
                *w = &u[at.h * sizes.head_dim];
    double sum = 0.0;
    for (int64_t c = 0; c < sizes.head_dim; ++c) {
      const double h = std::tanh(double(x[c]) + y[c]), slope = w[c] * (1.0 - h * h);
      sum += test_case.additive_magnitude != 0.0f ? w[c] * h : double(x[c]) * y[c];
      channels[c] = test_case.additive_magnitude != 0.0f ? Channel{slope, slope, h} : Channel{y[c], x[c], 0.0};
    }
    return scale * sum;
  }

  static double product(const float* x, const float* y, int64_t num_channels) {
    double sum = 0.0;
    for (int64_t c = 0; c < num_channels; ++c) sum += double(x[c]) * y[c];
    return sum;
  }

  void accumulate_query(ReferenceOutput& a, int64_t b, int64_t h, int64_t i) const {
    const CallSizes& s = sizes;
    const int64_t group = h / heads_per_kv_head(), row = (b * s.num_heads + h) * s.n_q + i;
    std::vector<double> weights(s.n_k), derivatives(s.n_k, 1.0);
    std::vector<Channel> channels(s.head_dim);
    double row_max = -INFINITY, total = 0.0;
    for (int64_t j = 0; j < s.n_k; ++j) {
      const double score = this->score({b, h, i, j}, channels);
      weights[j] = !is_visible({b, h, i, j}) ? -INFINITY
                   : test_case.score_mod     ? test_case.score_mod(score, s, {b, h, i, j})
                                             : score;
      if (test_case.score_mod_derivative) derivatives[j] = test_case.score_mod_derivative(score, s, {b, h, i, j});
      row_max = std::max(row_max, weights[j]);
    }
    for (double& w : weights) w = w == -INFINITY ? 0.0 : std::exp(w - row_max), total += w;
    a.lse[row] = total ? row_max + std::log(total) : -INFINITY;
    double delta = 0.0;
    std::vector<double> d_weights(s.n_k);
    for (int64_t j = 0; j < s.n_k; ++j) {
      if (!weights[j]) continue;  // hidden values are not read
      weights[j] /= total;
      a.weights[row * s.n_k + j] = weights[j], a.entropy[row] -= weights[j] * std::log(weights[j]);
      const double multiplier = dropout_multiplier({b, h, i, j});
      d_weights[j] = multiplier * product(d_output.row(b, h, i), v.row(b, group, j), s.value_dim);
      delta += weights[j] * d_weights[j];
      for (int64_t c = 0; c < s.value_dim; ++c) {
        a.output[row * s.value_dim + c] += multiplier * weights[j] * v.row(b, group, j)[c];
        a.d_v[((b * s.num_kv_heads + group) * s.n_k + j) * s.value_dim + c] +=
            multiplier * weights[j] * d_output.row(b, h, i)[c];
      }
    }
    for (int64_t j = 0; j < s.n_k; ++j) {
      const double d_modified = weights[j] * (d_weights[j] - delta), d_score = d_modified * derivatives[j] * scale;
      a.d_bias[i * s.n_k + j] += d_modified;
      a.d_factors[j] += d_modified * score({b, h, i, j}, channels);
      for (int64_t c = 0; c < s.head_dim; ++c) {
        a.d_q[row * s.head_dim + c] += d_score * channels[c].query;
        a.d_k[((b * s.num_kv_heads + group) * s.n_k + j) * s.head_dim + c] += d_score * channels[c].key;
        a.d_u[h * s.head_dim + c] += d_score * channels[c].u;
      }
    }
  }
};

}  // namespace check
