// Hands out aligned pieces of one buffer. With a null buffer it only counts, so that the code
// that lays out scratch memory is also the code that says how much of it is needed.
#pragma once
#include <cstdint>

namespace fused {

class Arena {
 public:
  explicit Arena(void* buffer) : base_(reinterpret_cast<uintptr_t>(buffer)), used_(0) {}

  template <class T>
  T* take(int64_t count) {
    used_ = (used_ + kAlignment - 1) / kAlignment * kAlignment;
    T* piece = reinterpret_cast<T*>(base_ + used_);
    used_ += count * static_cast<int64_t>(sizeof(T));
    return piece;
  }

  int64_t used_bytes() const { return used_; }

 private:
  static constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector
  uintptr_t base_;
  int64_t used_;
};

}  // namespace fused
