"""Conformance: ONNX cases, FlexAttention functions and the tests of other packages, run through regard."""
