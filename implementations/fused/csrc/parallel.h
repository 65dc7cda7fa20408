// Threads. OpenMP is torch's own runtime: one pool for both.
#pragma once
#include <omp.h>

#include <atomic>
#include <cstdint>
#include <thread>

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

// Waits until another thread has brought the counter to this value, and sees what it wrote before.
inline void wait_for_turn(const std::atomic<int64_t>& turn, int64_t value) {
  constexpr int kSpins = 1 << 12;  // then the other thread may need this one's processor
  for (int i = 0; turn.load(std::memory_order_acquire) != value; ++i)
    if (i >= kSpins) std::this_thread::yield();
}

}  // namespace fused
