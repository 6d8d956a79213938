"""flarechat: chat with a local model in the terminal, drafting ahead."""

__version__ = "0.1.0"
