// Masks and score modifiers for the kernels, each in C++ and as a program.
#pragma once

#include "reference_attention.h"

namespace check {

// A query's position minus a key's position. The last query has the position of the last key.
inline int64_t query_key_distance(const CallSizes& s, const Pair& at) { return at.i + s.n_k - s.n_q - at.j; }

inline regard::Operand query_positions(ProgramBuilder& builder, const CallSizes& s) {
  return builder.per_query([&](int64_t b, int64_t h, int64_t i) {
    return int32_t(query_key_distance(s, {b, h, i, 0}));
  });
}
inline regard::Operand key_positions(ProgramBuilder& builder) {
  return builder.per_key([](int64_t, int64_t, int64_t j) { return int32_t(j); });
}

inline TestCase plain() {
  TestCase test_case;
  test_case.name = "plain";
  return test_case;
}

inline TestCase causal() {
  TestCase test_case;
  test_case.name = "causal";
  test_case.is_visible = [](const CallSizes& s, const Pair& at) { return query_key_distance(s, at) >= 0; };
  test_case.write_program = [](ProgramBuilder& builder, const ReferenceCall& call) {
    builder.emit(regard::MASK_LE, 0, key_positions(builder), query_positions(builder, call.sizes));
    builder.end_mask();
  };
  return test_case;
}

inline TestCase dropout() {
  TestCase test_case = causal();
  test_case.name = "causal with dropout";
  test_case.dropout = 0.3;
  return test_case;
}

// Keys that every query of a panel attends to, between keys that only some attend to.
inline TestCase sliding_window() {
  constexpr int32_t REACH = 50;
  TestCase test_case;
  test_case.name = "sliding window";
  test_case.is_visible = [](const CallSizes& s, const Pair& at) { return std::abs(query_key_distance(s, at)) < REACH; };
  test_case.write_program = [](ProgramBuilder& builder, const ReferenceCall& call) {
    builder.emit(regard::I_SUB, 2, query_positions(builder, call.sizes), key_positions(builder));
    builder.emit(regard::I_ABS, 2, in_register(2));
    builder.emit(regard::MASK_LT, 0, in_register(2), immediate(REACH));
    builder.end_mask();
  };
  return test_case;
}

// Keys that no query attends to, between visible ones, and queries without keys.
inline TestCase document_mask() {
  const auto document = [](int64_t b, int64_t n) { return int32_t((n + 5 * b) / 11); };
  const auto reach = [](int64_t h) { return int32_t(30 + 9 * h); };
  const auto has_keys = [=](int64_t b, int64_t i) { return document(b, i) % 3 != 2; };
  TestCase test_case;
  test_case.name = "document mask";
  test_case.differs_by_head = true;
  test_case.is_visible = [=](const CallSizes& s, const Pair& at) {
    return has_keys(at.b, at.i) && document(at.b, at.i) == document(at.b, at.j) &&
           query_key_distance(s, at) < reach(at.h);
  };
  test_case.write_program = [=](ProgramBuilder& builder, const ReferenceCall& call) {
    builder.emit(regard::MASK, 0,
                 builder.per_query([=](int64_t b, int64_t, int64_t i) { return -int32_t(has_keys(b, i)); }));
    builder.emit(regard::MASK_EQ, 0, builder.per_query([=](int64_t b, int64_t, int64_t i) { return document(b, i); }),
                 builder.per_key([=](int64_t b, int64_t, int64_t j) { return document(b, j); }));
    builder.emit(regard::I_SUB, 2, query_positions(builder, call.sizes), key_positions(builder));
    builder.emit(regard::MASK_LT, 0, in_register(2),
                 builder.per_query([=](int64_t, int64_t h, int64_t) { return reach(h); }));
    builder.end_mask();
  };
  return test_case;
}

inline TestCase nonfinite_values() {
  TestCase test_case = document_mask();
  test_case.name = "document mask, values that are not finite";
  test_case.has_nonfinite_values = true;
  return test_case;
}

inline TestCase alibi() {
  const auto slope = [](int64_t h) { return 0.5f / float(1 + h); };
  TestCase test_case = causal();
  const auto write_mask = test_case.write_program;
  test_case.name = "ALiBi";
  test_case.score_mod = [=](double score, const CallSizes& s, const Pair& at) {
    return score - double(slope(at.h)) * double(query_key_distance(s, at));
  };
  test_case.write_program = [=](ProgramBuilder& builder, const ReferenceCall& call) {
    builder.emit(regard::I_SUB, 2, key_positions(builder), query_positions(builder, call.sizes));
    builder.emit(regard::I_TO_F, 2, in_register(2));
    builder.emit(regard::F_MUL, 2, in_register(2),
                 builder.per_query([=](int64_t, int64_t h, int64_t) { return slope(h); }));
    builder.emit(regard::F_ADD, 0, in_register(0), in_register(2));
    builder.end_score_mod();
    write_mask(builder, call);
  };
  return test_case;
}

inline TestCase softcap() {
  constexpr float CAP = 1.5f;
  TestCase test_case;
  test_case.name = "softcap";
  test_case.score_mod = [](double score, const CallSizes&, const Pair&) { return CAP * std::tanh(score / CAP); };
  test_case.score_mod_derivative = [](double score, const CallSizes&, const Pair&) {
    return 1.0 - std::pow(std::tanh(score / CAP), 2);
  };
  test_case.write_program = [](ProgramBuilder& builder, const ReferenceCall&) {
    builder.emit(regard::F_MUL, 2, in_register(0), immediate(1.0f / CAP));
    builder.emit(regard::F_TANH, 2, in_register(2));
    builder.emit(regard::F_MUL, 0, in_register(2), immediate(CAP));
    builder.end_score_mod();
    builder.emit(regard::F_MUL, 2, in_register(0), immediate(1.0f / CAP));
    builder.emit(regard::F_TANH, 2, in_register(2));
    builder.emit(regard::F_MUL, 2, in_register(2), in_register(2));
    builder.emit(regard::F_SUB, 1, immediate(1.0f), in_register(2));
  };
  return test_case;
}

// A derivative that differs from key to key.
inline TestCase scaled_keys() {
  const auto factor = [](int64_t j) { return 0.5f + 0.25f * float(j % 5); };
  TestCase test_case;
  test_case.name = "scaled keys";
  test_case.score_mod = [=](double score, const CallSizes&, const Pair& at) { return score * factor(at.j); };
  test_case.score_mod_derivative = [=](double, const CallSizes&, const Pair& at) { return factor(at.j); };
  test_case.write_program = [=](ProgramBuilder& builder, const ReferenceCall&) {
    const regard::Operand factors = builder.per_key([=](int64_t, int64_t, int64_t j) { return factor(j); });
    builder.emit(regard::F_MUL, 0, in_register(0), factors);
    builder.end_score_mod();
    builder.emit(regard::SELECT, 1, factors, factors, immediate(-1));
  };
  return test_case;
}

// A dense bias and a dense mask.
inline TestCase dense_tables() {
  TestCase test_case;
  test_case.name = "dense tables";
  test_case.is_visible = [](const CallSizes&, const Pair& at) { return visible_at(at.i, at.j); };
  test_case.score_mod = [](double score, const CallSizes&, const Pair& at) { return score + bias_at(at.i, at.j); };
  test_case.write_program = [](ProgramBuilder& builder, const ReferenceCall& call) {
    const int64_t row = call.sizes.n_k;
    const regard::Operand rows = builder.per_query([=](int64_t, int64_t, int64_t i) { return int32_t(i * row); });
    const regard::Operand columns = key_positions(builder);
    builder.emit(regard::LOOKUP, 2, rows, columns, no_operand, builder.add_table(call.bias.data()));
    builder.emit(regard::F_ADD, 0, in_register(0), in_register(2));
    builder.end_score_mod();
    builder.emit(regard::LOOKUP_BYTE, 2, rows, columns, no_operand, builder.add_table(call.visible.data()));
    builder.emit(regard::MASK, 0, in_register(2));
    builder.end_mask();
  };
  return test_case;
}

// A dense bias and a factor per key, both learned: every head adds to the first sum, every query to the second.
inline TestCase learned_bias() {
  const auto factor = [](int64_t j) { return 0.5f + 0.25f * float(j % 5); };
  TestCase test_case = causal();
  const auto write_mask = test_case.write_program;
  test_case.name = "learned bias";
  test_case.needs_captured_gradients = true;
  test_case.score_mod = [=](double score, const CallSizes&, const Pair& at) {
    return score * factor(at.j) + bias_at(at.i, at.j);
  };
  test_case.score_mod_derivative = [=](double, const CallSizes&, const Pair& at) { return factor(at.j); };
  test_case.write_program = [=](ProgramBuilder& builder, const ReferenceCall& call) {
    const int64_t row = call.sizes.n_k;
    const regard::Operand rows = builder.per_query([=](int64_t, int64_t, int64_t i) { return int32_t(i * row); });
    const regard::Operand columns = key_positions(builder);
    const regard::Operand factors = builder.per_key([=](int64_t, int64_t, int64_t j) { return factor(j); });
    builder.emit(regard::LOOKUP, 2, rows, columns, no_operand, builder.add_table(call.bias.data()));
    builder.emit(regard::F_MUL, 3, in_register(0), factors);
    builder.emit(regard::F_ADD, 0, in_register(3), in_register(2));
    builder.end_score_mod();
    write_mask(builder, call);
    builder.emit(regard::SELECT, 1, factors, factors, immediate(-1));
    builder.end_derivative();
    builder.emit(regard::SCATTER_ADD, 1, rows, columns, immediate(1.0f), 0);
    builder.emit(regard::SCATTER_ADD, 1, immediate(0), columns, in_register(0), 1);
  };
  return test_case;
}

// Additive scores: e^2x of q and k is finite for a small magnitude, and overflows for a large one.
inline TestCase additive(float magnitude) {
  TestCase test_case = document_mask();
  test_case.name = magnitude > 1.0f ? "additive, large magnitude" : "additive";
  test_case.additive_magnitude = magnitude;
  return test_case;
}

// Additive scores with a score modifier and dropout, and all pairs visible.
inline TestCase additive_capped() {
  TestCase test_case = softcap();
  test_case.name = "additive, capped";
  test_case.additive_magnitude = 0.5f;
  test_case.dropout = 0.2;
  return test_case;
}

inline std::vector<TestCase> cases() {
  return {plain(),       causal(),       dropout(),      sliding_window(), document_mask(), alibi(),          softcap(),
          scaled_keys(), dense_tables(), learned_bias(), additive(0.5f),   additive(20.0f), additive_capped()};
}

}  // namespace check
