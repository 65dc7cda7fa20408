// Block sizes, all chosen here. A block of queries stays with one thread; keys stream past it.
//
// Per block of queries the innermost cache (kL1Bytes) should hold the scores of one key block;
// packed keys and values of one head should come from the second level (kL2Bytes).
#pragma once
#include <algorithm>
#include <cstdint>

#include "problem.h"

namespace fused {

constexpr int64_t kL1Bytes = 32 << 10;  // of 32 to 48 KiB on current cores
constexpr int64_t kL2Bytes = 1 << 20;   // of 1 to 2 MiB

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
inline int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// Keys per block on the vector paths: the float32 scores of block_width queries fill three quarters
// of L1. 128 for 48 queries, 256 for 24.
inline int64_t keys_per_block(int64_t block_width) {
  const int64_t fitting = kL1Bytes * 3 / 4 / (block_width * 4);
  return std::clamp<int64_t>(fitting / 32 * 32, 32, 256);
}

// Below about this much work a second thread costs more than it brings (a fork and join of the
// pool takes 1 to 3 microseconds).
constexpr int64_t kMultiplyAddsPerThread = 1 << 17;

inline int64_t useful_threads(const Problem& p) {
  const int64_t pairs = p.batch_size * p.num_heads * p.seq_len * p.kv_seq_len;
  const int64_t work = pairs * (p.qk_dim + p.v_dim);
  return std::clamp<int64_t>(work / kMultiplyAddsPerThread, 1, std::max<int64_t>(p.threads, 1));
}

// Blocks of queries that one thread takes past the keys together on tiles. One is best while a head's
// packed keys and values come from L2; beyond that each key block should serve as many queries as
// possible, as long as every thread has a few items to choose from.
inline int64_t tile_blocks_per_item(const Problem& p, int64_t packed_bytes_per_head, int64_t block_rows) {
  constexpr int64_t kMostBlocks = 8, kItemsPerThread = 4;
  const int64_t blocks = divide_up(p.seq_len, block_rows) * p.batch_size * p.num_heads;
  return std::clamp<int64_t>(blocks / (kItemsPerThread * std::max<int64_t>(p.threads, 1)), 1, kMostBlocks);
}

}  // namespace fused
