"""Getting models onto this machine and reading what they say of themselves. Loads no weights.

catalog     the models flarechat knows by name: where they are, how they are pinned
pull        fetch a catalog model        hub      fetch one by its Hugging Face name
store       from a name to a path; list, remove
inspection  what a model is, by its own headers        headers  those of safetensors files
making      have a random checkpoint written
sidecars    the learned draft head of a model, by what its header says
gguf        the tables of a GGUF file    folder   the settings of a model folder
digests     SHA-256, once a file         files    files that appear whole or not at all
"""
