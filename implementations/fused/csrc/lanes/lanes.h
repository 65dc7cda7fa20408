// The vector of this instruction set and its arithmetic. GCC's vector extensions give one source
// for all widths; intrinsics stand only where they are worth it.
//
// The including file sets FUSED_LANES (floats per vector) and FUSED_PANEL_ROWS, and opens the
// namespace and the target options of its instruction set.

#define FUSED_INLINE static inline __attribute__((always_inline))
#define FUSED_MEMBER inline __attribute__((always_inline))
#define FUSED_UNROLL _Pragma("GCC unroll 16")

constexpr int kLanes = FUSED_LANES;
constexpr int kPanelRows = FUSED_PANEL_ROWS;

typedef float Vec __attribute__((vector_size(4 * FUSED_LANES)));
typedef float UnalignedVec __attribute__((vector_size(4 * FUSED_LANES), aligned(4), may_alias));
typedef int32_t IntVec __attribute__((vector_size(4 * FUSED_LANES)));
typedef uint32_t UintVec __attribute__((vector_size(4 * FUSED_LANES)));
typedef uint16_t HalfVec __attribute__((vector_size(2 * FUSED_LANES)));

constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kLog2E = 1.44269504088896340736f;
constexpr double kLn2 = 0.693147180559945309417;

FUSED_INLINE Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
FUSED_INLINE Vec load_unaligned(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
FUSED_INLINE void store(float* p, Vec x) { *reinterpret_cast<Vec*>(p) = x; }
FUSED_INLINE void store_unaligned(float* p, Vec x) { *reinterpret_cast<UnalignedVec*>(p) = x; }
FUSED_INLINE Vec broadcast(float x) { return x - Vec{}; }

// Where a is NaN the result is b; where b is NaN it is NaN: a running maximum as b keeps a NaN.
FUSED_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }

FUSED_INLINE IntVec load_bytes(const uint8_t* p) {
#if FUSED_LANES == 16
  return (IntVec)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif FUSED_LANES == 8
  return (IntVec)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  IntVec x;
  for (int i = 0; i < kLanes; ++i) x[i] = p[i];
  return x;
#endif
}

FUSED_INLINE IntVec is_infinite(Vec x) { return ((IntVec)x & 0x7fffffff) == 0x7f800000; }

FUSED_INLINE IntVec lane_indices() {
  IntVec indices;
  for (int i = 0; i < kLanes; ++i) indices[i] = i;
  return indices;
}

FUSED_INLINE bool any(IntVec condition) {
#if FUSED_LANES == 16
  return _mm512_movepi32_mask((__m512i)condition) != 0;
#else
  int32_t found = 0;
  for (int i = 0; i < kLanes; ++i) found |= condition[i];
  return found != 0;
#endif
}

FUSED_INLINE bool any_infinite(Vec x) {
#if FUSED_LANES == 16
  constexpr int kPlusInfinity = 0x08, kMinusInfinityClass = 0x10;
  return _mm512_fpclass_ps_mask((__m512)x, kPlusInfinity | kMinusInfinityClass) != 0;
#else
  return any(is_infinite(x));
#endif
}

FUSED_INLINE float sum_of_lanes(Vec x) {
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += x[i];
  return sum;
}

// NaN only if all lanes are: as max, with each lane in turn as a.
FUSED_INLINE float largest_lane(Vec x) {
  float largest = kMinusInfinity;
  for (int i = 0; i < kLanes; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

// Of each pair of neighbouring groups of Stride lanes, the first (or second) ones: x's in their first
// place, y's in the second.
template <int Stride, bool Second>
constexpr int lane_from(int i) {
  const int shift = Second ? Stride : 0;
  return i & Stride ? kLanes + i - Stride + shift : i + shift;
}

#if defined(__clang__)
template <int Stride, bool Second, int... I>
FUSED_INLINE Vec take_lanes(Vec x, Vec y, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(x, y, lane_from<Stride, Second>(I)...);
}
#endif

template <int Stride, bool Second>
FUSED_INLINE Vec take_groups(Vec x, Vec y) {
#if defined(__clang__)
  return take_lanes<Stride, Second>(x, y, std::make_integer_sequence<int, kLanes>{});
#else
  IntVec from;
  for (int i = 0; i < kLanes; ++i) from[i] = lane_from<Stride, Second>(i);
  return __builtin_shuffle(x, y, from);
#endif
}

// One step of the butterfly that transposes a square of kLanes vectors.
template <int Stride>
FUSED_INLINE void exchange(Vec* rows) {
  FUSED_UNROLL
  for (int i = 0; i < kLanes; ++i) {
    if (i & Stride) continue;
    const Vec x = rows[i], y = rows[i + Stride];
    rows[i] = take_groups<Stride, false>(x, y);
    rows[i + Stride] = take_groups<Stride, true>(x, y);
  }
}

// kLanes vectors to one: lane i is vector i, reduced over its lanes. Halves the number of vectors at
// each stride, so that it takes half the shuffles of a transposition.
template <int Stride, class Operation>
FUSED_INLINE void reduce_pairs(Vec* rows, Operation operation) {
  FUSED_UNROLL
  for (int i = 0; i < kLanes; i += 2 * Stride) {
    const Vec x = rows[i], y = rows[i + Stride];
    rows[i] = operation(take_groups<Stride, false>(x, y), take_groups<Stride, true>(x, y));
  }
}

template <class Operation>
FUSED_INLINE Vec reduce_each(Vec* rows, Operation operation) {
  reduce_pairs<1>(rows, operation);
  reduce_pairs<2>(rows, operation);
  if constexpr (kLanes > 4) reduce_pairs<4>(rows, operation);
  if constexpr (kLanes > 8) reduce_pairs<8>(rows, operation);
  return rows[0];
}

FUSED_INLINE void transpose(Vec* rows) {
  exchange<1>(rows);
  exchange<2>(rows);
  if constexpr (kLanes > 4) exchange<4>(rows);
  if constexpr (kLanes > 8) exchange<8>(rows);
}
