// Memory of one thread: the blocks of queries of one item of work, and two blocks of scores, which the
// pipeline fills and empties in turn.

// Keys per block: the output passes through registers and back once per block, so that blocks should
// be long; but the two score buffers should leave room in L1, and parts take more of it.
template <int Parts>
constexpr int64_t kSlotsPerGroup = Parts == 1 ? 4 : 2;

template <int Parts>
constexpr int64_t kTileBlockKeys = kSlotsPerGroup<Parts> * kTileSteps;

constexpr int64_t kScoreBuffers = 2;

// 32 queries on their way through the keys.
struct TileQueries {
  BlockPlace at;                       // only the queries of it
  TileElement* tiles;                  // left tiles [row group][channel chunk][part]
  float* output;                       // sum tiles [channel group][row group], unnormalised
  const TileElement *keys, *values;    // right tiles of the head
  TileSoftmaxState softmax;
};

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
    if (arena.only_counts()) return;
    for (int64_t block = 0; block < num_blocks; ++block) {
      blocks[block].tiles = tiles + block * tiles_per_block(chunks);
      blocks[block].output = output + block * output_per_block(groups);
    }
  }

  float* score_buffer(int64_t index) const { return scores + index % kScoreBuffers * kBufferFloats; }

 private:
  static constexpr int64_t kBufferFloats = kRowGroups * kSlotsPerGroup<Parts> * kSlotFloats<Parts>;
  static int64_t tiles_per_block(int64_t chunks) { return kRowGroups * chunks * Parts * kTileElements; }
  static int64_t output_per_block(int64_t groups) { return kRowGroups * groups * kSumElements; }
};
