// The three packed forms, always float32, always zero beyond the last row or channel:
//
//   row panels     [rows / R][channels][R]   R = kPanelRows rows side by side: one operand of a
//                                            product that sums over channels (Q K^T)
//   column panels  [channels / R][rows][R]   R channels side by side: one operand of a product
//                                            that sums over rows (P V)
//   lane block     [channels][W]             W rows side by side across the vector lanes: the
//                                            other operand of a product that sums over channels
//
// Packing makes every later access contiguous, whatever the strides and the element type.

// Where rows come from: row i begins at base + i * row_stride.
template <class Element>
struct Rows {
  const Element* base;
  int64_t row_stride, column_stride, count, channels;

  Rows from(int64_t row) const {
    return {base + row * row_stride, row_stride, column_stride, count - row, channels};
  }
};

template <class Element>
static Rows<Element> rows_of(const Tensor& t, int64_t batch, int64_t head, int64_t first, int64_t count,
                             int64_t channels) {
  return {row_of<Element>(t, batch, head, first), t.row, t.column, count, channels};
}

constexpr int64_t padded_to_lanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }
constexpr int64_t padded_to_panel(int64_t n) { return (n + kPanelRows - 1) / kPanelRows * kPanelRows; }

// Floats from one column panel to the next: an odd number of cache lines, for a power of two would put
// the panels of a row into the same few cache sets.
constexpr int64_t column_panel_stride(int64_t rows) {
  constexpr int64_t kLineFloats = 16;
  return ((rows * kPanelRows + kLineFloats - 1) / kLineFloats | 1) * kLineFloats;
}

// kLanes rows as float32 into staging [kLanes][padded channels]; rows beyond the last are 0.
template <class Element>
static void stage_rows(const Rows<Element>& rows, float* staging) {
  const int64_t width = padded_to_lanes(rows.channels);
  for (int64_t i = 0; i < kLanes; ++i) {
    if (i < rows.count)
      load_row(rows.base + i * rows.row_stride, rows.column_stride, rows.channels, staging + i * width);
    else
      __builtin_memset(staging + i * width, 0, width * sizeof(float));
  }
}

// A square of the staged rows, transposed: square[c] holds channel first_channel + c of all rows.
FUSED_INLINE void load_transposed(const float* staging, int64_t width, int64_t first_channel, Vec* square) {
  FUSED_UNROLL
  for (int i = 0; i < kLanes; ++i) square[i] = load(staging + i * width + first_channel);
  transpose(square);
}

// Lane block of width block_width; every value times factor.
template <class Element>
static void pack_lane_block(const Rows<Element>& rows, float factor, int64_t block_width, float* staging,
                            float* block) {
  const int64_t width = padded_to_lanes(rows.channels);
  for (int64_t lane = 0; lane < block_width; lane += kLanes) {
    stage_rows(rows.from(lane), staging);
    for (int64_t first = 0; first < rows.channels; first += kLanes) {
      Vec square[kLanes];
      load_transposed(staging, width, first, square);
      FUSED_UNROLL
      for (int c = 0; c < kLanes; ++c)
        if (first + c < rows.channels) store(block + (first + c) * block_width + lane, square[c] * factor);
    }
  }
}

// Row panels of the rows [0, count) in steps of kLanes rows, which fill kLanes / kPanelRows panels.
template <class Element>
static void pack_row_panels(const Rows<Element>& rows, float* staging, float* panels) {
  const int64_t width = padded_to_lanes(rows.channels);
  for (int64_t row = 0; row < rows.count; row += kLanes) {
    stage_rows(rows.from(row), staging);
    const int64_t filled = padded_to_panel(rows.count - row < kLanes ? rows.count - row : kLanes);
    for (int64_t first = 0; first < rows.channels; first += kLanes) {
      Vec square[kLanes];
      load_transposed(staging, width, first, square);
      for (int c = 0; c < kLanes && first + c < rows.channels; ++c)
        for (int64_t r = 0; r < filled; r += kPanelRows)
          __builtin_memcpy(panels + (row + r) * rows.channels + (first + c) * kPanelRows,
                           reinterpret_cast<const float*>(&square[c]) + r, kPanelRows * sizeof(float));
    }
  }
}

// Rows [0, count) of column panels that are panel_stride floats apart.
template <class Element>
static void pack_column_panels(const Rows<Element>& rows, int64_t panel_stride, float* staging, float* panels) {
  for (int64_t row = 0; row < rows.count; ++row) {
    load_row(rows.base + row * rows.row_stride, rows.column_stride, rows.channels, staging);
    for (int64_t c = 0; c < rows.channels; c += kPanelRows)
      __builtin_memcpy(panels + c / kPanelRows * panel_stride + row * kPanelRows, staging + c,
                       kPanelRows * sizeof(float));
  }
}

// Writes the lanes of a lane block [channels][block_width] back as rows; those of the vector that
// begins at a lane times factor_of(lane).
template <class Element, class FactorOf>
static void unpack_lane_block(const float* block, int64_t block_width, FactorOf factor_of, float* staging,
                              const Rows<Element>& rows) {
  const int64_t width = padded_to_lanes(rows.channels);
  for (int64_t lane = 0; lane < rows.count; lane += kLanes) {
    const Vec factor = factor_of(lane);
    for (int64_t first = 0; first < rows.channels; first += kLanes) {
      Vec square[kLanes];
      FUSED_UNROLL
      for (int c = 0; c < kLanes; ++c)
        square[c] = first + c < rows.channels ? load(block + (first + c) * block_width + lane) * factor : Vec{};
      transpose(square);
      FUSED_UNROLL
      for (int i = 0; i < kLanes; ++i) store(staging + i * width + first, square[i]);
    }
    for (int64_t i = 0; i < kLanes && lane + i < rows.count; ++i)
      store_row(const_cast<Element*>(rows.base) + (lane + i) * rows.row_stride, rows.column_stride, rows.channels,
                staging + i * width);
  }
}
