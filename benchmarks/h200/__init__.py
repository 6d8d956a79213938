"""Measurements of captured rounds on one GPU, and the page they are printed on.

rounds       the run: its sections, one after the other, into CSV files and one JSON
record       what a run leaves: tables, figures, failures, the machine
desk         an engine in this process, with every event and its time
sizes        how much is measured
texts        prompts, contexts, arms and laws
taps         what is listened to while an engine plays: plans, records, host time
bare         the same rounds again without an engine: what the device alone takes
equality speed service peers floor lanes memory      the sections, one file each
kernels      the kernels of a pass alone, over ways to cut them
rows         runs read back from their files
tables       the small tables that are printed, made by tables_of_speed and tables_of_checks
page         tables and one plot into docs/cuda.md
"""
