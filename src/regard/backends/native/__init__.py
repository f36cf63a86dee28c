"""The native backend: the C++ kernels of csrc/."""
