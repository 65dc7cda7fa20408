#!/usr/bin/env bash
# Builds the kernels with the address and undefined-behaviour sanitizers in a copy of the tree and
# runs their tests there. Run from the root of the checkout; needs g++ and the test dependencies.
set -euo pipefail

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r setup.py pyproject.toml LICENSE harness implementations conf tests "$copy"
cd "$copy"
rm -f implementations/fused/_kernels*.so

export CFLAGS="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1"
export CXXFLAGS="$CFLAGS"
export LDFLAGS="-fsanitize=address,undefined" LDXXFLAGS="-fsanitize=address,undefined"
python setup.py build_ext --inplace

# Python itself leaks by design; torch's memory is only watched where the kernels reach beyond it.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH="$copy"
sanitized() {
  LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so)" \
    python -m pytest -q "$@"
}
sanitized tests/implementations/test_fused.py tests/implementations/test_fused_gradients.py "$@"
# Long sums are settled only beyond 1024 keys, and split among threads beyond 512.
sanitized tests/implementations/test_fused_accuracy.py -k "above_that_of_sdpa and (2048-2048 or 16-8192)"
