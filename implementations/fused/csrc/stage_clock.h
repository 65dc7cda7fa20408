// What each stage of a forward pass on tiles costs, for tests/benchmarks/fused_stages.py. Only a build
// with FUSED_STAGE_COSTS counts, in processor ticks of one thread; otherwise a StageClock is nothing.
//
// The product takes products and exponentials in turns (amx/tile_pipeline.h), where no clock could
// tell them apart. The counting build does one stage after the other: the sum of its stages is more
// than the product takes, and the difference is what taking turns gains.
#pragma once
#include <cstdint>

#ifdef FUSED_STAGE_COSTS
#include <x86intrin.h>
#endif

namespace fused {

enum Stage { kPack, kLoadQueries, kMask, kScore, kExponentiate, kAddValues, kWriteOutput, kWholeCall, kNumStages };

#ifdef FUSED_STAGE_COSTS
constexpr bool kStagesApart = true;
inline uint64_t stage_ticks[kNumStages];

class StageClock {
 public:
  explicit StageClock(Stage stage) : stage_(stage), start_(__rdtsc()) {}
  ~StageClock() { stage_ticks[stage_] += __rdtsc() - start_; }

 private:
  Stage stage_;
  uint64_t start_;
};
#else
constexpr bool kStagesApart = false;

class StageClock {
 public:
  explicit StageClock(Stage) {}
  ~StageClock() {}
};
#endif

}  // namespace fused
