"""What others wrote, run through regard: ONNX's cases and FlexAttention's rules."""
