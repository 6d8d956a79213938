"""Random checkpoints: every tensor, name and format of a real one, with values drawn by a seed.

For trying how a model loads and how fast it runs where its weights cannot be had.

__main__   the process that `flarechat models make-random` starts
qwen38     the tensors of a Qwen3.8 checkpoint, by file        geometry   its config.json
stored     one drawn matrix in each stored format              shards     safetensors, streamed
text       a byte-level tokenizer, a chat template, the recommended sampling
"""
