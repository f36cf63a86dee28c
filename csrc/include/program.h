// A program of the tile interpreter: a score modifier and a mask, compiled by
// backends/native/codegen/program_compiler.py.
//
// An operand is a tile in a register, with a row for each key and a lane for each query; an array with a value for each
// query or for each key; or an immediate. Values have 32 bits. A boolean is 0 or -1, so all of its bits are equal.
#pragma once

#include <cstdint>

namespace regard {

// clang-format off
#define REGARD_OPS(OP) \
  /* floats */ \
  OP(F_ADD) OP(F_SUB) OP(F_MUL) OP(F_DIV) OP(F_MIN) OP(F_MAX) OP(F_NEG) OP(F_ABS) OP(F_SIGN) OP(F_SQRT) OP(F_EXP) \
  OP(F_TANH) OP(F_SIGMOID) OP(F_LOG) \
  /* floats, one lane at a time */ \
  OP(F_EXP2) OP(F_EXPM1) OP(F_LOG1P) OP(F_LOG2) OP(F_SIN) OP(F_COS) OP(F_POW) OP(F_FLOOR) OP(F_CEIL) OP(F_ROUND) \
  OP(F_TRUNC) \
  /* integers */ \
  OP(I_ADD) OP(I_SUB) OP(I_MUL) OP(I_MIN) OP(I_MAX) OP(I_NEG) OP(I_ABS) OP(I_SIGN) OP(I_FLOORDIV) OP(I_MOD) OP(I_AND) \
  OP(I_OR) OP(I_XOR) OP(I_NOT) OP(I_SHL) OP(I_SHR) \
  /* conversions */ \
  OP(I_TO_F) OP(F_TO_I) OP(B_TO_I) \
  /* comparisons */ \
  OP(F_EQ) OP(F_NE) OP(F_LT) OP(F_LE) OP(I_EQ) OP(I_NE) OP(I_LT) OP(I_LE) \
  OP(SELECT)      /* c ? a : b */ \
  OP(LOOKUP)      /* table[a + b], floats */ \
  OP(LOOKUP_BYTE) /* table[a + b], booleans */ \
  OP(MASK)        /* scores become -inf where a is false */ \
  OP(MASK_EQ) OP(MASK_NE) OP(MASK_LT) OP(MASK_LE) /* the same for a comparison of two integers */ \
  OP(SCATTER_ADD) /* sum[a + b] += d_score * c */

enum Op : int32_t {
#define REGARD_ENUMERATOR(name) name,
  REGARD_OPS(REGARD_ENUMERATOR)
#undef REGARD_ENUMERATOR
  NUM_OPS
};
// clang-format on

enum OperandKind : int32_t { REGISTER, PER_QUERY, PER_KEY, IMMEDIATE, NONE };

// Register 0 holds the scores. MASK_EQ, MASK_NE, MASK_LT and MASK_LE overwrite register 1, and the score modifier's
// derivative ends up in it.
constexpr int32_t SCORE_REGISTER = 0, SCRATCH_REGISTER = 1;

struct Operand {
  int32_t kind;
  int32_t index;  // of the register or array; the bits of an immediate
};

struct Instruction {
  int32_t op;
  int32_t dest;   // register
  int32_t table;  // the table of a lookup, or the sum of a SCATTER_ADD
  int32_t padding;
  Operand a, b, c;
};

// A 32-bit value for each query or key of each batch element and head. A stride is 0 where all batch elements or heads
// share the values. Arrays of queries are padded to a whole panel.
struct PositionArray {
  const int32_t* data;
  int64_t batch_stride, head_stride;
};

// Which queries may add to the same element of a gradient.
enum class ConflictScope : int64_t {
  PANEL,  // only those of one panel
  HEADS,  // also those of other batch elements and heads at the same positions
  ANY,    // any queries
};

// The sum that receives the gradient of a captured tensor.
struct GradientSum {
  float* data;
  int64_t size;
  ConflictScope conflict_scope;
};

struct Program {
  const Instruction* instructions;
  int64_t score_mod_end;   // instructions [0, score_mod_end) modify the scores, in register 0
  int64_t mask_end;        // instructions [score_mod_end, mask_end) set hidden scores to -inf
  int64_t derivative_end;  // instructions [mask_end, derivative_end) compute d modified / d score, in register 1
  int64_t end;             // instructions [derivative_end, end) add up the gradients of captured tensors
  int64_t num_registers;
  const PositionArray* per_query;
  const PositionArray* per_key;
  const void* const* tables;
  int64_t num_sums;
  const GradientSum* gradient_sums;
};

static_assert(sizeof(Instruction) == 4 * 10 && sizeof(Program) == 8 * 11, "the fields leave no gaps");

}  // namespace regard
