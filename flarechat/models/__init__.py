"""Getting models onto this machine and finding them again. Loads no model and knows no tensor.

catalog   the models flarechat knows by name: where they are, how they are pinned
files     files that appear whole or not at all
pull      fetch a catalog model
hub       fetch a model by its Hugging Face name
store     from a name to a path; list, inspect, remove
"""
