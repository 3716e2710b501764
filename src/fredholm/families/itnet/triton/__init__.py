"""Triton kernels; nothing here is imported before a GPU, or the interpreter, is to run them."""
