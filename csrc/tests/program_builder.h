// Builds programs of the tile interpreter by hand. Their arrays are exactly as long as the core may read.
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

constexpr regard::Operand no_operand{regard::NONE, 0};
inline regard::Operand in_register(int32_t r) { return {regard::REGISTER, r}; }
template <class Value>
regard::Operand immediate(Value x) {
  return {regard::IMMEDIATE, bits_of(x)};
}

class ProgramBuilder {
 public:
  ProgramBuilder(int64_t batch, int64_t num_heads, int64_t n_q, int64_t n_k, int64_t panel_queries)
      : batch_(batch),
        num_heads_(num_heads),
        n_q_(n_q),
        n_k_(n_k),
        padded_n_q_((n_q + panel_queries - 1) / panel_queries * panel_queries) {}

  // An array of f(b, h, i) for every query, padded with the value of the last query.
  template <class F>
  regard::Operand per_query(const F& f) {
    const auto padded = [&](int64_t b, int64_t h, int64_t i) { return f(b, h, i < n_q_ ? i : n_q_ - 1); };
    per_query_.push_back(array(padded, padded_n_q_));
    return {regard::PER_QUERY, int32_t(per_query_.size()) - 1};
  }
  // An array of f(b, h, j) for every key.
  template <class F>
  regard::Operand per_key(const F& f) {
    per_key_.push_back(array(f, n_k_));
    return {regard::PER_KEY, int32_t(per_key_.size()) - 1};
  }
  int32_t add_table(const void* values) {
    tables_.push_back(values);
    return int32_t(tables_.size()) - 1;
  }

  void emit(regard::Op op, int32_t dest, regard::Operand a, regard::Operand b = no_operand,
            regard::Operand c = no_operand, int32_t table = 0) {
    instructions_.push_back({op, dest, table, 0, a, b, c});
    const int32_t used[] = {dest, a.kind == regard::REGISTER ? a.index : 0, b.kind == regard::REGISTER ? b.index : 0,
                            c.kind == regard::REGISTER ? c.index : 0};
    for (const int32_t r : used)
      if (r > program_.num_registers) program_.num_registers = r;
  }
  void end_score_mod() { program_.score_mod_end = program_.mask_end = length(); }
  void end_mask() { program_.mask_end = length(); }
  void end_derivative() { derivative_end_ = length(); }

  // The sums that receive gradients, from sum 0 on.
  void set_gradient_sums(std::vector<regard::GradientSum> sums) { gradient_sums_ = std::move(sums); }

  // Valid until the builder is changed or destroyed.
  const regard::Program& program() {
    program_.instructions = instructions_.data();
    program_.end = length();
    program_.derivative_end = derivative_end_ < 0 ? program_.end : derivative_end_;
    program_.num_sums = int64_t(gradient_sums_.size()), program_.gradient_sums = gradient_sums_.data();
    program_.per_query = per_query_.data();
    program_.per_key = per_key_.data();
    program_.tables = tables_.data();
    return program_;
  }

 private:
  int64_t length() const { return int64_t(instructions_.size()); }

  template <class F>
  regard::PositionArray array(const F& f, int64_t length) {
    auto values = std::make_unique<std::vector<int32_t>>();
    values->reserve(batch_ * num_heads_ * length);
    for (int64_t b = 0; b < batch_; ++b)
      for (int64_t h = 0; h < num_heads_; ++h)
        for (int64_t n = 0; n < length; ++n) values->push_back(bits_of(f(b, h, n)));
    arrays_.push_back(std::move(values));
    return {arrays_.back()->data(), num_heads_ * length, length};
  }

  int64_t batch_, num_heads_, n_q_, n_k_, padded_n_q_;
  std::vector<regard::Instruction> instructions_;
  std::vector<regard::PositionArray> per_query_, per_key_;
  std::vector<const void*> tables_;
  std::vector<regard::GradientSum> gradient_sums_;
  int64_t derivative_end_ = -1;
  std::vector<std::unique_ptr<std::vector<int32_t>>> arrays_;
  regard::Program program_{nullptr, 0, 0, 0, 0, 1, nullptr, nullptr, nullptr, 0, nullptr};  // register 1 always exists
};

}  // namespace check
