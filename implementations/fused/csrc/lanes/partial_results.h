// Results of queries on parts of their keys, and how they become the whole: where queries are few, the
// keys of a head are split over the threads.

struct PartialResult {
  float *maximum, *sum;  // one number each; maximum in base 2
  float* output;         // [padded v_dim], unnormalised, in the order of load_two
};

// By key/value head, split, and query of the group (head in group, then position).
class PartialResults {
 public:
  PartialResults(const Problem& p, int64_t splits, Arena& arena)
      : p_(p), queries_(p.group_size() * p.seq_len), splits_(splits), width_(padded_to_lanes(p.v_dim)) {
    const int64_t count = p.batch_size * p.num_kv_heads * splits * queries_;
    numbers_ = arena.take<float>(2 * count);
    outputs_ = arena.take<float>(count * width_);
  }

  PartialResult of(int64_t kv_head, int64_t split, int64_t query) const {
    const int64_t index = (kv_head * splits_ + split) * queries_ + query;
    return {numbers_ + 2 * index, numbers_ + 2 * index + 1, outputs_ + index * width_};
  }

  // Merges all splits of a query, and writes what comes of it. Source gives the order of channels.
  template <class Element, class Source>
  void finish(int64_t kv_head, int64_t query) const {
    merge(kv_head, query);
    write<Element, Source>(kv_head, query);
  }

 private:
  // Adds all splits to the first one's result, each rescaled to the common maximum.
  void merge(int64_t kv_head, int64_t query) const {
    float maximum = kMinusInfinity, sum = 0.0f;
    for (int64_t split = 0; split < splits_; ++split)
      maximum = std::max(maximum, *of(kv_head, split, query).maximum);
    const PartialResult total = of(kv_head, 0, query);
    const float shift = maximum == kMinusInfinity ? 0.0f : maximum;
    for (int64_t split = 0; split < splits_; ++split) {
      const PartialResult part = of(kv_head, split, query);
      const Vec weight = exp2(broadcast(*part.maximum - shift));
      sum += *part.sum * weight[0];
      for (int64_t c = 0; c < p_.v_dim; c += kLanes) {
        const Vec scaled = load(part.output + c) * weight;
        store(total.output + c, split ? load(total.output + c) + scaled : scaled);
      }
    }
    *total.maximum = maximum;
    *total.sum = sum;
  }

  template <class Element, class Source>
  void write(int64_t kv_head, int64_t query) const {
    const int64_t batch = kv_head / p_.num_kv_heads, position = query % p_.seq_len;
    const int64_t head = kv_head % p_.num_kv_heads * p_.group_size() + query / p_.seq_len;
    const PartialResult total = of(kv_head, 0, query);
    const float factor = *total.sum == 0.0f ? 0.0f : 1.0f / *total.sum;
    for (int64_t c = 0; c < width_; c += kLanes) store(total.output + c, load(total.output + c) * factor);
    from_order_of_two<Source>(total.output, width_);
    store_row(row_of<Element>(p_.output, batch, head, position), p_.output.column, p_.v_dim, total.output);
    if (p_.log_sum_exp)
      p_.log_sum_exp[(batch * p_.num_heads + head) * p_.seq_len + position] = log_sum_exp(*total.maximum, *total.sum);
  }

  const Problem& p_;
  int64_t queries_, splits_, width_;
  float *numbers_, *outputs_;
};

// A pass whose work is divided by the keys: the threads take splits of a head's keys, then merge.
template <class Workspace>
class KeySplitPass {
 public:
  KeySplitPass(const Problem& p, int64_t keys_per_split, Arena arena)
      : p_(p),
        keys_per_split_(keys_per_split),
        splits_(std::max<int64_t>(divide_up(p.kv_seq_len, keys_per_split), 1)),
        padding_(p, arena),
        schedule_(p, 1, arena),
        results_(p, splits_, arena),
        workspaces_(arena, p) {}

  int64_t scratch_bytes() const { return workspaces_.end_bytes(p_.threads); }
  const PartialResults& results() const { return results_; }

  // Before any thread begins.
  void reset() {
    padding_.fill(p_);
    schedule_.reset();
  }

  // One thread's share. attend(key/value head, split, its keys, those that padding keeps, workspace)
  // leaves the results of the split; Source is the order of their channels.
  template <class Element, class Source, class Attend>
  void run_on(int64_t thread, Attend attend) {
    Workspace workspace = workspaces_.of(thread, p_.scratch, p_);
    schedule_.run(
        thread, splits_, p_.group_size() * p_.seq_len,
        [&](int64_t kv_head, int64_t, int64_t split) {
          const int64_t first = split * keys_per_split_;
          const Range keys = {first, std::min(first + keys_per_split_, p_.kv_seq_len)};
          attend(kv_head, split, keys, padding_.of(kv_head / p_.num_kv_heads), workspace);
        },
        [&](int64_t kv_head, int64_t, int64_t query) { results_.template finish<Element, Source>(kv_head, query); });
  }

 private:
  const Problem& p_;
  int64_t keys_per_split_, splits_;
  PaddingSummary padding_;
  HeadSchedule schedule_;
  PartialResults results_;
  WorkspacePerThread<Workspace> workspaces_;
};
