"""The vault: snapshots on disk, one folder for each identity and one file for each node.

identity  whose state it is, and the digests     nodefile  what a file says, and whether it is sound
forest    which nodes hang on which              folder    what is there, comes, and leaves first
judging   which files can be used                disk      looking and deleting
table     the rules of any safetensors file      tensors   what they are called, how they are cut

Knows no tensor library.
"""
