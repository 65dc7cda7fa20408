// The tile products of a turn of the pipeline, in steps small enough to be done between rows of
// exponentials: P V of one block of scores, then Q K^T of another.
//
// A step multiplies two left tiles (one per row group) with two right tiles, all parts. The four sums
// stay in registers over the steps that add to them; they are stored when the next sums begin, by when
// they have long been finished.

// Where the four sums of a step live in memory: row group i of the left, right operand j.
struct SumPlace {
  float* base;
  int64_t group_stride, right_stride;

  float* at(int group, int right) const { return base + group * group_stride + right * right_stride; }
};

// A block of scores: 32 queries by up to kTileBlockKeys keys.
struct ScoreBlock {
  TileQueries* queries;  // null: no block
  BlockPlace at;
  MaskWork work;
  float* scores;  // slots [row group][slot], see tile_softmax.h
  int64_t num_slots;
  const TileElement *keys, *values;  // right tiles of these keys

  template <int Parts>
  float* slot(int group, int64_t slot) const {
    return scores + (group * kSlotsPerGroup<Parts> + slot) * kSlotFloats<Parts>;
  }
};

// Products of parts stand for one product.
template <int Parts, int Products>
class TileSteps {
 public:
  // Either block may be null.
  TileSteps(const PackedTiles<Parts>& packed, const ScoreBlock& values_of, const ScoreBlock& scores_of)
      : packed_(packed), values_of_(values_of), scores_of_(scores_of) {
    num_value_steps_ = values_of.queries ? values_of.num_slots * packed.channel_groups / 2 : 0;
    num_steps_ = num_value_steps_ + (scores_of.queries ? scores_of.num_slots * packed.channel_chunks : 0);
    right_ = next_right();
  }

  int remaining() const { return int(num_steps_ - step_); }

  void step() {
    if (in_scores())
      score_step();
    else
      value_step();
    ++step_;
    if (step_ == num_value_steps_) outer_ = 0;
    right_ = next_right();
  }

  void run_all() {
    run_until(num_value_steps_, kAddValues);
    run_until(num_steps_, kScore);
    end();
  }

  // After the last step.
  void end() {
    if (!sums_.base) return;
    store_tile<0>(sums_.at(0, 0));
    store_tile<1>(sums_.at(1, 0));
    store_tile<2>(sums_.at(0, 1));
    store_tile<3>(sums_.at(1, 1));
    sums_.base = nullptr;
  }

 private:
  void run_until(int64_t end, Stage stage) {
    const StageClock clock(stage);
    while (step_ < end) step();
  }

  bool in_scores() const { return step_ >= num_value_steps_; }

  // O += P V: two channel groups, one slot of 32 keys.
  void value_step() {
    if (inner_ == 0) begin_output();
    const auto left = [&](int group) {
      return reinterpret_cast<const TileElement*>(values_of_.slot<Parts>(group, inner_));
    };
    multiply_2x2<Products>(left(0), left(1), right_, right_ + Parts * kTileElements);
    if (++inner_ == values_of_.num_slots) inner_ = 0, ++outer_;
  }

  // S = Q K^T: two tiles of 16 keys, 32 channels.
  void score_step() {
    if (inner_ == 0) begin_scores();
    const TileElement* left = scores_of_.queries->tiles + inner_ * Parts * kTileElements;
    multiply_2x2<Products>(left, left + packed_.key_tile_size(), right_, right_ + Parts * kTileElements);
    if (++inner_ == packed_.channel_chunks) inner_ = 0, ++outer_;
  }

  // The two right tiles of a step lie side by side, those of successive score steps too.
  const TileElement* next_right() const {
    constexpr int64_t kPair = 2 * Parts * kTileElements;
    if (in_scores()) return scores_of_.keys + (step_ - num_value_steps_) * kPair;
    return values_of_.values + inner_ * packed_.value_chunk_size() + outer_ * kPair;
  }

  void begin_output() {
    end();
    const TileQueries& queries = *values_of_.queries;
    sums_ = {queries.output + 2 * outer_ * kRowGroups * kSumElements, kSumElements, kRowGroups * kSumElements};
    if (!queries.softmax.has_output) return zero_sums();
    load_tile<0>(sums_.at(0, 0));
    load_tile<1>(sums_.at(1, 0));
    load_tile<2>(sums_.at(0, 1));
    load_tile<3>(sums_.at(1, 1));
  }

  void begin_scores() {
    end();
    sums_ = {scores_of_.slot<Parts>(0, outer_), kSlotsPerGroup<Parts> * kSlotFloats<Parts>, kSumElements};
    zero_sums();
  }

  const PackedTiles<Parts>& packed_;
  const ScoreBlock values_of_, scores_of_;
  int64_t num_value_steps_, num_steps_;
  int64_t step_ = 0, inner_ = 0, outer_ = 0;  // inner steps add to the same sums
  const TileElement* right_;
  SumPlace sums_ = {nullptr, 0, 0};
};
