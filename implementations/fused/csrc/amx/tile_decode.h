// At most one block of queries per head on many keys. Packed operands would be used only once, and from
// the packing to that use they should not leave the cache: a thread packs a part of a head's keys for
// itself and takes the head's queries past it at once. lanes/partial_results.h merges the parts.

// Keys of one part, long enough for the pipeline to fill; their packed operands stay in L2. Not derived
// from the number of threads, so that results do not depend on it.
constexpr int64_t kTileKeysPerSplit = 512;

template <int Parts>
struct TileSplitWorkspace {
  PackedTiles<Parts> packed;
  TileWorkspace<Parts> tiles;

  TileSplitWorkspace(const Problem& p, Arena& arena)
      : packed(p, kTileKeysPerSplit), tiles(p, 1, place(arena)) {}

 private:
  Arena& place(Arena& arena) {
    packed.place(1, arena);
    return arena;
  }
};

template <int Parts>
class TileDecode {
  using Workspace = TileSplitWorkspace<Parts>;

 public:
  static bool suits(const Problem& p) { return p.seq_len <= kBlockRows && p.kv_seq_len > kTileKeysPerSplit; }

  TileDecode(const Problem& p, Arena arena) : p_(p), pass_(p, kTileKeysPerSplit, arena) {}

  int64_t scratch_bytes() const { return pass_.scratch_bytes(); }

  // False if the input holds values that tiles cannot hold; the output is then incomplete.
  template <class Element>
  bool run() {
    std::atomic<bool> fits{true};
    const auto attend = [&](int64_t kv_head, int64_t split, Range keys, const KeptKeys& kept, Workspace& w) {
      if (fits && !attend_to_split<Element>(kv_head, split, keys, kept, w)) fits = false;
    };
    pass_.reset();
    on_threads(p_.threads, [&](int64_t thread) {
      const TileRegisters registers;
      pass_.template run_on<Element, Float32>(thread, attend);
    });
    return fits;
  }

 private:
  template <class Element>
  bool attend_to_split(int64_t kv_head, int64_t split, Range keys, const KeptKeys& kept_of_all, Workspace& w) {
    const Problem part = on_keys(p_, keys);
    const KeptKeys kept = on_keys(kept_of_all, keys);
    if (!pack<Element>(part, kv_head, w)) return false;
    for (int64_t g = 0; g < p_.group_size(); ++g)
      if (!attend<Element>(part, kept, kv_head, split, g, w)) return false;
    return true;
  }

  template <class Element>
  bool pack(const Problem& part, int64_t kv_head, Workspace& w) {
    const StageClock clock(kPack);
    bool fits = true;
    for (int64_t chunk = 0; chunk * kTileSteps < part.kv_seq_len; ++chunk)
      fits &= w.packed.template pack<Element>(part, kv_head, 0, chunk);
    return fits;
  }

  template <class Element>
  bool attend(const Problem& part, const KeptKeys& kept, int64_t kv_head, int64_t split, int64_t head_in_group,
              Workspace& w) {
    const int64_t batch = kv_head / p_.num_kv_heads;
    const int64_t head = kv_head % p_.num_kv_heads * p_.group_size() + head_in_group;
    TileQueries& queries = w.tiles.blocks[0];
    queries.at = {batch, head, 0, p_.seq_len, 0, 0};
    queries.keys = w.packed.keys;
    queries.values = w.packed.values;
    TileQueryBlock<Element, Parts> io(part, w.tiles, w.packed, queries);
    if (!io.begin(w.packed.key_norms_of(0), kept.range)) return false;
    TilePipeline<Element, Parts> pipeline(part, w.tiles, w.packed);
    pipeline.enter_all(queries, kept);
    pipeline.drain();
    io.complete();
    for (int64_t i = 0; i < p_.seq_len; ++i)
      io.give_partial(i, pass_.results().of(kv_head, split, head_in_group * p_.seq_len + i));
    return true;
  }

  const Problem& p_;
  KeySplitPass<Workspace> pass_;
};
