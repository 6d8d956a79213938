"""The vault: snapshots on disk, one folder for each identity and one file for each node.

Knows what a file says and in which order files go, and no tensor library.
"""
