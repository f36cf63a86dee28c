// Questions for the kernels, and their answers from plain loops in double precision.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "code.h"
#include "problem.h"

namespace check {

// (batch, heads, rows, width), rows with gaps between them; in memory either heads or rows come first.
class Tensor {
 public:
  Tensor(int64_t batch, int64_t heads, int64_t rows, int64_t width, bool rows_first, Dice& dice)
      : memory_(batch * heads * rows, width, 3, dice) {
    const int64_t row = memory_.row, whole = std::max<int64_t>(rows, 1);
    place = {memory_.data(), heads * whole * row, rows_first ? row : whole * row, rows_first ? heads * row : row};
  }

  const float* row(int64_t b, int64_t h, int64_t i) const {
    return static_cast<const float*>(place.at) + b * place.batch + h * place.head + i * place.row;
  }
  float* row(int64_t b, int64_t h, int64_t i) {
    return const_cast<float*>(static_cast<const Tensor*>(this)->row(b, h, i));
  }

  regard::Rows place;

 private:
  Rows memory_;
};

struct Sizes {
  int64_t batch, heads, key_heads, n_q, n_k, width, value_width;

  std::string name() const {
    return std::to_string(heads) + "/" + std::to_string(key_heads) + " heads, " + std::to_string(n_q) + " queries, " +
           std::to_string(n_k) + " keys, widths " + std::to_string(width) + " and " + std::to_string(value_width);
  }
};

// One query and one key.
struct Pair {
  int64_t b, h, i, j;
};

class Question;

// What is asked beyond the sizes: who sees whom, how scores change, and both once more as a program.
struct Case {
  const char* name;
  std::function<bool(const Sizes&, const Pair&)> sees;  // everybody sees everything, where it is empty
  bool differs_by_head = false;                         // or by batch element
  std::function<double(double score, const Sizes&, const Pair&)> rule, slope;
  std::function<void(Code&, const Question&)> write;
  double dropout = 0.0;
  bool wild = false;    // whether values that nobody sees are not finite
  bool learns = false;  // whether the gradients of a bias and of factors a key are added up
  float additive = 0.0f;  // other than 0, scores are additive, of numbers so many times as large
};

inline float bias_at(int64_t i, int64_t j) { return std::sin(0.7f * float(i) + 0.3f * float(j)); }
inline bool seen_at(int64_t i, int64_t j) { return (i + 2 * j) % 5 != 0; }

// The word that decides over one weight, as engine/dropout.py writes it down.
inline uint32_t dropout_word(uint64_t seed, const Pair& at) {
  const auto mix = [](uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
  };
  uint32_t one = mix(mix(uint32_t(seed)) + uint32_t(seed >> 32));
  for (const int64_t index : {at.b, at.h, at.i}) one = mix(one + uint32_t(index));
  return mix(uint32_t(at.j) * (mix(one ^ 0x9E3779B9u) | 1u) + one);
}

struct Answer {
  std::vector<double> output, lse, d_q, d_k, d_v, d_bias, d_factors, d_u, weights, entropy;
};

class Question {
 public:
  static constexpr int64_t SEED = -0x123456789ABCDEFll;

  Question(const Sizes& sizes, const Case& asked, bool rows_first = false, Dice dice = {})
      : sizes(sizes),
        asked(asked),
        scale(asked.additive != 0.0f ? 1.0 : 2.0 / std::sqrt(double(sizes.width))),
        q(sizes.batch, sizes.heads, sizes.n_q, sizes.width, rows_first, dice),
        k(sizes.batch, sizes.key_heads, sizes.n_k, sizes.width, rows_first, dice),
        v(sizes.batch, sizes.key_heads, sizes.n_k, sizes.value_width, !rows_first, dice),
        d_output(sizes.batch, sizes.heads, sizes.n_q, sizes.value_width, rows_first, dice),
        bias(sizes.n_q * sizes.n_k),
        seen(sizes.n_q * sizes.n_k),
        u(sizes.heads * sizes.width) {
    for (int64_t i = 0; i < sizes.n_q; ++i)
      for (int64_t j = 0; j < sizes.n_k; ++j)
        bias[i * sizes.n_k + j] = bias_at(i, j), seen[i * sizes.n_k + j] = seen_at(i, j);
    if (asked.wild) make_wild();
    for (size_t c = 0; c < u.size(); ++c) u[c] = 2.0f / std::sqrt(float(sizes.width)) * std::cos(float(c));
    if (asked.additive != 0.0f) stretch(q, sizes.heads, sizes.n_q), stretch(k, sizes.key_heads, sizes.n_k);
  }

  bool sees(const Pair& at) const { return !asked.sees || asked.sees(sizes, at); }

  int64_t dropped() const { return std::llround(asked.dropout * 0x1p32); }
  double kept_factor() const { return 1.0 / (1.0 - asked.dropout); }

  Answer answer() const {
    const Sizes& s = sizes;
    Answer a;
    a.output.resize(s.batch * s.heads * s.n_q * s.value_width);
    a.lse.resize(s.batch * s.heads * s.n_q);
    a.d_q.resize(s.batch * s.heads * s.n_q * s.width);
    a.d_k.resize(s.batch * s.key_heads * s.n_k * s.width);
    a.d_v.resize(s.batch * s.key_heads * s.n_k * s.value_width);
    a.d_bias.resize(s.n_q * s.n_k), a.d_factors.resize(s.n_k), a.d_u.resize(s.heads * s.width);
    a.weights.resize(s.batch * s.heads * s.n_q * s.n_k), a.entropy.resize(s.batch * s.heads * s.n_q);
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.heads; ++h)
        for (int64_t i = 0; i < s.n_q; ++i) add_query(a, b, h, i);
    return a;
  }

  const Sizes sizes;
  const Case& asked;
  const double scale;
  Tensor q, k, v, d_output;
  std::vector<float> bias;    // tables of (queries, keys) for programs to look up
  std::vector<uint8_t> seen;
  std::vector<float> u;  // of additive scores

 private:
  int64_t sharing() const { return sizes.heads / sizes.key_heads; }

  // How much of a weight is left after dropout: nothing, or more than all.
  double kept(const Pair& at) const {
    if (!dropped()) return 1.0;
    return dropout_word(uint64_t(SEED), at) < uint64_t(dropped()) ? 0.0 : kept_factor();
  }

  bool seen_by_nobody(int64_t b, int64_t key_head, int64_t j) const {
    for (int64_t h = key_head * sharing(); h < (key_head + 1) * sharing(); ++h)
      for (int64_t i = 0; i < sizes.n_q; ++i)
        if (sees({b, h, i, j})) return false;
    return true;
  }

  void make_wild() {
    for (int64_t b = 0; b < sizes.batch; ++b)
      for (int64_t h = 0; h < sizes.key_heads; ++h)
        for (int64_t j = 0; j < sizes.n_k; ++j)
          if (seen_by_nobody(b, h, j)) v.row(b, h, j)[j % sizes.value_width] = j % 2 ? NAN : INFINITY;
  }

  void stretch(Tensor& x, int64_t heads, int64_t rows) const {
    for (int64_t b = 0; b < sizes.batch; ++b)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t c = 0; c < sizes.width; ++c) x.row(b, h, i)[c] *= asked.additive;
  }

  // A score, and what each channel has to do with it: the derivatives by the query's, the key's and u's number.
  struct Channel {
    double query, key, u;
  };
  double score(const Pair& at, std::vector<Channel>& channels) const {
    const float *x = q.row(at.b, at.h, at.i), *y = k.row(at.b, at.h / sharing(), at.j), *w = &u[at.h * sizes.width];
    double sum = 0.0;
    for (int64_t c = 0; c < sizes.width; ++c) {
      const double h = std::tanh(double(x[c]) + y[c]), slope = w[c] * (1.0 - h * h);
      sum += asked.additive != 0.0f ? w[c] * h : double(x[c]) * y[c];
      channels[c] = asked.additive != 0.0f ? Channel{slope, slope, h} : Channel{y[c], x[c], 0.0};
    }
    return scale * sum;
  }

  static double product(const float* x, const float* y, int64_t width) {
    double sum = 0.0;
    for (int64_t c = 0; c < width; ++c) sum += double(x[c]) * y[c];
    return sum;
  }

  void add_query(Answer& a, int64_t b, int64_t h, int64_t i) const {
    const Sizes& s = sizes;
    const int64_t group = h / sharing(), row = (b * s.heads + h) * s.n_q + i;
    std::vector<double> weights(s.n_k), slopes(s.n_k, 1.0);
    std::vector<Channel> channels(s.width);
    double top = -INFINITY, total = 0.0;
    for (int64_t j = 0; j < s.n_k; ++j) {
      const double score = this->score({b, h, i, j}, channels);
      weights[j] = !sees({b, h, i, j}) ? -INFINITY : asked.rule ? asked.rule(score, s, {b, h, i, j}) : score;
      if (asked.slope) slopes[j] = asked.slope(score, s, {b, h, i, j});
      top = std::max(top, weights[j]);
    }
    for (double& w : weights) w = w == -INFINITY ? 0.0 : std::exp(w - top), total += w;
    a.lse[row] = total ? top + std::log(total) : -INFINITY;
    double level = 0.0;
    std::vector<double> d_weights(s.n_k);
    for (int64_t j = 0; j < s.n_k; ++j) {
      if (!weights[j]) continue;  // what is hidden is not even read
      weights[j] /= total;
      a.weights[row * s.n_k + j] = weights[j], a.entropy[row] -= weights[j] * std::log(weights[j]);
      const double left = kept({b, h, i, j});
      d_weights[j] = left * product(d_output.row(b, h, i), v.row(b, group, j), s.value_width);
      level += weights[j] * d_weights[j];
      for (int64_t c = 0; c < s.value_width; ++c) {
        a.output[row * s.value_width + c] += left * weights[j] * v.row(b, group, j)[c];
        a.d_v[((b * s.key_heads + group) * s.n_k + j) * s.value_width + c] +=
            left * weights[j] * d_output.row(b, h, i)[c];
      }
    }
    for (int64_t j = 0; j < s.n_k; ++j) {
      const double arriving = weights[j] * (d_weights[j] - level), d_score = arriving * slopes[j] * scale;
      a.d_bias[i * s.n_k + j] += arriving;
      a.d_factors[j] += arriving * score({b, h, i, j}, channels);
      for (int64_t c = 0; c < s.width; ++c) {
        a.d_q[row * s.width + c] += d_score * channels[c].query;
        a.d_k[((b * s.key_heads + group) * s.n_k + j) * s.width + c] += d_score * channels[c].key;
        a.d_u[h * s.width + c] += d_score * channels[c].u;
      }
    }
  }
};

}  // namespace check
