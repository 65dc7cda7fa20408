// Memory of one thread: the blocks of queries of one item of work, and two blocks of scores, which the
// pipeline fills and empties in turn.

// Keys per block: the output passes through registers and back once per block, so that blocks should
// be long; but the two score buffers should leave room in L1, and parts take more of it.
template <int Parts>
constexpr int64_t kSlotsPerGroup = Parts == 1 ? 4 : 2;

template <int Parts>
constexpr int64_t kTileBlockKeys = kSlotsPerGroup<Parts> * kTileSteps;

constexpr int64_t kScoreBuffers = 2;

// Every key adds Products * channels / 32 roundings to a sum of the output, at the size that the sum has
// by then, so that errors grow with the length. Where products have float32 accuracy, the output of this
// many blocks is summed from 0 and added to a second one ("settled") before the next. Elsewhere the
// roundings of the products' parts hide it.
template <int Parts>
constexpr bool kSettlesOutput = Parts == 3;
constexpr int64_t kBlocksPerSettling = 16;

// 32 queries on their way through the keys.
struct TileQueries {
  BlockPlace at;                       // only the queries of it
  TileElement* tiles;                  // left tiles [row group][channel chunk][part]
  float* output;                       // sum tiles [channel group][row group], unnormalised
  float* settled;                      // the same of earlier keys, see kSettlesOutput
  int64_t num_unsettled;               // blocks of keys in output
  const TileElement *keys, *values;    // right tiles of the head
  TileSoftmaxState softmax;
};

// Adds the output of the latest blocks, and their sums of terms, to those of earlier ones.
__attribute__((noinline)) static void settle(TileQueries& queries, int64_t channel_groups) {
  TileSoftmaxState& state = queries.softmax;
  const auto add = [&](const float* latest, float* total) __attribute__((always_inline)) {
    store(total, state.has_settled ? load(total) + load(latest) : load(latest));
  };
  for (int row = 0; row < kBlockRows; ++row) {
    add(state.sum[row], state.settled_sum[row]);
    store(state.sum[row], Vec{});
  }
  for (int64_t i = 0; i < channel_groups * kRowGroups * kSumElements; i += kLanes)
    add(queries.output + i, queries.settled + i);
  state.has_settled = true;
  state.has_output = false;
  queries.num_unsettled = 0;
}

template <int Parts>
struct TileWorkspace {
  float *scores, *staging;
  TileQueries* blocks;

  TileWorkspace(const Problem& p, int64_t num_blocks, Arena& arena) {
    const int64_t chunks = divide_up(p.qk_dim, kTileSteps), groups = divide_up(p.v_dim, kTileSteps) * 2;
    scores = arena.take<float>(kScoreBuffers * kBufferFloats);
    staging = arena.take<float>(groups * 16);
    blocks = arena.take<TileQueries>(num_blocks);
    TileElement* tiles = arena.take<TileElement>(num_blocks * tiles_per_block(chunks));
    float* output = arena.take<float>(num_blocks * output_per_block(groups));
    float* settled = arena.take<float>(kSettlesOutput<Parts> ? num_blocks * output_per_block(groups) : 0);
    if (arena.only_counts()) return;
    for (int64_t block = 0; block < num_blocks; ++block) {
      blocks[block].tiles = tiles + block * tiles_per_block(chunks);
      blocks[block].output = output + block * output_per_block(groups);
      blocks[block].settled = settled + block * output_per_block(groups);
    }
  }

  float* score_buffer(int64_t index) const { return scores + index % kScoreBuffers * kBufferFloats; }

 private:
  static constexpr int64_t kBufferFloats = kRowGroups * kSlotsPerGroup<Parts> * kSlotFloats<Parts>;
  static int64_t tiles_per_block(int64_t chunks) { return kRowGroups * chunks * Parts * kTileElements; }
  static int64_t output_per_block(int64_t groups) { return kRowGroups * groups * kSumElements; }
};
