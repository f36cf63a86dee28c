"""Files that regard writes and reads: atomic writing, tensors in the safetensors format, locks on folders."""
