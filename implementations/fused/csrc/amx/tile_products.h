// Products of tiles, 2 x 2 at a time: sums in tiles 0 to 3, left operands in 4 and 5, right ones in
// 6 and 7. Every loaded tile is used twice.

// Which parts are multiplied, smallest products first; each step changes one side only, so that one
// pair of tiles is loaded per step.
template <int Products>
struct ProductOrder;

template <>
struct ProductOrder<1> {
  static constexpr int left[] = {0}, right[] = {0};
};

template <>
struct ProductOrder<3> {
  static constexpr int left[] = {1, 0, 0}, right[] = {0, 0, 1};
};

// All products of two parts: exact for float16, whose 11 bits two parts hold.
template <>
struct ProductOrder<4> {
  static constexpr int left[] = {1, 1, 0, 0}, right[] = {1, 0, 0, 1};
};

template <>
struct ProductOrder<6> {
  static constexpr int left[] = {2, 0, 0, 0, 1, 1}, right[] = {0, 0, 2, 1, 1, 0};
};

FUSED_INLINE void zero_sums() {
  zero_tile<0>();
  zero_tile<1>();
  zero_tile<2>();
  zero_tile<3>();
}

// Step and the steps after it. Parts of one operand are kTileElements apart.
template <int Products, int Step = 0>
FUSED_INLINE void multiply_2x2(const TileElement* left0, const TileElement* left1, const TileElement* right0,
                               const TileElement* right1) {
  using Order = ProductOrder<Products>;
  constexpr int64_t kLeft = Order::left[Step] * kTileElements, kRight = Order::right[Step] * kTileElements;
  constexpr bool kNewLeft = Step == 0 || Order::left[Step] != Order::left[Step ? Step - 1 : 0];
  constexpr bool kNewRight = Step == 0 || Order::right[Step] != Order::right[Step ? Step - 1 : 0];
  if constexpr (kNewRight) load_tile_streaming<6>(right0 + kRight);
  if constexpr (kNewLeft) load_tile<4>(left0 + kLeft);
  multiply<0, 4, 6>();
  if constexpr (kNewLeft) load_tile<5>(left1 + kLeft);
  multiply<1, 5, 6>();
  if constexpr (kNewRight) load_tile_streaming<7>(right1 + kRight);
  multiply<2, 4, 7>();
  multiply<3, 5, 7>();
  if constexpr (Step + 1 < Products) multiply_2x2<Products, Step + 1>(left0, left1, right0, right1);
}
