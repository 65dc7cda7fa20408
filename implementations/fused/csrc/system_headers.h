// Every standard header that the kernels use. Included before any target option is set: an inline
// function of the standard library that was compiled for AVX-512 here could otherwise be the copy
// that the linker keeps for all paths.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "arena.h"
#include "blocking.h"
#include "head_schedule.h"
#include "key_split.h"
#include "padding.h"
#include "parallel.h"
#include "problem.h"
#include "stage_clock.h"
#include "visible.h"
