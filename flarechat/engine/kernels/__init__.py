"""Kernels of our own, in Triton; every one has a reference in plain torch, which tests hold it to.

Nothing here is imported on a machine without Triton.
"""
