"""flarechat beside llama.cpp and transformers on a CPU: one model file, one run, orders alternated.

    benchmarks/peers/setup.sh ENV            # llama.cpp by pip, built here; about 20 minutes
    python -m benchmarks.peers.compare --env ENV --out benchmarks/cpu --revision REV

Every engine is a child process that is kept warm and told what to answer by lines of JSON (`wire`).
llama.cpp lives in an environment of its own, since it must not change flarechat's.
"""
