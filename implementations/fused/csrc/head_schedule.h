// Order of work: key/value heads in groups. A group's keys and values are packed, then attended to,
// before the next group's take their place: packed operands stay in the second-level caches, and
// scratch memory does not grow with the number of heads.
//
// Each thread begins with heads of its own, whose packed operands are in its cache, and then helps
// with the others'.
#pragma once
#include <algorithm>

#include "arena.h"
#include "blocking.h"
#include "parallel.h"
#include "problem.h"

namespace fused {

class HeadSchedule {
 public:
  HeadSchedule(const Problem& p, int64_t packed_bytes_per_head, Arena& arena)
      : heads_(p.batch_size * p.num_kv_heads), threads_(p.threads) {
    const int64_t fitting = kL2Bytes * threads_ / std::max<int64_t>(packed_bytes_per_head, 1);
    slots_ = std::max<int64_t>(1, std::min(heads_, std::max(threads_, fitting)));
    packed_ = arena.take<Counter>(slots_);
    attended_ = arena.take<Counter>(slots_);
  }

  // Heads whose packed operands exist at the same time.
  int64_t slots() const { return slots_; }

  void reset() {
    reset(packed_);
    reset(attended_);
  }

  // Called by every thread. pack(head, slot, item) for all items of the group, then, when all have
  // been packed, attend(head, slot, item).
  template <class Pack, class Attend>
  void run(int64_t thread, int64_t pack_items, int64_t attend_items, Pack pack, Attend attend) {
    for (int64_t first = 0; first < heads_; first += slots_) {
      const int64_t count = std::min(slots_, heads_ - first);
      drain(packed_, thread, first, count, pack_items, pack);
      wait_for_all(threads_);
      if (thread == 0) reset(packed_);
      drain(attended_, thread, first, count, attend_items, attend);
      wait_for_all(threads_);
      if (thread == 0) reset(attended_);  // next used beyond the next wait
    }
  }

 private:
  struct alignas(64) Counter {  // a cache line each
    std::atomic<int64_t> next;
  };

  void reset(Counter* counters) {
    for (int64_t slot = 0; slot < slots_; ++slot) counters[slot].next.store(0, std::memory_order_relaxed);
  }

  template <class Body>
  void drain(Counter* counters, int64_t thread, int64_t first, int64_t count, int64_t items, Body body) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t slot = (thread * count / threads_ + i) % count;
      for (;;) {
        const int64_t item = counters[slot].next.fetch_add(1, std::memory_order_relaxed);
        if (item >= items) break;
        body(first + slot, slot, item);
      }
    }
  }

  int64_t heads_, threads_, slots_;
  Counter *packed_, *attended_;
};

}  // namespace fused
