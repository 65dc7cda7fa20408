// One part of the keys as a problem of its own: the same queries, which stand at the same distance from
// these keys, and the same masks.
#pragma once
#include "padding.h"
#include "problem.h"
#include "visible.h"

namespace fused {

inline void skip_elements(Tensor& t, int64_t elements, int64_t element_bytes) {
  if (t.data) t.data = static_cast<char*>(t.data) + elements * element_bytes;
}

inline Problem on_keys(const Problem& whole, Range keys) {
  const int64_t element_bytes = whole.element_type == kFloat32 ? 4 : 2;
  Problem part = whole;
  part.kv_seq_len = keys.end - keys.begin;
  part.causal_offset -= keys.begin;
  skip_elements(part.key, keys.begin * part.key.row, element_bytes);
  skip_elements(part.value, keys.begin * part.value.row, element_bytes);
  skip_elements(part.bias, keys.begin * part.bias.column, element_bytes);
  skip_elements(part.keep, keys.begin * part.keep.column, 1);
  skip_elements(part.key_padding, keys.begin * part.key_padding.column, 1);
  return part;
}

inline KeptKeys on_keys(const KeptKeys& whole, Range keys) {
  const Range range = intersect(whole.range, keys);
  return {{range.begin - keys.begin, range.end - keys.begin}, whole.has_holes};
}

}  // namespace fused
