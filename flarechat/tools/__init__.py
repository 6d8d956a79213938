"""Tools as the application has them: what the user allows a model to call, and the running of it.

Owns the file of definitions, the programs that are started, the tools that are built in, and the
calls of one answer. Knows no conversation, no engine and no screen.
"""
