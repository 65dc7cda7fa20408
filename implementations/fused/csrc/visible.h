// Which keys a block of queries can see by position alone: causal triangle and window.
#pragma once
#include <algorithm>

#include "problem.h"

namespace fused {

struct Range {
  int64_t begin, end;
  bool empty() const { return begin >= end; }
};

inline Range intersect(Range a, Range b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// Keys that at least one of the queries [first, first + count) sees.
inline Range keys_seen_by_any(const Problem& p, int64_t first, int64_t count) {
  const int64_t position = first + p.causal_offset;
  return {std::max<int64_t>(0, position - p.keys_before),
          std::min(p.kv_seq_len, position + count + p.keys_after)};
}

// Keys that all of these queries see: a block of keys inside needs no masking by position.
inline Range keys_seen_by_all(const Problem& p, int64_t first, int64_t count) {
  const int64_t position = first + p.causal_offset;
  return {std::max<int64_t>(0, position + count - 1 - p.keys_before),
          std::min(p.kv_seq_len, position + 1 + p.keys_after)};
}

// Queries that see at least one of the keys [first, first + count).
inline Range queries_that_see(const Problem& p, int64_t first, int64_t count) {
  const int64_t position = first - p.causal_offset;
  return {std::max<int64_t>(0, position - p.keys_after),
          std::min(p.seq_len, position + count + p.keys_before)};
}

}  // namespace fused
