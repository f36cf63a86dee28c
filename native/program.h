// A program of the vector machine: a mask or a score rule, as Python compiles it.
//
// A value is a tile of numbers, one for each key (row) and query (lane), in a register; or a number for each query
// (`lanes`), a number for each key (`keys`), or one number for all. Conditions are 0 or -1 in every bit.
#pragma once

#include <cstdint>

namespace regard {

enum Op : int32_t {
  // floats
  F_ADD, F_SUB, F_MUL, F_DIV, F_MIN, F_MAX, F_NEG, F_ABS, F_SIGN, F_SQRT, F_EXP, F_TANH, F_SIGMOID, F_LOG,
  // floats, one lane at a time
  F_EXP2, F_EXPM1, F_LOG1P, F_LOG2, F_SIN, F_COS, F_POW, F_FLOOR, F_CEIL, F_ROUND, F_TRUNC,
  // whole numbers
  I_ADD, I_SUB, I_MUL, I_MIN, I_MAX, I_NEG, I_ABS, I_SIGN, I_FLOORDIV, I_MOD, I_AND, I_OR, I_XOR, I_NOT, I_SHL, I_SHR,
  // from one kind to another
  I_TO_F, F_TO_I, B_TO_I,
  // conditions
  F_EQ, F_NE, F_LT, F_LE, I_EQ, I_NE, I_LT, I_LE,
  SELECT,       // a where c, else b
  LOOKUP,       // table[a + b] of floats
  LOOKUP_BYTE,  // table[a + b] of booleans
  KEEP,         // scores stay where a holds and are -inf elsewhere
  KEEP_EQ, KEEP_NE, KEEP_LT, KEEP_LE,  // the same for a comparison of whole numbers
  ADD_TO,       // sum[a + b] += the gradient that arrives, times c
  OPS
};

enum Place : int32_t { REGISTER, LANES_OF, KEYS_OF, NUMBER, NOTHING };

struct Operand {
  int32_t place;
  int32_t index;  // of the register or array; the bits of a number
};

struct Instruction {
  int32_t op;
  int32_t into;   // register
  int32_t table;  // of a look-up, or the sum that is added to
  int32_t unused;
  Operand a, b, c;
};

// Numbers of 32 bits, for each batch element and head (strides may be 0) and query or key. Arrays of lanes go on beyond
// the last query up to a whole panel.
struct Numbers {
  const int32_t* at;
  int64_t batch, head;
};

// Where the gradient of a captured tensor is summed. `meeting` says which queries' numbers may meet in one place: 0 only
// those of one panel, 1 also those of other batch elements and heads at the same places, 2 any.
struct Sum {
  float* at;
  int64_t size;
  int64_t meeting;
};

struct Program {
  const Instruction* instructions;
  int64_t rule;    // instructions 0 to rule - 1 change the score, in register 0
  int64_t hiding;  // from there to hiding - 1 they hide
  int64_t slope;   // from there to slope - 1 register 1 becomes the rule's derivative in the score
  int64_t end;     // the rest adds up the gradients of captured tensors
  int64_t registers;
  const Numbers* lanes;
  const Numbers* keys;
  const void* const* tables;
  int64_t sum_count;
  const Sum* sums;
};

}  // namespace regard
