// Key padding, summed up once per call: where the kept keys of each batch entry begin and end, and
// whether there are holes before their end. Blocks outside are never computed, blocks without holes
// are never masked.
#pragma once
#include "arena.h"
#include "problem.h"
#include "visible.h"

namespace fused {

struct KeptKeys {
  Range range;
  bool has_holes;
};

inline bool is_kept(const Problem& p, int64_t batch, int64_t key) {
  const Tensor& t = p.key_padding;
  return static_cast<const uint8_t*>(t.data)[batch * t.batch + key * t.column] != 0;
}

inline KeptKeys find_kept_keys(const Problem& p, int64_t batch) {
  if (!p.key_padding.data) return {{0, p.kv_seq_len}, false};
  int64_t first = p.kv_seq_len, end = 0, count = 0;
  for (int64_t key = 0; key < p.kv_seq_len; ++key) {
    if (!is_kept(p, batch, key)) continue;
    if (first > key) first = key;
    end = key + 1;
    ++count;
  }
  return {{first, end}, count != end};
}

class PaddingSummary {
 public:
  PaddingSummary(const Problem& p, Arena& arena) : kept_(arena.take<KeptKeys>(p.batch_size)) {}

  void fill(const Problem& p) {
    for (int64_t batch = 0; batch < p.batch_size; ++batch) kept_[batch] = find_kept_keys(p, batch);
  }

  const KeptKeys& of(int64_t batch) const { return kept_[batch]; }

 private:
  KeptKeys* kept_;
};

}  // namespace fused
