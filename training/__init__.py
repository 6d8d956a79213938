"""How a draft head is made: the target writes conversations, a small head learns to guess ahead.

Not installed with flarechat. Four commands, each resumable and seeded, see README.md:
generate, train, evaluate, export; `python -m training dry-run DIR` plays all four in seconds.
"""
