"""Text in and out of a model: tokens, the chat template, decoding as it comes, stop strings.

Knows no tensor. Heavy imports wait for the first use.
"""
