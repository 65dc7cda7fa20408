// All memory of a forward call, and its two phases: pack, attend.
template <int Parts>
class TileForward {
 public:
  TileForward(const Problem& p, Arena arena)
      : p_(p),
        padding_(p, arena),
        packed_(p),
        schedule_(p, packed_.bytes_per_head(), arena),
        blocks_per_item_(tile_blocks_per_item(p, packed_.bytes_per_head(), kBlockRows)),
        side_by_side_(packed_.bytes_per_head() > kL2Bytes),
        workspaces_(packed_.place(schedule_.slots(), arena), p, blocks_per_item_) {}

  int64_t scratch_bytes() const { return workspaces_.end_bytes(p_.threads); }

  // False if the input holds values that tiles cannot hold; the output is then incomplete.
  template <class Element>
  bool run() {
    padding_.fill(p_);
    schedule_.reset();
    const int64_t items = divide_up(p_.seq_len, blocks_per_item_ * kBlockRows);
    std::atomic<bool> fits{true};
    on_threads(p_.threads, [&](int64_t thread) {
      const TileWorkspace<Parts> workspace = workspaces_.of(thread, p_.scratch, p_, blocks_per_item_);
      const TileRegisters registers;
      schedule_.run(
          thread, divide_up(packed_.key_chunks, kChunksPerItem), items * p_.group_size(),
          [&](int64_t kv_head, int64_t slot, int64_t item) {
            if (!pack<Element>(kv_head, slot, item)) fits = false;
          },
          [&](int64_t kv_head, int64_t slot, int64_t item) {
            // Later blocks of a causal problem see more keys: they come first, short ones fill gaps.
            const int64_t first = (items - 1 - item % items) * blocks_per_item_ * kBlockRows;
            if (fits && !attend<Element>(kv_head, slot, item / items, first, workspace)) fits = false;
          });
    });
    return fits;
  }

 private:
  static constexpr int64_t kChunksPerItem = 4;

  template <class Element>
  bool pack(int64_t kv_head, int64_t slot, int64_t item) {
    const StageClock clock(kPack);
    const int64_t first = item * kChunksPerItem, end = std::min(first + kChunksPerItem, packed_.key_chunks);
    bool fits = true;
    for (int64_t chunk = first; chunk < end; ++chunk) fits &= packed_.template pack<Element>(p_, kv_head, slot, chunk);
    return fits;
  }

  template <class Element>
  bool attend(int64_t kv_head, int64_t slot, int64_t head_in_group, int64_t first_query,
              const TileWorkspace<Parts>& w) {
    const int64_t batch = kv_head / p_.num_kv_heads;
    const int64_t head = kv_head % p_.num_kv_heads * p_.group_size() + head_in_group;
    const int64_t end_query = std::min(first_query + blocks_per_item_ * kBlockRows, p_.seq_len);
    const KeptKeys& kept = padding_.of(batch);
    const int64_t num_blocks = divide_up(end_query - first_query, kBlockRows);
    const auto io = [&](int64_t block) { return TileQueryBlock<Element, Parts>(p_, w, packed_, w.blocks[block]); };
    for (int64_t block = 0; block < num_blocks; ++block) {
      const int64_t first = first_query + block * kBlockRows;
      w.blocks[block].at = {batch, head, first, std::min<int64_t>(kBlockRows, end_query - first), 0, 0};
      w.blocks[block].keys = packed_.keys + slot * packed_.keys_per_head();
      w.blocks[block].values = packed_.values + slot * packed_.values_per_head();
      if (!io(block).begin(packed_.key_norms_of(slot), kept.range)) return false;
    }
    pass_keys<Element>(num_blocks, kept, w);
    for (int64_t block = 0; block < num_blocks; ++block) io(block).finish();
    return true;
  }

  // Key blocks of all query blocks of an item. Block after block while keys and values come from L2;
  // side by side beyond that, so that each block of keys is fetched once for all of them.
  template <class Element>
  void pass_keys(int64_t num_blocks, const KeptKeys& kept, const TileWorkspace<Parts>& w) {
    TilePipeline<Element, Parts> pipeline(p_, w, packed_);
    if (!side_by_side_) {
      for (int64_t block = 0; block < num_blocks; ++block) pipeline.enter_all(w.blocks[block], kept);
      return pipeline.drain();
    }
    Range all = {p_.kv_seq_len, 0};
    for (int64_t block = 0; block < num_blocks; ++block) {
      const Range seen = pipeline.keys_to_pass(w.blocks[block], kept);
      all = {std::min(all.begin, seen.begin), std::max(all.end, seen.end)};
    }
    for (int64_t key = all.begin / kTileSteps * kTileSteps; key < all.end; key += kTileBlockKeys<Parts>)
      for (int64_t block = 0; block < num_blocks; ++block) {
        const Range seen = pipeline.keys_to_pass(w.blocks[block], kept);
        const Range keys = {key, std::min(key + kTileBlockKeys<Parts>, seen.end)};
        if (!intersect(keys, seen).empty()) pipeline.enter(w.blocks[block], keys, kept);
      }
    pipeline.drain();
  }

  const Problem& p_;
  PaddingSummary padding_;
  PackedTiles<Parts> packed_;
  HeadSchedule schedule_;
  int64_t blocks_per_item_;
  bool side_by_side_;
  WorkspacePerThread<TileWorkspace<Parts>> workspaces_;
};
