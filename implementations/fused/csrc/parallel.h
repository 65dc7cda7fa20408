// Threads. OpenMP is torch's own runtime: one pool for both.
#pragma once
#include <omp.h>

#include <atomic>
#include <cstdint>

namespace fused {

// Runs body(thread_index) on that many threads; on the caller alone, without the runtime, for one.
template <class Body>
void on_threads(int64_t threads, Body body) {
  if (threads <= 1) {
    body(0);
    return;
  }
#pragma omp parallel num_threads(static_cast<int>(threads))
  body(omp_get_thread_num());
}

// All threads of on_threads wait for each other.
inline void wait_for_all(int64_t threads) {
  if (threads > 1) {
#pragma omp barrier
  }
}

}  // namespace fused
