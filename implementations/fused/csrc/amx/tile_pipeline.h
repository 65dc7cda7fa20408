// Blocks of scores pass through three turns, and three blocks are in work at any time:
//
//   1. Q K^T      the newest block, on the tile unit
//   2. softmax    the block before it, on the vector units
//   3. P V        the block before that, on the tile unit
//
// Tile products and exponentials use different units: taken alternately, a step here and a few rows
// there, they run at the same time. Two score buffers suffice, for P V empties the one that Q K^T then
// fills.

template <class Element, int Parts>
class TilePipeline {
  static constexpr int kProducts = Parts == 1 ? 1 : Parts == 3 ? 6 : kSplitsExactly<Element, Parts> ? 4 : 3;
  using Steps = TileSteps<Parts, kProducts>;
  using MaskAhead = TileMaskAhead<Element>;

 public:
  TilePipeline(const Problem& p, const TileWorkspace<Parts>& w, const PackedTiles<Parts>& packed)
      : p_(p), w_(w), packed_(packed) {}

  // Takes the queries past a block of keys; the output holds it after drain().
  void enter(TileQueries& queries, Range keys, const KeptKeys& kept) {
    ScoreBlock block = {};
    block.at = queries.at;
    block.at.first_key = keys.begin;
    block.at.num_keys = keys.end - keys.begin;
    if (!keeps_any(p_, block.at)) return;
    block.queries = &queries;
    block.work = mask_work(p_, block.at, kept);
    block.num_slots = divide_up(block.at.num_keys, kTileSteps);
    block.keys = queries.keys + keys.begin / kTileRows * packed_.key_tile_size();
    block.values = queries.values + keys.begin / kTileSteps * packed_.value_chunk_size();
    block.scores = w_.score_buffer(turn_);
    take_turn(block);
  }

  // All keys that the queries see, block after block.
  void enter_all(TileQueries& queries, const KeptKeys& kept) {
    const Range seen = keys_to_pass(queries, kept);
    for (int64_t key = seen.begin / kTileSteps * kTileSteps; key < seen.end; key += kTileBlockKeys<Parts>)
      enter(queries, {key, std::min(key + kTileBlockKeys<Parts>, seen.end)}, kept);
  }

  Range keys_to_pass(const TileQueries& queries, const KeptKeys& kept) const {
    return intersect(keys_seen_by_any(p_, queries.at.first_query, queries.at.num_queries), kept.range);
  }

  void drain() {
    take_turn(ScoreBlock{});
    take_turn(ScoreBlock{});
  }

 private:
  void take_turn(const ScoreBlock& newest) {
    if (softmax_.queries) prepare_softmax();
    if (kSettlesOutput<Parts> && values_.queries) settle_if_due();
    Steps products(packed_, values_, newest);
    MaskAhead mask(p_, newest.at, newest.work.by_tensors);
    if (!softmax_.queries)
      products.run_all();
    else if (is_whole(softmax_))
      exponentiate<kSlotsPerGroup<Parts>, false>(products, mask);
    else
      exponentiate<0, true>(products, mask);
    mask.ask_until(kBlockRows);
    if (values_.queries) finish_values();
    values_ = softmax_;
    softmax_ = newest;
    ++turn_;
  }

  static bool is_whole(const ScoreBlock& block) {
    return block.at.num_keys == kTileBlockKeys<Parts> && !block.work.any();
  }

  // What needs all scores of a row: masks, and maxima where they are not known beforehand.
  void prepare_softmax() {
    const StageClock clock(kMask);
    factor_ = softmax_.queries->softmax.score_factor;
    mask();
    if (!softmax_.queries->softmax.is_bounded) raise_maxima();
  }

  void mask() {
    const bool has_padding_keys = softmax_.at.num_keys % kTileSteps != 0;
    const TileMask<Parts> mask(p_, softmax_.at, softmax_.scores, kSlotsPerGroup<Parts>);
    if (softmax_.work.by_padding || softmax_.work.by_tensors) {
      mask.template by_tensors<Element>(factor_);
      factor_ = 1.0f;
    }
    if (softmax_.work.by_position || has_padding_keys) mask.by_position();
  }

  void raise_maxima() {
    TileQueries& queries = *softmax_.queries;
    for (int group = 0; group < kRowGroups; ++group) {
      alignas(64) float factors[kLanes];
      const float* slots = softmax_.slot<Parts>(group, 0);
      if (!raise_row_maxima<Parts>(slots, softmax_.num_slots, factor_, group, queries.softmax, factors)) continue;
      add_pending_values();
      TileSoftmaxState& state = queries.softmax;
      const int64_t groups = packed_.channel_groups;
      rescale_rows(state.sum, group, factors, queries.output, state.has_output ? groups : 0);
      if (state.has_settled) rescale_rows(state.settled_sum, group, factors, queries.settled, groups);
    }
  }

  // The output must hold all probabilities of the old maxima before its rows are rescaled.
  void add_pending_values() {
    if (!values_.queries) return;
    if (kSettlesOutput<Parts>) settle_if_due();
    Steps(packed_, values_, ScoreBlock{}).run_all();
    finish_values();
    values_.queries = nullptr;
  }

  // Before the first step of P V.
  void settle_if_due() {
    if (values_.queries->num_unsettled == kBlocksPerSettling) settle(*values_.queries, packed_.channel_groups);
  }

  // After the last step of P V.
  void finish_values() {
    values_.queries->softmax.has_output = true;
    ++values_.queries->num_unsettled;
  }

  // All rows that hold queries, and all steps of the products between them; the next block's mask.
  template <int Slots, bool SumsRounded>
  void exponentiate(Steps& products, MaskAhead& mask) {
    if (kStagesApart) products.run_all();
    const StageClock clock(kExponentiate);
    SoftmaxRows<Parts, Slots, SumsRounded> rows(softmax_.scores, kSlotsPerGroup<Parts>, softmax_.num_slots, factor_,
                                                softmax_.queries->softmax);
    const int steps = products.remaining(), num_rows = int(softmax_.at.num_queries);
    for (int step = 0; step < steps; ++step) {
      products.step();
      rows.exponentiate_until(num_rows * (step + 1) / steps);
      mask.ask_until(kBlockRows * (step + 1) / steps);
    }
    rows.exponentiate_until(num_rows);
    products.end();
  }

  const Problem& p_;
  const TileWorkspace<Parts>& w_;
  const PackedTiles<Parts>& packed_;
  ScoreBlock softmax_ = {}, values_ = {};  // the blocks of turns 2 and 3
  float factor_ = 1.0f;                    // from the scores of the block of turn 2 to base 2
  int64_t turn_ = 0;
};
