// Programs of the vector machine written by hand, with arrays exactly as long as the core may read them.
#pragma once

#include <memory>
#include <utility>

#include "check.h"
#include "program.h"

namespace check {

inline int32_t bits_of(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline int32_t bits_of(int32_t x) { return x; }
inline float float_of(int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

constexpr regard::Operand nothing{regard::NOTHING, 0};
inline regard::Operand in_register(int32_t r) { return {regard::REGISTER, r}; }
template <class Number>
regard::Operand number(Number x) {
  return {regard::NUMBER, bits_of(x)};
}

class Code {
 public:
  Code(int64_t batch, int64_t heads, int64_t n_q, int64_t n_k, int64_t panel)
      : batch_(batch), heads_(heads), n_q_(n_q), n_k_(n_k), padded_((n_q + panel - 1) / panel * panel) {}

  // f(b, h, i) for every query; beyond the last query the last number goes on.
  template <class F>
  regard::Operand lanes(const F& f) {
    const auto last_goes_on = [&](int64_t b, int64_t h, int64_t i) { return f(b, h, i < n_q_ ? i : n_q_ - 1); };
    lanes_.push_back(array(last_goes_on, padded_));
    return {regard::LANES_OF, int32_t(lanes_.size()) - 1};
  }
  template <class F>
  regard::Operand keys(const F& f) {
    keys_.push_back(array(f, n_k_));
    return {regard::KEYS_OF, int32_t(keys_.size()) - 1};
  }
  int32_t table(const void* numbers) {
    tables_.push_back(numbers);
    return int32_t(tables_.size()) - 1;
  }

  void add(regard::Op op, int32_t into, regard::Operand a, regard::Operand b = nothing, regard::Operand c = nothing,
           int32_t table = 0) {
    instructions_.push_back({op, into, table, 0, a, b, c});
    const int32_t used[] = {into, a.place == regard::REGISTER ? a.index : 0, b.place == regard::REGISTER ? b.index : 0,
                            c.place == regard::REGISTER ? c.index : 0};
    for (const int32_t r : used)
      if (r > program_.registers) program_.registers = r;
  }
  void end_rule() { program_.rule = program_.hiding = length(); }
  void end_mask() { program_.hiding = length(); }
  void end_slope() { slope_ = length(); }

  // Where gradients are added up, beginning with sum number 0.
  void sums(std::vector<regard::Sum> into) { sums_ = std::move(into); }

  // Valid as long as this lives and nothing is added.
  const regard::Program& program() {
    program_.instructions = instructions_.data();
    program_.end = length();
    program_.slope = slope_ < 0 ? program_.end : slope_;
    program_.sum_count = int64_t(sums_.size()), program_.sums = sums_.data();
    program_.lanes = lanes_.data();
    program_.keys = keys_.data();
    program_.tables = tables_.data();
    return program_;
  }

 private:
  int64_t length() const { return int64_t(instructions_.size()); }

  template <class F>
  regard::Numbers array(const F& f, int64_t length) {
    auto numbers = std::make_unique<std::vector<int32_t>>();
    numbers->reserve(batch_ * heads_ * length);
    for (int64_t b = 0; b < batch_; ++b)
      for (int64_t h = 0; h < heads_; ++h)
        for (int64_t n = 0; n < length; ++n) numbers->push_back(bits_of(f(b, h, n)));
    arrays_.push_back(std::move(numbers));
    return {arrays_.back()->data(), heads_ * length, length};
  }

  int64_t batch_, heads_, n_q_, n_k_, padded_;
  std::vector<regard::Instruction> instructions_;
  std::vector<regard::Numbers> lanes_, keys_;
  std::vector<const void*> tables_;
  std::vector<regard::Sum> sums_;
  int64_t slope_ = -1;
  std::vector<std::unique_ptr<std::vector<int32_t>>> arrays_;
  regard::Program program_{nullptr, 0, 0, 0, 0, 1, nullptr, nullptr, nullptr, 0, nullptr};  // register 1 is always there
};

}  // namespace check
