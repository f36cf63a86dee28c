// A description of the packed structs, for the check in backends/native/abi.py.
#pragma once

#include <cstddef>

#include "abi.h"

namespace regard {

// One number of the description: the size of a struct, the offset of a field, the value of an enumerator or a constant.
struct AbiEntry {
  const char *group, *name;
  long long value;
};

// clang-format off
#define SIZE(type) {#type, "sizeof", sizeof(type)}
#define FIELD(type, field) {#type, #field, offsetof(type, field)}
#define NESTED(type, outer, inner) {#type, #outer "_" #inner, offsetof(type, outer.inner)}
#define RANGE(type, field) NESTED(type, field, begin), NESTED(type, field, end)
#define ENUMERATOR(type, name) {#type, #name, name}
#define SCOPED(type, scope, name) {#type, #name, static_cast<long long>(scope::name)}
#define CONSTANT(name) {"constants", #name, name}

constexpr AbiEntry ABI_TABLE[] = {
    SIZE(StridedRows), FIELD(StridedRows, data), FIELD(StridedRows, batch_stride), FIELD(StridedRows, head_stride),
    FIELD(StridedRows, row_stride),
    SIZE(KeyRun), FIELD(KeyRun, begin), FIELD(KeyRun, end), FIELD(KeyRun, is_partial), FIELD(KeyRun, vector_begin),
    FIELD(KeyRun, vector_end),
    SIZE(AttentionParams), FIELD(AttentionParams, batch), FIELD(AttentionParams, num_heads),
    FIELD(AttentionParams, num_kv_heads), FIELD(AttentionParams, n_q), FIELD(AttentionParams, n_k),
    FIELD(AttentionParams, head_dim), FIELD(AttentionParams, value_dim), FIELD(AttentionParams, num_threads),
    FIELD(AttentionParams, scale), FIELD(AttentionParams, dtype), FIELD(AttentionParams, output_dtype), FIELD(AttentionParams, q), FIELD(AttentionParams, k),
    FIELD(AttentionParams, v), NESTED(AttentionParams, coverage, batch), NESTED(AttentionParams, coverage, num_heads),
    NESTED(AttentionParams, coverage, num_panels), NESTED(AttentionParams, coverage, run_offsets),
    NESTED(AttentionParams, coverage, runs), FIELD(AttentionParams, program), FIELD(AttentionParams, seed),
    FIELD(AttentionParams, dropout_threshold), FIELD(AttentionParams, dropout_scale), FIELD(AttentionParams, output),
    FIELD(AttentionParams, row_statistic), FIELD(AttentionParams, d_output), FIELD(AttentionParams, d_row_statistic),
    FIELD(AttentionParams, d_q), FIELD(AttentionParams, d_k), FIELD(AttentionParams, d_v), FIELD(AttentionParams, u),
    FIELD(AttentionParams, d_u), FIELD(AttentionParams, entmax_exponents), FIELD(AttentionParams, dropout_head_offset),
    FIELD(AttentionParams, dropout_query_offset), FIELD(AttentionParams, dropout_query_step),
    FIELD(AttentionParams, dropout_key_offset), FIELD(AttentionParams, dropout_key_step),
    SIZE(WeightTileParams), RANGE(WeightTileParams, b), RANGE(WeightTileParams, h), RANGE(WeightTileParams, i),
    RANGE(WeightTileParams, j), FIELD(WeightTileParams, is_partial), FIELD(WeightTileParams, scores),
    FIELD(WeightTileParams, weights), FIELD(WeightTileParams, entropy), FIELD(WeightTileParams, cell_keys),
    FIELD(WeightTileParams, cell_sums), FIELD(WeightTileParams, cell_maxima), FIELD(WeightTileParams, column_sums),
    FIELD(WeightTileParams, max_weight), FIELD(WeightTileParams, max_weight_key),
    SIZE(ThresholdParams), FIELD(ThresholdParams, mode), FIELD(ThresholdParams, k_or_groups),
    FIELD(ThresholdParams, exponents), FIELD(ThresholdParams, thresholds), FIELD(ThresholdParams, column_sums),
    SIZE(Instruction), FIELD(Instruction, op), FIELD(Instruction, dest), FIELD(Instruction, table),
    FIELD(Instruction, padding), NESTED(Instruction, a, kind), NESTED(Instruction, a, index),
    NESTED(Instruction, b, kind), NESTED(Instruction, b, index), NESTED(Instruction, c, kind),
    NESTED(Instruction, c, index),
    SIZE(PositionArray), FIELD(PositionArray, data), FIELD(PositionArray, batch_stride),
    FIELD(PositionArray, head_stride),
    SIZE(GradientSum), FIELD(GradientSum, data), FIELD(GradientSum, size), FIELD(GradientSum, conflict_scope),
    SIZE(Program), FIELD(Program, instructions), FIELD(Program, score_mod_end), FIELD(Program, mask_end),
    FIELD(Program, derivative_end), FIELD(Program, end), FIELD(Program, num_registers), FIELD(Program, per_query),
    FIELD(Program, per_key), FIELD(Program, tables), FIELD(Program, num_sums), FIELD(Program, gradient_sums),
    ENUMERATOR(DType, FP32), ENUMERATOR(DType, BF16), ENUMERATOR(DType, FP16),
    SCOPED(ThresholdMode, ThresholdParams, ENTMAX), SCOPED(ThresholdMode, ThresholdParams, TOPK),
    SCOPED(ThresholdMode, ThresholdParams, HARDMAX), SCOPED(ThresholdMode, ThresholdParams, ENTMAX_SLOPE),
    SCOPED(ThresholdMode, ThresholdParams, COLUMN_SUMS),
    ENUMERATOR(OperandKind, REGISTER), ENUMERATOR(OperandKind, PER_QUERY), ENUMERATOR(OperandKind, PER_KEY),
    ENUMERATOR(OperandKind, IMMEDIATE), ENUMERATOR(OperandKind, NONE),
    SCOPED(ConflictScope, ConflictScope, PANEL), SCOPED(ConflictScope, ConflictScope, HEADS),
    SCOPED(ConflictScope, ConflictScope, ANY),
#define OP(name) ENUMERATOR(Op, name),
    REGARD_OPS(OP)
#undef OP
    CONSTANT(MAX_LENGTH), CONSTANT(PANELS_PER_BLOCK), CONSTANT(SCORE_REGISTER), CONSTANT(SCRATCH_REGISTER),
};
#undef SIZE
#undef FIELD
#undef NESTED
#undef RANGE
#undef ENUMERATOR
#undef SCOPED
#undef CONSTANT
// clang-format on

}  // namespace regard
