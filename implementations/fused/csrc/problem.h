// One attention problem as Python describes it. Every field is 8 bytes wide, so that the ctypes
// structure in native.py mirrors it without padding rules; keep the two in step.
//
// Letters used in all comments: B batch, H query heads, G key/value heads, L queries, S keys,
// D width of queries and keys, DV width of values.
#pragma once
#include <cstdint>

namespace fused {

enum ElementType : int64_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

// Instruction sets, each a superset of the one before it.
enum Path : int64_t { kPortable = 0, kAvx2 = 1, kAvx512 = 2, kAmx = 3 };

// Strides count elements, not bytes; a stride of 0 broadcasts. data is null where there is none.
struct Tensor {
  void* data;
  int64_t batch, head, row, column;
};

struct Problem {
  Tensor query, key, value, output;                           // [B, H, L, D], [B, G, S, D] ...
  Tensor grad_output, grad_query, grad_key, grad_value;       // backward only
  Tensor key_padding, keep, bias;                             // bytes, bytes, element type
  float* log_sum_exp;                                         // [B, H, L], contiguous; may be null
  void* scratch;                                              // scratch_bytes() of memory
  int64_t batch_size, num_heads, num_kv_heads, seq_len, kv_seq_len, qk_dim, v_dim;
  int64_t element_type;
  // Query i stands at key position i + causal_offset and sees keys_before keys before that
  // position and keys_after behind it.
  int64_t causal_offset, keys_before, keys_after;
  // How many bfloat16 products stand for one product on AMX: 1, 3, 4 or 6. Unused elsewhere.
  int64_t products;
  int64_t path, threads;
  double scale;

  int64_t group_size() const { return num_heads / num_kv_heads; }
};

template <class Element>
Element* row_of(const Tensor& t, int64_t batch, int64_t head, int64_t row) {
  return static_cast<Element*>(t.data) + batch * t.batch + head * t.head + row * t.row;
}

}  // namespace fused
