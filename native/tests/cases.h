// Masks and rules for the kernels, each in C++ and as a program.
#pragma once

#include "question.h"

namespace check {

// How far a query stands behind a key; the last query stands at the last key.
inline int64_t apart(const Sizes& s, const Pair& at) { return at.i + s.n_k - s.n_q - at.j; }

inline regard::Operand positions(Code& code, const Sizes& s) {
  return code.lanes([&](int64_t b, int64_t h, int64_t i) { return int32_t(apart(s, {b, h, i, 0})); });
}
inline regard::Operand key_numbers(Code& code) {
  return code.keys([](int64_t, int64_t, int64_t j) { return int32_t(j); });
}

inline Case nothing_special() {
  Case asked;
  asked.name = "nothing special";
  return asked;
}

inline Case causal() {
  Case asked;
  asked.name = "causal";
  asked.sees = [](const Sizes& s, const Pair& at) { return apart(s, at) >= 0; };
  asked.write = [](Code& code, const Question& question) {
    code.add(regard::KEEP_LE, 0, key_numbers(code), positions(code, question.sizes));
    code.end_mask();
  };
  return asked;
}

inline Case dropout() {
  Case asked = causal();
  asked.name = "causal with dropout";
  asked.dropout = 0.3;
  return asked;
}

// Keys that every query of a panel sees, between keys that only some see.
inline Case window() {
  constexpr int32_t REACH = 50;
  Case asked;
  asked.name = "window";
  asked.sees = [](const Sizes& s, const Pair& at) { return std::abs(apart(s, at)) < REACH; };
  asked.write = [](Code& code, const Question& question) {
    code.add(regard::I_SUB, 2, positions(code, question.sizes), key_numbers(code));
    code.add(regard::I_ABS, 2, in_register(2));
    code.add(regard::KEEP_LT, 0, in_register(2), number(REACH));
    code.end_mask();
  };
  return asked;
}

// Keys that nobody sees among those that are seen, and queries that see nothing.
inline Case documents() {
  const auto document = [](int64_t b, int64_t n) { return int32_t((n + 5 * b) / 11); };
  const auto reach = [](int64_t h) { return int32_t(30 + 9 * h); };
  const auto has_eyes = [=](int64_t b, int64_t i) { return document(b, i) % 3 != 2; };
  Case asked;
  asked.name = "documents";
  asked.differs_by_head = true;
  asked.sees = [=](const Sizes& s, const Pair& at) {
    return has_eyes(at.b, at.i) && document(at.b, at.i) == document(at.b, at.j) && apart(s, at) < reach(at.h);
  };
  asked.write = [=](Code& code, const Question& question) {
    code.add(regard::KEEP, 0, code.lanes([=](int64_t b, int64_t, int64_t i) { return -int32_t(has_eyes(b, i)); }));
    code.add(regard::KEEP_EQ, 0, code.lanes([=](int64_t b, int64_t, int64_t i) { return document(b, i); }),
             code.keys([=](int64_t b, int64_t, int64_t j) { return document(b, j); }));
    code.add(regard::I_SUB, 2, positions(code, question.sizes), key_numbers(code));
    code.add(regard::KEEP_LT, 0, in_register(2), code.lanes([=](int64_t, int64_t h, int64_t) { return reach(h); }));
    code.end_mask();
  };
  return asked;
}

inline Case wild_values() {
  Case asked = documents();
  asked.name = "documents among values that are not finite";
  asked.wild = true;
  return asked;
}

inline Case alibi() {
  const auto slope = [](int64_t h) { return 0.5f / float(1 + h); };
  Case asked = causal();
  const auto hide = asked.write;
  asked.name = "ALiBi";
  asked.rule = [=](double score, const Sizes& s, const Pair& at) {
    return score - double(slope(at.h)) * double(apart(s, at));
  };
  asked.write = [=](Code& code, const Question& question) {
    code.add(regard::I_SUB, 2, key_numbers(code), positions(code, question.sizes));
    code.add(regard::I_TO_F, 2, in_register(2));
    code.add(regard::F_MUL, 2, in_register(2), code.lanes([=](int64_t, int64_t h, int64_t) { return slope(h); }));
    code.add(regard::F_ADD, 0, in_register(0), in_register(2));
    code.end_rule();
    hide(code, question);
  };
  return asked;
}

inline Case softcap() {
  constexpr float CAP = 1.5f;
  Case asked;
  asked.name = "softcap";
  asked.rule = [](double score, const Sizes&, const Pair&) { return CAP * std::tanh(score / CAP); };
  asked.slope = [](double score, const Sizes&, const Pair&) { return 1.0 - std::pow(std::tanh(score / CAP), 2); };
  asked.write = [](Code& code, const Question&) {
    code.add(regard::F_MUL, 2, in_register(0), number(1.0f / CAP));
    code.add(regard::F_TANH, 2, in_register(2));
    code.add(regard::F_MUL, 0, in_register(2), number(CAP));
    code.end_rule();
    code.add(regard::F_MUL, 2, in_register(0), number(1.0f / CAP));
    code.add(regard::F_TANH, 2, in_register(2));
    code.add(regard::F_MUL, 2, in_register(2), in_register(2));
    code.add(regard::F_SUB, 1, number(1.0f), in_register(2));
  };
  return asked;
}

// A slope that differs from key to key.
inline Case louder_keys() {
  const auto loudness = [](int64_t j) { return 0.5f + 0.25f * float(j % 5); };
  Case asked;
  asked.name = "louder keys";
  asked.rule = [=](double score, const Sizes&, const Pair& at) { return score * loudness(at.j); };
  asked.slope = [=](double, const Sizes&, const Pair& at) { return loudness(at.j); };
  asked.write = [=](Code& code, const Question&) {
    const regard::Operand by = code.keys([=](int64_t, int64_t, int64_t j) { return loudness(j); });
    code.add(regard::F_MUL, 0, in_register(0), by);
    code.end_rule();
    code.add(regard::SELECT, 1, by, by, number(-1));
  };
  return asked;
}

// A dense bias and a dense mask.
inline Case tables() {
  Case asked;
  asked.name = "tables";
  asked.sees = [](const Sizes&, const Pair& at) { return seen_at(at.i, at.j); };
  asked.rule = [](double score, const Sizes&, const Pair& at) { return score + bias_at(at.i, at.j); };
  asked.write = [](Code& code, const Question& question) {
    const int64_t row = question.sizes.n_k;
    const regard::Operand rows = code.lanes([=](int64_t, int64_t, int64_t i) { return int32_t(i * row); });
    const regard::Operand columns = key_numbers(code);
    code.add(regard::LOOKUP, 2, rows, columns, nothing, code.table(question.bias.data()));
    code.add(regard::F_ADD, 0, in_register(0), in_register(2));
    code.end_rule();
    code.add(regard::LOOKUP_BYTE, 2, rows, columns, nothing, code.table(question.seen.data()));
    code.add(regard::KEEP, 0, in_register(2));
    code.end_mask();
  };
  return asked;
}

// A dense bias and louder keys, both learned: every head adds to the first sum, every query to the second.
inline Case learned() {
  const auto loudness = [](int64_t j) { return 0.5f + 0.25f * float(j % 5); };
  Case asked = causal();
  const auto hide = asked.write;
  asked.name = "learned";
  asked.learns = true;
  asked.rule = [=](double score, const Sizes&, const Pair& at) {
    return score * loudness(at.j) + bias_at(at.i, at.j);
  };
  asked.slope = [=](double, const Sizes&, const Pair& at) { return loudness(at.j); };
  asked.write = [=](Code& code, const Question& question) {
    const int64_t row = question.sizes.n_k;
    const regard::Operand rows = code.lanes([=](int64_t, int64_t, int64_t i) { return int32_t(i * row); });
    const regard::Operand columns = key_numbers(code);
    const regard::Operand by = code.keys([=](int64_t, int64_t, int64_t j) { return loudness(j); });
    code.add(regard::LOOKUP, 2, rows, columns, nothing, code.table(question.bias.data()));
    code.add(regard::F_MUL, 3, in_register(0), by);
    code.add(regard::F_ADD, 0, in_register(3), in_register(2));
    code.end_rule();
    hide(code, question);
    code.add(regard::SELECT, 1, by, by, number(-1));
    code.end_slope();
    code.add(regard::ADD_TO, 1, rows, columns, number(1.0f), 0);
    code.add(regard::ADD_TO, 1, number(0), columns, in_register(0), 1);
  };
  return asked;
}

// Additive scores, once with numbers whose e^2x are floats, once with larger ones.
inline Case additive(float numbers) {
  Case asked = documents();
  asked.name = numbers > 1.0f ? "additive with large numbers" : "additive";
  asked.additive = numbers;
  return asked;
}

// A rule and dropout on top of additive scores, everybody being seen.
inline Case additive_capped() {
  Case asked = softcap();
  asked.name = "additive, capped";
  asked.additive = 0.5f;
  asked.dropout = 0.2;
  return asked;
}

inline std::vector<Case> cases() {
  return {nothing_special(), causal(),      dropout(), window(), documents(), alibi(),
          softcap(),         louder_keys(), tables(),  learned(), additive(0.5f), additive(20.0f), additive_capped()};
}

}  // namespace check
