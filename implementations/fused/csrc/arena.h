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

  bool only_counts() const { return base_ == 0; }
  int64_t used_bytes() const { return used_; }

 private:
  static constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector
  uintptr_t base_;
  int64_t used_;
};

// One workspace per thread, behind the memory that a call's threads share. Workspace is built from
// an arena and whatever else it needs; two threads never share a page.
template <class Workspace>
class WorkspacePerThread {
 public:
  template <class... Arguments>
  explicit WorkspacePerThread(const Arena& shared, const Arguments&... arguments)
      : first_(whole_pages(shared.used_bytes())) {
    Arena one(nullptr);
    Workspace(arguments..., one);
    bytes_ = whole_pages(one.used_bytes());
  }

  int64_t end_bytes(int64_t threads) const { return first_ + bytes_ * threads; }

  template <class... Arguments>
  Workspace of(int64_t thread, void* scratch, const Arguments&... arguments) const {
    Arena arena(static_cast<char*>(scratch) + first_ + thread * bytes_);
    return Workspace(arguments..., arena);
  }

 private:
  static constexpr int64_t kPageBytes = 4096;
  static int64_t whole_pages(int64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

  int64_t first_, bytes_;
};

}  // namespace fused
